"""What an error says is held: the program's own tensors, and what lies in a backward graph."""

import torch

from mimose.runtime.eviction.graph import Tensor
from mimose.runtime.eviction.held import describe
from mimose.runtime.eviction.known import Holder


def test_the_programs_tensors_are_told_apart_from_those_that_are_saved_for_backward():
    large, small, twin = torch.ones(1000, 3), torch.ones(7), torch.nn.Parameter(torch.ones(7))
    gradient, constant = torch.ones(50), torch.ones(60)
    known = {}
    for each in (large, small, twin, gradient, constant):
        holder = Holder(Tensor.__new__(Tensor), each.nbytes)
        holder.constant = each is constant
        known[each.untyped_storage()._cdata] = holder
    known[1] = Holder(Tensor.__new__(Tensor), 5 << 20)  # Nothing in Python has its storage.
    gradients = {gradient.untyped_storage()._cdata}
    held = "the program holds tensors of this step (1 of 1000 x 3 (float32), 2 of 7 (float32))"
    assert describe(known, gradients) == f"{held} and 5.00 MiB are saved for a backward pass"
    del known[1]
    assert describe(known, gradients) == held
    assert describe({}, ()) == ""
