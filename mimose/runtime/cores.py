"""Selective recomputation: run a block's attention core alone again in backward.

After Korthikanti et al., 2022 (arXiv 2205.05198): the core (QK^T, softmax, its dropout, times V) is
what memory grows with the square of the length by, and few of the FLOPs. A block calls its core by
a function, which is replaced while the block runs and put back afterwards:

- Hugging Face's attention interface: what ``ALL_ATTENTION_FUNCTIONS.get_interface`` returns,
  whichever implementation that is (transformers 5);
- XLNet's relative attention: the method ``rel_attn_core``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from mimose.runtime.checkpointing import checkpointed

SUPPORTED = (
    "Hugging Face models whose attention goes through ALL_ATTENTION_FUNCTIONS.get_interface "
    "(transformers 5), and XLNet"
)

_METHOD = "rel_attn_core"


class Cores:
    """Has attention cores recomputed while a block runs within :meth:`recomputed`.

    Attributes:
        found: How many calls of a core there were so far.
        running: Whether a core is running just now.
    """

    __slots__ = ("_again", "found", "running")

    def __init__(self, again: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Start.

        Args:
            again: Makes the context in which a core's second run, in backward, is made.
        """
        self.found = 0
        self.running = False
        self._again = again

    @contextmanager
    def recomputed(self, module: nn.Module) -> Iterator[None]:
        """Have the cores that ``module`` calls recomputed, until the context ends."""
        with ExitStack() as stack:
            # Looked up, never imported: no part of this depends on transformers.
            modeling = sys.modules.get("transformers.modeling_utils")
            functions = getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None)
            get = getattr(functions, "get_interface", None)
            if get is not None:

                def get_interface(*args: Any, **kwargs: Any) -> Any:
                    return self._core(get(*args, **kwargs))

                stack.enter_context(_replaced(functions, "get_interface", get_interface))
            for owner in module.modules():
                core = getattr(type(owner), _METHOD, None)
                if core is not None:
                    own = self._core(getattr(owner, _METHOD))
                    stack.enter_context(_replaced(owner, _METHOD, own))
            yield

    def _core(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(rerun: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            before, self.running = self.running, True
            try:
                with self._again() if rerun else nullcontext():
                    return function(*args, **kwargs)
            finally:
                self.running = before

        def core(*args: Any, **kwargs: Any) -> Any:
            self.found += 1
            if not torch.is_grad_enabled():
                return function(*args, **kwargs)
            return checkpointed(run, args, kwargs)

        return core


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object's own, and take it away again."""
    attributes = vars(owner)
    own = attributes.get(name)
    attributes[name] = value
    try:
        yield
    finally:
        if own is None:
            attributes.pop(name, None)
        else:
            attributes[name] = own
