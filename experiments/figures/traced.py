"""The graph of operators of a network's forward and backward pass, as Checkmate sees it.

Both passes are traced on tensors without data. A node is a convolution, a pooling, a concatenation
or a matrix product, forward or backward, together with the cheap operators behind it (batch norm,
ReLU, sums). It costs what they take on the simulated GPU, and it holds what of theirs other nodes
read; the largest of what only they read is alive while it is computed. Parameters, their gradients
and the batch are there in any case and are left out, as in Checkmate's own graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from mimose.devices.sim.costs import kernel_seconds
from mimose.devices.sim.gpus import Gpu
from mimose.solvers.graph import Graph

ANCHORS = (
    "convolution",
    "convolution_backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "cat",
    "addmm",
    "mm",
)
"""Operators that nodes are named after and begin with."""


@dataclass(slots=True)
class _Group:
    """Operators that make a node."""

    name: str
    seconds: float = 0.0
    members: set[Node] = field(default_factory=set)


def trace(model: nn.Module, images: Tensor, labels: Tensor, gpu: Gpu) -> Graph:
    """Return the graph of a training step's two passes.

    Args:
        model: The network, on the meta device.
        images: A batch for it, likewise.
        labels: What its scores are compared with.
        gpu: The GPU whose times the nodes cost.
    """
    parameters = dict(model.named_parameters())
    names = tuple(parameters)

    def step(values: tuple[Tensor, ...], images: Tensor) -> list[Tensor]:
        scores = torch.func.functional_call(model, dict(zip(names, values)), (images,))
        loss = nn.functional.cross_entropy(scores, labels)
        return [loss, *torch.autograd.grad(loss, values)]

    values = tuple(p.detach().requires_grad_() for p in parameters.values())
    traced = make_fx(step)(values, images)
    groups = _grouped(traced, gpu, (values, images))
    return _graph(traced, groups)


class _Costing(Interpreter):
    """Runs a traced graph without data and notes each operator's time and outputs."""

    def __init__(self, traced: torch.fx.GraphModule, gpu: Gpu) -> None:
        super().__init__(traced)
        self.gpu = gpu
        self.seconds: dict[Node, float] = {}

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        if isinstance(found, Tensor):
            n.meta["bytes"] = found.untyped_storage().nbytes()
        if isinstance(n.target, torch._ops.OpOverload) and not _is_view(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.seconds[n] = kernel_seconds(self.gpu, n.target, args, kwargs, found)
        return found


def _grouped(traced: torch.fx.GraphModule, gpu: Gpu, inputs: Any) -> list[_Group]:
    traced.graph.eliminate_dead_code()
    costing = _Costing(traced, gpu)
    flat, _ = torch.utils._pytree.tree_flatten(inputs)
    with torch.no_grad():
        costing.run(*flat)
    groups: list[_Group] = []
    home: dict[Node, int] = {}
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        name = _name(node)
        before = [home[i] for i in node.all_input_nodes if i in home]
        if not before and name not in ANCHORS:
            continue  # Of parameters alone.
        if name in ANCHORS:
            groups.append(_Group(name))
            home[node] = len(groups) - 1
        else:
            home[node] = max(before)
        group = groups[home[node]]
        group.members.add(node)
        group.seconds += costing.seconds.get(node, 0.0)
    return groups


def _graph(traced: torch.fx.GraphModule, groups: list[_Group]) -> Graph:
    home = {member: g for g, group in enumerate(groups) for member in group.members}
    results = {i for n in traced.graph.nodes if n.op == "output" for i in n.all_input_nodes}
    memory, inner, edges = [0] * len(groups), [0] * len(groups), set()
    for g, group in enumerate(groups):
        for member in group.members:
            if member in results or not _is_tensor(member):
                continue
            elsewhere = {home[r] for r in _readers(member) if home.get(r, g) != g}
            edges |= {(g, reader) for reader in elsewhere}
            if elsewhere:
                memory[g] += member.meta["bytes"]
            else:
                inner[g] = max(inner[g], member.meta["bytes"])
    # The loss and its own backward are behind the last layer's forward, in one node.
    loss = next(n for n in traced.graph.nodes if n.op == "output").args[0][0]
    first = home[loss] + 1
    return Graph(
        cost=tuple(group.seconds for group in groups),
        memory=tuple(memory),
        edges=tuple(sorted(edges)),
        overhead=(tuple(inner),) * len(groups),
        backward=frozenset(range(first, len(groups))),
        names=tuple(group.name for group in groups),
    )


def _readers(node: Node) -> set[Node]:
    """Return the operators that read a tensor, directly or through views."""
    found: set[Node] = set()
    for user in node.users:
        found.add(user)
        if _is_view(user):
            found |= _readers(user)
    return found


def _is_tensor(node: Node) -> bool:
    """Whether a node is a tensor with memory of its own."""
    return "bytes" in node.meta and not _is_view(node)


def _is_view(node: Node) -> bool:
    """Whether an operator's result is its argument's memory."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False  # One of several results.
    return any(r.alias_info is not None for r in node.target._schema.returns)


def _name(node: Node) -> str:
    target: Callable[..., Any] | str = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._opname)
    return str(getattr(target, "__name__", target))
