"""What undoing a pass teaches about the buffers that passes change: nothing."""

import torch
from torch import nn

from mimose.devices import open_device
from mimose.runtime.recovery import Undo


def test_buffers_that_change_are_learned_from_a_pass_that_stays():
    device = open_device("cpu")
    try:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model.register_buffer("steady", torch.ones(3))
        device.adopt(model)
        norm = model[1]
        undo = Undo(model, device)
        data = torch.randn(8, 4)
        for _ in range(2):  # As profiled passes are: saved, run, undone.
            undo.save()
            model(data)
            undo.restore()
            assert norm.running_mean.eq(0).all()
        undo.save()
        model(data)
        kept = norm.running_mean.clone()
        assert kept.ne(0).any()
        undo.save()
        assert [b.shape for b in undo._changing] == [(4,), (4,), ()]  # Not the steady one.
        model(data)
        undo.restore()
        assert torch.equal(norm.running_mean, kept)
    finally:
        device.close()
