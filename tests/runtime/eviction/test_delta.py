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

    def __init__(self, bandwidth=100.0, budget=None, limit_latency=None, **settings):
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
        train(machine, sizes, costs)
        assert machine.copies.moved_bytes == 0
        assert machine.clock == plain.clock if _ == 0 else True
