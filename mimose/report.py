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


@dataclass
class _Part:
    """Sums over some steps."""

    steps: int = 0
    sheltered: int = 0
    recomputed: int = 0
    violations: int = 0
    planning_seconds: float = 0.0
    step_seconds: float = 0.0
    peak: int | None = None
    predicted: int | None = None
    uses: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, record: StepRecord, budget_bytes: int | None) -> None:
        self.steps += 1
        self.sheltered += record.phase == "sheltered"
        recomputed = num_recomputed(record.plan)
        self.recomputed += recomputed
        self.violations += is_violation(record)
        self.planning_seconds += record.estimator_seconds + record.scheduler_seconds
        self.step_seconds += record.step_seconds or 0.0
        peak, predicted = record.peak_allocated_bytes, record.predicted_peak_bytes
        if peak is None:
            return
        if self.peak is None or peak > self.peak:
            self.peak, self.predicted = peak, predicted
        if recomputed and budget_bytes is not None and record.outcome == "ok":
            self.uses.append(peak / budget_bytes)
        if predicted is not None and record.outcome == "ok" and record.peak_exact:
            self.errors.append(abs(predicted - peak) / peak)


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
        self._all.add(record, self._budget)
        self._since.add(record, self._budget)

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
        if part.peak is not None:
            figures["peak_allocated_bytes"] = part.peak
        if part.predicted is not None:
            figures["predicted_peak_bytes"] = part.predicted
        if part.uses:
            figures["budget_use"] = median(part.uses)
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
        if part.peak is not None:
            lines.append(f"peak: {format_bytes(part.peak)} allocated")
        if part.uses:
            lines.append(
                f"budget use: {median(part.uses):.1%}, the median of the {len(part.uses)} steps "
                "that recomputed"
            )
        if part.errors:
            lines.append(
                f"predicted peak: off by {median(part.errors):.2%} in the median, "
                f"{max(part.errors):.2%} at most"
            )
        share = f", {part.planning_seconds / part.step_seconds:.2%}" if part.step_seconds else ""
        lines.append(
            f"planning: {format_seconds(part.planning_seconds / part.steps)} a step{share}"
        )
        lines.append(f"violations: {part.violations}")
        return lines


def num_recomputed(plan: AnyPlan) -> int:
    """Return how many blocks a plan recomputes; none, if it decides tensor by tensor."""
    return len(getattr(plan, "recomputed", ()))
