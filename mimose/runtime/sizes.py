"""The size of a mini-batch, read from the inputs of a model's forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from mimose.records import Size

# In order of preference: what a model's memory follows. Names are Hugging Face's.
_MAIN_INPUTS = (
    "input_ids",
    "inputs_embeds",
    "pixel_values",
    "input_features",
    "input_values",
)
_DECODER_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")


def size_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, encoder_decoder: bool = False
) -> Size:
    """Return the size of the batch that ``model(*args, **kwargs)`` would process.

    Token ids ``(batch, length)`` give ``(batch, length)``; ``(batch, choices, length)`` gives
    ``(batch * choices, length)``; embeddings ``(batch, length, features)`` give
    ``(batch, length)``; images ``(batch, channels, height, width)`` give
    ``(batch, height * width)``. The length of a decoder's inputs is appended, and with
    ``encoder_decoder`` that of the labels that they are made from.

    Raises:
        ValueError: If no argument is a tensor.
    """
    main = _first_tensor(kwargs[name] for name in _MAIN_INPUTS if name in kwargs)
    if main is None:
        main = _first_tensor([*args, *kwargs.values()])
    if main is None:
        raise ValueError(
            "no input of this forward pass is a tensor, so its size is unknown: "
            "pass size=a function of (args, kwargs) to mimose.attach"
        )
    size = _shape_size(main)
    names = (*_DECODER_INPUTS, "labels") if encoder_decoder else _DECODER_INPUTS
    decoder = _first_tensor(kwargs[name] for name in names if name in kwargs)
    if decoder is not None and decoder is not main and decoder.dim() >= 2:
        size = (*size, int(decoder.shape[1]))
    return size


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


def _shape_size(tensor: torch.Tensor) -> Size:
    shape = tensor.shape
    if len(shape) == 0:
        return (1, 1)
    if len(shape) == 1:
        return (int(shape[0]), 1)
    if len(shape) == 2:
        return (int(shape[0]), int(shape[1]))
    if len(shape) == 3:
        if tensor.is_floating_point():
            return (int(shape[0]), int(shape[1]))
        return (int(shape[0] * shape[1]), int(shape[2]))
    area = 1
    for extent in shape[2:]:
        area *= int(extent)
    return (int(shape[0]), area)
