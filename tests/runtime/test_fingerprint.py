"""Containers that hold what they held, and those that do not, told by identity."""

from collections import OrderedDict, deque

import pytest

from mimose.runtime.fingerprint import AttributePrint, Fingerprint


class Things:
    def __init__(self):
        self.first, self.second = object(), 1


def attributes():
    return vars(Things())


MAKERS = [
    lambda: {"a": object(), "b": 2},
    lambda: OrderedDict(a=object(), b=2),
    lambda: {1: object(), 2: 2},
    lambda: [object(), 2],
    lambda: deque([object(), 2]),
    attributes,
]


def replace_one(container):
    first = next(iter(container)) if isinstance(container, dict) else 0
    container[first] = object()


def take_one(container):
    if isinstance(container, dict):
        container.popitem()
    else:
        container.pop()


def add_one(container):
    if isinstance(container, dict):
        container["new"] = None
    else:
        container.append(None)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("change", [replace_one, take_one, add_one])
def test_every_change_is_noticed(make, change):
    container = make()
    held = Fingerprint([{}, container, []])
    assert held.stays()
    change(container)
    assert not held.stays()


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_another_key_for_the_same_value_is_noticed(kind):
    container = kind(a=True)
    held = Fingerprint([container])
    del container["a"]
    container["b"] = True
    assert not held.stays()


def test_another_order_is_noticed():
    container = OrderedDict(a=True, b=True)
    held = Fingerprint([container])
    container.move_to_end("a")
    assert not held.stays()


def test_sets_count_as_well():
    members = {1, 2}
    held = Fingerprint([members])
    assert held.stays()
    members.remove(2)
    members.add(3)
    assert not held.stays()


def test_an_equal_value_is_another_one():
    container = {"a": [1]}
    held = Fingerprint([container])
    container["a"] = [1]
    assert not held.stays()


def test_which_container_holds_a_value_counts_only_if_asked_for():
    one, other = {"a": 1, "b": 2}, {}
    apart, together = Fingerprint([one, other]), Fingerprint([one, other], apart=False)
    other["b"] = one.pop("b")
    assert not apart.stays()
    assert together.stays()


def test_dictionaries_that_the_collector_does_not_look_into_are_read_all_the_same(monkeypatch):
    # As those of objects' attributes from Python 3.13 on.
    monkeypatch.setattr("mimose.runtime.fingerprint.get_referents", lambda *_: [])
    container = {"a": 1}
    held = Fingerprint([container])
    assert held.stays()
    container["a"] = 2
    assert not held.stays()


class TestAttributes:
    @pytest.fixture
    def things(self):
        return Things()

    @pytest.fixture
    def held(self, things):
        return AttributePrint([vars(things), vars(Things())], {"second"})

    def test_those_left_out_may_change(self, things, held):
        things.second = 2
        assert held.stays()

    def test_others_may_not(self, things, held):
        things.first = object()
        assert not held.stays()

    def test_one_that_is_gone(self, things, held):
        del things.first
        assert not held.stays()

    def test_one_that_is_new(self, things, held):
        things.third = None
        assert not held.stays()

    def test_a_first_one_beside_those_left_out(self):
        things = Things()
        del things.first
        held = AttributePrint([vars(things)], {"second"})
        things.first = None
        assert not held.stays()
