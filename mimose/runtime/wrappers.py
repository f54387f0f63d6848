"""Instance-level ``forward`` attributes: how a model's calls reach the executor.

An instance attribute called ``forward`` changes neither the keys of ``state_dict`` nor
``isinstance``, composes with module hooks (those stay outside) and comes off without a trace.
Copies and pickles of a wrapped module hold the forward that was there before.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from mimose.runtime.executor import Executor
    from mimose.runtime.rerun import StepState
    from mimose.runtime.run import Run


class Switch:
    """What the wrappers of one executor look at: the forward pass in progress, or None."""

    __slots__ = ("run",)

    def __init__(self) -> None:
        self.run: Run | None = None


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
        checkpoints: Whether something within it runs checkpointed; None until looked for.
    """

    __slots__ = ("checkpoints", "count", "index", "name", "numbers", "state", "switch")

    def __init__(
        self, module: nn.Module, switch: Switch, index: int, name: str, state: StepState
    ) -> None:
        super().__init__(module)
        self.switch = switch
        self.index = index
        self.name = name
        self.state = state
        self.checkpoints: bool | None = None
        self.count = 0
        self.numbers: list[int] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block as the pass in progress says, or plainly without one."""
        run = self.switch.run
        if run is None:
            return self.inner(*args, **kwargs)
        return run.call(self, args, kwargs)


class ModelForward(Wrapper):
    """Stands in for the model's ``forward``: opens and closes the executor's pass."""

    __slots__ = ("executor",)

    def __init__(self, module: nn.Module, executor: Executor) -> None:
        super().__init__(module)
        self.executor: Executor | None = executor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass under the executor."""
        if self.executor is None:
            return self.inner(*args, **kwargs)
        return self.executor.run_forward(self.inner, args, kwargs)

    def remove(self) -> None:
        """Put back what was there before, and let go of the executor."""
        super().remove()
        self.executor = None
