"""Filter, director, copies ahead and prefetching, on a machine of made-up times."""

import random

import pytest

from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.delta import Delta
from mimose.runtime.eviction.engine import Engine, NoRoom
from mimose.runtime.eviction.swapping import Swapper
from mimose.runtime.eviction.uses import Uses


class Bus:
    """A channel: one queue a direction, on the machine's clock. What it moves are values."""

    latency = 0.125

    def __init__(self, machine, bandwidth):
        self.machine = machine
        self.bandwidth = bandwidth
        self.ends = {"out": 0.0, "in": 0.0}
        self.waited = 0.0
        self.log = []

    def _transfer(self, way, size):
        self.ends[way] = max(self.ends[way], self.machine.clock) + size / self.bandwidth
        return self.ends[way]

    def send(self, data):
        value, size = data
        self.log.append(("out", size))
        return (value, size), self._transfer("out", size)

    def fetch(self, host):
        self.log.append(("in", host[1]))
        return host, self._transfer("in", host[1])

    def is_done(self, transfer):
        return transfer <= self.machine.clock

    def wait(self, transfer):
        late = max(0.0, transfer - self.machine.clock)
        self.waited += late
        self.machine.clock += late

    def waited_seconds(self):
        waited, self.waited = self.waited, 0.0
        return waited


class Machine:
    """A backend whose data are numbers, with one kernel after the other and a bus beside them."""

    def __init__(self, bandwidth=100.0, budget=None, **settings):
        self.clock = 1.0
        self.used = self.peak = 0
        self.values = {}
        self.bus = Bus(self, bandwidth)
        self.copies = Copies(self.bus)
        self.uses = Uses()
        prefetch = settings.setdefault("prefetch", True)
        self.policy = Delta(self.copies, self.uses, **settings)
        self.engine = Engine(self, self.policy, budget)
        self.swapper = None
        if self.policy._actions != "recompute" and budget is not None:
            self.swapper = Swapper(
                self.engine,
                self.policy,
                self.copies,
                self.uses,
                self.start_copy,
                self.bring_ahead,
                prefetch=prefetch,
            )

    # what the engine asks for

    def now(self):
        return self.clock

    def usage(self):
        return self.used

    def rerun(self, operator):
        self.take(operator.size)
        values = self.compute(operator.parents, operator.payload)
        self.clock += operator.cost
        for output in operator.outputs:
            if output.defined:
                self.used -= output.storage.size
            else:
                self.values[output.storage] = values

    def drop(self, storage):
        self.copies.forget(storage)
        if not storage.on_host:
            del self.values[storage]
            self.used -= storage.size

    def swap_out(self, storage):
        self.copies.send_away(storage, self.data(storage), self.clock)
        del self.values[storage]
        self.used -= storage.size

    def swap_in(self, storage):
        def receive(data):
            self.values[storage] = data[0]
            self.take(storage.size)

        self.copies.bring_back(storage, receive, self.clock)

    def bring_ahead(self, storage):
        self.engine.swap_in(storage)
        storage.accessed = self.clock
        return True

    def start_copy(self, storage):
        self.copies.start(storage, self.data(storage), self.clock)

    # a model

    def data(self, storage):
        return self.values[storage], storage.size

    def take(self, size):
        self.used += size
        self.peak = max(self.peak, self.used)

    def compute(self, parents, payload):
        self.copies.await_arrival([parent.storage for parent in parents])
        return hash((payload, *(self.values[parent.storage] for parent in parents)))

    def begin(self):
        self.engine.begin()
        self.copies.begin()
        self.used = self.peak = 0
        self.values.clear()
        if self.swapper is not None:
            self.swapper.begin()

    def end(self):
        if self.swapper is not None:
            self.swapper.end()

    def constant(self, size):
        tensor = self.engine.constant(size)
        self.values[tensor.storage] = size
        self.take(size)
        return tensor

    def run(self, name, parents, size, cost, backward=False):
        engine = self.engine
        engine.request(parents)
        engine.make_room(size)
        value = self.compute(parents, name)
        self.take(size)
        self.clock += cost
        operator = engine.complete(parents, [(size, None)], cost, name)
        output = operator.outputs[0]
        self.values[output.storage] = value
        if self.swapper is not None:
            self.swapper.operated(name, parents, (output,), size, backward=backward)
        return output

    def release(self, tensor):
        self.engine.release(tensor)


def train(machine, sizes, costs, pause=0.0):
    """Run a chain forward and backward; return the gradients' values."""
    machine.begin()
    x = machine.constant(8)
    kept = [x]
    for k, (size, cost) in enumerate(zip(sizes, costs)):
        kept.append(machine.run(f"f{k}", [kept[-1]], size, cost))
    gradient = machine.run("loss", [kept[-1]], 1, 1.0, backward=True)
    found = []
    for k in range(len(sizes) - 1, -1, -1):
        arguments = [gradient, kept[k], kept[k + 1]]
        after = machine.run(f"b{k}", arguments, sizes[k], 2 * costs[k], backward=True)
        machine.release(gradient)
        machine.release(kept[k + 1])
        gradient = after
        found.append(machine.values[gradient.storage])
    machine.end()
    return found


def chain(n=40, seed=0):
    draw = random.Random(seed)
    return [draw.randrange(50, 150) for _ in range(n)], [
        draw.choice([0.5, 1.0, 4.0]) for _ in range(n)
    ]


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("filter", ["base", "lru", "greedy"])
@pytest.mark.parametrize("actions", ["recompute", "swap", "both"])
def test_results_are_those_of_a_machine_without_a_limit(actions, filter, prefetch):
    sizes, costs = chain()
    plain = Machine()
    expected = train(plain, sizes, costs)
    budget = int(0.5 * plain.peak)
    machine = Machine(budget=budget, actions=actions, filter=filter, prefetch=prefetch)
    for _ in range(3):
        assert train(machine, sizes, costs) == expected
        assert machine.peak <= budget
        stats = machine.engine.stats
        assert (stats.num_evictions > 0) <= (actions != "swap")
        assert (machine.copies.num_out > 0) <= (actions != "recompute")
        assert stats.num_evictions + stats.num_swaps_out > 0


def test_without_pressure_nothing_moves():
    sizes, costs = chain()
    plain = Machine()
    train(plain, sizes, costs)
    machine = Machine(budget=3 * plain.peak, actions="both")
    for _ in range(2):
        begun = machine.clock
        train(machine, sizes, costs)
        assert machine.copies.moved_bytes == 0
        assert machine.clock - begun == plain.clock - 1.0


def test_a_step_that_is_known_to_fit_copies_nothing_ahead():
    sizes, costs = chain()
    plain = Machine()
    train(plain, sizes, costs)
    machine = Machine(budget=int(1.3 * plain.peak), actions="both")
    moved, looked = [], []
    for _ in range(2):
        train(machine, sizes, costs)
        moved.append(machine.copies.moved_bytes)
        looked.append(machine.engine.stats.evaluations)
    # The first goes by how full memory is, the second by the first.
    assert moved[0] > 0
    assert looked[0] > 0
    assert moved[1] == looked[1] == 0


def test_a_storage_is_copied_out_once_for_as_long_as_it_lasts():
    machine = Machine(budget=10**6, actions="swap")
    machine.begin()
    x = machine.constant(8)
    a = machine.run("a", [x], 100, 1.0)
    storage, value = a.storage, machine.values[a.storage]
    for _ in range(3):
        machine.engine.swap_out(storage)
        assert storage.on_host
        assert machine.copies.away_bytes == 100
        machine.engine.fetch([a])
        machine.copies.await_arrival([storage])
        assert machine.values[storage] == value
        assert machine.copies.away_bytes == 0
    assert (machine.copies.num_out, machine.copies.num_in) == (1, 3)
    assert machine.copies.moved_bytes == 400
    machine.release(a)
    assert not machine.copies.has(storage)


def test_what_is_used_again_before_its_copy_is_whole_stays():
    machine = Machine(bandwidth=10.0, budget=10**6, actions="swap")
    machine.begin()
    a = machine.run("a", [machine.constant(8)], 100, 1.0)
    machine.start_copy(a.storage)
    begun = machine.clock
    machine.run("b", [a], 100, 1.0)
    assert machine.clock == begun + 1.0  # It did not wait for the copy.
    machine.copies.await_departure([a.storage])
    assert machine.clock == begun + 10.0
    machine.engine.swap_out(a.storage)
    assert machine.clock == begun + 10.0  # The copy is valid still.


def test_memory_that_a_copy_reads_is_freed_only_when_that_is_over():
    machine = Machine(bandwidth=10.0, budget=10**6, actions="swap")
    machine.begin()
    a = machine.run("a", [machine.constant(8)], 100, 1.0)
    machine.start_copy(a.storage)
    begun = machine.clock
    machine.release(a)
    assert machine.clock == begun + 10.0
    assert not machine.copies.outgoing
    assert machine.copies.outgoing_bytes == 0


@pytest.mark.parametrize(
    ("cost", "copied", "expected"),
    [(50.0, False, "swap"), (1.0, False, "drop"), (1.0, True, "swap"), (1e-9, True, "drop")],
)
def test_the_director_takes_what_is_cheaper(cost, copied, expected):
    machine = Machine(bandwidth=10.0, budget=10**6, actions="both")
    machine.begin()
    a = machine.run("a", [machine.constant(8)], 100, cost)
    for k in range(40):
        machine.run(f"later{k}", [machine.constant(8)], 1, 1.0)
    if copied:
        machine.start_copy(a.storage)
        machine.clock += 100.0
        machine.copies.poll()
    machine.policy.choose(machine.engine.pool, machine.clock)
    assert machine.policy.action(a.storage) == expected


def test_recomputing_costs_what_would_have_to_run_again():
    machine = Machine(budget=10**6, actions="both")
    machine.begin()
    tensors = [machine.constant(8)]
    for k in range(4):
        tensors.append(machine.run(f"f{k}", [tensors[-1]], 10, 2.0**k))
    engine, policy = machine.engine, machine.policy
    last = tensors[4].storage
    assert policy.recompute_seconds(last, 1e9) == 8.0
    engine._drop(tensors[3].storage)
    engine._drop(tensors[1].storage)
    assert policy.recompute_seconds(last, 1e9) == 8.0 + 4.0  # The second one is there.
    engine.swap_out(tensors[2].storage)
    assert policy.recompute_seconds(last, 1e9) == 8.0 + 4.0  # On the host, it is there as well.
    engine._drop(tensors[2].storage)
    assert policy.recompute_seconds(last, 1e9) == 15.0


class TestUses:
    """A step of three storages, used in the reverse order."""

    def step(self, uses, machine, pace=1.0, keys=("a", "b", "c", "bc", "bb", "ba")):
        uses.begin(machine.clock)
        engine, made, seen = machine.engine, [], []
        engine.begin()
        for position, key in enumerate(keys):
            machine.clock += pace
            backward = position >= 3
            parents = [made[5 - position]] if backward else []
            outputs = [engine.complete((), [(1, None)], 1.0, key).outputs[0]]
            uses.note(key, parents, outputs, machine.clock, backward=backward)
            made.extend(outputs)
            seen.append([uses.seconds_until(t.storage, machine.clock) for t in made[:3]])
        return made, seen

    def test_known_from_the_step_before_at_its_own_pace(self):
        uses, machine = Uses(), Machine()
        self.step(uses, machine)
        assert not uses.known
        _, seen = self.step(uses, machine, pace=10.0)
        assert uses.known
        assert seen[2] == pytest.approx([30.0, 20.0, 10.0])
        assert seen[4] == pytest.approx([10.0, float("inf"), float("inf")])

    def test_guessed_at_first(self):
        uses, machine = Uses(), Machine()
        _, seen = self.step(uses, machine)
        assert seen[2] == [2.0, 1.0, 0.0]
        # Backward began at 4: what was made at 1 is used twice as long after that as before it.
        assert seen[3] == [6.0, 4.0, 2.0]

    def test_another_operator_makes_it_a_guess_again(self):
        uses, machine = Uses(), Machine()
        self.step(uses, machine)
        self.step(uses, machine, keys=("a", "x", "c", "bc", "bb", "ba"))
        assert not uses.known

    def test_a_step_that_was_given_up_is_not_learnt_from(self):
        uses, machine = Uses(), Machine()
        self.step(uses, machine)
        self.step(uses, machine, keys=("a",))
        uses.abandon()
        self.step(uses, machine)
        assert uses.known

    def test_wanted_in_the_order_of_use_and_for_what_is_missing(self):
        uses, machine = Uses(), Machine()
        self.step(uses, machine)
        uses.begin(machine.clock)
        machine.engine.begin()
        made = []
        for key in ("a", "b", "c"):
            made += machine.engine.complete(made[-1:], [(1, None)], 1.0, key).outputs
            uses.note(key, (), made[-1:], machine.clock, backward=False)
        a, b = made[0].storage, made[1].storage
        assert uses.next_wanted() is None
        a.on_host = b.on_host = True
        uses.look_again()
        assert uses.next_wanted() is b
        b.on_host, b.missing = False, True
        uses.look_again()
        assert uses.next_wanted() is a


def test_prefetching_hides_what_the_bus_takes():
    sizes, costs = [100] * 40, [5.0] * 40
    plain = Machine()
    train(plain, sizes, costs)
    clocks = {}
    for prefetch in (True, False):
        machine = Machine(
            bandwidth=100.0, budget=int(0.7 * plain.peak), actions="swap", prefetch=prefetch
        )
        for _ in range(2):
            begun = machine.clock
            train(machine, sizes, costs)
            clocks[prefetch] = machine.clock - begun
            assert machine.copies.num_in > 0
    free = plain.clock - 1.0
    assert clocks[True] == pytest.approx(free)
    assert clocks[False] > 1.02 * free


def test_no_room_is_found_out():
    machine = Machine(budget=150, actions="both")
    machine.begin()
    a = machine.run("a", [machine.constant(8)], 100, 1.0)
    with pytest.raises(NoRoom):
        machine.run("b", [a], 100, 1.0)
