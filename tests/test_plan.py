from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.plan import Plan, Region, Remade


@st.composite
def regions(draw: st.DrawFn, first: int, last: int, depth: int = 0) -> tuple[Region, ...]:
    found = []
    position = first
    while position <= last:
        end = draw(st.integers(position, min(last, position + 3)))
        whole = depth > 0 and (position, end) == (first, last)
        if not whole and draw(st.booleans()):
            inner = draw(regions(position, end, depth + 1)) if depth < 3 else ()
            found.append(Region(position, end, inner))
        position = end + 1
    return tuple(found)


VALUES = st.sets(st.integers(0, 20), max_size=3)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 12))
    plan = Plan(count, draw(regions(0, count - 1)))
    cores, remade = [], []
    for block in sorted(set(range(count)) - plan.recomputed):
        match draw(st.sampled_from(["keep", "core", "let go"])):
            case "core":
                cores.append(block)
            case "let go":
                dropped = draw(VALUES)
                offloaded = draw(VALUES) - dropped
                if dropped | offloaded:
                    graph = draw(st.sampled_from(["", "3f9c2a1b"]))
                    remade.append(Remade(block, (*sorted(dropped),), (*sorted(offloaded),), graph))
    return Plan(count, plan.regions, tuple(cores), tuple(remade))


def leaves(items: tuple[Region, ...]) -> set[tuple[int, int]]:
    return {s for r in items for s in {(r.first, r.last)} | leaves(r.inner)}


@settings(deadline=None)
@given(plans())
def test_text_round_trips(plan: Plan) -> None:
    assert Plan.parse(str(plan), plan.num_blocks) == plan
    assert Plan.parse(str(plan)) == plan


@settings(deadline=None)
@given(plans())
def test_json_round_trips(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@settings(deadline=None)
@given(plans())
def test_counts_agree(plan: Plan) -> None:
    assert plan.num_recomputed == len(plan.recomputed)
    assert plan.recomputed <= set(range(plan.num_blocks))
    assert plan.spans_blocks == any(len(r) > 1 for r in plan.regions)
    assert plan.num_remade == len({r.block for r in plan.remade} - plan.recomputed)
    assert plan.keeps_all == (plan == Plan.keep_all(plan.num_blocks))


@settings(deadline=None)
@given(plans(), st.sets(st.integers(1, 11)))
def test_cutting_leaves_no_region_across_a_cut(plan: Plan, cuts: set[int]) -> None:
    cut = plan.cut(cuts)
    assert cut.recomputed == plan.recomputed
    assert all(not first < c <= last for first, last in leaves(cut.regions) for c in cuts)
    assert cut.cut(cuts) == cut
    assert plan.cut([]) == plan


@settings(deadline=None)
@given(plans())
def test_cut_everywhere_is_one_region_a_block(plan: Plan) -> None:
    each = Plan.recompute_each(plan.num_blocks, plan.recomputed)
    cut = plan.cut(range(plan.num_blocks))
    assert cut.regions == each.regions
    assert (cut.cores, cut.remade) == (plan.cores, plan.remade)


def test_a_piece_as_small_as_its_inner_region_takes_its_inside() -> None:
    plan = Plan.parse("recompute 0-5 (recompute 0-3 (recompute 0-1) | keep 4-5)")
    assert str(plan.cut([4])) == "recompute 0-3 (recompute 0-1 | keep 2-3) | recompute 4-5"


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (Plan.keep_all(3), "keep 0-2"),
        (Plan.keep_all(1), "keep 0"),
        (Plan.recompute_each(3), "recompute each 0-2"),
        (Plan.recompute_each(12, [10, 4]), "keep 0-3 | recompute 4 | keep 5-9 | recompute 10"),
        (Plan(4, (Region(1, 3, (Region(2, 3),)),)), "keep 0 | recompute 1-3 (keep 1 | recompute 2"),
        (Plan(9, remade=tuple(Remade(b, (2, 5)) for b in range(4))), "remake 0-3 [2 5] | keep 4-8"),
        (Plan(1, remade=(Remade(0, (2, 5), (), "3f9c"),)), "remake 0 #3f9c [2 5]"),
        (Plan(2, remade=(Remade(0, (2,), (7, 8)),)), "remake 0 [2] offload [7 8] | keep 1"),
        (
            Plan(4, remade=(Remade(0, (2,)), Remade(1, (3,)), Remade(2, (), (3,)))),
            "remake 0 [2] | remake 1 [3] | offload 2 [3] | keep 3",
        ),
    ],
)
def test_reads_as_one_line(plan: Plan, text: str) -> None:
    assert str(plan).startswith(text)


def test_blocks_not_named_are_kept() -> None:
    assert Plan.parse("recompute 2", 5) == Plan(5, (Region(2, 2),))
    assert Plan.parse("recompute 2").num_blocks == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected keep or recompute or selective or remake or offload, found its end"),
        ("keep", "expected a block number, found its end"),
        ("keep 3-1", "out of order"),
        ("keep 0-3 | recompute 2", "out of order"),
        ("drop 0", "expected keep or recompute"),
        ("keep each 0-3", "'each' belongs to recompute"),
        ("keep 0-3 (recompute 1)", "only a single region"),
        ("recompute each 0-3 (recompute 1)", "only a single region"),
        ("recompute 0-3 (recompute 1", "expected"),
        ("keep 0 recompute 1", "unexpected recompute"),
        ("keep 0-3 ; recompute 4", "is not part of a plan"),
        ("recompute 0-3 (recompute 0-3)", "holds itself"),
        ("recompute 0-3 (recompute 5)", "within blocks 0-3"),
        ("remake 0-3", r"expected \[, found its end"),
        ("remake 0-3 []", "expected a value number, found ]"),
        ("remake 0-3 [2", "expected a value number, found its end"),
        ("remake 0 [5 2]", "each once and in order"),
        ("remake 0 [2] offload [2]", "each once and in order"),
        ("keep 0 [2]", r"unexpected \["),
        ("recompute 0-3 (remake 1 [2])", "expected keep or recompute, found remake"),
    ],
)
def test_bad_text_is_one_sentence(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        Plan.parse(text)


def test_a_block_beyond_the_model_is_named() -> None:
    with pytest.raises(ValueError, match="names block 12, but the last block is 11"):
        Plan.parse("keep 0-11 | recompute 12", 12)


@pytest.mark.parametrize(
    "data",
    [None, 3, [], {}, {"num_blocks": 2}, {"num_blocks": 2, "regions": [3]}, {"regions": []}],
)
def test_bad_json_says_what_is_right(data: object) -> None:
    with pytest.raises(ValueError, match="a plan in JSON is"):
        Plan.from_json(data)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Plan(0), "at least one block"),
        (lambda: Plan(2, (Region(0, 2),)), "0-2 is not"),
        (lambda: Plan(4, (Region(2, 3), Region(0, 1))), "0-1 is not"),
        (lambda: Plan(4, (Region(0, 1), Region(1, 2))), "1-2 is not"),
        (lambda: Region(2, 1), "runs from a block"),
        (lambda: Region(-1, 0), "runs from a block"),
        (lambda: Region(0, 1, (Region(0, 1),)), "holds itself"),
        (lambda: Remade(0), "at least one value"),
        (lambda: Remade(0, (-1,)), "at least one value"),
        (lambda: Plan(2, remade=(Remade(2, (0,)),)), "within 0-1, not 2"),
        (lambda: Plan(3, remade=(Remade(1, (0,)), Remade(0, (0,)))), "in order, each once"),
        (lambda: Plan(3, remade=(Remade(1, (0,)), Remade(1, (1,)))), "in order, each once"),
        (lambda: Plan(2, (Region(1, 1),), (), (Remade(1, (0,)),)), "block 1 is recomputed"),
        (lambda: Plan(2, (), (1,), (Remade(1, (0,)),)), "block 1 is recomputed"),
    ],
)
def test_what_is_not_a_plan_cannot_be_made(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()
