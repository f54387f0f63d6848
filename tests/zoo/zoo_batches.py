"""Batches for the zoo, each made from the number of its step alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from zoo_conformance import Batch

from mimose.handle import SizeFunction
from mimose.records import Size

WORDS = 200
LENGTHS = (72, 96, 48, 84, 60, 90, 78, 96, 66, 93, 54, 87, 96, 75)
ROWS = (6, 8, 4, 7, 5, 8, 6, 7, 8, 5, 7)
SIDES = (48, 64, 32, 56, 40, 64, 48, 56, 64, 40, 56)


def drawn(number: int) -> torch.Generator:
    """Return the generator that step ``number`` draws its data from."""
    return torch.Generator().manual_seed(number)


def words(rows: int, length: int, number: int) -> torch.Tensor:
    """Return ids ``(rows, length)``, none of them special."""
    return torch.randint(4, WORDS, (rows, length), generator=drawn(number))


def padded(rows: int, length: int) -> torch.Tensor:
    """Return an attention mask ``(rows, length)`` whose first row is shorter than the others."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length - length // 8 :] = 0
    return mask


def tokens(number: int, rows: int = 4, lengths: tuple[int, ...] = LENGTHS) -> Batch:
    """A batch of a language model, its labels the words themselves."""
    length = lengths[number]
    ids = words(rows, length, number)
    return {"input_ids": ids, "attention_mask": padded(rows, length), "labels": ids.clone()}


def short(number: int) -> Batch:
    """A batch of a model that goes from word to word, one after the other, in Python."""
    length = LENGTHS[number] // 6
    ids = words(24, length, number)
    return {"input_ids": ids, "labels": ids.clone()}


def up_to(multiple: int) -> SizeFunction:
    """Return the size function of a model that pads some tensors to a multiple itself."""

    def size(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Size:
        rows, length = kwargs["input_ids"].shape
        return rows, length, -(-length // multiple) * multiple

    return size


def unmasked(number: int) -> Batch:
    """The same for models that know no attention mask."""
    batch = tokens(number)
    del batch["attention_mask"]
    return batch


def pairs(number: int) -> Batch:
    """A batch of an encoder-decoder, whose labels have a length of their own."""
    length = LENGTHS[number]
    target = 30 + (number * 17) % 31
    return {
        "input_ids": words(4, length, number),
        "attention_mask": padded(4, length),
        "labels": words(4, target, number + 100),
    }


def questions(number: int) -> Batch:
    """A batch of extractive question answering."""
    batch = unmasked(number)
    del batch["labels"]
    place = torch.zeros(4, dtype=torch.long)
    return {**batch, "start_positions": place, "end_positions": place + 1}


def images(number: int, side: int = 32, rows: tuple[int, ...] = ROWS) -> Batch:
    """Images of one size, of which batches hold more or fewer."""
    count = rows[number]
    pixels = torch.randn(count, 3, side, side, generator=drawn(number))
    return {"pixel_values": pixels, "labels": torch.randint(4, (count,), generator=drawn(number))}


def growing(number: int, rows: int = 4) -> Batch:
    """Images of different sizes."""
    side = SIDES[number]
    pixels = torch.randn(rows, 3, side, side, generator=drawn(number))
    return {"pixel_values": pixels, "labels": torch.randint(4, (rows,), generator=drawn(number))}


def small(number: int) -> Batch:
    """Batches of images of 64 pixels."""
    return images(number, side=64)


def many(number: int) -> Batch:
    """The same, eight of them."""
    return growing(number, rows=8)


def with_images(number: int) -> Batch:
    """Captions and images for contrastive training."""
    return {
        "input_ids": words(8, 16 + 4 * (number % 5), number),
        "pixel_values": torch.randn(8, 3, 32, 32, generator=drawn(number)),
        "return_loss": True,
    }


def videos(number: int) -> Batch:
    """Clips of four pictures."""
    rows = ROWS[number] // 2
    return {
        "pixel_values": torch.randn(rows, 4, 3, 32, 32, generator=drawn(number)),
        "labels": torch.randint(4, (rows,), generator=drawn(number)),
    }


def mels(number: int) -> Batch:
    """Spectrograms of one length, and texts."""
    rows = (3, 4, 2, 3, 4, 2, 4, 3, 4, 3, 4, 4, 3)[number]
    return {
        "input_features": torch.randn(rows, 16, 120, generator=drawn(number)),
        "labels": words(rows, 24 + (number * 7) % 25, number),
    }


def waves(number: int) -> Batch:
    """Sound of different lengths, and texts."""
    samples = LENGTHS[number] * 30
    return {
        "input_values": torch.randn(4, samples, generator=drawn(number)),
        "labels": words(4, 5, number) % 20 + 1,
    }


def spectrograms(number: int) -> Batch:
    """Spectrograms of one length, and classes."""
    rows = ROWS[number]
    return {
        "input_values": torch.randn(rows, 64, 32, generator=drawn(number)),
        "labels": torch.randint(4, (rows,), generator=drawn(number)),
    }


def scenes(number: int) -> Batch:
    """Pictures of different sizes with three boxes in each."""
    pixels = growing(number, rows=8)["pixel_values"]
    boxes = torch.rand(3, 4, generator=drawn(number)) * 0.3 + 0.2
    return {
        "pixel_values": pixels,
        "labels": [
            {"class_labels": torch.tensor([0, 1, 2]), "boxes": boxes + 0.05 * i} for i in range(8)
        ],
    }


def masks(number: int) -> Batch:
    """Pictures of different sizes, and the class of each pixel."""
    batch = growing(number)
    side = batch["pixel_values"].shape[-1]
    batch["labels"] = torch.randint(4, (4, side, side), generator=drawn(number))
    return batch
