"""Hugging Face's Trainer: a callback that keeps its training within a memory budget."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from accelerate.utils import get_mixed_precision_context_manager
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from mimose.attaching import is_compiled_whole
from mimose.costs import Infeasible
from mimose.handle import Handle, attach
from mimose.integrations.accelerate import run_inside
from mimose.integrations.shared import (
    figures_for_logs,
    for_planner,
    leave,
    plain,
    ready_planner,
)
from mimose.planners.base import Planner

# A training that ended in an exception has left its model attached: the next one finds out here.
# The attached model keeps its handle alive, which this must not do for either.
_handles: WeakKeyDictionary[torch.nn.Module, ReferenceType[Handle]] = WeakKeyDictionary()


class MimoseCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps a Trainer's training within a memory budget.

    ``Trainer(..., callbacks=[MimoseCallback(budget="6GB")])``. The model is attached when training
    begins and given back when it ends; evaluation is left alone. What was learned is part of the
    Trainer's checkpoints: a resumed run needs no sheltered steps, under another budget neither.

    Each training log gains ``mimose_budget_use``, ``mimose_recomputed_blocks`` (a forward pass),
    ``mimose_planning_seconds`` and ``mimose_num_violations``, of the steps since the log before.
    Callbacks that come before this one in the Trainer's list, as those that report elsewhere do,
    have read the log by then; ``docs/use.md`` says how to put this one first.

    The Trainer has no event for an exception. A training that ended in one leaves the model
    attached until the next training begins, with this callback or another, or until
    :meth:`detach` is called; used as a context manager, the callback does so by itself.

    Args:
        budget: As for :func:`mimose.attach`: bytes, ``"6GB"``, a share such as ``"80%"``, or None.
        planner: A planner's name, or ``package.module:Class``. A checkpoint keeps it, and so it
            has to be text.
        **options: What :func:`mimose.attach` and the planner take.

    Attributes:
        handle: The handle while training; None before and after.
        learned: What the last handle had learned, as plain data, or None.
        summary: What the last training came to, in words, or None.

    Raises:
        ValueError: If there is no such planner or it takes no such options.
    """

    def __init__(
        self, budget: int | float | str | None, planner: str = "mimose", **options: Any
    ) -> None:
        if not isinstance(planner, str):
            raise ValueError(
                "the planner of a MimoseCallback is named, since checkpoints keep its name: give "
                'one of mimose.PLANNERS or "package.module:Class", and its options beside it'
            )
        self.budget = budget
        self.planner = planner
        self.options = options
        self._new_planner()
        self.handle: Handle | None = None
        self.learned: dict[str, Any] | None = None
        self.summary: str | None = None
        self.left_out: list[str] = []

    # -- the Trainer's events

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse settings that work against a memory budget.

        Raises:
            ValueError: If there are any.
        """
        _check_arguments(args)
        model = kwargs.get("model")
        if model is not None and is_compiled_whole(model):
            raise ValueError(_COMPILED)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach the model, with what the checkpoint that is resumed has learned.

        Raises:
            ValueError: If the model cannot be attached.
        """
        if self.left_out:
            raise ValueError(
                f"MimoseCallback was restored from a checkpoint, which cannot hold its options "
                f"{', '.join(self.left_out)}: set restore_callback_states_from_checkpoint=False"
            )
        model: torch.nn.Module = kwargs["model"]
        self.detach()  # From a training that ended in an exception, or another callback's.
        earlier = _handles.pop(model, None)
        left = None if earlier is None else earlier()
        if left is not None:
            leave(left)
        attaching, _ = for_planner(self.options)
        self.handle = handle = attach(model, self.budget, self._new_planner(), **attaching)
        _handles[model] = ref(handle)
        autocast, runs_out = bool(args.fp16 or args.bf16), bool(args.auto_find_batch_size)
        if autocast or runs_out:
            run_inside(handle, lambda: _around(autocast=autocast, runs_out=runs_out))
        learned = _learned(state, type(self).__name__) or self.learned
        if learned is not None:
            handle.load_state_dict(learned, strict=False)
        # A checkpoint from before this callback was there knows nothing of it, and the Trainer
        # fails at its next one for want of a place.
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add this library's figures to a log of training."""
        if self.handle is None or logs is None or "loss" not in logs:
            return
        figures = figures_for_logs(self.handle)
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the model back as it was."""
        self.detach()
        if self.summary is not None:
            logging.getLogger(__name__).info(self.summary)

    # -- what checkpoints hold

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint of the Trainer's keeps, as plain data."""
        if self.handle is not None:
            self.learned = self.handle.state_dict()
        kept = {name: value for name, value in self.options.items() if plain(value)}
        return {
            "args": {"budget": self.budget, "planner": self.planner, **kept},
            "attributes": {
                "learned": self.learned,
                "left_out": sorted(self.options.keys() - kept.keys()),
            },
        }

    # -- without the Trainer

    def detach(self) -> None:
        """Give the model back as it was, if it is attached: after a training that failed."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self.learned, self.summary = leave(handle)
            _handles.pop(handle.model, None)

    def __enter__(self) -> MimoseCallback:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def _new_planner(self) -> Planner:
        _, options = for_planner(self.options)
        return ready_planner(self.planner, options)


_COMPILED = (
    "the whole model is compiled, and one compiled graph would be made for every plan: leave "
    "torch_compile out, and call layer.compile() on each of the model's layers instead"
)


def _check_arguments(args: TrainingArguments) -> None:
    # Recent versions of transformers call it by the first name, older ones by the second only.
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if getattr(args, name, False):
            raise ValueError(
                f"{name} recomputes every layer whatever the batch, and mimose decides that batch "
                f"by batch: leave {name} out of the TrainingArguments"
            )
    sharding = getattr(args, "fsdp_config", None)
    if isinstance(sharding, Mapping) and sharding.get("activation_checkpointing"):
        raise ValueError(
            "fsdp_config turns FSDP's own activation checkpointing on, and mimose decides what is "
            "recomputed batch by batch: leave activation_checkpointing out of it"
        )
    if args.torch_compile:
        raise ValueError(_COMPILED)
    if getattr(args, "deepspeed", None):
        raise ValueError(
            "DeepSpeed moves parameters and gradients itself, which mimose does not predict: "
            "leave deepspeed out of the TrainingArguments"
        )
    if args.n_gpu > 1:
        raise ValueError(
            f"the Trainer would copy the model to {args.n_gpu} GPUs within one process, and one "
            "budget is for one GPU: start with torchrun, a process a GPU, or set "
            "CUDA_VISIBLE_DEVICES to one of them"
        )


def _learned(state: TrainerState, name: str) -> dict[str, Any] | None:
    """Return what the state of a training, resumed or not, says was learned."""
    saved = (state.stateful_callbacks or {}).get(name)
    for one in saved if isinstance(saved, list) else [saved]:
        learned = ((one or {}).get("attributes") or {}).get("learned")
        if learned is not None:
            return dict(learned)
    return None


@contextmanager
def _around(*, autocast: bool, runs_out: bool) -> Iterator[None]:
    """Surround a forward pass, planning included.

    Args:
        autocast: Whether Accelerate casts within it.
        runs_out: Whether a batch that no plan fits is to end as one that ran out of memory:
            ``auto_find_batch_size`` tries a smaller batch after PyTorch's error with these words
            only.
    """
    try:
        with get_mixed_precision_context_manager(native_amp=autocast):
            yield
    except Infeasible as error:
        if not runs_out:
            raise
        raise torch.OutOfMemoryError(f"This step would run out of memory. {error}") from error
