"""Remembered operators do what PyTorch's meta kernels do."""

from __future__ import annotations

import pytest
import torch

from mimose.devices.sim.device import SimDevice


@pytest.fixture
def device():
    opened = SimDevice("v100")
    yield opened
    opened.close()


def facts(result):
    results = result if isinstance(result, list | tuple) else [result]
    return [(tuple(t.shape), t.stride(), t.dtype) for t in results]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone().t_(),
        lambda x: x.clone().unsqueeze_(1),
        lambda x: x.clone().transpose_(0, 1).squeeze_(),
        lambda x: torch.nn.functional.linear(x[0], torch.empty(4, 5, device="meta")),
        lambda x: x[:, 0] @ x,
        lambda x: torch.quantile(x, 0.5),
        lambda x: torch.add(x, x, out=torch.empty(0, device="meta")),
        lambda x: torch.empty(0, device="meta").resize_(7, 3),
        lambda x: x.mul(1),
        lambda x: x.mul(1 + 0j),
        lambda x: (x > 0).add(True),
        lambda x: (x > 0).add(1),
        lambda x: x.double().mul(2.0),
        lambda x: x.sort(dim=0),
        lambda x: x.topk(2),
        lambda x: x.split(2),
        lambda x: torch.cat([x, x.half()]),
        lambda x: torch.stack([x, x], 1),
        lambda x: x.index_select(0, torch.zeros(7, dtype=torch.long, device="meta")),
        lambda x: x.new_zeros(2).scatter_add_(
            0, torch.zeros(2, dtype=torch.long, device="meta"), x[0, :2]
        ),
        lambda x: torch.nn.functional.conv2d(x[None, None], x.new_ones(2, 1, 2, 2)),
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        lambda x: torch.var_mean(x, 1),
        lambda x: x.to(torch.bfloat16).softmax(-1),
        lambda x: torch._foreach_add([x, x[0]], 1.0),
        lambda x: torch.fft.rfft(x),
    ],
)
def test_an_operator_returns_the_same_when_it_is_remembered(function):
    expected = facts(function(torch.empty(3, 5, device="meta")))
    device = SimDevice("v100")
    try:
        x = torch.empty(3, 5, device="meta")
        for _ in range(3):
            assert facts(function(x)) == expected
    finally:
        device.close()


def test_a_default_type_that_changes_is_heeded(device):
    x = device.put(torch.tensor([1, 2]))
    assert (x / 2).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (x / 2).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_memory_of_outputs_given_is_counted(device):
    x = torch.empty(1024, 1024, device="meta")
    for _ in range(2):
        out = torch.empty(0, device="meta")
        before = device.allocated_bytes()
        torch.add(x, x, out=out)
        assert device.allocated_bytes() - before == 4 << 20
        grown = torch.empty(0, device="meta").resize_(1 << 20)
        assert device.allocated_bytes() - before == 8 << 20
        del out, grown


def test_a_device_is_closed_where_it_was_opened(device):
    import threading

    failed = []

    def close():
        try:
            device.close()
        except ValueError as error:
            failed.append(str(error))

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert failed == ["close a simulated device in the thread that opened it"]
    assert torch.empty(8, device="meta").add(1).is_meta
