"""What is known of a step: what a planner is told before it and what it learns after it.

Plain data, so that planners need no torch. All bytes are ``int``, all times ``float`` seconds.
Memory levels are bytes allocated *above the level at the start of the step* (``resident_bytes``)
unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from mimose.menu import Traced
from mimose.schedule import AnyPlan

Size = tuple[int, ...]
"""Size of a mini-batch: ``(batch, length)`` for text, ``(batch, height * width)`` for images,
``(batch, encoder length, decoder length)`` for encoder-decoder models. The batch comes first."""

NO_AUTOCAST = "autocast None"
"""What :attr:`Situation.signature` says where no operator runs in another type than its inputs'."""

Phase = Literal["profile", "static", "sheltered", "responsive"]
Outcome = Literal["ok", "retried", "oom", "thrashing"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model as a planner sees it; handed over again whenever one of these facts changes.

    Attributes:
        block_names: A readable name for each block, in forward order, e.g. ``encoder.layer.3``.
        exact: False until the first forward pass has shown how often each module is called: the
            number of blocks is a guess before.
        cuts: Numbers ``c`` such that no region may hold both block ``c - 1`` and ``c``. None until
            the data flow has been recorded (no region of several blocks is carried out before).
        free: Blocks that save nothing for backward (frozen ones): recomputing them is useless.
        keep_only: Blocks that must not run twice (they change their input or keep state).
        cores: Blocks of which the attention core alone can run again; None until a plan with cores
            has been carried out.
        budget_bytes: Bound on reserved bytes, or None without one.
        grad_bytes: For each block, the bytes of the gradients of the parameters it owns (those
            first used by it); see ``other_grad_bytes`` for the rest of the model.
        other_grad_bytes: Gradient bytes of trainable parameters outside all blocks.
        device_label: What every figure of this run carries, e.g. ``measured on cpu``.
        copy_bandwidth: Bytes a second between the device and the host, either way; None unless the
            planner has an attribute ``offload`` that is True, since it has to be measured.
        expandable_segments: Whether the allocator's segments grow and shrink by pages, so that
            free memory serves requests of any size.
    """

    block_names: tuple[str, ...]
    exact: bool = False
    cuts: tuple[int, ...] | None = None
    free: frozenset[int] = frozenset()
    keep_only: frozenset[int] = frozenset()
    cores: frozenset[int] | None = None
    budget_bytes: int | None = None
    grad_bytes: tuple[int, ...] = ()
    other_grad_bytes: int = 0
    device_label: str = ""
    copy_bandwidth: float | None = None
    expandable_segments: bool = False

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.block_names)


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of the process at the start of a step.

    Attributes:
        resident_bytes: Bytes allocated on the device: parameters, gradients still there, optimizer
            state, the batch.
        grads_resident: Whether the gradients of trainable parameters are already allocated; if
            not, they grow during backward.
        optimizer_ready: Whether the optimizer's lazily created state exists (True when unknown).
        signature: Whatever else changes memory for equal sizes: dtype, autocast, the set of
            trainable parameters. Compared for equality only.
        reserved_bytes: Bytes reserved from the device at the start of the step.
    """

    resident_bytes: int
    grads_resident: bool = True
    optimizer_ready: bool = True
    signature: str = ""
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """Planning work, counted: what a simulated device charges instead of a wall clock's reading.

    Attributes:
        lookups: Decisions that a plan cache was asked for, each with all that goes with a step
            that finds its plan there.
        estimates: Blocks whose costs were predicted, one a block for each size predicted.
        candidates: Blocks weighed in choosing: one a block for each plan that the peak model
            judged, and one for each block that the greedy rule sorted or took. Sets of values
            weighed for menus, and figures that those are fitted to, count as much.
        updates: Figures learned from a finished step.
        evaluations: Values of a heuristic worked out in choosing a tensor to evict.
        metadata: Neighbours and costs read to work those values out.
        upkeep: Neighbours and costs read or written when a tensor leaves or comes back.
    """

    lookups: int = 0
    estimates: int = 0
    candidates: int = 0
    updates: int = 0
    evaluations: int = 0
    metadata: int = 0
    upkeep: int = 0

    def __add__(self, other: Work) -> Work:
        """Return both together."""
        return Work(
            self.lookups + other.lookups,
            self.estimates + other.estimates,
            self.candidates + other.candidates,
            self.updates + other.updates,
            self.evaluations + other.evaluations,
            self.metadata + other.metadata,
            self.upkeep + other.upkeep,
        )

    @property
    def estimating(self) -> Work:
        """The part of a decision that is the estimator's."""
        return Work(estimates=self.estimates) if self.estimates else NO_WORK

    @property
    def choosing(self) -> Work:
        """The rest of a decision: looking plans up and choosing."""
        return replace(self, estimates=0) if self.estimates else self


NO_WORK = Work()
"""Nothing to charge."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A planner's answer for one step.

    Attributes:
        plan: What to carry out.
        phase: What kind of step this is. Only planners that learn in the run have ``sheltered``
            and ``responsive`` steps; the others are ``static``, and ``profile`` while they measure.
        collect: Whether the executor must run the shuttling collector in this step.
        trace: Whether the collector looks inside the blocks, too.
        predicted_peak_bytes: Predicted peak of allocated bytes (resident ones included), or None.
        cache_hit: Whether the plan came from the planner's cache; None without a cache.
        estimator_seconds: Time spent predicting.
        scheduler_seconds: Time spent choosing.
        release_cache: Whether to hand cached free memory back to the device before the step.
        work: What deciding took, counted. A planner that counts nothing costs no time on a
            simulated device.
    """

    plan: AnyPlan
    phase: Phase = "static"
    collect: bool = False
    predicted_peak_bytes: int | None = None
    cache_hit: bool | None = None
    estimator_seconds: float = 0.0
    scheduler_seconds: float = 0.0
    release_cache: bool = False
    work: Work = NO_WORK
    trace: bool = False


@dataclass(frozen=True, slots=True)
class BlockSample:
    """One block in one collected step, in which every block ran once kept and once recomputed.

    Attributes:
        block: Its number.
        level_bytes: Level before its forward.
        activation_bytes: What it keeps alive after a plain forward; its output and copies of
            weights are left out.
        output_bytes: New storage of its outputs.
        kept_peak_bytes: Peak during its plain forward, above ``level_bytes``.
        checkpoint_peak_bytes: Peak during its checkpointed forward, above ``level_bytes``.
        backward_peak_bytes: Peak (a level) from the gradient's arrival at its output to the end
            of its backward, recomputation included; None where no gradient arrived.
        forward_seconds: Time of its plain forward.
        saved_storages: Bytes of each storage that it keeps alive after a plain forward, its
            inputs, parameters and outputs left out.
        output_storages: Bytes of each new storage of its outputs.
        checkpointed: The sample was taken while the block itself ran checkpointed.
        inside_checkpoint: A block around it ran checkpointed.
        around_checkpoint: Something within it ran checkpointed.
        recompute_seconds: Time of its second run, in backward, up to the last tensor needed; 0
            where it did not run again.
        backward_seconds: Time from the gradient's arrival at its output to the end of its
            backward, its second run left out.
        forward_flops: FLOPs of its plain forward; None where they were not counted.
        recompute_flops: FLOPs of its second run in backward, likewise.
        backward_flops: FLOPs of its backward, its second run left out, likewise.
        core_seconds: Part of ``backward_seconds`` that its attention core's second run took, where
            that is recomputed on its own.
        core_flops: FLOPs of that, likewise.
        copy_bytes: Copies of its weights in another type that autocast made in its forward and
            holds until it ends, whether the block is kept or recomputed.
        saved_copy_bytes: Those that a kept block still holds when its backward comes and a
            recomputed one does not.
        freed_bytes: Its inputs that nothing holds once it has run, unless it is recomputed.
        freed_late_bytes: Its inputs of which that holds once the model's forward is over.
        shared_bytes: Inputs that it is the first block to take, and of which that holds if none of
            those that take them is recomputed.
        passed_bytes: Part of ``activation_bytes`` that its caller was given and held until the next
            block's forward began, at least: later ones have that beside them in any case.
        measuring_bytes: By how much more its backward took than ``backward_peak_bytes`` since it
            was measured: it ran again to its end.
        let_go_bytes: Part of ``activation_bytes`` that it let go of as soon as its forward was
            over, to make it again.
    """

    block: int
    level_bytes: int
    activation_bytes: int
    output_bytes: int
    kept_peak_bytes: int
    checkpoint_peak_bytes: int
    backward_peak_bytes: int | None
    forward_seconds: float
    saved_storages: tuple[int, ...] = ()
    output_storages: tuple[int, ...] = ()
    checkpointed: bool = False
    inside_checkpoint: bool = False
    around_checkpoint: bool = False
    recompute_seconds: float = 0.0
    backward_seconds: float = 0.0
    forward_flops: int | None = None
    recompute_flops: int | None = None
    backward_flops: int | None = None
    core_seconds: float = 0.0
    core_flops: int | None = None
    copy_bytes: int = 0
    saved_copy_bytes: int = 0
    freed_bytes: int = 0
    freed_late_bytes: int = 0
    shared_bytes: int = 0
    let_go_bytes: int = 0
    passed_bytes: int = 0
    measuring_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """What the shuttling collector saw of one step.

    Attributes:
        blocks: One sample a block that was called.
        head_peak_bytes: Peak level from the end of the model's forward (where ``loss_peak_bytes``
            is 0, of the last block's) to the first arrival of a gradient at a block: heads,
            logits, loss and their backward.
        tail_peak_bytes: Peak level from the last block boundary in backward to the end of
            backward: embeddings.
        first_peak_bytes: Peak level before the first block's forward.
        collector_seconds: Time spent on the extra forward passes and on measuring.
        outside_seconds: Time of the forward and backward pass outside all blocks.
        outside_flops: FLOPs there; None where they were not counted.
        loss_peak_bytes: Peak level from the end of the last block's forward to that of the model's,
            or to where nobody holds any more what blocks were given and have returned, of that
            which is gone at the end.
        after_peak_bytes: Peak level from there to the end of the model's forward; 0 where that was
            not looked at.
        traced: What was seen inside blocks, where that was looked at; one a block at most.
    """

    blocks: tuple[BlockSample, ...]
    head_peak_bytes: int
    tail_peak_bytes: int
    first_peak_bytes: int
    collector_seconds: float
    outside_seconds: float = 0.0
    outside_flops: int | None = None
    loss_peak_bytes: int = 0
    after_peak_bytes: int = 0
    traced: tuple[Traced, ...] = ()


@dataclass(slots=True)
class StepRecord:
    """All that is known of one finished step; also what the harness writes down.

    ``peak_allocated_bytes`` and ``peak_reserved_bytes`` are of this step, resident bytes included;
    ``peak_exact`` is False where the device could only bound the step's peak from above.
    ``optimizer_peak_bytes`` is the peak level from the end of backward to that of the optimizer.
    ``extra`` has the figures of a tensor-level policy by the names of
    :data:`mimose.eviction.COLUMNS`. Its time is in ``forward_seconds`` and ``backward_seconds``,
    too, since that is where it runs.
    """

    size: Size
    plan: AnyPlan
    phase: Phase
    situation: Situation
    outcome: Outcome = "ok"
    predicted_peak_bytes: int | None = None
    cache_hit: bool | None = None
    collected: Collected | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_exact: bool = True
    optimizer_peak_bytes: int | None = None
    num_alloc_retries: int = 0
    step_seconds: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    collector_seconds: float = 0.0
    estimator_seconds: float = 0.0
    scheduler_seconds: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """What profiled passes at one size showed, for planners that plan once.

    Attributes:
        records: At least one pass, with what the collector saw. The first one counts FLOPs; where
            there are several its times are warm-up.
        steady: The state at the start of a step once training is under way: optimizer state is
            there, and so are gradients, if the loop keeps them.
        optimizer_state_bytes: State that the optimizer makes in its first step.
        optimizer_temporary_bytes: What a step of it needs besides.
    """

    records: tuple[StepRecord, ...]
    steady: Situation
    optimizer_state_bytes: int
    optimizer_temporary_bytes: int
