from __future__ import annotations

from itertools import combinations

import pytest

from mimose.costs import Infeasible, predict_peak
from mimose.plan import Plan
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.scheduler import check_feasible, schedule
from mimose.solvers import greedy


def bounds(machine, size=(12, 300)):
    profile, situation = machine.profile(size), machine.situation()
    full, none = (
        predict_peak(profile, plan, machine.info, situation).bytes
        for plan in (Plan.recompute_each(machine.count), Plan.keep_all(machine.count))
    )
    return profile, situation, full, none


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.8, 0.99, 1.0])
@pytest.mark.parametrize("pick", [greedy.printed, greedy.authors])
def test_plans_fit_wherever_a_plan_does(machine, share, pick):
    m = machine()
    profile, situation, full, none = bounds(m)
    allowed = full + int(share * (none - full))
    plan, peak, *_ = schedule(
        Forecast(profile), m.info, situation, allowed, range(m.count), pick=pick
    )
    assert peak.bytes <= allowed
    assert peak == predict_peak(profile, plan, m.info, situation)
    assert bool(plan.regions) == (share < 1.0)


def test_at_most_one_block_more_than_the_best_plan_of_like_blocks(machine):
    m = machine(num_blocks=6)
    profile, situation, full, none = bounds(m)
    for share in (0.3, 0.6, 0.9):
        allowed = full + int(share * (none - full))
        plan, *_ = schedule(Forecast(profile), m.info, situation, allowed, range(6))
        fewest = next(
            n
            for n in range(7)
            for blocks in combinations(range(6), n)
            if predict_peak(profile, Plan.recompute_each(6, blocks), m.info, situation).bytes
            <= allowed
        )
        assert fewest <= plan.num_recomputed <= fewest + 1


def test_goes_on_where_the_credit_was_too_good(machine):
    """Algorithm 1 would stop at the last block, which frees nothing."""
    m = machine()
    profile, situation, _, none = bounds(m)
    plan, peak, *_ = schedule(Forecast(profile), m.info, situation, none - 1, [11, 3])
    assert greedy.printed(profile.activation, 1, [11]) == [11]
    assert peak.bytes < none
    assert 3 in plan.recomputed


def test_everything_is_recomputed_where_nothing_fits(machine):
    m = machine()
    profile, situation, full, _ = bounds(m)
    plan, peak, *_ = schedule(Forecast(profile), m.info, situation, full - 1, range(m.count))
    assert plan == Plan.recompute_each(m.count)
    assert peak.bytes == full


def test_only_candidates_are_recomputed(machine):
    m = machine()
    profile, situation, full, _ = bounds(m)
    plan, *_ = schedule(Forecast(profile), m.info, situation, full, [2, 5])
    assert plan.recomputed == {2, 5}


def test_infeasible_names_the_least_budget():
    check_feasible((12, 300), 100, 150, 100)
    with pytest.raises(Infeasible, match="12 x 300") as caught:
        check_feasible((12, 300), 101, 151, 100)
    assert caught.value.least_budget_bytes == 151
