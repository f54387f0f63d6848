"""The optimizers of the paper's runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, optim


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An optimizer with its settings.

    Attributes:
        title: What it is called in a run's settings.
        kind: Its class in ``torch.optim``.
        lr: Learning rate for a task that brings none for it.
        settings: Its other settings.
    """

    title: str
    kind: str
    lr: float
    settings: dict[str, Any]

    def make(
        self, parameters: Sequence[Tensor], *, lr: float, foreach: bool | None
    ) -> optim.Optimizer:
        """Return the optimizer over ``parameters``; ``foreach`` None is PyTorch's choice."""
        import torch

        kind = getattr(torch.optim, self.kind)
        return kind(parameters, lr=lr, foreach=foreach, **self.settings)


OPTIMIZERS: dict[str, OptimizerSpec] = {
    # As in the Hugging Face scripts that the paper ran, whose logs are named after it.
    "adamw": OptimizerSpec("AdamW", "AdamW", 3e-5, {"weight_decay": 0.0}),
    # What the released scripts build (mimose-transformers, run_*.py).
    "sgd": OptimizerSpec("SGD", "SGD", 0.1, {}),
    # MMDetection's for RetinaNet, as the paper's detectors used it.
    "momentum": OptimizerSpec(
        "SGD with momentum", "SGD", 0.01, {"momentum": 0.9, "weight_decay": 1e-4}
    ),
}
"""By the name that ``--optimizer`` takes."""
