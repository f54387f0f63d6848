import pytest

from mimose_bench.experiments.files import write_json
from mimose_bench.experiments.gathering import gather
from mimose_bench.experiments.records import RunWriter


def make_run(parent, outcome="done"):
    writer = RunWriter.create(parent, task="t", planner="p", budget="none", device="cpu")
    writer.add({"rank": 0, "step": 0, "outcome": "ok", "step_seconds": 1.0})
    writer.finish(outcome)
    return writer.directory


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def test_a_folder_stands_for_its_runs_but_those_that_failed(results):
    done = make_run(results)
    failed = make_run(results, "failed")
    assert [run.directory for run in gather([], results).runs] == [done]
    assert [run.directory for run in gather([str(results)], results).runs] == [done]
    # Whoever names one that failed wants to see it.
    assert [run.directory for run in gather([failed.name], results).runs] == [failed]


def test_only_failed_runs_are_better_than_none(results):
    failed = make_run(results, "failed")
    assert [run.directory for run in gather([], results).runs] == [failed]


def test_what_belongs_beside_runs_is_not_complained_of(results):
    make_run(results)
    make_run(results / "sweep")
    (results / "sweep" / "sweep.json").write_text("{}")
    (results / "sweep" / ".sweep").mkdir()
    (results / "sweep" / "unfinished").mkdir()
    (results / "reproduced").mkdir()
    (results / ".gitignore").write_text("*")
    assert gather([], results).problems == []
    found = gather([str(results / "sweep")], results)
    assert (len(found.runs), found.problems) == (1, [])


def test_a_name_that_stands_for_nothing_is_an_error_and_a_broken_run_is_passed_over(results):
    run, broken = make_run(results), make_run(results)
    (broken / "run.json").write_text("{")
    with pytest.raises(ValueError, match="no run called 'nothing-like-it'"):
        gather([run.name, "nothing-like-it"], results)
    found = gather([run.name, broken.name], results)
    assert [each.directory for each in found.runs] == [run]
    assert "is damaged" in found.problems[0]
    with pytest.raises(ValueError, match=r"nothing here can be drawn: .* is damaged"):
        gather([broken.name], results)


def test_reproduced_values_are_told_from_runs(results):
    values = results / "values"
    values.mkdir(parents=True)
    write_json(values / "x.json", {"schema_version": 2, "name": "x", "error": "because"})
    found = gather([str(values)], results)
    assert [(folder, outcome.name) for folder, outcome in found.outcomes] == [(values, "x")]


def test_an_empty_folder_is_said(results):
    results.mkdir()
    with pytest.raises(ValueError, match="there is no run in"):
        gather([], results)
    with pytest.raises(ValueError, match="holds no run"):
        gather([str(results)], results)
