"""Operators that CUDA computes by other kernels than the CPU and meta do.

What a kernel saves for its backward pass decides the memory of training. Where CUDA takes a fused
kernel, meta tensors are led to the same one: dropout that saves its mask as booleans, and scaled
dot product attention that saves no attention matrix.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from mimose.devices.sim.gpus import Gpu

aten = torch.ops.aten

_FLASH = (8, 0)  # least compute capability of FlashAttention's kernels
_FLASH_HEAD = 256
_HALVES = (torch.float16, torch.bfloat16)
_BIAS_ALIGNMENT = 8  # elements, as pad_bias in aten/src/ATen/native/transformers/attention.cpp


class CudaKernels:
    """While open, meta tensors take CUDA's kernels.

    Args:
        gpu: The GPU, on whose compute capability the choice of attention depends.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        # Operators that PyTorch composes of others: they must be caught before autograd.
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("dropout", _dropout, "AutogradMeta")
        self._library.impl("scaled_dot_product_attention", self._attention, "AutogradMeta")

    def close(self) -> None:
        """Give meta tensors PyTorch's own kernels back."""
        self._library._destroy()

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            groups = query.shape[-3] // key.shape[-3]
            key = key.repeat_interleave(groups, -3)
            value = value.repeat_interleave(groups, -3)
        bias = attn_mask
        if query.dim() != 4 or (bias is not None and bias.requires_grad):
            return _attention_by_steps(query, key, value, bias, dropout_p, is_causal, scale)
        if (
            bias is None
            and query.dtype in _HALVES
            and query.shape[-1] <= _FLASH_HEAD
            and self._gpu.compute_capability >= _FLASH
        ):
            flash = aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if bias is not None:
            bias = _efficient_bias(bias, query, key)
        efficient = aten._scaled_dot_product_efficient_attention
        saves = any(t.requires_grad for t in (query, key, value))
        return efficient(query, key, value, bias, saves, dropout_p, is_causal, scale=scale)[0]


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    # aten/src/ATen/native/Dropout.cpp: the fused kernel is CUDA's where it has something to drop.
    if not train or p == 0 or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor * torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    dropped: torch.Tensor = aten.native_dropout(tensor, p, True)[0]
    return dropped


def _efficient_bias(bias: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    if bias.dtype is torch.bool:
        hidden = torch.full((), -math.inf, dtype=query.dtype, device=query.device)
        shown = torch.zeros((), dtype=query.dtype, device=query.device)
        bias = torch.where(bias, shown, hidden)
    columns = key.shape[-2]
    padding = -columns % _BIAS_ALIGNMENT
    if padding:
        bias = torch.nn.functional.pad(bias, (0, padding))[..., :columns]
    return bias.expand(*query.shape[:2], query.shape[-2], columns)


def _attention_by_steps(
    query: Any, key: Any, value: Any, bias: Any, dropout_p: float, is_causal: bool, scale: Any
) -> torch.Tensor:
    """Return attention as PyTorch's unfused form computes it."""
    scale = scale or 1 / math.sqrt(query.shape[-1])
    scores = (query * math.sqrt(scale)) @ (key * math.sqrt(scale)).transpose(-2, -1)
    if is_causal:
        shape = scores.shape[-2:]
        bias = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if bias is not None:
        if bias.dtype is torch.bool:
            scores = scores.masked_fill(bias.logical_not(), -math.inf)
        else:
            scores = scores + bias
    weights = _dropout(torch.softmax(scores, -1), dropout_p, True)
    return weights @ value
