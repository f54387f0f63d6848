"""A planner that looks inside the blocks once and then drops all that can be made again."""

from __future__ import annotations

from typing import Any

from dropping import most

from mimose.menu import Traced
from mimose.plan import Plan, Remade
from mimose.planners.bound import Bound, recompute_all
from mimose.records import Decision


class Dropper(Bound):
    """Traces in its first step, in which all is recomputed, and drops all it can in the others."""

    name = "dropper"
    rescued = True

    def __init__(self) -> None:
        super().__init__()
        self.traced: dict[int, Traced] = {}
        self.records: list[Any] = []

    def plan(self, size: Any, situation: Any) -> Decision:
        if not self.records:
            return Decision(recompute_all(self.info), "sheltered", collect=True, trace=True)
        remade = []
        for block, traced in sorted(self.traced.items()):
            chosen = most(traced.graph, traced.bytes)
            if chosen and block < self.info.num_blocks:
                remade.append(Remade(block, chosen, (), traced.graph.digest))
        return Decision(Plan(self.info.num_blocks, (), (), tuple(remade)), "responsive")

    def observe(self, record: Any) -> None:
        self.records.append(record)
        if record.collected is not None:
            self.traced.update((traced.block, traced) for traced in record.collected.traced)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    @property
    def share(self) -> float:
        """Share of the blocks' saved bytes that is dropped; outputs left out."""
        saved = gone = 0
        for traced in self.traced.values():
            graph, sizes = traced.graph, traced.bytes
            saved += sum(sizes[v] for v in graph.saved - graph.fixed)
            gone += sum(sizes[v] for v in most(graph, sizes))
        return gone / saved if saved else 0.0
