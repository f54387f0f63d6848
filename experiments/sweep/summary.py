"""What a sweep comes to: times relative to the baseline without a limit, planner by budget."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mimose.units import format_bytes
from mimose_bench.experiments.comparing import COMPARED, pair, time_ratio
from mimose_bench.experiments.reading import Run, load_run
from mimose_bench.experiments.sources import UNKNOWN_CODE
from mimose_bench.experiments.sweep.store import Store
from mimose_bench.experiments.tables import MISSING, number, table

_NOT_COMPARED = COMPARED - {"steps"}
_ENDINGS = {"oom": "out of memory"}


def rows(records: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return a row a cell: what ``sweep.json`` says of it and what its run came to.

    Args:
        records: The cells of ``sweep.json``.
        folder: The sweep's folder.

    Returns:
        The cells' own keys, without the configuration, and ``time_ratio`` with its interval,
        ``time_ratio_responsive`` (without the sheltered steps), peaks, ``num_violations`` and
        ``note``, why there is no ratio where one would be expected.
    """
    records = list(records)
    loaded: dict[str, Run] = {}
    notes: dict[str, str] = {}
    for record in records:
        if record["run"] is None:
            continue
        try:
            run = load_run(folder / record["run"])
            _ = run.steps
        except ValueError as error:
            notes[record["id"]] = str(error)
        else:
            loaded[record["id"]] = run
    references = {
        _setting(r): loaded[r["id"]]
        for r in records
        if r["planner"] == "baseline" and r["budget_bytes"] is None and r["id"] in loaded
    }
    found = []
    for record in records:
        row = {k: v for k, v in record.items() if k != "config"}
        run = loaded.get(record["id"])
        row |= _figures(run, references.get(_setting(record)))
        row["note"] = notes.get(record["id"]) or row["note"]
        found.append(row)
    return found


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a sweep's folder, whether the sweep has ended or not.

    Raises:
        ValueError: If its ``sweep.json`` is damaged.
    """
    return rows(Store(folder).document()["cells"], folder)


def describe(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as tables, one a task and device: planners down, budgets across."""
    parts = []
    for task, device in dict.fromkeys((row["task"], row["device"]) for row in found):
        mine = [row for row in found if (row["task"], row["device"]) == (task, device)]
        labels = sorted({row["time_label"] for row in mine if row["time_label"]})
        parts.append(f"{task}, {', '.join(labels) or device}\n{_matrix(mine)}")
    failed = [row for row in found if row["state"] == "failed"]
    for row in failed:
        parts.append(
            f"failed: {row['task']} {row['label']} {row['budget']} seed {row['seed']}: "
            f"{row['error']}\n  repeat it with: {row['command']}"
        )
    parts += dict.fromkeys(f"note: {row['note']}" for row in found if row["note"])
    parts += _mixed(found)
    legend = _legend(found)
    return "\n\n".join([*parts, legend] if legend else parts)


def _legend(found: Sequence[Mapping[str, Any]]) -> str:
    """Return what the figures in the tables are; empty where there are none."""
    parts = []
    if any(row["time_ratio"] is not None for row in found):
        parts.append(
            "time relative to the baseline without a limit over the steps that both finished, in "
            "brackets without sheltered steps; mean and standard deviation over seeds"
        )
    if any(row["num_violations"] for row in found):
        parts.append(
            "v: violations (out-of-memory steps, retried steps, allocator retries) of all seeds"
        )
    return "; ".join(parts) + "." if parts else ""


def _mixed(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note where results of different code stand side by side."""
    codes = Counter(r["code"] or UNKNOWN_CODE for r in found if r["run"] and "code" in r)
    if len(codes) < 2:
        return []
    made = "; ".join(f"{count} by {code}" for code, count in codes.items())
    return [f"note: these runs were made by different code: {made}"]


def _matrix(found: Sequence[Mapping[str, Any]]) -> str:
    budgets = list(dict.fromkeys((row["budget"], row["budget_bytes"]) for row in found))
    budgets.sort(key=lambda b: (b[1] is not None, b[1] or 0))
    headers = ["planner", *(_header(*budget) for budget in budgets)]
    body = []
    for label in dict.fromkeys(row["label"] for row in found):
        line = [label]
        for budget in budgets:
            cells = [
                row
                for row in found
                if row["label"] == label and (row["budget"], row["budget_bytes"]) == budget
            ]
            line.append(_shown(cells))
        body.append(line)
    return table(headers, body)


def _header(text: str, num_bytes: int | None) -> str:
    return f"{text} ({format_bytes(num_bytes)})" if text.endswith("%") and num_bytes else text


def _shown(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return cells that differ in their seeds alone in a few words."""
    if not cells:
        return MISSING
    done = [row for row in cells if row["outcome"] == "done" and row["state"] == "finished"]
    text = "done"
    if any(row["time_ratio"] is not None for row in done):
        text = f"{_mean(done, 'time_ratio')} ({_mean(done, 'time_ratio_responsive')})"
    violations = sum(row["num_violations"] or 0 for row in cells)
    parts = [text] if done else []
    parts += [f"{violations} v"] if violations else []
    endings = [
        row["state"] if row["state"] != "finished" else _ENDINGS.get(row["outcome"], row["outcome"])
        for row in cells
        if row not in done
    ]
    for ending in dict.fromkeys(endings):
        count = endings.count(ending)
        parts.append(ending if count == len(cells) else f"{count} {ending}")
    return ", ".join(parts)


def _mean(found: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [row[key] for row in found if row[key] is not None]
    if not values:
        return MISSING
    text = number(statistics.fmean(values), ".3f")
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.3f}"


def _figures(run: Run | None, reference: Run | None) -> dict[str, Any]:
    whole = rest = note = None
    summary: Mapping[str, Any] = {} if run is None else run.summary
    if run is not None and reference is not None:
        try:
            paired = pair(reference.steps, run.steps)
        except ValueError as error:
            note = f"{run.name} has no ratio: {error}"
        else:
            whole, rest = time_ratio(paired), time_ratio(paired, learning=False)
    return {
        "device_label": run and run.device_label,
        "time_label": run and run.time_label,
        "num_steps": summary.get("num_steps"),
        "time_ratio": whole and whole.value,
        "time_ratio_low": whole and whole.low,
        "time_ratio_high": whole and whole.high,
        "time_ratio_responsive": rest and rest.value,
        "num_violations": summary.get("num_violations"),
        "peak_allocated_bytes": summary.get("peak_allocated_bytes"),
        "peak_reserved_bytes": summary.get("peak_reserved_bytes"),
        "mean_step_seconds": summary.get("mean_step_seconds"),
        "note": note,
    }


def _setting(record: Mapping[str, Any]) -> str:
    """Return what a cell and its reference have in common."""
    config = {k: v for k, v in record["config"].items() if k not in _NOT_COMPARED}
    return repr(sorted(config.items(), key=lambda item: item[0]))
