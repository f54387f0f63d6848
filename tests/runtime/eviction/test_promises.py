"""What the bus is promised: places in its queue, room in memory, and who waits."""

from types import SimpleNamespace

import pytest

from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.graph import Operator, Storage, Tensor
from mimose.runtime.eviction.promises import Promises
from mimose.runtime.eviction.uses import Uses

SIZE = 100


class Step:
    """Storages made one a second, then read in the reverse order, one a second."""

    def __init__(self, bandwidth=100.0, count=4):
        channel = SimpleNamespace(bandwidth=bandwidth, latency=0.0)
        self.copies = Copies(channel)
        self.uses = Uses()
        self.promises = Promises(self.copies, self.uses)
        self.count = count
        self.begin(whole=False)
        self.go_on(2 * count)
        self.begin(whole=True)

    def begin(self, whole):
        self.uses.begin(0.0)
        self.promises.begin(0, whole=whole)
        self.work = 0.0
        self.storages = []

    def go_on(self, until):
        """Run operators up to a time."""
        while self.work < until:
            number = int(self.work)
            parents, outputs = [], []
            if number < self.count:
                storage = Storage(SIZE, number)
                storage.references = 1
                outputs = [Tensor(storage, Operator((), 1.0, None))]
                storage.tensors = outputs
                self.storages.append(storage)
            else:
                parents = self.storages[2 * self.count - 1 - number].tensors
            self.work += 1.0
            backward = number >= self.count
            self.uses.note(number, parents, outputs, self.work, backward=backward)
            self.promises.note(parents, outputs, self.work)

    def send_away(self, number):
        storage = self.storages[number]
        self.copies.away[storage] = None
        storage.on_host, storage.missing = True, False

    def late(self, number):
        self.promises.look(0.0, self.work)
        return self.promises.seconds_late(self.storages[number], self.work)


def test_one_transfer_hides_behind_the_operators_before_its_use():
    step = Step()
    step.promises.room = 10**6
    step.go_on(4)
    # The last is used after one second, and takes one.
    assert [step.late(number) for number in range(4)] == [0.0] * 4
    slow = Step(bandwidth=50.0)
    slow.promises.room = 10**6
    slow.go_on(4)
    assert [slow.late(number) for number in range(4)] == [0.0, 0.0, 0.0, 1.0]


def test_transfers_queue_in_the_order_of_use_and_push_others():
    step = Step(bandwidth=50.0)  # Each takes two seconds; there are four until the end.
    step.promises.room = 10**6
    step.go_on(4)
    step.send_away(0)  # Used after four seconds.
    assert step.late(1) == 0.0  # Two and two seconds, used after three and four.
    step.send_away(1)
    # The third would be back in time for its own use after two; the first comes after six then.
    assert step.late(2) == 2.0
    # In its place, storage 3 would itself be one late; the first two, by two.
    assert step.late(3) == 2.0


def test_a_wait_that_is_due_anyway_is_not_counted_again():
    step = Step(bandwidth=25.0)  # Each takes four seconds.
    step.promises.room = 10**6
    step.go_on(4)
    step.send_away(3)  # Three seconds late.
    assert step.late(0) == pytest.approx(1.0)  # Behind it, four late: one more.


def test_transfers_under_way_come_first():
    step = Step()
    step.promises.room = 10**6
    step.go_on(4)
    assert step.late(2) == 0.0
    step.copies.arriving[step.storages[3]] = None, None, 1.5
    step.copies._in_until = 1.5
    assert step.late(2) == pytest.approx(0.5)


def test_nothing_comes_back_before_there_is_room():
    step = Step()
    step.promises.room = 2 * SIZE  # Memory for two of four.
    step.go_on(4)
    # All four lie in memory at 4, one is read until 5 and the next until 6: two from then on.
    assert step.promises.seconds_until_room(0) == 2.0
    assert step.promises.seconds_until_room(SIZE) == 1.0
    assert step.promises.seconds_until_room(2 * SIZE) == 0.0
    assert step.late(1) == 0.0  # Used after three seconds, brought back in the last of them.
    assert step.late(2) == 1.0  # Used after two, when there is room only.
    step.send_away(0)
    assert step.late(2) == 0.0  # With the first away, there is room a second earlier.


def test_a_step_fits_if_the_most_that_is_to_come_does():
    step = Step()
    step.promises.room = 4 * SIZE
    step.go_on(1)
    assert step.promises.fits()
    step.promises.room -= 1
    assert not step.promises.fits()
    step.go_on(6)  # Two of four have been read for the last time.
    assert step.promises.fits()


def test_what_comes_back_stays_only_if_nothing_else_needs_the_room():
    step = Step()
    step.promises.room = 3 * SIZE
    step.go_on(4)
    step.send_away(0)
    step.promises.look(0.0, step.work)
    assert not step.promises.stays(SIZE, 4.0)
    step.go_on(5)  # One was read for the last time.
    step.promises.look(0.0, step.work)
    assert step.promises.stays(SIZE, 3.0)


def test_what_is_to_be_computed_again_takes_room_from_when_it_is_due():
    step = Step()
    step.promises.room = 3 * SIZE
    step.go_on(4)
    step.storages[1].missing = True
    step.promises.drop(step.storages[1])
    step.send_away(0)
    step.promises.look(0.0, step.work)
    assert step.promises.stays(SIZE, 4.0)
    step.storages[1].missing = False  # It is back.
    step.promises.look(0.0, step.work)
    assert not step.promises.stays(SIZE, 4.0)


def test_room_is_unknown_in_another_step():
    step = Step()
    step.promises.room = SIZE
    step.uses.note("other", (), (), 1.0, backward=False)
    step.promises.note((), (), 1.0)
    assert step.promises.seconds_until_room(0) == 0.0
    step.promises.room = 100 * SIZE
    assert not step.promises.fits()
