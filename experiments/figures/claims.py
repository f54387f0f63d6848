"""What a paper says in one sentence, and whether it holds here. Plain data, no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Version = Literal["ipdps", "v1", "other"]
"""Whose statement: Mimose at IPDPS 2023, its first version (arXiv:2209.02478v1), another paper."""

Verdict = Literal["holds", "outside", "undecided", "reported", "not measured"]

ClaimUnit = Literal["x", "%", "GB", "ms", "us", "iterations", "plans", "count"]

Bound = Literal["near", "at most", "at least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of a paper, its value, ours, and how far apart they may be.

    Tolerances are fixed before anything is run.

    Attributes:
        text: What is claimed, in a sentence.
        source: Where: figure, table or section.
        version: Whose statement it is; the two versions of Mimose's paper are judged apart.
        unit: What ``expected`` and ``obtained`` count: a ratio, a share (printed in percent), bytes
            (printed in GB of 2**30), seconds (ms, us), or pieces.
        expected: The paper's value.
        obtained: Ours; None where it could not be measured.
        bound: Whether ours must lie near the paper's value, or may exceed or undercut it.
        tolerance: The most by which ours may be off; None where it is reported only.
        relative: Whether ``tolerance`` is a share of ``expected``.
        interval: Ours with 95 % confidence; None where it is exact (simulated, nothing sampled).
        device_label: Where ours was obtained, e.g. ``simulated v100-32gb``.
        note: Why it could not be measured, or what a reader has to know.
    """

    text: str
    source: str
    version: Version
    unit: ClaimUnit
    expected: float
    obtained: float | None
    device_label: str
    bound: Bound = "near"
    tolerance: float | None = 0.0
    relative: bool = False
    interval: tuple[float, float] | None = None
    note: str = ""

    @property
    def allowed(self) -> tuple[float, float]:
        """The least and the most that ours may be.

        Raises:
            ValueError: If the claim is reported only.
        """
        if self.tolerance is None:
            raise ValueError("a claim that is reported only allows anything")
        room = self.tolerance * abs(self.expected) if self.relative else self.tolerance
        low = -math.inf if self.bound == "at most" else self.expected - room
        high = math.inf if self.bound == "at least" else self.expected + room
        return low, high

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.obtained is None else self.obtained - self.expected

    @property
    def verdict(self) -> Verdict:
        """``holds`` and ``outside`` need the whole interval on one side of the tolerance."""
        if self.obtained is None:
            return "not measured"
        if self.tolerance is None:
            return "reported"
        low, high = self.allowed
        least, most = self.interval or (self.obtained, self.obtained)
        if low <= least and most <= high:
            return "holds"
        return "outside" if most < low or least > high else "undecided"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data, the verdict included."""
        return {**asdict(self), "difference": self.difference, "verdict": self.verdict}
