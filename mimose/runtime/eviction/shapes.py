"""What an operator will take, before it runs: remembered from earlier calls, else worked out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from mimose.runtime.eviction.lineage import PLAIN, Traits, tensors_returned

_MOST_KNOWN = 500_000
_GRAIN = 512


def rounded(num_bytes: int) -> int:
    """Return what an allocator takes for a request: a multiple of 512 bytes."""
    return (num_bytes + _GRAIN - 1) & -_GRAIN


class Needs:
    """Bytes that operators need beside what is there: outputs, and what they take while they run.

    A call that is not known is worked out: exactly where the device can tell. Elsewhere that takes
    milliseconds, and batches of new lengths come with every step; so it is done once for each kind
    of call. Of later ones the outputs' extents are read off the arguments, as they were the last
    times, and what they take while they run is taken to be as much for each byte of arguments.

    Args:
        device: The device.
    """

    def __init__(self, device: Any) -> None:
        self._known: dict[int, int] = {}
        self._kinds: dict[Any, _Kind] = {}
        self._foresee: Callable[[Any, Any, Any], int | None] = getattr(device, "foresee", on_meta)
        self._exact = self._foresee is not on_meta

    def get(self, signature: int) -> int | None:
        """Return what a call of this signature needed the last time, or None."""
        return self._known.get(signature)

    def learn(
        self, signature: int | None, func: Any, args: Any, need: int, made: Sequence[torch.Tensor]
    ) -> None:
        """Take note of what a call needed, and of the new tensors that it returned."""
        if signature is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[signature] = need
        if not self._exact:
            call = _Call(func, args)
            kind = self._kinds.get(call.kind)
            if kind is None:
                kind = self._kinds[call.kind] = _Kind()
            kind.learn(call, need, made)

    def work_out(self, traits: Traits, func: Any, args: Any, kwargs: Any) -> int:
        """Return what an unknown call will need, as far as that can be told; else 0."""
        if not traits.makes or traits.dynamic:
            return 0
        if not self._exact:
            call = _Call(func, args)
            kind = self._kinds.get(call.kind)
            if kind is not None:
                return kind.need(call)
        return self.outputs(func, args, kwargs)

    def outputs(self, func: Any, args: Any, kwargs: Any) -> int:
        """Return the least that a call will need, as far as that can be told; else 0."""
        need = self._foresee(func, args, kwargs)
        return 0 if need is None else need


class _Call:
    """An operator's arguments, as far as they tell what it needs.

    Attributes:
        kind: What calls have in common that need memory alike: everything but the extents of
            tensors that are not parameters. Layers of other widths may be computed otherwise: a
            convolution of 3 channels pads them to the 16 that a vector holds.
        extents: Those of all tensors one after the other, and the whole numbers among arguments.
        given: Bytes of the tensors.
    """

    __slots__ = ("extents", "given", "kind")

    def __init__(self, func: Any, args: Any) -> None:
        self.extents: list[int] = []
        self.given = 0
        self.kind = (func, *self._read(args))

    def _read(self, values: Any) -> list[Any]:
        kind: list[Any] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                shape, dtype = value.shape, value.dtype
                self.extents += shape
                self.given += shape.numel() * dtype.itemsize
                kind += (dtype, shape if type(value) is torch.nn.Parameter else len(shape))
            elif isinstance(value, list | tuple):
                kind.append(tuple(self._read(value)))
            else:
                if type(value) is int:
                    self.extents.append(value)
                kind.append(type(value))
        return kind


class _Kind:
    """What calls of one kind needed."""

    __slots__ = ("_shapes", "_share", "_spare")

    def __init__(self) -> None:
        self._share = self._spare = 0.0
        self._shapes: list[tuple[int, list[set[int]]]] | None = None

    def learn(self, call: _Call, need: int, made: Sequence[torch.Tensor]) -> None:
        """Take note of one more."""
        places: dict[int, set[int]] = {}
        for place, extent in enumerate(call.extents):
            places.setdefault(extent, set()).add(place)
        shapes = [
            (t.dtype.itemsize, [places.get(extent, set()) for extent in t.shape if extent != 1])
            for t in made
        ]
        before = self._shapes
        if before and [(size, len(dims)) for size, dims in before] == [
            (size, len(dims)) for size, dims in shapes
        ]:
            # Extents that are equal by chance are told apart by other calls.
            shapes = [
                (size, [(a & b) or b for a, b in zip(old, new, strict=True)])
                for (_, old), (size, new) in zip(before, shapes, strict=True)
            ]
        self._shapes = shapes if all(all(dims) for _, dims in shapes) else None
        room = sum(rounded(t.untyped_storage().nbytes()) for t in made)
        given = max(1, call.given)
        self._share, self._spare = need / given, max(0, need - room) / given

    def need(self, call: _Call) -> int:
        """Return what a call will need."""
        if self._shapes is None:
            return int(self._share * call.given)
        extents = call.extents
        room = sum(
            rounded(size * prod(max(extents[place] for place in places) for places in dims))
            for size, dims in self._shapes
        )
        return room + int(self._spare * call.given)


def on_meta(func: Any, args: Any, kwargs: Any) -> int | None:
    """Return the bytes of an operator's outputs, from running it on tensors without data."""
    with torch._C._DisableTorchDispatch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The operator itself will tell.
        try:
            output = func(
                *(_as_meta(each) for each in args),
                **{name: _as_meta(each) for name, each in kwargs.items()},
            )
            made = [t.untyped_storage() for t in tensors_returned(output)]
        except Exception:  # Whatever stands in its way, it is only an estimate that is missing.
            return None
    storages = {storage._cdata: storage for storage in made}
    return sum(rounded(storage.nbytes()) for storage in storages.values())


def _as_meta(value: Any) -> Any:
    if type(value) in PLAIN:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return [_as_meta(each) for each in value]
    return torch.device("meta") if isinstance(value, torch.device) else value
