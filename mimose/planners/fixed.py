"""One plan, given by the user, for every step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.constant import Constant
from mimose.records import Decision, Situation, Size


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
        self._open_ended = False
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


def _read(path: Path) -> Plan:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the plan file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the plan file {path} is not JSON: {error}") from error
    return Plan.from_json(data)
