"""Write the table of planners in docs/choosing.md, its figures taken from docs/reproduced.

    python scripts/choosing.py

What a planner does is said here; every figure is read from the files, with the label of the device
that it comes from. A test holds the page against this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/choosing.md"
REPRODUCED = ROOT / "docs/reproduced"
BEGIN, END = "<!-- made by scripts/choosing.py -->", "<!-- end -->"

_TASKS = ("QA-Bert", "MC-Roberta")
_RELATIVE = "{}: time relative to plain training by budget"
_NEEDS = ("planner", "what it does", "sees the longest batch first", "cannot do")
_KEEPS_TO = ("planner", "lengths that change", "keeps the budget at the longest")
_COSTS = ("planner", "solving", "costs beside what it recomputes")


@dataclass(frozen=True)
class Choice:
    """What is said of a planner; figures are put in for ``{name}``.

    Attributes:
        does: What it does.
        first: Whether a profile of the longest batch has to be taken before training.
        lengths: What becomes of batches of other lengths.
        keeps: Whether the longest batch stays within the budget.
        solving: How long a plan takes to make.
        cannot: Models that it cannot do.
        costs: What else it costs.
    """

    does: str
    first: str
    lengths: str
    keeps: str
    solving: str
    cannot: str
    costs: str = ""


_NO_BLOCKS = "models without repeated blocks, unless named"
_ONE_PLAN = "one plan for all: short batches pay as well"
_KEEPS = "by prediction, or says the least budget that would do"
_SCAN = "one pass over the blocks a candidate"
_TENSORS = "models that `torch.compile` has compiled; kernels that take addresses evict less"

CHOICES: dict[str, Choice] = {
    "baseline": Choice("recomputes nothing", "no", "nothing to adapt", "no", "none", "none"),
    "mimose": Choice(
        "recomputes what this batch needs",
        "no",
        "a plan for each",
        "by prediction; what fits under no plan is refused before it runs",
        "{mimose_ms} ms a plan",
        _NO_BLOCKS,
        "its first steps recompute everything: {sheltered} times a plain step. Paid for after "
        "{paid_full} iterations against `full`, {paid_greedy} against `sublinear-greedy`",
    ),
    "auto": Choice(
        "of each block what is cheapest to make again, for this batch",
        "no",
        "a plan for each",
        "by prediction; what fits under no plan is refused before it runs",
        "a knapsack over the blocks' menus: {auto_ms} ms a plan",
        _NO_BLOCKS,
        "its first steps look inside the blocks, and the very first recomputes everything: they "
        "cost as much as {auto_learning} plain ones, of {auto_steps}",
    ),
    "full": Choice(
        "recomputes every block",
        "no; to be told whether it fits, yes",
        _ONE_PLAN,
        "does not look at it",
        "none",
        _NO_BLOCKS,
    ),
    "selective": Choice(
        "recomputes the attention matrices alone",
        "no; to be told whether it fits, yes",
        _ONE_PLAN,
        "does not look at it",
        "none",
        "attention that is not on Hugging Face's interface, but for XLNet's",
        "with a fused kernel there is little left to save",
    ),
    "sublinear-greedy": Choice(
        "Mimose's greedy, once, for the longest batch", "yes", _ONE_PLAN, _KEEPS, _SCAN, _NO_BLOCKS
    ),
    "sublinear": Choice(
        "segments of Chen's Algorithm 3", "yes", _ONE_PLAN, _KEEPS, _SCAN, _NO_BLOCKS
    ),
    "sqrt-n": Choice(
        "equal segments by the square root rule",
        "yes, or `segments=N`",
        _ONE_PLAN,
        "refuses a budget that it does not fit, uses no more of a larger one",
        "none",
        _NO_BLOCKS,
    ),
    "periodic": Choice(
        "equal segments, the fastest number of them", "yes", _ONE_PLAN, _KEEPS, _SCAN, _NO_BLOCKS
    ),
    "revolve": Choice(
        "the best schedule that stores inputs of blocks only",
        "yes",
        _ONE_PLAN,
        _KEEPS,
        "a dynamic programme",
        f"{_NO_BLOCKS}; no region spans what layers hand on beside their output",
    ),
    "rotor": Choice(
        "the best schedule that keeps what it stores until used",
        "yes",
        _ONE_PLAN,
        _KEEPS,
        "a dynamic programme",
        f"{_NO_BLOCKS}; no region spans what layers hand on beside their output",
    ),
    "checkmate-lp": Choice(
        "rounds the programme's relaxation",
        "yes",
        _ONE_PLAN,
        _KEEPS,
        "a linear programme, at most `time_limit` seconds",
        _NO_BLOCKS,
        "rounding may find nothing where `checkmate` does",
    ),
    "checkmate": Choice(
        "the best schedule of any kind",
        "yes",
        _ONE_PLAN,
        _KEEPS,
        "{checkmate} for graphs of {nodes} operators; at most `time_limit` seconds",
        _NO_BLOCKS,
    ),
    "dtr": Choice(
        "evicts single tensors when memory runs short",
        "no",
        "nothing to adapt",
        "until what is free lies in pieces too small: ends out of memory, or as thrashing",
        "none; searches while it runs",
        _TENSORS,
        "seeing each operator, evictions or none: {seeing}",
    ),
    "delta": Choice(
        "as `dtr`, and swaps to the host what is dearer to recompute",
        "no",
        "nothing to adapt",
        "as `dtr`",
        "none; searches while it runs",
        _TENSORS,
        "as `dtr`, and memory of the host",
    ),
}


def load(name: str) -> dict[str, Any]:
    """Return one file of docs/reproduced."""
    return json.loads((REPRODUCED / f"{name}.json").read_text(encoding="utf-8"))


def table(data: dict[str, Any], title: str) -> dict[str, Any]:
    """Return the one table whose title begins with ``title``."""
    (found,) = (t for t in data["tables"] if t["title"].startswith(title))
    return found


def column(found: dict[str, Any], header: str) -> list[str]:
    """Return a column of a table by its header."""
    at = found["headers"].index(header)
    return [row[at] for row in found["rows"]]


def figures() -> dict[str, str]:
    """Return the figures of single cells by name."""
    planning = table(load("table3"), "means over runs, simulated")
    (printed,) = (r for r in planning["rows"] if r[:2] == ["QA-Bert", "printed"])
    cells = dict(zip(planning["headers"], printed))
    graphs = load("checkmate-graphs")["tables"]
    solved = [t for t in graphs if "solve time" in t["headers"]]
    seconds = [float(s.removesuffix(" s")) for t in solved for s in column(t, "solve time")]
    nodes = [int(re.search(r"(\d+) nodes", t["title"])[1]) for t in solved]  # type: ignore[index]
    seeing = table(load("fig5"), "qa-bert at scale small, measured on cpu: overhead without")
    return {
        "mimose_ms": cells["planning x plans"].split(" x ")[0],
        "sheltered": cells["sheltered / plain: mean, most"].split(",")[0],
        "paid_full": _paid("every block recomputed"),
        "paid_greedy": _paid("Sublinear"),
        "checkmate": f"{min(seconds):g} to {max(seconds):g} s",
        "nodes": f"{min(nodes)} to {max(nodes)}",
        "seeing": f"{column(seeing, 'median')[0]} (measured on cpu)",
        **_of_auto(),
    }


def _of_auto() -> dict[str, str]:
    """Return what planning and learning take Auto, over the tasks of the tables."""
    found = table(load("auto-learning"), "over the same sampled batches")
    rows = [dict(zip(found["headers"], row)) for row in found["rows"] if row[0] in _TASKS]
    mine = [row for row in rows if row["planner"] == "auto"]
    missed = [int(row["planning (us): miss, hit"].split(",")[0]) / 1000 for row in mine]
    learning = [float(row["they cost (iterations)"]) for row in mine]
    (steps,) = {row["steps"] for row in mine}
    return {
        "auto_ms": f"{min(missed):.2f} to {max(missed):.2f}",
        "auto_learning": f"{min(learning):.1f} to {max(learning):.1f}",
        "auto_steps": steps,
    }


def _paid(against: str) -> str:
    (found,) = load("break-even")["tables"]
    of = column(found, "against"), column(found, "paid after iterations")
    counts = [int(paid.split()[0]) for name, paid in zip(*of) if name == against]
    return f"{min(counts)} to {max(counts)}"


def needs() -> Iterator[str]:
    """Yield the lines of the table of what planners do and what they need."""
    yield from _lines(_NEEDS, [(f"`{n}`", c.does, c.first, c.cannot) for n, c in CHOICES.items()])


def keeping() -> Iterator[str]:
    """Yield the lines of the table of what lengths and budget mean to planners, alike ones once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, choice in CHOICES.items():
        alike.setdefault((choice.lengths, choice.keeps), []).append(f"`{name}`")
    yield from _lines(_KEEPS_TO, [(", ".join(names), *said) for said, names in alike.items()])


def costs() -> Iterator[str]:
    """Yield the lines of the table of what planners cost, alike ones once."""
    known = figures()
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, choice in CHOICES.items():
        said = tuple(cell.format(**known) for cell in (choice.solving, choice.costs))
        alike.setdefault(said, []).append(f"`{name}`")
    yield from _lines(_COSTS, [(", ".join(names), *said) for said, names in alike.items()])


def times() -> Iterator[str]:
    """Yield the lines of the table of times under one plan for all lengths and under Mimose's."""
    static = load("static")
    found = [table(static, _RELATIVE.format(task)) for task in _TASKS]
    names = [name for name in column(found[0], "planner") if name in CHOICES]
    headers = ["planner"]
    rows = {name: [f"`{name}`"] for name in names}
    for task, one in zip(_TASKS, found):
        budgets = [one["headers"][i] for i in (1, len(one["headers"]) // 2, -1)]
        headers += [f"{task}, {budget}" for budget in budgets]
        for budget in budgets:
            for name, cell in zip(column(one, "planner"), column(one, budget)):
                if name in rows:
                    rows[name].append(cell)
    yield from _lines(headers, list(rows.values()))


def beside() -> Iterator[str]:
    """Yield the lines of the table of Auto's times beside others'."""
    found = load("auto")
    headers = ["planner"]
    rows: dict[str, list[str]] = {}
    for task in _TASKS:
        one = table(found, f"{task}: time relative to plain training")
        headers += [f"{task}, {budget.removesuffix('.00 GiB')} GB" for budget in one["headers"][1:]]
        for name, *cells in one["rows"]:
            if name in CHOICES:
                rows.setdefault(name, [f"`{name}`"]).extend(cells)
    yield from _lines(headers, list(rows.values()))


def evicting() -> Iterator[str]:
    """Yield the lines of the table of DTR's and DELTA's times."""
    found = table(load("delta"), "QA-Bert: time relative to plain training")
    rows = [[f"`{row[0]}`", *row[1:]] for row in found["rows"] if row[0] in CHOICES]
    yield from _lines(found["headers"], rows)


def _machine(name: str) -> str:
    ran_on = load(name)["run"]["environment"]
    return f"{ran_on['cpu']}, {ran_on['num_cpus']} cores"


def _off(name: str) -> str:
    (found,) = (c["value"] for c in load("clock")["criteria"] if c["name"].startswith(name))
    return f"{found:.0%}"


def _lines(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield "|" + "---|" * len(headers)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def block() -> str:
    """Return all that stands between the two marks."""
    static, delta, table3 = load("static"), load("delta"), load("table3")
    parts = [
        "**What each does and needs:**",
        "",
        *needs(),
        "",
        "**Lengths and the budget:**",
        "",
        *keeping(),
        "",
        "**Solving and other costs**, what recomputing itself takes left out:",
        "",
        *costs(),
        "",
        f"Figures in it, unless it says so: {table3['device_label']}, QA-Bert at 6 GB (planning, "
        "as counted work at prices measured on cpu; first steps), QA-Bert and MC-Roberta at 4 to "
        "8 GB (iterations). Those of `auto`: both at 5 GB, its planning as counted work, too "
        f"({load('auto-learning')['device_label'].partition(' (')[0]}). `checkmate` was solved on "
        f"{_machine('checkmate-graphs')}.",
        "",
        "**Time relative to plain training** over the lengths of each data set, at full size, by "
        f"budget ({static['device_label']}), `mimose` without its first steps. Where nothing "
        "fits, the least budget stands:",
        "",
        *times(),
        "",
        f"`auto` beside them, each length by itself ({load('auto')['device_label']}):",
        "",
        *beside(),
        "",
        "`baseline` is 1, where it fits. Planners that go by tensors were run on one length, "
        "QA-Bert in batches of 12 x 384 tokens, at shares of what plain training takes "
        f"({delta['device_label']}):",
        "",
        *evicting(),
        "",
        "How far to trust them: of the published times that this clock was not set by, absolute "
        f"ones are {_off('mean error of the 5')} off in the mean, and ratios {_off('Table III')} "
        f"and {_off('Fig 4')}.",
    ]
    return "\n".join(parts)


def written(page: str) -> str:
    """Return the page with the block as it should be."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{block()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
