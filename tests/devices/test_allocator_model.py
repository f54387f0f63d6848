"""The allocator model against numbers worked out on paper from the caching allocator's rules."""

import pytest

from mimose.devices.allocator import AllocatorModel
from mimose.units import KIB, MIB


def figures(model: AllocatorModel) -> tuple[int, int]:
    stats = model.stats()
    return stats.allocated, stats.reserved


@pytest.mark.parametrize(
    ("request_", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        # Up to 1 MiB, rounded, is small; the first byte more is large.
        (MIB - 511, MIB, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        # From 10 MiB on the segment is the request rounded up to 2 MiB. What is left of it is at
        # most 2 MiB, and given along if it is no more than 1 MiB.
        (10 * MIB - 511, 10 * MIB, 10 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
        (12 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_first_request(request_: int, allocated: int, reserved: int) -> None:
    model = AllocatorModel()
    model.malloc(request_)
    assert figures(model) == (allocated, reserved)


def test_zero_bytes_take_nothing() -> None:
    model = AllocatorModel(limit=0)
    handle = model.malloc(0)
    assert handle == 0
    model.free(handle)
    assert figures(model) == (0, 0)


def test_small_block_is_split_down_to_512_bytes() -> None:
    model = AllocatorModel()
    first, second = model.malloc(MIB), model.malloc(MIB - 512)
    assert figures(model) == (2 * MIB - 512, 2 * MIB)
    assert model.stats().largest_free_block == 512
    model.malloc(512)
    assert figures(model) == (2 * MIB, 2 * MIB)
    model.free(first)
    model.free(second)
    # Neighbours merge: 2 MiB - 512 are free in one block, and the next request takes its start.
    assert model.stats().largest_free_block == 2 * MIB - 512


def test_large_rest_is_split_only_above_one_mib() -> None:
    model = AllocatorModel()
    handles = [model.malloc(9 * MIB), model.malloc(9 * MIB)]
    # 2 MiB remain. 1 MiB and a bit leaves less than 1 MiB, so the whole rest is given.
    assert model.stats().largest_free_block == 2 * MIB
    handles.append(model.malloc(MIB + 512))
    assert figures(model) == (20 * MIB, 20 * MIB)
    for handle in handles:
        model.free(handle)
    assert model.stats().largest_free_block == 20 * MIB
    # Exactly 1 MiB of rest is not split off, 512 bytes more are.
    whole = model.malloc(19 * MIB)
    assert figures(model) == (20 * MIB, 20 * MIB)
    model.free(whole)
    model.malloc(19 * MIB - 512)
    assert figures(model) == (19 * MIB - 512, 20 * MIB)


def test_best_fit_takes_the_smallest_block_then_the_lowest_address() -> None:
    model = AllocatorModel()
    sizes = [12 * MIB, 16 * MIB, 12 * MIB, 14 * MIB]
    handles = [model.malloc(size) for size in sizes]
    for handle in handles:
        model.free(handle)
    assert model.malloc(12 * MIB) == handles[0]
    assert model.malloc(12 * MIB) == handles[2]
    assert model.malloc(12 * MIB) == handles[3]  # of 14 MiB, 2 of them split off
    assert model.malloc(12 * MIB) == handles[1]
    assert model.stats().reserved == sum(sizes)


def test_pools_do_not_mix() -> None:
    model = AllocatorModel()
    model.free(model.malloc(20 * MIB))
    model.malloc(512)
    assert figures(model) == (512, 22 * MIB)


def test_full_cache_is_flushed_before_out_of_memory() -> None:
    model = AllocatorModel(limit=40 * MIB)
    first = model.malloc(20 * MIB)
    model.malloc(20 * MIB)
    assert model.stats().num_alloc_retries == 0
    model.free(first)
    # 12 MiB fit the free 20 MiB (split). 10 more do not fit what remains, and the segment in use
    # cannot be handed back.
    second = model.malloc(12 * MIB)
    assert model.malloc(10 * MIB) is None
    stats = model.stats()
    assert (stats.num_alloc_retries, stats.num_ooms, stats.reserved) == (1, 1, 40 * MIB)
    # Free again: still the 8 + 12 MiB of one segment. 24 MiB need it flushed, and do not fit.
    model.free(second)
    assert model.malloc(24 * MIB) is None
    stats = model.stats()
    assert (stats.num_alloc_retries, stats.num_ooms, stats.reserved) == (2, 2, 20 * MIB)
    assert model.malloc(20 * MIB) is not None
    assert model.stats().num_alloc_retries == 2
    assert model.stats().peak_reserved == 40 * MIB


def test_limit_is_reached_exactly() -> None:
    assert AllocatorModel(limit=2 * MIB - 1).malloc(1) is None
    assert AllocatorModel(limit=2 * MIB).malloc(1) is not None


def test_fragments_are_not_released() -> None:
    model = AllocatorModel()
    kept, freed = model.malloc(512 * KIB), model.malloc(512 * KIB)
    model.free(freed)
    model.release_cache()
    assert figures(model) == (512 * KIB, 2 * MIB)
    model.free(kept)
    model.release_cache()
    assert figures(model) == (0, 0)
    assert model.stats().num_segments == 0


def test_peaks_of_run_step_and_part() -> None:
    model = AllocatorModel()
    model.free(model.malloc(30 * MIB))
    model.release_cache()
    model.begin_step()
    kept = model.malloc(10 * MIB)
    model.free(model.malloc(4 * MIB))
    assert model.mark() == 14 * MIB
    assert model.mark() == 10 * MIB
    model.free(kept)
    assert model.mark() == 10 * MIB
    assert model.mark() == 0
    stats = model.stats()
    assert (stats.step_peak_allocated, stats.step_peak_reserved) == (14 * MIB, 30 * MIB)
    assert (stats.peak_allocated, stats.peak_reserved) == (30 * MIB, 30 * MIB)
    model.begin_step()
    assert model.stats().step_peak_allocated == 0
    assert model.stats().step_peak_reserved == 30 * MIB


def test_foreign_bytes_count_towards_the_limit() -> None:
    model = AllocatorModel(limit=22 * MIB)
    model.add_foreign(21 * MIB)
    assert figures(model) == (21 * MIB, 21 * MIB)
    assert model.malloc(1) is None
    model.add_foreign(-MIB)
    assert model.malloc(1) is not None
    assert figures(model) == (20 * MIB + 512, 22 * MIB)


def test_segments_put_in() -> None:
    model = AllocatorModel()
    live = model.add_segment(small=False, sizes=[4 * MIB, -10 * MIB, 6 * MIB])
    assert len(live) == 2
    assert figures(model) == (10 * MIB, 20 * MIB)
    model.malloc(10 * MIB)
    assert figures(model) == (20 * MIB, 20 * MIB)
    model.free(live[0])
    model.free(live[1])
    assert model.stats().largest_free_block == 6 * MIB


def test_addresses_decide_between_equal_blocks() -> None:
    model = AllocatorModel()
    model.add_address(80 * MIB)
    model.add_address(40 * MIB)
    high, low = model.malloc(20 * MIB), model.malloc(20 * MIB)
    model.free(high)
    model.free(low)
    assert model.malloc(20 * MIB) == low


def test_misuse_is_refused() -> None:
    model = AllocatorModel()
    handle = model.malloc(1)
    model.free(handle)
    with pytest.raises(ValueError, match="not the handle of a live block"):
        model.free(handle)
    with pytest.raises(ValueError, match="at least 0 bytes"):
        model.malloc(-1)
