"""What calls of new lengths will need, told from earlier ones of their kind."""

import pytest
import torch
from torch import nn

from mimose.devices import open_device
from mimose.eviction import Eviction
from mimose.runtime.eviction.lineage import Traits
from mimose.runtime.eviction.live import EvictionRuntime
from mimose.runtime.eviction.shapes import Needs, rounded

ATEN = torch.ops.aten


class Known(Needs):
    """Calls that are made and learnt from; only kinds that are new may be worked out."""

    def __init__(self):
        super().__init__(object())
        self.num_worked_out = 0

    def outputs(self, func, args, kwargs):
        self.num_worked_out += 1
        return super().outputs(func, args, kwargs)

    def call(self, func, *args, beside=0):
        """Return what is expected of a call, and what it needs, of which ``beside`` is scratch."""
        expected = self.work_out(Traits(func), func, args, {})
        output = func(*args)
        made = [output] if isinstance(output, torch.Tensor) else list(output)
        need = sum(rounded(t.untyped_storage().nbytes()) for t in made) + beside
        self.learn(None, func, args, need, made)
        return expected, need


@pytest.fixture
def needs():
    return Known()


def test_outputs_of_new_lengths_are_exact(needs):
    # Attention's two products are one kind of call: by bytes alone, each would be told from the
    # other, and be wrong by a factor that depends on the length.
    for length in (8, 24, 40, 64):
        queries, keys = torch.ones(4, length, 16), torch.ones(4, 16, length)
        scores, values = torch.ones(4, length, length), torch.ones(4, length, 16)
        for pair in ((queries, keys), (scores, values)):
            expected, need = needs.call(ATEN.bmm.default, *pair)
            # After one call, of which extent of the output is which it is the larger that counts.
            assert expected == need or (length == 8 and expected > need)
    assert needs.num_worked_out == 1


def test_extents_that_are_equal_by_chance_are_told_apart_later(needs):
    needs.call(ATEN.mm.default, torch.ones(16, 16), torch.ones(16, 16))
    needs.call(ATEN.mm.default, torch.ones(16, 640), torch.ones(640, 32))
    expected, need = needs.call(ATEN.mm.default, torch.ones(8, 64), torch.ones(64, 2000))
    assert expected == need


def test_extents_may_be_among_the_numbers(needs):
    for count in (100, 3000):
        expected, need = needs.call(ATEN.new_zeros.default, torch.ones(7), [count, 5])
        assert count == 100 or expected in (need, 5 * need // 7)


def test_what_an_operator_takes_beside_its_outputs_grows_with_its_arguments(needs):
    needs.call(ATEN.add.Tensor, torch.ones(1024), torch.ones(1024), beside=2 << 10)
    expected, need = needs.call(
        ATEN.add.Tensor, torch.ones(8192), torch.ones(8192), beside=16 << 10
    )
    assert expected == need


def test_where_extents_come_from_nowhere_bytes_grow_with_the_arguments(needs):
    needs.call(ATEN.cat.default, [torch.ones(300, 3), torch.ones(400, 3)])
    expected, need = needs.call(ATEN.cat.default, [torch.ones(3000, 3), torch.ones(4000, 3)])
    assert expected == pytest.approx(need, rel=0.05)
    assert needs.num_worked_out == 1


def test_layers_of_other_widths_are_other_kinds(needs):
    # The first convolution of a network pads its 3 channels: what that takes, as a share of the
    # bytes it was given, says nothing of a layer of 64.
    few, many = (nn.Parameter(torch.ones(8, channels, 3, 3)) for channels in (3, 64))
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    needs.call(ATEN.convolution.default, torch.ones(1, 3, 8, 8), few, *rest, beside=1 << 20)
    expected, need = needs.call(ATEN.convolution.default, torch.ones(1, 64, 8, 8), many, *rest)
    assert expected == need
    assert needs.num_worked_out == 2


def test_a_guess_too_high_fails_no_step(monkeypatch):
    device = open_device("cpu")
    try:
        batch = device.put(torch.ones(64, 64))
        limit = device.allocated_bytes() + 4 * batch.nbytes
        settings = Eviction(system="dtr", sampling=False, ignore_small=False)
        runtime = EvictionRuntime(device, settings, limit)
        monkeypatch.setattr(Needs, "work_out", lambda *_: 100 * limit)
        runtime.start(nn.Identity(), (batch,), {})
        assert float((batch + 1).sum()) == 2 * 64 * 64
        assert not runtime.failed
        runtime.stop()
    finally:
        device.close()
