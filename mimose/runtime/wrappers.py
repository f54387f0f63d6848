"""Instance-level ``forward`` attributes: how a model's calls reach the executor.

An instance attribute called ``forward`` changes neither the keys of ``state_dict`` nor
``isinstance``, composes with module hooks (those stay outside) and comes off without a trace.
Copies and pickles of a wrapped module hold the forward that was there before.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mimose.runtime.conditions import Conditions

if TYPE_CHECKING:
    from mimose.runtime.executor import Executor
    from mimose.runtime.rerun import StepState
    from mimose.runtime.run import Run


COMPILED_CALL = "_compiled_call_impl"
"""Where ``torch.nn.Module.compile`` leaves the compiled call."""


COMPILED_WHOLE = (
    "the whole model is compiled, and one compiled graph would be made for every plan: attach and "
    "train the model as it was before torch.compile, and call layer.compile() on each of its "
    "layers instead"
)


def _refuse_compiling() -> None:
    raise ValueError(COMPILED_WHOLE)


# So that it is not traced but called, and the error is the user's. `torch.compiler.disable` does
# the same, and imports the whole compiler for it.
_refuse_compiling._torchdynamo_disable = True  # type: ignore[attr-defined]
_refuse_compiling._torchdynamo_disable_msg = None  # type: ignore[attr-defined]


class Switch:
    """What the wrappers of one executor look at: the forward pass in progress, or None.

    Another thread may go through the same model meanwhile, to evaluate it: that is no part of it.

    Attributes:
        outside: Runs a block that is called outside of such a pass; None if nobody looks.
    """

    __slots__ = ("outside", "run", "thread")

    def __init__(self) -> None:
        self.run: Run | None = None
        self.outside: Callable[[BlockForward, Any, Any], Any] | None = None
        self.thread = 0

    def open(self, run: Run) -> None:
        """Take up a pass, which is this thread's."""
        self.thread = get_ident()
        self.run = run


class Wrapper:
    """A callable that stands in for a module's ``forward``."""

    __slots__ = ("__weakref__", "inner", "module", "previous")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.previous: Callable[..., Any] | None = module.__dict__.get("forward")
        self.inner: Callable[..., Any] = module.forward
        module.__dict__["forward"] = self

    def remove(self) -> None:
        """Put back what was there before."""
        if self.module.__dict__.get("forward") is not self:
            # Something else wrapped this wrapper since; it goes on as a mere pass-through.
            return
        if self.previous is None:
            del self.module.__dict__["forward"]
        else:
            self.module.__dict__["forward"] = self.previous

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The plain forward; ``inspect.signature`` follows it."""
        return self.inner

    @property
    def __code__(self) -> Any:
        """That of the plain forward: ``torch.export`` asks for it."""
        return self.inner.__code__

    @property
    def __globals__(self) -> Any:
        """What ``torch.jit.script`` asks for, which reads source and would miss the wrapper."""
        raise AttributeError(
            "torch.jit.script cannot read a model that mimose is attached to: call detach() on "
            "its handle first, and attach again afterwards"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.previous is not None:
            return copy.deepcopy(self.previous, memo)
        return copy.deepcopy(self.module, memo).forward

    def __reduce__(self) -> tuple[Any, ...]:
        # Both forms load where this package is not installed. The module's state is set after this
        # runs, so that the class's own forward is found, bound to the copy.
        if self.previous is not None:
            return operator.getitem, ((self.previous,), 0)
        return getattr, (self.module, "forward")


class BlockForward(Wrapper):
    """Stands in for a block module's ``forward``.

    Attributes:
        index: The module's place among the block modules.
        name: Its qualified name.
        count: Calls so far in the forward pass in progress.
        numbers: Block numbers of its first, second, ... call.
        state: What running it twice would change.
        conditions: What its calls depend on beside their arguments.
        checkpoints: Whether something within it runs checkpointed; None until looked for.
        passes: Places, among the new storages that it returns, of those that its backward needs
            and that nobody holds once the forward pass is over; and whether somebody holds each
            until the next block begins.
    """

    __slots__ = (
        "checkpoints",
        "conditions",
        "count",
        "index",
        "name",
        "numbers",
        "passes",
        "state",
        "switch",
    )

    def __init__(
        self, module: nn.Module, switch: Switch, index: int, name: str, state: StepState
    ) -> None:
        super().__init__(module)
        self.switch = switch
        self.index = index
        self.name = name
        self.state = state
        self.conditions = Conditions(module, name)
        self.checkpoints: bool | None = None
        self.passes: tuple[tuple[int, bool], ...] = ()
        self.count = 0
        self.numbers: list[int] = []

    @property
    def compiles(self) -> bool:
        """Whether the block was compiled."""
        return self.module.__dict__.get(COMPILED_CALL) is not None

    def follow_compiling(self) -> None:
        """Move to where ``module.compile()`` put the compiled call, so as to stay outside of it.

        Within, every plan would be compiled into a graph of its own; outside, a kept and a
        recomputed call run the same one.
        """
        compiled = self.module.__dict__.get(COMPILED_CALL)
        if compiled is None or compiled is self or self.module.__dict__.get("forward") is not self:
            return
        super().remove()
        self.inner = compiled
        self.module.__dict__[COMPILED_CALL] = self
        self.checkpoints = False  # Looking for one takes a hook, which would be compiled, too.

    def remove(self) -> None:
        """Put back what was there before."""
        if self.module.__dict__.get(COMPILED_CALL) is self:
            self.module.__dict__[COMPILED_CALL] = self.inner
        else:
            super().remove()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block as the pass in progress says, or plainly without one."""
        run = self.switch.run
        if run is None or self.switch.thread != get_ident():
            outside = self.switch.outside
            return self.inner(*args, **kwargs) if outside is None else outside(self, args, kwargs)
        return run.call(self, args, kwargs)


class ModelForward(Wrapper):
    """Stands in for the model's ``forward``: opens and closes the executor's pass.

    Attributes:
        around: Makes a context for the whole pass, or None. A library that wraps ``forward`` in
            autocast does so below this wrapper, and the plan has to know of it before.
    """

    __slots__ = ("around", "executor")

    def __init__(self, module: nn.Module, executor: Executor) -> None:
        super().__init__(module)
        self.executor: Executor | None = executor
        self.around: Callable[[], AbstractContextManager[Any]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass under the executor.

        Raises:
            ValueError: If the pass is being compiled as a whole, and is to be trained.
        """
        if torch.compiler.is_compiling():
            if self.executor is not None and self.module.training and torch.is_grad_enabled():
                _refuse_compiling()
            return self.inner(*args, **kwargs)
        if self.executor is None:
            return self.inner(*args, **kwargs)
        if self.around is None:
            return self.executor.run_forward(self.inner, args, kwargs)
        with self.around():
            return self.executor.run_forward(self.inner, args, kwargs)

    def remove(self) -> None:
        """Put back what was there before, and let go of the executor."""
        super().remove()
        self.executor = self.around = None
