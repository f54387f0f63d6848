"""Checkmate on the operators of three convolutional networks, beside segmenting strategies.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys
2020, compare the optimal schedule with checkpointing at articulation points and with its own
two-phase rounding. Here the graphs are smaller, traced from PyTorch, and the times simulated. At
each budget the optimum stands beside the cheapest of the segmenting schedules that fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from mimose.devices.sim.device import SimDevice
from mimose.solvers import checkmate, rounding
from mimose.solvers.checkpoint_sets import rivals
from mimose.solvers.graph import Graph, Usage, keep_everything, simulate
from mimose.solvers.rounding import Tables
from mimose.units import format_bytes
from mimose_bench.experiments.figures import checkmate_batches as batches
from mimose_bench.experiments.figures.convolutional import UNet, mobilenet, vgg16
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent
from mimose_bench.experiments.figures.traced import trace

SECONDS, QUICK_SECONDS = 60, 3
SOLVES, QUICK_SOLVES = 5, 0
"""Solves for each largest batch; without any, none is looked for."""
GAP = 0.001
SHARES = (0.0, 1 / 3, 2 / 3)
"""Budgets, between the least of any segmenting schedule and what keeping everything holds."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network and its batch of square images.

    Attributes:
        name: Its name.
        build: Builds it.
        batch_size: Images in a batch.
        side: Height and width of the images.
        is_dense: Whether every pixel has a label.
        rounded: The paper's cost of its rounded schedules over the optimum.
    """

    name: str
    build: Callable[[], nn.Module]
    batch_size: int
    side: int
    is_dense: bool
    rounded: float


NETWORKS = (
    Network("MobileNet", mobilenet, 32, 128, False, 1.06),
    Network("VGG-16", vgg16, 32, 128, False, 1.01),
    Network("U-Net", UNet, 8, 128, True, 1.03),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One network under one budget.

    Attributes:
        network: Its name.
        budget: The budget in bytes.
        rival: The cheapest segmenting strategy that fits, and what it comes to.
        solved: What the solver found, beginning with that.
        rounded: What two-phase rounding found; None where its linear problems took too long.
    """

    network: str
    budget: int
    rival: tuple[str, Usage]
    solved: checkmate.Result
    rounded: rounding.Rounded | None


def check(
    open_device: OpenDevice, *, seconds: int = SECONDS, solves: int = SOLVES, say: Say = silent
) -> Reproduction:
    """Trace each network, and solve for each budget and for the largest batch.

    Args:
        open_device: Opens the simulated GPU, whose times the operators take.
        seconds: The solver's time limit for each budget.
        solves: Solves for each largest batch.
        say: Takes lines of progress.
    """
    with open_device() as device:
        assert isinstance(device, SimDevice)
        gpu = device.gpu
    tables, cells, largest = [], [], []
    for network in NETWORKS:
        graph = graph_of(network, gpu)
        whole = simulate(graph, *keep_everything(graph))
        own = solve(network.name, graph, seconds, say)
        cells += own
        tables.append(_table(network, graph, whole, own))
        if solves and network.name in batches.OVER_PLAIN:
            largest.append(batches.least(network.name, graph, seconds, solves, say))
    notes = [
        "a node is a convolution, a pooling, a concatenation or a matrix product, forward or "
        "backward, with the cheap operators behind it; memory is activations and their gradients",
        "rivals: sqrt(n), equal and greedy segments, at articulation points and linearized",
    ]
    for network in NETWORKS:
        ratios = [
            c.rounded.cost / c.solved.cost
            for c in cells
            if c.network == network.name and c.rounded is not None and c.rounded.usage is not None
        ]
        found = f"{max(ratios):.3f} at most" if ratios else "nowhere"
        notes.append(
            f"{network.name}: rounding found a schedule for {len(ratios)} of {len(SHARES)} "
            f"budgets; cost over the best found: {found}, and in the paper's geometric mean "
            f"{network.rounded:.2f}"
        )
    return Reproduction(
        name="checkmate-graphs",
        title="Checkmate on graphs of operators",
        source="Jain et al. 2020, MLSys, section 6",
        device_label=f"simulated {gpu.name}",
        rows=(),
        criteria=(
            Criterion(
                name="Checkmate is costlier than a segmenting schedule",
                value=sum(c.solved.cost > c.rival[1].cost * (1 + 1e-9) for c in cells),
                tolerance=0,
                is_count=True,
            ),
            Criterion(
                name="a schedule goes over its budget",
                value=sum(
                    usage is not None and usage.peak > c.budget
                    for c in cells
                    for usage in (c.solved.usage, c.rounded and c.rounded.usage)
                ),
                tolerance=0,
                is_count=True,
            ),
            Criterion(name="largest gap left open", value=max(c.solved.gap for c in cells)),
        ),
        claims=tuple(batches.claims(largest, f"simulated {gpu.name}")),
        notes=tuple(notes),
        tables=(*tables, *([batches.table(largest)] if largest else [])),
    )


def graph_of(network: Network, gpu: object) -> Graph:
    """Return the graph of a network's training step."""
    meta = torch.device("meta")
    with meta:
        model = network.build().train()
    count, side = network.batch_size, network.side
    images = torch.zeros(count, 3, side, side, device=meta)
    shape = (count, side, side) if network.is_dense else (count,)
    labels = torch.zeros(shape, dtype=torch.long, device=meta)
    return trace(model, images, labels, gpu)  # type: ignore[arg-type]


def solve(name: str, graph: Graph, seconds: float, say: Say = silent) -> list[Cell]:
    """Return what is found for each budget."""
    whole = simulate(graph, *keep_everything(graph))
    segmented: list[tuple[str, Usage, Tables]] = [
        (strategy, simulate(graph, *found), found) for strategy, found in rivals(graph)
    ]
    least = min(usage.peak for _, usage, _ in segmented)
    cells = []
    for share in SHARES:
        budget = least + int(share * (whole.peak - least))
        rival = min((s for s in segmented if s[1].peak <= budget), key=lambda s: s[1].cost)
        solved = checkmate.solve(
            graph, budget, time_limit=seconds, gap=GAP, forward_again=False, start=rival[2]
        )
        rounded = _round(graph, budget, seconds)
        say(
            f"{name} in {format_bytes(budget)}: {solved.status} in {solved.seconds:.1f} s, "
            f"{rival[1].cost / solved.cost:.3f} times as fast as {rival[0]} segments"
        )
        cells.append(Cell(name, budget, rival[:2], solved, rounded))
    return cells


def _round(graph: Graph, budget: int, seconds: float) -> rounding.Rounded | None:
    with contextlib.suppress(TimeoutError):
        return rounding.solve(
            graph, budget, forms=("tight",), forward_again=False, time_limit=seconds
        )
    return None


def _rounded(cell: Cell, times: Callable[[float], str]) -> str:
    if cell.rounded is None:
        return "not in time"
    return "none fits" if cell.rounded.usage is None else times(cell.rounded.cost)


def _table(network: Network, graph: Graph, whole: Usage, cells: list[Cell]) -> ResultTable:
    def times(cost: float) -> str:
        return f"{cost / whole.cost:.3f}"

    return ResultTable(
        title=(
            f"{network.name}, batch {network.batch_size} of {network.side} x {network.side}: "
            f"{len(graph)} nodes, {len(graph.edges)} edges; everything kept holds "
            f"{format_bytes(whole.peak)}; times relative to that"
        ),
        headers=("budget", "Checkmate", "gap", "solve time", "rounding", "best rival", "its time"),
        rows=tuple(
            (
                f"{format_bytes(c.budget)} ({c.budget / whole.peak:.0%})",
                times(c.solved.cost),
                f"{c.solved.gap:.2%}",
                f"{c.solved.seconds:.1f} s",
                _rounded(c, times),
                c.rival[0],
                times(c.rival[1].cost),
            )
            for c in cells
        ),
    )
