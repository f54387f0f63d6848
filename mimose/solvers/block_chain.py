"""A model's blocks as a chain, in whose memory every plan needs just what the peak model says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from mimose.costs import Profile, held_meanwhile
from mimose.solvers.chain import Chain


def block_chain(
    profile: Profile,
    grown: Sequence[int] | None = None,
    *,
    cuts: Collection[int] = (),
    keep_only: Collection[int] = (),
) -> Chain:
    """Return the chain of a step; its loss is all that follows the last block.

    Its memory is counted from ``profile.level[0]`` on, the level before the first block, which
    holds the chain's input; so ``x[0]`` is 0. What happens outside blocks, but for the loss, is not
    in it. :func:`mimose.solvers.chain.simulate` gives the makespan and the peak that
    :func:`mimose.costs.predict_seconds` and :func:`mimose.costs.predict_peak` give.

    Args:
        profile: What the step costs, times included.
        grown: Gradients that may exist in each block's backward and at the head, as
            :func:`mimose.costs.grown_gradients` gives them; None if they are resident.
        cuts: Numbers ``c`` such that no region may hold both block ``c - 1`` and ``c``.
        keep_only: Blocks that must not run twice.
    """
    count = profile.num_blocks
    blocks = range(count)
    grown = (0,) * (count + 1) if grown is None else grown
    x = (0, *profile.output)
    saved = tuple(a + o for a, o in zip(profile.activation, profile.output))
    before = list(accumulate(profile.output, initial=profile.level[0]))
    beside = [level - b for level, b in zip(profile.level, before)]
    held = [held_meanwhile(profile, grown, i) - profile.output[i] for i in blocks]
    backward = [
        profile.backward_peak[i] + grown[i] - before[i] - held[i] - x[i] - x[i + 1] - saved[i]
        for i in blocks
    ]
    head = profile.head_peak + grown[count] - before[count]
    return Chain(
        forward=(*profile.forward_seconds, 0.0),
        backward=(*profile.backward_seconds, profile.outside_seconds),
        x=x,
        saved=saved,
        forward_temporary=(
            *(profile.checkpoint_peak[i] - profile.output[i] + beside[i] for i in blocks),
            head,
        ),
        backward_temporary=(*backward, head - x[count]),
        keep_temporary=tuple(profile.kept_peak[i] - saved[i] + beside[i] for i in blocks),
        again=(*profile.recompute_seconds, 0.0),
        held=(*held, 0),
        cuts=frozenset(cuts),
        keep_only=frozenset(keep_only),
    )
