"""What a region's inner blocks hand out: the form of their output, and its values if anyone looks.

A region has run whole when its first block returns, and what the blocks before its last one
computed is gone. The model is expected to hand their outputs on and nothing else. Whoever does more
with one gets it all the same: it is computed once more, as a rerun would.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from mimose.devices.base import Device
from mimose.runtime.checkpointing import checkpointed
from mimose.runtime.dataflow import LOOKING, MAYBE_NOTHING, is_tracked, tensors_in


class FlowChanged(RuntimeError):  # noqa: N818 - a RuntimeError to users, told apart inside only
    """The model no longer passes its data as recorded, so that a region's result is not its own."""


# What asks for its gradient, which nobody has.
_OF_THE_GRADIENT = frozenset(
    (
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "retains_grad",
        "backward",
        "grad",
        "grad_fn",
        "output_nr",
        "_backward_hooks",
    )
)


class Astray:
    """Whether anything was read that the recorded flow says nobody reads.

    Attributes:
        read: Whether it was, since somebody last looked here.
        told: Whether a warning has said so.
    """

    __slots__ = ("read", "told")

    def __init__(self) -> None:
        self.read = self.told = False

    def note(self, first: int, last: int) -> None:
        """Note that an output within blocks ``first`` to ``last`` is read; warn the first time."""
        self.read = True
        if not self.told:
            self.told = True
            warnings.warn(
                f"the output of a block within {first}-{last}, which are recomputed as one, is "
                "used by something that did not use it when the model's data flow was recorded, "
                "and is computed once more for it: the results are right, and this step takes more "
                "time and memory than planned",
                UserWarning,
                stacklevel=2,
            )


class Origin:
    """Computes outputs of a region's inner blocks once more.

    Args:
        first: The region's first block.
        last: Its last block.
        args: What the first block was called with.
        kwargs: The same.
        modes: What :func:`mimose.runtime.dataflow.call_context` said of that call.
        chain: Runs the region again up to a block, given the arguments of the first one.
        device: Whose random state is put back for it.
        astray: Told of it.

    Attributes:
        changed: Whether an output was changed in place, so that it is no longer the region's.
        result: The region's output, which trackers of modules take for all of its blocks'.
    """

    __slots__ = (
        "_args",
        "_astray",
        "_chain",
        "_device",
        "_kwargs",
        "_modes",
        "_random",
        "_values",
        "_versions",
        "changed",
        "first",
        "last",
        "result",
    )

    def __init__(
        self,
        first: int,
        last: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        modes: tuple[Any, ...],
        chain: Callable[[int, tuple[Any, ...], dict[str, Any]], Any],
        device: Device,
        astray: Astray,
    ) -> None:
        self.first, self.last = first, last
        self._args, self._kwargs = args, kwargs
        self._modes = modes
        self._chain = chain
        self._device = device
        self._astray = astray
        self._random = device.rng_state()
        self._versions = self._versions_now()
        self._values: dict[int, torch.Tensor] = {}
        self.changed = False
        self.result: weakref.ref[torch.Tensor] | None = None

    def _versions_now(self) -> list[int]:
        given = tensors_in((self._args, self._kwargs))
        return [-1 if tensor.is_inference() else tensor._version for tensor in given]

    def value(self, block: int) -> torch.Tensor:
        """Return what ``block`` returned, with a graph of its own.

        Raises:
            FlowChanged: If the region's input was changed in place since.
        """
        found = self._values.get(block)
        if found is not None:
            return found
        if self._versions_now() != self._versions:
            self.refuse(block, "its region's input was changed in place")
        self._astray.note(self.first, self.last)

        def function(rerun: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._chain(block, args, kwargs)

        device = self._device
        _, autocast, dtype = self._modes
        kind = device.torch_device.type
        present = device.rng_state()
        device.set_rng_state(self._random)
        try:
            with torch.inference_mode(False), torch.enable_grad():
                if kind == "meta":
                    value = checkpointed(function, self._args, self._kwargs)
                else:
                    with torch.autocast(kind, dtype, autocast):
                        value = checkpointed(function, self._args, self._kwargs)
        finally:
            device.set_rng_state(present)
        self._values[block] = value
        return value  # type: ignore[no-any-return]

    def refuse(self, block: int, why: str) -> NoReturn:
        """Refuse to go on.

        Raises:
            FlowChanged: Always.
        """
        self._astray.read = True
        raise FlowChanged(
            f"block {block} lies within the recomputed blocks {self.first}-{self.last}, and {why}, "
            "as nothing did when the model's data flow was recorded: run the step again (the flow "
            "is recorded anew), or plan for single blocks"
        )


class StandIn(torch.Tensor):
    """Stands for an inner block's output: its form, without data.

    Attributes:
        block: The block.
        origin: Computes it.
    """

    block: int
    origin: Origin

    @staticmethod
    def __new__(cls, tensor: torch.Tensor, block: int, origin: Origin) -> StandIn:
        """Return what stands for ``tensor``, the output of ``block``."""
        made: StandIn = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            tensor.size(),
            strides=tensor.stride(),
            storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
        )
        made.block = block
        made.origin = origin
        if tensor.requires_grad:
            with torch._C.DisableTorchFunctionSubclass():
                made.register_hook(_Unwanted(block, origin))
        return made

    def real(self) -> torch.Tensor:
        """Return the block's output itself."""
        return self.origin.value(self.block)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer what asks for the form only; give everything else the real tensor."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
        if name in _OF_THE_GRADIENT:
            return cls._of_the_gradient(func, name, args, kwargs)
        if name == "is_leaf":
            return not args[0].requires_grad
        if name in LOOKING or name in MAYBE_NOTHING:
            with torch._C.DisableTorchFunctionSubclass():
                try:
                    return func(*args, **kwargs)
                except FlowChanged:
                    if name in LOOKING:
                        raise
        ours = [t for t in tensors_in((args, kwargs)) if isinstance(t, StandIn)]
        versions = [(t, t.real(), t.real()._version) for t in ours]
        args, kwargs = pytree.tree_map(_real, (args, kwargs))
        result = func(*args, **kwargs)
        for stand_in, real, version in versions:
            if real._version != version or (name == "__set__" and args[0] is real):
                stand_in.origin.changed = True
            if result is real:
                return stand_in
        return result

    @staticmethod
    def _of_the_gradient(func: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        ours = next(t for t in tensors_in((args, kwargs)) if isinstance(t, StandIn))
        origin = ours.origin
        last = origin.result() if origin.result is not None else None
        if last is not None and ours is args[0] and is_tracked():
            return func(last, *args[1:], **kwargs)
        return origin.refuse(ours.block, "the gradient of its output is asked for")

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Refuse what reaches the data by another way."""
        for tensor in tensors_in((args, kwargs)):
            if isinstance(tensor, StandIn):
                tensor.origin.refuse(tensor.block, f"its output is used ({func})")
        raise AssertionError("called for a stand-in among the arguments")


class _Unwanted:
    """Called with a gradient that arrives at a stand-in, where it would be lost."""

    __slots__ = ("_block", "_origin")

    def __init__(self, block: int, origin: Origin) -> None:
        self._block = block
        self._origin = origin

    def __call__(self, gradient: torch.Tensor) -> None:
        self._origin.refuse(self._block, "a gradient arrived at its output")


def _real(leaf: Any) -> Any:
    return leaf.real() if isinstance(leaf, StandIn) else leaf


def made_real(output: Any) -> Any:
    """Return what a model returned, with the tensors themselves in place of stand-ins.

    Raises:
        FlowChanged: If some lie in containers that cannot be made anew.
    """
    if not any(isinstance(tensor, StandIn) for tensor in tensors_in(output)):
        return output
    output = pytree.tree_map(_real, output)
    for tensor in tensors_in(output):
        if isinstance(tensor, StandIn):
            tensor.origin.refuse(tensor.block, "the model's output now holds its output")
    return output
