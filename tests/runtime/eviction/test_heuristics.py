"""Heuristics against slow, readable versions of themselves, and what they look at."""

from __future__ import annotations

import random
from itertools import pairwise
from math import inf, sqrt

import pytest

from mimose.runtime.eviction.engine import Engine
from mimose.runtime.eviction.graph import Storage
from mimose.runtime.eviction.heuristics import HEURISTICS, AtRandom, Dtr, DtrEq, Lru, Msps
from mimose.runtime.eviction.player import Call, Machine, Release, play, unit_chain
from mimose.runtime.eviction.pool import Pool


def random_log(seed, count=60, views=True):
    """Operators with several arguments and outputs, views, releases, sizes and costs at random."""
    draw = random.Random(seed)
    log, alive = [Call("f", (), ("t0",), (3,), (-1,), 2)], ["t0"]
    for k in range(1, count):
        arguments = tuple(draw.choice(alive[-8:]) for _ in range(draw.randint(1, 3)))
        results = tuple(f"t{k}.{i}" for i in range(draw.randint(1, 2)))
        aliases = tuple(
            draw.randrange(len(arguments)) if views and draw.random() < 0.2 else -1 for _ in results
        )
        sizes = tuple(draw.randint(0, 6) if alias < 0 else 0 for alias in aliases)
        log.append(Call("f", arguments, results, sizes, aliases, draw.randint(0, 20)))
        alive += results
        if draw.random() < 0.6 and len(alive) > 4:
            log.append(Release(alive.pop(draw.randrange(len(alive)))))
    return log


def neighbours(storage, upward):
    for tensor in storage.tensors:
        if upward:
            for parent in tensor.operator.parents if tensor.operator else ():
                yield parent.storage
        else:
            for operator in tensor.children:
                for output in operator.outputs:
                    yield output.storage


def reached(storage, upward):
    """The missing storages reached from one through missing ones."""
    found, todo = set(), [storage]
    while todo:
        for other in neighbours(todo.pop(), upward):
            if other.missing and other not in found and other is not storage:
                found.add(other)
                todo.append(other)
    return found


def above(storage):
    return sum(other.cost for other in reached(storage, True))


def below(storage):
    return sum(other.cost for other in reached(storage, False))


def per_byte_and_staleness(cost, storage, now):
    scale = storage.size * (now - storage.accessed)
    return cost / scale if scale > 0 else inf


def slow_dtr(storage, now):
    return per_byte_and_staleness(storage.cost + above(storage) + below(storage), storage, now)


def slow_msps(storage, now):
    return (storage.cost + above(storage)) / storage.size if storage.size else inf


class Checked:
    """Compares every worth with a slow version of it."""

    slow = None
    looked_at = 0

    def evaluate(self, storage, now):
        worth = super().evaluate(storage, now)
        assert worth == type(self).slow(storage, now)
        type(self).looked_at += 1
        return worth


class CheckedDtr(Checked, Dtr):
    slow = staticmethod(slow_dtr)


class CheckedMsps(Checked, Msps):
    slow = staticmethod(slow_msps)


@pytest.mark.parametrize("checked", [CheckedDtr, CheckedMsps])
@pytest.mark.parametrize("eager", [True, False])
def test_what_is_remembered_of_neighbourhoods_is_what_walking_finds(checked, eager):
    checked.looked_at = 0
    for seed in range(25):
        log = random_log(seed)
        peak = play(log, Lru(), None).peak
        for share in (0.4, 0.7):
            play(log, checked(), int(peak * share), eager=eager, thrash_limit=20)
    assert checked.looked_at > 2000


class SlowDtrEq(DtrEq):
    """Components as sets of storages with a cost, merged by going through all of them."""

    def begin(self, stats):
        super().begin(stats)
        self.components = []
        self.looked_at = 0

    def of(self, storage):
        (found,) = (component for component in self.components if storage in component[0])
        return found

    def around(self, storage):
        everyone = [*neighbours(storage, True), *neighbours(storage, False)]
        found = []
        for other in everyone:
            if other.missing and other is not storage and self.of(other) not in found:
                found.append(self.of(other))
        return found

    def evaluate(self, storage, now):
        worth = super().evaluate(storage, now)
        cost = storage.cost + sum(component[1] for component in self.around(storage))
        assert worth == per_byte_and_staleness(cost, storage, now)
        self.looked_at += 1
        return worth

    def announced(self, operator):
        super().announced(operator)
        for output in operator.outputs:
            if output.storage.missing and output is output.storage.tensors[0]:
                self.components.append([{output.storage}, 0])

    def evicted(self, storage):
        super().evicted(storage)
        joined = [{storage}, storage.cost]
        for component in self.around_but(storage):
            self.components.remove(component)
            joined[0] |= component[0]
            joined[1] += component[1]
        self.components.append(joined)

    def around_but(self, storage):
        self.components.append([{storage}, 0])
        found = [component for component in self.around(storage) if storage not in component[0]]
        self.components.remove([{storage}, 0])
        return found

    def restored(self, storages):
        super().restored(storages)
        for storage in storages:
            component = self.of(storage)
            component[1] -= storage.cost
            component[0].remove(storage)
            if not component[0]:
                self.components.remove(component)


@pytest.mark.parametrize("eager", [True, False])
def test_union_find_is_merging_sets(eager):
    looked_at = 0
    for seed in range(25):
        log = random_log(seed)
        peak = play(log, Lru(), None).peak
        policy = SlowDtrEq()
        play(log, policy, int(peak * 0.5), eager=eager, thrash_limit=20)
        looked_at += policy.looked_at
    assert looked_at > 1000


def test_components_leave_their_links_behind():
    machine = Machine()
    engine = Engine(machine, DtrEq(), None)

    def made(cost, *parents):
        return engine.complete(parents, [(1, None)], cost).outputs[0]

    a = made(1)
    b = made(10, a)
    left, right = made(100, b), made(1000, b)
    last = made(10000, left)
    cost = engine.policy.cost
    assert [cost(t.storage) for t in (a, b, left, right, last)] == [1, 10, 100, 1000, 10000]
    for tensor in (b, left, right):
        engine.surrender(tensor.storage)
    assert cost(last.storage) == 11110
    engine.fetch([b])
    # b took out its cost. The right one has nothing to do with the last any more, but stays.
    assert cost(last.storage) == 11100
    assert cost(b.storage) == 1110


def pool_of(sizes, accessed=None):
    pool = Pool()
    for number, size in enumerate(sizes):
        storage = Storage(size, number)
        storage.accessed = accessed[number] if accessed else 0
        storage.cost = 6
        pool[storage] = None
    return pool


@pytest.mark.parametrize(
    ("name", "sizes", "accessed", "chosen"),
    [
        ("lru", [1, 1, 1], [2, 1, 3], 1),
        ("lru", [1, 1, 1], [1, 1, 3], 1),  # the last among equals
        ("largest", [1, 5, 5, 0], None, 2),
        ("largest", [0, 0], None, 1),
        ("h_DTR_local", [1, 2, 1], [0, 6, 2], 0),
        ("h_DTR_local", [1, 2, 1], [10, 10, 10], 2),  # all used just now
        ("h_DTR", [1, 2, 1], [0, 6, 2], 0),
        ("h_DTR_eq", [1, 3, 1], [0, 6, 2], 1),
        ("msps", [1, 3, 2], None, 1),
    ],
)
def test_who_is_chosen(name, sizes, accessed, chosen):
    policy = HEURISTICS[name]()
    policy.begin(Engine(Machine(), policy, None).stats)
    assert policy.choose(pool_of(sizes, accessed), 10).number == chosen
    assert policy.stats.evaluations == len(sizes)


def test_a_worth_of_0_ends_the_search():
    policy = HEURISTICS["h_DTR_local"]()
    pool = pool_of([1, 1, 1])
    for storage in pool:
        storage.cost = 0
    assert policy.choose(pool, 10).number == 0
    assert policy.stats.evaluations == 1


@pytest.mark.parametrize("n", [1, 3, 10, 100, 1000])
def test_a_sample_is_about_twice_the_root(n):
    pool = pool_of(range(n))
    sizes = []
    for seed in range(200):
        sample = pool.sample(random.Random(seed))
        numbers = [storage.number for storage in sample]
        assert numbers[0] == 0
        steps = [b - a for a, b in pairwise(numbers)]
        assert all(1 <= step <= sqrt(n) for step in steps)
        sizes.append(len(sample))
    assert sum(sizes) / len(sizes) == pytest.approx(min(n, 2 * sqrt(n)), rel=0.35)


def test_a_sampling_heuristic_looks_at_its_sample_only():
    policy = Lru(sampling=True)
    seen = []
    policy.evaluate = lambda storage, now: seen.append(storage.number) or 1
    pool = pool_of([1] * 400)
    policy.choose(pool, 1)
    assert 20 < len(seen) < 80
    assert policy.stats.evaluations == len(seen)


@pytest.mark.parametrize("policy", [AtRandom, lambda **o: DtrEq(sampling=True, **o)])
def test_chance_is_seeded(policy):
    def evictions(**options):
        return play(unit_chain(60), policy(**options), 20).evictions

    assert evictions() == evictions() == evictions(seed=0)
    assert any(evictions(seed=seed) != evictions() for seed in range(1, 4))


def test_every_one_of_random_is_chosen_at_times():
    policy = AtRandom()
    pool = pool_of([1] * 10)
    assert {policy.choose(pool, 0).number for _ in range(300)} == set(range(10))


@pytest.mark.parametrize("name", sorted(HEURISTICS))
@pytest.mark.parametrize("sampling", [False, True])
def test_a_chain_is_played_within_its_budget(name, sampling):
    outcome = play(unit_chain(40), HEURISTICS[name](sampling=sampling), 12, thrash_limit=50)
    assert outcome.status == "ok"
    assert outcome.peak <= 12
    assert outcome.stats.operator_cost == 80
    assert outcome.clock == 80 + outcome.stats.recompute_cost


def test_what_is_read_to_choose_is_told_from_upkeep():
    """The two have prices of their own in a simulation."""
    tight, free = (play(unit_chain(30), DtrEq(), budget).stats for budget in (10, None))
    assert 0 < tight.read < tight.accesses - tight.evaluations
    # Nothing is chosen without a budget, and what is released still joins a component.
    assert free.read == free.evaluations == 0
    assert free.accesses > 0
