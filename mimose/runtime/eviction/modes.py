"""The dispatch mode that shows a step's operators to the live runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from mimose.devices.sim.mode import Simulation


class OperatorMode(TorchDispatchMode):
    """Hands every operator of a thread, and of the backward passes that it starts, to a function.

    Args:
        run: Runs an operator, given it, its arguments and its arguments by name.

    Attributes:
        passive: While True, operators run as they are.
    """

    supports_higher_order_operators = True

    def __init__(self, run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self.passive = True
        self._run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        if self.passive:
            return func(*args, **(kwargs or {}))
        return self._run(func, args, kwargs or {})

    def install(self) -> None:
        """Come into force: above a simulated device's mode, and below all others.

        A mode that a user entered before is left by taking the topmost one off the stack, which is
        to be that one.
        """
        self.passive = False
        modes = _get_current_dispatch_mode_stack()
        if self in modes:
            return
        above = 0
        while above < len(modes) and not isinstance(modes[-1 - above], Simulation):
            above += 1
        lifted = _lift(above)
        self.__enter__()
        _lower(lifted)

    def remove(self) -> None:
        """Go out of force, wherever in the stack it is; in another thread's it stays, passive."""
        self.passive = True
        modes = _get_current_dispatch_mode_stack()
        if self in modes:
            lifted = _lift(len(modes) - 1 - modes.index(self))
            self.__exit__(None, None, None)
            _lower(lifted)


def _lift(count: int) -> list[Any]:
    return [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)]


def _lower(modes: list[Any]) -> None:
    for mode in reversed(modes):
        torch._C._push_on_torch_dispatch_stack(mode)
