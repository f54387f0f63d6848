"""Runs as plain text: aligned columns that survive a pipe, every figure with its unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from mimose.units import format_bytes, format_seconds
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import is_expected

MISSING = "-"
EVICTION_PARTS = {
    "forward_backward_seconds": "forward and backward",
    "recompute_seconds": "recomputation",
    "maintenance_seconds": "cost maintenance",
    "search_seconds": "planning (search)",
    "overhead_seconds": "dispatch",
    "swap_wait_seconds": "waiting for copies",
}
"""The parts of passes under a tensor-level policy, in the paper's words where it has some."""
SIMULATED = "simulated"

_FINISHED = ("ok", "retried")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows under ``headers``, columns aligned: text to the left, figures to the right."""
    body = [list(row) for row in rows]
    widths = [max(len(line[i]) for line in [list(headers), *body]) for i in range(len(headers))]
    right = [bool(body) and all(is_figure(row[i]) for row in body) for i in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, body)])


def show(run: Run, num_steps: int) -> str:
    """Return what a reader wants to know of one run, its last ``num_steps`` steps included."""
    info, summary = run.info, run.summary
    config = info.get("config") or {}
    several = (info.get("environment") or {}).get("num_processes")
    facts = [
        ("run", str(run.directory)),
        ("outcome", _outcome(info)),
        ("task", " ".join(str(x) for x in (info.get("task"), config.get("scale")) if x)),
        ("planner", run.planner_label),
        *_solution(info),
        ("data", _data(info.get("data"))),
        ("device", run.time_label),
        ("budget", size(run.budget_bytes, "none")),
        *([("processes", f"{several}, each with this budget")] if several else []),
        ("steps", _counts(run)),
        ("peak allocated", size(summary["peak_allocated_bytes"])),
        ("peak reserved", size(summary["peak_reserved_bytes"], summary.get("note") or MISSING)),
        ("fragmentation", size(summary["fragmentation_bytes"])),
        ("budget use", percent(summary["budget_use"])),
        ("step time", _step_time(run)),
        ("MFU, HFU", _utilization(run)),
        ("recomputed", _recomputed(run)),
        *_in_part(summary),
        *_evictions(summary),
        *(_planned_once(info) if "solution" in info else _planning(summary)),
        ("final loss", _loss(info, summary)),
    ]
    width = max(len(name) for name, _ in facts)
    text = "\n".join(f"{name.ljust(width)}  {value}" for name, value in facts)
    return f"{text}\n\n{steps(run, num_steps)}" if num_steps and len(run.steps) else text


def _evictions(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a tensor-level policy did in a mean step, and where the time went."""
    found = summary.get("eviction")
    if not found:
        return []
    counts = f"{found['num_evictions']:.1f} a step, {found['num_rematerializations']:.1f} "
    counts += "operators run again"
    if found["swapped_bytes"]:
        counts += f", {size(found['swapped_bytes'])} moved to the host and back"
    parts = ", ".join(f"{name} {seconds(found[key])}" for key, name in EVICTION_PARTS.items())
    return [("evictions", counts), ("mean passes", parts)]


def _planning(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what planning came to, for a planner that plans for each size."""
    return [
        ("plans made", number(summary["num_plans_made"], "d")),
        ("estimator", _said(seconds(summary["median_estimator_seconds"]), "median")),
        ("scheduler", _said(seconds(summary["median_scheduler_seconds"]), "median")),
        (
            "planning",
            _said(seconds(summary.get("mean_planning_seconds")), "of a step's time on average"),
        ),
        ("collector", f"{seconds(summary['total_collector_seconds'])} in all"),
    ]


def _planned_once(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what planning came to, for a planner that plans once."""
    solution, profile = info.get("solution") or {}, info.get("profile") or {}
    least = info.get("least_budget_bytes") or solution.get("least_budget_bytes")
    profiled = _said(seconds(profile.get("seconds")), f"for {profile.get('passes')} passes")
    if profile.get("over_budget"):
        needed = format_bytes(int(profile["peak_reserved_bytes"]), up=True)
        profiled += f"; it needed {needed}, more than the budget, and was taken without the limit"
    if solution.get("reused_from"):
        profiled = "none: the plan was there"
    exact = least is not None and f"{format_bytes(int(least), up=True)} ({least} bytes)"
    return [
        ("profile", profiled),
        ("solve", seconds(solution.get("solve_seconds"))),
        ("least budget", exact or MISSING),
    ]


def steps(run: Run, count: int) -> str:
    """Return the last ``count`` steps of a run, over expected lengths with their weights.

    Of several processes a step has a row a rank. Where blocks let single values go there are
    columns for how many did, and for the bytes.
    """
    weighted = is_expected(run.steps)
    shown, ranks = run.steps.tail(count), run.steps["rank"].dropna().unique()
    several = len(ranks) > 1
    if several:
        last = run.steps["step"].drop_duplicates().nlargest(count)
        shown = run.steps[run.steps["step"].isin(last)].sort_values(["step", "rank"])
    in_part, sent = (
        bool((run.steps[name].fillna(0) > 0).any()) for name in ("num_remade", "offloaded_bytes")
    )
    columns = (
        "step",
        *(["rank"] if several else []),
        "phase",
        "pixels" if run.steps["image_pixels"].notna().any() else "length",
        *(["weight"] if weighted else []),
        "recomputed",
        *(["in part", "made again"] if in_part else []),
        *(["to the host"] if sent else []),
        "peak allocated",
        "predicted",
        "step time",
        "loss",
        "outcome",
    )
    rows = []
    for row in shown.to_dict("records"):
        length = row["image_pixels"] if absent(row["sequence_length"]) else row["sequence_length"]
        rows.append(
            (
                number(row["step"], "d"),
                *([number(row["rank"], "d")] if several else []),
                text_or_dash(row["phase"]),
                number(row["input_size"] if absent(length) else length, "d"),
                *([number(row["weight"], ".4f")] if weighted else []),
                number(row["num_recomputed"], "d"),
                *([number(row["num_remade"], "d"), _bytes(row["remade_bytes"])] if in_part else []),
                *([_bytes(row["offloaded_bytes"])] if sent else []),
                size(row["peak_allocated_bytes"]),
                size(row["predicted_peak_bytes"]),
                seconds(row["step_seconds"]),
                number(row["loss"], ".4f"),
                text_or_dash(row["outcome"]),
            )
        )
    return table(columns, rows)


_BUSY = 1.15
"""From so many times its processor time on a run's times say more of the machine than of it."""


def comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of :func:`mimose_bench.experiments.comparing.compare`'s rows.

    Where blocks let single values go, columns say how many were recomputed and how many did that in
    a mean step. Where time is simulated, a column leaves planning out, and a line says how far the
    clock is known to be off. Over expected lengths columns without any figure are left out.
    """
    clocks = dict.fromkeys(
        row["time_label"] for row in rows if row["time_label"].startswith(SIMULATED)
    )
    in_part = any(row.get("mean_remade_blocks") for row in rows)
    headers = (
        "planner",
        "budget",
        "device",
        "paired steps",
        "time",
        "95 % interval",
        "without sheltered",
        *(["without planning"] if clocks else []),
        *(["recomputed", "in part"] if in_part else []),
        "peak allocated",
        "peak reserved",
        "budget use",
        "violations",
        "loss difference",
        "outcome",
    )
    body = [
        (
            row["planner_label"],
            size(row["budget_bytes"], "none"),
            row["device_label"],
            number(row["num_pairs"], "d"),
            number(row["time_ratio"], ".3f"),
            _interval(row["time_ratio_low"], row["time_ratio_high"]),
            number(row["time_ratio_responsive"], ".3f"),
            *([number(row["time_ratio_without_planning"], ".3f")] if clocks else []),
            *([number(row[name], ".1f") for name in _BLOCKS] if in_part else []),
            size(row["peak_allocated_bytes"]),
            size(row["peak_reserved_bytes"]),
            percent(row["budget_use"]),
            number(row["num_violations"], "d"),
            number(row["max_loss_difference"], ".2g"),
            _ending(row),
        )
        for row in rows
    ]
    kept = range(len(headers))
    if rows and all(row.get("lengths") == "expected" for row in rows):
        kept = [i for i in kept if any(cells[i] != MISSING for cells in body)]
    text = table([headers[i] for i in kept], [[cells[i] for i in kept] for cells in body])
    lines = [text, *(f"times: {label}" for label in clocks)]
    if in_part:
        lines.append(
            "recomputed, in part: blocks in a mean step, and those kept but for single values that "
            "were made again or in the host's memory"
        )
    lines += [*_plans(rows), *_busy(rows), *_breakdowns(rows)]
    return "\n".join(lines)


def _busy(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is to be said of a machine that did other work beside the runs."""
    slowed = [(row["slowed_by_others"], row["planner_label"]) for row in rows]
    known = sorted(each for each in slowed if each[0] is not None)
    if not known or known[-1][0] < _BUSY:
        return []
    (least, first), (most, last) = known[0], known[-1]
    return [
        f"the machine was busy: runs took {least:.2f} ({first}) to {most:.2f} ({last}) times the "
        "processor's time that was spent on them, which no interval shows: do not trust these times"
    ]


_BLOCKS = ("mean_recomputed_blocks", "mean_remade_blocks")
_PLAN_WIDTH = 44


def _plans(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the plans that were made once for a whole run; none without any."""
    planned = [(row, row["solution"]) for row in rows if row.get("solution")]
    if not planned:
        return []
    headers = (
        "run",
        "plan",
        "recomputed",
        "predicted time",
        "predicted peak",
        "measured peak",
        "solved in",
        "retried",
    )
    body = [
        (
            row["run"],
            cut(solution["text"], _PLAN_WIDTH),
            recomputed(row["mean_recomputed_blocks"], num_cores(solution), ".1f"),
            number(row["predicted_time_ratio"], ".3f"),
            size(solution["predicted_peak_bytes"]),
            size(row["planned_peak_bytes"]),
            seconds(solution["solve_seconds"]) + (" (kept)" if solution.get("reused_from") else ""),
            number(row["num_retried"], "d"),
        )
        for row, solution in planned
    ]
    return [
        "",
        table(headers, body),
        "predicted time: of forward and backward, relative to everything kept; measured peak: of "
        "steps of the planned size.",
    ]


def _breakdowns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of where passes under tensor-level policies spent their time, if any did."""
    evicting = [(row, row["eviction"]) for row in rows if row.get("eviction")]
    if not evicting:
        return []
    body = [
        (
            row["run"],
            *(seconds(found[key]) for key in EVICTION_PARTS),
            number(found["num_evictions"], ".1f"),
            number(found["num_rematerializations"], ".1f"),
            size(found["swapped_bytes"]),
        )
        for row, found in evicting
    ]
    headers = ("run", *EVICTION_PARTS.values(), "evictions", "run again", "swapped")
    return ["", table(headers, body), "means of a step's forward and backward pass, in its parts."]


def cut(text: str, width: int) -> str:
    """Return ``text``, cut to ``width`` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def absent(value: Any) -> bool:
    """Return whether ``value`` is None, NaN or pandas' NA."""
    return value is None or value is pd.NA or value != value  # NaN alone differs from itself


def size(value: Any, missing: str = MISSING) -> str:
    """Return bytes as text."""
    return missing if absent(value) else format_bytes(int(value))


def _bytes(value: Any) -> str:
    """Return bytes as text, none as 0."""
    return "0" if value == 0 else size(value)


def seconds(value: Any) -> str:
    """Return seconds as text."""
    return MISSING if absent(value) else format_seconds(float(value))


def percent(value: Any) -> str:
    """Return a share as text."""
    return MISSING if absent(value) else f"{100 * value:.1f} %"


def number(value: Any, form: str) -> str:
    """Return a number in the given format."""
    if absent(value):
        return MISSING
    return format(int(value) if form == "d" else float(value), form)


def text_or_dash(value: Any) -> str:
    """Return ``value`` as text, a dash if it is absent."""
    return MISSING if absent(value) else str(value)


def is_figure(cell: str) -> bool:
    """Return whether a cell holds a figure, or that there is none."""
    return cell == MISSING or cell[:1].isdigit() or cell[:1] == "-"


def _interval(low: Any, high: Any) -> str:
    return MISSING if absent(low) else f"{low:.3f} to {high:.3f}"


def _said(value: str, what: str) -> str:
    """Return ``value`` and what it is; the dash alone where there is none."""
    return value if value == MISSING else f"{value} {what}"


def _step_time(run: Run) -> str:
    summary = run.summary
    text = _said(seconds(summary["median_step_seconds"]), "median")
    if text == MISSING or summary.get("lengths") != "expected":
        return text
    done = run.steps["outcome"].isin(_FINISHED)
    share = run.steps["weight"][done].sum()
    over = "an epoch's lengths"
    if share < 1 - 1e-6:
        over = f"the lengths that finished ({percent(share)} of an epoch)"
    return f"{seconds(summary['mean_step_seconds'])} expected over {over}, {text}"


def _utilization(run: Run) -> str:
    """Return the shares of the device's peak, with and without what is recomputed."""
    flops, summary = run.info.get("flops") or {}, run.summary
    if summary.get("mfu") is None:
        return _said(MISSING, "") if not flops else f"unknown: {flops.get('unknown')}"
    return (
        f"{percent(summary['mfu'])}, {percent(summary.get('hfu'))} of "
        f"{flops['peak_flops'] / 1e12:.4g} TFLOP/s ({flops['precision']})"
    )


def _solution(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is to be said of a plan made once for the whole run."""
    solution = info.get("solution")
    if not isinstance(solution, Mapping):
        return []
    planned = planned_size(solution)
    kept = solution.get("reused_from")
    origin = f"solved in {seconds(solution['solve_seconds'])}"
    if kept:
        origin = f"reused from {kept}"
    text = (
        f"{solution['text']} (for {planned}, {origin}; predicted peak "
        f"{size(solution['predicted_peak_bytes'])}"
    )
    if solution["baseline_seconds"]:
        ratio = solution["predicted_seconds"] / solution["baseline_seconds"]
        text += f", {ratio:.3f} of the time without recomputation"
    if solution.get("first_plan"):
        text += f"; at first {solution['first_plan']}"
    return [("plan", f"{text})")]


def planned_size(solution: Mapping[str, Any]) -> str:
    """Return the size that a solution in ``run.json`` was made for, as users write it."""
    return str(solution.get("size_text") or " x ".join(map(str, solution["size"])))


def recomputed(num_recomputed: Any, num_cores: int, form: str = "d") -> str:
    """Return how many blocks a plan recomputes, and of how many the attention core alone."""
    if not num_cores:
        return number(num_recomputed, form)
    cores = f"{num_cores} cores"
    return (
        cores
        if absent(num_recomputed) or not num_recomputed
        else (f"{number(num_recomputed, form)} and {cores}")
    )


def num_cores(solution: Any) -> int:
    """Return of how many blocks a solution in ``run.json`` recomputes the attention core alone."""
    plan = solution.get("plan") if isinstance(solution, Mapping) else None
    return len(plan.get("cores") or ()) if isinstance(plan, Mapping) else 0


def _recomputed(run: Run) -> str:
    if run.summary.get("eviction"):
        return "single operators, no blocks"
    text = _said(number(run.summary["mean_recomputed_blocks"], ".1f"), "blocks a step")
    cores = num_cores(run.info.get("solution"))
    return f"{text}, and the attention core alone of {cores}" if cores else text


def _in_part(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what single values of kept blocks were let go of in a mean step, if any were."""
    if not summary.get("mean_remade_blocks"):
        return []
    text = f"{number(summary['mean_remade_blocks'], '.1f')} blocks a step"
    freed, sent = summary.get("mean_remade_bytes"), summary.get("mean_offloaded_bytes")
    if freed:
        text += f"; {size(freed)} of their values made again in such a step"
    if sent:
        text += f"; {size(sent)} in the host's memory meanwhile"
    return [("in part", text)]


def _loss(info: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    if info.get("clock") is not None:
        return "none: the run is simulated"
    if summary["final_loss"] is None and info.get("first_lost_loss") is not None:
        return f"not a finite number since step {info['first_lost_loss']}"
    return number(summary["final_loss"], ".4f")


def _outcome(info: Mapping[str, Any]) -> str:
    if info["outcome"] == "running":
        return "running, or killed: no end was recorded"
    error = info.get("error")
    return f"{info['outcome']}: {error}" if error else str(info["outcome"])


def _counts(run: Run) -> str:
    summary = run.summary
    weighed = run.steps["weight"] > 0

    def count(outcome: str, name: str) -> str:
        text = f"{summary[f'num_{outcome}']} {name}"
        if not summary[f"num_{outcome}"] or not is_expected(run.steps):
            return text
        return f"{text}, {(weighed & (run.steps['outcome'] == outcome)).sum()} of them count"

    return (
        f"{summary['num_steps']}: {count('ok', 'ok')}, {count('retried', 'retried')}, "
        f"{summary['num_oom']} out of memory"
        + (f", {summary['num_thrashing']} given up" if summary.get("num_thrashing") else "")
        + f"; {summary['num_alloc_retries']} allocator retries"
    )


def _ending(row: Mapping[str, Any]) -> str:
    if row["num_oom"] and row["outcome"] != "done":
        return f"out of memory at step {row['num_steps'] - 1}"
    if row["outcome"] == "thrashing":
        return f"thrashing at step {row['num_steps'] - 1}"
    return str(row["outcome"])


def _data(data: Any) -> str:
    if isinstance(data, Mapping):
        told = f"{data.get('kind')}: {data.get('detail')} ({data.get('reason')})"
        return "; ".join([told, *map(str, data.get("notes") or ())])
    return MISSING if data is None else str(data)
