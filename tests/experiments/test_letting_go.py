"""Values that blocks let go of: in the record, in the tables; and options in a planner's label."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from mimose.plan import Plan, Region, Remade
from mimose.planners.auto import Auto
from mimose.records import Situation, StepRecord
from mimose_bench.experiments import comparing, summary, tables
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.labels import planner_label
from mimose_bench.experiments.letting_go import LettingGo
from mimose_bench.experiments.reading import to_frame
from mimose_bench.experiments.records import RunWriter
from mimose_bench.experiments.schema import STEPS, step_row, to_table

MIB = 1 << 20


class Known(Auto):
    """A planner that knows the inside of blocks 0 and 1: two values, of 3 and 5 MiB."""

    asked = 0

    def forecast(self, size, situation):
        self.asked += 1
        fit = SimpleNamespace(graph=SimpleNamespace(digest="abc"))
        inside = SimpleNamespace(fit=fit, bytes=np.array([3.0 * MIB, 5.0 * MIB]))
        return SimpleNamespace(inside={0: inside, 1: inside})


def record(*remade):
    plan = Plan(4, (Region(3, 3),), (), remade)
    return StepRecord((4, 128), plan, "responsive", Situation(1000))


class FakeRun:
    """A run of four steps."""

    info = {"outcome": "done"}  # noqa: RUF012
    name = planner = planner_label = "p"
    device_label = time_label = "measured on cpu"

    def __init__(self, **columns):
        rows = [
            {
                "rank": 0,
                "step": i,
                "phase": "responsive",
                "input_size": 100 + i,
                "batch_size": 4,
                "outcome": "ok",
                "step_seconds": 1.0,
                "num_alloc_retries": 0,
                "num_recomputed": 0,
            }
            | {name: values[i] for name, values in columns.items()}
            for i in range(4)
        ]
        self.steps = to_frame(to_table(rows, STEPS))
        self.summary = summary.summarize(self.steps, {})


def test_bytes_are_of_dropped_and_of_offloaded_values():
    planner = Known()
    letting_go = LettingGo(planner)
    both = record(Remade(0, (0,), (1,), "abc"), Remade(1, (1,), (), "abc"))
    assert letting_go.bytes(both) == (8 * MIB, 5 * MIB)
    assert letting_go.bytes(both) == (8 * MIB, 5 * MIB)
    assert planner.asked == 1
    row = step_row(both, step=0, input_size=1, let_go=letting_go.bytes(both))
    assert (row["num_recomputed"], row["num_remade"]) == (1, 2)
    assert (row["remade_bytes"], row["offloaded_bytes"]) == (8 * MIB, 5 * MIB)


@pytest.mark.parametrize(
    "remade",
    [(), (Remade(2, (0,), (), "abc"),), (Remade(0, (0,), (), "other"),)],
    ids=["none", "unknown block", "unknown graph"],
)
def test_what_is_not_known_is_not_made_up(remade):
    assert LettingGo(Known()).bytes(record(*remade)) is None
    assert LettingGo(SimpleNamespace()).bytes(record(Remade(0, (0,)))) is None


def test_tables_show_what_was_made_again_and_only_where_something_was():
    run = FakeRun(
        num_recomputed=[12, 0, 2, 0],
        num_remade=[0, 9, 10, 0],
        remade_bytes=[None, 9 * MIB, 11 * MIB, None],
        offloaded_bytes=[None, 0, 4 * MIB, None],
    )
    header, _, *rows = tables.steps(run, 3).splitlines()
    assert "recomputed  in part  made again  to the host" in header
    assert rows[0].split()[3:8] == ["0", "9", "9.00", "MiB", "0"]
    assert "10.00 MiB of their values made again in such a step" in str(
        tables._in_part(run.summary)
    )
    assert "4.00 MiB in the host's memory" in str(tables._in_part(run.summary))
    text = tables.comparison(comparing.compare([run, FakeRun()]))
    assert "recomputed  in part" in text.splitlines()[0]
    assert " 3.5      4.8 " in text.splitlines()[2]
    plain = FakeRun()
    assert "in part" not in tables.steps(plain, 3) + tables.comparison(comparing.compare([plain]))
    assert tables._in_part(plain.summary) == []
    assert plain.summary["mean_remade_bytes"] is None


def test_a_label_has_the_options_that_are_not_as_by_default():
    def label(planner, **options):
        return planner_label(planner, asdict(RunConfig(planner=planner, **options)))

    assert label("auto") == "auto"
    assert label("auto", offload="off", cache_step=5) == "auto"
    assert label("auto", offload="on", sheltered=4, margin=256 * MIB) == (
        "auto margin=256.00MiB sheltered=4 offload=on"
    )
    assert label("mimose", sheltered=10, variant="authors") == "mimose variant=authors"
    assert label("rotor", plan_size="384") == "rotor plan-size=384"
    assert label("out.side:Planner", planner_options={"depth": "3"}) == "out.side:Planner depth=3"
    assert planner_label("auto", {}) == "auto"  # An old record.


def test_a_folder_is_called_by_planner_and_options(tmp_path):
    label = "mimose cache-step=16 plan=keep 0 | recompute 1"
    given = {"task": "qa-bert", "planner": "mimose", "budget": "6GB", "device": "cpu"}
    writer = RunWriter.create(tmp_path, **given, label=label)
    assert writer.directory.name.startswith(
        "qa-bert-mimose-cache-step-16-plan-keep-0-_-recompute-1-6GB-cpu-2"
    )
    assert writer.info["planner"] == "mimose"


def test_the_reference_is_the_baseline_without_a_limit():
    def run(planner, budget=None, outcome="done", label="measured on cpu"):
        return SimpleNamespace(
            planner=planner, budget_bytes=budget, info={"outcome": outcome}, time_label=label
        )

    mimose, elsewhere = run("mimose", 5), run("baseline", label="measured on cuda")
    assert comparing.reference_of([mimose, elsewhere]) is mimose
    failed, limited, free = run("baseline", 5, "oom"), run("baseline", 9), run("baseline")
    assert comparing.reference_of([mimose, failed, limited, free]) is free
    assert comparing.reference_of([mimose, failed, limited]) is limited
    assert comparing.reference_of([mimose, failed]) is failed
