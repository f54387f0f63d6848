"""Taking the memory of storages away and giving it back."""

import pytest
import torch

from mimose.devices import open_device
from mimose.runtime.eviction import storages
from mimose.runtime.eviction.storages import CompiledMover, ResizingMover, mover_for


@pytest.mark.parametrize("mover", [CompiledMover, ResizingMover])
def test_views_find_the_new_memory(mover):
    mover = mover()
    device = open_device("cpu")
    try:
        before = device.allocated_bytes()
        tensor = torch.arange(1024.0)
        view = tensor[3:5]
        storage = tensor.untyped_storage()
        mover.drop(storage)
        assert device.allocated_bytes() == before
        assert tensor.shape == (1024,)
        other = torch.arange(1024.0) * 2
        mover.move(storage, other.untyped_storage())
        del other
        assert device.allocated_bytes() == before + 4096
        assert view.tolist() == [6, 8]
        assert tensor.untyped_storage() is storage
    finally:
        device.close()


def test_the_size_stays_and_the_address_is_refused():
    mover = CompiledMover()
    tensor = torch.ones(256)
    mover.drop(tensor.untyped_storage())
    assert tensor.untyped_storage().nbytes() == 1024
    for read in (tensor.data_ptr, tensor.numpy, tensor.tolist, tensor.sum):
        with pytest.raises(RuntimeError, match="was evicted to keep a training step within"):
            read()


def test_without_a_compiler(monkeypatch):
    def refuse():
        raise ValueError(storages.NO_COMPILER)

    monkeypatch.setattr(storages, "_load", refuse)
    with pytest.raises(ValueError, match="install g\\+\\+"):
        mover_for(torch.device("cpu"))
    assert isinstance(mover_for(torch.device("cuda")), ResizingMover)
