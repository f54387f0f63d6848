"""What one operator costs a GPU: FLOPs over their rate, or bytes over the bandwidth.

The larger of the two counts (a roofline), plus the fixed time of a kernel. FLOPs are those of
``torch.utils.flop_counter``. Bytes are those of every tensor read and written once; operators whose
CUDA kernels touch more or less than that stand in the tables below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from mimose.devices.sim.gpus import Gpu

aten = torch.ops.aten

_PRECISION = {torch.float16: "fp16", torch.bfloat16: "bf16"}

# The first argument is only written.
_WRITES_ONLY = {aten.copy_, aten.fill_, aten.zero_, aten._foreach_zero_, aten._foreach_copy_}

# Of a table, the rows that are looked up are read: as much as comes out.
_READS_ROWS = {aten.embedding, aten.index_select, aten.gather, aten.index}

# Kernels that read their inputs a second time: one for the input's gradient, one that reduces over
# rows for those of weight and bias (aten/src/ATen/native/cuda/layer_norm_kernel.cu); batch norm in
# training and group norm read once for the statistics and once to normalise.
_READS_TWICE = {
    aten.native_layer_norm_backward,
    aten.native_group_norm,
    aten.native_group_norm_backward,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
    aten.cudnn_batch_norm,
    aten.cudnn_batch_norm_backward,
}

_CONVOLUTIONS = {aten.convolution, aten.convolution_backward}


def kernel_seconds(gpu: Gpu, func: Any, args: Any, kwargs: Any, outputs: Any) -> float:
    """Return the time that an operator's kernel takes on ``gpu``.

    Args:
        gpu: The GPU.
        func: The ATen overload.
        args: Its arguments, meta tensors among them.
        kwargs: Likewise, by name.
        outputs: What it returned.
    """
    packet = func.overloadpacket
    roofline = moved_bytes(packet, (args, kwargs), outputs) / gpu.attained_bandwidth
    flops = flop_count(packet, args, kwargs, outputs)
    if flops:
        roofline = max(roofline, flops / gpu.matmul_flops(_precision(packet, args)))
    return roofline + gpu.kernel_seconds


def flop_count(packet: Any, args: Any, kwargs: Any, outputs: Any) -> int:
    """Return the operator's FLOPs; 0 for those that ``torch.utils.flop_counter`` leaves out."""
    if packet is aten.convolution_backward:
        return _convolution_backward(*args)
    formula = flop_registry.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=outputs))


def _convolution_backward(
    gradient: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, *others: Any
) -> int:
    """Return the FLOPs of a convolution's gradients: each one's are the forward pass's.

    PyTorch's own count takes a grouped convolution's gradient by the weight for one over all pairs
    of channels.
    """
    transposed, mask = others[4], others[-1]
    pixels = (given if transposed else gradient).numel()
    return 2 * pixels * weight[0].numel() * sum(mask[:2])


def moved_bytes(packet: Any, arguments: Any, outputs: Any) -> int:
    """Return the bytes that the operator's kernel reads and writes."""
    read = list(tensors(arguments))
    written = [t for t in tensors(outputs) if not any(t is given for given in read)]
    out = sum(map(spanned_bytes, written))
    if packet in _READS_ROWS:
        return 2 * out + sum(spanned_bytes(t) for t in read[1:])
    if packet in _WRITES_ONLY:
        return sum(map(spanned_bytes, read))
    into = sum(map(spanned_bytes, read))
    if packet in _READS_TWICE:
        into *= 2
    # What is changed in place is read and written.
    in_place = sum(spanned_bytes(t) for t in tensors(outputs)) - out
    return into + out + in_place


def spanned_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the elements that a tensor really has; an expanded one has fewer."""
    numel = math.prod(n for n, step in zip(tensor.shape, tensor.stride()) if step or n == 0)
    return numel * tensor.element_size()


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples and dictionaries."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors(value)
    elif isinstance(values, dict):
        yield from tensors(list(values.values()))


def _precision(packet: Any, args: Any) -> str:
    dtype = next((t.dtype for t in tensors(args) if t.dtype.is_floating_point), torch.float32)
    if dtype is torch.float32:
        # PyTorch's defaults: TF32 in convolutions, not in matrix products.
        flags = torch.backends.cudnn if packet in _CONVOLUTIONS else torch.backends.cuda.matmul
        return "tf32" if flags.allow_tf32 else "fp32"
    return _PRECISION.get(dtype, "fp32")
