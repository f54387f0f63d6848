"""Activation bytes of a transformer layer by formula: pure functions, no torch.

Korthikanti, Casper, Lym, McAfee, Andersch, Shoeybi, Catanzaro, *Reducing Activation Recomputation
in Large Transformer Models*, 2022, arXiv:2205.05198, sections 4 and 5 and appendix A. Throughout,
``s`` is the sequence length, ``b`` the micro-batch, ``h`` the hidden size, ``a`` the number of
heads and ``t`` the tensor-parallel size. Dropout masks take a byte a number, everything else the
type's width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A transformer layer and the batch that goes through it.

    Attributes:
        s: Sequence length in tokens.
        b: Samples in the (micro-)batch.
        h: Hidden size; the feed-forward one is four times that.
        a: Attention heads.
        width: Bytes of a number: 2 for fp16 and bf16, 4 for fp32.
        mask: Bytes of a number of a dropout mask: 1 on CUDA; PyTorch's CPU kernels keep masks in
            the type of what is dropped.

    Raises:
        ValueError: If a figure is not positive.
    """

    s: int
    b: int
    h: int
    a: int
    width: int = 2
    mask: int = 1

    def __post_init__(self) -> None:
        for name in ("s", "b", "h", "a", "width", "mask"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def sbh(self) -> int:
        """Numbers in the layer's input."""
        return self.s * self.b * self.h

    @property
    def scores(self) -> int:
        """Numbers in the attention matrices of all heads: ``a s^2 b``."""
        return self.a * self.s * self.s * self.b

    @property
    def core_bytes(self) -> int:
        """What the attention core keeps: ``5 a s^2 b`` in fp16, ``9 a s^2 b`` in fp32.

        The softmax's output, its dropout's output and that dropout's mask.
        """
        return (2 * self.width + self.mask) * self.scores

    @property
    def linear_bytes(self) -> int:
        """What else the layer keeps: ``34 sbh`` in fp16, ``66 sbh`` in fp32.

        Inputs of two layer norms (2), of QKV (1), Q and K (2), V (1), the projection's input (1),
        the inputs of both feed-forward products and of the GELU (1 + 4 + 4), and two masks.
        """
        return (16 * self.width + 2 * self.mask) * self.sbh

    @property
    def kept_bytes(self) -> int:
        """With nothing recomputed: ``sbh (34 + 5 a s / h)`` in fp16."""
        return self.linear_bytes + self.core_bytes

    @property
    def selective_bytes(self) -> int:
        """With the attention core recomputed: ``34 sbh`` in fp16."""
        return self.linear_bytes

    @property
    def fused_bytes(self) -> int:
        """With nothing recomputed and a kernel that stores no attention matrix.

        As the core recomputed, and what PyTorch's memory-efficient kernel keeps beside its inputs
        and output: the padding mask as a bias, ``b s^2`` numbers for all heads together, and the
        logarithm of each row's sum, ``a b s`` of them in fp32. This is no formula of the paper's.
        """
        return self.linear_bytes + self.width * self.b * self.s**2 + 4 * self.a * self.b * self.s

    @property
    def full_bytes(self) -> int:
        """With the layer recomputed: its input, ``2 sbh`` in fp16."""
        return self.width * self.sbh

    # -- split over t GPUs

    def tensor_parallel_bytes(self, t: int) -> float:
        """``sbh (10 + 24 / t + 5 a s / (h t))`` in fp16: what is not split stays whole."""
        return self._not_split + (self._split + self.core_bytes) / t

    def selective_tensor_parallel_bytes(self, t: int) -> float:
        """``sbh (10 + 24 / t)`` in fp16."""
        return self._not_split + self._split / t

    def sequence_parallel_bytes(self, t: int) -> float:
        """``sbh (34 + 5 a s / h) / t`` in fp16: tensor and sequence parallelism."""
        return self.kept_bytes / t

    def selective_sequence_parallel_bytes(self, t: int) -> float:
        """``34 sbh / t`` in fp16."""
        return self.linear_bytes / t

    @property
    def _not_split(self) -> int:
        # Layer norms' inputs, inputs of attention and feed-forward, both masks.
        return (4 * self.width + 2 * self.mask) * self.sbh

    @property
    def _split(self) -> int:
        return self.linear_bytes - self._not_split

    # -- what follows from it

    @property
    def best_checkpoints_ratio(self) -> float:
        """What the layer keeps inside over its input, the ``A_int / A_in`` of Chen's rule."""
        return self.kept_bytes / self.full_bytes

    @property
    def selective_flops_ratio(self) -> float:
        """Hardware over model FLOPs of selective recomputation as published: ``1 + s / (6 h)``."""
        return 1 + self.s / (6 * self.h)

    @property
    def counted_flops_ratio(self) -> float:
        """The same, counted: the core's two products (``4 b s^2 h``) once more.

        Forward and backward take three times ``24 b s h^2 + 4 b s^2 h``: the share is a third of
        the published one and less.
        """
        products, core = 24 * self.sbh * self.h, 4 * self.sbh * self.s
        return 1 + core / (3 * (products + core))


def best_num_checkpoints(num_layers: int, ratio: float) -> float:
    """Return how many equal segments need least: ``sqrt(l A_int / A_in)``.

    ``c A_in + (l / c) A_int`` is least there.

    Args:
        num_layers: Number of layers, ``l``.
        ratio: ``A_int / A_in``, what a layer keeps over what its input takes.
    """
    return math.sqrt(num_layers * ratio)


GPT3 = Layer(s=2048, b=1, h=12288, a=96)
"""A layer of GPT-3 (175 B) at a micro-batch of one."""

GPT3_LAYERS = 96
GPT3_TENSOR_PARALLEL = 8
