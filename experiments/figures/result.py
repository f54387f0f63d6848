"""What a check of one figure or table returns: rows, criteria, a verdict. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mimose_bench.experiments.figures.claims import Claim

Unit = Literal["GB", "MiB", "MB", "ms", "%", "x"]

FACTORS: dict[Unit, float] = {
    "GB": float(1 << 30),
    "MiB": float(1 << 20),
    "MB": 1e6,
    "ms": 1e-3,
    "%": 1e-2,
    "x": 1.0,
}
"""What one of a unit is: bytes, seconds, a share or a ratio. The paper's GB is 2**30 bytes."""

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value of the paper and the one obtained.

    Attributes:
        series: The curve, task or table column it belongs to.
        what: What was measured, in words.
        unit: The unit the paper prints it in.
        expected: The paper's value, in bytes or seconds, or as a share.
        obtained: Ours, likewise.
        length: Padded length, where the row belongs to one.
        note: Anything that sets this row apart from its neighbours.
    """

    series: str
    what: str
    unit: Unit
    expected: float
    obtained: float
    length: int | None = None
    note: str = ""

    @property
    def error(self) -> float:
        """Relative error, positive where ours is higher."""
        return self.obtained / self.expected - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """A figure that sums rows up, and the most it may be.

    Attributes:
        name: What it is.
        value: Its value, a share (0.02 is 2 %) or a count.
        tolerance: The most it may be; None where it is reported only.
        is_count: Whether ``value`` counts something.
        digits: Digits behind the point that a share is shown with, in percent.
    """

    name: str
    value: float
    tolerance: float | None = None
    is_count: bool = False
    digits: int = 1

    @property
    def passed(self) -> bool:
        """Whether the value is within the tolerance."""
        return self.tolerance is None or self.value <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A point of the paper that is not compared.

    Attributes:
        series: The curve it lies on.
        length: Padded length.
        expected: The paper's value, in bytes.
        reason: Why.
    """

    series: str
    length: int
    expected: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """Figures that the paper has no counterpart for.

    Attributes:
        title: What it shows.
        headers: Its columns.
        rows: Its cells, in words; every row as long as the headers.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Figures of ours to draw, of which the paper has no points.

    Attributes:
        name: The curve's name.
        x_unit: What ``x`` is in, e.g. ``s``.
        y_unit: What ``y`` is in, e.g. ``bytes``.
        x: Its points, in order.
        y: As many.
    """

    name: str
    x_unit: str
    y_unit: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A figure or table of the paper, reproduced.

    Attributes:
        name: Its name on the command line.
        title: What it shows.
        source: Where the paper shows it.
        device_label: What every figure carries, e.g. ``simulated v100-32gb``.
        rows: Each value compared.
        criteria: What the verdict rests on: figures that sum rows up.
        claims: Single statements with the paper's value and ours; the verdict rests on them, too.
        left_out: Points of the paper that are not compared.
        notes: What a reader has to know.
        tables: Whatever else was measured.
        curves: What is drawn and not compared; in the JSON file, not in the text.
    """

    name: str
    title: str
    source: str
    device_label: str
    rows: tuple[Row, ...]
    criteria: tuple[Criterion, ...] = ()
    claims: tuple[Claim, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[ResultTable, ...] = ()
    curves: tuple[Curve, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every criterion is within its tolerance and no claim is outside its own."""
        outside = any(claim.verdict == "outside" for claim in self.claims)
        return not outside and all(criterion.passed for criterion in self.criteria)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data: bytes, seconds and shares."""
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "device_label": self.device_label,
            "passed": self.passed,
            "criteria": [{**asdict(c), "passed": c.passed} for c in self.criteria],
            "claims": [claim.to_json() for claim in self.claims],
            "rows": [{**asdict(row), "error": row.error} for row in self.rows],
            "left_out": [asdict(point) for point in self.left_out],
            "notes": list(self.notes),
            "tables": [asdict(t) for t in self.tables],
            "curves": [asdict(curve) for curve in self.curves],
        }


def mean_error(rows: Sequence[Row]) -> float:
    """Return the mean of the rows' absolute relative errors.

    Raises:
        ValueError: If there are no rows.
    """
    if not rows:
        raise ValueError("there is no row to take the mean error of")
    return sum(abs(row.error) for row in rows) / len(rows)


def max_error(rows: Sequence[Row]) -> float:
    """Return the largest absolute relative error of the rows.

    Raises:
        ValueError: If there are no rows.
    """
    return max(abs(row.error) for row in rows)
