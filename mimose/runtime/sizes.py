"""The size of a mini-batch, read from the inputs of a model's forward pass."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch

from mimose.records import Size, StepRecord
from mimose.units import format_bytes

# In order of preference: what a model's memory follows. Names are Hugging Face's.
_MAIN_INPUTS = (
    "input_ids",
    "inputs_embeds",
    "pixel_values",
    "input_features",
    "input_values",
)
_DECODER_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")
# Channels of an image.
_MOST_CHANNELS = 4
# Peaks of one size that are further apart than this have another reason than noise.
_APART, _APART_SHARE = 1.5, 0.05

_Shape = tuple[tuple[int, ...], torch.Tensor]
"""The extents of an input, and a tensor of it."""


class NoTensorError(ValueError):
    """No input is a tensor, so that there is no size to read."""


class SizeReader:
    """Reads sizes of batches, and remembers which extents of the inputs vary.

    Token ids ``(batch, length)`` give ``(batch, length)``; ``(batch, choices, length)`` gives
    ``(batch * choices, length)``; embeddings ``(batch, length, features)`` give
    ``(batch, length)``; images ``(batch, channels, height, width)`` give
    ``(batch, height * width)``, and a list of images the same with the largest height and width.
    Inputs with one number a sample (a time step) come last. The length of a decoder's inputs is
    appended, and with ``encoder_decoder`` that of the labels that they are made from.

    If an extent varies that was left out (the length of ``(batch, channels, length)``, the frames
    of ``(batch, frames, channels, height, width)``), the second number is from then on the product
    of all extents that have varied, and :attr:`reading` says so: sizes read before and after cannot
    be compared.

    Args:
        encoder_decoder: Whether the model makes its decoder's inputs from labels.

    Attributes:
        reading: How sizes are read; empty as long as they are read as said above.
    """

    def __init__(self, *, encoder_decoder: bool = False) -> None:
        self.reading = ""
        self._names = (*_DECODER_INPUTS, "labels") if encoder_decoder else _DECODER_INPUTS
        self._extents: dict[int, tuple[int, ...]] = {}
        self._varied: dict[int, frozenset[int]] = {}
        self._members: int | None = None
        self._lists = False

    def copy(self) -> SizeReader:
        """Return one that knows as much, to ask without this one learning."""
        other = copy.copy(self)
        other._extents, other._varied = dict(self._extents), dict(self._varied)
        return other

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Size:
        """Return the size of the batch that ``model(*args, **kwargs)`` would process.

        Raises:
            NoTensorError: If no argument is a tensor.
        """
        extents, tensor = self._main(args, kwargs)
        size = self._size(extents, tensor)
        decoder = None
        for name in self._names:
            if name in kwargs and decoder is None:
                decoder = _first_tensor((kwargs[name],))
        if decoder is not None and decoder is not tensor and decoder.dim() >= 2:
            size = (*size, int(decoder.shape[1]))
        return size

    def _main(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Shape:
        """Return the input that memory is taken to follow."""
        for name in _MAIN_INPUTS:
            if name in kwargs:
                value = kwargs[name]
                if isinstance(value, torch.Tensor):
                    return value.shape, value
                for shape in self._shapes((value,)):
                    return shape
        if args and isinstance(args[0], torch.Tensor) and prod(args[0].shape[1:]) != 1:
            return args[0].shape, args[0]
        found = list(self._shapes([*args, *kwargs.values()]))
        if not found:
            raise NoTensorError(
                "no input of this forward pass is a tensor, so its size is unknown: "
                "pass size=a function of (args, kwargs) to mimose.attach"
            )
        return next((shape for shape in found if prod(shape[0][1:]) != 1), found[0])

    def _shapes(self, values: Iterable[Any]) -> Iterator[_Shape]:
        """Yield the shapes of all tensors in ``values``, and of a list of samples that of all."""
        for value in values:
            if isinstance(value, torch.Tensor):
                yield value.shape, value
            elif isinstance(value, Mapping):
                yield from self._shapes(value.values())
            elif isinstance(value, list | tuple):
                if self._are_samples(value):
                    extents = map(max, zip(*(sample.shape for sample in value)))
                    yield (len(value), *extents), value[0]
                else:
                    yield from self._shapes(value)

    def _are_samples(self, values: Sequence[Any]) -> bool:
        """Whether ``values`` are a batch's samples, not several inputs of the whole batch."""
        if type(values) is not list or not all(isinstance(v, torch.Tensor) for v in values):
            return False
        ranks = {value.dim() for value in values}
        if len(ranks) != 1 or 0 in ranks:
            return False
        first = values[0]
        channels = {value.shape[0] for value in values}
        if ranks == {1} or (
            ranks == {3} and first.is_floating_point() and max(channels) <= _MOST_CHANNELS
        ):
            return True
        if not self._lists:
            self._lists = len(channels) > 1 or self._members not in (None, len(values))
            self._members = len(values)
            if self._lists:
                self._note()
        return self._lists

    def _size(self, extents: tuple[int, ...], tensor: torch.Tensor) -> Size:
        rank = len(extents)
        if rank == 2:
            return (extents[0], extents[1])
        if rank < 2:
            return (extents[0] if rank else 1, 1)
        if rank == 3 and not tensor.is_floating_point():
            return (extents[0] * extents[1], extents[2])
        batch, rest = extents[0], extents[1:]
        before = self._extents.setdefault(rank, rest)
        if rest == before and not self._varied:
            return (batch, extents[1] if rank == 3 else prod(extents[2:]))
        left_out = 2 if rank == 3 else 1
        varied = self._varied.get(rank, frozenset())
        if rest != before:
            now = varied.union(i + 1 for i, (x, y) in enumerate(zip(rest, before)) if x != y)
            if now != varied:
                varied = self._varied[rank] = now
                self._note()
        if left_out in varied:
            return (batch, prod(extents[i] for i in varied))
        return (batch, extents[1] if rank == 3 else prod(extents[2:]))

    def _note(self) -> None:
        """Bring :attr:`reading` up to date."""
        parts = ["lists of samples"] if self._lists else []
        for rank, varied in sorted(self._varied.items()):
            if (2 if rank == 3 else 1) in varied:
                named = ", ".join(str(extent) for extent in sorted(varied))
                parts.append(f"extents {named} of {rank}")
        self.reading = "; ".join(parts)


class Alike:
    """Looks whether steps of one size have peaks as alike as planning by size takes them to be.

    Args:
        budget_bytes: Bound on reserved bytes.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._apart = _APART_SHARE * budget_bytes
        self._warned = False
        self._seen: dict[tuple[Any, ...], tuple[Any, int, int]] = {}

    def add(self, record: StepRecord) -> None:
        """Take a finished step; warn once if another one like it had a very different peak."""
        peak, situation = record.peak_allocated_bytes, record.situation
        if self._warned or peak is None or record.outcome != "ok" or not record.peak_exact:
            return
        key = (
            record.size,
            record.phase,
            situation.signature,
            situation.grads_resident,
            situation.optimizer_ready,
            bool(record.optimizer_seconds),
        )
        taken = max(1, peak - situation.resident_bytes)
        seen = self._seen.get(key)
        if seen is None or (seen[0] is not record.plan and seen[0] != record.plan):
            self._seen[key] = record.plan, taken, taken
            return
        plan, least, most = seen
        if least <= taken <= most:
            return
        least, most = min(least, taken), max(most, taken)
        self._seen[key] = plan, least, most
        if most > _APART * least and most - least > self._apart:
            self._warned = True
            warnings.warn(
                f"steps of one size, {' x '.join(map(str, record.size))}, took from "
                f"{format_bytes(least)} to {format_bytes(most)} beside what was there before them: "
                "plans follow the size alone, so that the budget may be exceeded; pass "
                "size=a function of (args, kwargs) to mimose.attach that returns the batch and "
                "each extent that memory depends on",
                UserWarning,
                stacklevel=2,
            )


def _first_tensor(values: Iterable[Any]) -> torch.Tensor | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, Mapping):
            found = _first_tensor(value.values())
        elif isinstance(value, list | tuple):
            found = _first_tensor(value)
        else:
            continue
        if found is not None:
            return found
    return None
