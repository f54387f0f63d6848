"""Hugging Face's Trainer: a callback that keeps its training within a memory budget."""

from __future__ import annotations

import copy
import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from accelerate.utils import get_mixed_precision_context_manager
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from mimose.attaching import is_compiled_whole
from mimose.attempts import explain_leaving
from mimose.handle import Handle, attach
from mimose.integrations.accelerate import run_inside
from mimose.integrations.shared import (
    Windows,
    described,
    figures_for_logs,
    for_planner,
    leave,
    plain,
    ready_planner,
)
from mimose.integrations.trainer_arguments import COMPILED, check_arguments
from mimose.learning import learned_by_all, learned_by_this
from mimose.planners.base import Planner

_STEPPING_IN_BACKWARD = ("lomo", "adalomo")
"""Optimizers whose steps cannot be undone, since backward and they are one."""

# A training that ended in an exception may have left its model attached: the next one finds out.
# The attached model keeps its handle alive, which this must not do for either.
_handles: WeakKeyDictionary[torch.nn.Module, ReferenceType[Handle]] = WeakKeyDictionary()


class MimoseCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps a Trainer's training within a memory budget.

    ``Trainer(..., callbacks=[MimoseCallback(budget="6GB")])``. The model is attached when training
    begins and given back when it ends; evaluation is left alone. What was learned is part of the
    Trainer's checkpoints: a resumed run needs no sheltered steps, under another budget neither.

    Each training log gains ``mimose_budget_use``, ``mimose_recomputed_blocks`` (a forward pass),
    ``mimose_remade_blocks`` (those that let single values go), ``mimose_planning_seconds`` and
    ``mimose_num_violations``, of the steps since the log before and of the first process.
    Callbacks that come before this one in the Trainer's list, as those that report elsewhere do,
    have read the log by then; ``docs/use.md`` says how to put this one first.

    A step that runs out of memory in its forward or backward pass is undone and run again, with
    all micro-batches of that optimizer's step, once, with every block recomputed. Not so in
    several processes, where the others would wait for what this one repeats, nor with optimizers
    that step while backward runs. What runs out in clipping, in the optimizer's step or in
    evaluation ends the training with PyTorch's own error.

    The model is given back after an exception, too, at once if it came from a step. From elsewhere
    (a callback, evaluation, Ctrl-C between steps) that needs a callback that was given to the
    Trainer as ``callbacks=``. After ``trainer.add_callback()`` the model then stays attached until
    the next training begins, with this callback or another, or until :meth:`detach` is called.

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
        self, budget: int | float | str | None, planner: str = "auto", **options: Any
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
        self._saving: dict[str, Any] | None = None
        self._windows: Windows | None = None

    def __repr__(self) -> str:
        return described(self, self.options)

    # -- the Trainer's events

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse settings that work against a memory budget.

        Raises:
            ValueError: If there are any.
        """
        check_arguments(args)
        model = kwargs.get("model")
        if model is not None and is_compiled_whole(model):
            raise ValueError(COMPILED)
        _watch(_trainer_of(self))

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
        if args.fp16 or args.bf16:
            run_inside(handle, functools.partial(get_mixed_precision_context_manager, True))
        learned = _learned(state, type(self).__name__) or self.learned
        if learned is not None:
            handle.load_state_dict(learned_by_this(learned), strict=False)
        # A checkpoint from before this callback was there knows nothing of it, and the Trainer
        # fails at its next one for want of a place.
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self._windows = None if args.optim in _STEPPING_IN_BACKWARD else Windows(handle)
        _watch(_trainer_of(self))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget the micro-batches of a step that was broken off."""
        if self._windows is not None:
            self._windows.forget()

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
            self.learned = self._saving or self.handle.state_dict()
        kept = {name: value for name, value in self.options.items() if plain(value)}
        return {
            "args": {"budget": self.budget, "planner": self.planner, **kept},
            "attributes": {
                "learned": self.learned,
                "left_out": sorted(self.options.keys() - kept.keys()),
            },
        }

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Have :meth:`state` tell of all processes; each of them enters this to save."""
        if self.handle is not None:
            self._saving = learned_by_all(self.handle.state_dict(), self.handle)
        try:
            yield
        finally:
            self._saving = None

    # -- without the Trainer

    def detach(self) -> None:
        """Give the model back as it was, if it is attached: after a training that failed."""
        self._windows = None
        handle, self.handle = self.handle, None
        if handle is not None:
            self.learned, self.summary = leave(handle)
            _handles.pop(handle.model, None)

    def __enter__(self) -> MimoseCallback:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    # -- with the Trainer's methods

    def run_step(self, step: Callable[[], Any], *, last: bool) -> Any:
        """Run a micro-batch's forward and backward pass, again if it runs out of memory.

        Args:
            step: Does so.
            last: Whether it is the last one of an optimizer's step.

        Returns:
            What ``step`` returned.
        """
        try:
            return step() if self._windows is None else self._windows.run(step, last=last)
        except BaseException as error:
            self.give_back(error)
            raise

    def give_back(self, error: BaseException) -> None:
        """Detach after an exception, which is the one that is to be heard of."""
        if self.handle is not None:
            explain_leaving(self.handle, error)
        with suppress(torch.OutOfMemoryError):
            self.detach()

    def _new_planner(self) -> Planner:
        _, options = for_planner(self.options)
        return ready_planner(self.planner, options)


def _learned(state: TrainerState, name: str) -> dict[str, Any] | None:
    """Return what the state of a training, resumed or not, says was learned."""
    saved = (state.stateful_callbacks or {}).get(name)
    for one in saved if isinstance(saved, list) else [saved]:
        learned = ((one or {}).get("attributes") or {}).get("learned")
        if learned is not None:
            return dict(learned)
    return None


def _trainer_of(callback: MimoseCallback) -> Any:
    """Return the Trainer that is calling ``callback``, or None.

    No event says which it is, so it is looked for among the callers: a few frames up, no further
    than the Trainer's own method.
    """
    frame = sys._getframe(1)
    for _ in range(5):
        if frame.f_back is None:
            break
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        handler = getattr(caller, "callback_handler", None)
        if handler is not None and callback in handler.callbacks:
            return caller
    return None


def _watch(trainer: Any) -> None:
    """Have a Trainer tell its callbacks of this class what it tells no callback.

    Its class is changed, as FSDP2 changes that of a module: a method put on the object instead
    would hold the object, and with it the model, until garbage is collected.
    """
    if trainer is None or isinstance(trainer, _Watched):
        return
    cls = type(trainer)
    kept = {"__doc__": cls.__doc__, "__module__": cls.__module__}
    trainer.__class__ = type(cls.__name__, (_Watched, cls), kept)


class _Watched:
    """The two methods of a Trainer that an exception leaves, and the one that all save with."""

    callback_handler: Any
    accelerator: Any

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            for callback in _callbacks_of(self):
                callback.give_back(error)
            raise

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        step = super().training_step  # type: ignore[misc]

        def once() -> Any:  # It may take labels out of its inputs: they are there the next time.
            return step(model, copy.copy(inputs), *args, **kwargs)

        for callback in _callbacks_of(self):
            if callback.handle is not None:
                return callback.run_step(once, last=self.accelerator.sync_gradients)
        return once()

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as saving:
            for callback in _callbacks_of(self):
                saving.enter_context(callback.saving())
            return super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]


def _callbacks_of(trainer: _Watched) -> list[MimoseCallback]:
    return [c for c in trainer.callback_handler.callbacks if isinstance(c, MimoseCallback)]
