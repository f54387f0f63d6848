"""Every planner under every budget of the paper's Fig 10, QA-Bert and MC-Roberta, at full size.

Static planners plan from a profile of the longest batch and recompute the same at every length;
Mimose plans for each. Times are sums over the data set's padded lengths, each weighted with its
share of the batches (Fig 3), relative to plain training. Beside them stand the times that the paper
prints for its Sublinear, which is Mimose's own greedy planned for the longest input, and for Mimose
(IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimose.costs import Infeasible
from mimose.planners import make_planner
from mimose.planners.static import Static
from mimose.schedule import AnyPlan
from mimose.units import format_bytes
from mimose_bench.experiments.data.lengths import LengthBin
from mimose_bench.experiments.figures.lengths import bins_of
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable, Row
from mimose_bench.experiments.figures.session import OpenDevice, Say, Session, silent, training
from mimose_bench.experiments.figures.workloads import MC_ROBERTA, QA_BERT, Workload
from mimose_bench.experiments.paper import budgets, time_by_memory

WORKLOADS: tuple[Workload, ...] = (QA_BERT, MC_ROBERTA)
PLANNERS = (
    "full",
    "selective",
    "sublinear-greedy",
    "sublinear",
    "sqrt-n",
    "periodic",
    "revolve",
    "rotor",
    "checkmate-lp",
    "checkmate",
)
COUNTERPART = "sublinear-greedy"
"""What the paper's authors ran under the name of Sublinear."""
MIMOSE = "mimose"
SELECTIVE = "selective"
STRIDE, QUICK_STRIDE = 4, 16
_SAME = 1 + 1e-6
_TAUGHT = 10


@dataclass(frozen=True, slots=True)
class Cell:
    """One planner under one budget.

    Attributes:
        plan: Its plan; None where none fits, and for planners without one plan for all.
        relative_time: Time relative to plain training, over all lengths.
        longest_seconds: Time of the longest batch's step.
        predicted_seconds: What was predicted of that batch's forward and backward pass.
        predicted_peak: What was predicted of its peak.
        peak: Its peak of allocated bytes.
        outcome: What comes of it when the budget is enforced, see :meth:`Session.outcome`.
        gap: What a solver left open, as a share.
        least: The least budget that would do, where none fits.
    """

    plan: AnyPlan | None = None
    relative_time: float | None = None
    longest_seconds: float | None = None
    predicted_seconds: float | None = None
    predicted_peak: int | None = None
    peak: int | None = None
    outcome: str = ""
    gap: float = 0.0
    least: int | None = None


Cells = Mapping[tuple[str, int], Cell]


class _Bench:
    """Steps of one workload at all lengths, those of equal plans taken once."""

    def __init__(self, session: Session, bins: Sequence[LengthBin], longest: int) -> None:
        self.session = session
        self.bins = bins
        self.longest = longest
        self._known: dict[AnyPlan, tuple[float, int, float]] = {}

    def under(self, plan: AnyPlan) -> tuple[float, int, float]:
        """Return the weighted time, the longest batch's peak and its passes' time.

        The session's planner is to decide on ``plan``.
        """
        if plan not in self._known:
            self.session.handle.device.release_cache()
            record = self.session.step(self.longest)
            assert record.peak_allocated_bytes is not None
            assert record.forward_seconds is not None
            assert record.backward_seconds is not None
            passes = record.forward_seconds + record.backward_seconds
            self._known[plan] = self.weighted(), record.peak_allocated_bytes, passes
        return self._known[plan]

    def weighted(self) -> float:
        """Return the mean time of a step over the lengths by their shares."""
        total = 0.0
        for each in self.bins:
            seconds = self.session.step(each.length).step_seconds
            assert seconds is not None
            total += each.share * seconds
        return total / sum(each.share for each in self.bins)


def check(open_device: OpenDevice, *, stride: int = STRIDE, say: Say = silent) -> Reproduction:
    """Measure each planner under each budget.

    Args:
        open_device: Opens the simulated GPU.
        stride: How many neighbouring lengths to take as one.
        say: Takes lines of progress.
    """
    rows: list[Row] = []
    tables: list[ResultTable] = []
    criteria: list[Criterion] = []
    label = ""
    for workload in WORKLOADS:
        with open_device() as device:
            label = device.label
            with training(device, workload, "baseline") as session:
                cells = measure(session, workload, stride, say)
        rows += _rows(workload, cells)
        tables += _tables(workload, cells)
        criteria += _criteria(workload, cells)
    return Reproduction(
        name="static",
        title="time of every planner under every budget, relative to plain training",
        source="Fig 10 a, c",
        device_label=label,
        rows=tuple(rows),
        criteria=tuple(criteria),
        tables=tuple(tables),
        notes=(
            "the paper's points lie at the memory really reserved, a little below each budget",
            "its Sublinear leaves 0.5 GB of every budget free; here it is 5 %",
        ),
    )


def measure(session: Session, workload: Workload, stride: int, say: Say) -> Cells:
    """Return every planner's cell under every budget of the paper's."""
    bins = bins_of(workload, stride)
    longest = workload.longest
    session.settle(longest)
    bench = _Bench(session, bins, longest)
    plain = bench.weighted()
    batch = workload.example_batch(longest)
    measured = session.measure(batch)
    cores = session.measure(batch, cores=True)
    cells: dict[tuple[str, int], Cell] = {}
    given = budgets(workload.name)
    for name in PLANNERS:
        for budget in given:
            planner = make_planner(name)
            assert isinstance(planner, Static)
            try:
                found = session.plan_once(planner, cores if name == SELECTIVE else measured, budget)
            except Infeasible as error:
                cells[name, budget] = Cell(least=error.least_budget_bytes)
                continue
            seconds, peak, passes = bench.under(found.plan)
            cells[name, budget] = Cell(
                plan=found.plan,
                relative_time=seconds / plain,
                longest_seconds=passes,
                predicted_seconds=found.predicted_seconds,
                predicted_peak=found.predicted_peak_bytes,
                peak=peak,
                outcome=session.outcome(batch, budget),
                gap=float(found.details.get("gap") or 0.0),
            )
            say(
                f"static: {workload.name} {name} at {format_bytes(budget)}: "
                f"{seconds / plain:.3f}, solved in {found.solve_seconds:.1f} s: {found.plan}"
            )
    taught = _teach(session, bins, longest)
    for budget in given:
        session.handle.budget_bytes = budget
        session.use(MIMOSE)
        session.handle.planner.load_state_dict(taught)
        session.handle.device.release_cache()
        seconds = bench.weighted()
        cells[MIMOSE, budget] = Cell(relative_time=seconds / plain)
        say(f"static: {workload.name} mimose at {format_bytes(budget)}: {seconds / plain:.3f}")
    return cells


def _teach(session: Session, bins: Sequence[LengthBin], longest: int) -> Mapping[str, object]:
    """Return what Mimose learns from sheltered steps over the lengths."""
    session.handle.budget_bytes = max(budgets(session.workload.name))
    session.use(MIMOSE, sheltered=_TAUGHT)
    last = len(bins) - 1
    for number in range(_TAUGHT - 1):
        session.step(bins[round(number * last / (_TAUGHT - 2))].length)
    session.step(longest)
    return session.handle.planner.state_dict()


def _rows(workload: Workload, cells: Cells) -> list[Row]:
    """Return the paper's points beside what came out; expected and obtained are shares of time."""
    rows = []
    printed = time_by_memory(workload.name)
    for planner, ours in (("Sublinear", COUNTERPART), ("Mimose", MIMOSE)):
        for budget, point in zip(budgets(workload.name), printed[planner]):
            cell = cells[ours, budget]
            if cell.relative_time is not None:
                rows.append(
                    Row(
                        series=f"{workload.name} {planner}",
                        what=f"{budget >> 30} GB, {ours}",
                        unit="%",
                        expected=point.relative_time,
                        obtained=cell.relative_time,
                    )
                )
    return rows


def _tables(workload: Workload, cells: Cells) -> list[ResultTable]:
    given = budgets(workload.name)
    paper = time_by_memory(workload.name)
    times = []
    for name in (*PLANNERS, MIMOSE):
        row = []
        for budget in given:
            cell = cells[name, budget]
            if cell.relative_time is None:
                row.append(f"needs {format_bytes(cell.least or 0, up=True)}")
            else:
                row.append(f"{cell.relative_time:.3f}")
        times.append((name, *row))
    for planner in ("Sublinear", "Mimose"):
        points = paper[planner]
        printed = (f"{point.relative_time:.3f}" for _, point in zip(given, points))
        times.append((f"paper's {planner}", *printed))
    errors = []
    for name in PLANNERS:
        found = [c for budget in given if (c := cells[name, budget]).plan is not None]
        errors.append(
            (
                name,
                _most([_off(c.predicted_peak, c.peak) for c in found]),
                _most([_off(c.predicted_seconds, c.longest_seconds) for c in found]),
                _most([c.gap for c in found]),
            )
        )
    return [
        ResultTable(
            title=f"{workload.name}: time relative to plain training by budget",
            headers=("planner", *(f"{budget >> 30} GB" for budget in given)),
            rows=tuple(times),
        ),
        ResultTable(
            title=f"{workload.name}: the longest batch, predicted against simulated, at most off",
            headers=("planner", "peak", "time", "solver's gap"),
            rows=tuple(errors),
        ),
    ]


def _off(predicted: float | None, obtained: float | None) -> float:
    assert predicted is not None
    assert obtained
    return abs(predicted / obtained - 1)


def _most(shares: Sequence[float]) -> str:
    return f"{max(shares):.2%}" if shares else "-"


def _criteria(workload: Workload, cells: Cells) -> list[Criterion]:
    beaten = failed = flushed = behind = 0
    peaks = []
    for budget in budgets(workload.name):
        rotor, mate = cells["rotor", budget], cells["checkmate", budget]
        for name in ("sublinear", COUNTERPART, "periodic", "revolve", "sqrt-n"):
            rival = cells[name, budget]
            if rival.relative_time is not None:
                beaten += rotor.relative_time is None or (
                    rotor.relative_time > rival.relative_time * _SAME
                )
        if rotor.relative_time is not None:
            behind += mate.relative_time is None or (
                mate.relative_time > rotor.relative_time * (1 + mate.gap) * _SAME
            )
        for name in PLANNERS:
            cell = cells[name, budget]
            if cell.plan is not None:
                failed += cell.outcome == "oom"
                flushed += cell.outcome == "flushed"
                peaks.append(_off(cell.predicted_peak, cell.peak))
    name = workload.name
    return [
        Criterion(
            name=f"{name}: a rival is faster than Rotor",
            value=beaten,
            tolerance=0,
            is_count=True,
        ),
        Criterion(
            name=f"{name}: Checkmate is behind Rotor by more than its gap",
            value=behind,
            tolerance=0,
            is_count=True,
        ),
        Criterion(name=f"{name}: out of memory", value=failed, tolerance=0, is_count=True),
        Criterion(name=f"{name}: cache flushed within a step", value=flushed, is_count=True),
        Criterion(name=f"{name}: predicted peak, at most off", value=max(peaks), tolerance=0.02),
    ]
