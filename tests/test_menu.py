"""The rules by which values are made again, on graphs small enough to go through by hand."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.menu import BlockGraph, Cost, Operator, cost_of, course_of

# x -> matmul (0) -> gelu (1) -> matmul (2); dropout's mask (3) is drawn, its output (4) follows.
# Backward needs 4 first, then the mask, gelu's output and gelu's input.
GRAPH = BlockGraph(
    (
        Operator("matmul", (), (0,), True),
        Operator("gelu", (0,), (1,), True),
        Operator("matmul", (1,), (2,), True),
        Operator("mask", (), (3,), False),
        Operator("dropout", (2, 3), (4,), True),
    ),
    uses=(4, 3, 1, 0),
)
SIZES = (100, 100, 50, 10, 50)
SECONDS = (4.0, 1.0, 4.0, 0.5, 0.5)


def test_what_is_drawn_cannot_be_made_again() -> None:
    assert GRAPH.droppable() == (0, 1, 4)
    assert not GRAPH.can_drop((3,))
    assert GRAPH.names() == ("matmul#1", "gelu", "matmul#2", "mask", "dropout")


def test_a_dropped_value_takes_its_own_operators_again() -> None:
    # Its operator's input is held until then, and both are there when it has run.
    assert cost_of(GRAPH, (1,), SIZES, SECONDS) == Cost(160, 1.0, 200, 1)


def test_what_was_made_on_the_way_stays_until_its_own_last_use() -> None:
    # Dropout's output takes the first product and GELU on the way; backward needs both later.
    cost = cost_of(GRAPH, (0, 1, 4), SIZES, SECONDS)
    assert (cost.kept_bytes, cost.seconds, cost.runs) == (10, 4.0 + 1.0 + 4.0 + 0.5, 4)


def test_a_value_that_nobody_needs_later_goes_at_once() -> None:
    # Only dropout's output is dropped: the product before it is made and let go on the way.
    moments = list(course_of(GRAPH, (4,)))
    assert [(m.use, m.ran) for m in moments[:3]] == [(0, (2,)), (0, (4,)), (0, ())]
    assert 2 in moments[1].alive
    assert 2 not in moments[2].alive


@pytest.mark.parametrize("fixed", [frozenset(), frozenset({4})])
def test_what_others_hold_is_not_dropped_nor_counted(fixed: frozenset[int]) -> None:
    graph = BlockGraph(GRAPH.operators, GRAPH.uses, fixed)
    assert graph.can_drop((4,)) is not bool(fixed)
    kept = sum(SIZES[v] for v in graph.saved - fixed)
    assert cost_of(graph, (), SIZES, SECONDS).kept_bytes == kept


def test_graphs_are_told_apart_by_their_digest() -> None:
    other = BlockGraph(GRAPH.operators, GRAPH.uses[::-1])
    assert other.digest != GRAPH.digest
    assert BlockGraph(GRAPH.operators, GRAPH.uses).digest == GRAPH.digest
    with pytest.raises(ValueError, match="one operator makes each"):
        BlockGraph((Operator("a", (), (1,), True),), (0,))


@st.composite
def graphs(draw: st.DrawFn) -> BlockGraph:
    count = draw(st.integers(1, 7))
    operators = []
    for value in range(count):
        inputs = draw(st.sets(st.integers(0, value - 1), max_size=2)) if value else set()
        operators.append(Operator("op", tuple(sorted(inputs)), (value,), draw(st.booleans())))
    uses = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=8))
    return BlockGraph(tuple(operators), tuple(uses))


@settings(deadline=None)
@given(graphs(), st.data())
def test_every_use_finds_its_value(graph: BlockGraph, data: st.DataObject) -> None:
    dropped = data.draw(st.sets(st.sampled_from(sorted(graph.saved))))
    if not graph.can_drop(dropped):
        return
    reached = Counter[int]()
    made: set[int] = set()
    for moment in course_of(graph, dropped):
        for place in moment.ran:
            operator = graph.operators[place]
            assert operator.repeatable
            # What it reads is kept or was made before it, and what it makes is there.
            assert all(i in graph.saved - dropped or i in made for i in operator.inputs)
            made.update(operator.outputs)
            assert set(operator.outputs) <= moment.alive
        if not moment.ran:
            assert graph.uses[moment.use] in moment.alive
            reached[moment.use] += 1
    assert reached == Counter(range(len(graph.uses)))
