from __future__ import annotations

import pytest

from mimose.plan import Plan
from mimose.planners.mimose.reserve import WINDOW, Need, Reserve
from mimose.records import Situation, StepRecord
from mimose.solvers.packing import Segments

PLAN = Plan.keep_all(2)


def step(
    reserve,
    length,
    predicted,
    reserved,
    before=0,
    phase="responsive",
    segments=None,
    waste=0,
    **changes,
):
    situation = Situation(100, reserved_bytes=before)
    record = StepRecord((12, length), PLAN, phase, situation)
    record.peak_allocated_bytes = predicted
    record.peak_reserved_bytes = reserved
    for name, value in changes.items():
        setattr(record, name, value)
    reserve.observe(record, Need(predicted, segments, waste))


def release(reserve, size, needed, now, segments=None):
    return reserve.needs_release(size, Need(needed, segments), now)


def test_starts_at_five_percent_and_grows_with_what_is_seen():
    reserve = Reserve(10_000)
    assert reserve.margin_bytes == 500
    step(reserve, 100, 5000, 5800)
    assert reserve.margin_bytes == 800
    step(reserve, 200, 6000, 6100, before=5800)
    assert reserve.margin_bytes == 800


def test_starts_at_no_less_than_a_segment():
    assert Reserve(10_000, segment_bytes=700).margin_bytes == 700
    assert Reserve(10_000, segment_bytes=300).margin_bytes == 500
    assert Reserve(10_000, fixed=100, segment_bytes=700).margin_bytes == 100


def test_a_short_batch_after_a_long_one_tells_nothing():
    reserve = Reserve(10_000)
    step(reserve, 400, 8000, 8200)
    step(reserve, 60, 2000, 8200, before=8200)
    step(reserve, 70, 2500, 8300, before=8200)
    assert reserve.margin_bytes == 500


def test_what_was_cached_before_is_not_the_step_s_doing():
    reserve = Reserve(10_000)
    step(reserve, 400, 5000, 5200)
    step(reserve, 380, 4000, 7200, before=5200)
    step(reserve, 410, 5100, 7300, before=7200)
    assert reserve.margin_bytes == 500


def test_forgets_after_fifty_telling_steps():
    reserve = Reserve(10_000)
    step(reserve, 100, 1000, 1900)
    assert reserve.margin_bytes == 900
    for i in range(WINDOW):
        step(reserve, 101 + i, 2000 + i, 2100 + i, before=2099 + i)
    assert reserve.margin_bytes < 500


def test_a_fixed_margin_stays():
    reserve = Reserve(10_000, fixed=0)
    step(reserve, 100, 5000, 5800)
    assert reserve.margin_bytes == 0


def test_sheltered_steps_count_by_what_was_measured():
    reserve = Reserve(10_000)
    step(reserve, 100, 1000, 5100, phase="sheltered", peak_allocated_bytes=5000)
    assert reserve.margin_bytes == 500


def test_a_step_that_had_to_be_retried_did_not_have_room_enough():
    reserve = Reserve(10_000)
    step(reserve, 100, 9300, 9000, outcome="retried")
    assert reserve.margin_bytes == 800


def test_no_release_while_there_is_room():
    reserve = Reserve(10_000)
    assert not release(reserve, (12, 100), 5000, Situation(100, reserved_bytes=200))


def test_release_before_a_larger_step_than_the_cache_can_serve():
    reserve = Reserve(10_000)
    step(reserve, 100, 5000, 5200)
    now = Situation(100, reserved_bytes=5200)
    assert release(reserve, (12, 300), 9000, now)
    assert not release(reserve, (12, 90), 4900, now)
    # Tensors larger than anything cached, and ones so small that they need other pieces.
    assert release(reserve, (12, 300), 4950, now)
    assert release(reserve, (12, 60), 4950, now)
    assert release(reserve, (6, 100), 4950, now)
    # Even if nothing cached were of use there would be room.
    assert not release(reserve, (12, 60), 4300, now)
    assert release(reserve, (12, 60), 4401, now)


def test_a_size_seen_since_finds_its_own_pieces():
    reserve = Reserve(10_000)
    step(reserve, 400, 9300, 9800)
    now = Situation(100, reserved_bytes=9800)
    assert not release(reserve, (12, 400), 9300, now)
    assert release(reserve, (12, 390), 9200, now)
    reserve.released()
    assert release(reserve, (12, 400), 9300, now)


def test_growth_that_was_seen_is_expected_again():
    reserve = Reserve(10_000)
    step(reserve, 400, 6000, 6100)
    now = Situation(100, reserved_bytes=8200)
    assert not release(reserve, (12, 390), 5900, now)
    step(reserve, 310, 5000, 8200, before=6100)
    assert release(reserve, (12, 390), 5900, now)


def test_nothing_cached_is_nothing_to_hand_back():
    reserve = Reserve(10_000)
    assert not release(reserve, (12, 400), 20_000, Situation(100, reserved_bytes=100))


def test_state_round_trips():
    reserve, again = Reserve(10_000), Reserve(10_000)
    step(reserve, 100, 5000, 5800)
    again.load_state_dict(reserve.state_dict())
    assert again.margin_bytes == 800
    assert again.state_dict() == reserve.state_dict()


MIB = 1 << 20
SMALL, LARGE = Segments(small=10, medium=4), Segments(medium=4, large=((30 * MIB, 2),))


def test_cached_segments_that_serve_a_step_are_kept():
    reserve = Reserve(300 * MIB, segment_bytes=20 * MIB)
    step(reserve, 100, 110 * MIB, 120 * MIB, segments=SMALL)
    now = Situation(0, reserved_bytes=250 * MIB)
    fewer = Segments(small=9, medium=4)
    assert not release(reserve, (12, 130), 250 * MIB, now, fewer)
    # Four more of 20 MiB do not fit into the 50 MiB that are left.
    assert release(reserve, (12, 130), 250 * MIB, now, Segments(medium=8))
    assert release(reserve, (12, 130), 250 * MIB, now, LARGE)


def test_before_a_size_far_beyond_all_seen_segments_are_handed_back():
    reserve = Reserve(300 * MIB, segment_bytes=20 * MIB)
    step(reserve, 100, 110 * MIB, 120 * MIB, segments=SMALL)
    now = Situation(0, reserved_bytes=250 * MIB)
    assert release(reserve, (12, 300), 250 * MIB, now, Segments(small=9, medium=4))


def test_growth_beyond_what_the_segments_explain_is_expected_again():
    reserve = Reserve(300 * MIB)
    now = Situation(0, reserved_bytes=260 * MIB)
    step(reserve, 100, 110 * MIB, 120 * MIB, segments=SMALL)
    other = Segments(small=9, medium=4)
    assert not release(reserve, (12, 90), 250 * MIB, now, other)
    step(reserve, 100, 110 * MIB, 160 * MIB, before=120 * MIB, segments=SMALL)
    assert release(reserve, (12, 90), 250 * MIB, now, other)


def test_room_for_just_the_growth_that_was_seen_is_too_little():
    reserve = Reserve(300 * MIB, segment_bytes=20 * MIB)
    step(reserve, 100, 110 * MIB, 120 * MIB, segments=SMALL)
    at_limit = Situation(0, reserved_bytes=280 * MIB)
    below = Situation(0, reserved_bytes=280 * MIB - 1)
    other = Segments(small=9, medium=4)
    assert release(reserve, (12, 90), 250 * MIB, at_limit, other)
    assert not release(reserve, (12, 90), 250 * MIB, below, other)


def test_what_packing_wastes_is_no_fragmentation_of_a_sheltered_step():
    reserve = Reserve(10_000)
    step(
        reserve,
        100,
        1,
        6000,
        phase="sheltered",
        waste=900,
        segments=SMALL,
        peak_allocated_bytes=5000,
    )
    assert reserve.margin_bytes == 500
    step(
        reserve,
        120,
        1,
        7000,
        before=6000,
        phase="sheltered",
        waste=300,
        segments=SMALL,
        peak_allocated_bytes=6000,
    )
    assert reserve.margin_bytes == 600


@pytest.mark.parametrize(
    ("reserved", "wanted", "least"),
    [(0, 1, 2), (0, 4, 4), (6, 5, 6), (7, 4, 5), (7, 5, 5), (7, 6, 7), (12, 3, 4)],
)
def test_a_budget_is_rounded_up_to_whole_segments_on_top_of_what_is_there(reserved, wanted, least):
    reserve = Reserve(10 * MIB)
    reserve.align(reserved * MIB)
    assert reserve.round_up(wanted * MIB) == least * MIB
    again = Reserve(least * MIB)
    again.align(reserved * MIB)
    assert again.budget_bytes == least * MIB


def test_expandable_segments_start_nearer_to_the_budget_and_keep_what_is_cached():
    reserve = Reserve(10_000, expandable=True)
    assert reserve.margin_bytes == 300
    step(reserve, 400, 9000, 9100)
    now = Situation(100, reserved_bytes=9100)
    assert release(Reserve(10_000), (12, 200), 8000, now)
    assert not release(reserve, (12, 200), 8000, now)
    step(reserve, 200, 8000, 9900, before=9100, num_alloc_retries=1)
    assert release(reserve, (12, 200), 8000, now)
    assert not release(reserve, (12, 201), 8000, now)


def test_a_step_whose_need_is_not_sure_counts_on_nothing_that_is_cached():
    reserve = Reserve(10_000)
    step(reserve, 400, 9000, 9100)
    now = Situation(100, reserved_bytes=9100)
    need = Need(9000)
    assert not reserve.needs_release((12, 400), need, now)
    assert reserve.needs_release((12, 400), need, now, sure=False)
    # Even all of it beside what is cached fits.
    assert not reserve.needs_release((12, 400), Need(400), Situation(100, 8000), sure=False)
