"""A reproduced figure as plain text: its rows, what the verdict rests on, the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from mimose_bench.experiments.figures.claims import Claim, ClaimUnit
from mimose_bench.experiments.figures.result import FACTORS, Criterion, Reproduction, Row, Unit
from mimose_bench.experiments.figures.stored import Stored
from mimose_bench.experiments.tables import MISSING, table

MOST_ROWS = 6
"""Rows shown of each series; the JSON file has them all."""

_FORMS: dict[Unit, str] = {
    "GB": ".3f",
    "MiB": ".0f",
    "MB": ".1f",
    "ms": ".1f",
    "%": ".3f",
    "x": ".3f",
}


def describe(result: Reproduction) -> str:
    """Return ``result`` as text."""
    shown = [row for series in by_series(result.rows) for row in spread(series)]
    lines = [f"{result.name}: {result.title} ({result.source}), {result.device_label}"]
    if shown:
        cells = [row_cells(row) for row in shown]
        lines += ["", table(("of", "at", "paper", "here", "error", "note"), cells)]
    if len(shown) < len(result.rows):
        lines.append(f"{len(shown)} of {len(result.rows)} values shown")
    if result.left_out:
        points = ", ".join(f"{p.series} {p.length}" for p in result.left_out)
        reasons = "; ".join(dict.fromkeys(p.reason for p in result.left_out))
        lines.append(f"left out: {points} ({reasons})")
    for each in result.tables:
        lines += ["", each.title, "", table(each.headers, each.rows)]
    lines += result.notes
    if result.criteria:
        judged = map(_judged, result.criteria)
        lines += ["", table(("criterion", "here", "tolerance", "verdict"), judged)]
    if result.claims:
        lines += ["", table(CLAIM_HEADERS, map(claim_cells, result.claims))]
        lines += dict.fromkeys(f"{c.text}: {c.note}" for c in result.claims if c.note)
    return "\n".join(lines)


def verdict(result: Reproduction) -> str:
    """Return the verdict in a line."""
    missed = [criterion.name for criterion in result.criteria if not criterion.passed]
    missed += [claim.text for claim in result.claims if claim.verdict == "outside"]
    open_ = [claim.text for claim in result.claims if claim.verdict == "undecided"]
    words = [f"OUTSIDE: {'; '.join(missed)}"] if missed else []
    words += [f"undecided: {'; '.join(open_)}"] if open_ else []
    return f"{result.name}: {', '.join(words) or 'within tolerance'}"


def ending(found: Stored) -> str:
    """Return in a line what a check came to: its verdict, or why it failed."""
    if found.result is None:
        return f"{found.name}: FAILED: {found.error}"
    return verdict(found.result)


def spread(rows: Sequence[Row], most: int = MOST_ROWS) -> list[Row]:
    """Return at most ``most`` of ``rows``, evenly spaced, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


CLAIM_HEADERS = ("claim", "source", "paper", "here", "tolerance", "verdict", "device")


def claim_cells(claim: Claim) -> tuple[str, ...]:
    """Return a claim's cells under :data:`CLAIM_HEADERS`."""
    here = MISSING
    if claim.obtained is not None:
        here = claim_value(claim.obtained, claim.unit)
        if claim.interval is not None:
            low, high = (claim_value(end, claim.unit) for end in claim.interval)
            here += f" ({low} to {high})"
    return (
        claim.text,
        f"{VERSIONS[claim.version]}{claim.source}",
        claim_value(claim.expected, claim.unit),
        here,
        claim_tolerance(claim),
        "OUTSIDE" if claim.verdict == "outside" else claim.verdict,
        claim.device_label,
    )


VERSIONS = {"ipdps": "", "v1": "arXiv v1, ", "other": ""}
"""What goes before a claim's source."""

_CLAIM_FORMS: dict[ClaimUnit, tuple[float, str]] = {
    "x": (1.0, "{:.3f}"),
    "%": (1e-2, "{:.2f} %"),
    "GB": (float(1 << 30), "{:.2f} GB"),
    "ms": (1e-3, "{:.3f} ms"),
    "us": (1e-6, "{:.0f} us"),
    "iterations": (1.0, "{:.2f} iterations"),
    "plans": (1.0, "{:.0f} plans"),
    "count": (1.0, "{:,.0f}"),
}


def claim_value(value: float, unit: ClaimUnit) -> str:
    """Return a claim's value in its unit."""
    factor, form = _CLAIM_FORMS[unit]
    return form.format(value / factor)


def claim_tolerance(claim: Claim) -> str:
    """Return in words what a claim allows."""
    if claim.tolerance is None:
        return MISSING
    room = (
        f"{100 * claim.tolerance:g} %"
        if claim.relative
        else claim_value(claim.tolerance, claim.unit)
    )
    if claim.bound == "near":
        return f"± {room}"
    return claim.bound if claim.tolerance == 0 else f"{claim.bound}, {room} of room"


def by_series(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows series by series and unit by unit."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(f"{row.series} {row.unit}", []).append(row)
    return list(series.values())


def row_cells(row: Row) -> tuple[str, ...]:
    """Return a row's cells: series, what, the paper's value, ours, the error, the note."""
    factor, form = FACTORS[row.unit], _FORMS[row.unit]
    paper, here = (f"{value / factor:{form}} {row.unit}" for value in (row.expected, row.obtained))
    what = row.what
    if row.length is not None and str(row.length) not in what:
        what += f", {row.length}"
    return row.series, what, paper, here, f"{100 * row.error:+.1f} %", row.note


def _judged(criterion: Criterion) -> tuple[str, ...]:
    if criterion.tolerance is None:
        return criterion.name, criterion_value(criterion, criterion.value), MISSING, "reported"
    word = "ok" if criterion.passed else "OUTSIDE"
    return (
        criterion.name,
        criterion_value(criterion, criterion.value),
        f"at most {criterion_value(criterion, criterion.tolerance)}",
        word,
    )


def criterion_value(criterion: Criterion, value: float) -> str:
    """Return a value of a criterion in its unit."""
    return f"{value:.0f}" if criterion.is_count else f"{100 * value:.{criterion.digits}f} %"
