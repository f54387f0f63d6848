"""The few values that a simulation knows: those of small integer tensors."""

from __future__ import annotations

import threading

import pytest
import torch

from mimose.devices.sim.device import SimDevice


@pytest.fixture
def device():
    opened = SimDevice("v100")
    yield opened
    opened.close()


@pytest.mark.parametrize("padded", [False, True])
def test_a_masks_questions_have_their_true_answers(device, padded):
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0 if padded else 1
    placed = device.put(mask)
    assert placed.is_meta
    assert bool((placed[:, None, None, :].expand(3, 1, 7, 7) == 1).all()) is not padded
    assert int(placed.sum(-1).max()) == 7
    assert int(placed.sum()) == int(mask.sum())
    assert placed.cumsum(-1)[:, -1].tolist() == mask.sum(-1).tolist()


def test_changes_in_place_are_followed(device):
    placed = device.put(torch.tensor([1, 2, 3]))
    placed.add_(10)
    assert placed[2].item() == 13
    placed[0] = 5
    assert placed.sum().item() == 5 + 12 + 13


def test_a_read_waits_for_the_device(device):
    placed = device.put(torch.tensor([1]))
    x = torch.empty(4096, 4096, device="meta")
    x @ x
    device_time = device.clock.device
    assert placed.item() == 1
    assert device.clock.host > device_time


def test_what_was_computed_from_floating_point_is_unknown(device):
    x = torch.empty(4, device="meta")
    assert x.sum().item() != x.sum().item()  # not a number
    with pytest.raises(RuntimeError, match="that a simulation does not have"):
        bool((x > 0).any())
    with pytest.raises(RuntimeError, match="depends on values"):
        x[x > 0]


def test_selection_by_a_known_mask_has_its_true_shape(device):
    words = device.put(torch.tensor([3, 0, 5]))
    assert words[words != 0].shape == (2,)
    assert torch.nonzero(words).tolist() == [[0], [2]]


def test_large_tensors_values_are_not_carried_along(device):
    placed = device.put(torch.ones((1 << 20) + 1, dtype=torch.long))
    with pytest.raises(RuntimeError, match="does not have"):
        placed.sum().item()


def test_views_of_what_becomes_unknown_are_unknown(device):
    mask = device.put(torch.tensor([1, 1, 1, 1]))
    view = mask.view(2, 2)
    assert bool(view.all())
    mask.logical_and_(torch.empty(4, device="meta") > 0)
    with pytest.raises(RuntimeError, match="does not have"):
        bool(view.all())
    whole = device.put(torch.tensor([5, 5, 5]))
    whole[1:].copy_(torch.empty(2, device="meta").argsort())
    with pytest.raises(RuntimeError, match="does not have"):
        whole.tolist()


def test_changes_to_lists_of_tensors_are_followed(device):
    first, second = device.put([torch.tensor([5]), torch.tensor([7])])
    torch._foreach_mul_([first, second], [2, 2])
    assert (first.item(), second.item()) == (10, 14)


def test_another_storage_has_other_values(device):
    mask = device.put(torch.tensor([5, 5, 5]))
    mask.data = torch.empty(3, device="meta").argsort()
    with pytest.raises(RuntimeError, match="does not have"):
        mask.sum().item()


def test_constants_keep_their_values_whatever_their_type(device):
    mask = torch.ones(2, 8, device="meta")
    assert bool((mask == 1).all())
    assert bool(torch.zeros_like(mask).to(torch.bool).any()) is False
    mask[:, 4:] = 0
    assert not bool((mask == 1).all())
    mask.mul_(torch.empty(2, 8, device="meta"))
    with pytest.raises(RuntimeError, match="does not have"):
        bool((mask == 1).all())


def test_rows_are_selected_by_a_known_mask_from_unknown_ones(device):
    x = torch.empty(3, 5, device="meta", requires_grad=True)
    chosen = x[device.put(torch.tensor([True, False, True]))]
    assert chosen.shape == (2, 5)
    chosen.sum().backward()
    assert x.grad.shape == (3, 5)


@pytest.mark.parametrize("read", ["item", "tolist", "cpu"])
def test_what_a_program_reads_is_known_to_the_log(device, read):
    words = device.put(torch.tensor([3]))
    log = device.start_log()
    getattr(words, read)()
    device.stop_log()
    assert log.reads
    assert not log.replayable


def test_copies_to_the_host_do_not_invent_values(device):
    unknown = torch.empty(4, device="meta").sum()
    assert unknown.cpu().isnan()
    assert unknown.tolist() != unknown.tolist()
    with pytest.raises(RuntimeError, match="does not have"):
        torch.empty(3, device="meta").argsort().tolist()


def test_a_thread_that_loads_data_does_not_end_another_ones_saving(device):
    counts = device.put(torch.ones(2)).long()  # computed from floats: without values
    entered, leave = threading.Event(), threading.Event()

    def load():
        with device.host_memory():
            entered.set()
            leave.wait(5)

    loader = threading.Thread(target=load)
    loader.start()
    assert entered.wait(5)
    with pytest.raises(RuntimeError, match="reads a value"):
        counts.to("cpu")  # not kept: read
    with device.host_memory():
        leave.set()
        loader.join(5)
        assert counts.to("cpu").shape == counts.shape
