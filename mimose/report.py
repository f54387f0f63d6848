"""What a handle says of the steps that it has seen: figures for logs, and a summary to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from mimose.records import StepRecord
from mimose.schedule import AnyPlan
from mimose.units import format_bytes, format_seconds


def is_violation(record: StepRecord) -> bool:
    """Whether a step ran out of memory, was run again, or the allocator flushed its cache in it."""
    return record.outcome != "ok" or record.num_alloc_retries > 0


def over_budget(record: StepRecord, budget_bytes: int | None) -> int:
    """Return the bytes beyond the budget that were reserved in a step, at most; 0 if none were.

    Where the budget is not enforced nothing else tells of it. Reserved bytes stay until they are
    handed back, so that steps after the one that went over may count as well.
    """
    reserved = record.peak_reserved_bytes
    if budget_bytes is None or reserved is None:
        return 0
    return max(0, reserved - budget_bytes)


@dataclass
class _Part:
    """Sums over some steps."""

    steps: int = 0
    sheltered: int = 0
    recomputed: int = 0
    remade: int = 0
    violations: int = 0
    failures: int = 0
    over: int = 0
    over_bytes: int = 0
    planning_seconds: float = 0.0
    step_seconds: float = 0.0
    peak: int | None = None
    predicted: int | None = None
    reserved: int | None = None
    uses: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    sheltered_errors: list[float] = field(default_factory=list)

    def add(self, record: StepRecord, budget_bytes: int | None, recomputed: int) -> None:
        self.steps += 1
        self.sheltered += record.phase == "sheltered"
        remade = num_remade(record.plan)
        self.recomputed += recomputed
        self.remade += remade
        failed, over = is_violation(record), over_budget(record, budget_bytes)
        self.violations += failed or over > 0
        self.failures += failed
        self.over += over > 0
        self.over_bytes = max(self.over_bytes, over)
        self.planning_seconds += record.estimator_seconds + record.scheduler_seconds
        self.step_seconds += record.step_seconds or 0.0
        if record.peak_reserved_bytes is not None:
            self.reserved = max(record.peak_reserved_bytes, self.reserved or 0)
        peak, predicted = record.peak_allocated_bytes, record.predicted_peak_bytes
        if peak is None:
            return
        if self.peak is None or peak > self.peak:
            self.peak, self.predicted = peak, predicted
        sheltered, done = record.phase == "sheltered", record.outcome == "ok"
        # A sheltered step recomputes to learn, whether or not the budget asks for it.
        if recomputed + remade and budget_bytes is not None and done and not sheltered:
            self.uses.append(peak / budget_bytes)
        if predicted is not None and done and record.peak_exact:
            # What a sheltered step is predicted to need decides nothing about its plan.
            errors = self.sheltered_errors if sheltered else self.errors
            errors.append(abs(predicted - peak) / peak)


class Tally:
    """Counts the steps of a handle.

    Args:
        budget_bytes: The budget, or None.
    """

    def __init__(self, budget_bytes: int | None) -> None:
        self._budget = budget_bytes
        self._all, self._since = _Part(), _Part()

    def add(self, record: StepRecord) -> None:
        """Take a finished step."""
        recomputed = num_recomputed(record.plan)
        self._all.add(record, self._budget, recomputed)
        self._since.add(record, self._budget, recomputed)

    def statistics(self) -> dict[str, float]:
        """Return the figures of the steps since the last call; see :meth:`Handle.statistics`."""
        part, self._since = self._since, _Part()
        figures: dict[str, float] = {
            "num_steps": part.steps,
            "num_violations": part.violations,
            "planning_seconds": part.planning_seconds,
        }
        if part.steps:
            figures["recomputed_blocks"] = part.recomputed / part.steps
            if self._all.remade:  # Once there are any, 0 is a figure, too.
                figures["remade_blocks"] = part.remade / part.steps
        if part.peak is not None:
            figures["peak_allocated_bytes"] = part.peak
        if part.predicted is not None:
            figures["predicted_peak_bytes"] = part.predicted
        if part.uses:
            figures["budget_use"] = median(part.uses)
        if part.reserved is not None:
            figures["peak_reserved_bytes"] = part.reserved
            if self._budget is not None:
                figures["highest_budget_use"] = part.reserved / self._budget
                figures["num_over_budget"] = part.over
                figures["over_budget_bytes"] = part.over_bytes
        return figures

    def lines(self, num_blocks: int) -> list[str]:
        """Return lines of a summary of all steps; figures that there are none of are left out."""
        part = self._all
        if not part.steps:
            return ["steps: none yet"]
        lines = [
            f"steps: {part.steps}, of which {part.sheltered} sheltered",
            f"recomputed: {part.recomputed / part.steps:.2f} of {num_blocks} blocks a step",
        ]
        if part.remade:
            lines.append(
                f"made again in part: {part.remade / part.steps:.2f} of {num_blocks} blocks a step"
            )
        held = [(part.peak, "allocated"), (part.reserved, "reserved")]
        known = [(taken, of) for taken, of in held if taken is not None]
        if known:
            lines.append("peak: " + ", ".join(f"{format_bytes(taken)} {of}" for taken, of in known))
        budget = self._budget
        if known and budget is not None:
            most = ", ".join(f"{taken / budget:.1%} {of}" for taken, of in known)
            lines.append(f"budget use: {_median_use(part)}at most {most}")
        if part.errors or part.sheltered_errors:
            lines.append(f"predicted peak: {_errors(part)}")
        share = f", {part.planning_seconds / part.step_seconds:.2%}" if part.step_seconds else ""
        lines.append(
            f"planning: {format_seconds(part.planning_seconds / part.steps)} a step{share}"
        )
        lines.append(f"violations: {part.violations}{_kinds(part)}")
        return lines


def _median_use(part: _Part) -> str:
    if not part.uses:
        return ""
    use, aside = median(part.uses), ", sheltered ones aside" if part.sheltered else ""
    return f"{use:.1%} allocated, the median of the {len(part.uses)} steps that recomputed{aside}; "


def _errors(part: _Part) -> str:
    def off(errors: list[float]) -> str:
        return f"off by {_apart(median(errors))} in the median, {_apart(max(errors))} at most"

    said = [off(part.errors)] if part.errors else []
    if part.sheltered_errors:
        said.append(f"in sheltered steps, which learn it, {off(part.sheltered_errors)}")
    return "; ".join(said)


def _apart(error: float) -> str:
    # More than all of the peak is a prediction of a multiple of it.
    return f"{error:.2%}" if error <= 1 else f"a factor of {1 + error:.1f}"


def _kinds(part: _Part) -> str:
    """Return what the violations were; nothing where there were none."""
    kinds = []
    if part.over:
        kinds.append(
            f"in {part.over} more was reserved than the budget, by "
            f"{format_bytes(part.over_bytes)} at most"
        )
    if part.failures:
        kinds.append(f"{part.failures} ran out of memory, ran again or had the cache flushed")
    return f" ({'; '.join(kinds)})" if kinds else ""


def num_recomputed(plan: AnyPlan) -> int:
    """Return how many blocks a plan recomputes; none, if it decides tensor by tensor."""
    return len(getattr(plan, "recomputed", ()))


def num_remade(plan: AnyPlan) -> int:
    """Return of how many blocks a plan makes single values again, or offloads them."""
    return getattr(plan, "num_remade", 0)
