"""Hugging Face Accelerate: attach a model that ``accelerator.prepare()`` has returned."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from mimose.handle import Handle
from mimose.handle import attach as attach_model
from mimose.integrations.shared import Windows
from mimose.planners.base import Planner

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    budget: int | float | str | None,
    planner: str | Planner = "auto",
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
            list and loads them by place: attach in the same order in the resumed run. Its file is
            the first process's; the others that save have one each beside it.
        **options: What :func:`mimose.attach` and the planner take.

    Returns:
        The handle; call its ``detach()`` once training is over.

    Raises:
        ValueError: If the model was not prepared, Accelerate checkpoints activations itself, or
            the model cannot be attached.
    """
    if not getattr(model, "_is_accelerate_prepared", False):
        raise ValueError(
            "this model was not prepared: call model = accelerator.prepare(model) first, and "
            "attach what it returns"
        )
    if getattr(getattr(accelerator.state, "fsdp_plugin", None), "activation_checkpointing", False):
        raise ValueError(
            "the FSDP plugin's activation_checkpointing recomputes every layer whatever the batch, "
            "and mimose decides that batch by batch: leave activation_checkpointing out of it"
        )
    wrapped = isinstance(model, DistributedDataParallel)
    given = model if wrapped else accelerator.unwrap_model(model)
    handle = attach_model(given, budget, planner, **options)
    if accelerator.native_amp:
        run_inside(handle, accelerator.autocast)
    if checkpoint:
        kept = _Kept(accelerator, handle)
        accelerator.register_for_checkpointing(kept)
        accelerator.register_save_state_pre_hook(kept.save)
        accelerator.register_load_state_pre_hook(kept.load)
    return handle


class _Kept:
    """A handle in Accelerate's checkpoints.

    Accelerate writes one state for all processes. Those of others than the first lie beside it, as
    its own files of random states do: there is no collective in it, since many programs have the
    first process alone save. A process without a file takes what the first one had learned.

    Args:
        accelerator: What saves and loads it.
        handle: The handle.
    """

    def __init__(self, accelerator: Accelerator, handle: Handle) -> None:
        self._handle = handle
        self._rank = accelerator.process_index
        self._number = len(accelerator._custom_objects)
        self._own: dict[str, Any] | None = None

    def save(self, models: Any, weights: Any, folder: str) -> None:
        """Write this process's state, before Accelerate writes that of the first one."""
        if self._rank:
            self._file(folder).write_text(json.dumps(self._handle.state_dict()), encoding="utf-8")

    def load(self, models: Any, folder: str) -> None:
        """Read this process's state, before Accelerate loads that of the first one."""
        file = self._file(folder)
        self._own = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def state_dict(self) -> dict[str, Any]:
        """Return what Accelerate writes."""
        return self._handle.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what Accelerate has loaded, or what this process had saved itself."""
        own, self._own = self._own, None
        # What does not go with it is from an earlier checkpoint in the same folder.
        alike = own is not None and all(own.get(n) == state.get(n) for n in ("model", "planner"))
        self._handle.load_state_dict(own if own is not None and alike else state)

    def _file(self, folder: str) -> Path:
        return Path(folder) / f"mimose_state_{self._number}_{self._rank}.json"


def recovering(accelerator: Accelerator, handle: Handle) -> Callable[[Callable[[], T]], T]:
    """Return a function that runs micro-batches, again if they run out of memory.

    Under ``accelerator.accumulate(model)`` all those of one optimizer's step are then run again,
    which :meth:`Handle.run`, given them one by one, can do for the first of them only.

    Args:
        accelerator: What has prepared the model.
        handle: What :func:`attach` returned.

    Returns:
        A function to call once a micro-batch, within ``accumulate`` and before the optimizer's
        step, with one that computes the loss and its gradients; it returns what that returned.
    """
    windows = Windows(handle)
    return lambda part: windows.run(part, last=accelerator.sync_gradients)


def run_inside(handle: Handle, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Run each forward pass of the attached model within ``context()``, planning included.

    Accelerate's mixed precision is a wrapper around the model's ``forward``, which lies below the
    handle's own: without this, a step would be planned as if nothing were cast.
    """
    handle._executor._model_wrapper.around = context
