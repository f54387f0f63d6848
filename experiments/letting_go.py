"""How many bytes a step let go of that belong to blocks kept but for single values."""

from __future__ import annotations

from mimose.plan import Plan, Remade
from mimose.planners.auto import Auto
from mimose.planners.auto.choosing import InsideForecast
from mimose.planners.base import Planner
from mimose.records import StepRecord


class LettingGo:
    """Works out what plans let go of, by what the planner has learned of blocks' insides.

    Bytes at a size follow from traced ones. Sizes and plans come again: each is worked out once.

    Args:
        planner: The run's planner.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner if isinstance(planner, Auto) else None
        self._known: dict[tuple[object, ...], tuple[int, int] | None] = {}

    def bytes(self, record: StepRecord) -> tuple[int, int] | None:
        """Return the bytes that a step made again, and those that it had in the host's memory.

        None if it had none of either, or if the inside of such a block is not known.
        """
        plan, planner = record.plan, self._planner
        if planner is None or not isinstance(plan, Plan) or not plan.remade:
            return None
        key = record.size, plan, record.situation.signature
        if key not in self._known:
            forecast = planner.forecast(record.size, record.situation)
            found = None if forecast is None else _bytes(plan, forecast)
            if found is None:
                return None  # Later it may be known.
            self._known[key] = found
        return self._known[key]


def _bytes(plan: Plan, forecast: InsideForecast) -> tuple[int, int] | None:
    dropped = offloaded = 0.0
    for remade in plan.remade:
        if not _is_known(remade, forecast):
            return None
        inside = forecast.inside[remade.block]
        dropped += float(inside.bytes[[*remade.dropped]].sum()) if remade.dropped else 0.0
        offloaded += float(inside.bytes[[*remade.offloaded]].sum()) if remade.offloaded else 0.0
    return round(dropped), round(offloaded)


def _is_known(remade: Remade, forecast: InsideForecast) -> bool:
    inside = forecast.inside.get(remade.block)
    return inside is not None and remade.graph in ("", inside.fit.graph.digest)
