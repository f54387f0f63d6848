"""How the zoo's models are built: a class and a configuration of ``transformers``, by name.

Nothing is downloaded. Models have four layers or more, or what is natural for them, and dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from torch import nn
from zoo_batches import WORDS

SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
TEXT = {"vocab_size": WORDS, **SHAPE, "max_position_embeddings": 160}
IMAGE = {
    **SHAPE,
    "image_size": 32,
    "patch_size": 4,
    "hidden_dropout_prob": 0.1,
    "num_labels": 4,
}
PYRAMID = {"num_labels": 4, "hidden_dropout_prob": 0.1}


def built(model: str, config: Any) -> nn.Module:
    """Return a model of the named class."""
    return getattr(transformers, model)(config)


def settings(name: str, **values: Any) -> Any:
    """Return a configuration of the named class."""
    return getattr(transformers, name)(**values)


def maker(model: str, config: str, **values: Any) -> Callable[[], nn.Module]:
    """Return what builds a model of the named class from a configuration with these values."""

    def build() -> nn.Module:
        return built(model, settings(config, **values))

    return build
