"""One plan, given by the user, for every step."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.constant import Constant
from mimose.records import Decision, Situation, Size, StepRecord


class Fixed(Constant):
    """Carries out one plan whatever the size.

    Args:
        plan: A plan, its text (``keep 0-9 | recompute 10-11``; blocks not named are kept), or a
            JSON file that holds what :meth:`mimose.plan.Plan.to_json` returns.

    Raises:
        ValueError: If ``plan`` is none of these. The number of blocks is checked in :meth:`plan`,
            once the model's is known.
    """

    name: ClassVar[str] = "fixed"
    rescued: ClassVar[bool] = True

    def __init__(self, plan: Plan | str | Path) -> None:
        super().__init__()
        # Text covers any model with enough blocks, whereas a plan and a file say how many.
        self._open_ended = self._told = False
        self._missed = 0
        if isinstance(plan, Plan):
            self._plan = plan
        elif isinstance(plan, Path):
            self._plan = _read(plan)
        elif not isinstance(plan, str):
            raise ValueError(f"a fixed plan is a Plan, text or a JSON file, not {plan!r}")
        elif plan.strip().endswith(".json"):
            self._plan = _read(Path(plan.strip()))
        else:
            self._plan = Plan.parse(plan)
            self._open_ended = True

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return the plan.

        Raises:
            ValueError: If the plan does not have the model's number of blocks.
        """
        info, plan = self.info, self._plan
        if self._open_ended and plan.num_blocks < info.num_blocks:
            plan = replace(plan, num_blocks=info.num_blocks)
        if info.exact and plan.num_blocks != info.num_blocks:
            raise ValueError(
                f"the fixed plan covers {plan.num_blocks} blocks, but the model has "
                f"{info.num_blocks} (0-{info.num_blocks - 1}): give a plan for that many"
            )
        return Decision(plan)

    def observe(self, record: StepRecord) -> None:
        """Warn, once, if no step has let any of the values go that the plan says."""
        meant, done = self._plan.remade, record.plan
        if self._told or not meant or record.outcome != "ok" or not isinstance(done, Plan):
            return
        self._missed += not done.remade
        # One step that recomputed them may have run out of memory before.
        once = done.recomputed.issuperset(r.block for r in meant) and self._missed < 2
        self._told = bool(done.remade) or not once
        if done.remade or once:
            return
        graphs = ", ".join(sorted({f"#{r.graph}" for r in meant if r.graph}))
        lacking = f"has the graph {graphs} that it was made for" if graphs else "has such values"
        warnings.warn(
            f"nothing of what the fixed plan lets go of single values applies: no block {lacking}. "
            "Such blocks keep all the first time and are recomputed whole from then on; give a "
            "plan that auto has made for this model, dtype and size",
            stacklevel=2,
        )


def _read(path: Path) -> Plan:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the plan file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the plan file {path} is not JSON: {error}") from error
    return Plan.from_json(data)
