"""The loss over three epochs under every planner, beside plain training's: the same numbers.

arXiv:2209.02478v1 shows loss curves over three epochs; the IPDPS version leaves them out. Real
training on the CPU, of tiny models on generated data whose epochs are short. A planner must not
change what is computed: with equal seeds each loss is the baseline's, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from mimose.units import format_bytes
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.recorded import Record
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.reading import Run

EPOCHS = 3
BATCH_SIZE = 8
STEPS_PER_EPOCH = {"qa-bert": 26, "tc-bert": 51}
"""Of the 203 and 403 examples that the tasks' generated data has at this scale."""
PLANNERS = (
    "sublinear",
    "sublinear-greedy",
    "sqrt-n",
    "full",
    "selective",
    "rotor",
    "checkmate-lp",
    "dtr",
    "delta",
    "mimose",
    "mimose-authors",
)
QUICK_PLANNERS = ("sublinear-greedy", "dtr", "mimose")
TASKS = tuple(STEPS_PER_EPOCH)


def grid(tasks: Sequence[str], planners: Sequence[str]) -> dict[str, Any]:
    """Return what is run."""
    own = {"mimose-authors": {"planner": "mimose", "variant": "authors"}}
    return {
        "tasks": list(tasks),
        "planners": ["baseline", *planners],
        "budgets": ["60%"],
        "devices": ["cpu"],
        "options": {
            "scale": "tiny",
            "data": "synthetic",
            "batch_size": BATCH_SIZE,
            "threads": 1,
            "flops": "off",
        },
        "task": {task: {"steps": EPOCHS * STEPS_PER_EPOCH[task]} for task in tasks},
        "planner": {name: options for name, options in own.items() if name in planners},
    }


def check(record: Record, *, extent: str = "whole", say: Say = silent) -> Reproduction:
    """Train and compare.

    Args:
        record: Runs a grid.
        extent: ``quick``: one task and three planners.
        say: Takes lines of progress.
    """
    quick = extent == "quick"
    chosen = grid(TASKS[:1], QUICK_PLANNERS) if quick else grid(TASKS, PLANNERS)
    say(f"loss: {EPOCHS} epochs of {', '.join(chosen['tasks'])} on the cpu")
    found = record(chosen)
    return judge(found.runs, found.device_label)


def judge(runs: Sequence[Run], device_label: str) -> Reproduction:
    """Compare each run's losses with those of the baseline of its task."""
    claims: list[Claim] = []
    rows: list[tuple[str, ...]] = []
    idle = 0
    for task in dict.fromkeys(str(run.info["task"]) for run in runs):
        mine = [run for run in runs if run.info["task"] == task]
        plain = next((run for run in mine if run.planner == "baseline"), None)
        if plain is None:
            continue
        claims.append(_falls(plain, device_label))
        for run in mine:
            if run is plain:
                continue
            claims.append(_equal(plain, run, device_label))
            acts = _acts(run)
            idle += acts == 0 and run.info["outcome"] == "done"
            rows.append(
                (
                    task,
                    _name(run),
                    format_bytes(run.budget_bytes or 0),
                    str(len(run.steps)),
                    f"{acts:.1f}",
                    f"{run.summary['final_loss'] or float('nan'):.6f}",
                )
            )
    return Reproduction(
        name="loss",
        title=f"loss over {EPOCHS} epochs",
        source="arXiv v1, its figure of convergence",
        device_label=device_label,
        rows=(),
        criteria=(
            Criterion(
                name="runs that never dropped anything, so that their loss says nothing",
                value=idle,
                tolerance=0,
                is_count=True,
            ),
        ),
        claims=tuple(claims),
        tables=(
            ResultTable(
                title=f"{EPOCHS} epochs, budgets 60 % of the way between the bounds",
                headers=("task", "planner", "budget", "steps", "dropped a step", "last loss"),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "Loss curves of one task lie on one another. The paper's figure could not be read, so "
            "that ours is compared with the baseline's, which is what it shows.",
            "Dropped a step: blocks recomputed (of selective: whether it did), or storages that "
            "planners of tensors evicted, to be computed again or copied to the host.",
        ),
    )


def _name(run: Run) -> str:
    variant = (run.info.get("config") or {}).get("variant")
    return f"{run.planner} ({variant})" if variant else run.planner


def _falls(plain: Run, device_label: str) -> Claim:
    losses = plain.steps["loss"].to_numpy(dtype=float)
    steps = STEPS_PER_EPOCH[str(plain.info["task"])]
    first, last = losses[:steps].mean(), losses[-steps:].mean()
    return Claim(
        text=f"{plain.info['task']}: the mean loss of the last epoch over that of the first",
        source="convergence",
        version="v1",
        unit="x",
        expected=1.0,
        obtained=float(last / first),
        bound="at most",
        device_label=device_label,
    )


def _equal(plain: Run, run: Run, device_label: str) -> Claim:
    ended = run.info["outcome"]
    return Claim(
        text=f"{run.info['task']}: steps in which {_name(run)} has another loss than the baseline",
        source="convergence",
        version="v1",
        unit="count",
        expected=0,
        obtained=differing(plain.steps, run.steps) if ended == "done" else None,
        device_label=device_label,
        note="" if ended == "done" else f"the run ended {ended}",
    )


def differing(plain: pd.DataFrame, steps: pd.DataFrame) -> int:
    """Return the steps whose loss differs in a bit, is no number, or that one of them lacks."""
    both = plain[["step", "loss"]].merge(steps[["step", "loss"]], on="step", how="outer")
    mine, theirs = (both[name].to_numpy(dtype=float) for name in ("loss_x", "loss_y"))
    return int((~(mine == theirs) | np.isnan(mine)).sum())


def _acts(run: Run) -> float:
    """Return the blocks recomputed, cores among them, or storages evicted in a step, on average."""
    steps = run.steps
    evicted = steps["num_evictions"].fillna(0).astype(float)
    blocks = steps["num_recomputed"].fillna(0).astype(float)
    cores = steps["plan"].fillna("").str.contains("selective").astype(float)
    return float((evicted + blocks + cores).mean())
