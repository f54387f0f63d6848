"""The outcomes behind ``docs/reproduce.md``, kept beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mimose_bench.experiments.figures import stored
from mimose_bench.experiments.figures.plain import parse
from mimose_bench.experiments.figures.result import Row
from mimose_bench.experiments.figures.stored import Stored
from mimose_bench.experiments.figures.text import by_series, spread
from mimose_bench.experiments.files import write_json, write_text
from mimose_bench.experiments.report.about import about
from mimose_bench.experiments.report.contents import contents
from mimose_bench.experiments.report.markdown import docs

MOST_BYTES = 60_000
"""Largest file that is kept as it is: of larger ones only the values that are shown are kept."""

ENVIRONMENT = (
    "allocator",
    "cpu",
    "git_commit",
    "gpu",
    "memory_bytes",
    "num_cpus",
    "num_threads",
    "python",
    "versions",
)
"""What is kept of the environment."""

INTRODUCTION = "introduction"


def write(outcomes: Sequence[Stored], page: Path, order: Sequence[str]) -> list[str]:
    """Keep outcomes beside a page, and write the page from all that are kept.

    Args:
        outcomes: Outcomes of checks.
        page: The page, ``docs/reproduce.md``; values go to the folder ``reproduced`` beside it.
        order: Names of checks in the order of their sections.

    Returns:
        What was not kept, a sentence each.

    Raises:
        ValueError: If the page or the folder cannot be written, or a kept value cannot be read.
    """
    folder, problems = page.parent / "reproduced", []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in outcomes:
            path = folder / f"{each.name}.json"
            if each.error is not None:
                problems.append(f"{each.name} failed: what was kept of it stays")
            elif each.is_quick and path.exists() and not stored.read(path).is_quick:
                problems.append(f"{each.name} is a quick run: the whole check's values stay")
            else:
                write_json(path, thinned(each.document))
        write_text(page, generated(folder, order))
    except OSError as error:
        raise ValueError(
            f"cannot write {page} and {folder} ({error.strerror or error}): name another page "
            "with --docs"
        ) from error
    return problems


def generated(folder: Path, order: Sequence[str]) -> str:
    """Return the page that the outcomes kept in a folder make.

    Raises:
        ValueError: If one cannot be read.
    """
    outcomes, problems = stored.read_all(folder)
    if problems:
        raise ValueError("; ".join(problems))
    return docs(contents(outcomes, order), about(INTRODUCTION)[0])


def thinned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a check's document as it is kept.

    The machine is described as far as it matters; of a large document values and curves that no
    page shows are left out.
    """
    run = dict(document.get("run") or {})
    if "environment" in run:
        run["environment"] = {k: v for k, v in run["environment"].items() if k in ENVIRONMENT}
        document = {**document, "run": run}
    if len(json.dumps(document, indent=2)) <= MOST_BYTES:
        return dict(document)
    rows = [parse(row, Row, "row") for row in document["rows"]]
    shown = {id(row) for series in by_series(rows) for row in spread(series)}
    kept = [raw for raw, row in zip(document["rows"], rows, strict=True) if id(row) in shown]
    total = document.get("num_rows") or len(rows)
    return {**document, "thinned": True, "num_rows": total, "rows": kept, "curves": []}
