"""What an operator will take, before it runs: remembered from earlier calls, else worked out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from mimose.runtime.eviction.lineage import PLAIN, Place, Traits, tensors_returned

_MOST_KNOWN = 500_000
_GRAIN = 512


def rounded(num_bytes: int) -> int:
    """Return what an allocator takes for a request: a multiple of 512 bytes."""
    return (num_bytes + _GRAIN - 1) & -_GRAIN


class Needs:
    """Bytes that operators need beside what is there: outputs, and what they take while they run.

    A call that is not known is worked out: exactly where the device can tell. Elsewhere that takes
    milliseconds, and batches of new lengths come with every step; so it is done once for each kind
    of call, and later ones are taken to need as much for each byte of their arguments as the last.

    Args:
        device: The device.
    """

    def __init__(self, device: Any) -> None:
        self._known: dict[int, int] = {}
        self._shares: dict[Any, float] = {}
        self._foresee: Callable[[Any, Any, Any], int | None] = getattr(device, "foresee", on_meta)
        self._exact = self._foresee is not on_meta

    def get(self, signature: int) -> int | None:
        """Return what a call of this signature needed the last time, or None."""
        return self._known.get(signature)

    def learn(self, signature: int | None, func: Any, described: Any, need: int) -> None:
        """Take note of what a call with such arguments needed."""
        if signature is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[signature] = need
        if not self._exact:
            kind, given = _kind(func, described)
            if given:
                self._shares[kind] = need / given

    def work_out(self, traits: Traits, func: Any, args: Any, kwargs: Any, described: Any) -> int:
        """Return what an unknown call will need, as far as that can be told; else 0."""
        if not traits.makes or traits.dynamic:
            return 0
        if not self._exact:
            kind, given = _kind(func, described)
            share = self._shares.get(kind)
            if share is not None:
                return int(share * given)
        need = self._foresee(func, args, kwargs)
        return 0 if need is None else need


def _kind(func: Any, described: Any) -> tuple[Any, int]:
    """Return what calls of one kind have in common, and the bytes of this one's arguments."""
    kind: list[Any] = [func]
    given = 0
    for each in described:
        if type(each) is Place:
            _, dtype, shape, _, _ = each
            kind += (dtype, len(shape))
            given += shape.numel() * dtype.itemsize
        elif type(each) is tuple:
            inner, more = _kind(len(each), each)
            kind.append(inner)
            given += more
        else:
            kind.append(type(each))
    return tuple(kind), given


def on_meta(func: Any, args: Any, kwargs: Any) -> int | None:
    """Return the bytes of an operator's outputs, from running it on tensors without data."""
    with torch._C._DisableTorchDispatch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The operator itself will tell.
        try:
            output = func(
                *(_as_meta(each) for each in args),
                **{name: _as_meta(each) for name, each in kwargs.items()},
            )
        except Exception:  # Whatever stands in its way, it is only an estimate that is missing.
            return None
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors_returned(output)}
    return sum(rounded(storage.nbytes()) for storage in storages.values())


def _as_meta(value: Any) -> Any:
    if type(value) in PLAIN:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return [_as_meta(each) for each in value]
    return torch.device("meta") if isinstance(value, torch.device) else value
