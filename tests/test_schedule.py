from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.costs import Profile, predict_backward_flops, predict_peak, predict_seconds
from mimose.plan import Plan, Region
from mimose.records import ModelInfo, Situation
from mimose.schedule import Instruction, Schedule, plan_from_json


@st.composite
def regions(draw: st.DrawFn, first: int, last: int, depth: int = 0) -> tuple[Region, ...]:
    found = []
    position = first
    while position <= last:
        end = draw(st.integers(position, last))
        whole = depth > 0 and (position, end) == (first, last)
        if not whole and draw(st.booleans()):
            inner = draw(regions(position, end, depth + 1)) if depth < 3 and end > position else ()
            found.append(Region(position, end, inner))
        position = end + 1
    return tuple(found)


@st.composite
def trees(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 8))
    return Plan(count, draw(regions(0, count - 1)))


def schedules(count: int, seed: int, share: float) -> Schedule:
    """Return a schedule that keeps at random what runs, and runs again whatever is missing."""
    dice = random.Random(seed)
    order = [Instruction(b) for b in range(count)]
    outputs = {b for b in range(count) if dice.random() < share} | {count - 1}
    saved = {b for b in range(count) if dice.random() < share and (b == 0 or b - 1 in outputs)}

    def make(block: int) -> None:
        if block > 0 and block - 1 not in outputs:
            make(block - 1)
        order.append(Instruction(block))
        outputs.add(block)

    for block in reversed(range(count)):
        if block > 0 and block - 1 not in outputs:
            make(block - 1)
        if block not in saved:
            order.append(Instruction(block))
        order.append(Instruction(block, True))
        outputs -= {b for b in outputs if dice.random() > share}
        saved -= {b for b in saved if b >= block or dice.random() > share}
    # What was made by chance and never read again only wastes time: still a schedule.
    return Schedule(count, tuple(order))


@settings(deadline=None)
@given(trees())
def test_a_tree_is_a_schedule_and_comes_back(plan: Plan) -> None:
    schedule = Schedule.from_plan(plan)
    again = schedule.to_plan()
    assert again is not None
    assert Schedule.from_plan(again) == schedule


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(0, 10**6), st.floats(0, 1))
def test_text_and_json_round_trip(count: int, seed: int, share: float) -> None:
    schedule = schedules(count, seed, share)
    assert Schedule.parse(str(schedule)) == schedule
    assert plan_from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(0, 10**6), st.floats(0, 1))
def test_what_is_read_is_held(count: int, seed: int, share: float) -> None:
    """By an account of its own: every run and every backward finds its input."""
    held: set[int] = set()
    saved: set[int] = set()
    for moment in schedules(count, seed, share).moments():
        held &= moment.outputs
        saved &= moment.saved
        assert moment.outputs <= held
        assert moment.saved <= saved
        assert moment.block == 0 or moment.block - 1 in held
        if moment.backward:
            assert moment.block in saved
            saved.discard(moment.block)
        else:
            held.add(moment.block)
            if moment.saves:
                saved.add(moment.block)


def test_a_schedule_that_no_tree_holds() -> None:
    # The output of block 1 serves the backward of block 3, then goes and is run anew.
    schedule = Schedule.parse("f0 f1 f2 f3 f2 F3 B3 f0 f1 F2 B2 f0 F1 B1 F0 B0")
    assert schedule.to_plan() is None
    assert schedule.num_recomputed == 4
    moments = list(schedule.moments())
    assert moments[4].outputs == {1}
    assert moments[7].outputs == frozenset()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is not a schedule"),
        ("F0 X1", "is not a schedule"),
        ("F1 F0 B1 B0", "does not come yet"),
        ("F0 F1 B0 B1", "last first"),
        ("f0 F1 B1 B0", "uses what it does not keep"),
        ("F0 F1 B1", "ends before"),
        ("F0 F1 B1 f1 B0", "backward of block 1 is over"),
        ("f0 F0 B0 B1", "does not come yet|last first|once all"),
        ("F0 F0 B0", "keeps what it never uses"),
    ],
)
def test_bad_schedules_are_told_in_a_sentence(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Schedule.parse(text)


@st.composite
def profiles(draw: st.DrawFn, count: int) -> Profile:
    small = st.integers(0, 20)
    activation = [draw(small) for _ in range(count)]
    output = [1 + draw(small) for _ in range(count)]
    level = [3]
    for size in output:
        level.append(level[-1] + size)
    kept = [a + o + draw(small) for a, o in zip(activation, output)]
    checkpoint = [k - draw(st.integers(0, a)) for k, a in zip(kept, activation)]
    seconds = tuple(draw(st.floats(0.5, 2)) for _ in range(count))
    leaf = tuple(0.75 * s for s in seconds)
    flops = tuple(draw(st.integers(1, 100)) for _ in range(count))
    return Profile(
        activation=tuple(activation),
        output=tuple(output),
        level=tuple(level[:-1]),
        kept_peak=tuple(kept),
        checkpoint_peak=tuple(checkpoint),
        backward_peak=tuple(x + k + draw(small) for x, k in zip(level, kept)),
        forward_seconds=seconds,
        first_peak=3,
        head_peak=level[-1] + draw(small),
        tail_peak=draw(small),
        optimizer_peak=draw(small),
        recompute_seconds=leaf,
        backward_seconds=tuple(2 * s for s in seconds),
        outside_seconds=draw(st.floats(0, 1)),
        forward_flops=flops,
        recompute_flops=tuple(f // 2 for f in flops),
        backward_flops=tuple(2 * f for f in flops),
    )


@settings(deadline=None)
@given(st.data())
def test_a_tree_and_its_schedule_cost_the_same(data: st.DataObject) -> None:
    plan = data.draw(trees())
    profile = data.draw(profiles(plan.num_blocks))
    names = tuple(map(str, range(plan.num_blocks)))
    grads = tuple(data.draw(st.integers(0, 9)) for _ in names)
    info = ModelInfo(names, exact=True, cuts=(), grad_bytes=grads, other_grad_bytes=4)
    situation = Situation(100, grads_resident=data.draw(st.booleans()))
    schedule = Schedule.from_plan(plan)
    tree, flat = (predict_peak(profile, p, info, situation).bytes for p in (plan, schedule))
    assert tree == flat
    assert predict_seconds(profile, plan) == pytest.approx(predict_seconds(profile, schedule))
    assert predict_backward_flops(profile, plan) == predict_backward_flops(profile, schedule)


def test_times_of_the_known_plans() -> None:
    count = 4
    profile = Profile(
        *((1,) * count,) * 6,
        forward_seconds=(1.0, 2.0, 4.0, 8.0),
        first_peak=0,
        head_peak=0,
        tail_peak=0,
        optimizer_peak=0,
        recompute_seconds=(0.5, 1.5, 3.5, 7.5),
        backward_seconds=(2.0, 4.0, 8.0, 16.0),
        outside_seconds=10.0,
    )
    plain = 10 + 15 + 30
    for text, again in (
        ("keep 0-3", 0),
        ("recompute each 0-3", 0.5 + 1.5 + 3.5 + 7.5),
        ("recompute 0-3", 1 + 2 + 4 + 7.5),
        ("recompute 0-2 (recompute 0 | keep 1-2) | keep 3", 1 + 2 + 3.5 + 0.5),
        ("recompute 0-2 (recompute 0-1) | keep 3", 1 + 2 + 3.5 + 1 + 1.5),
        ("keep 0 | recompute 1-3 (keep 1 | recompute 2-3)", 2 + 4 + 7.5),
    ):
        assert predict_seconds(profile, Plan.parse(text, count)) == plain + again, text


def test_pinned_outputs_are_held_whatever_the_schedule_says() -> None:
    profile = Profile(
        activation=(10, 10, 10),
        output=(4, 4, 4),
        level=(0, 4, 8),
        kept_peak=(14, 14, 14),
        checkpoint_peak=(8, 8, 8),
        backward_peak=(20, 24, 28),
        forward_seconds=(1.0,) * 3,
        first_peak=0,
        head_peak=12,
        tail_peak=0,
        optimizer_peak=0,
    )
    schedule = Schedule.parse("f0 f1 f2 f0 f1 F2 B2 f0 F1 B1 F0 B0")
    info = ModelInfo(("a", "b", "c"), exact=True, cuts=())
    free = predict_peak(profile, schedule, info, Situation(0)).bytes
    pinned = predict_peak(
        profile, schedule, ModelInfo(info.block_names, exact=True, cuts=(1,)), Situation(0)
    ).bytes
    assert pinned == free + 4
