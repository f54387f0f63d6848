"""Heterogeneous chains and what a plan costs on one, in Rotor's model of time and memory.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous
chains", 2019, arXiv 1911.13214; released code gitlab.inria.fr/hiepacs/rotor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mimose.plan import Plan, Region

Kind = Literal["CF", "Fn", "Fe", "L", "B"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A chain of stages ``0..L``; the last, the loss, is no block of a plan.

    Stage ``i`` reads ``x[i]`` and writes ``x[i + 1]``; its backward reads the gradient of
    ``x[i + 1]`` and writes that of ``x[i]``. A gradient is as large as its activation. The loss
    has an output and a saved size of 0. Sizes are bytes (or any one unit), times any one unit.

    The defaults of what Rotor does not have (``again`` and after) are Rotor's behaviour.

    Attributes:
        forward: Time of each stage's forward, L + 1 of them.
        backward: Time of each stage's backward, L + 1 of them.
        x: Size of each stage's input, ``x[0]`` the chain's, L + 1 of them.
        saved: Size of all that stage ``i < L`` saves for its backward, its output ``x[i + 1]``
            included and its input not (Rotor's xbar of ``i + 1``), L of them.
        forward_temporary: Peak of each forward above its input and what it leaves, L + 1 of them.
            It may be negative, where not all of that is there at once; so may the others.
        backward_temporary: Peak of each backward above what it reads and writes, L + 1 of them.
        keep_temporary: As ``forward_temporary``, for a forward that keeps everything, L of them.
            With it the conditions on memory are exact: a kept forward waits together with the
            gradient behind it; one whose backward comes next is part of that backward's peak; and
            what a forgotten forward needs counts only where one is forgotten. Empty for Rotor's
            own conditions.
        again: Time of stage ``i``'s forward where it is run again as the last stage of a forgotten
            sub-chain: checkpointing stops at the last tensor that backward needs. Empty for
            ``forward``.
        held: Extra bytes in memory while the backward of stage ``i`` is the next to come
            (gradients of parameters grown so far). Empty for none.
        cuts: Numbers ``c`` such that no forgotten sub-chain may hold both stage ``c - 1`` and
            stage ``c``.
        keep_only: Stages that must not run twice.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    x: tuple[int, ...]
    saved: tuple[int, ...]
    forward_temporary: tuple[int, ...] = ()
    backward_temporary: tuple[int, ...] = ()
    keep_temporary: tuple[int, ...] = ()
    again: tuple[float, ...] = ()
    held: tuple[int, ...] = ()
    cuts: frozenset[int] = field(default_factory=frozenset)
    keep_only: frozenset[int] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        stages = len(self.forward)
        if stages < 2:
            raise ValueError("a chain has at least one block and the loss: give two forward times")
        for name in ("forward_temporary", "backward_temporary", "held"):
            if not getattr(self, name):
                object.__setattr__(self, name, (0,) * stages)
        if not self.again:
            object.__setattr__(self, "again", self.forward)
        for name, length in (
            ("backward", stages),
            ("x", stages),
            ("saved", stages - 1),
            ("forward_temporary", stages),
            ("backward_temporary", stages),
            ("keep_temporary", stages - 1),
            ("again", stages),
            ("held", stages),
        ):
            values = getattr(self, name)
            if not values:
                continue  # Rotor's own conditions.
            if len(values) != length:
                raise ValueError(
                    f"a chain of {stages} forward times needs {length} of {name}, not {len(values)}"
                )
            if min(values) < 0 and not name.endswith("temporary"):
                raise ValueError(f"{name} of a chain must not be negative, but {min(values)} is")

    @property
    def num_blocks(self) -> int:
        """Number of stages before the loss."""
        return len(self.saved)

    def output(self, stage: int) -> int:
        """Return the size of a stage's output, 0 for the loss."""
        return self.x[stage + 1] if stage < self.num_blocks else 0

    def saves(self, stage: int) -> int:
        """Return the size of what a stage saves, its output included, 0 for the loss."""
        return self.saved[stage] if stage < self.num_blocks else 0

    def end(self, stage: int) -> int:
        """Return what is in memory beside a sub-chain that ends at ``stage`` while it runs."""
        return self.held[stage] + self.output(stage)

    def leaf(self, stage: int) -> int:
        """Return the memory that a stage needs to run and go straight back, its input left out."""
        backward = self.x[stage] + self.backward_temporary[stage]
        if not self.keep_temporary or stage == self.num_blocks:
            backward = max(backward, self.forward_temporary[stage])
        return self.end(stage) + self.saves(stage) + backward

    def forgotten(self, stage: int, first: bool) -> int:
        """Return the memory that a forgotten forward needs beside what :meth:`end` says.

        Args:
            stage: The stage.
            first: Whether it is the first of its sub-chain, whose input is kept in any case.
        """
        own = self.x[stage + 1] + self.forward_temporary[stage]
        return own if first else own + self.x[stage]

    def reach(self) -> list[int]:
        """Return, for each block, the last block of the longest region that may start there.

        One less than the block itself where it must be kept.
        """
        ends = [0] * self.num_blocks
        end = self.num_blocks - 1
        for block in range(self.num_blocks - 1, -1, -1):
            if block + 1 in self.cuts:
                end = block
            if block in self.keep_only:
                end = block - 1
            ends[block] = end
        return ends

    def allows(self, plan: Plan) -> bool:
        """Return whether a plan recomputes only what may be recomputed."""
        ends = self.reach()
        return all(r.last <= ends[r.first] for r in plan.regions)


class Operation(NamedTuple):
    """One step of a schedule, in the words of Rotor's released code.

    ``CF`` runs a forward and keeps its input, ``Fn`` keeps nothing, ``Fe`` keeps everything, ``L``
    is the loss, forward and backward, ``B`` a backward.
    """

    kind: Kind
    stage: int


class Simulated(NamedTuple):
    """What a schedule takes: its time and its peak of memory, the chain's input included."""

    makespan: float
    peak: int


def operations(plan: Plan) -> list[Operation]:
    """Return what carrying out ``plan`` runs, in order; the loss is stage ``plan.num_blocks``."""
    items = [*children(plan.regions, 0, plan.num_blocks - 1), plan.num_blocks]
    return list(_run(items, plan.num_blocks))


def children(regions: Sequence[Region], first: int, last: int) -> list[Region | int]:
    """Return blocks ``first..last`` as kept blocks (their numbers) and regions, in order."""
    items: list[Region | int] = []
    position = first
    for region in regions:
        items.extend(range(position, region.first))
        items.append(region)
        position = region.last + 1
    items.extend(range(position, last + 1))
    return items


def _run(items: Sequence[Region | int], loss: int) -> Iterator[Operation]:
    for item in items:
        if isinstance(item, int):
            yield Operation("L" if item == loss else "Fe", item)
            continue
        if item is items[-1]:
            # The last of a recomputed region: its backward is next, so its first run would only
            # be thrown away.
            break
        yield Operation("CF", item.first)
        for block in range(item.first + 1, item.last + 1):
            yield Operation("Fn", block)
    for item in reversed(items):
        if isinstance(item, int):
            if item != loss:
                yield Operation("B", item)
        else:
            yield from _run(children(item.inner, item.first, item.last), loss)


def simulate(chain: Chain, schedule: Plan | Sequence[Operation]) -> Simulated:
    """Run a schedule in Rotor's memory model.

    Args:
        chain: The chain.
        schedule: A plan for its blocks, or operations.

    Raises:
        ValueError: If an operation needs what is not in memory.
    """
    steps = operations(schedule) if isinstance(schedule, Plan) else schedule
    loss = chain.num_blocks
    plain, full, grads = {0}, set[int](), set[int]()  # x alone; all that a stage saved; gradients
    bytes_now = chain.x[0]
    makespan, peak = 0.0, 0
    following = loss  # the stage whose backward is next

    def have(what: bool, step: Operation) -> None:
        if not what:
            raise ValueError(f"{step.kind}_{step.stage} needs what is not in memory any more")

    for step in steps:
        kind, stage = step
        have(stage in plain or stage - 1 in full, step)
        held = chain.held[following]
        if kind in ("CF", "Fn", "Fe"):
            new = chain.saved[stage] if kind == "Fe" else chain.x[stage + 1]
            early = kind == "Fe" and stage == following
            if kind != "Fe" or not chain.keep_temporary:
                peak = max(peak, bytes_now + new + chain.forward_temporary[stage] + held)
            elif not early:
                peak = max(peak, bytes_now + new + chain.keep_temporary[stage] + held)
            bytes_now += new
            (full if kind == "Fe" else plain).add(stage if kind == "Fe" else stage + 1)
            if kind == "Fn" and stage in plain:
                plain.remove(stage)
                bytes_now -= chain.x[stage]
            makespan += chain.again[stage] if early else chain.forward[stage]
            continue
        if kind == "L":
            peak = max(peak, bytes_now + chain.forward_temporary[stage] + held)
            makespan += chain.forward[stage]
        else:
            have(stage in full and stage + 1 in grads, step)
        peak = max(peak, bytes_now + chain.x[stage] + chain.backward_temporary[stage] + held)
        makespan += chain.backward[stage]
        grads.add(stage)
        bytes_now += chain.x[stage]
        if kind == "B":
            grads.remove(stage + 1)
            full.remove(stage)
            bytes_now -= chain.x[stage + 1] + chain.saved[stage]
        if stage in plain:
            plain.remove(stage)
            bytes_now -= chain.x[stage]
        following = stage - 1
    if following != -1:
        raise ValueError(f"the schedule ends before the backward of stage {following}")
    return Simulated(makespan, peak)
