"""Where the arguments of every block call come from, and who uses what it returns.

Running blocks ``i..j`` as one region passes the first block's arguments to all of them, which is
silently wrong where a model gives each layer its own mask, hands a position bias on, or reads the
hidden states in between. So one forward pass is watched, by object identity: a region may hold both
``c - 1`` and ``c`` only where the output of ``c - 1`` is the one argument in which their calls
differ and nothing else in the model ever looks at it. Everywhere else there is a *cut*.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
# fmt: off
_LOOKING = frozenset((
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn",
    "is_cuda", "is_cpu", "is_meta", "is_mps", "is_xpu", "is_sparse", "is_quantized",
    "is_nested", "is_complex", "is_floating_point", "is_contiguous", "size", "dim", "stride",
    "numel", "nelement", "ndimension", "element_size", "itemsize", "nbytes", "get_device",
    "__len__", "names", "storage_offset", "is_tensor", "output_nr", "_version",
    "is_inference", "is_signed",
))
# Return the very same object where there is nothing to do: then they are no use of it.
_MAYBE_NOTHING = frozenset((
    "to", "contiguous", "type", "float", "half", "bfloat16", "type_as", "cpu", "cuda",
))
# fmt: on


@dataclass(frozen=True, slots=True)
class Link:
    """The one way from a block to the next: an output that is the next block's argument.

    Attributes:
        source: Place among the flattened outputs of the block.
        target: Place among the flattened arguments of the next.
    """

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class DataFlow:
    """The recorded flow of one forward pass.

    Attributes:
        cuts: Numbers ``c`` such that no region may hold both block ``c - 1`` and ``c``.
        links: For each block, how the block before it feeds it; None at a cut and for block 0.
        specs: For each block, the structure of its arguments.
        held: For each block, how often the model's output holds its output.
    """

    cuts: tuple[int, ...]
    links: tuple[Link | None, ...]
    specs: tuple[Any, ...]
    held: tuple[int, ...]


@dataclass(slots=True)
class BlockCall:
    """One call of a block, as it was seen."""

    module: nn.Module
    arguments: list[Any]
    spec: Any
    context: tuple[Any, ...]
    random_before: bytes
    random_after: bytes | None = None
    outputs: list[Any] = dataclasses.field(default_factory=list)
    output_spec: Any = None


def same(one: Any, other: Any) -> bool:
    """Whether two arguments are the same object, or equal where only the value can matter."""
    return one is other or (
        isinstance(one, _PLAIN) and type(one) is type(other) and bool(one == other)
    )


def tensors_in(value: Any, depth: int = 6) -> Iterator[torch.Tensor]:
    """Yield every tensor in nested containers, dataclasses and plain objects, repeats included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, _PLAIN) or depth == 0 or isinstance(value, nn.Module | type):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif hasattr(value, "__dict__"):
        for item in vars(value).values():
            yield from tensors_in(item, depth - 1)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name), depth - 1)


def has_foreign_hooks(module: nn.Module) -> bool:
    """Whether someone's hooks see the module's own arguments or results.

    Hugging Face's hooks that capture hidden states are left out: what they capture ends up in the
    model's output, where it is looked for.
    """
    tables = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(
        getattr(hook, "__module__", None) != "transformers.utils.output_capturing"
        for table in tables
        for hook in table.values()
    )


def drops_layers(model: nn.Module) -> bool:
    """Whether the model leaves blocks out at random: then no region may count on the next one."""
    names = ("layerdrop", "layer_drop", "encoder_layerdrop", "decoder_layerdrop")
    for module in model.modules():
        for owner in (module, getattr(module, "config", None)):
            for name in names:
                rate = getattr(owner, name, 0.0)
                if isinstance(rate, float) and rate > 0:
                    return True
    return False


def _random_state() -> bytes:
    # No tensor, which would count as memory of the pass that is watched, and may be measured.
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states).numpy().tobytes()


def call_context(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the modes that a call runs under: with gradients or not, autocast and its type."""
    device = next((a.device.type for a in arguments if isinstance(a, torch.Tensor)), "cpu")
    # PyTorch knows no autocast for meta.
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else None
    return torch.is_grad_enabled(), autocast, dtype


class FlowRecorder(TorchFunctionMode):
    """Watches one forward pass; ``paused`` while a block runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[BlockCall] = []
        self.paused = False
        self._outputs: dict[int, torch.Tensor] = {}
        self._used: set[int] = set()
        self._looked_at: set[int] = set()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.paused or not self._outputs:
            return result
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
        for tensor in tensors_in((args, kwargs)):
            if self._outputs.get(id(tensor)) is not tensor:
                continue
            if name in _LOOKING:
                self._looked_at.add(id(tensor))
            elif not (name in _MAYBE_NOTHING and result is tensor):
                self._used.add(id(tensor))
        return result

    def enter_block(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the arguments of a block call that begins."""
        self.paused = True
        arguments, spec = pytree.tree_flatten((args, kwargs))
        self.calls.append(
            BlockCall(module, arguments, spec, call_context(arguments), _random_state())
        )

    def leave_block(self, result: Any) -> None:
        """Note what the block call returned."""
        call = self.calls[-1]
        call.outputs, call.output_spec = pytree.tree_flatten(result)
        call.random_after = _random_state()
        for tensor in tensors_in(call.outputs):
            self._outputs[id(tensor)] = tensor
        self.paused = False

    def finish(self, model: nn.Module, output: Any) -> DataFlow:
        """Return the flow, once the model has returned ``output``."""
        self.paused = True
        held = Counter(id(tensor) for tensor in tensors_in(output))
        stashed = {
            id(tensor)
            for module in model.modules()
            for name, value in vars(module).items()
            if not name.startswith("_")
            for tensor in tensors_in(value, depth=3)
        }
        self._used |= held.keys() | stashed
        taken = Counter(
            id(leaf)
            for call in self.calls
            for leaf in call.arguments
            if isinstance(leaf, torch.Tensor)
        )
        links: list[Link | None] = [None]
        for before, call in zip(self.calls, self.calls[1:]):
            link = self._link(before, call, taken)
            previous = links[-1]
            if link is not None and previous is not None and link != previous:
                link = None  # A region feeds all of its blocks through the same place.
            links.append(link)
        if drops_layers(model):
            links = [None] * len(self.calls)
        flow = DataFlow(
            cuts=tuple(c for c in range(1, len(links)) if links[c] is None),
            links=tuple(links),
            specs=tuple(call.spec for call in self.calls),
            held=tuple(
                max((held[id(leaf)] for leaf in call.outputs), default=0) for call in self.calls
            ),
        )
        self.calls.clear()
        self._outputs.clear()
        return flow

    def _link(self, before: BlockCall, call: BlockCall, taken: Counter[int]) -> Link | None:
        if before.spec != call.spec or before.context != call.context:
            return None
        if before.output_spec != call.output_spec:
            return None
        if before.random_after != call.random_before:
            return None
        if has_foreign_hooks(before.module) or has_foreign_hooks(call.module):
            return None
        pairs = zip(before.arguments, call.arguments)
        varying = [i for i, (one, other) in enumerate(pairs) if not same(one, other)]
        if len(varying) != 1:
            return None
        target = varying[0]
        given = call.arguments[target]
        source = next((i for i, leaf in enumerate(before.outputs) if leaf is given), None)
        if source is None or not isinstance(given, torch.Tensor) or taken[id(given)] != 1:
            return None
        following = call.outputs[source]
        if not isinstance(following, torch.Tensor):
            return None
        if id(given) in self._looked_at and following.shape != given.shape:
            return None
        for leaf in before.outputs:
            if leaf is given or isinstance(leaf, _PLAIN):
                continue
            if any(leaf is argument for argument in before.arguments):
                continue  # Handed through: the region hands it through as well.
            if not isinstance(leaf, torch.Tensor):
                return None  # An object of the model's own: who knows what it holds.
            if id(leaf) in self._used or taken[id(leaf)]:
                return None
        return None if id(given) in self._used else Link(source, target)
