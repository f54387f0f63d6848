"""What a report says, before it is HTML or Markdown: plain data from the outcomes of checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mimose.units import format_bytes, format_seconds
from mimose_bench.experiments.figures.claims import Verdict, Version
from mimose_bench.experiments.figures.result import Row
from mimose_bench.experiments.figures.stored import Stored
from mimose_bench.experiments.figures.text import by_series, row_cells, spread
from mimose_bench.experiments.report.about import about
from mimose_bench.experiments.report.statements import NONE, Statement, statements, tally

VALUE_HEADERS = ("of", "at", "paper", "here", "error", "note")

_UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table in words.

    Attributes:
        caption: What it shows.
        headers: Its columns.
        rows: Its cells.
    """

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure.

    Attributes:
        name: Its file's name, without the ending.
        svg: The figure as an SVG document.
        alt: What it shows, in a sentence.
    """

    name: str
    svg: str
    alt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A check in a report.

    Attributes:
        name: Its name on the command line.
        title: What it shows.
        source: Where the paper shows it; empty where it failed.
        error: Why it failed; None where it did not.
        command: What repeats it.
        seconds: How long it took, in words.
        date: When, in words.
        device_label: Where.
        gpu: Whether it needs a GPU, in words.
        is_quick: Whether a few points were measured only.
        before: Text before the results, as Markdown.
        after: Text on why they differ, as Markdown.
        statements: What it judges.
        tables: Values compared, points left out, and what else was measured.
        notes: What a reader has to know.
        drawings: Its figures.
    """

    name: str
    title: str
    source: str
    error: str | None
    command: str
    seconds: str
    date: str
    device_label: str
    gpu: str
    is_quick: bool
    before: str
    after: str
    statements: tuple[Statement, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    drawings: tuple[Drawing, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst of its verdicts, or that it failed."""
        if self.error is not None:
            return "failed"
        found = Counter(each.verdict for each in self.statements)
        order: tuple[Verdict, ...] = ("outside", "undecided", "holds", "not measured")
        return next((verdict for verdict in order if found[verdict]), "reported")

    @property
    def counts(self) -> str:
        """How many statements have which verdict, in words."""
        if self.error is not None:
            return "failed"
        found = Counter(each.verdict for each in self.statements)
        order: tuple[Verdict, ...] = ("holds", "outside", "undecided", "not measured", "reported")
        return ", ".join(f"{found[v]} {v}" for v in order if found[v]) or "nothing judged"

    @property
    def deviations(self) -> tuple[Statement, ...]:
        """What does not hold, could not be decided or not be measured."""
        open_ = ("outside", "undecided", "not measured")
        return tuple(each for each in self.statements if each.verdict in open_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All of a report.

    Attributes:
        sections: A section a check.
        environments: What they were made on: facts by their names, and the checks so made.
        code: What they were made by: checks, date, commit, digest of the code.
        seconds: How long all checks took together, in words.
    """

    sections: tuple[Section, ...]
    environments: tuple[tuple[tuple[str, ...], Mapping[str, str]], ...]
    code: Table
    seconds: str

    @property
    def statements(self) -> list[Statement]:
        """Every statement judged."""
        return [each for section in self.sections for each in section.statements]

    @property
    def tally(self) -> dict[Version, Counter[Verdict]]:
        """How many statements of each version have which verdict."""
        return tally(self.statements)

    @property
    def failed(self) -> tuple[Section, ...]:
        """Checks that failed."""
        return tuple(section for section in self.sections if section.error is not None)

    @property
    def quick(self) -> tuple[Section, ...]:
        """Checks of which a few points were measured only."""
        return tuple(section for section in self.sections if section.is_quick)


def contents(
    outcomes: Iterable[Stored],
    order: Sequence[str] = (),
    drawings: Mapping[str, Sequence[Drawing]] | None = None,
) -> Contents:
    """Return what a report of these outcomes says.

    Args:
        outcomes: Outcomes of checks.
        order: Names of checks, in the order of their sections; others follow by name.
        drawings: Figures by the name of their check.
    """
    places = {name: place for place, name in enumerate(order)}
    found = sorted(outcomes, key=lambda each: (places.get(each.name, len(places)), each.name))
    seconds = [each.run["seconds"] for each in found if each.run.get("seconds") is not None]
    return Contents(
        sections=tuple(_section(each, (drawings or {}).get(each.name, ())) for each in found),
        environments=_environments(found),
        code=_code(found),
        seconds=format_seconds(sum(seconds)) if seconds else _UNKNOWN,
    )


def values_table(rows: Sequence[Row], num_rows: int) -> Table | None:
    """Return the values that are shown of those compared; None if there are none.

    Args:
        rows: The values.
        num_rows: How many were compared.
    """
    shown = [row for series in by_series(rows) for row in spread(series)]
    if not shown:
        return None
    of = "" if len(shown) == num_rows else f", {len(shown)} of {num_rows} values"
    cells = [row_cells(row) for row in shown]
    return _lean(f"The paper's values and those obtained{of}", VALUE_HEADERS, cells)


def _lean(caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without its last column if that is empty."""
    last = None if any(row[-1] for row in rows) else -1
    return Table(
        caption=caption,
        headers=tuple(headers[:last]),
        rows=tuple(tuple(row[:last]) for row in rows),
    )


def _section(found: Stored, drawings: Sequence[Drawing]) -> Section:
    run, result = found.run, found.result
    before, after = about(found.name)
    seconds = run.get("seconds")
    common: dict[str, Any] = {
        "name": found.name,
        "error": found.error,
        "command": " ".join(run.get("command") or ["mimose-bench", "reproduce", found.name]),
        "seconds": _UNKNOWN if seconds is None else format_seconds(seconds),
        "date": run.get("date") or _UNKNOWN,
        "gpu": "no; uses CUDA where there is one" if run.get("recorded") else "no",
        "is_quick": found.is_quick,
        "before": before,
        "after": after,
    }
    if result is None:
        device = str(run.get("device") or NONE)
        return Section(title=found.name, source="", device_label=device, **common)
    tables = [values_table(result.rows, found.num_rows)]
    if result.left_out:
        points = [(p.series, str(p.length), p.reason) for p in result.left_out]
        headers = ("of", "length", "reason")
        tables.append(Table(caption="Left out", headers=headers, rows=tuple(points)))
    tables += [Table(caption=t.title, headers=t.headers, rows=t.rows) for t in result.tables]
    return Section(
        title=_capital(result.title),
        source=result.source,
        device_label=result.device_label,
        statements=tuple(statements(result, run.get("version") or "ipdps")),
        tables=tuple(table for table in tables if table is not None),
        notes=result.notes,
        drawings=tuple(drawings),
        **common,
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _environments(
    found: Sequence[Stored],
) -> tuple[tuple[tuple[str, ...], Mapping[str, str]], ...]:
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for each in found:
        facts = tuple(_facts(each.run).items())
        groups.setdefault(facts, []).append(each.name)
    return tuple((tuple(names), dict(facts)) for facts, names in groups.items())


def _code(found: Sequence[Stored]) -> Table:
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in found:
        commit = (each.run.get("environment") or {}).get("git_commit") or _UNKNOWN
        digest = str(each.run.get("source") or _UNKNOWN)
        groups.setdefault((each.run.get("date") or _UNKNOWN, commit, digest), []).append(each.name)
    return Table(
        caption="What code they were made by; the digest tells changes apart that no commit has",
        headers=("checks", "date", "commit", "digest"),
        rows=tuple((", ".join(names), *facts) for facts, names in groups.items()),
    )


def _facts(run: Mapping[str, Any]) -> dict[str, str]:
    captured = run.get("environment")
    if not captured:
        return {"environment": _UNKNOWN}
    versions = captured.get("versions") or {}
    gpu = captured.get("gpu")
    memory = captured.get("memory_bytes")
    allocator = ", ".join(f"{k}={v}" for k, v in (captured.get("allocator") or {}).items())
    return {
        "processor": f"{captured.get('cpu')}, {captured.get('num_cpus')} cores",
        "memory": _UNKNOWN if memory is None else format_bytes(memory),
        "GPU": "none used" if not gpu else f"{gpu.get('name')}, driver {gpu.get('driver')}",
        **({"system": captured["platform"]} if captured.get("platform") else {}),
        "Python": str(captured.get("python")),
        "packages": ", ".join(f"{k} {v}" for k, v in versions.items() if v),
        **({"allocator settings": allocator} if allocator else {}),
    }
