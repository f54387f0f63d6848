import dataclasses
import json
import re

import pytest

from mimose_bench import cli
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.files import jsonable
from mimose_bench.experiments.sweep.cells import expand
from mimose_bench.experiments.sweep.grid import read_grid
from mimose_bench.experiments.sweep.identity import arguments, changes, identity


def grid(**given):
    axes = {"tasks": ["qa-bert"], "planners": ["baseline", "full"], "devices": ["cpu"]}
    return read_grid(None, {**axes, "options": {"steps": 3}, **given})


def cells(found=lambda config: None, **given):
    return expand(grid(**given), found)


def test_planners_take_turns_within_a_budget_and_each_round_begins_with_another():
    found = cells(planners=["baseline", "full", "mimose"], budgets=["4GB", "5GB"], seeds=[1, 2])
    order = [(c.config.seed, c.budget, c.label) for c in found]
    assert order == [
        (1, "none", "baseline"),
        (1, "4GB", "full"),
        (1, "4GB", "mimose"),
        (1, "5GB", "full"),
        (1, "5GB", "mimose"),
        (2, "none", "baseline"),
        (2, "4GB", "full"),
        (2, "4GB", "mimose"),
        (2, "5GB", "full"),
        (2, "5GB", "mimose"),
    ]
    assert len({c.id for c in found}) == len(found)
    turned = cells(planners=["full", "sqrt-n", "mimose"], budgets=["4GB", "5GB", "6GB"])
    assert [c.label for c in turned][::3] == ["full", "sqrt-n", "mimose"]


def test_shares_lie_between_the_bounds_and_are_open_until_these_are_known():
    asked = []

    def bounds(config):
        asked.append((config.task, config.device))
        return 100, 200

    (_, half) = cells(bounds, budgets=["50%"])
    assert half.config.budget == 150
    assert not half.is_open
    assert asked == [("qa-bert", "cpu")]
    (_, open_cell) = cells(budgets=["50%"])
    assert open_cell.is_open
    assert open_cell.config.budget is None


def test_the_papers_budgets():
    found = cells(planners=["full"], budgets=["paper"])
    assert found
    assert all(c.config.budget % (1 << 30) == 0 for c in found)
    with pytest.raises(ValueError, match="the paper has no budgets for ic-swin"):
        cells(tasks=["ic-swin"], planners=["full"], budgets=["paper"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tasks": ["qa-brt"]}, "no task called 'qa-brt': did you mean 'qa-bert'?"),
        ({"planners": ["ful"]}, "did you mean 'full'?"),
        ({"options": {"steps": 0}}, "qa-bert under baseline: --steps must be at least 1"),
        ({"options": {"sheltered": 3}}, "--sheltered is no option of planner baseline"),
        ({"budgets": ["4GB", "4096MB"]}, "are the same run of qa-bert"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_runs(given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        cells(**given)


def test_two_names_for_one_planner_are_refused(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(
        "tasks = ['qa-bert']\nplanners = ['full', 'again']\n[planner.again]\nplanner = 'full'\n"
    )
    with pytest.raises(ValueError, match="full at none and again at none are the same run"):
        expand(read_grid(path, {}), lambda config: None)


CONFIGS = [
    RunConfig(),
    RunConfig(task="tc-bert", planner="full", every=2, budget=5 << 30, device="sim:v100"),
    RunConfig(lengths="expected", gap=0.01, planner="checkmate", time_limit=3.0, fresh_plan=True),
    RunConfig(
        planner="fixed",
        plan="keep 0-9 | recompute 10",
        enforce=False,
        lr=1e-5,
        optimizer="sgd",
        task_options={"kind": "a b"},
        planner_options={"one": "1", "two": "x=y"},
        zero_grad="free",
        foreach="on",
        on_oom="skip",
        flops="off",
        threads=2,
        batch_size=4,
        attention="sdpa",
        precision="bf16",
        scale="tiny",
        seed=7,
        steps=9,
    ),
    RunConfig(planner="delta", actions="swap", filter="lru", prefetch="off", reserve="10%"),
    RunConfig(planner="auto", offload="on"),
    RunConfig(
        planner="dtr", heuristic="lru", sampling="off", trigger="oom", allocator="expandable"
    ),
    RunConfig(planner="mimose", variant="authors", margin=5, sheltered=3, cache_step=2),
    RunConfig(planner="sqrt-n", segments=3, plan_size="384", data="/a b/c", vocab="v", weights="w"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.planner)
def test_what_is_given_on_the_command_line_comes_to_the_same_run(config):
    import typer

    run = typer.main.get_command(cli.app).commands["run"]
    context = run.make_context("run", [*arguments(config), "--out", "somewhere"])
    parsed = cli._config(context.params)
    assert dataclasses.replace(parsed, out=config.out) == config


def test_every_option_is_on_the_command_line_in_one_of_the_configurations_here():
    default = RunConfig()
    changed = {k for config in CONFIGS for k in changes(dataclasses.asdict(config))}
    names = {f.name for f in dataclasses.fields(default)} - {"out"}
    assert names <= changed


def test_a_run_is_known_by_its_record_wherever_it_lies(tmp_path):
    ids = set()
    for config in CONFIGS:
        there = dataclasses.replace(config, out=tmp_path)
        recorded = json.loads(json.dumps(jsonable(dataclasses.asdict(there))))
        assert identity(recorded) == identity(dataclasses.asdict(config))
        ids.add(identity(recorded))
    assert len(ids) == len(CONFIGS)


def test_options_that_came_later_do_not_change_what_a_run_is_known_by():
    recorded = dataclasses.asdict(CONFIGS[1])
    del recorded["prefetch"], recorded["gap"]
    assert identity(recorded) == identity(dataclasses.asdict(CONFIGS[1]))
