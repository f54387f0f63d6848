"""What data parallelism has made of a model: unwrap it, or refuse what cannot work."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mimose.devices.tensors import local

_PIPELINES = "torch.distributed.pipelining"
_FSDP = "torch.distributed.fsdp"


def unwrapped(model: Any) -> Any:
    """Return the module within a ``DistributedDataParallel``, and anything else as it is."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def check_supported(model: Any) -> None:
    """Refuse ways to train in several processes or threads under which blocks cannot run again.

    Raises:
        ValueError: If ``model`` is a pipeline's, of DeepSpeed, ``DataParallel`` or FSDP's first
            version.
    """
    kind = type(model)
    if kind.__module__.startswith(_PIPELINES):
        raise ValueError(
            "pipelines are not supported: a stage has several micro-batches between their forward "
            "and their backward at once, and mimose plans for one; train with "
            "DistributedDataParallel or fully_shard"
        )
    if not isinstance(model, torch.nn.Module):
        return
    if kind.__module__.partition(".")[0] == "deepspeed" or any(
        hasattr(p, "ds_id") for p in model.parameters()
    ):
        raise ValueError(
            "DeepSpeed is not supported: ZeRO-3 takes parameters away that a recomputed block "
            "needs, and its processes must all recompute alike; shard with PyTorch's fully_shard"
        )
    if isinstance(model, DataParallel):
        raise ValueError(
            "torch.nn.DataParallel is not supported, since it runs copies of the model in threads: "
            "use DistributedDataParallel, one process a GPU"
        )
    # Looked up, not imported: who has not imported it has not wrapped a model in it.
    flat = getattr(sys.modules.get(_FSDP), "FullyShardedDataParallel", None)
    if flat is not None and any(isinstance(module, flat) for module in model.modules()):
        raise ValueError(
            "FullyShardedDataParallel is not supported, since a recomputed block would find its "
            "parameters taken away: shard with torch.distributed.fsdp.fully_shard instead, before "
            "attaching"
        )


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether ``fully_shard`` was called on ``model`` or any module in it."""
    sharded = getattr(sys.modules.get(_FSDP), "FSDPModule", None)
    return sharded is not None and any(isinstance(module, sharded) for module in model.modules())


def check_gathers_alike(blocks: Sequence[torch.nn.Module], agreed: bool) -> None:
    """Refuse blocks of which parts are sharded, unless all processes recompute the same ones.

    Such a part gathers its parameters again whenever its block runs again, which the others have to
    do with it. A block that is sharded whole has them already when its backward begins.

    Raises:
        ValueError: If so.
    """
    parts = (part for block in blocks for part in block.children())
    if not agreed and any(is_sharded(part) for part in parts):
        raise ValueError(
            "fully_shard was called on modules within blocks, which gather their parameters again "
            "in every process at once when a block is recomputed: shard whole blocks, or attach "
            'with sync="max"'
        )


def check_not_sharded_since(model: torch.nn.Module, was_sharded: bool) -> None:
    """Refuse a model that was sharded after it was attached: its parameters are others now.

    Raises:
        ValueError: If so.
    """
    if not was_sharded and is_sharded(model):
        raise ValueError(
            "fully_shard was called after mimose.attach and has put other parameters into the "
            "model: attach after sharding"
        )


def num_bytes(parameters: Sequence[torch.nn.Parameter]) -> int:
    """Return the bytes that this process holds of some parameters (of a sharded one its part)."""
    return sum(p.numel() * p.element_size() for p in map(local, parameters))


class Buckets:
    """The gradient buckets of a ``DistributedDataParallel`` made before its device was opened.

    On cuda they are part of what is allocated. Where the device counts what is allocated after it
    was opened (``cpu``), they are added by hand, until the first backward pass has shown in which
    order gradients come and DDP makes new ones.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        ignored = model.parameters_to_ignore
        self.num_bytes = num_bytes(
            [p for n, p in model.module.named_parameters() if p.requires_grad and n not in ignored]
        )

    def renewed(self) -> bool:
        """Whether DDP has replaced them by new ones, which the device has counted."""
        model = self._model()
        return model is None or bool(model._get_ddp_logging_data().get("has_rebuilt_buckets"))
