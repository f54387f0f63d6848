"""The peak model against a simulator that only allocates and frees."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.costs import (
    Profile,
    _letting_values_go,
    _Timeline,
    grown_gradients,
    predict_peak,
)
from mimose.plan import Plan, Region, Remade
from mimose.records import ModelInfo, Situation


@dataclass(frozen=True)
class Block:
    activation: int
    output: int
    forward_temporary: int
    backward_temporary: int
    gradient: int


@dataclass(frozen=True)
class Chain:
    blocks: tuple[Block, ...]
    embedding: int
    head: int
    other_gradient: int
    optimizer_temporary: int
    optimizer_state: int


class Simulator:
    """One training step of a chain: every byte is allocated and freed in order."""

    def __init__(self, chain: Chain, *, grads_resident: bool = True, ready: bool = True) -> None:
        self.chain = chain
        self.grads_resident = grads_resident
        self.ready = ready
        self.now = 0
        self.peak = 0
        self.since = 0
        self.facts: dict[str, list[int]] = {"level": [], "kept": [], "checkpoint": []}
        self.backward_peaks: dict[int, int] = {}
        self.let_go: dict[int, int] = {}

    def use(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)
        self.since = max(self.since, self.now)

    def mark(self) -> int:
        seen, self.since = self.since, self.now
        return seen

    def run(self, plan: Plan) -> int:
        chain = self.chain
        last = len(chain.blocks) - 1
        self.use(chain.embedding)
        self.first = self.mark()
        items = split(plan.regions, 0, last)
        for item in items:
            self.forward(item)
        self.mark()
        self.use(chain.head)
        self.use(chain.blocks[last].output)  # The gradient of the last output.
        self.use(-chain.head)
        if not self.grads_resident:
            self.use(chain.other_gradient // 2)
        self.head = self.mark()
        for item in reversed(items):
            self.backward(item)
        self.mark()
        if not self.grads_resident:
            self.use(chain.other_gradient - chain.other_gradient // 2)
        self.use(-2 * chain.embedding)  # The first block's input and its gradient.
        self.tail = self.mark()
        self.use(0 if self.ready else chain.optimizer_state)
        self.use(chain.optimizer_temporary)
        self.optimizer = self.mark()
        return self.peak

    def input_of(self, block: int) -> int:
        return self.chain.blocks[block - 1].output if block else self.chain.embedding

    def forward(self, item: int | Region) -> None:
        if isinstance(item, int):
            block = self.chain.blocks[item]
            self.use(block.activation)
            self.use(block.forward_temporary)
            self.use(block.output)
            self.use(-block.forward_temporary)
            self.use(-self.let_go.get(item, 0))
            return
        for number in range(item.first, item.last + 1):
            block = self.chain.blocks[number]
            before = self.now
            self.facts["level"].append(before)
            self.mark()
            self.use(block.activation // 2 + block.forward_temporary)
            self.use(block.output)
            self.facts["checkpoint"].append(self.mark() - before)
            self.use(-(block.activation // 2 + block.forward_temporary))
            if number > item.first:
                self.use(-self.input_of(number))

    def backward(self, item: int | Region) -> None:
        if isinstance(item, int):
            self.use(self.let_go.get(item, 0))
            self.block_backward(item)
        elif item.first == item.last:
            block = self.chain.blocks[item.first]
            self.mark()
            self.use(block.activation)
            self.use(block.forward_temporary)
            self.use(-block.forward_temporary)
            self.block_backward(item.first)
            self.backward_peaks[item.first] = self.mark()
        else:
            inner = split(item.inner, item.first, item.last)
            for part in inner[:-1]:
                self.forward(part)
            tail = inner[-1]
            if isinstance(tail, int):
                block = self.chain.blocks[tail]
                self.use(block.activation)
                self.use(block.forward_temporary)
                self.use(-block.forward_temporary)
            for part in reversed(inner):
                self.backward(part)

    def block_backward(self, number: int) -> None:
        block = self.chain.blocks[number]
        self.use(block.backward_temporary)
        self.use(block.gradient)
        if self.grads_resident:
            self.use(-block.gradient)
        self.use(self.input_of(number))  # The gradient of its input.
        self.use(-block.backward_temporary)
        self.use(-block.activation)
        self.use(-2 * block.output)  # Its output, saved by the next block, and its gradient.


def split(regions: tuple[Region, ...], first: int, last: int) -> list[int | Region]:
    owner = {b: r for r in regions for b in range(r.first, r.last + 1)}
    items: list[int | Region] = []
    for block in range(first, last + 1):
        region = owner.get(block)
        if region is None:
            items.append(block)
        elif block == region.first:
            items.append(region)
    return items


def profile_of(chain: Chain) -> Profile:
    simulator = Simulator(chain)
    count = len(chain.blocks)
    simulator.run(Plan.recompute_each(count))
    blocks = chain.blocks
    return Profile(
        activation=tuple(b.activation for b in blocks),
        output=tuple(b.output for b in blocks),
        level=tuple(simulator.facts["level"]),
        kept_peak=tuple(b.activation + b.forward_temporary + b.output for b in blocks),
        checkpoint_peak=tuple(simulator.facts["checkpoint"]),
        backward_peak=tuple(simulator.backward_peaks[i] for i in range(count)),
        forward_seconds=(0.0,) * count,
        first_peak=simulator.first,
        head_peak=simulator.head,
        tail_peak=simulator.tail,
        optimizer_peak=simulator.optimizer,
        optimizer_state=chain.optimizer_state,
    )


def info_of(chain: Chain) -> ModelInfo:
    return ModelInfo(
        block_names=tuple(f"block.{i}" for i in range(len(chain.blocks))),
        grad_bytes=tuple(b.gradient for b in chain.blocks),
        other_grad_bytes=chain.other_gradient,
    )


sizes = st.integers(0, 1000)


@st.composite
def chains(draw: st.DrawFn, *, quiet: bool = False) -> Chain:
    """Draw a chain; in a ``quiet`` one no forward pass needs more than its block's backward."""
    blocks = []
    for _ in range(draw(st.integers(1, 8))):
        forward = draw(sizes)
        backward = draw(sizes) + (forward if quiet else 0)
        blocks.append(Block(draw(sizes), draw(sizes), forward, backward, draw(sizes)))
    rest = [draw(sizes) for _ in range(5)]
    return Chain(tuple(blocks), *rest)


@st.composite
def regions(draw: st.DrawFn, first: int, last: int, depth: int = 0) -> tuple[Region, ...]:
    found = []
    position = first
    while position <= last:
        end = draw(st.integers(position, last))
        whole = depth > 0 and (position, end) == (first, last)
        if not whole and draw(st.booleans()):
            inner = draw(regions(position, end, depth + 1)) if depth < 3 else ()
            found.append(Region(position, end, inner))
        position = end + 1
    return tuple(found)


@st.composite
def chains_and_plans(draw: st.DrawFn) -> tuple[Chain, Plan]:
    chain = draw(chains())
    count = len(chain.blocks)
    return chain, Plan(count, draw(regions(0, count - 1)))


@settings(deadline=None)
@given(chain=chains(quiet=True), data=st.data())
def test_exact_for_one_block_regions(chain: Chain, data: st.DataObject) -> None:
    count = len(chain.blocks)
    plan = Plan.recompute_each(count, data.draw(st.sets(st.integers(0, count - 1))))
    peak = predict_peak(profile_of(chain), plan, info_of(chain), Situation(17))
    assert peak.bytes == 17 + Simulator(chain).run(plan)


@settings(max_examples=400, deadline=None)
@given(chains_and_plans())
def test_never_too_low_and_off_by_temporaries_at_most(case: tuple[Chain, Plan]) -> None:
    chain, plan = case
    simulated = Simulator(chain).run(plan)
    predicted = predict_peak(profile_of(chain), plan, info_of(chain), Situation(0)).bytes
    assert predicted >= simulated
    # What a recomputation of several blocks holds besides is bounded by its last block's
    # backward: temporaries, its input's gradient, a parameter's gradient.
    most = max(
        b.forward_temporary + b.backward_temporary + b.gradient + i
        for b, i in zip(chain.blocks, [chain.embedding, *(b.output for b in chain.blocks)])
    )
    assert predicted <= simulated + most


@settings(deadline=None)
@given(chains_and_plans())
def test_exact_at_the_head_whatever_the_plan(case: tuple[Chain, Plan]) -> None:
    chain, plan = case
    chain = replace(chain, head=1_000_000)
    peak = predict_peak(profile_of(chain), plan, info_of(chain), Situation(0))
    assert peak.where == "head"
    assert peak.bytes == Simulator(chain).run(plan)


@settings(deadline=None)
@given(chains_and_plans(), st.booleans())
def test_gradients_that_grow_are_counted(case: tuple[Chain, Plan], ready: bool) -> None:
    chain, plan = case
    simulated = Simulator(chain, grads_resident=False, ready=ready).run(plan)
    situation = Situation(0, grads_resident=False, optimizer_ready=ready)
    predicted = predict_peak(profile_of(chain), plan, info_of(chain), situation).bytes
    assert predicted >= simulated
    resident = predict_peak(profile_of(chain), plan, info_of(chain), Situation(0)).bytes
    gradients = sum(b.gradient for b in chain.blocks) + chain.other_gradient
    assert predicted <= resident + gradients + (0 if ready else chain.optimizer_state)


@settings(deadline=None)
@given(chain=chains(quiet=True), data=st.data(), grads_resident=st.booleans())
def test_exact_where_kept_blocks_let_values_go(
    chain: Chain, data: st.DataObject, grads_resident: bool
) -> None:
    plan, let_go = data.draw(plans_that_let_go(chain))
    simulator = Simulator(chain)
    simulator.let_go = let_go
    simulated = simulator.run(plan)
    profile, info = profile_of(chain), info_of(chain)
    assert predict_peak(profile, plan, info, Situation(0), let_go).bytes == simulated
    # Whoever tells nothing gets an upper bound.
    assert predict_peak(profile, plan, info, Situation(0)).bytes >= simulated
    kept = replace(plan, remade=())
    for situation in (Situation(0), Situation(0, grads_resident=grads_resident)):
        less = predict_peak(profile, plan, info, situation, let_go).bytes
        assert less <= predict_peak(profile, kept, info, situation).bytes


@given(*[st.sets(st.integers(0, 4))] * 3)
def test_a_block_that_lets_values_go_frees_its_input_unless_it_holds_it(
    first: set[int], let: set[int], holding: set[int]
) -> None:
    """A kept block frees 50 of its input; one that lets 300 go does so, too, and keeps 300 less.

    It keeps 250 less if it makes some of that from its input.
    """
    chain = uniform(5)
    freeing = replace(
        profile_of(chain),
        activation=(950,) * 5,
        forward_activation=(950,) * 5,
        freed=(50,) * 5,
        shared=(0, 20, 0, 0, 0),
    )
    info = info_of(chain)
    let -= first
    remade = tuple(Remade(b, (0,)) for b in sorted(let))
    plan = replace(Plan.recompute_each(5, first), remade=remade)
    let_go = dict.fromkeys(let, 300)
    holding &= let
    found = predict_peak(freeing, plan, info, Situation(0), let_go, holding=holding).bytes
    letting = _letting_values_go(freeing, plan, let_go, {}, holding)
    assert _Timeline(letting, None).run(plan, Situation(0), holding).bytes == found
    shared = 20 if max([*first, *holding], default=-1) < 1 else 0
    base = 950 * 5 - 950 * len(first) - 300 * len(let) + 50 * len(holding) - shared
    assert found >= freeing.head_peak + base


@pytest.mark.parametrize(("late", "more"), [(0, 50), (20, 30), (50, 0)])
def test_an_input_that_its_caller_holds_counts_once_in_the_forward(late: int, more: int) -> None:
    """A block that holds its input adds to later levels what its caller would have let go of."""
    chain = uniform(5)
    profile = replace(
        profile_of(chain),
        activation=(950,) * 5,
        forward_activation=(950 + late, 950, 950, 950, 950),
        freed=(50,) * 5,
        loss_peak=profile_of(chain).head_peak + 1000,
    )
    plan = replace(Plan.keep_all(5), remade=(Remade(0, (0,)),))
    info, let_go = info_of(chain), {0: 300}
    free, held = (
        predict_peak(profile, plan, info, Situation(0), let_go, holding=holding).bytes
        for holding in ((), (0,))
    )
    assert held - free == more


@pytest.mark.parametrize(("recomputed", "less"), [((), 70), ((1,), 50), ((0,), 0)])
def test_what_comes_after_the_layers_has_none_of_their_inputs(
    recomputed: tuple[int, ...], less: int
) -> None:
    """Of the first block 50 that its caller holds, and 20 that two blocks take."""
    chain = uniform(5)
    profile = replace(
        profile_of(chain),
        activation=(950, *[1000] * 4),
        forward_activation=(1000,) * 5,
        freed=(50, 0, 0, 0, 0),
        shared=(20, 0, 0, 0, 0),
    )
    plan, info = Plan.recompute_each(5, recomputed), info_of(chain)
    peak = profile.head_peak + 1000
    before, after = (
        predict_peak(replace(profile, **{name: peak}), plan, info, Situation(0)).bytes
        for name in ("loss_peak", "after_peak")
    )
    assert before - after == less


@settings(deadline=None)
@given(chains(), st.data(), st.booleans())
def test_fast_path_equals_general_path(
    chain: Chain, data: st.DataObject, grads_resident: bool
) -> None:
    count = len(chain.blocks)
    plan = Plan.recompute_each(count, data.draw(st.sets(st.integers(0, count - 1))))
    shared, passed = (
        tuple(data.draw(st.integers(0, b.activation)) for b in chain.blocks) for _ in range(2)
    )
    profile, info = replace(profile_of(chain), shared=shared, passed=passed), info_of(chain)
    situation = Situation(3, grads_resident=grads_resident)
    grown = None if grads_resident else grown_gradients(info, count)
    general = _Timeline(profile, grown).run(plan, situation, ())
    assert predict_peak(profile, plan, info, situation).bytes == general.bytes


@pytest.mark.parametrize(("recomputed", "less"), [((), 70), ((0,), 70), ((1,), 0), ((2,), 70)])
def test_what_a_kept_block_passes_on_is_in_the_next_ones_level(
    recomputed: tuple[int, ...], less: int
) -> None:
    chain = uniform(3)
    profile = replace(
        profile_of(chain),
        kept_peak=(0, 0, 10**6),
        checkpoint_peak=(0, 0, 10**6),
        passed=(50, 70, 90),
    )
    plan, info = Plan.recompute_each(3, recomputed), info_of(chain)
    found, plain = (
        predict_peak(p, plan, info, Situation(0)) for p in (profile, replace(profile, passed=()))
    )
    assert found.where == plain.where == "forward of block 2"
    assert plain.bytes - found.bytes == less
    general = _Timeline(profile, None).run(plan, Situation(0), ())
    assert general.bytes == found.bytes


@st.composite
def plans_that_let_go(draw: st.DrawFn, chain: Chain) -> tuple[Plan, dict[int, int]]:
    count = len(chain.blocks)
    recomputed = draw(st.sets(st.integers(0, count - 1)))
    let_go = {
        block: draw(st.integers(0, chain.blocks[block].activation))
        for block in draw(st.sets(st.integers(0, count - 1))) - recomputed
    }
    remade = tuple(Remade(block, (0,)) for block in sorted(let_go))
    return replace(Plan.recompute_each(count, recomputed), remade=remade), let_go


def uniform(count: int) -> Chain:
    """A chain like a stack of equal encoder layers: activations dominate."""
    return Chain((Block(1000, 50, 100, 200, 30),) * count, 50, 200, 40, 20, 60)


@given(st.sets(st.integers(0, 4)), st.booleans())
def test_what_a_kept_block_lets_go_of_counts_until_its_backward(
    recomputed: set[int], grads_resident: bool
) -> None:
    """Inputs that are not saved and copies of weights: where the peak is, and by how much."""
    chain = uniform(5)
    profile, info = profile_of(chain), info_of(chain)
    changed = replace(
        profile,
        activation=(960,) * 5,  # 10 of copies more, and 50 of the input less.
        forward_activation=(950,) * 5,
        freed=(50,) * 5,
        loss_peak=profile.head_peak + 100,
    )
    plan, situation = Plan.recompute_each(5, recomputed), Situation(0, grads_resident)
    grown = None if grads_resident else grown_gradients(info, 5)
    found = predict_peak(changed, plan, info, situation).bytes
    assert _Timeline(changed, grown).run(plan, situation).bytes == found
    kept = 5 - len(recomputed)
    assert found >= changed.loss_peak + 950 * kept
    before = predict_peak(profile, plan, info, situation).bytes
    assert before - 50 * kept <= found <= before + 100


def test_recomputing_the_last_block_frees_nothing() -> None:
    chain = uniform(12)
    profile, info = profile_of(chain), info_of(chain)

    def peak(plan: Plan) -> int:
        return predict_peak(profile, plan, info, Situation(0)).bytes

    none = peak(Plan.keep_all(12))
    assert peak(Plan.recompute_each(12, [11])) == none
    assert peak(Plan.recompute_each(12, [0])) == none - 1000
    assert peak(Plan.recompute_each(12, [10, 11])) == none - 1000


def test_says_where_the_peak_falls() -> None:
    chain = uniform(4)
    profile, info = profile_of(chain), info_of(chain)
    resident = Situation(0)
    assert predict_peak(profile, Plan.keep_all(4), info, resident).where == "backward of block 3"
    chain = Chain(chain.blocks, 50, 9000, 40, 20, 60)
    assert predict_peak(profile_of(chain), Plan.keep_all(4), info, resident).where == "head"
    chain = Chain(chain.blocks, 50, 200, 40, 9000, 60)
    assert predict_peak(profile_of(chain), Plan.keep_all(4), info, resident).where == (
        "optimizer step"
    )


def test_a_nested_plan_needs_less_than_its_flat_one() -> None:
    chain = uniform(8)
    profile, info = profile_of(chain), info_of(chain)
    flat = Plan.parse("recompute 0-3 | recompute 4-7")
    nested = Plan.parse("recompute 0-3 (recompute 0-1 | keep 2-3) | recompute 4-7 (recompute 4-5)")
    peaks = [predict_peak(profile, p, info, Situation(0)) for p in (flat, nested)]
    assert peaks[1].bytes < peaks[0].bytes
    assert peaks[0].where == "backward of block 7"


def test_grown_gradients_accumulate_backwards() -> None:
    info = ModelInfo(("a", "b", "c"), grad_bytes=(1, 20, 300), other_grad_bytes=4000)
    assert grown_gradients(info, 3) == (4321, 4320, 4300, 4000)
    assert grown_gradients(ModelInfo(("a",)), 1) == (0, 0)


def test_plan_and_profile_must_agree() -> None:
    chain = uniform(3)
    with pytest.raises(ValueError, match="covers 2 blocks, the profile 3"):
        predict_peak(profile_of(chain), Plan.keep_all(2), info_of(chain), Situation(0))
