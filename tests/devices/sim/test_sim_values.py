"""The few values that a simulation knows: those of small integer tensors."""

from __future__ import annotations

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
    with pytest.raises(RuntimeError, match="which a simulation does not have"):
        bool((x > 0).any())
    with pytest.raises(RuntimeError, match="depends on values"):
        x[x > 0]


def test_selection_by_a_known_mask_has_its_true_shape(device):
    words = device.put(torch.tensor([3, 0, 5]))
    assert words[words != 0].shape == (2,)
    assert torch.nonzero(words).tolist() == [[0], [2]]


def test_large_tensors_values_are_not_carried_along(device):
    placed = device.put(torch.ones(1 << 20, dtype=torch.long))
    with pytest.raises(RuntimeError, match="does not have"):
        placed.sum().item()
