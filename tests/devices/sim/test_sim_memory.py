"""Memory on a simulated GPU: what counts, what does not, and what happens at the limit."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from mimose.devices import open_device
from mimose.devices.sim.device import SimDevice

MIB = 1 << 20
BLAS = 8_519_680  # cuBLAS's workspace on a V100


@pytest.fixture
def device():
    opened = SimDevice("v100")
    yield opened
    opened.close()


def allocated(device, function):
    """Return what ``function`` leaves allocated, and what it returned."""
    before = device.allocated_bytes()
    result = function()
    return device.allocated_bytes() - before, result


def test_a_tensor_takes_what_cudas_allocator_would_give_it(device):
    taken, tensor = allocated(device, lambda: torch.empty(1000, device="meta"))
    assert taken == 4096  # 4,000 bytes in units of 512
    assert device.reserved_bytes() == 2 * MIB
    del tensor
    assert device.allocated_bytes() == 0
    device.release_cache()
    assert device.reserved_bytes() == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.gelu(x),
        lambda x: torch.softmax(x, -1),
        lambda x: torch.layer_norm(x, (1024,)),
        lambda x: torch.ops.aten.gelu_backward(x, x),
        lambda x: torch.ops.aten._softmax_backward_data(x, x, -1, torch.float32),
    ],
)
def test_an_operators_own_temporaries_do_not_count(device, function):
    x = torch.empty(1024, 1024, device="meta")
    for _ in range(2):  # worked out, then remembered
        device.begin_step()
        before = device.allocated_bytes()
        output = function(x)
        kept = device.allocated_bytes() - before
        assert kept == 4 * MIB
        # Layer norm's mean and deviation die as it returns: those are outputs.
        assert device.end_step().peak_allocated <= before + kept + 2 * 4096
        del output


def test_what_is_remembered_is_what_was_worked_out(device):
    x = torch.empty(8, 16, device="meta").t()
    first = torch.nn.functional.gelu(x)
    known = device._simulation.num_known
    second = torch.nn.functional.gelu(x)
    assert device._simulation.num_known == known + 1
    assert (first.shape, first.stride(), first.dtype) == (
        second.shape,
        second.stride(),
        second.dtype,
    )
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_other_shapes_types_and_layouts_are_not_mistaken_for_it(device):
    made = [
        torch.nn.functional.gelu(torch.empty(shape, dtype=dtype, device="meta"))
        for shape in ((4, 6), (6, 4), (24,))
        for dtype in (torch.float32, torch.float16)
    ]
    assert [(tuple(t.shape), t.dtype) for t in made] == [
        (shape, dtype)
        for shape in ((4, 6), (6, 4), (24,))
        for dtype in (torch.float32, torch.float16)
    ]
    whole = torch.empty(4, 6, dtype=torch.int64, device="meta")
    assert (whole + 1).dtype is torch.int64
    assert (whole + 1.5).dtype is torch.float32
    assert (whole + 1).dtype is torch.int64


def test_in_place_operators_return_their_argument_and_views_share_memory(device):
    x = torch.empty(256, 1024, device="meta")
    before = device.allocated_bytes()
    for _ in range(2):
        assert x.add_(1) is x
        assert x.mul_(2.0) is x
        view = x.view(1024, 256).t()[3:]
        assert view._base is x
    assert device.allocated_bytes() == before
    assert x._version == 4


def test_dropout_keeps_a_mask_of_booleans_as_on_cuda(device):
    x = torch.empty(1024, 1024, device="meta", requires_grad=True)
    taken, output = allocated(device, lambda: torch.nn.functional.dropout(x, 0.1))
    assert taken == 4 * MIB + 1 * MIB
    taken, _ = allocated(device, lambda: torch.nn.functional.dropout(x, 0.1, training=False))
    assert taken == 0
    del output


@pytest.mark.parametrize(("masked", "bias_bytes"), [(False, 0), (True, 4 * 2 * 128 * 128)])
def test_fused_attention_saves_no_attention_matrix(device, masked, bias_bytes):
    heads, length, width = 16, 128, 64
    shape = (2, heads, length, width)
    query, key, value = (torch.empty(shape, device="meta", requires_grad=True) for _ in range(3))
    mask = torch.empty(2, 1, length, length, device="meta") if masked else None
    attend = torch.nn.functional.scaled_dot_product_attention
    taken, output = allocated(device, lambda: attend(query, key, value, mask, dropout_p=0.1))
    one = 4 * 2 * heads * length * width
    matrix = 4 * 2 * heads * length * length
    assert one <= taken <= one + bias_bytes + 64 * 1024 < one + matrix
    output.sum().backward()
    assert query.grad.shape == shape


def test_matrix_products_take_cublas_workspace_once(device):
    x = torch.empty(128, 128, device="meta")
    taken, product = allocated(device, lambda: x @ x)
    assert taken == BLAS + 65536
    taken, other = allocated(device, lambda: x @ x)
    assert taken == 65536
    del product, other


def test_scratch_memory_is_given_back(device):
    table = torch.nn.Embedding(30522, 768, device="meta")
    words = device.put(torch.zeros(12, 512, dtype=torch.long))
    output = table(words)
    device.begin_step()
    before = device.allocated_bytes()
    output.sum().backward()
    peak = device.end_step().peak_allocated
    after = device.allocated_bytes()
    gradient = table.weight.grad.untyped_storage().nbytes()
    assert gradient <= after - before < gradient + MIB  # a rest of up to 1 MiB stays with a block
    assert peak > after + 12 * 512 * 768 * 4


def test_out_of_memory_is_pytorchs_own_error_and_leaves_the_device_usable(device):
    device.enforce(64 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"Simulated v100-32gb out of memory\."):
        torch.empty(65 * MIB, dtype=torch.uint8, device="meta")
    x = torch.empty(8 * MIB, device="meta")  # 32 MiB
    with pytest.raises(torch.OutOfMemoryError):
        torch.nn.functional.gelu(x) + x
    assert device.allocated_bytes() == 32 * MIB
    assert torch.nn.functional.gelu(x).shape == x.shape


@pytest.mark.parametrize(("name", "gib"), [("v100-16gb", 14), ("v100-32gb", 30)])
def test_without_a_budget_the_gpus_own_memory_is_the_limit(name, gib):
    device = open_device(f"sim:{name}")
    try:
        fits = torch.empty(gib << 30, dtype=torch.uint8, device="meta")
        del fits
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty((gib + 2) << 30, dtype=torch.uint8, device="meta")
        with pytest.raises(ValueError, match=r"more than the .* that NVIDIA V100"):
            device.enforce((gib + 2) << 30)
    finally:
        device.close()


def test_checkpointing_drops_what_it_recomputes(device):
    linear = torch.nn.Linear(1024, 1024, device="meta")
    x = torch.empty(1024, 1024, device="meta", requires_grad=True)

    def block(tensor):
        return torch.nn.functional.dropout(torch.nn.functional.gelu(linear(tensor)), 0.1)

    block(x)  # takes cuBLAS's workspace
    kept, output = allocated(device, lambda: block(x))
    del output
    dropped, output = allocated(device, lambda: checkpoint(block, x, use_reentrant=False))
    assert kept - dropped >= 5 * MIB  # the product and the mask; GELU's output dies in both
    output.sum().backward()
    assert x.grad.shape == x.shape


def test_a_closed_device_gives_pytorch_its_kernels_back():
    device = SimDevice("v100")
    tensor = torch.empty(1024, device="meta")
    device.close()
    assert device.peak_allocated_bytes() == 4096
    del tensor  # freed into a closed device
    x = torch.empty(64, 64, device="meta", requires_grad=True)
    assert "NativeDropout" not in str(torch.nn.functional.dropout(x, 0.1).grad_fn)
    again = SimDevice("v100")
    assert again.allocated_bytes() == 0
    with pytest.raises(ValueError, match="open already"):
        SimDevice("t4")
    again.close()


def test_an_adopted_model_keeps_its_ties():
    device = SimDevice("v100")
    try:
        built = device.build(lambda: torch.nn.Linear(256, 256, bias=False))
        assert built.weight.is_meta
        assert device.allocated_bytes() == 0
        model = torch.nn.Sequential(built, torch.nn.Linear(256, 256, bias=False), torch.nn.ReLU())
        model[1].weight = model[0].weight
        model.register_buffer("row", torch.zeros(4))
        device.adopt(model)
        assert model[0].weight is model[1].weight
        assert all(t.is_meta for t in (*model.parameters(), *model.buffers()))
        assert device.allocated_bytes() == 256 * 256 * 4 + 512 + BLAS
    finally:
        device.close()


def test_a_model_that_reads_values_when_built_is_built_on_the_cpu():
    class Reads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            rates = torch.linspace(0, 0.1, 3)
            self.rates = [rate.item() for rate in rates]
            self.linear = torch.nn.Linear(4, 4)

    device = SimDevice("v100")
    try:
        model = device.build(Reads)
        assert model.rates[2] == pytest.approx(0.1)
        device.adopt(model)
        assert model.linear.weight.is_meta
    finally:
        device.close()


@pytest.mark.parametrize(
    ("first", "second", "pool"), [(MIB + 1, 1000, "large"), (1000, MIB + 1, "small")]
)
def test_a_free_block_of_the_other_pool_is_said_to_be_one(device, first, second, pool):
    held = torch.empty(first, dtype=torch.uint8, device="meta")
    device.enforce(device.reserved_bytes())
    with pytest.raises(torch.OutOfMemoryError, match=f"in the {pool} pool: requests of"):
        torch.empty(second, dtype=torch.uint8, device="meta")
    del held
