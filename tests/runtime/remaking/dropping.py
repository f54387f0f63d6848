"""Train a block plainly and with all that can be dropped of what it saves, and compare."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from mimose.menu import BlockGraph
from mimose.plan import Remade
from mimose.runtime.remaking.remaker import Remaker
from mimose.runtime.remaking.trace import Trace
from mimose.runtime.remaking.tracing import tracing


class Clock:
    """A device that only tells the time, and holds nothing."""

    kind = "cpu"
    label = "measured on cpu"
    torch_device = torch.device("cpu")

    def now(self) -> float:
        return perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        return end - start

    def allocated_bytes(self) -> int:
        return 0


def most(graph: BlockGraph, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return as many values as can be dropped together, large ones first."""
    chosen: list[int] = []
    for value in sorted(graph.droppable(), key=lambda v: -sizes[v]):
        if graph.can_drop([*chosen, value]):
            chosen.append(value)
    return tuple(sorted(chosen))


class Dropping:
    """A block of which all that can be is dropped, once a call of the kind has been traced.

    Args:
        block: The block.
        choose: Which values to drop; all that can be by default.
    """

    def __init__(
        self, block: nn.Module, choose: Callable[[Trace], tuple[int, ...]] | None = None
    ) -> None:
        self.block = block
        self.remaker = Remaker(Clock())
        self.choose = choose or (lambda trace: most(trace.graph, trace.bytes))
        self.trace: Trace | None = None
        self.calls: list[str] = []
        self.wrapper = SimpleNamespace(
            module=block, inner=block, compiles=False, checkpoints=None, index=0, name="block"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block; what happened is noted."""
        looked = self.remaker.look((0, 0), self.wrapper, args, kwargs)
        if looked is None:
            self.calls.append("left alone")
            return self.block(*args, **kwargs)
        known = self.remaker._known(looked)
        if known is None:
            tracer = self.remaker.tracer(looked)
            with tracing(tracer):
                result = self.block(*args, **kwargs)
            self.trace = tracer.finish(result)
            learned = self.remaker.learn(looked, self.trace)
            self.calls.append("traced" if learned else "unlearned")
            return result
        self.trace = known
        chosen = self.choose(known)
        if not chosen:
            self.calls.append("kept")
            return self.block(*args, **kwargs)
        remade = Remade(0, chosen, (), known.graph.digest)
        if not self.remaker.fits(looked, remade):
            self.calls.append("does not fit")
            return self.block(*args, **kwargs)
        result, dropped = self.remaker.run(looked, remade, args, kwargs)
        self.calls.append("dropped" if dropped else "strayed")
        return result

    @property
    def names(self) -> set[str]:
        """Names of the values that are dropped."""
        assert self.trace is not None
        names = self.trace.graph.names()
        return {names[value] for value in self.choose(self.trace)}


@dataclass
class Outcome:
    """What steps have left."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    dropping: Dropping | None = None


def steps(
    block: nn.Module,
    inputs: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]],
    drop: bool,
    number: int = 3,
    between: Callable[[int, nn.Module], None] | None = None,
    around: Callable[[], Any] | None = None,
    choose: Callable[[Trace], tuple[int, ...]] | None = None,
) -> Outcome:
    """Run steps on a copy of a block, and return outputs, gradients and buffers of each."""
    block = copy.deepcopy(block)
    outcome = Outcome()
    outcome.dropping = Dropping(block, choose) if drop else None
    call = outcome.dropping or block
    torch.manual_seed(7)
    random.seed(7)
    for step in range(number):
        if between is not None:
            between(step, block)
        args, kwargs = inputs(step)
        leaves = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        block.zero_grad()
        if around is None:
            result = call(*args, **kwargs)
        else:
            with around():
                result = call(*args, **kwargs)
        outputs = [result] if isinstance(result, torch.Tensor) else list(result)
        loss = sum((t.double() ** 2).sum() for t in outputs if t.is_floating_point())
        loss.backward()
        outcome.tensors += [t.detach().clone() for t in outputs]
        outcome.tensors += [t.grad.clone() for t in leaves if t.grad is not None]
        outcome.tensors += [p.grad.clone() for p in block.parameters() if p.grad is not None]
        outcome.tensors += [b.clone() for b in block.buffers()]
        if outcome.dropping is not None:
            outcome.calls = outcome.dropping.calls
    return outcome


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are the same bit by bit."""
    return len(one.tensors) == len(other.tensors) and all(
        torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(one.tensors, other.tensors)
    )


def both(block: nn.Module, inputs: Any, **options: Any) -> Outcome:
    """Run steps both ways, check that they are the same, and return those with dropping."""
    plain = steps(block, inputs, False, **options)
    dropped = steps(block, inputs, True, **options)
    assert same(plain, dropped)
    assert not dropped.dropping.remaker._proofs._bad
    return dropped
