"""What is kept free where the allocator loses memory to pieces."""

from __future__ import annotations

import pytest

from mimose.runtime.eviction.engine import Engine, NoRoom
from mimose.runtime.eviction.heuristics import Lru
from mimose.runtime.eviction.pieces import EVERY, Pieces
from mimose.runtime.eviction.player import Machine

BUDGET = 1 << 20


class Allocator:
    def __init__(self):
        self.retries = 0

    def alloc_retries(self):
        return self.retries


def run(pieces, allocator, retries_a_look, looks=4, evictions=1):
    pieces.begin()
    for _ in range(looks):
        allocator.retries += retries_a_look
        for _ in range(EVERY):
            pieces.operated()
    pieces.end(evictions)


def test_more_is_kept_free_as_long_as_segments_are_handed_back_within_the_step_too():
    allocator = Allocator()
    pieces = Pieces(allocator, BUDGET)
    run(pieces, allocator, 0)
    assert pieces.spare_bytes == 0
    run(pieces, allocator, 10, looks=1)
    once = pieces.spare_bytes
    assert 0 < once < BUDGET // 20
    run(pieces, allocator, 10, looks=3)
    assert pieces.spare_bytes == 4 * once


def test_it_is_bounded_and_given_back_only_after_a_step_that_evicted_without_a_retry():
    allocator = Allocator()
    pieces = Pieces(allocator, BUDGET)
    run(pieces, allocator, 10, looks=500)
    most = pieces.spare_bytes
    assert BUDGET // 4 < most < BUDGET // 3
    run(pieces, allocator, 0, evictions=0)
    assert pieces.spare_bytes == most
    run(pieces, allocator, 0)
    assert 0 < pieces.spare_bytes < most
    run(pieces, allocator, 1)
    run(pieces, allocator, 1)
    assert 0 < pieces.spare_bytes < most, "a single retry is no reason either way"


def engine_of(budget, spare):
    machine = Machine()
    engine = machine.engine = Engine(machine, Lru(), budget)
    engine.spare = spare
    made = [engine.constant(1)]
    machine.used += 1
    for _ in range(3):
        engine.request(made[:1])
        engine.make_room(10)
        made += engine.complete(made[:1], [(10, None)], 1.0, ("op", None)).outputs
        machine.used += 10
    return machine, engine


@pytest.mark.parametrize(("spare", "resident"), [(0, 3), (10, 2)])
def test_the_engine_keeps_it_free(spare, resident):
    machine, engine = engine_of(31, spare)
    assert sum(storage.resident and not storage.pinned for storage in engine.storages) == resident
    assert machine.usage() <= engine.kept_to


def test_a_step_does_not_fail_for_it():
    machine, engine = engine_of(31, 10)
    engine.make_room(25)
    assert machine.usage() == 1
    with pytest.raises(NoRoom):
        engine.make_room(31)
