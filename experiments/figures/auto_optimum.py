"""How far auto's choice is from the best one: the same menus, handed to an integer programme.

A step's choice takes a fraction of a millisecond and may miss the optimum; HiGHS may take seconds.
Both get the menus of one size and the same bounds at each moment of the step. Compared is the
time that is spent on making values again, which is what the choice is about.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from mimose.planners.auto import Auto, choosing
from mimose.planners.auto.choosing import InsideForecast, Offers
from mimose.planners.bound import recomputable
from mimose.records import Situation
from mimose.solvers import choice, choice_exact
from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures.auto import SOURCE
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import Reproduction, ResultTable
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent, training
from mimose_bench.experiments.figures.workloads import (
    MC_ROBERTA,
    QA_BERT,
    TC_BERT,
    TR_T5,
    Workload,
)

WORKLOADS: tuple[Workload, ...] = (QA_BERT, TC_BERT, MC_ROBERTA, TR_T5)
MARGIN = 0.05
"""Share of a budget that is left free."""
TOLERANCE = 0.05
"""The most that the mean distance may be."""
SECONDS, QUICK_SECONDS = 10.0, 3.0
"""How long the solver may take for one size and budget."""
LENGTHS, QUICK_LENGTHS = 4, 2
QUICK_WORKLOADS = 1
_GAP = 1e-4


@dataclass(frozen=True, slots=True)
class Distance:
    """One size under one budget.

    Attributes:
        task: The workload's name.
        budget_bytes: The budget.
        length: The padded length.
        chosen: Seconds spent on making values again by auto's choice.
        best: The same by the integer programme's.
        is_proved: Whether the solver ended before its time was up, so that its answer is the best.
    """

    task: str
    budget_bytes: int
    length: int
    chosen: float
    best: float
    is_proved: bool = True

    @property
    def share(self) -> float:
        """By how much auto's choice takes longer, as a share of the best."""
        return self.chosen / self.best - 1


def check(
    open_device: OpenDevice,
    *,
    workloads: int = len(WORKLOADS),
    lengths: int = LENGTHS,
    seconds: float = SECONDS,
    say: Say = silent,
) -> Reproduction:
    """Solve both ways at several lengths under the paper's budgets.

    Args:
        open_device: Opens the simulated GPU.
        workloads: How many of the workloads to take.
        lengths: How many lengths of each.
        seconds: How long the solver may take for each.
        say: Takes lines of progress.
    """
    found: list[Distance] = []
    label = ""
    for workload in WORKLOADS[:workloads]:
        with open_device() as device:
            label = device.label
            budgets = paper.budgets(workload.name)
            quarters_tried = (4, 2, 1, 3, 4)
            with training(
                device, workload, "auto", max(budgets), sheltered=len(quarters_tried)
            ) as session:
                planner = session.handle.planner
                assert isinstance(planner, Auto)
                tried = spread(workload.longest, lengths)
                for quarters in quarters_tried:
                    record = session.step(workload.longest * quarters // 4)
                for length in tried:
                    size = workload.example_batch(length).size
                    forecast = planner.forecast(size, record.situation)
                    assert forecast is not None, "five steps have taught it"
                    for budget in budgets:
                        solved = solve(planner, forecast, record.situation, budget, seconds)
                        if solved is not None:
                            found.append(Distance(workload.name, budget, length, *solved))
                    say(f"auto-optimum: {workload.name} at length {length}")
    return judge(found, label)


def spread(longest: int, count: int) -> list[int]:
    """Return so many lengths up to the longest, evenly spread over its upper three quarters."""
    return [round(longest * (0.25 + 0.75 * i / max(count - 1, 1))) for i in range(count)]


def solve(
    planner: Auto,
    forecast: InsideForecast,
    situation: Situation,
    budget_bytes: int,
    time_limit: float,
) -> tuple[float, float, bool] | None:
    """Return the seconds of auto's choice, of the best one, and whether that is proved.

    None where there is nothing to choose: all can be kept, or not even the least fits.
    """
    info = planner.info
    offers = Offers(forecast, recomputable(info))
    room = choosing._room(forecast.profile, info, situation)
    room = room + (budget_bytes * (1 - MARGIN) - situation.resident_bytes)
    chosen = choice.choose(offers.menus, offers.of, room)
    if chosen is None:
        return None
    mine = choice.seconds_of(offers.menus, offers.of, chosen)
    if mine == 0.0:
        return None
    started = time.perf_counter()
    best = choice_exact.by_integer_program(
        offers.menus, offers.of, room, time_limit=time_limit, gap=_GAP
    )
    is_proved = time.perf_counter() - started < time_limit
    if best is None:
        return None
    # What the solver has found in its time may be worse than what it is to judge.
    return mine, min(mine, choice.seconds_of(offers.menus, offers.of, best)), is_proved


def judge(found: Sequence[Distance], device_label: str) -> Reproduction:
    """Return the distances by task, and whether their mean is small enough."""
    claims = []
    for task in dict.fromkeys(each.task for each in found):
        own = [each for each in found if each.task == task]
        mine = [each.share for each in own]
        claims.append(
            Claim(
                text=f"{task}: auto's choice takes longer than the best one, in the mean",
                source=SOURCE,
                version="other",
                unit="%",
                expected=TOLERANCE,
                obtained=fmean(mine),
                bound="at most",
                tolerance=0.0,
                device_label=device_label,
                note=f"{len(mine)} sizes and budgets, {max(mine):.2%} at most; the best one is "
                f"proved for {sum(each.is_proved for each in own)}",
            )
        )
    return Reproduction(
        name="auto-optimum",
        title="auto's choice against the best choice from the same menus",
        source=SOURCE,
        device_label=device_label,
        rows=(),
        claims=tuple(claims),
        tables=tuple(
            _table(found, task, device_label) for task in dict.fromkeys(e.task for e in found)
        ),
        notes=(
            "Distances are shares of the time spent on making values again, not of a step's.",
            f"HiGHS stops {_GAP:.2%} from the optimum or when its time is up. Sizes and budgets "
            f"at which all is kept are left out; {MARGIN:.0%} of a budget stay free.",
        ),
    )


def _table(found: Sequence[Distance], task: str, device_label: str) -> ResultTable:
    mine = [each for each in found if each.task == task]
    budgets = sorted({each.budget_bytes for each in mine})
    cells = {(e.length, e.budget_bytes): f"{e.share:.2%} ({1e3 * e.chosen:.1f} ms)" for e in mine}
    return ResultTable(
        title=f"{task}: distance to the best choice, and the time that auto's takes, "
        f"{device_label}",
        headers=("length", *(f"{b / GIB:g} GB" for b in budgets)),
        rows=tuple(
            (str(length), *(cells.get((length, b), "-") for b in budgets))
            for length in sorted({e.length for e in mine})
        ),
    )
