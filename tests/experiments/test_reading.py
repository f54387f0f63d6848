import json

import pyarrow.parquet as pq
import pytest

from mimose_bench.experiments.reading import find_runs, load_run, open_run
from mimose_bench.experiments.records import RunWriter


@pytest.fixture
def killed(tmp_path):
    """A run of three parts that never ended."""
    writer = RunWriter.create(tmp_path, task="qa-bert", planner="p", budget="none", device="cpu")
    for step in range(3):
        writer.add({"rank": 0, "step": step, "outcome": "ok", "step_seconds": 1.0})
        writer.flush()
    return writer.directory


def edit(folder, **changes):
    file = folder / "run.json"
    info = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in info.items() if v is not None}))


def test_a_part_cut_short_is_named_and_passed_over(killed):
    part = killed / "steps.parts" / "000001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    run = load_run(killed)
    assert list(run.steps["step"]) == [0, 2]
    assert [str(part) in warning for warning in run.warnings] == [True]


def test_foreign_files_among_the_parts_are_named_and_passed_over(killed):
    (killed / "steps.parts" / "notes.txt").write_text("hello")
    (killed / "steps.parts" / "empty.parquet").write_bytes(b"")
    (killed / "steps.parts" / ".tmp-000003.parquet").write_bytes(b"half")
    run = load_run(killed)
    assert len(run.steps) == 3
    assert len(run.warnings) == 2


def test_a_damaged_table_falls_back_on_its_parts(killed):
    (killed / "steps.parquet").write_bytes(b"PAR1")
    run = load_run(killed)
    assert len(run.steps) == 3
    assert "its parts are read instead" in run.warnings[0]


def test_a_damaged_table_without_parts_is_one_sentence(killed):
    for part in (killed / "steps.parts").iterdir():
        part.unlink()
    (killed / "steps.parts").rmdir()
    (killed / "steps.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"steps.parquet cannot be read"):
        _ = load_run(killed).steps


def test_a_run_without_a_step_is_empty(tmp_path):
    writer = RunWriter.create(tmp_path, task="t", planner="p", budget="none", device="cpu")
    run = load_run(writer.directory)
    assert len(run.steps) == 0
    assert run.summary["num_steps"] == 0
    assert run.summary["median_step_seconds"] is None


def test_an_older_schema_is_read_with_a_warning(killed):
    edit(killed, schema_version=0)
    run = load_run(killed)
    assert "older schema version 0" in run.warnings[0]


def test_a_run_from_before_there_were_weights_counts_as_sampled(killed):
    edit(killed, schema_version=1)
    for part in (killed / "steps.parts").iterdir():
        pq.write_table(pq.read_table(part).drop_columns(["weight"]), part)
    run = load_run(killed)
    assert run.steps["weight"].isna().all()
    assert run.summary["lengths"] == "sampled"
    assert run.summary["mean_step_seconds"] == 1.0
    assert run.time_label == run.device_label
    assert len(run.steps) == 3


def test_a_newer_schema_is_refused(killed):
    edit(killed, schema_version=99)
    with pytest.raises(ValueError, match="update mimose-bench"):
        load_run(killed)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is damaged"),
        ("[]", "is not the record of a run"),
        ('{"a": 1}', "is not the record of a run"),
    ],
)
def test_a_damaged_run_json_is_one_sentence(killed, text, sentence):
    (killed / "run.json").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load_run(killed)


def test_what_is_no_run_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run\.json"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        load_run(tmp_path / "away")


def test_a_run_is_found_by_path_name_and_latest(killed, monkeypatch):
    root = killed.parent
    assert open_run(str(killed), "nowhere").directory == killed
    assert open_run(str(killed / "run.json"), "nowhere").directory == killed
    assert open_run(killed.name, root).directory == killed
    assert open_run("latest", root).directory == killed
    with pytest.raises(ValueError, match="did you mean 'qa-bert-p-none"):
        open_run(killed.name[:-2], root)
    with pytest.raises(ValueError, match="no run in"):
        open_run("latest", root / "away")
    assert find_runs(root / "away") == []


def test_a_table_that_is_gone_is_named_though_the_summary_is_left(killed):
    edit(killed, outcome="done", summary={"num_steps": 3})
    for part in (killed / "steps.parts").iterdir():
        part.unlink()
    run = load_run(killed)
    assert len(run.steps) == 0
    assert ["steps.parquet is missing" in warning for warning in run.warnings] == [True]
