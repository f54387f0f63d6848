"""Which device a name or a model opens, and what is said where there is none."""

import pytest
import torch

from mimose.devices import device_for, open_device


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:x", "auto:0", ""])
def test_unknown_name(name: str) -> None:
    with pytest.raises(ValueError, match="choose one of auto, cuda, cuda:N, cpu"):
        open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_without_one(name: str) -> None:
    with pytest.raises(ValueError, match=r"no CUDA device here.*use the device 'cpu'"):
        open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_auto_without_cuda_is_cpu() -> None:
    device = open_device()
    assert (device.kind, device.label) == ("cpu", "measured on cpu")
    assert device.torch_device == torch.device("cpu")
    device.close()


def test_model_must_be_on_one_known_device() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta"))
    with pytest.raises(ValueError, match="on cpu, meta"):
        device_for(model)
    with pytest.raises(ValueError, match="is on meta: move it"):
        device_for(model[1])
    with pytest.raises(ValueError, match="no parameters"):
        device_for(torch.nn.ReLU())


@pytest.mark.parametrize("name", ["cpu", "sim:v100"])
def test_segments_may_be_expandable_and_the_label_says_so(name):
    device = open_device(name, allocator="expandable")
    try:
        assert device.label.endswith(", expandable segments")
        before = device.reserved_bytes()
        # A page of 2 MiB and two of 20, where native segments would have 2 and 22.
        kept = [
            torch.empty(size, dtype=torch.uint8, device=device.torch_device)
            for size in (1 << 20, 21 << 20)
        ]
        assert device.reserved_bytes() - before == (2 + 40) << 20
        with pytest.raises(ValueError, match="without expandable ones"):
            device.record()
        del kept
    finally:
        device.close()
    device = open_device(name, allocator="native")
    device.close()
    assert "expandable" not in device.label


def test_the_allocator_of_cuda_is_pytorchs_own():
    with pytest.raises(ValueError, match="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"):
        open_device("cuda", allocator="expandable")
    with pytest.raises(ValueError, match="native or expandable, not 'other'"):
        open_device("cpu", allocator="other")
