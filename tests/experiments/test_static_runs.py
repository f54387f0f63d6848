"""Runs of planners that plan once: profile, plan, kept plans, refusals and interruption."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from mimose.handle import attach
from mimose.plan import Plan
from mimose.planners import PLANNERS
from mimose.planners.static import Solution, Static
from mimose_bench.experiments import plan_store, planning, profiling, stopping
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.reading import find_runs, load_run
from mimose_bench.experiments.run import opened, run, task_of
from mimose_bench.experiments.tables import show

MIB = 1 << 20


class FirstBlocks(Static):
    """Recomputes as many of the first blocks as it takes, or ``least``."""

    name = "first-blocks"

    def __init__(self, *, margin=None, least=0):
        super().__init__(margin=margin)
        self.least = int(least)

    def solve(self, costs, progress=None):
        if progress is not None:
            progress("looking at every number of blocks")
        count = costs.num_blocks
        plans = [Plan.recompute_each(count, range(n)) for n in range(self.least, count + 1)]
        return costs.choose(plans)


@pytest.fixture(autouse=True)
def planner():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLANNERS, "first-blocks", FirstBlocks)
        patch.setattr(profiling, "SAID_SECONDS", 0.0)
        # A file that is saved meanwhile must not fail a test.
        patch.setattr(plan_store, "_code", lambda planner: "this")
        yield


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


def test_a_plan_is_reused_by_an_equal_run(tmp_path):
    first = run(tiny(tmp_path, steps=3), quiet=True)
    again = run(tiny(tmp_path, steps=3), quiet=True)
    solution = again.info["solution"]
    assert solution["reused_from"] == folder_of(first).name
    assert again.info["profile"] is None
    assert solution["plan"] == first.info["solution"]["plan"]
    assert "reused" in (folder_of(again) / "log.txt").read_text()
    assert f"reused from {folder_of(first).name}" in show(load_run(folder_of(again)), 0)
    # The profile has left no trace in the figures of the steps.
    columns = ["loss", "peak_allocated_bytes", "peak_reserved_bytes", "plan"]
    steps = [load_run(folder_of(r)).steps[columns] for r in (first, again)]
    pd.testing.assert_frame_equal(*steps)
    # It is kept with its new run, too.
    (folder_of(first) / "plans.json").unlink()
    third = run(tiny(tmp_path, steps=1), quiet=True)
    assert third.info["solution"]["reused_from"] == folder_of(again).name


KEY = {"size": [4, 128]}
SOLUTION = Solution(Plan.keep_all(4), (4, 128), 5, 6, 1.0, 1.0, 4)


def stored(tmp_path, name="run", retried=0, **changes) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    plan_store.keep(folder, KEY, replace(SOLUTION, **changes), retried=retried)
    return folder


def test_a_stored_solution_is_found_by_its_key(tmp_path):
    folder = stored(tmp_path)
    found, problems = plan_store.find(tmp_path, KEY)
    assert found is not None
    assert (found.solution, found.folder, problems) == (SOLUTION, folder, [])
    assert plan_store.find(tmp_path, {"size": [4, 127]}) == (None, [])
    assert plan_store.find(tmp_path, KEY, own=folder) == (None, [])
    assert plan_store.find(tmp_path / "nowhere", KEY) == (None, [])


def test_the_best_of_an_interrupted_solve_is_for_its_own_run_only(tmp_path):
    stored(tmp_path, details={"interrupted": True})
    assert plan_store.find(tmp_path, KEY) == (None, [])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema_version": 1, "plans": [3]}',
        '{"plans": {}}',
        '{"schema_version": 1, "plans": [{"key": {"size": [4, 128]}, "solution": {"plan": 1}}]}',
        "[" * 100_000,
        '{"schema_version": Infinity, "plans": []}',
    ],
)
def test_a_damaged_store_is_named_and_passed_over(tmp_path, text):
    path = stored(tmp_path) / "plans.json"
    path.write_text(text)
    found, (problem,) = plan_store.find(tmp_path, KEY)
    assert found is None
    assert problem.startswith(f"{path} was passed over: ")
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"need_bytes": 6', '"need_bytes": Infinity'),
        ('"need_bytes": 6', '"need_bytes": 1e999'),
        ('"solve_seconds": 0.0', '"solve_seconds": 1e999'),
        ('"details": {}', '"details": [["a", 1]]'),
        ('"regions": []', '"regions": 7'),
        ('"regions": []', '"regions": [{"first": 0, "last": 9}]'),
        ('"num_blocks": 4', '"num_blocks": 1e999'),
    ],
)
def test_a_damaged_solution_is_named_and_passed_over(tmp_path, old, new):
    path = stored(tmp_path) / "plans.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    found, (problem,) = plan_store.find(tmp_path, KEY)
    assert found is None
    assert problem.startswith(f"{path} was passed over: ")


def test_a_plan_for_other_blocks_is_named_and_made_anew(tmp_path):
    path = folder_of(run(tiny(tmp_path, steps=1), quiet=True)) / "plans.json"
    data = json.loads(path.read_text())
    data["plans"][0]["solution"]["plan"] = {"num_blocks": 7, "regions": []}
    path.write_text(json.dumps(data))
    again = run(tiny(tmp_path, steps=1), quiet=True)
    assert again.exit_code == 0
    assert again.info["solution"]["reused_from"] is None
    assert "it is for 7 blocks, and the model has 4" in (folder_of(again) / "log.txt").read_text()


def failing(monkeypatch, *numbers: int) -> None:
    """Let the planner hear that steps of these numbers ran out of memory and were repeated."""
    taken = itertools.count()
    train = Trainer.train

    def out_of_memory(self, batch, tensors):
        record, loss = train(self, batch, tensors)
        if next(taken) in numbers:
            record.outcome = "retried"
            self.handle.planner.observe(record)
        return record, loss

    monkeypatch.setattr(Trainer, "train", out_of_memory)


def test_a_plan_made_anew_is_kept_and_said(tmp_path, monkeypatch):
    failing(monkeypatch, 1, 2, 3, 4)
    result = run(tiny(tmp_path, steps=6, budget=18 * MIB), quiet=True)
    solution = result.info["solution"]
    assert solution["details"]["replans"] == 4
    assert solution["first_plan"] != solution["text"]
    found = load_run(folder_of(result))
    assert found.steps["plan"].iloc[0] == solution["first_plan"]
    assert found.steps["plan"].iloc[5] == solution["text"]
    assert (
        f"made anew with more of a margin: {solution['text']}"
        in (found.directory / "log.txt").read_text()
    )
    (entry,) = json.loads((found.directory / "plans.json").read_text())["plans"]
    assert entry["retried"] == 0
    assert entry["solution"]["plan"] == solution["plan"]
    assert f"at first {solution['first_plan']}" in show(found, 0)


def test_a_reused_plan_that_failed_is_not_handed_on(tmp_path, monkeypatch):
    run(tiny(tmp_path, steps=1), quiet=True)
    with monkeypatch.context() as patch:
        failing(patch, 0)
        second = run(tiny(tmp_path, steps=1), quiet=True)
    assert second.info["solution"]["reused_from"] is not None
    third = run(tiny(tmp_path, steps=1), quiet=True)
    assert third.info["solution"]["reused_from"] is None
    said = f"the plan of {folder_of(second).name} is not reused, since steps ran out of memory"
    assert said in (folder_of(third) / "log.txt").read_text()
    fourth = run(tiny(tmp_path, steps=1), quiet=True)
    assert fourth.info["solution"]["reused_from"] == folder_of(third).name


def test_a_plan_of_another_version_of_the_store_means_nothing(tmp_path):
    path = stored(tmp_path) / "plans.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 0}))
    assert plan_store.find(tmp_path, KEY) == (None, [])


def test_the_key_says_what_a_plan_depends_on(tmp_path):
    def key(size=(4, 128), **options):
        config = tiny(tmp_path, **options)
        task = task_of(config)
        with opened(config) as device:
            model = device.build(task.build_model)
            device.adopt(model)
            with attach(model, config.budget, "baseline", device=device) as handle:
                return plan_store.key_of(config, task, handle, size)

    base = key()
    assert base == json.loads(json.dumps(base))
    assert key(steps=9, lr=0.5, seed=7, on_oom="skip") == base
    for change in (
        {"budget": 14 * MIB},
        {"zero_grad": "free"},
        {"margin": 0},
        {"size": (4, 100)},
        {"attention": "sdpa"},
        {"optimizer": "sgd"},
        {"precision": "bf16"},
        {"task": "tc-bert"},
        {"planner": "baseline"},
        {"device": "sim:v100"},
    ):
        assert key(**change) != base, change


# -- what does not fit


def test_a_profile_beyond_the_budget_is_taken_without_the_limit(tmp_path, monkeypatch):
    measure, limits = Trainer.measure, []

    def measured(self, batch):
        limits.append(len(limits) % 2)
        if not limits[-1]:
            raise torch.OutOfMemoryError("not within the budget")
        return measure(self, batch)

    monkeypatch.setattr(Trainer, "measure", measured)
    result = run(tiny(tmp_path), quiet=True)
    assert result.exit_code == 0, result.message
    found = load_run(folder_of(result))
    profile = found.info["profile"]
    assert profile["over_budget"] is True
    assert found.summary["peak_reserved_bytes"] <= 13 * MIB
    assert (
        "more than the budget, and was taken without the limit"
        in (found.directory / "log.txt").read_text()
    )
    assert "without the limit" in show(found, 0)
    _, facts = planning.plan_sizes(tiny(tmp_path), [])
    assert facts["profile"]["over_budget"]


def test_the_planner_itself_names_the_least_budget(tmp_path):
    result = run(tiny(tmp_path, budget=6 * MIB), quiet=True)
    assert result.exit_code == 3
    found = load_run(folder_of(result))
    info = found.info
    assert info["outcome"] == "infeasible"
    assert info["error"] == result.message
    assert "a batch of 4 x 128 tokens, for which planner first-blocks plans, needs" in info["error"]
    assert f"({info['least_budget_bytes']} bytes)" in info["error"]
    assert info["least_budget_bytes"] > 6 * MIB
    assert info["profile"]["over_budget"] is True
    assert info["profile"]["peak_reserved_bytes"] > 6 * MIB
    assert info["solution"] is None
    assert info["summary"]["num_steps"] == 0
    shown = show(found, 4)
    assert "infeasible" in shown
    assert "least budget" in shown
    again = run(tiny(tmp_path, budget=info["least_budget_bytes"], margin=0), quiet=True)
    assert again.exit_code == 0, again.message


def test_a_device_too_small_for_the_profile_ends_the_run(tmp_path, monkeypatch):
    def measure(self, batch):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(Trainer, "measure", measure)
    result = run(tiny(tmp_path), quiet=True)
    assert (result.exit_code, result.info["outcome"]) == (3, "oom")
    assert "when it was profiled, even without the limit: give a smaller" in str(result.message)
    assert result.info["least_budget_bytes"] is None


def test_a_budget_below_every_plan_names_the_least(tmp_path):
    # Enough for the profile, in which there is no optimizer state yet.
    result = run(tiny(tmp_path, budget=8 * MIB), quiet=True)
    assert result.exit_code == 3
    assert result.info["outcome"] == "infeasible"
    assert result.info["least_budget_bytes"] > 8 * MIB
    assert "give a larger budget" in str(result.message)
    assert result.info["solution"] is None


def test_skip_goes_on_where_no_profile_is_needed(tmp_path, monkeypatch):
    config = tiny(tmp_path, budget=7 * MIB, on_oom="skip", seed=1, steps=4)
    assert run(config, quiet=True).exit_code == 3
    monkeypatch.setattr(FirstBlocks, "unprofiled", lambda self: Plan.recompute_each(4))
    result = run(config, quiet=True)
    assert result.exit_code == 0
    assert result.info["summary"]["num_steps"] == 4
    assert "goes on without a plan" in (folder_of(result) / "log.txt").read_text()


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


def test_a_solve_that_gives_its_best_goes_on_unless_the_job_is_ended(tmp_path, monkeypatch):
    ended = []

    def best_so_far(self, costs, progress=None):
        stopping._asked = bool(ended)
        return costs.solution(
            Plan.recompute_each(4), least_budget_bytes=1, **{plan_store.INTERRUPTED: True}
        )

    monkeypatch.setattr(FirstBlocks, "solve", best_so_far)
    result = run(tiny(tmp_path, steps=1), quiet=True)
    assert result.exit_code == 0
    assert "interrupted: the run goes on" in (folder_of(result) / "log.txt").read_text()
    monkeypatch.setattr(stopping, "_asked", False)
    ended.append(True)  # SIGTERM comes during the solve.
    with pytest.raises(KeyboardInterrupt):
        run(tiny(tmp_path, steps=1), quiet=True)
    newest = find_runs(tmp_path)[0]
    assert load_run(newest).info["outcome"] == "interrupted"
    assert (newest / "plans.json").exists()


def test_a_profile_ends_after_the_pass_in_which_the_job_is_ended(tmp_path, monkeypatch):
    passes = []
    gradients = Trainer._gradients

    def ended(self, tensors):
        passes.append(1)
        monkeypatch.setattr(stopping, "_asked", True)  # And a callback has swallowed the error.
        return gradients(self, tensors)

    monkeypatch.setattr(Trainer, "_gradients", ended)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(tmp_path), quiet=True)
    assert len(passes) == 1
    assert load_run(find_runs(tmp_path)[0]).info["outcome"] == "interrupted"


# -- on a simulated device, and the verb plan


def test_a_simulated_run_predicts_its_peak_and_counts_its_flops(tmp_path):
    # The first step, which makes optimizer state, predicts with it and is left out.
    size = max(list(task_of(tiny(tmp_path)).sizes(5))[1:])
    config = tiny(
        tmp_path,
        plan_size=str(size[1]),
        device="sim:v100",
        budget=60 * MIB,
        planner_options={"least": "2"},
    )
    result = run(config, quiet=True)
    assert result.exit_code == 0, result.message
    found = load_run(folder_of(result))
    assert found.info["profile"]["passes"] == 1
    steps = found.steps
    assert set(steps["plan"]) == {"recompute each 0-1 | keep 2-3"}
    planned = steps[steps["sequence_length"] == size[1]].iloc[-1]
    assert planned["predicted_peak_bytes"] == pytest.approx(
        planned["peak_allocated_bytes"], rel=0.02
    )
    assert (steps["hardware_flops"] > steps["model_flops"]).all()
    assert 0 < found.summary["mfu"] < found.summary["hfu"] < 1
    assert "TFLOP/s (fp32)" in show(found, 0)
    again = load_run(folder_of(run(config, quiet=True)))
    assert again.info["solution"]["reused_from"] == found.name
    kept = again.steps[again.steps["sequence_length"] == size[1]].iloc[-1]
    assert kept["predicted_peak_bytes"] == found.info["solution"]["predicted_peak_bytes"]
    same = ["peak_allocated_bytes", "model_flops", "hardware_flops"]
    pd.testing.assert_frame_equal(again.steps[same], steps[same])


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
