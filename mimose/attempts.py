"""Run a step's forward and backward pass again if it runs out of memory.

What is run again is everything within one attempt: with gradient accumulation the whole window of
micro-batches. An attempt in which an optimizer has begun its step cannot be undone, since that step
is half applied; nor can one that began with gradients of earlier micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from mimose.eviction import Eviction
from mimose.plan import Plan
from mimose.runtime.evicting import NoRoomError
from mimose.runtime.recovery import add_to_message, drop_frames
from mimose.schedule import AnyPlan
from mimose.units import format_bytes

if TYPE_CHECKING:
    from mimose.handle import Handle


def attempts(handle: Handle, *, grads_are_zero: bool) -> Iterator[Attempt]:
    """Yield one attempt, and another if it failed; see :meth:`Handle.attempts`."""
    if handle._step is not None and handle._step.forwarded is not None:
        handle.end()  # A user's own loop: the step before this one.
    if not handle.planner.rescued or handle._together.several:
        yield Attempt(handle, last=True)
        return
    handle._undo.save(grads_are_zero=grads_are_zero)
    # Gradients of earlier micro-batches cannot be told from those of a failed one.
    first = Attempt(handle, last=not handle._undo.possible)
    yield first
    if not first.failed:
        return
    handle._undo.restore()
    handle.device.release_cache()
    rescue = getattr(handle.planner, "rescue", None)
    frugal: AnyPlan | None = None if rescue is None else rescue()
    if frugal is None:
        frugal = Plan.recompute_each(len(handle._executor.block_names))
    if first.num_begun > 1:
        handle._close_retried()  # Of several micro-batches: the first one comes again.
    else:
        if handle._step is not None:
            handle._step.retried = True
            handle._step.ordered = frugal
        handle._executor.begin(frugal)
    yield Attempt(handle, last=True, ordered=frugal)


class Attempt:
    """One try at a step's forward and backward pass; see :meth:`Handle.attempts`.

    Args:
        handle: The handle.
        last: Whether an error that ends it is the last word.
        ordered: What every forward pass in it carries out, whatever the planner says.

    Attributes:
        failed: Whether it ran out of memory.
        num_begun: How many steps the model's forward passes have begun in it.
        stepped: Whether an optimizer has begun its step in it.
    """

    def __init__(self, handle: Handle, *, last: bool, ordered: AnyPlan | None = None) -> None:
        self._handle = handle
        self._last = last
        self.ordered = ordered
        self.failed = False
        self.num_begun = 0
        self.stepped = False

    def __enter__(self) -> None:
        self._handle._attempt = self
        step = self._handle._step
        if step is not None:
            step.forwarded = step.carried_out = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> bool:
        handle = self._handle
        handle._attempt = None
        if error is not None:
            handle._executor.evictions.abandon()
        if not isinstance(error, torch.OutOfMemoryError):
            return False
        self.failed = True
        if self._last or self.stepped:
            explain(handle, error, self)
            return False
        drop_frames(error)
        return True


def explain(handle: Handle, error: torch.OutOfMemoryError, attempt: Attempt | None = None) -> None:
    """Add figures to the text of an error that escapes, and mark the open step as failed.

    Args:
        handle: The handle.
        error: PyTorch's own error.
        attempt: The attempt that it ended; None in a plain loop.
    """
    if handle._step is not None:
        handle._step.lost = True
    if not isinstance(error, NoRoomError):  # That one has said all there is to say.
        add_to_message(error, _figures(handle, str(error), attempt))


def explain_leaving(handle: Handle, error: BaseException | None) -> None:
    """Add figures to an error that leaves the training, if it ended the open step unseen.

    That is what nothing else tells of: out of memory in the optimizer's step or in a loss that the
    loop computes by itself.
    """
    step = handle._step
    if not isinstance(error, torch.OutOfMemoryError) or step is None:
        return
    if step.optimized is None and not step.lost:
        explain(handle, error)


def _figures(handle: Handle, said: str, attempt: Attempt | None) -> Iterator[str]:
    device, step = handle.device, handle._step
    allocated = format_bytes(device.allocated_bytes())
    reserved = format_bytes(device.reserved_bytes())
    yield f"Now {allocated} are allocated and {reserved} are reserved."
    if "largest free block" not in said:  # CUDA's own message does not say.
        yield f"The largest free block is {format_bytes(device.largest_free_block_bytes())}."
    if step is not None:
        yield f"The plan was: {step.plan}."
        if isinstance(step.plan, Eviction):
            yield "A larger reserve leaves more for fragmentation."
    if handle.in_optimizer or (attempt is not None and attempt.stepped):
        yield (
            "An optimizer's step had begun, which cannot be undone: the parameters may be half "
            "updated, so load the last checkpoint."
        )
    elif handle.planner.rescued and handle._together.several:
        yield (
            "It was not run again, since other processes are waiting in the collectives of "
            "this pass: leave it more room, by a larger margin or a smaller batch, and start again "
            "from the last checkpoint."
        )
    elif step is not None and _recomputes_all(handle, step.plan):
        yield (
            "Every block was recomputed already, so that to run it again would not help: use a "
            "smaller batch" + (" or give a larger budget." if handle._enforced else ".")
        )
    elif handle.planner.rescued and attempt is None:
        yield (
            "Give handle.run() a function that runs the forward and backward pass, and a step that "
            "runs out of memory is undone and run once more."
        )
    elif handle.planner.rescued and not handle._undo.possible:
        yield (
            "It was not run again, since gradients of earlier micro-batches were there: give "
            "handle.run() a function that runs all micro-batches of the optimizer's step."
        )


def _recomputes_all(handle: Handle, plan: AnyPlan) -> bool:
    executor = handle._executor
    blocks = frozenset(range(len(executor.block_names))) - executor.free - executor.keep_only
    return isinstance(plan, Plan) and bool(blocks) and blocks <= frozenset(plan.recomputed)
