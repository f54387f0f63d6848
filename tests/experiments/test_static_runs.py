"""Runs of planners that plan once: profile, plan, kept plans, refusals and interruption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mimose.plan import Plan
from mimose.planners import PLANNERS
from mimose.planners.static import Static
from mimose_bench.experiments import planning
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.reading import find_runs, load_run
from mimose_bench.experiments.run import run
from mimose_bench.experiments.tables import show

MIB = 1 << 20


class FirstBlocks(Static):
    """Recomputes as many of the first blocks as it takes."""

    name = "first-blocks"

    def __init__(self, *, margin=None, every=None):
        super().__init__(margin=margin)
        self.every = every

    def solve(self, costs, progress=None):
        if progress is not None:
            progress("looking at every number of blocks")
        count = costs.num_blocks
        plans = [Plan.recompute_each(count, range(n)) for n in range(count + 1)]
        return costs.choose(plans)


@pytest.fixture(autouse=True)
def planner(monkeypatch):
    monkeypatch.setitem(PLANNERS, "first-blocks", FirstBlocks)


def tiny(out: Path, **options: object) -> RunConfig:
    settings: dict[str, object] = {
        "scale": "tiny",
        "data": "synthetic",
        "planner": "first-blocks",
        "budget": 13 * MIB,
        "steps": 5,
        "out": out,
    }
    return RunConfig(**{**settings, **options})  # type: ignore[arg-type]


def folder_of(result) -> Path:
    return Path(result.info["summary"]["run_dir"])


def test_the_plan_is_made_before_the_loop_and_recorded(tmp_path):
    result = run(tiny(tmp_path), quiet=True)
    assert result.exit_code == 0
    found = load_run(folder_of(result))
    solution, profile = found.info["solution"], found.info["profile"]
    assert solution["reused_from"] is None
    assert solution["size"] == profile["size"] == [4, 128]
    assert set(found.steps["plan"]) == {solution["text"]}
    assert 0 < found.steps["num_recomputed"].iloc[0] < 4
    assert profile["passes"] == 4
    assert profile["peak_allocated_bytes"] <= profile["peak_reserved_bytes"] <= 13 * MIB
    assert found.info["margin_bytes"] > 0
    log = (found.directory / "log.txt").read_text()
    assert "profiling a batch of 4 x 128 tokens" in log
    assert "looking at every number of blocks" in log
    shown = show(found, 0)
    assert solution["text"] in shown
    assert "of the time without recomputation" in shown


def test_losses_are_those_of_a_run_without_a_profile(tmp_path):
    planned = load_run(folder_of(run(tiny(tmp_path), quiet=True)))
    plain = load_run(folder_of(run(tiny(tmp_path, planner="baseline", budget=None), quiet=True)))
    assert list(planned.steps["loss"]) == list(plain.steps["loss"])
    # The largest batch of this stream is smaller than the profiled one.
    assert planned.steps["sequence_length"].max() < 128
    profiled = planned.info["profile"]["peak_allocated_bytes"]
    assert planned.summary["peak_allocated_bytes"] < profiled


def test_a_plan_is_reused_by_an_equal_run_only(tmp_path):
    first = run(tiny(tmp_path), quiet=True)
    again = run(tiny(tmp_path, steps=3), quiet=True)
    solution = again.info["solution"]
    assert solution["reused_from"] == folder_of(first).name
    assert again.info["profile"] is None
    assert solution["plan"] == first.info["solution"]["plan"]
    assert "reused" in (folder_of(again) / "log.txt").read_text()
    losses = [list(load_run(folder_of(r)).steps["loss"][:3]) for r in (first, again)]
    assert losses[0] == losses[1]
    assert f"reused from {folder_of(first).name}" in show(load_run(folder_of(again)), 0)
    for change in (
        {"budget": 14 * MIB},
        {"zero_grad": "free"},
        {"margin": 0},
        {"plan_size": "100"},
        {"attention": "sdpa"},
        {"fresh_plan": True},
    ):
        other = run(tiny(tmp_path, steps=1, **change), quiet=True)
        assert other.info["solution"]["reused_from"] is None, change


def test_a_reused_plan_is_kept_with_its_new_run_too(tmp_path):
    first = run(tiny(tmp_path, steps=1), quiet=True)
    second = run(tiny(tmp_path, steps=1), quiet=True)
    (folder_of(first) / "plans.json").unlink()
    third = run(tiny(tmp_path, steps=1), quiet=True)
    assert third.info["solution"]["reused_from"] == folder_of(second).name


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema_version": 1, "plans": [3]}', '{"plans": {}}']
)
def test_a_damaged_store_is_named_and_passed_over(tmp_path, text):
    first = run(tiny(tmp_path, steps=1), quiet=True)
    path = folder_of(first) / "plans.json"
    path.write_text(text)
    again = run(tiny(tmp_path, steps=1), quiet=True)
    assert again.info["solution"]["reused_from"] is None
    assert f"{path} was passed over: " in (folder_of(again) / "log.txt").read_text()


def test_a_damaged_solution_is_passed_over_too(tmp_path):
    first = run(tiny(tmp_path, steps=1), quiet=True)
    path = folder_of(first) / "plans.json"
    data = json.loads(path.read_text())
    data["plans"][0]["solution"]["plan"] = "keep"
    path.write_text(json.dumps(data))
    again = run(tiny(tmp_path, steps=1), quiet=True)
    assert again.info["solution"]["reused_from"] is None
    assert "was passed over" in (folder_of(again) / "log.txt").read_text()


def test_a_plan_of_another_version_of_the_store_means_nothing(tmp_path):
    first = run(tiny(tmp_path, steps=1), quiet=True)
    path = folder_of(first) / "plans.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 0}))
    assert run(tiny(tmp_path, steps=1), quiet=True).info["solution"]["reused_from"] is None


# -- what does not fit


def test_a_profile_that_does_not_fit_ends_the_run(tmp_path):
    result = run(tiny(tmp_path, budget=8 * MIB), quiet=True)
    assert result.exit_code == 3
    info = load_run(folder_of(result)).info
    assert info["outcome"] == "infeasible"
    assert "ran out of memory when it was profiled" in info["error"] == result.message
    assert f"({info['least_budget_bytes']} bytes)" in info["error"]
    assert info["least_budget_bytes"] > 8 * MIB
    assert info["summary"]["num_steps"] == 0
    assert "infeasible" in show(load_run(folder_of(result)), 4)
    again = run(tiny(tmp_path, budget=info["least_budget_bytes"], margin=0), quiet=True)
    assert again.exit_code == 0, again.message


def test_a_budget_below_every_plan_names_the_least(tmp_path):
    # Enough for the profile, in which there is no optimizer state yet.
    small = run(tiny(tmp_path, budget=8 * MIB), quiet=True).info["least_budget_bytes"]
    result = run(tiny(tmp_path, budget=small - MIB), quiet=True)
    assert result.exit_code == 3
    assert result.info["outcome"] == "infeasible"
    assert result.info["least_budget_bytes"] > small - MIB
    assert "give" in str(result.message)


def test_a_smaller_size_to_plan_for_may_fit(tmp_path):
    result = run(tiny(tmp_path, plan_size="64", budget=10 * MIB, steps=2), quiet=True)
    assert result.info["solution"]["size"] == [4, 64]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"planner": "mimose", "plan_size": "64"}, "--plan-size is for planners that plan once"),
        ({"planner": "baseline", "fresh_plan": True}, "--fresh-plan is for planners that plan"),
        ({"planner": "baseline", "margin": 1}, "--margin is no option of planner baseline, which"),
        ({"planner": "mimose", "every": 2}, "--every is no option of planner mimose, which takes"),
        ({"plan_size": "much"}, "--plan-size much: "),
        ({"plan_size": "4096"}, "--plan-size 4096: "),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(tmp_path, options, expected):
    with pytest.raises(ValueError, match=expected) as error:
        run(tiny(tmp_path, **options), quiet=True)
    assert "\n" not in str(error.value)


# -- interruption


def test_an_interrupted_solve_leaves_a_readable_run(tmp_path, monkeypatch):
    def interrupt(self, costs, progress=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(FirstBlocks, "solve", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(tmp_path), quiet=True)
    (folder,) = find_runs(tmp_path)
    found = load_run(folder)
    assert found.info["outcome"] == "interrupted"
    assert found.summary["num_steps"] == 0
    assert "interrupted" in show(found, 3)


# -- on a simulated device, and the verb plan


def test_a_simulated_run_predicts_its_peak(tmp_path):
    config = tiny(tmp_path, device="sim:v100", budget=40 * MIB, lengths="expected", steps=None)
    result = run(config, quiet=True)
    found = load_run(folder_of(result))
    assert result.exit_code == 0, result.message
    assert found.info["profile"]["passes"] == 1
    planned = found.steps[found.steps["sequence_length"] == 128].iloc[-1]
    assert planned["predicted_peak_bytes"] == pytest.approx(
        planned["peak_allocated_bytes"], rel=0.02
    )
    again = load_run(folder_of(run(config, quiet=True)))
    kept = again.steps[again.steps["sequence_length"] == 128].iloc[-1]
    assert kept["predicted_peak_bytes"] == found.info["solution"]["predicted_peak_bytes"]


def test_plan_profiles_and_says_what_it_found(tmp_path):
    answers, facts = planning.plan_sizes(tiny(tmp_path), ["64", "128"])
    assert [answer.size for answer in answers] == [(4, 64), (4, 128)]
    assert answers[0].plan == answers[1].plan == facts["solution"]["text"]
    assert answers[0].predicted_peak_bytes is None
    assert answers[1].predicted_peak_bytes > 0
    assert facts["profile"]["size"] == [4, 128]
    (answer,), _ = planning.plan_sizes(tiny(tmp_path), [])
    assert answer.size == (4, 128)
    assert not list(tmp_path.iterdir())


def test_plan_without_sizes_is_for_planners_that_plan_once(tmp_path):
    with pytest.raises(ValueError, match="--lengths"):
        planning.plan_sizes(tiny(tmp_path, planner="mimose"), [])
