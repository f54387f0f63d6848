"""The menus of planner auto in words."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from mimose.menu import BlockGraph, Operator
from mimose.plan import Plan, Region, Remade
from mimose.planners.auto.fits import Inside
from mimose.solvers.menu import candidates
from mimose_bench import cli
from mimose_bench.experiments import menus, planning
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.planning import plan_sizes
from mimose_bench.experiments.value_names import in_words


def graph(*operators, uses):
    return BlockGraph(tuple(Operator(*op) for op in operators), uses)


def test_names_tell_values_of_one_kind_apart():
    named = in_words(
        graph(
            ("addmm", (), (0,), True),
            ("softmax", (0,), (1,), True),
            ("dropout_mask", (1,), (2,), False),
            ("dropout", (1, 2), (3,), True),
            ("addmm", (3,), (4,), True),
            ("dropout_mask", (4,), (5,), False),
            ("dropout", (4, 5), (6,), True),
            ("dropout", (4, 5), (7,), True),
            ("native_layer_norm", (6,), (8, 9, 10), True),
            ("some_op", (8,), (11, 12), True),
            uses=(1, 3, 6, 8),
        )
    )
    assert named == (
        "linear 1",
        "softmax",
        "dropout's mask after softmax",
        "dropout after softmax",
        "linear 2",
        "dropout's mask after linear 2",
        "dropout after linear 2",
        "dropout 3",
        "layer norm",
        "layer norm's mean",
        "layer norm's deviation",
        "some op",
        "some op, output 2",
    )


@pytest.fixture
def forecast(bert_block):
    """What a step of four blocks takes, the first three of them alike and known."""
    traced = bert_block(4, 256)
    fit = SimpleNamespace(graph=traced.graph, candidates=candidates(traced.graph, [traced]))
    inside = Inside(fit, np.array(traced.bytes, float), np.array(traced.seconds))
    saved = sum(traced.bytes[v] for v in traced.graph.saved - traced.graph.fixed)
    seconds = (sum(traced.seconds),) * 4
    profile = SimpleNamespace(
        activation=(saved,) * 4, forward_seconds=seconds, freed=(0,) * 4, num_blocks=4
    )
    return SimpleNamespace(profile=profile, inside=dict.fromkeys(range(3), inside))


def test_a_menu_goes_from_keeping_all_to_recomputing(forecast):
    (menu,) = menus.menus_of((4, 256), forecast)
    assert menu.blocks == (0, 1, 2)
    first, *between, last = menu.entries
    assert (first.drops, first.freed_bytes) == ((menus.KEEPS,), 0)
    assert (last.drops, last.freed_bytes) == ((menus.RECOMPUTES,), menu.saved_bytes)
    assert [e.seconds for e in menu.entries] == sorted(e.seconds for e in menu.entries)
    assert ("GELU",) in [e.drops for e in between]
    text = menus.describe_menus([menu], {(4, 256): "256"}, "tokens")
    assert "menu of blocks 0-2 for 4 x 256 tokens" in text
    assert "% " in text


def test_what_may_go_to_the_host_stands_beside_what_is_dropped(forecast):
    (menu,) = menus.menus_of((4, 256), forecast, bandwidth=12e9)
    first, *_, last = menu.entries
    assert first.drops == (menus.KEEPS,)
    assert first.offloaded
    assert last.offloaded == ()
    for entry in menu.entries:
        assert not set(entry.drops) & set(entry.offloaded)
        seconds = entry.offloaded_bytes / 12e9
        assert seconds < menu.forward_seconds
    text = menus.describe_menus([menu], {(4, 256): "256"}, "tokens")
    assert f"to the host {', '.join(first.offloaded)}" in text
    assert menus.KEEPS not in text  # It is no keeping all where something leaves.
    forecast.inside = {3: forecast.inside[0]}
    (menu,) = menus.menus_of((4, 256), forecast, bandwidth=12e9)
    assert not any(entry.offloaded for entry in menu.entries)  # The last block sends nothing.
    assert "to the host" not in menus.describe_menus([menu], {(4, 256): "256"}, "tokens")


def test_a_plan_is_told_block_by_block(forecast):
    (menu,) = menus.menus_of((4, 256), forecast)
    entry = menu.entries[2]
    gelu = menu.names.index("GELU")
    remade = (Remade(1, entry.values), Remade(2, (0,), (gelu,)), Remade(3, (0,)))
    plan = Plan(5, (Region(0, 0),), (), remade)
    (_, first), (_, second), *others = menus.told(plan, [menu])
    assert first == menus.RECOMPUTES
    assert second.startswith(", ".join(entry.drops) + " (")
    assert second.endswith(" % of its forward)")
    assert others == [
        ("block 2", "linear 1; to the host GELU"),
        ("block 3", menus.UNKNOWN),
        ("block 4", menus.KEEPS),
    ]


def test_the_verb_plan_shows_menus_and_what_is_chosen(monkeypatch):
    config = RunConfig(
        planner="auto",
        budget=37 << 20,
        scale="tiny",
        data="synthetic",
        device="sim:v100",
        threads=1,
    )
    measured = plan_sizes(config, ["40", "128"])
    monkeypatch.setattr(planning, "plan_sizes", lambda *_: measured)
    given = ["plan", "--planner", "auto", "--budget", "37MB", "--lengths", "40,128"]
    result = CliRunner().invoke(cli.app, given)
    assert result.exit_code == 0, result.output
    assert "menu of blocks 0-3 for 4 x 128 tokens" in result.stdout
    assert "GELU" in result.stdout.partition("chosen for 4 x 128 tokens:\n")[2]
    found = json.loads(CliRunner().invoke(cli.app, [*given, "--json"]).stdout)
    assert [menu["size"] for menu in found["menus"]] == [[4, 40], [4, 128]]
    assert "GELU" in str(found["plans"][1]["chosen"])
