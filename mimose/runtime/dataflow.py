"""Where the arguments of every block call come from, and who uses what it returns.

Running blocks ``i..j`` as one region passes the first block's arguments to all of them, which is
silently wrong where a model gives each layer its own mask, hands a position bias on, or reads the
hidden states in between. So one forward pass is watched, by object identity: a region may hold both
``c - 1`` and ``c`` only where the output of ``c - 1`` is the one argument in which their calls
differ and nothing else in the model ever looks at it. Everywhere else there is a *cut*.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as everywhere
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
# fmt: off
LOOKING = frozenset((
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn",
    "is_cuda", "is_cpu", "is_meta", "is_mps", "is_xpu", "is_sparse", "is_quantized",
    "is_nested", "is_complex", "is_floating_point", "is_contiguous", "size", "dim", "stride",
    "numel", "nelement", "ndimension", "element_size", "itemsize", "nbytes", "get_device",
    "__len__", "names", "storage_offset", "is_tensor", "output_nr", "_version",
    "is_inference", "is_signed",
))
# Return the very same object where there is nothing to do: then they are no use of it.
MAYBE_NOTHING = frozenset((
    "to", "contiguous", "type", "float", "half", "bfloat16", "type_as", "cpu", "cuda",
))
# fmt: on
_UNHELD = 3
"""References to a tensor that only backward needs: PyTorch's, and two to ask for their number."""


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
        sole: For each block, the places of those flattened arguments that nothing else in the model
            uses, and whether each is the output of a block that its caller does not hold on to.
        shared: Of each tensor that several blocks take and nothing else in the model uses, the
            blocks and its places among their flattened arguments.
    """

    cuts: tuple[int, ...]
    links: tuple[Link | None, ...]
    specs: tuple[Any, ...]
    sole: tuple[tuple[tuple[int, bool], ...], ...] = ()
    shared: tuple[tuple[tuple[int, int], ...], ...] = ()


class _Seen:
    """Stands for a tensor that was seen, and does not hold it: the pass may be measured.

    Many a layer returns attention weights that its caller lets go of at once.
    """

    __slots__ = ("plain", "reference", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
        self.reference = weakref.ref(tensor)
        self.shape = tensor.shape

    def is_held(self) -> bool:
        """Whether Python code holds the tensor, and not only what saved it for backward.

        With older PyTorch, a single one counts as the one that is PyTorch's: then this is False.
        """
        tensor = self.reference()
        return tensor is not None and sys.getrefcount(tensor) > _UNHELD


@dataclass(slots=True)
class BlockCall:
    """One call of a block, as it was seen; for tensors there are stand-ins."""

    module: nn.Module
    arguments: list[Any]
    spec: Any
    context: tuple[Any, ...]
    versions: list[int]
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


def is_tracked() -> bool:
    """Whether PyTorch follows which module runs, as its counter of FLOPs does: no use of a tensor.

    Its hooks ask for tensors' graphs, to see the backward pass go by.
    """
    return any(map(_is_tracker, everywhere._global_forward_pre_hooks.values()))


def num_global_hooks() -> list[int]:
    """Return how many hooks see every module's arguments or results, by kind, trackers left out."""
    tables = (
        everywhere._global_forward_pre_hooks,
        everywhere._global_forward_hooks,
        everywhere._global_backward_pre_hooks,
        everywhere._global_backward_hooks,
    )
    return [sum(not _is_tracker(hook) for hook in table.values()) for table in tables]


def _is_tracker(hook: Any) -> bool:
    return getattr(hook, "__module__", None) == "torch.utils.module_tracker"


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


def _keeps_result(tensor: torch.Tensor) -> bool:
    """Whether what computed a tensor saves it for backward, or may."""
    node = tensor.grad_fn
    return hasattr(node, "_saved_result") or hasattr(node, "saved_tensors")


def _random_state() -> bytes:
    # No tensor, which would count as memory of the pass that is watched, and may be measured.
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states).numpy().tobytes()


def versions_of(leaves: Sequence[Any]) -> list[int]:
    """Return the version counter of each tensor among some arguments; -1 for all else."""
    return [
        leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else -1
        for leaf in leaves
    ]


def call_context(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the modes that a call runs under: with gradients or not, autocast and its type."""
    device = next((a.device.type for a in arguments if isinstance(a, torch.Tensor)), "cpu")
    # PyTorch knows no autocast for meta.
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else None
    return torch.is_grad_enabled(), autocast, dtype


class FlowRecorder(TorchFunctionMode):
    """Watches one forward pass; ``paused`` while a block runs.

    Args:
        given: What the model was called with.
    """

    def __init__(self, given: Any = ()) -> None:
        super().__init__()
        self._given = {id(tensor) for tensor in tensors_in(given)}
        self._read: set[int] = set()
        self.calls: list[BlockCall] = []
        self.paused = False
        self._seen: dict[int, _Seen] = {}
        self._entries: set[_Seen] = set()
        self._outputs: set[_Seen] = set()
        self._used: set[_Seen] = set()
        self._looked_at: set[_Seen] = set()
        self._aliased: set[_Seen] = set()
        self._lasting: set[_Seen] = set()
        self._compiled = False

    def _known(self, tensor: torch.Tensor) -> _Seen | None:
        """Return what stands for a tensor, if it was seen before."""
        seen = self._seen.get(id(tensor))
        # Another tensor may have come to lie where one that is gone was.
        return seen if seen is not None and seen.reference() is tensor else None

    def _see(self, leaf: Any) -> Any:
        """Return what stands for a leaf: for a tensor always the same."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        seen = self._known(leaf)
        if seen is None:
            seen = self._seen[id(leaf)] = _Seen(leaf)
        return seen

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            # This function is traced, too, into code that holds no objects of Python's.
            self._compiled = True
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if self.paused:
            return result
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
        taken = list(tensors_in((args, kwargs)))
        for tensor in taken:
            seen = self._known(tensor)
            ours = seen if seen in self._outputs else None
            if name in LOOKING:
                if ours is not None:
                    self._looked_at.add(ours)
            elif not (name in MAYBE_NOTHING and result is tensor):
                if ours is None:
                    self._read.add(id(tensor))
                else:
                    self._used.add(ours)
        if name not in LOOKING:
            for made in tensors_in(result, depth=2):
                if not any(made is tensor for tensor in taken):
                    self._read.discard(id(made))  # Of one that is gone.
        return result

    def _note_compiled(self) -> None:
        # What compiled code takes is not seen: it may be all that the last block has returned, and
        # all else that somebody holds.
        if self._compiled:
            self._compiled = False
            last = self.calls[-1].outputs if self.calls else ()
            self._used.update(leaf for leaf in last if isinstance(leaf, _Seen))
            self._used.update(seen for seen in self._outputs if seen.is_held())

    def enter_block(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the arguments of a block call that begins."""
        self.paused = True
        self._note_compiled()
        if len(self.calls) > 1:
            # Whatever called it has gone on by now: variables stand for other tensors.
            self._lasting.update(
                leaf
                for leaf in self.calls[-2].arguments
                if isinstance(leaf, _Seen) and leaf.is_held()
            )
        arguments, spec = pytree.tree_flatten((args, kwargs))
        standing = [self._see(leaf) for leaf in arguments]
        self.calls.append(
            BlockCall(
                module,
                standing,
                spec,
                call_context(arguments),
                versions_of(arguments),
                _random_state(),
            )
        )
        for leaf, seen in zip(arguments, standing):
            if (
                isinstance(leaf, torch.Tensor)
                and not (leaf.is_leaf and leaf.requires_grad)
                and seen not in self._outputs
                and id(leaf) not in self._read
                and id(leaf) not in self._given
                and leaf._base is None  # Someone may use what it is a view of.
                and not _keeps_result(leaf)
            ):
                self._outputs.add(seen)
                self._entries.add(seen)

    def leave_block(self, result: Any) -> None:
        """Note what the block call returned."""
        call = self.calls[-1]
        outputs, call.output_spec = pytree.tree_flatten(result)
        call.outputs = [self._see(leaf) for leaf in outputs]
        call.random_after = _random_state()
        made = list(tensors_in(outputs))
        self._outputs.update(self._see(tensor) for tensor in made)
        self._note_views(call, made)
        self.paused = False

    def _note_views(self, call: BlockCall, made: list[torch.Tensor]) -> None:
        """Note which tensors of a call lie in one storage: who holds one holds the others."""
        given = [leaf.reference() for leaf in call.arguments if isinstance(leaf, _Seen)]
        lying: dict[int, list[torch.Tensor]] = {}
        for tensor in (*made, *given):
            if tensor is not None and tensor.layout == torch.strided:
                there = lying.setdefault(tensor.untyped_storage()._cdata, [])
                if not any(tensor is other for other in there):
                    there.append(tensor)
        for there in lying.values():
            if len(there) > 1:
                self._aliased.update(map(self._see, there))

    def finish(self, model: nn.Module, output: Any) -> DataFlow:
        """Return the flow, once the model has returned ``output``."""
        self.paused = True
        self._note_compiled()
        held = {seen for tensor in tensors_in(output) if (seen := self._known(tensor)) is not None}
        stashed = {
            seen
            for module in model.modules()
            for name, value in vars(module).items()
            if not name.startswith("_")
            for tensor in tensors_in(value, depth=3)
            if (seen := self._known(tensor)) is not None
        }
        self._used |= held | stashed
        if (self._lasting & self._outputs) - self._entries:
            # One that holds on to what blocks are given does so to the end.
            self._lasting.update(
                leaf
                for call in self.calls[-2:]
                for leaf in call.arguments
                if isinstance(leaf, _Seen)
            )
        taken = Counter(
            leaf for call in self.calls for leaf in call.arguments if isinstance(leaf, _Seen)
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
            sole=tuple(self._sole(call, taken) for call in self.calls),
            shared=self._shared(taken),
        )
        self.calls.clear()
        return flow

    def _shared(self, taken: Counter[_Seen]) -> tuple[tuple[tuple[int, int], ...], ...]:
        places: dict[_Seen, list[tuple[int, int]]] = {}
        for number, call in enumerate(self.calls):
            for place, leaf in enumerate(call.arguments):
                if isinstance(leaf, _Seen) and taken[leaf] > 1:
                    places.setdefault(leaf, []).append((number, place))
        return tuple(
            tuple(found)
            for leaf, found in places.items()
            if leaf in self._outputs and leaf not in self._used | self._aliased
        )

    def _sole(self, call: BlockCall, taken: Counter[_Seen]) -> tuple[tuple[int, bool], ...]:
        return tuple(
            (place, leaf not in self._entries and leaf not in self._lasting)
            for place, leaf in enumerate(call.arguments)
            if isinstance(leaf, _Seen)
            and leaf in self._outputs
            and taken[leaf] == 1
            and leaf not in self._used
            and leaf not in self._aliased
        )

    def _link(self, before: BlockCall, call: BlockCall, taken: Counter[_Seen]) -> Link | None:
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
        versions = zip(before.versions, call.versions)
        if any(i != target and one != other for i, (one, other) in enumerate(versions)):
            return None  # Something changes in place what all of them are given.
        given = call.arguments[target]
        source = next((i for i, leaf in enumerate(before.outputs) if leaf is given), None)
        if source is None or not isinstance(given, _Seen) or taken[given] != 1:
            return None
        following = call.outputs[source]
        if not isinstance(following, _Seen) or not given.plain:
            return None
        if given in self._looked_at and following.shape != given.shape:
            return None
        for leaf in before.outputs:
            if leaf is given or isinstance(leaf, _PLAIN):
                continue
            if any(leaf is argument for argument in before.arguments):
                continue  # Handed through: the region hands it through as well.
            if not isinstance(leaf, _Seen):
                return None  # An object of the model's own: who knows what it holds.
            if leaf in self._used or taken[leaf]:
                return None
        return None if given in self._used else Link(source, target)
