from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mimose.costs import Infeasible, predict_peak
from mimose.plan import Plan
from mimose.planners import make_planner
from mimose.planners.auto import Auto
from mimose.planners.mimose import Mimose

MB = 1 << 20
GB = 1 << 30
LENGTHS = [153, 500, 287, 333, 205, 250, 400, 438, 310, 222]


@pytest.fixture
def bert(machine, bert_block):
    """A machine whose blocks can be looked into: ``bert(num_blocks=12, budget=None, **facts)``."""

    class Bert(machine):
        warm_up = 10.0
        graphs: dict[int, object] = {}  # noqa: RUF012 - one test changes it

        def trace(self, size, block=0):
            found = bert_block(*size)
            return replace(found, block=block, graph=self.graphs.get(size[1], found.graph))

        def profile(self, size):
            plain = super().profile(size)
            traced, n = self.trace(size), self.count
            saved = sum(traced.bytes[v] for v in traced.graph.saved - traced.graph.fixed)
            more = [b - a for a, b in zip(plain.activation, plain.backward_peak)]
            return replace(
                plain,
                activation=(saved,) * n,
                kept_peak=(saved + 2 * plain.output[0],) * n,
                backward_peak=tuple(saved + m for m in more),
                forward_seconds=(sum(traced.seconds),) * n,
            )

        def collect(self, size):
            found = super().collect(size)
            slow = self.warm_up if self.steps == 0 else 1.0
            traced = tuple(
                replace(t, seconds=tuple(slow * s for s in t.seconds))
                for t in (self.trace(size, block) for block in range(self.count))
            )
            return replace(found, traced=traced)

        def peak(self, size, plan, situation):
            values = self.trace(size).bytes
            let_go = {r.block: sum(values[v] for v in r.dropped) for r in plan.remade}
            return predict_peak(self.profile(size), plan, self.info, situation, let_go).bytes

        def seconds(self, size, plan):
            """What making things again takes, by this machine's own figures."""
            from mimose.menu import cost_of

            traced = self.trace(size)
            whole = sum(traced.seconds)
            parts = [
                cost_of(traced.graph, r.dropped, traced.bytes, traced.seconds).seconds
                for r in plan.remade
            ]
            return whole * plan.num_recomputed + sum(parts)

    return Bert


def learned(machine, planner=None):
    planner = planner or Auto()
    planner.bind(machine.info)
    for length in LENGTHS:
        machine.step(planner, (12, length))
    return planner


@pytest.mark.parametrize("gigabytes", [3, 4, 5, 6, 7])
def test_steps_fit_and_take_less_time_than_with_whole_blocks(bert, gigabytes):
    auto, mimose = bert(budget=gigabytes * GB), bert(budget=gigabytes * GB)
    planners = learned(auto), learned(mimose, Mimose())
    better = 0
    for length in range(160, 500, 17):
        size = (12, length)
        mine, record = auto.step(planners[0], size)
        theirs, _ = mimose.step(planners[1], size)
        assert record.peak_allocated_bytes <= gigabytes * GB
        assert record.peak_allocated_bytes == pytest.approx(mine.predicted_peak_bytes, rel=2e-3)
        assert auto.seconds(size, mine.plan) <= auto.seconds(size, theirs.plan) * (1 + 1e-6)
        better += auto.seconds(size, mine.plan) < 0.5 * auto.seconds(size, theirs.plan)
    assert better >= (0 if gigabytes == 7 else 4)
