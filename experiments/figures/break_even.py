"""How soon Mimose's sheltered phase has paid for itself.

A sheltered iteration recomputes every block and runs each forward once more; from then on Mimose is
ahead of plans made for the longest input. The first version of the paper (arXiv 2209.02478) names
that cost as a limit on small data sets, without a figure. IPDPS 2023 ran 10 % of each data set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimose_bench.experiments.comparing import pair
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.recorded import Record
from mimose_bench.experiments.figures.result import Reproduction, ResultTable
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.tasks import TASKS

SUBLINEAR, FULL, MIMOSE = "sublinear-greedy", "full", "mimose"
RIVALS = {SUBLINEAR: "Sublinear", FULL: "every block recomputed"}
BUDGETS = ("4GB", "5GB", "6GB", "7GB", "8GB")
SAMPLES = (1000, 10000)
"""Sizes of small data sets, in samples."""

BATCHES: Mapping[str, int] = {"qa-bert": 12, "mc-roberta": 16}
"""Batch sizes (Table II)."""

PAPERS_SAMPLES: Mapping[str, int] = {"qa-bert": 87_599, "mc-roberta": 73_546}
"""Training samples of SQuAD 1.1 and SWAG (huggingface.co/datasets/squad, swag); the paper's runs
take a tenth of them."""

STEPS = 60
QUICK_TASKS, QUICK_BUDGETS, QUICK_STEPS = 1, 1, 24
NEVER = 1e6
"""Iterations that stand for never in a claim, whose figures are finite."""
_BOOTSTRAPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where a run of Mimose overtakes a rival's over the same batches.

    Attributes:
        num_sheltered: Sheltered iterations.
        loss: Seconds that these took more than the rival's on the same batches.
        gain: Seconds that a responsive iteration takes less, in the mean.
        iterations: After how many iterations the loss is made up for at that gain; infinite where
            there is none.
        interval: That with 95 % confidence, by a bootstrap over responsive iterations; None for
            fewer than two.
        seen: The iteration from which on the run itself was ahead to its end; None if it never was.
    """

    num_sheltered: int
    loss: float
    gain: float
    iterations: float
    interval: tuple[float, float] | None
    seen: int | None


def break_even(mimose: Run, rival: Run, seed: int = 0) -> BreakEven:
    """Return where ``mimose`` overtakes ``rival``.

    Args:
        mimose: A run over sampled lengths.
        rival: Another over the same batches.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: If the batches differ, or one of them has no responsive iteration.
    """
    paired = pair(rival.steps, mimose.steps).sort_values("step")
    ahead = (paired["reference_seconds"] - paired["step_seconds"]).to_numpy(dtype=float)
    sheltered = (paired["phase"] == "sheltered").to_numpy(dtype=bool)
    gains = ahead[~sheltered]
    if not gains.size:
        raise ValueError(f"{mimose.name} has no responsive iteration: give it more steps")
    count, loss = int(sheltered.sum()), float(-ahead[sheltered].sum())
    interval = None
    if gains.size > 1:
        generator = np.random.default_rng(seed)
        draws = generator.choice(gains, (_BOOTSTRAPS, gains.size)).mean(axis=1)
        low, high = np.quantile(draws, (0.025, 0.975))
        interval = _iterations(count, loss, high), _iterations(count, loss, low)
    behind = np.flatnonzero(np.cumsum(ahead) < 0)
    first = 0 if not behind.size else int(behind[-1]) + 1
    return BreakEven(
        num_sheltered=count,
        loss=loss,
        gain=float(gains.mean()),
        iterations=_iterations(count, loss, float(gains.mean())),
        interval=interval,
        seen=first + 1 if first < ahead.size else None,
    )


def _iterations(num_sheltered: int, loss: float, gain: float) -> float:
    if loss <= 0:
        return float(num_sheltered)
    return num_sheltered + loss / gain if gain > 0 else math.inf


def grid(
    tasks: int = len(BATCHES), budgets: int = len(BUDGETS), steps: int = STEPS
) -> dict[str, Any]:
    """Return what is run; recomputing every block takes the same time under every budget."""
    return {
        "tasks": list(BATCHES)[:tasks],
        "planners": [FULL, SUBLINEAR, MIMOSE],
        # The middle one first, where a quick run stays.
        "budgets": sorted(BUDGETS, key=lambda budget: abs(int(budget[0]) - 6))[:budgets],
        "seeds": [1],
        "options": {
            "steps": steps,
            "data": "synthetic",
            "flops": "off",
            "foreach": "off",
            "threads": 1,
        },
        "planner": {FULL: {"budgets": ["none"]}},
    }


Found = Mapping[tuple[str, str, str], BreakEven]
"""By task, budget and rival."""


def judge(found: Found, device_label: str, reasons: Sequence[str] = ()) -> Reproduction:
    """Return the table, and whether runs as long as the paper's pay.

    Args:
        found: What was found.
        device_label: Where it was.
        reasons: Why settings are missing, a sentence each.
    """
    rows = []
    for (task, budget, rival), at in sorted(found.items()):
        batch = BATCHES[task]
        ends = "" if at.interval is None else f" ({_count(at.interval[0])} to "
        ends += "" if at.interval is None else f"{_count(at.interval[1])})"
        rows.append(
            (
                TASKS[task].title,
                budget,
                RIVALS[rival],
                f"{at.num_sheltered}",
                f"{1e3 * at.loss:.0f}",
                f"{1e3 * at.gain:.1f}",
                _count(at.iterations) + ends,
                "-" if at.seen is None else f"{at.seen}",
                *(_epochs(at.iterations, samples, batch) for samples in SAMPLES),
            )
        )
    claims = []
    for task in BATCHES:
        for rival, name in RIVALS.items():
            own = {b: at for (t, b, r), at in found.items() if (t, r) == (task, rival)}
            if not own:
                continue
            budget = max(own, key=lambda b: own[b].iterations)
            claims.append(
                Claim(
                    text=f"{TASKS[task].title}: within a run of 10 % of the samples Mimose, "
                    f"sheltered iterations included, overtakes {name}",
                    source="section on Fig 10",
                    version="ipdps",
                    unit="iterations",
                    expected=math.ceil(0.1 * PAPERS_SAMPLES[task] / BATCHES[task]),
                    obtained=min(own[budget].iterations, NEVER),
                    interval=_finite(own[budget].interval),
                    bound="at most",
                    device_label=device_label,
                    note=f"at {budget}, where it takes longest"
                    + (": never" if math.isinf(own[budget].iterations) else ""),
                )
            )
    return Reproduction(
        name="break-even",
        title="iterations until Mimose's sheltered phase has paid for itself",
        source="limits named in arXiv 2209.02478",
        device_label=device_label,
        rows=(),
        claims=tuple(claims),
        tables=(
            ResultTable(
                title=f"over the same sampled batches, {device_label}; 95 % intervals",
                headers=(
                    "task",
                    "budget",
                    "against",
                    "sheltered",
                    "they cost (ms)",
                    "gain an iteration (ms)",
                    "paid after iterations",
                    "ahead in the run from",
                    *(f"epochs of {samples:,}" for samples in SAMPLES),
                ),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "Sheltered iterations cost what they take more than the rival's on the same batches; "
            "lengths beyond those seen add some later in a run. What Sublinear takes to profile "
            "and to solve before training is not counted against it.",
            *reasons,
        ),
    )


def check(
    record: Record,
    *,
    tasks: int = len(BATCHES),
    budgets: int = len(BUDGETS),
    steps: int = STEPS,
    say: Say = silent,
) -> Reproduction:
    """Run Mimose and its rivals over the same batches, and say when it has overtaken them."""
    say(f"break-even: {tasks} tasks, {budgets} budgets, {steps} steps")
    recorded = record(grid(tasks, budgets, steps))
    found: dict[tuple[str, str, str], BreakEven] = {}
    reasons: list[str] = []
    for cell in recorded.find(label=MIMOSE):
        task, budget = cell.row["task"], cell.row["budget"]
        for rival in RIVALS:
            facts = {"task": task, "label": rival, "seed": cell.row["seed"]}
            if rival != FULL:
                facts["budget"] = budget
            (other,) = recorded.find(**facts)
            try:
                if cell.run is None or other.run is None:
                    raise ValueError("one of the runs left no record")
                found[task, budget, rival] = break_even(cell.run, other.run)
            except ValueError as error:
                reasons.append(f"{TASKS[task].title} at {budget} against {RIVALS[rival]}: {error}.")
    return judge(found, recorded.device_label, reasons)


def _finite(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (min(interval[0], NEVER), min(interval[1], NEVER))


def _count(iterations: float) -> str:
    return "never" if math.isinf(iterations) else f"{iterations:.0f}"


def _epochs(iterations: float, samples: int, batch_size: int) -> str:
    if math.isinf(iterations):
        return "never"
    return f"{iterations / math.ceil(samples / batch_size):.2f}"
