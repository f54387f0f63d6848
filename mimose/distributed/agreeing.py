"""One plan for all processes: what any of them has to recompute, all of them do.

Each plans for its own batch, and one small all-reduce joins the plans block by block. That is the
plan of the largest batch, and fits every one of them. The same all-reduce carries whether a batch
fits nowhere, so that then all of them raise the same error at the same step.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from mimose.costs import Infeasible
from mimose.devices.base import Device
from mimose.distributed.processes import num_processes, rank, started_together
from mimose.plan import Plan
from mimose.records import Decision
from mimose.schedule import AnyPlan

SYNCS = (None, "max")

_FAILED, _COLLECT, _TRACE, _WHOLE, _REMADE, _DIGEST, _MINUS_DIGEST = range(7)
_HEADER = 7
_LEAST_BLOCKS = 256
_CALLS = 4
"""A module is taken to be called this often at most; later calls share the last one's vote."""

_NO_DIGEST = -(1 << 40)


def check_sync(sync: str | None) -> None:
    """Refuse what is no way to agree, or cannot be had.

    Raises:
        ValueError: If so.
    """
    if sync not in SYNCS:
        raise ValueError(f'sync is None or "max", not {sync!r}')
    if sync is not None and num_processes() == 1 and started_together() > 1:
        raise ValueError(
            'with sync="max" processes have to find one another first: call '
            "torch.distributed.init_process_group before mimose.attach"
        )


def agreement(sync: str | None, num_modules: int, device: Device) -> Agreement | None:
    """Return what makes processes agree; None for one process, or if they are not to.

    Collective: with ``sync`` all processes call it.
    """
    if sync is None or num_processes() == 1:
        return None
    return Agreement(num_modules, device)


class Agreement:
    """Makes one plan of every process's own.

    Args:
        num_modules: Number of the model's block modules, the same in every process.
        device: What counts memory: votes are host memory.
    """

    def __init__(self, num_modules: int, device: Device) -> None:
        self._blocks = max(_LEAST_BLOCKS, _CALLS * num_modules)
        self._device = device
        # Votes are on the CPU, so that nobody waits for the GPU.
        on_cpu = "cpu:" in str(dist.get_backend_config())
        self._group = None if on_cpu else dist.new_group(backend="gloo")

    def decide(self, plan: Callable[[], Decision]) -> Decision:
        """Return the decision of ``plan``, what it recomputes joined with the others'.

        Collective: every process decides in every forward pass.

        Raises:
            Infeasible: In every process, if a batch of any does not fit.
            ValueError: In every process, if plans differ that cannot be joined.
        """
        error: Infeasible | None = None
        decision: Decision | None = None
        try:
            decision = plan()
        except Infeasible as raised:
            error = raised
        votes = self._vote(decision)
        if error is not None:
            votes[_FAILED] = 1
        joint = self._reduced(votes)
        if joint[_FAILED]:
            self._fail(error)
        assert decision is not None, "a process without one has said that it failed"
        plan_of_all = self._joined(decision.plan, joint)
        if joint[_COLLECT] and not decision.collect:
            # Measuring runs blocks twice, which all do or none: they may gather parameters.
            return replace(
                decision,
                plan=plan_of_all,
                phase="sheltered",
                collect=True,
                trace=bool(joint[_TRACE]),
                predicted_peak_bytes=None,
            )
        if plan_of_all == decision.plan:
            return decision
        # What was predicted is of another plan, one that recomputes less.
        return replace(decision, plan=plan_of_all, predicted_peak_bytes=None)

    def abstain(self) -> None:
        """Take part without a plan: this process's batch is empty.

        Raises:
            Infeasible: As :meth:`decide`.
        """
        joint = self._reduced(self._vote(None))
        if joint[_FAILED]:
            self._fail(None)

    def _vote(self, decision: Decision | None) -> list[int]:
        votes = [0] * (_HEADER + self._blocks)
        votes[_DIGEST] = votes[_MINUS_DIGEST] = _NO_DIGEST
        if decision is None:
            return votes
        votes[_COLLECT] = int(decision.collect)
        digest = zlib.crc32(repr(decision.plan).encode())
        votes[_DIGEST], votes[_MINUS_DIGEST] = digest, -digest
        votes[_TRACE] = int(decision.trace)
        plan = decision.plan
        if not _is_set_of_blocks(plan):
            votes[_WHOLE] = 1
            return votes
        assert isinstance(plan, Plan), "nothing else is a set of blocks"
        votes[_REMADE] = int(bool(plan.remade))
        for block in plan.recomputed.union(r.block for r in plan.remade):
            votes[_HEADER + min(block, self._blocks - 1)] = 1
        return votes

    def _reduced(self, votes: list[int]) -> list[int]:
        with self._device.host_memory():
            tensor = torch.tensor(votes, dtype=torch.int64)
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
            return tensor.tolist()

    def _joined(self, own: AnyPlan, joint: list[int]) -> AnyPlan:
        if joint[_WHOLE]:
            if joint[_DIGEST] != -joint[_MINUS_DIGEST]:
                raise ValueError(
                    "the processes' plans differ, and plans that are no set of blocks cannot be "
                    "joined: attach without sync, or show every process the same largest batch"
                )
            return own
        assert isinstance(own, Plan), "none of the others is a set of blocks"
        if joint[_REMADE] and joint[_DIGEST] == -joint[_MINUS_DIGEST] and not joint[_COLLECT]:
            return own
        # Blocks that let values go in one plan are recomputed whole, which needs less.
        last = self._blocks - 1
        chosen = [b for b in range(own.num_blocks) if joint[_HEADER + min(b, last)]]
        if len(chosen) == own.num_recomputed and not own.remade:
            return own
        return Plan.recompute_each(own.num_blocks, chosen)

    def _fail(self, error: Infeasible | None) -> None:
        """Raise what the first process that failed has to say, in all of them."""
        said: list[Any] = [None] * num_processes()
        own = None if error is None else (rank(), str(error), error.least_budget_bytes)
        with self._device.host_memory():
            dist.all_gather_object(said, own, group=self._group)
        number, text, least = next(words for words in said if words is not None)
        raise Infeasible(f"rank {number}: {text}", least) from error


def _is_set_of_blocks(plan: AnyPlan) -> Any:
    return isinstance(plan, Plan) and not (plan.spans_blocks or plan.cores)
