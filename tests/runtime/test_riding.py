"""A step collected beside its plan shows what the shuttling collector shows."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForQuestionAnswering

from mimose.costs import Profile, predict_peak
from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan, Region, Remade
from mimose.planners.mimose.collector import OUTSIDE, PER_BLOCK, to_row
from mimose.records import Collected, ModelInfo, Situation
from mimose.runtime import riding
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor

BLOCKS = 3
NUMBER = 512
"""Bytes of a number that multiplies a tensor: hooks do not see that it is saved, too."""
STATE = 5632
"""Bytes of the random state that a checkpoint holds, which is in the same memory here."""


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


def model_on(device: CpuDevice) -> BertForQuestionAnswering:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=256,
        num_hidden_layers=BLOCKS,
        vocab_size=64,
        attn_implementation="eager",
    )
    model = BertForQuestionAnswering(config).train()
    device.adopt(model)
    return model


def collected(device: CpuDevice, plan: Plan, *, ride: bool) -> tuple[Collected, Plan, list]:
    """Return what the second step shows, what it carried out, and its gradients."""
    model = model_on(device)
    executor = Executor(model, device, find_blocks(model))
    for _ in range(2):
        ids = torch.arange(4 * 60).reshape(4, 60) % 64
        batch = device.put({"input_ids": ids, "start_positions": ids[:, 0]})
        model.zero_grad(set_to_none=False)
        device.begin_step()
        torch.manual_seed(1)
        executor.begin(plan, collect=True, trace=ride)
        loss = model(**batch, end_positions=batch["start_positions"]).loss
        loss.backward()
        del loss
        device.end_step()
        found = executor.collected()
        carried_out = executor.effective_plan
    gradients = [p.grad.clone() for p in model.parameters()]
    executor.detach()
    assert found is not None
    return found, carried_out, gradients


def row_of(found: Collected, plan: Plan) -> dict[str, np.ndarray]:
    row = to_row(found, plan, BLOCKS)
    assert row is not None
    names = [*PER_BLOCK]
    columns = {n: row[0][i * BLOCKS : (i + 1) * BLOCKS] for i, n in enumerate(names)}
    return columns | {"outside": row[0][-len(OUTSIDE) :]}


def test_it_measures_what_the_shuttling_collector_does(cpu: CpuDevice) -> None:
    everything = Plan.recompute_each(BLOCKS)
    shuttled, plan, gradients = collected(cpu, everything, ride=False)
    ridden, same, others = collected(cpu, everything, ride=True)
    assert same == plan == everything
    expected, found = row_of(shuttled, plan), row_of(ridden, plan)
    for name, column in expected.items():
        assert found[name] == pytest.approx(column, abs=NUMBER), name
    assert all(map(torch.equal, gradients, others))


def test_a_trace_knows_the_order_in_which_backward_comes_to_what_is_saved(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def by_use(trace, moments, level):
        seen.append((trace.order, list(moments)))
        return (), ()

    monkeypatch.setattr(riding, "by_use", by_use)
    collected(cpu, Plan.recompute_each(BLOCKS), ride=True)
    assert seen
    for order, places in seen:
        assert places == [place for place in order if place in places]
        # Of a node that saves several the first one comes first.
        assert places != sorted(places, reverse=True)


def test_no_block_runs_once_more(cpu: CpuDevice) -> None:
    model = model_on(cpu)
    executor = Executor(model, cpu, find_blocks(model))
    calls = []
    # Inside the block: what stands in for a block's own forward is called once in any case.
    dense = model.bert.encoder.layer[1].attention.output.dense
    dense.register_forward_hook(lambda *_: calls.append(1))
    ids = torch.arange(4 * 60).reshape(4, 60) % 64
    for plan, runs in ((Plan.recompute_each(BLOCKS), 2), (Plan.keep_all(BLOCKS), 1)):
        for _ in range(2):
            calls.clear()
            executor.begin(plan, collect=True, trace=True)
            model(ids, start_positions=ids[:, 0], end_positions=ids[:, 0]).loss.backward()
        assert len(calls) == runs
        assert executor.effective_plan == plan
    executor.detach()


@pytest.mark.parametrize("recomputed", [(), (0,), (0, 2)])
def test_under_any_plan_it_shows_what_recomputing_all_would_take(
    cpu: CpuDevice, recomputed: tuple[int, ...]
) -> None:
    everything = Plan.recompute_each(BLOCKS)
    expected = row_of(collected(cpu, everything, ride=True)[0], everything)
    plan = Plan.recompute_each(BLOCKS, recomputed)
    found, carried_out, _ = collected(cpu, plan, ride=True)
    assert carried_out == plan
    columns = row_of(found, plan)
    for name in ("activation", "output", "kept_peak"):
        assert columns[name] == pytest.approx(expected[name], abs=NUMBER), name
    for name in ("level", "backward_peak", "outside"):
        assert columns[name] == pytest.approx(expected[name], abs=BLOCKS * (STATE + NUMBER)), name


@pytest.mark.parametrize(
    ("names", "remade"),
    [(("gelu",), (1, 2)), (("gelu", "native_layer_norm"), (0, 1)), (("mul", "softmax"), (0, 1))],
)
def test_what_a_block_lets_go_is_measured_as_though_it_were_kept(
    cpu: CpuDevice, names: tuple[str, ...], remade: tuple[int, ...]
) -> None:
    everything = Plan.recompute_each(BLOCKS)
    recomputed, _, gradients = collected(cpu, everything, ride=True)
    whole = row_of(recomputed, everything)
    kept = {t.block: t for t in collected(cpu, Plan.keep_all(BLOCKS), ride=True)[0].traced}
    graph = kept[0].graph
    name_of = [name.split("#")[0] for name in graph.names()]
    dropped = tuple(v for v in graph.droppable() if name_of[v] in names)
    assert dropped
    assert graph.can_drop(dropped)
    regions = () if 2 in remade else (Region(2, 2),)
    parts = tuple(Remade(b, dropped, (), graph.digest) for b in remade)
    plan = Plan(BLOCKS, regions, (), parts)
    found, carried_out, others = collected(cpu, plan, ride=True)
    assert carried_out == plan
    assert all(map(torch.equal, gradients, others))
    samples = {s.block: s for s in found.blocks}
    for block in remade:
        gone = sum(kept[block].bytes[v] for v in dropped)
        assert samples[block].let_go_bytes == pytest.approx(gone, abs=NUMBER)
    columns = row_of(found, plan)
    for name in ("activation", "output", "kept_peak"):
        assert columns[name] == pytest.approx(whole[name], abs=NUMBER), name
    for name in ("level", "backward_peak", "outside"):
        assert columns[name] == pytest.approx(whole[name], abs=BLOCKS * (STATE + NUMBER)), name
    for traced in found.traced:
        assert traced.bytes == kept[traced.block].bytes
        expected = kept[traced.block].levels
        assert traced.levels == pytest.approx(expected, abs=BLOCKS * (STATE + NUMBER))


def test_the_peaks_within_a_blocks_backward_are_seen(cpu: CpuDevice) -> None:
    everything = Plan.recompute_each(BLOCKS)
    found, _, _ = collected(cpu, everything, ride=True)
    samples = {s.block: s for s in found.blocks}
    assert [t.block for t in found.traced] == [0, 1, 2]
    for traced in found.traced:
        assert len(traced.levels) == len(traced.graph.uses)
        sample = samples[traced.block]
        assert sample.backward_peak_bytes is not None
        assert max(traced.levels) == sample.backward_peak_bytes - sample.level_bytes


class Telling(nn.Module):
    """Returns its weights, which its backward needs; reads a table made once; has a long tail."""

    table: torch.Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.table is None:
            self.table = torch.arange(x.shape[1]).repeat(x.shape[0], 1)[..., None].expand_as(x) * 1
        weights = torch.softmax(self.inner(x), -1)
        y = x + torch.tanh(torch.gather(weights, 2, self.table % 32) * weights)
        return torch.cat([y] * 8, -1).unflatten(-1, (8, 32)).sum(-2), weights


class Listening(nn.Module):
    """Holds what a layer returns until the next one has returned, and lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Telling() for _ in range(BLOCKS)])
        self.first = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            outputs = layer(x)
            x = outputs[0]
        del outputs
        return x.square().mean()


def heard(device: CpuDevice, *plans: Plan, ride: bool = True) -> list[dict[str, np.ndarray]]:
    """Return the row of a step under each plan, and the peak of its allocated bytes."""
    torch.manual_seed(0)
    model = Listening()
    device.adopt(model)
    executor = Executor(model, device, find_blocks(model, ["layers.*"]))
    batch = device.put(torch.randn(4, 64, 32))
    rows = []
    for plan in (plans[0], *plans):  # The first step makes the tables and all gradients.
        model.zero_grad(set_to_none=False)
        device.begin_step()
        resident = device.allocated_bytes()
        executor.begin(plan, collect=True, trace=ride)
        model(batch).backward()
        device.end_step()
        found = executor.collected()
        assert found is not None
        peak = device.stats().step_peak_allocated - resident
        rows.append(row_of(found, plan) | {"peak": np.array(peak)})
    executor.detach()
    return rows[1:]


def profile_from(row: dict[str, np.ndarray]) -> Profile:
    columns = {name: tuple(map(int, row[name])) for name in PER_BLOCK}
    outside = dict(zip(OUTSIDE, map(int, row["outside"])))
    return Profile(**columns, **outside, forward_seconds=(0.0,) * BLOCKS, optimizer_peak=0)


EVERYTHING = Plan.recompute_each(BLOCKS)
ALL = [Plan.recompute_each(BLOCKS, chosen) for chosen in ((), (0,), (1,), (0, 1), (2,), (0, 2))]


def test_what_a_block_passes_on_counts_once(cpu: CpuDevice) -> None:
    """Kept or recomputed, a block that returns what its backward needs shows the same."""
    whole, *others = heard(cpu, EVERYTHING, *ALL)
    weights = 4 * 64 * 32 * 4
    # What comes after the last block is known to have none of it beside it.
    assert whole["passed"].tolist() == [*[weights] * (BLOCKS - 1), 0]
    info = ModelInfo(("a", "b", "c"), exact=True)
    for plan, row in zip(ALL, others):
        for name in ("activation", "output", "passed"):
            assert row[name] == pytest.approx(whole[name], abs=NUMBER), name
        assert row["level"] == pytest.approx(whole["level"], abs=BLOCKS * (STATE + NUMBER))
        for seen in (whole, row):
            ran_on = {
                "measuring": seen["measuring"] * [b in plan.recomputed for b in range(BLOCKS)]
            }
            profile = profile_from(seen | ran_on).measured()
            predicted = predict_peak(profile, plan, info, Situation(0)).bytes
            assert predicted == pytest.approx(int(row["peak"]), abs=BLOCKS * (STATE + NUMBER))


def test_a_run_to_the_end_is_no_part_of_what_recomputing_takes(cpu: CpuDevice) -> None:
    shuttled, ridden = (heard(cpu, EVERYTHING, ride=ride)[0] for ride in (False, True))
    assert ridden["backward_peak"] == pytest.approx(shuttled["backward_peak"], abs=NUMBER)
    assert ridden["kept_peak"] == pytest.approx(shuttled["kept_peak"], abs=NUMBER)
    assert not shuttled["measuring"].any()
    assert ridden["measuring"].min() > 100_000
    profile, info = profile_from(ridden), ModelInfo(("a", "b", "c"), exact=True)
    predicted = predict_peak(profile.measured(), EVERYTHING, info, Situation(0)).bytes
    assert predicted == pytest.approx(int(ridden["peak"]), abs=NUMBER)
