"""Attention's softmax as PyTorch had it before 1.11: its input was kept for backward.

Nothing in backward needs it, and 1.11 dropped it (https://github.com/pytorch/pytorch/issues/64000,
pull request 65242). It is as large as the attention scores, in every block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class _Kept(torch.autograd.Function):
    """The identity, which keeps its input until its backward."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        _ = ctx.saved_tensors
        return gradients[0]


class _KeepingSoftmax(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.softmax:
            args = (_Kept.apply(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def keep_softmax_input(model: nn.Module) -> nn.Module:
    """Let every self-attention of ``model`` keep its softmax's input; return ``model``.

    Raises:
        ValueError: If ``model`` has no module whose class is called ``...SelfAttention``.
    """
    found = [m for m in model.modules() if type(m).__name__.endswith("SelfAttention")]
    if not found:
        raise ValueError(f"{type(model).__name__} has no self-attention to change")
    for module in found:
        module.forward = _keeping(module.forward)  # recomputation calls it again, outside the model
    return model


def _keeping(forward: Any) -> Any:
    def inner(*args: Any, **kwargs: Any) -> Any:
        with _KeepingSoftmax():
            return forward(*args, **kwargs)

    return inner
