"""What planners that plan once have in common."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import pytest

from mimose.costs import Infeasible, Profile
from mimose.plan import Plan
from mimose.planners.static import Solution, Static, StepCosts
from mimose.records import ModelInfo, Situation, StepRecord
from mimose.schedule import Schedule

COUNT = 4
SIZE = (8, 128)
NEED = {  # Of each plan by the number of blocks that it recomputes, first ones first.
    count: 100 + 10 * (COUNT - count) for count in range(COUNT + 1)
}


def profile() -> Profile:
    """Blocks of ten bytes and a second; resident bytes and the head take the rest."""
    return Profile(
        activation=(10,) * COUNT,
        output=(0,) * COUNT,
        level=(0,) * COUNT,
        kept_peak=(10,) * COUNT,
        checkpoint_peak=(0,) * COUNT,
        backward_peak=(0,) * COUNT,
        forward_seconds=(1.0,) * COUNT,
        first_peak=0,
        head_peak=0,
        tail_peak=0,
        optimizer_peak=0,
        recompute_seconds=(1.0,) * COUNT,
        backward_seconds=(2.0,) * COUNT,
    )


def costs(budget: int | None, margin: int = 0) -> StepCosts:
    names = tuple(f"layer.{i}" for i in range(COUNT))
    info = ModelInfo(names, exact=True, cuts=(), budget_bytes=budget)
    return StepCosts(SIZE, profile(), info, Situation(100), margin)


def prefixes() -> list[Plan]:
    return [Plan.recompute_each(COUNT, range(count)) for count in range(COUNT + 1)]


class Prefix(Static):
    """Recomputes as few of the first blocks as it must."""

    name: ClassVar[str] = "prefix"

    def solve(self, costs: StepCosts, progress: object = None) -> Solution:
        return costs.choose(prefixes())


def planned(budget: int) -> Prefix:
    planner = Prefix(margin=0)
    planner.costs = costs(budget)
    planner.bind(planner.costs.info)
    planner.solution = planner.solve(planner.costs)
    return planner


def retried(planner: Prefix) -> StepRecord:
    assert planner.solution is not None
    record = StepRecord(SIZE, planner.solution.plan, "static", Situation(100))
    record.outcome = "retried"
    return record


@pytest.mark.parametrize("recomputed", range(COUNT + 1))
def test_the_fastest_that_fits_is_chosen(recomputed: int) -> None:
    need = costs(None).need_bytes(prefixes()[recomputed])
    assert need == NEED[recomputed]
    chosen = costs(need).choose(prefixes())
    assert chosen.plan.num_recomputed == recomputed
    assert chosen.need_bytes == need
    assert chosen.least_budget_bytes == NEED[COUNT]
    assert chosen.predicted_seconds == chosen.baseline_seconds + recomputed


def test_without_a_budget_everything_is_kept() -> None:
    assert costs(None).choose(prefixes()).plan == Plan.keep_all(COUNT)


def test_what_fits_but_for_the_margin_runs_with_the_least_plan() -> None:
    chosen = costs(NEED[COUNT] + 1, margin=5).choose(prefixes())
    assert chosen.plan == Plan.recompute_each(COUNT)


def test_a_budget_below_the_least_is_refused_with_the_least() -> None:
    with pytest.raises(
        Infeasible, match="give a larger budget or plan for a smaller batch"
    ) as refused:
        costs(NEED[COUNT] - 1).choose(prefixes())
    least = refused.value.least_budget_bytes
    assert least == NEED[COUNT]
    assert costs(least).choose(prefixes()).plan == Plan.recompute_each(COUNT)


def test_more_of_a_budget_is_never_slower() -> None:
    seconds = [
        costs(budget, margin=budget // 20).choose(prefixes()).predicted_seconds
        for budget in range(NEED[COUNT], 2 * NEED[0])
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == COUNT + 1


@pytest.mark.parametrize(
    "plan", [Plan.parse("recompute 0-2 | selective 3"), Schedule.parse("F0 B0")]
)
def test_a_solution_comes_back_from_json(plan: Plan | Schedule) -> None:
    solution = replace(
        costs(150).choose(prefixes()), plan=plan, solve_seconds=0.5, details={"gap": 0.01}
    )
    assert Solution.from_json(json.loads(json.dumps(solution.to_json()))) == solution


@pytest.mark.parametrize("data", [None, [], {}, {"plan": 1}, {"plan": {"num_blocks": 1}}])
def test_what_is_no_solution_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"not a stored solution|a plan in JSON"):
        Solution.from_json(data)


def test_a_step_that_ran_out_of_memory_is_repeated_with_the_least_plan() -> None:
    assert planned(NEED[1]).rescue() == Plan.recompute_each(COUNT)


def test_a_retried_step_widens_the_margin_four_times_at_most() -> None:
    planner = planned(NEED[0])
    recomputed = []
    for _ in range(6):
        planner.observe(retried(planner))
        assert planner.solution is not None
        recomputed.append(planner.solution.plan.num_recomputed)
    # 5 % of 140 bytes are 7, a block is 10.
    assert recomputed == [1, 2, 3, 3, 3, 3]
    assert planner.solution.details["replans"] == 4


def test_other_steps_change_nothing() -> None:
    planner = planned(NEED[1])
    before = planner.solution
    record = retried(planner)
    record.outcome = "ok"
    planner.observe(record)
    assert planner.solution is before


def test_without_a_profile_a_planner_says_what_to_call() -> None:
    planner = Prefix()
    planner.bind(ModelInfo(("a",)))
    with pytest.raises(ValueError, match=r"call handle.profile\(\)"):
        planner.plan(SIZE, Situation(0))
    assert planner.rescue() is None


def test_its_state_is_its_solution() -> None:
    planner = planned(NEED[1])
    other = Prefix()
    other.bind(costs(NEED[1]).info)
    other.load_state_dict(json.loads(json.dumps(planner.state_dict())))
    assert other.solution == planner.solution
    stranger = Prefix()
    stranger.bind(ModelInfo(("a",), exact=True))
    with pytest.raises(ValueError, match="for a model of 4 blocks"):
        stranger.load_state_dict(planner.state_dict())


def test_the_least_budget_named_leaves_the_margin_free() -> None:
    planner = Prefix()
    for need in (1, 10**6, 3 * 2**20, 100 * 2**20, 160 * 2**20, 10 * 2**30):
        least = planner._budget_for(need)
        for budget, fits in ((least, True), (least - 1, False)):
            planner.bind(ModelInfo(("a",), budget_bytes=budget))
            assert planner.margin_bytes is not None
            assert (budget - planner.margin_bytes >= need) == fits


def test_a_planner_that_does_not_say_how_it_plans_is_told() -> None:
    class Silent(Static):
        name: ClassVar[str] = "silent"

    with pytest.raises(ValueError, match=r"Silent does not say how it plans: define solve\(\)"):
        Silent().solve(costs(150))
    with pytest.raises(ValueError, match="no plan to choose from"):
        costs(150).choose([])
