"""Checkmate's largest batch and the times of recomputed layers."""

import pytest

from mimose.solvers import checkmate
from mimose.solvers.graph import Graph, keep_everything, simulate
from mimose_bench.experiments.figures import checkmate_batches as batches
from mimose_bench.experiments.figures import layer_times
from mimose_bench.experiments.figures.layer_times import BASE, FULL, SELECTIVE

LABEL = "simulated a100-80gb"


def chain(count=5):
    """A chain forward and back; each node of the way back reads its counterpart."""
    nodes = 2 * count + 1
    edges = [(i, i + 1) for i in range(nodes - 1)] + [(i, 2 * count - i) for i in range(count)]
    return Graph(
        cost=(1.0,) * nodes,
        memory=(100,) * nodes,
        edges=tuple(edges),
        backward=frozenset(range(count + 1, nodes)),
    )


def test_the_least_memory_is_cheap_enough_and_no_more_than_that_of_segments():
    graph = chain()
    found = batches.least("chain", graph, 5, 3)
    assert found.plain == simulate(graph, *keep_everything(graph)).peak
    assert found.checkmate <= found.best < found.plain
    assert found.ruled_out < found.checkmate
    forward = sum(cost for i, cost in enumerate(graph.cost) if i not in graph.backward)
    again = checkmate.solve(graph, found.checkmate, time_limit=5, forward_again=False)
    assert again.usage is not None
    assert again.usage.cost <= simulate(graph, *keep_everything(graph)).cost + forward


@pytest.mark.parametrize(
    ("plain", "best", "verdicts"),
    [
        (3.8, 1.73, ["holds", "holds"]),
        (2.7, 1.2, ["outside", "outside"]),
        (3.0, 1.0, ["holds", "outside"]),
    ],
)
def test_ratios_of_batches_are_those_of_memory(plain, best, verdicts):
    found = batches.Least(
        network="U-Net", plain=round(1000 * plain), best=round(1000 * best), checkmate=1000
    )
    claims = batches.claims([found], LABEL)
    assert [claim.verdict for claim in claims] == verdicts
    assert claims[0].expected == pytest.approx(3.8, abs=0.02)
    assert {claim.version for claim in claims} == {"other"}


@pytest.mark.parametrize(
    ("full", "selective", "verdicts"),
    [(0.39, 0.07, ["holds", "holds"]), (0.33, 0.13, ["outside", "outside"])],
)
def test_layers_times(full, selective, verdicts):
    seconds = {BASE: 2.0, FULL: 2.0 * (1 + full), SELECTIVE: 2.0 * (1 + selective)}
    times, formulas = (
        layer_times.claims(layer_times.Times(LABEL, seconds))[part]
        for part in (slice(2), slice(2, None))
    )
    assert [claim.verdict for claim in times] == verdicts
    assert times[0].obtained == pytest.approx(full)
    assert [claim.verdict for claim in formulas] == ["holds"] * 4
    assert {claim.device_label for claim in formulas} == {"formula"}
