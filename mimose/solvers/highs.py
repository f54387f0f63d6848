"""Running the HiGHS solver: matrices in, values out, and Ctrl-C in between.

HiGHS (Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018; highs.dev) holds the
thread that calls it, and Python sees no signal meanwhile. So it runs in a thread of its own while
the caller waits in short naps; an interruption sets a flag that HiGHS asks for now and then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import highspy
import numpy as np

Outcome = Literal["optimal", "infeasible", "stopped", "interrupted"]
Progress = Callable[[float, float, float], None]
"""Called now and then with seconds so far, the best objective (inf for none yet) and the bound."""

_NAP = 0.05
_EVERY = 0.5


@dataclass(slots=True)
class Problem:
    """A mixed-integer linear problem, grown column by column and row by row.

    Minimise the summed ``cost`` subject to ``lower <= x <= upper`` for columns and rows.
    """

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def column(
        self, cost: float = 0.0, lower: float = 0.0, upper: float = 1.0, *, integer: bool = False
    ) -> int:
        """Add a variable and return its number."""
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(
        self,
        terms: list[tuple[int, float]],
        lower: float = -highspy.kHighsInf,
        upper: float = highspy.kHighsInf,
    ) -> None:
        """Add a constraint: the sum of value times column lies between the bounds."""
        self.starts.append(len(self.columns))
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        for column, value in terms:
            self.columns.append(column)
            self.values.append(value)


@dataclass(frozen=True, slots=True)
class Answer:
    """What HiGHS found.

    Attributes:
        outcome: ``stopped`` at the time limit, ``interrupted`` by Ctrl-C.
        values: A value for each column, or None if nothing feasible was found.
        objective: The objective of ``values``, infinite without.
        bound: No solution is better than this.
        seconds: Time taken.
    """

    outcome: Outcome
    values: Any
    objective: float
    bound: float
    seconds: float


def solve(
    problem: Problem,
    *,
    relaxed: bool = False,
    time_limit: float = highspy.kHighsInf,
    gap: float = 0.0,
    start: list[float] | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Solve a problem.

    Args:
        problem: What to solve.
        relaxed: Whether to leave out that columns are integers.
        time_limit: Seconds after which to stop with the best found.
        gap: Relative distance between the best found and the bound that is good enough.
        start: A feasible value for each column to begin with.
        progress: Called about twice a second.
    """
    began = time.perf_counter()
    solver: Any = _Quiet()  # type: ignore[no-untyped-call]
    solver.setOptionValue("parallel", "off")
    solver.setOptionValue("time_limit", float(time_limit))
    solver.setOptionValue("mip_rel_gap", float(gap))
    solver.passModel(_model(problem, relaxed))
    if start is not None and not relaxed:
        count = len(problem.cost)
        solver.setSolution(count, np.arange(count, dtype=np.int32), np.asarray(start, np.float64))
    watch = _Watch(solver, began, progress)
    interrupted = watch.run()
    info = solver.getInfo()
    status = solver.getModelStatus()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    kinds = highspy.HighsModelStatus
    outcome: Outcome = "interrupted" if interrupted else "stopped"
    if status == kinds.kOptimal and found:
        outcome = "optimal"
    elif status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        outcome, found = "infeasible", False
    values = np.array(solver.getSolution().col_value) if found else None
    objective = float(info.objective_function_value) if found else float("inf")
    if relaxed:
        bound = objective if outcome == "optimal" else float("-inf")
    else:
        bound = float(info.mip_dual_bound)
    if outcome == "infeasible":
        bound = float("inf")
    return Answer(outcome, values, objective, bound, time.perf_counter() - began)


class _Quiet(highspy.Highs):
    """A solver that prints nothing."""

    def enableCallbacks(self) -> None:  # noqa: N802 - highspy's name
        # Setting callbacks up, which the constructor does, prints a banner unless output is off.
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def _model(problem: Problem, relaxed: bool) -> Any:
    model = highspy.HighsLp()
    model.num_col_ = len(problem.cost)
    model.num_row_ = len(problem.row_lower)
    model.col_cost_ = np.asarray(problem.cost, np.float64)
    model.col_lower_ = np.asarray(problem.lower, np.float64)
    model.col_upper_ = np.asarray(problem.upper, np.float64)
    model.row_lower_ = np.asarray(problem.row_lower, np.float64)
    model.row_upper_ = np.asarray(problem.row_upper, np.float64)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.asarray([*problem.starts, len(problem.columns)], np.int32)
    model.a_matrix_.index_ = np.asarray(problem.columns, np.int32)
    model.a_matrix_.value_ = np.asarray(problem.values, np.float64)
    if not relaxed:
        kinds = highspy.HighsVarType
        model.integrality_ = [
            kinds.kInteger if integer else kinds.kContinuous for integer in problem.integer
        ]
    return model


class _Watch:
    """Runs the solver in a thread; passes progress on and interruptions in."""

    def __init__(self, solver: Any, began: float, progress: Progress | None) -> None:
        self._solver = solver
        self._began = began
        self._progress = progress
        self._stop = threading.Event()
        self._done = threading.Event()
        self._best = float("inf")
        self._bound = float("-inf")
        self._error: BaseException | None = None

    def run(self) -> bool:
        """Run to the end; return whether that was Ctrl-C."""
        for name in ("cbMipInterrupt", "cbSimplexInterrupt", "cbIpmInterrupt"):
            getattr(self._solver, name).subscribe(self._asked)
        self._solver.cbMipImprovingSolution.subscribe(self._seen)
        thread = threading.Thread(target=self._solve, name="highs", daemon=True)
        thread.start()
        told = self._began
        while True:
            try:
                # Not Thread.join: where Ctrl-C ends that one, Python before 3.13 takes the thread
                # for dead, and the solver would run on while its answer is read.
                while not self._done.wait(_NAP):
                    now = time.perf_counter()
                    if self._progress is not None and now - told >= _EVERY:
                        told = now
                        self._progress(now - self._began, self._best, self._bound)
                break
            except KeyboardInterrupt:
                self._stop.set()
            except BaseException:
                # A progress callback failed: the solver must not outlive the call.
                self._stop.set()
                self._done.wait()
                raise
        thread.join()
        if self._error is not None:
            raise self._error
        return self._stop.is_set()

    def _solve(self) -> None:
        try:
            self._solver.run()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def _asked(self, event: Any) -> None:
        if event.callback_type == highspy.cb.HighsCallbackType.kCallbackMipInterrupt:
            self._seen(event)
        if self._stop.is_set():
            event.interrupt()

    def _seen(self, event: Any) -> None:
        self._best = min(self._best, float(event.data_out.mip_primal_bound))
        self._bound = max(self._bound, float(event.data_out.mip_dual_bound))
