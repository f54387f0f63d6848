"""A report as Markdown: the file beside the HTML page, and ``docs/reproduce.md``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from mimose_bench.experiments.report.contents import Contents, Section, Table
from mimose_bench.experiments.report.statements import NONE, VERDICTS, VERSIONS, Statement

_HEADERS = ("claim", "source", "paper", "here", "difference", "tolerance", "verdict", "device")


def report(contents: Contents) -> str:
    """Return a report with its figures, which lie beside it in ``figures``."""
    parts = [
        "# Mimose, claim by claim",
        *_summary(contents),
        "## Checks",
        overview(contents),
        *(part for section in contents.sections for part in _section(section, figures=True)),
        *_environment(contents),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def docs(contents: Contents, introduction: str) -> str:
    """Return ``docs/reproduce.md``: an introduction, an overview, a section a check.

    Args:
        contents: The recorded outcomes.
        introduction: What comes first, as Markdown.
    """
    parts = [
        introduction,
        *_summary(contents),
        "## Overview",
        overview(contents),
        *(part for section in contents.sections for part in _section(section, figures=False)),
        *_environment(contents),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def overview(contents: Contents) -> str:
    """Return a table of the checks: what, how, how long, what came out, where and when."""
    rows = [
        (
            _escaped(_titled(section)),
            f"`{section.command}`",
            section.seconds,
            section.gpu,
            section.counts,
            section.device_label,
            section.date,
        )
        for section in contents.sections
    ]
    headers = ("check", "command", "time", "needs a GPU?", "verdicts", "device", "date")
    return _table(headers, rows, escape=False)


def _summary(contents: Contents) -> list[str]:
    rows = [
        (VERSIONS[version], *(str(counts[word]) for word in VERDICTS))
        for version, counts in contents.tally.items()
    ]
    text = (
        "Claims and criteria by their verdicts; the two versions of the paper are judged apart. A "
        "claim holds or is outside only if its whole 95 % interval is on one side of its "
        f"tolerance; *reported* has none. {len(contents.sections)} checks took "
        f"{contents.seconds} in all."
    )
    parts = [_wrapped(text), _table(("whose claims", *VERDICTS), rows)]
    if contents.failed:
        failed = "; ".join(f"{s.name} ({_escaped(s.error or '')})" for s in contents.failed)
        parts.append(_wrapped(f"**Failed:** {failed}."))
    if contents.quick:
        names = ", ".join(section.name for section in contents.quick)
        parts.append(
            _wrapped(f"**Quick runs**, of a few points of each curve, stand for: {names}.")
        )
    return parts


def _section(section: Section, *, figures: bool) -> list[str]:
    parts = [f"## {_escaped(_titled(section))}", f"    {section.command}", section.before]
    if section.error is not None:
        return [*parts, _wrapped(f"**Failed** on {section.date}: {_escaped(section.error)}.")]
    quick = "a quick run" if section.is_quick else "the whole check"
    parts.append(
        _wrapped(
            f"**Obtained**: {section.counts}; {section.device_label}, {quick} in "
            f"{section.seconds}, {section.date}."
        )
    )
    if figures:
        parts += [f"![{_escaped(d.alt)}](figures/{d.name}.svg)" for d in section.drawings]
    remarks = list(dict.fromkeys(each.note for each in section.statements if each.note))
    parts.append(_statements(section.statements, remarks))
    parts.append("\n".join(f"{i}. {_escaped(text)}" for i, text in enumerate(remarks, 1)))
    parts += [f"{_escaped(t.caption)}:\n\n{_body(t)}" for t in section.tables]
    parts += [_wrapped(_escaped(note)) for note in section.notes]
    if section.after:
        parts.append(f"**Why results differ.** {section.after}")
    return parts


def _titled(section: Section) -> str:
    return f"{section.title} ({section.source})" if section.source else section.title


def _statements(found: Sequence[Statement], remarks: Sequence[str]) -> str:
    """Return statements as a table; remarks on them are numbered."""
    if not found:
        return ""
    rows = [
        (
            f"{each.text} ({remarks.index(each.note) + 1})" if each.note else each.text,
            each.source,
            each.paper,
            f"{each.here} ({each.interval})" if each.interval else each.here,
            each.difference,
            each.tolerance,
            f"**{each.verdict}**" if each.verdict == "outside" else each.verdict,
            each.device_label,
        )
        for each in found
    ]
    kept = [i for i in range(len(_HEADERS)) if any(row[i] != NONE for row in rows)]
    # One device, one source: said above the table already.
    kept = [i for i in kept if _HEADERS[i] not in ("device", "source") or _differ(rows, i)]
    headers = [_HEADERS[i] for i in kept]
    body = [
        [row[i] if _HEADERS[i] == "verdict" else _escaped(row[i]) for i in kept] for row in rows
    ]
    return _table(headers, body, escape=False)


def _differ(rows: Sequence[Sequence[str]], column: int) -> bool:
    return len({row[column] for row in rows}) > 1


def _body(table: Table) -> str:
    return _table(table.headers, table.rows)


def _environment(contents: Contents) -> list[str]:
    parts = ["## Environment"]
    for names, facts in contents.environments:
        if len(contents.environments) > 1:
            parts.append(_wrapped(f"Of {', '.join(names)}:"))
        parts.append(_table(("what", "which"), facts.items()))
    parts.append(f"{contents.code.caption}:\n\n{_body(contents.code)}")
    return parts


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, escape: bool = True) -> str:
    body = [[_escaped(cell) if escape else cell for cell in row] for row in rows]
    lines = [headers, ["---"] * len(headers), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Return text of which Markdown makes nothing but text, on one line."""
    return re.sub(r"([\\|*<\[\]`])", r"\\\1", " ".join(text.split()))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)
