import json
import subprocess
import sys
import textwrap
import threading

import pyarrow.parquet as pq
import pytest

from mimose.eviction import COLUMNS, Eviction, EvictionFigures
from mimose.plan import Plan
from mimose.records import BlockSample, Collected, Situation, StepRecord
from mimose_bench.experiments import records
from mimose_bench.experiments.records import RunWriter, block_rows, find_runs, load_run, step_row
from mimose_bench.experiments.schema import BLOCKS, STEPS, to_table

DESIGN_COLUMNS = (
    "rank step phase input_size batch_size sequence_length plan num_recomputed loss outcome "
    "step_seconds forward_seconds backward_seconds optimizer_seconds collector_seconds "
    "estimator_seconds scheduler_seconds cache_hit predicted_peak_bytes peak_allocated_bytes "
    "peak_reserved_bytes fragmentation_bytes num_alloc_retries num_evictions "
    "eviction_search_seconds recompute_seconds swapped_bytes"
)


def make_record(**changes):
    sample = BlockSample(0, 0, 700, 100, 900, 300, 950, 0.01)
    around = BlockSample(1, 0, 700, 100, 900, 300, 950, 0.01, around_checkpoint=True)
    facts = {
        "size": (4, 128),
        "plan": Plan.recompute_each(12, [0, 1]),
        "phase": "sheltered",
        "situation": Situation(1000),
        "cache_hit": False,
        "collected": Collected((sample, around), 1, 2, 3, 0.2),
        "peak_allocated_bytes": 5000,
        "peak_reserved_bytes": 6000,
        "step_seconds": 1.5,
        "num_alloc_retries": 2,
    }
    return StepRecord(**(facts | changes))


def make_row(step=0, **changes):
    return step_row(
        make_record(**changes), step=step, input_size=512, sequence_length=128, loss=2.5
    )


def create(parent, **info):
    return RunWriter.create(
        parent, task="qa-bert", planner="mimose", budget="6GB", device="cpu", **info
    )


def test_the_columns_are_those_of_the_contract_in_their_order():
    more = (
        "wait_seconds weight decoder_length image_pixels model_flops hardware_flops "
        "num_rematerializations eviction_maintenance_seconds eviction_overhead_seconds "
        "swap_wait_seconds num_remade remade_bytes offloaded_bytes"
    )
    assert " ".join(STEPS.names) == f"{DESIGN_COLUMNS} {more}"
    assert " ".join(BLOCKS.names) == (
        "step input_size block activation_bytes output_bytes forward_seconds valid"
    )


def test_a_step_becomes_a_row():
    row = make_row(step=7)
    assert set(row) <= set(STEPS.names)
    assert row["plan"] == "recompute each 0-1 | keep 2-11"
    assert row["batch_size"] == 4
    assert row["fragmentation_bytes"] == 1000
    assert row["num_alloc_retries"] == 2
    assert row["cache_hit"] is False
    assert row["recompute_seconds"] is None


def test_a_step_under_a_tensor_level_policy_becomes_a_row():
    figures = EvictionFigures(num_evictions=3, num_rematerializations=2, search_seconds=0.5)
    row = make_row(plan=Eviction(system="dtr"), collected=None, extra=figures.extra())
    assert row["plan"].startswith("evict h_DTR_eq")
    assert (row["num_recomputed"], row["num_evictions"], row["num_rematerializations"]) == (0, 3, 2)
    assert row["num_remade"] == 0
    assert row["eviction_search_seconds"] == 0.5
    assert row["swap_wait_seconds"] == 0.0
    assert set(COLUMNS) <= set(row)
    assert to_table([row], STEPS).num_rows == 1


def test_a_batch_refused_before_it_started_counts_as_out_of_memory():
    row = step_row(None, step=3, input_size=512, batch_size=4)
    table = to_table([row], STEPS)
    assert table.column("outcome").to_pylist() == ["oom"]
    assert table.column("plan").to_pylist() == [None]


def test_samples_taken_around_a_checkpoint_are_not_valid():
    rows = block_rows(make_record(), step=2, input_size=512)
    assert [row["valid"] for row in rows] == [True, False]
    assert block_rows(make_record(collected=None), step=2, input_size=512) == []


def test_a_row_with_a_wrong_column_or_type_is_refused():
    with pytest.raises(ValueError, match="no column called lost"):
        to_table([{"lost": 1}], STEPS)
    with pytest.raises(ValueError, match="does not fit"):
        to_table([{"step": "one"}], STEPS)


def test_the_folder_is_there_before_the_first_step(tmp_path):
    writer = create(tmp_path, seed=3)
    assert writer.directory.name.startswith("qa-bert-mimose-6GB-cpu-")
    info = json.loads((writer.directory / "run.json").read_text())
    assert info["outcome"] == "running"
    assert info["seed"] == 3
    assert "started" in (writer.directory / "log.txt").read_text()


def test_a_finished_run_reads_back(tmp_path):
    with create(tmp_path, budget_bytes=10_000, device_label="measured on cpu") as writer:
        for step in range(5):
            record = make_record()
            writer.add(make_row(step), block_rows(record, step=step, input_size=512))
        info = writer.finish("done", summary={"peak_reserved_bytes": 9000}, extra=float("nan"))
    assert not list(writer.directory.glob("*.parts"))
    run = load_run(writer.directory)
    assert run.info == info | {"extra": None}
    assert list(run.steps["step"]) == list(range(5))
    assert len(run.blocks) == 10
    assert run.summary["num_ok"] == 5
    assert run.summary["peak_allocated_bytes"] == 5000
    assert run.summary["peak_reserved_bytes"] == 9000
    assert run.warnings == []


def test_big_integers_survive_beside_missing_ones(tmp_path):
    writer = create(tmp_path)
    big = 2**53 + 1
    writer.add(make_row(0, peak_allocated_bytes=big, predicted_peak_bytes=None))
    writer.add(make_row(1, peak_allocated_bytes=None, peak_reserved_bytes=None))
    writer.finish("done")
    assert load_run(writer.directory).steps["peak_allocated_bytes"][0] == big


def test_two_runs_at_the_same_moment_get_folders_of_their_own(tmp_path):
    made = []
    threads = [threading.Thread(target=lambda: made.append(create(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({writer.directory for writer in made}) == 8
    assert len(find_runs(tmp_path)) == 8


def test_names_from_outside_stay_in_the_folder(tmp_path):
    writer = RunWriter.create(
        tmp_path, task="t", planner="../x.y:Z", budget="6 GB", device="sim:v100"
    )
    assert writer.directory.parent == tmp_path


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write results to .*--out"):
        create(tmp_path / "file")


def test_rows_reach_the_disk_before_they_are_ten_seconds_old(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(records.time, "monotonic", lambda: clock[0])
    writer = create(tmp_path)
    parts = writer.directory / "steps.parts"

    def written():
        return sum(pq.read_metadata(p).num_rows for p in parts.glob("*")) if parts.exists() else 0

    done = 0
    for gap in [0.5] * 50 + [4.0] * 10 + [30.0] * 3:
        clock[0] += gap
        writer.add(make_row(done))
        done += 1
        # Were the next step as long as this one, nothing unwritten would turn ten seconds old.
        assert (done - written()) * gap <= 10.0
    assert written() == done
    assert len(list(parts.iterdir())) < done / 2


def test_an_error_ends_the_record_too(tmp_path):
    def interrupted(error):
        with create(tmp_path) as writer:
            writer.add(make_row())
            raise error
        return writer

    for error, outcome in [(KeyboardInterrupt(), "interrupted"), (RuntimeError("bad"), "failed")]:
        with pytest.raises(type(error)):
            interrupted(error)
        newest = max(find_runs(tmp_path), key=lambda p: (p / "run.json").stat().st_mtime_ns)
        run = load_run(newest)
        assert run.info["outcome"] == outcome
        assert len(run.steps) == 1
    assert run.info["error"] == "RuntimeError: bad"


def test_settings_that_turn_out_wrong_leave_no_folder(tmp_path):
    def wrong(steps):
        with create(tmp_path / str(steps)) as writer:
            for _ in range(steps):
                writer.add(make_row())
            writer.flush()
            raise ValueError("no such plan")

    for steps in (0, 1, 2):
        with pytest.raises(ValueError, match="no such plan"):
            wrong(steps)
    # Two steps are a run, which something has ended.
    assert [len(find_runs(tmp_path / str(steps))) for steps in (0, 1, 2)] == [0, 0, 1]
    assert list((tmp_path / "1").iterdir()) == []


def test_an_unknown_outcome_is_refused(tmp_path):
    with pytest.raises(ValueError, match="an outcome is one of"):
        create(tmp_path).finish("great")


def test_a_killed_run_keeps_what_was_flushed(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        from mimose_bench.experiments import records
        records.FLUSH_SECONDS = 0.0
        writer = records.RunWriter.create(
            sys.argv[1], task="t", planner="p", budget="none", device="cpu")
        for step in range(3):
            writer.add({"rank": 0, "step": step, "outcome": "ok", "step_seconds": 1.0})
        print("ready", flush=True)
        sys.stdin.read()
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    run = load_run(find_runs(tmp_path)[0])
    assert run.info["outcome"] == "running"
    assert list(run.steps["step"]) == [0, 1, 2]
    assert run.summary["num_ok"] == 3
