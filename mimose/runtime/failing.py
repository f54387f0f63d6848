"""Notice that a backward pass ended, or ran out of memory, in a loop that says nothing of it.

An error goes from PyTorch's engine straight to the user's loop, past every hook. So while someone
watches, the one Python function that all backward passes go through is replaced by one that looks
at how it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Notice = Callable[[torch.OutOfMemoryError | None], None]

_NAME = "_engine_run_backward"
_watching: list[Notice] = []
_inner: list[Callable[..., Any]] = []


def watch(notice: Notice) -> Callable[[], None]:
    """Have ``notice`` called with every out-of-memory error that ends a backward pass.

    It is called with None after a backward pass that went well.

    Returns:
        A function that ends this. With the last one PyTorch is as it was.
    """
    if not _inner:
        found = getattr(torch.autograd, _NAME, None)
        if found is None:  # Another version of PyTorch: nothing is noticed.
            return _nothing
        _inner.append(found)
        setattr(torch.autograd, _NAME, _run_backward)
    _watching.append(notice)

    def stop() -> None:
        if notice in _watching:
            _watching.remove(notice)
        if not _watching and getattr(torch.autograd, _NAME, None) is _run_backward:
            setattr(torch.autograd, _NAME, _inner.pop())

    return stop


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    try:
        result = _inner[0](*args, **kwargs)
    except torch.OutOfMemoryError as error:
        for notice in tuple(_watching):
            notice(error)
        raise
    for notice in tuple(_watching):
        notice(None)
    return result


def _nothing() -> None:
    pass
