"""DTR's search over and over again for sizes already seen, against Mimose's plan cache.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025: DTR chooses what to evict in each iteration anew,
whatever came before; Mimose keeps a plan for each size, rounded up to a multiple of five. How many
plans a run makes is the first version's (arXiv 2209.02478).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mimose_bench.experiments.figures.break_even import BATCHES, PAPERS_SAMPLES
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.means import mean_interval
from mimose_bench.experiments.figures.recorded import Record
from mimose_bench.experiments.figures.result import Reproduction, ResultTable
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import FAILED, planning_seconds
from mimose_bench.experiments.tasks import TASKS

PLANS: Mapping[str, int] = {"mc-roberta": 17, "qa-bert": 24, "tc-bert": 51, "qa-xlnet": 69}
"""Plans made during a run at 6 GB."""

RUN_STEPS: Mapping[str, int] = {
    "mc-roberta": math.ceil(0.1 * PAPERS_SAMPLES["mc-roberta"] / BATCHES["mc-roberta"]),
    "qa-bert": math.ceil(0.1 * PAPERS_SAMPLES["qa-bert"] / BATCHES["qa-bert"]),
    "tc-bert": math.ceil(0.1 * 363_846 / 32),  # GLUE-QQP's training pairs
    "qa-xlnet": math.ceil(0.1 * PAPERS_SAMPLES["qa-bert"] / 16),
}
"""Steps of the paper's runs: a tenth of the samples."""

DTR, MIMOSE, PRINTED, AUTHORS = "dtr", "mimose", "mimose-printed", "mimose-authors"
SEARCH_TASK = "mc-roberta"
"""The task whose lengths come again most often."""
SEARCH_BUDGET = "5GB"
"""So little that most batches need evictions, with a quarter of it left for fragmentation."""
SEARCH_STEPS, QUICK_SEARCH_STEPS = 100, 16
QUICK_TASKS, QUICK_STEPS = 1, 40
AGAIN_TOLERANCE = 0.05
"""By how much less DTR may search when a length comes again."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What the n-th batch of a length took, means over lengths and batches.

    Attributes:
        number: Which occurrence; the last of them holds all from there on.
        count: Batches.
        search: Seconds of planning: DTR's choosing, or Mimose's estimator and scheduler.
        maintenance: Seconds of keeping costs up to date; 0 for Mimose.
        evictions: Storages evicted; 0 for Mimose.
        hits: Share of plans that came from the cache; None for DTR, which has none.
        step: Seconds of the step.
        relative: Search time over that of the same length's first occurrence: total over total.
    """

    number: int
    count: int
    search: float
    maintenance: float
    evictions: float
    hits: float | None
    step: float
    relative: float


def occurrences(steps: pd.DataFrame, most: int = 4) -> list[Occurrence]:
    """Return what each occurrence of a length took.

    Sheltered steps, in which Mimose only measures, are left out, as are steps that failed.

    Args:
        steps: A run's iterations.
        most: Occurrences from this one on are put together.
    """
    done = steps[~steps["outcome"].isin(FAILED) & (steps["phase"] != "sheltered")].copy()
    done["number"] = done.groupby("sequence_length").cumcount() + 1
    evicting = done["eviction_search_seconds"].notna()
    done["search"] = (
        done["eviction_search_seconds"]
        .fillna(0.0)
        .astype(float)
        .where(evicting, planning_seconds(done))
    )
    first = done[done["number"] == 1].set_index("sequence_length")["search"]
    done["first"] = done["sequence_length"].map(first).astype(float)
    found = []
    for number in range(1, most + 1):
        last = number == most
        rows = done[done["number"] >= number] if last else done[done["number"] == number]
        if not len(rows):
            continue
        hits = rows["cache_hit"].dropna()
        base = float(rows["first"].sum())
        found.append(
            Occurrence(
                number=number,
                count=len(rows),
                search=float(rows["search"].mean()),
                maintenance=float(
                    rows["eviction_maintenance_seconds"].fillna(0.0).astype(float).mean()
                ),
                evictions=float(rows["num_evictions"].fillna(0).astype(float).mean()),
                hits=float(hits.astype(float).mean()) if len(hits) else None,
                step=float(rows["step_seconds"].astype(float).mean()),
                relative=float(rows["search"].sum()) / base if base else math.nan,
            )
        )
    return found


def searched_again(steps: pd.DataFrame) -> tuple[float, tuple[float, float] | None] | None:
    """Return DTR's search when a length comes again over that of its first time, and its interval.

    Returns:
        The mean over lengths; None where no length that needed evictions came again.
    """
    done = steps[~steps["outcome"].isin(FAILED)].dropna(subset=["eviction_search_seconds"])
    ratios = []
    for _, rows in done.groupby("sequence_length"):
        found = rows.sort_values("step")["eviction_search_seconds"].to_numpy(dtype=float)
        if len(found) > 1 and found[0] > 0:
            ratios.append(float(found[1:].mean() / found[0]))
    return mean_interval(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class Plans:
    """What a long run's cache did.

    Attributes:
        steps: Steps of the run.
        made: Plans made.
        distinct: Rounded sizes that they were made for.
        hits: Share of responsive steps whose plan was in the cache.
        planning: Seconds of estimator and scheduler in all.
        share: That as a share of the run's time.
    """

    steps: int
    made: int
    distinct: int
    hits: float
    planning: float
    share: float


def plans(run: Run, step: int = 5) -> Plans:
    """Return what a run's plan cache did.

    Args:
        run: A run of planner ``mimose``.
        step: What sizes are rounded up to.
    """
    steps = run.steps[~run.steps["outcome"].isin(FAILED)]
    asked = steps[steps["cache_hit"].notna()]
    made = asked[~asked["cache_hit"].astype(bool)]
    planning = float(planning_seconds(steps).sum())
    return Plans(
        steps=len(steps),
        made=len(made),
        distinct=len({-(-int(length) // step) for length in made["sequence_length"]}),
        hits=1 - len(made) / len(asked) if len(asked) else math.nan,
        planning=planning,
        share=planning / float(steps["step_seconds"].sum()),
    )


def search_grid(steps: int = SEARCH_STEPS) -> dict[str, Any]:
    """Return the runs of DTR and Mimose over the same batches."""
    return {
        "tasks": [SEARCH_TASK],
        "planners": [DTR, MIMOSE],
        "budgets": [SEARCH_BUDGET],
        "seeds": [1],
        "options": {**_OPTIONS, "steps": steps},
    }


def plans_grid(tasks: int = len(PLANS), steps: int | None = None) -> dict[str, Any]:
    """Return the runs whose plans are counted, as long as the paper's unless ``steps`` says so."""
    names = list(PLANS)[:tasks]
    return {
        "tasks": names,
        "planners": [PRINTED, AUTHORS],
        "budgets": ["6GB"],
        "seeds": [1],
        "options": _OPTIONS,
        "planner": {
            PRINTED: {"planner": MIMOSE, "variant": "printed"},
            AUTHORS: {"planner": MIMOSE, "variant": "authors"},
        },
        "task": {name: {"steps": steps or RUN_STEPS[name]} for name in names},
    }


_OPTIONS = {
    "data": "synthetic",
    "on_oom": "skip",
    "flops": "off",
    "foreach": "off",
    "threads": 1,
}


def judge(
    searching: Mapping[str, Run],
    counted: Mapping[tuple[str, str], Plans],
    device_label: str,
) -> Reproduction:
    """Compare both with what the paper says.

    Args:
        searching: Runs of :data:`DTR` and :data:`MIMOSE` over the same batches.
        counted: Plans made, by task and the grid's name of the variant.
        device_label: Where they ran.
    """
    again = searched_again(searching[DTR].steps) if DTR in searching else None
    claims = [
        Claim(
            text="DTR searches again for a length that it has seen: its search over that of the "
            "first time",
            source="section on DTR",
            version="ipdps",
            unit="x",
            expected=1.0,
            obtained=None if again is None else again[0],
            interval=None if again is None else again[1],
            bound="at least",
            tolerance=AGAIN_TOLERANCE,
            device_label=device_label,
            note="no length that needed evictions came again" if again is None else "",
        )
    ]
    for (task, label), found in counted.items():
        variant = label.removeprefix("mimose-")
        full = found.steps >= RUN_STEPS[task]
        claims.append(
            Claim(
                text=f"{TASKS[task].title}, {variant}: plans made during a run at 6 GB",
                source="text on the scheduler's cost",
                version="v1",
                unit="plans",
                expected=PLANS[task],
                obtained=found.made,
                bound="at most",
                # A shorter run makes fewer plans, whatever the planner.
                tolerance=0.0 if full else None,
                device_label=device_label,
                note=f"{found.steps} steps, for {found.distinct} rounded lengths"
                + ("" if full else f"; the paper's have {RUN_STEPS[task]}"),
            )
        )
    return Reproduction(
        name="cache",
        title="DTR's repeated search against Mimose's plan cache",
        source="sections on DTR and on the scheduler",
        device_label=device_label,
        rows=(),
        claims=tuple(claims),
        tables=tuple(
            [_occurrences_table(searching, device_label)] * bool(searching)
            + [_plans_table(counted, device_label)] * bool(counted)
        ),
        notes=(
            "Search and maintenance on a simulated device are counted work at a price: measured on "
            "cpu for Mimose, for DTR on the V100 from one budget of the paper's Fig 5. Ratios of "
            "DTR to itself do not depend on that price.",
            "Mimose makes a plan anew for a length in its cache where what it has learned since "
            "asks for it: a sample, a margin for fragmentation or resident memory by which the "
            "plan no longer fits, or recomputes a block too many. One that is judged again and "
            "stays counts as found. The authors' "
            "variant, whose margin is fixed, makes one for each rounded length that its batches "
            "have. QA-Bert and QA-XLNet see the same data set's lengths: the paper's 24 and 69 "
            "plans cannot both follow from them.",
        ),
    )


def check(
    record: Record,
    *,
    search_steps: int = SEARCH_STEPS,
    tasks: int = len(PLANS),
    steps: int | None = None,
    say: Say = silent,
) -> Reproduction:
    """Run DTR and Mimose over the same batches, and Mimose in runs as long as the paper's.

    Args:
        record: Runs grids.
        search_steps: Steps of DTR and Mimose over the same batches.
        tasks: How many tasks to count plans for.
        steps: Steps of those runs; None for the paper's.
        say: Takes lines of progress.
    """
    say(f"cache: {SEARCH_TASK} at {SEARCH_BUDGET}, {search_steps} steps")
    searched = record(search_grid(search_steps))
    searching = {cell.row["label"]: cell.run for cell in searched.cells if cell.run is not None}
    say(f"cache: plans of {tasks} tasks")
    recorded = record(plans_grid(tasks, steps))
    counted = {
        (cell.row["task"], cell.row["label"]): plans(cell.run)
        for cell in recorded.cells
        if cell.run is not None
    }
    return judge(searching, counted, searched.device_label or recorded.device_label)


def _occurrences_table(searching: Mapping[str, Run], label: str) -> ResultTable:
    rows = [
        (
            name,
            f"{at.number}" if at is not found[-1] or at.number < 4 else f"{at.number} and later",
            f"{at.count}",
            f"{1e6 * at.search:.0f}",
            f"{1e6 * at.maintenance:.0f}",
            f"{at.evictions:.1f}",
            "-" if at.hits is None else f"{at.hits:.0%}",
            f"{1e3 * at.step:.1f}",
            "-" if math.isnan(at.relative) else f"{at.relative:.2f}",
        )
        for name, run in searching.items()
        for found in [occurrences(run.steps)]
        for at in found
    ]
    return ResultTable(
        title=f"{TASKS[SEARCH_TASK].title} at {SEARCH_BUDGET}, means of a step by which occurrence "
        f"of its length it is, {label}",
        headers=(
            "planner",
            "occurrence",
            "steps",
            "search or planning (us)",
            "maintenance (us)",
            "evictions",
            "from the cache",
            "step (ms)",
            "search over the first's",
        ),
        rows=tuple(rows),
    )


def _plans_table(counted: Mapping[tuple[str, str], Plans], label: str) -> ResultTable:
    return ResultTable(
        title=f"Mimose's plans at 6 GB, {label}",
        headers=(
            "task",
            "variant",
            "steps",
            "plans made",
            "of rounded lengths",
            "the paper's",
            "from the cache",
            "planning (ms)",
            "of the run's time",
        ),
        rows=tuple(
            (
                TASKS[task].title,
                name.removeprefix("mimose-"),
                f"{found.steps}",
                f"{found.made}",
                f"{found.distinct}",
                f"{PLANS[task]}",
                f"{found.hits:.1%}",
                f"{1e3 * found.planning:.1f}",
                f"{found.share:.3%}",
            )
            for (task, name), found in counted.items()
        ),
    )
