"""Claims and criteria in one form, in words: what a report judges, line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mimose_bench.experiments.figures.claims import Claim, Verdict, Version
from mimose_bench.experiments.figures.result import Criterion, Reproduction
from mimose_bench.experiments.figures.text import VERSIONS as PREFIXES
from mimose_bench.experiments.figures.text import (
    claim_tolerance,
    claim_value,
    criterion_value,
)
from mimose_bench.experiments.tables import MISSING

NONE = MISSING
"""What stands where there is nothing to say."""

VERDICTS: tuple[Verdict, ...] = ("holds", "outside", "undecided", "not measured", "reported")

VERSIONS: dict[Version, str] = {
    "ipdps": "Mimose, IPDPS 2023",
    "v1": "Mimose, first version (arXiv v1)",
    "other": "Other papers, and checks of this project's own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement and what is found of it, in words.

    Attributes:
        check: Name of the check that judges it.
        text: What is claimed, or what was summed up.
        source: Where the paper says so.
        version: Whose statement it is.
        paper: The paper's value.
        here: Ours.
        interval: Ours with 95 % confidence; empty where it is exact or not known.
        difference: Ours less the paper's.
        tolerance: What is allowed.
        verdict: What comes of it.
        device_label: Where ours was obtained.
        note: Why it could not be measured, or what a reader has to know.
    """

    check: str
    text: str
    source: str
    version: Version
    paper: str
    here: str
    interval: str
    difference: str
    tolerance: str
    verdict: Verdict
    device_label: str
    note: str = ""


def statements(result: Reproduction, version: Version) -> list[Statement]:
    """Return what a check judges: its claims, then its criteria.

    Args:
        result: What the check found.
        version: Whose statements its criteria judge.
    """
    claims = [_of_claim(claim, result) for claim in result.claims]
    return claims + [_of_criterion(each, result, version) for each in result.criteria]


def tally(found: Iterable[Statement]) -> dict[Version, Counter[Verdict]]:
    """Return how many statements of each version have which verdict; versions without any lack."""
    found = list(found)
    counts = {
        version: Counter(each.verdict for each in found if each.version == version)
        for version in VERSIONS
    }
    return {version: count for version, count in counts.items() if count}


def _of_claim(claim: Claim, result: Reproduction) -> Statement:
    def value(number: float) -> str:
        return claim_value(number, claim.unit)

    interval = ""
    if claim.interval is not None:
        interval = f"{value(claim.interval[0])} to {value(claim.interval[1])}"
    return Statement(
        check=result.name,
        text=claim.text,
        source=_source(claim),
        version=claim.version,
        paper=value(claim.expected),
        here=NONE if claim.obtained is None else value(claim.obtained),
        interval=interval,
        difference=_difference(claim),
        tolerance=NONE if claim.tolerance is None else claim_tolerance(claim),
        verdict=claim.verdict,
        device_label=claim.device_label,
        note=claim.note,
    )


def _source(claim: Claim) -> str:
    prefix = PREFIXES[claim.version]
    return claim.source if claim.source.startswith(prefix.strip(", ")) else prefix + claim.source


def _difference(claim: Claim) -> str:
    difference = claim.difference
    if difference is None:
        return NONE
    if claim.relative and claim.expected:
        return f"{100 * difference / abs(claim.expected):+.1f} %"
    sign = "-" if difference < 0 else "+"
    return sign + claim_value(abs(difference), claim.unit)


def _of_criterion(criterion: Criterion, result: Reproduction, version: Version) -> Statement:
    if criterion.tolerance is None:
        verdict: Verdict = "reported"
        allowed = NONE
    else:
        verdict = "holds" if criterion.passed else "outside"
        allowed = f"at most {criterion_value(criterion, criterion.tolerance)}"
    return Statement(
        check=result.name,
        text=criterion.name,
        source=result.source,
        version=version,
        paper=NONE,
        here=criterion_value(criterion, criterion.value),
        interval="",
        difference=NONE,
        tolerance=allowed,
        verdict=verdict,
        device_label=result.device_label,
    )
