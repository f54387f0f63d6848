"""How plans of several processes are joined, without any process."""

from contextlib import nullcontext

import pytest

from mimose.distributed.agreeing import Agreement
from mimose.plan import Plan, Region, Remade
from mimose.records import Decision


class Memory:
    """A device that only counts."""

    def host_memory(self):
        return nullcontext()


@pytest.fixture
def agree(monkeypatch):
    """Return a function that returns what each of some decisions becomes."""
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: "cpu:gloo")
    agreement = Agreement(4, Memory())

    def agreed(*decisions):
        votes = [agreement._vote(d) for d in decisions]
        joint = [max(column) for column in zip(*votes)]
        monkeypatch.setattr(agreement, "_reduced", lambda _: joint)
        return [agreement.decide(lambda d=d: d) for d in decisions]

    return agreed


def remade(*blocks):
    return Plan(4, (), (), tuple(Remade(b, (1, 2)) for b in blocks))


def test_what_any_recomputes_all_do(agree):
    one, other = agree(
        Decision(Plan.recompute_each(4, [0])), Decision(Plan.recompute_each(4, [1, 2]))
    )
    assert one.plan == other.plan == Plan.recompute_each(4, [0, 1, 2])


def test_equal_plans_stay_as_they_are(agree):
    for plan in (remade(0, 1), Plan(4, (Region(0, 2),)), Plan.keep_all(4)):
        assert [d.plan for d in agree(Decision(plan), Decision(plan))] == [plan, plan]


def test_blocks_that_let_values_go_are_recomputed_whole_where_plans_differ(agree):
    one, other = agree(Decision(remade(0, 1)), Decision(Plan.recompute_each(4, [2])))
    assert one.plan == other.plan == Plan.recompute_each(4, [0, 1, 2])
    one, other = agree(Decision(remade(0)), Decision(Plan.keep_all(4)))
    assert one.plan == other.plan == Plan.recompute_each(4, [0])


def test_when_one_measures_all_do_in_the_same_way(agree):
    measuring = Decision(Plan.recompute_each(4), "sheltered", collect=True, trace=True)
    for decision in agree(measuring, Decision(remade(0, 1), "responsive")):
        assert decision.collect
        assert decision.trace
        assert decision.plan == Plan.recompute_each(4)


def test_plans_that_span_blocks_cannot_be_joined(agree):
    with pytest.raises(ValueError, match="cannot be joined"):
        agree(Decision(Plan(4, (Region(0, 2),))), Decision(Plan.keep_all(4)))
