"""Lightning: a callback that keeps a Trainer's training within a memory budget, and Fabric."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

try:
    import lightning.pytorch as pl
except ImportError:  # The same library under its older name.
    import pytorch_lightning as pl

from mimose.attempts import explain_leaving
from mimose.handle import Handle
from mimose.handle import attach as attach_model
from mimose.integrations.shared import (
    described,
    figures_for_logs,
    for_planner,
    leave,
    ready_planner,
)
from mimose.learning import learned_by_all, learned_by_this
from mimose.planners.base import Planner

_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)


class MimoseCallback(pl.Callback):  # type: ignore[misc]
    """Keeps a Lightning Trainer's training within a memory budget.

    ``Trainer(callbacks=[MimoseCallback(budget="6GB")])``. The network is attached when training
    begins and given back when it ends, in an exception as well; validation is left alone. What was
    learned is part of the checkpoints: a resumed run needs no sheltered steps. Every
    ``log_every_n_steps`` the Trainer's loggers get ``mimose_budget_use``,
    ``mimose_recomputed_blocks`` (a forward pass), ``mimose_remade_blocks`` (those that let single
    values go), ``mimose_planning_seconds`` and ``mimose_num_violations`` of the steps since the
    time before.

    A step that runs out of memory in its forward or backward pass is undone and run again, once,
    with every block recomputed; what ``training_step`` had logged for the epoch counts twice. Not
    so with gradient accumulation, manual optimization, an ``optimizer_zero_grad`` of the module's
    own or several processes: there, and in validation, PyTorch's own error ends the training.

    Args:
        budget: As for :func:`mimose.attach`, as are the others.
        planner: A planner's name, or a planner.
        module: Name of the part of the LightningModule whose forward pass ``training_step`` calls.
            By default its only child with parameters, or the LightningModule itself if it has a
            ``forward`` of its own.
        **options: What :func:`mimose.attach` and the planner take.

    Attributes:
        handle: The handle while training; None before and after.
        summary: What the last training came to, in words, or None.

    Raises:
        ValueError: If there is no such planner or it takes no such options.
    """

    def __init__(
        self,
        budget: int | float | str | None,
        planner: str | Planner = "auto",
        *,
        module: str | None = None,
        **options: Any,
    ) -> None:
        self.budget = budget
        self.module = module
        self.planner = planner
        self.options, self._planner_options = for_planner(options)
        ready_planner(planner, self._planner_options)
        self.handle: Handle | None = None
        self.summary: str | None = None
        self._learned: dict[str, Any] | None = None
        self._module: pl.LightningModule | None = None

    def __repr__(self) -> str:
        return described(self, {**self.options, **self._planner_options})

    # -- Lightning's hooks

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach the network, with what the checkpoint that is resumed has learned.

        Raises:
            ValueError: If it cannot be attached.
        """
        if getattr(pl_module, "_compiler_ctx", None) is not None:
            raise ValueError(
                "the whole LightningModule is compiled, and one compiled graph would be made for "
                "every plan: leave torch.compile out, and call layer.compile() on each of its "
                "layers instead"
            )
        self.detach()
        planner = ready_planner(self.planner, self._planner_options)
        module = _trained(pl_module, self.module)
        self.handle = attach_model(module, self.budget, planner, **self.options)
        if self._learned is not None:
            self.handle.load_state_dict(learned_by_this(self._learned), strict=False)
        if "optimizer_step" not in vars(pl_module):
            self._recover(trainer, pl_module, self.handle)

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Mark the end of the backward pass, which Lightning runs within the optimizer's step."""
        if self.handle is not None:
            self.handle._before_optimizer(optimizer)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log, and see that there is something to log.

        Raises:
            ValueError: If ``training_step`` did not call the forward pass of what is attached.
        """
        handle = self.handle
        if handle is None:
            return
        if handle.open_step is None and handle.last_record is None:
            raise ValueError(
                f"training_step did not call the forward pass of {type(handle.model).__name__}, "
                "which is attached: name the part of the LightningModule that it calls, as in "
                "MimoseCallback(..., module='model')"
            )
        every = getattr(trainer, "log_every_n_steps", 0)
        if every and trainer.global_step and trainer.global_step % every == 0:
            figures = figures_for_logs(handle)
            for logger in trainer.loggers if figures else ():
                logger.log_metrics(figures, step=trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give the network back as it was."""
        self.detach()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Give the network back as it was."""
        if self.handle is not None:
            explain_leaving(self.handle, exception)
        self.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned in all processes, each of which calls it, as plain data."""
        if self.handle is not None:
            self._learned = self.handle.state_dict()
        if self._learned is None:
            return {}
        return {"learned": learned_by_all(self._learned, self.handle)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned, once training begins."""
        self._learned = state_dict.get("learned")

    def detach(self) -> None:
        """Give the network back as it was, if it is attached."""
        module, self._module = self._module, None
        if module is not None:
            vars(module).pop("optimizer_step", None)
        handle, self.handle = self.handle, None
        if handle is not None:
            self._learned, self.summary = leave(handle)

    def _recover(self, trainer: pl.Trainer, module: pl.LightningModule, handle: Handle) -> None:
        """Have steps run again if they run out of memory: each is its optimizer's closure."""
        if type(module).optimizer_zero_grad is not pl.LightningModule.optimizer_zero_grad:
            return  # It may leave gradients, which would be lost.
        self._module = module
        optimizer_step = module.optimizer_step

        @functools.wraps(optimizer_step)
        def recovering(
            epoch: int, batch_idx: int, optimizer: Any, closure: Callable[[], Any] | None = None
        ) -> None:
            again = closure
            if closure is not None and trainer.accumulate_grad_batches == 1:
                # Gradients of the step before are still there, and zeroed within the closure.
                again = functools.partial(handle.run, closure, grads_are_zero=True)
            optimizer_step(epoch, batch_idx, optimizer, again)

        module.optimizer_step = recovering


def attach(
    model: torch.nn.Module,
    budget: int | float | str | None,
    planner: str | Planner = "auto",
    **options: Any,
) -> Handle:
    """Make a model that ``fabric.setup()`` returned train within ``budget``.

    ``fabric.save`` and ``fabric.load`` take the handle in their state as they take a model, so that
    a resumed run goes on with what was learned.

    Args:
        model: The model that ``fabric.setup()`` returned.
        budget: As for :func:`mimose.attach`, as are the others.
        planner: A planner's name, or a planner.
        **options: What :func:`mimose.attach` and the planner take.

    Returns:
        The handle; call its ``detach()`` once training is over.

    Raises:
        ValueError: If the model was not set up, or cannot be attached.
    """
    if not hasattr(model, "_forward_module"):
        raise ValueError(
            "this model was not set up: call model = fabric.setup(model) first, and attach what "
            "it returns"
        )
    wrapped: Any = model._forward_module
    given = wrapped if isinstance(wrapped, DistributedDataParallel) else model.module
    return attach_model(given, budget, planner, **options)  # type: ignore[arg-type]


def _trained(pl_module: pl.LightningModule, name: str | None) -> torch.nn.Module:
    if name is not None:
        try:
            return pl_module.get_submodule(name)
        except AttributeError:
            children = ", ".join(n for n, _ in pl_module.named_children())
            raise ValueError(
                f"{type(pl_module).__name__} has no part called {name!r}: it has {children}"
            ) from None
    children = {n: m for n, m in pl_module.named_children() if any(True for _ in m.parameters())}
    only = next(iter(children.values())) if len(children) == 1 else None
    if only is not None and not isinstance(only, _LISTS):
        return only
    if type(pl_module).forward is not pl.LightningModule.forward:
        return pl_module
    raise ValueError(
        f"{type(pl_module).__name__} has no forward of its own and its parts with parameters are "
        f"{', '.join(children) or 'none'}: name the one whose forward pass training_step calls, "
        "as in MimoseCallback(..., module='model')"
    )
