"""Notice what a block does that its operators do not show: values that it reads, numbers it draws.

A block that goes by what a tensor holds, or by a random number of Python's, may do something else
in its next call although all shapes are the same.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_READS = frozenset(("tolist", "numpy", "__array__", "__dlpack__", "data_ptr"))
_REACHED = frozenset(("numpy", "__array__", "__dlpack__", "data_ptr"))
"""Through these the memory can be written to, too."""


class Reads(TorchFunctionMode):
    """Notices what no dispatch mode sees.

    Args:
        told: Called when values of tensors are handed to the program.
        reached: Called with a tensor whose memory is handed out.
    """

    def __init__(self, told: Callable[[], None], reached: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._told = told
        self._reached = reached

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch's."""
        name = getattr(func, "__name__", "")
        result = func(*args, **(kwargs or {}))
        if name in _READS:
            self._told()
            if name in _REACHED and args and isinstance(args[0], torch.Tensor):
                with torch._C.DisableTorchFunction():
                    self._reached(args[0])
        return result


class Chance:
    """Notices random numbers that are drawn from Python's and NumPy's own generators."""

    __slots__ = ("_numpy", "_python")

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def taken(self) -> bool:
        """Whether any were drawn since."""
        return random.getstate() != self._python or _numpy_state() != self._numpy


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    _, keys, place, *rest = numpy.random.get_state()
    return keys.tobytes(), place, *rest
