"""Checkmate's largest batch, on graphs of operators.

Jain et al. 2020, section 6.4: the largest batch that fits where at most one more forward pass is
computed, beside plain training's and the best of segmenting schedules. What a graph holds grows
with its batch, parameters left out on every side: the largest batches are to each other as the
least memory of a schedule that is cheap enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimose.solvers import checkmate
from mimose.solvers.checkpoint_sets import rivals
from mimose.solvers.graph import Graph, keep_everything, simulate
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import ResultTable
from mimose_bench.experiments.figures.session import Say, silent

TOLERANCE = 0.25
"""The most that a ratio of batches may be off, as a share: these graphs are coarser."""
GAP = 0.1
LOW = 0.1
"""Share of plain training's memory below which nothing is looked for."""
OVER_PLAIN: Mapping[str, float] = {"MobileNet": 5.1, "U-Net": 61 / 16}
"""The paper's largest batches over those with everything kept."""
OVER_BEST: Mapping[str, float] = {"U-Net": 1.73}
"""Over those of the best baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The least memory with at most one more forward pass.

    Attributes:
        network: The network.
        plain: Bytes with everything kept.
        best: Bytes of the best segmenting schedule.
        checkmate: Bytes of the best schedule that the solver found.
        ruled_out: The largest budget at which it showed that there is none; 0 without.
    """

    network: str
    plain: int
    best: int
    checkmate: int
    ruled_out: int = 0


def least(name: str, graph: Graph, seconds: float, solves: int, say: Say = silent) -> Least:
    """Look for the least budget by halving, so many solves.

    A solve that finds nothing in its time counts as if there were nothing.
    """
    whole = simulate(graph, *keep_everything(graph))
    forward = sum(cost for i, cost in enumerate(graph.cost) if i not in graph.backward)
    most = (whole.cost + forward) * (1 + 1e-9)
    usages = [simulate(graph, *tables) for _, tables in rivals(graph)]
    best = min((u.peak for u in usages if u.cost <= most), default=whole.peak)
    found, low, ruled_out = best, int(LOW * whole.peak), 0
    for _ in range(solves):
        budget = (low + found) // 2
        result = checkmate.solve(graph, budget, time_limit=seconds, gap=GAP, forward_again=False)
        if result.usage is not None and result.usage.cost <= most:
            found = min(found, result.usage.peak)
        else:
            low = budget
            if result.status == "infeasible" or result.bound > most:
                ruled_out = max(ruled_out, budget)
        say(f"{name}: {result.status} in {budget / whole.peak:.0%} of plain training's memory")
    return Least(network=name, plain=whole.peak, best=best, checkmate=found, ruled_out=ruled_out)


def claims(found: Sequence[Least], device_label: str) -> list[Claim]:
    """Return what the paper says of these networks."""
    made = []

    def say(text: str, expected: float, obtained: float, note: str = "") -> None:
        made.append(
            Claim(
                text=text,
                source="Jain et al. 2020, section 6.4",
                version="other",
                unit="x",
                expected=expected,
                obtained=obtained,
                tolerance=TOLERANCE,
                relative=True,
                device_label=device_label,
                note=note,
            )
        )

    for each in found:
        note = (
            "what the solver found in its time; convolution, batch norm and ReLU are one node "
            "here, so that less can be dropped than in the paper's graphs"
        )
        say(
            f"{each.network}: Checkmate's largest batch over plain training's",
            OVER_PLAIN[each.network],
            each.plain / each.checkmate,
            note=note,
        )
        if each.network in OVER_BEST:
            say(
                f"{each.network}: Checkmate's largest batch over the best baseline's",
                OVER_BEST[each.network],
                each.best / each.checkmate,
            )
    return made


def table(found: Sequence[Least]) -> ResultTable:
    """Return the memory found, as shares of plain training's."""
    return ResultTable(
        title="least memory with at most one more forward pass, plain training's being 1",
        headers=("network", "best of segments", "Checkmate", "none below"),
        rows=tuple(
            (
                each.network,
                f"{each.best / each.plain:.3f}",
                f"{each.checkmate / each.plain:.3f}",
                f"{each.ruled_out / each.plain:.3f}" if each.ruled_out else "-",
            )
            for each in found
        ),
    )
