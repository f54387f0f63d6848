"""Hooks inside a block that store what it computes: measuring must leave nothing with them."""

import copy
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.capturing import Captured
from mimose.runtime.executor import Executor

DEPTH = 6
FULL = Plan.recompute_each(DEPTH)
CAPTURING = "transformers.utils.output_capturing"


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


class Lab:
    """A BERT under an executor, and a twin that is trained plainly."""

    def __init__(self, device: CpuDevice, **asked: bool) -> None:
        torch.manual_seed(1)
        config = transformers.BertConfig(
            vocab_size=100,
            hidden_size=64,
            num_attention_heads=2,
            intermediate_size=256,
            num_hidden_layers=DEPTH,
            attn_implementation="eager",
        )
        self.model = transformers.BertForQuestionAnswering(config).train()
        self.twin = copy.deepcopy(self.model)
        device.adopt(self.model)
        self.device = device
        tokens = torch.randint(0, 100, (4, 64))
        positions = {"start_positions": torch.tensor([1] * 4), "end_positions": tokens[:, 0] % 64}
        self.batch = device.put({"input_ids": tokens, **positions}) | asked
        self.executor = Executor(self.model, device, find_blocks(self.model))

    def layers(self) -> list[nn.Module]:
        return list(self.model.bert.encoder.layer)

    def peak(self, collect: bool, share: float = 0.0) -> int:
        """Return how far a step that recomputes every block peaks above its start."""
        self.model.zero_grad(set_to_none=False)
        before = self.device.allocated_bytes()
        self.device.begin_step()
        self.executor.begin(FULL, collect=collect)
        self.output = _train(self.model, self.batch, share)
        return self.device.end_step().peak_allocated - before

    def block(self) -> int:
        """Return the bytes of what the largest block keeps, as the last step measured it."""
        collected = self.executor.collected()
        assert collected is not None
        return max(s.activation_bytes + s.output_bytes for s in collected.blocks)

    def check_against_twin(self, share: float = 0.0) -> None:
        """Compare the last step with plain training."""
        self.twin.zero_grad()
        plain = _train(self.twin, self.batch, share)
        assert self.output.keys() == plain.keys()
        for one, other in zip(self.output.to_tuple(), plain.to_tuple()):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        for one, other in zip(self.model.parameters(), self.twin.parameters()):
            assert torch.equal(one.grad, other.grad)


def _train(model: nn.Module, batch: dict[str, Any], share: float) -> Any:
    """Train on the loss, to which attentions add a share, and return the output."""
    torch.manual_seed(5)
    output = model(**batch)
    loss = output.loss
    if share:
        loss = loss + share * sum(attention.square().sum() for attention in output.attentions)
    loss.backward()
    return output


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_captured_attentions_are_measured_once(share: float, cpu: CpuDevice) -> None:
    lab = Lab(cpu, output_attentions=True, output_hidden_states=True)
    for _ in range(2):
        full = lab.peak(False, share)
        del lab.output
    sheltered = lab.peak(True, share)
    assert sheltered <= full + lab.block()
    assert len(lab.output.attentions) == DEPTH
    assert len(lab.output.hidden_states) == DEPTH + 1
    lab.check_against_twin(share)


def test_captured_attentions_count_as_outputs_while_they_are_held(cpu: CpuDevice) -> None:
    lab = Lab(cpu, output_attentions=True)
    attention, hidden = 4 * 2 * 64 * 64 * 4, 4 * 64 * 64 * 4
    lab.peak(True)
    collected = lab.executor.collected()
    assert collected is not None
    assert [s.output_bytes for s in collected.blocks] == [hidden + attention] * DEPTH
    held = collected.blocks[0].activation_bytes
    lab.batch["output_attentions"] = False
    lab.peak(True)
    collected = lab.executor.collected()
    assert collected is not None
    assert [s.output_bytes for s in collected.blocks] == [hidden] * DEPTH
    assert collected.blocks[0].activation_bytes == held + attention


def test_blocks_that_run_once_keep_what_is_captured(cpu: CpuDevice) -> None:
    lab = Lab(cpu, output_attentions=True)
    for model in (lab.model, lab.twin):
        model.bert.embeddings.requires_grad_(False)
        model.bert.encoder.layer[:2].requires_grad_(False)
    lab.peak(True)
    assert lab.executor.free == {0, 1}
    assert len(lab.output.attentions) == DEPTH


class Store:
    """Keeps what modules inside the blocks return: the latest of each, or all."""

    def __init__(self, lab: Lab, inner: str, *, latest: bool = False, detach: bool = False):
        self.all: list[torch.Tensor] = []
        self.latest: dict[nn.Module, torch.Tensor] = {}
        for layer in lab.layers():
            layer.get_submodule(inner).register_forward_hook(self._store)
        self._detach = detach
        self._only_latest = latest

    def _store(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        output = output.detach() if self._detach else output
        if self._only_latest:
            self.latest[module] = output
        else:
            self.all.append(output)

    def clear(self) -> None:
        self.all.clear()
        self.latest.clear()


@pytest.mark.parametrize(
    ("inner", "measured"), [("output.dense", 1), ("attention.output.dense", 2)]
)
def test_hooks_that_hold_activations_end_measuring(
    inner: str, measured: int, cpu: CpuDevice
) -> None:
    """The first hook holds most of a layer's activations, the second less than half of them."""
    lab = Lab(cpu)
    lab.peak(True)
    block = lab.block()
    store = Store(lab, inner)
    peaks = []
    for _ in range(2):
        peaks.append(lab.peak(False))
        store.clear()
    with pytest.warns(UserWarning, match=r"^block bert\.encoder\.layer\.\d .* forward hook"):
        first = lab.peak(True)
    # Each layer runs once more in backward.
    assert len(store.all) == 2 * DEPTH + measured
    assert lab.executor.collected() is None
    lab.check_against_twin()
    assert first <= peaks[1] + block
    assert lab.executor.effective_plan == FULL
    for _ in range(2):
        store.clear()
        # Not again, and nothing runs twice but in backward.
        assert lab.peak(True) == peaks[1]
        assert lab.executor.collected() is None
        lab.check_against_twin()


@pytest.mark.parametrize("kind", ["latest", "detach"])
def test_hooks_that_hold_no_activations_do_not(kind: str, cpu: CpuDevice) -> None:
    lab = Lab(cpu)
    store = Store(lab, "attention.output.dense", **{kind: True})
    for _ in range(2):
        full = lab.peak(False)
        store.clear()
    sheltered = lab.peak(True)
    assert sheltered <= full + lab.block()
    lab.check_against_twin()


def test_copies_that_autocast_keeps_are_not_taken_for_a_hooks(cpu: CpuDevice) -> None:
    lab = Lab(cpu)
    lab.batch = {
        name: value[:1, :8] if value.dim() > 1 else value[:1] * 0
        for name, value in lab.batch.items()
    }
    with torch.autocast("cpu", torch.bfloat16):
        lab.peak(True)
    copies = sum(p.numel() * 2 for p in lab.layers()[0].parameters() if p.dim() > 1)
    assert copies > lab.block() // 2


def test_captured_where_transformers_does_it_otherwise(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(cpu, output_attentions=True)
    lab.peak(False)
    stand_in = types.SimpleNamespace(_active_collector=None)
    for module in (types.SimpleNamespace(), stand_in, None):
        monkeypatch.setitem(sys.modules, CAPTURING, module)
        assert Captured().added() == []
    with pytest.warns(UserWarning, match="forward hook"):
        lab.peak(True)
    lab.peak(True)
    assert len(lab.output.attentions) == DEPTH
    lab.check_against_twin()
