"""Memory that CUDA's own kernels take from the caching allocator, which meta kernels do not.

Counted here: cuBLAS's workspace, and the scratch of embedding's backward pass. Not counted, with
what its absence can amount to: cuDNN's workspaces (convolutions; where one does not fit PyTorch
falls back to an algorithm with a smaller one, so that no out-of-memory comes of them; reserved
bytes may be higher by the largest of them), and the scratch of reductions over few long rows (at
most 32 bytes a thread block, below 1 MiB).
"""

from __future__ import annotations

from typing import Any

import torch

from mimose.devices.sim.gpus import Gpu

aten = torch.ops.aten

_BLAS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm}

# aten/src/ATen/cuda/CUDABlas.cpp, parseChosenWorkspaceSize: ":4096:2:16:8", in KiB; from compute
# capability 9.0 on 32 MiB. Taken at the first matrix product and kept.
_BLAS_BYTES = (2 * 4096 + 8 * 16) * 1024
_BLAS_BYTES_HOPPER = 4096 * 8 * 1024

# aten/src/ATen/native/cuda/Embedding.cu: from more than this many indices on they are sorted.
_SORTED_EMBEDDING = 3072
# EmbeddingBackwardKernel.cu, NROWS_PER_THREAD.
_ROWS_A_PARTIAL_SUM = 10


def blas_workspace_bytes(gpu: Gpu) -> int:
    """Return the bytes of cuBLAS's workspace."""
    return _BLAS_BYTES_HOPPER if gpu.compute_capability >= (9, 0) else _BLAS_BYTES


def uses_blas(func: Any) -> bool:
    """Return whether the operator is one of cuBLAS's."""
    return func.overloadpacket in _BLAS


def scratch_bytes(func: Any, args: Any) -> int:
    """Return the bytes that an operator's kernel takes while it runs and gives back.

    For ``embedding_dense_backward`` an upper bound: sorted and original indices with as much again
    for the sort, and a row of partial sums for each index that may be a new one and each ten.
    """
    if func.overloadpacket is not aten.embedding_dense_backward:
        return 0
    gradient, indices, num_weights = args[:3]
    count = indices.numel()
    if count <= _SORTED_EMBEDDING:
        return 0
    rows = min(count, num_weights) + count // _ROWS_A_PARTIAL_SUM
    return 4 * count * indices.element_size() + rows * gradient.shape[-1] * 4
