"""What a block's call depends on beside its arguments, so that a rerun finds the same.

Between a forward pass and its backward pass a loop may freeze or thaw layers or leave a context:
``torch.func.functional_call``, which lends the modules other parameters,
``torch.nn.attention.sdpa_kernel``, ``torch.nn.utils.parametrize.cached``. What the block itself
changes is :mod:`mimose.runtime.rerun`'s. What cannot be brought back are values of parameters that
were changed in place, by an optimizer's step for example: their version counters tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.backends import cuda
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from mimose.runtime.rerun import Snapshot

_Cache = dict[Any, Any]

_requires_grad = attrgetter("requires_grad")
_version = attrgetter("_version")

_OWN_DOING = -1
"""Stands for the version of a parameter that the block itself changes, as embeddings with a
greatest norm do."""

_KERNELS: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
)


class Seen(NamedTuple):
    """What was found when a block was called.

    Attributes:
        tensors: The parameters.
        trained: Of each of these, whether it required a gradient.
        kernels: Which kernels of attention were allowed.
        cache: The parametrized weights that were cached already; None if they were not cached.
        versions: The parameters' version counters; None where there are none.
    """

    tensors: list[torch.Tensor | None]
    trained: list[bool]
    kernels: list[bool]
    cache: _Cache | None
    versions: list[int] | None


class CallMemory:
    """What reruns of some blocks need to know of their first runs, by the blocks' numbers."""

    __slots__ = ("seen", "snapshots")

    def __init__(self) -> None:
        self.snapshots: dict[int, Snapshot] = {}
        self.seen: dict[int, Seen] = {}

    def clear(self) -> None:
        """Forget all of it."""
        self.snapshots.clear()
        self.seen.clear()


class Conditions:
    """Looks at what a block's calls depend on.

    Args:
        module: The block. Parameters that ``fully_shard`` has taken over come and go by
            themselves, and are not looked at.
        name: Its name.
    """

    __slots__ = ("_name", "_slots")

    def __init__(self, module: nn.Module, name: str = "") -> None:
        self._name = name
        sharded = any(hasattr(p, "placements") for p in module.parameters())
        self._slots: list[tuple[dict[str, Any], str]] = [
            (m._parameters, name)
            for m in module.modules()
            for name, tensor in m._parameters.items()
            if tensor is not None and not sharded
        ]

    def now(self) -> Seen:
        """Return what a call would find now; takes microseconds."""
        try:
            tensors = [table[name] for table, name in self._slots]
            trained = list(map(_requires_grad, tensors))
        except (KeyError, AttributeError):  # A parameter was taken out, as parametrizing does.
            tensors = [table.get(name) for table, name in self._slots]
            trained = [t is not None and t.requires_grad for t in tensors]
        kernels = [allowed() for allowed, _ in _KERNELS]
        return Seen(tensors, trained, kernels, cached_weights(), _versions(tensors))

    def after_run(self, seen: Seen) -> Seen:
        """Return what a call found, less the versions that the call itself has changed."""
        after = _versions(seen.tensors)
        if after == seen.versions or after is None or seen.versions is None:
            return seen
        kept = [v if v == now else _OWN_DOING for v, now in zip(seen.versions, after)]
        return seen._replace(versions=kept)

    @contextmanager
    def restored(self, seen: Seen) -> Iterator[None]:
        """Have a rerun find what the first run found, and put back what there is now.

        Raises:
            RuntimeError: If a parameter was changed in place since.
        """
        present = self.now()
        self._check_versions(seen, present)
        if _alike(present, seen):
            yield
            return
        before, after = _Setter(present, seen), _Setter(seen, present)
        before.apply(self)
        try:
            yield
        finally:
            after.apply(self)

    def _check_versions(self, seen: Seen, present: Seen) -> None:
        """Refuse to run with other values, as PyTorch refuses to go back with them."""
        before, now = seen.versions, present.versions
        if before is None or now == before:
            return
        if not all(map(is_, seen.tensors, present.tensors)):
            now = _versions(seen.tensors)  # Those of the first run are lent to the rerun.
        for (_, name), expected, found in zip(self._slots, before, now or before):
            if expected not in (_OWN_DOING, found):
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: parameter {name} of block {self._name}, which is "
                    f"recomputed, is at version {found}; expected version {expected} instead: step "
                    "the optimizer after backward"
                )


def _versions(tensors: list[torch.Tensor | None]) -> list[int] | None:
    try:
        return list(map(_version, tensors))
    except AttributeError:  # A parameter was taken out.
        return [_OWN_DOING if t is None else t._version for t in tensors]
    except RuntimeError:  # Made in inference mode: nothing counts, and nothing trains them.
        return None


def _alike(one: Seen, other: Seen) -> bool:
    return (
        all(map(is_, one.tensors, other.tensors))
        and one.trained == other.trained
        and one.kernels == other.kernels
        and one.cache is other.cache is None
    )


class _Setter:
    """Brings about what was seen once, from what is there now."""

    __slots__ = ("_new", "_old")

    def __init__(self, old: Seen, new: Seen) -> None:
        self._old = old
        self._new = new

    def apply(self, conditions: Conditions) -> None:
        old, new = self._old, self._new
        if not all(map(is_, old.tensors, new.tensors)):
            for (table, name), one, other in zip(conditions._slots, old.tensors, new.tensors):
                if one is not other:
                    _put(table, name, other)
        if old.trained != new.trained:
            for tensor, trained in zip(new.tensors, new.trained):
                if tensor is not None and tensor.is_leaf and tensor.requires_grad != trained:
                    tensor.requires_grad_(trained)
        if old.kernels != new.kernels:
            for (_, allow), allowed in zip(_KERNELS, new.kernels):
                allow(allowed)
        if old.cache is not None or new.cache is not None:
            cache_weights(new.cache)


def _put(table: dict[str, Any], name: str, tensor: torch.Tensor | None) -> None:
    if tensor is None:  # Removed, as parametrizing does, or None from the start: the same to us.
        table.pop(name, None)
    else:
        table[name] = tensor


def cached_weights() -> _Cache | None:
    """Return a copy of what ``parametrize.cached`` has cached so far, or None outside of it."""
    return dict(parametrize._cache) if parametrize._cache_enabled else None


def cache_weights(cache: _Cache | None) -> None:
    """Have ``parametrize.cached`` find what :func:`cached_weights` once returned."""
    parametrize._cache_enabled = 0 if cache is None else max(1, parametrize._cache_enabled)
    parametrize._cache = {} if cache is None else dict(cache)
