"""Copying batches and models onto a device: what is kept."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType

import pytest
import torch
from transformers import BatchEncoding

from mimose.devices.cpu import CpuDevice
from mimose.devices.tensors import model_tensors, storage_bytes
from mimose.devices.trace import StepPeaks, trace_of_recording

Pair = namedtuple("Pair", "first second")


@pytest.fixture
def device():
    opened = CpuDevice()
    yield opened
    opened.close()


def test_batch_keeps_its_shape(device: CpuDevice) -> None:
    with device.host_memory():
        x = torch.arange(6.0).reshape(2, 3)
    batch = {
        "list": [x, 1],
        "tuple": (x, None),
        "pair": Pair(x, "text"),
        "ordered": OrderedDict(a=x),
        "user": UserDict(a=x),
        "read-only": MappingProxyType({"a": x}),
    }
    assert device.allocated_bytes() == 0
    copied = device.put(batch)
    assert device.allocated_bytes() == 6 * 512
    assert [type(v) for k, v in copied.items() if k != "read-only"] == [
        list, tuple, Pair, OrderedDict, UserDict,
    ]  # fmt: skip
    assert copied["list"][1] == 1
    assert copied["tuple"][1] is None
    assert copied["pair"].second == "text"
    for y in (
        copied["list"][0],
        copied["tuple"][0],
        copied["pair"].first,
        *(copied[k]["a"] for k in ("ordered", "user", "read-only")),
    ):
        assert torch.equal(y, x)
        assert y.data_ptr() != x.data_ptr()
    assert batch["list"][0] is x


def test_batch_encoding_stays_one(device: CpuDevice) -> None:
    encoding = BatchEncoding({"input_ids": torch.ones(2, 3), "n": 2})
    copied = device.put(encoding)
    assert type(copied) is BatchEncoding
    assert copied.input_ids.data_ptr() != encoding.input_ids.data_ptr()
    assert copied["n"] == 2


def test_strides_and_requires_grad_of_a_batch(device: CpuDevice) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert device.put(x).requires_grad
    assert device.put(x).is_leaf
    assert device.put(torch.ones(2, 3).t()).stride() == (1, 3)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 50)
        self.head.weight = self.embedding.weight
        flat = torch.arange(40.0)
        self.left = torch.nn.Parameter(flat[:16].view(4, 4))
        self.right = torch.nn.Parameter(flat[16:32].view(4, 4).t(), requires_grad=False)
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.register_buffer("none", None)
        self.register_buffer("empty", torch.empty(0))


def test_model_is_adopted_in_place(device: CpuDevice) -> None:
    with device.host_memory():
        model = Tied()
        model.left.grad = torch.full((4, 4), 2.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        objects = list(model.parameters())
    assert device.allocated_bytes() == 0
    device.adopt(model)
    # Embedding 3200 B, bias 200 B, 32 of the 40 shared floats 128 B, gradient 64 B, mask 3 B.
    assert device.allocated_bytes() == 3584 + 512 + 512 + 512 + 512
    assert list(map(id, model.parameters())) == list(map(id, objects))
    assert model.head.weight is model.embedding.weight
    assert model.left.untyped_storage().data_ptr() == model.right.untyped_storage().data_ptr()
    assert (model.left.requires_grad, model.right.requires_grad) == (True, False)
    assert model.right.stride() == (1, 4)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype
    optimizer.step()
    assert torch.equal(model.left, before["left"] - 2.0)
    assert torch.equal(model.right, before["right"])


def test_only_the_part_in_use_of_a_mapped_file_is_copied(device: CpuDevice, tmp_path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(4 << 20))
    mapped = torch.from_file(str(path), shared=False, size=1 << 20)
    model = torch.nn.Linear(10, 10, bias=False)
    model.weight = torch.nn.Parameter(mapped[1003:1103].view(10, 10))
    before = device.allocated_bytes()
    device.adopt(model)
    # 400 bytes from byte 4012 on, and what lies between the alignment before it and there.
    assert device.allocated_bytes() - before == 512
    assert model.weight.storage_offset() == 1003 - 4012 // 64 * 16
    model.weight.data.fill_(1.0)
    assert mapped.sum() == 0


def test_model_without_data_is_refused(device: CpuDevice) -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match="load weights first"):
        device.adopt(model)


def test_storage_bytes_count_shared_storages_once() -> None:
    model = Tied()
    assert storage_bytes(model_tensors(model)) == 3200 + 200 + 160 + 3


def test_a_model_lies_in_memory_in_its_own_order(device: CpuDevice) -> None:
    # Not in that of addresses, which chance decides: what is reserved would depend on it.
    with device.host_memory():
        made = [torch.nn.Linear(128, 8 + number, bias=False) for number in range(16)]
    for layers in (made, made[::-1]):
        model = torch.nn.Sequential(*layers)
        device.record()
        device.begin_step()
        device.adopt(model)
        recorded = device.recorded_events()
        step = trace_of_recording(recorded, [StepPeaks(0, 0, 0)], device="cpu", torch="").steps[0]
        assert [e for e in step.events if e > 0] == [layer.weight.nbytes for layer in layers]
