"""Hugging Face Accelerate: attach a model that ``accelerator.prepare()`` has returned."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from mimose.handle import Handle
from mimose.handle import attach as attach_model
from mimose.planners.base import Planner

if TYPE_CHECKING:
    from accelerate import Accelerator


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    budget: int | float | str | None,
    planner: str | Planner = "mimose",
    *,
    checkpoint: bool = True,
    **options: Any,
) -> Handle:
    """Make a prepared model train within ``budget``.

    Args:
        accelerator: What has prepared the model.
        model: The model that ``accelerator.prepare()`` returned.
        budget: As for :func:`mimose.attach`, as are the others.
        planner: A planner's name, or a planner.
        checkpoint: Whether ``accelerator.save_state`` and ``load_state`` take the handle along, so
            that a resumed run goes on with what was learned. Accelerate keeps such objects in a
            list and loads them by place: attach in the same order in the resumed run.
        **options: What :func:`mimose.attach` and the planner take.

    Returns:
        The handle; call its ``detach()`` once training is over.

    Raises:
        ValueError: If the model was not prepared, or cannot be attached.
    """
    if not getattr(model, "_is_accelerate_prepared", False):
        raise ValueError(
            "this model was not prepared: call model = accelerator.prepare(model) first, and "
            "attach what it returns"
        )
    handle = attach_model(accelerator.unwrap_model(model), budget, planner, **options)
    if accelerator.native_amp:
        run_inside(handle, accelerator.autocast)
    if checkpoint:
        accelerator.register_for_checkpointing(handle)
    return handle


def run_inside(handle: Handle, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Run each forward pass of the attached model within ``context()``, planning included.

    Accelerate's mixed precision is a wrapper around the model's ``forward``, which lies below the
    handle's own: without this, a step would be planned as if nothing were cast.
    """
    handle._executor._model_wrapper.around = context
