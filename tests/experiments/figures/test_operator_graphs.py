from __future__ import annotations

import pytest
import torch
from torch import nn

from mimose.devices.sim.gpus import load_gpu
from mimose.solvers import checkmate
from mimose.solvers.checkpoint_sets import articulation_points, equal, greedy, hold, rivals
from mimose.solvers.graph import Graph, faults, keep_everything, simulate
from mimose_bench.experiments.figures import operator_graphs
from mimose_bench.experiments.figures.convolutional import UNet, convolution, mobilenet, vgg16
from mimose_bench.experiments.figures.traced import trace

GPU = load_gpu("v100")
MIB = 1 << 20


def traced(build, *, batch=4, side=32, dense=False):
    with torch.device("meta"):
        model = build()
    images = torch.zeros(batch, 3, side, side, device="meta")
    shape = (batch, side, side) if dense else (batch,)
    labels = torch.zeros(shape, dtype=torch.long, device="meta")
    return trace(model, images, labels, GPU)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = convolution(3, 8), convolution(8, 8)
        self.last = nn.Linear(8, 10)

    def forward(self, images):
        return self.last(self.second(self.first(images)).mean((2, 3)))


def test_nodes_of_a_tiny_network():
    graph = traced(Tiny)
    assert graph.names == (
        "convolution",
        "convolution",
        "addmm",
        "mm",
        "mm",
        "convolution_backward",
        "convolution_backward",
    )
    assert graph.forward_stages == 3
    # A layer reads the one before. Its gradients come with the convolution of the one behind.
    assert {(0, 1), (1, 2), (0, 5), (5, 6)} <= set(graph.edges)
    result = 4 * 8 * 32 * 32 * 4
    # Before batch norm and after ReLU; between them only while the node is computed.
    assert result * 2 <= graph.memory[0] < result * 2 + 4096
    assert graph.overhead[0][0] == result
    assert all(cost > 0 for cost in graph.cost)


@pytest.mark.parametrize(
    ("build", "dense", "convolutions", "points"),
    [
        (lambda: vgg16(8), False, 13, True),
        (lambda: mobilenet(8), False, 27, True),
        (lambda: UNet(8, 2), True, 13, False),
    ],
)
def test_networks_have_the_published_layers(build, dense, convolutions, points):
    graph = traced(build, dense=dense)
    forward = [n for i, n in enumerate(graph.names) if i not in graph.backward]
    assert forward.count("convolution") == convolutions
    assert (len(articulation_points(graph)) == len(forward) - 1) == points
    tables = keep_everything(graph)
    assert not faults(graph, *tables)
    assert simulate(graph, *tables).cost == pytest.approx(graph.least_cost)


def chain(count=6):
    nodes = 2 * count + 1
    edges = [(i, i + 1) for i in range(nodes - 1)] + [(i, 2 * count - i) for i in range(count)]
    return Graph(
        (1.0,) * nodes, (1,) * nodes, tuple(edges), backward=frozenset(range(count, nodes))
    )


def test_segments_of_a_chain():
    graph = chain()
    assert articulation_points(graph) == [0, 1, 2, 3, 4]
    assert equal([0, 1, 2, 3, 4], 2) == {1, 4}
    assert greedy([0, 1, 2, 3, 4], dict.fromkeys(range(6), 1), 1) == {1, 3}
    whole = simulate(graph, *hold(graph, range(6)))
    assert whole.cost == graph.least_cost
    found = simulate(graph, *hold(graph, {1, 3}))
    # Nodes 0, 2, 4 and 5 are computed again.
    assert found.cost == graph.least_cost + 4
    assert found.peak < whole.peak


def test_no_segmenting_schedule_beats_the_optimum():
    for graph in (chain(), traced(lambda: UNet(4, 1), side=16, dense=True)):
        schedules = [simulate(graph, *tables) for _, tables in rivals(graph)]
        budget = sorted(usage.peak for usage in schedules)[len(schedules) // 4]
        best = min(usage.cost for usage in schedules if usage.peak <= budget)
        found = checkmate.solve(graph, budget, forward_again=False, time_limit=20)
        assert found.status == "optimal"
        assert found.cost <= best * (1 + 1e-9)


def test_cells_and_their_table():
    graph = chain()
    cells = operator_graphs.solve("chain", graph, 10)
    assert len(cells) == len(operator_graphs.SHARES)
    for cell in cells:
        assert cell.solved.usage.peak <= cell.budget
        assert cell.solved.cost <= cell.rival[1].cost
    costs = [cell.solved.cost for cell in cells]
    assert costs == sorted(costs, reverse=True)
