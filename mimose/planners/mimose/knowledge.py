"""What sheltered execution taught about one model in one configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import le
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mimose.costs import grown_gradients
from mimose.planners.mimose.authors import WholeModel
from mimose.planners.mimose.cache import Entry
from mimose.planners.mimose.collector import OUTSIDE, PER_BLOCK, Row, Sample, SampleStore, to_row
from mimose.planners.mimose.estimator import Estimator
from mimose.records import ModelInfo, Size, StepRecord

if TYPE_CHECKING:
    from typing_extensions import Self

_ENOUGH_SHAPES = 3
_SETTLED = 3
_UNKNOWN_STATES_PER_GRADIENT = 2  # Adam's two moments.


class Knowledge:
    """Samples, the estimators fitted to them, and the plans made with those.

    Levels of steps in different gradient states differ by the gradients grown meanwhile. Samples
    of the state that is asked for are used alone where they show enough sizes, and are exact then;
    others are converted so that the error is on the safe side.

    Attributes:
        block_names: The model's blocks, which tell a different model.
        casts: Whether parameters may be copied to another type in the forward pass (autocast).
        iterations: Sheltered iterations that gave a sample.
        attempts: Sheltered iterations that were run.
        unmeasurable: Sizes for which measuring, which keeps a block's activations for a moment, did
            not fit.
        plans: Cached plans by rounded-up size.
        earlier: Those that were made with fits to fewer samples, and not asked for since.
        whole_model: The authors' whole-model samples.
    """

    _fitted_by: ClassVar[type[Estimator]] = Estimator

    def __init__(self, block_names: tuple[str, ...], *, casts: bool = True) -> None:
        self.block_names = block_names
        self.casts = casts
        self.iterations = 0
        self.attempts = 0
        self.unmeasurable: set[Size] = set()
        self.plans: dict[Size, Entry] = {}
        self.earlier: dict[Size, Entry] = {}
        self.whole_model = WholeModel()
        self._store = SampleStore()
        self._optimizer_peak = 0
        self._first_optimizer_peak: int | None = None
        self._estimators: dict[bool, Estimator] = {}

    @property
    def has_samples(self) -> bool:
        """Whether anything was learned yet."""
        return len(self._store) > 0

    def learn(self, record: StepRecord, info: ModelInfo) -> int:
        """Take what a finished step shows: its samples, if collected, and its optimizer step.

        Returns:
            How many figures were taken as samples.
        """
        self._learn_optimizer(record, info)
        if record.phase == "sheltered":
            self.attempts += 1
            if record.outcome == "retried":
                self.unmeasurable.add(record.size)
        if record.collected is None:
            return 0
        row = to_row(record.collected, record.plan, len(self.block_names))
        if row is None:
            return 0
        levels, seconds, storages = row
        if self.iterations == 0:
            # The first iteration's times are warm-up.
            seconds = np.full_like(seconds, np.nan)
        self.whole_model.add(record)
        sample = Sample(record.size, record.situation.grads_resident, levels, seconds, storages)
        if self.attempts <= _SETTLED and _outgrown(list(self._store), sample):
            self._store = SampleStore()
            self.iterations = 0
        self.iterations += 1
        if self._store.add(sample):
            self._fit_anew()
        return levels.size + seconds.size

    def _learn_optimizer(self, record: StepRecord, info: ModelInfo) -> None:
        peak = record.optimizer_peak_bytes
        if peak is None or record.outcome != "ok":
            return
        if not record.situation.grads_resident:
            peak -= grown_gradients(info, len(self.block_names))[0]
        if not record.situation.optimizer_ready:
            self._first_optimizer_peak = max(peak, self._first_optimizer_peak or 0)
        elif peak > self._optimizer_peak:
            self._optimizer_peak = peak
            self._fit_anew()

    def _fit_anew(self) -> None:
        """Drop the fits; the plans made with them are to be judged by the next ones."""
        self._estimators.clear()
        self.earlier.update(self.plans)
        self.plans.clear()

    def forget_fits(self) -> None:
        """Drop what was derived from the samples."""
        self._estimators.clear()
        self.plans.clear()
        self.earlier.clear()

    def estimator(self, grads_resident: bool, info: ModelInfo) -> Estimator:
        """Return the estimator for steps that begin in this gradient state."""
        found = self._estimators.get(grads_resident)
        if found is None:
            grown = grown_gradients(info, len(self.block_names))
            state = self._optimizer_state(grown[0])
            samples = self._samples(grads_resident, grown)
            fixed = _fixed(info, len(self.block_names), self.casts)
            count = len(self.block_names)
            found = self._fitted_by(
                samples,
                count,
                self._optimizer_peak,
                state,
                fixed,
                grads_resident,
                packed=not info.expandable_segments,
            )
            self._estimators[grads_resident] = found
        return found

    def _optimizer_state(self, gradients: int) -> int:
        if self._first_optimizer_peak is None:
            return _UNKNOWN_STATES_PER_GRADIENT * gradients
        return max(0, self._first_optimizer_peak - self._optimizer_peak)

    def _samples(self, grads_resident: bool, grown: tuple[int, ...]) -> list[Sample]:
        """Return samples as of a step with resident gradients, for use in the given state."""
        all_samples = list(self._store)
        same = [s for s in all_samples if s.grads_resident == grads_resident]
        if same and self._suffice(same, all_samples):
            all_samples = same
        # The peak model adds at most `grown` where gradients are not resident. Taking just that
        # off is exact for the same state; for the other one as little as possible is taken off.
        off = self._off(grown, most=not grads_resident)
        return [
            s
            if s.grads_resident
            else replace(s, grads_resident=True, bytes=np.maximum(s.bytes - off, 0.0))
            for s in all_samples
        ]

    def _suffice(self, same: list[Sample], all_samples: list[Sample]) -> bool:
        """Whether samples of one gradient state are enough without the others."""
        shapes = len({s.size[1:] for s in all_samples})
        return len({s.size[1:] for s in same}) >= min(_ENOUGH_SHAPES, shapes)

    def _off(self, grown: tuple[int, ...], *, most: bool) -> Row:
        count = len(self.block_names)
        off = np.zeros(len(PER_BLOCK) * count + len(OUTSIDE))
        others = grown[-1]
        blocks = off[(len(PER_BLOCK) - 1) * count : len(PER_BLOCK) * count]
        if most:
            blocks[:] = grown[:-1]
            off[-2:] = others, grown[0]
        else:
            # Of a block's own gradients none, of those outside the blocks none.
            blocks[:] = np.array(grown[1:]) - others
            off[-1] = grown[0] - others
        return off

    def to_json(self) -> dict[str, Any]:
        """Return what was learned, as plain data."""
        return {
            "block_names": list(self.block_names),
            "casts": self.casts,
            "iterations": self.iterations,
            "attempts": self.attempts,
            "optimizer_peak": self._optimizer_peak,
            "first_optimizer_peak": self._first_optimizer_peak,
            "samples": self._store.to_json(),
            "whole_model": [list(s) for s in self.whole_model.samples],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the knowledge that :meth:`to_json` wrote."""
        self = cls(tuple(data["block_names"]), casts=bool(data.get("casts", True)))
        self.iterations = int(data["iterations"])
        self.attempts = int(data["attempts"])
        self._optimizer_peak = int(data["optimizer_peak"])
        first = data["first_optimizer_peak"]
        self._first_optimizer_peak = None if first is None else int(first)
        self._store = SampleStore.from_json(data["samples"])
        expected = len(PER_BLOCK) * len(self.block_names) + len(OUTSIDE)
        if any(len(sample.bytes) != expected for sample in self._store):
            raise ValueError(
                "this state was saved by another version of mimose: leave it out, and the first "
                "steps measure again"
            )
        self.whole_model.samples = [(int(x), int(y)) for x, y in data["whole_model"]]
        return self


def _outgrown(samples: list[Sample], sample: Sample) -> bool:
    """Return whether the only sample so far shows less of each block than the next one.

    What a model makes in its first step (a cache, a running mean) it reads from the second one on,
    and what that saves is not in the first one's sample.
    """
    if len(samples) != 1:
        return False
    before = [len(saved) for saved, _ in samples[0].storages]
    now = [len(saved) for saved, _ in sample.storages]
    return len(before) == len(now) and before != now and all(map(le, before, now))


def _fixed(info: ModelInfo, num_blocks: int, casts: bool) -> Row | None:
    """Return a row of the most bytes that may not depend on the batch; None if unknown.

    Those are of the parameters' sizes: gradients in backward, and under autocast copies in another
    type, which stay from the forward on. A parameter outside the blocks that is used several times
    (an embedding tied to the head) has a sum of its gradients, a new one and their new sum.
    """
    if len(info.grad_bytes) != num_blocks:
        return None
    own = np.array(info.grad_bytes, np.float64)
    others = float(info.other_grad_bytes)
    copies = own if casts else np.zeros(num_blocks)
    before = others * casts + np.cumsum(copies) - copies
    backward = 3 * others + 2 * own.max() + others * casts + copies.sum()
    by_column = {
        "activation": copies,
        "output": np.zeros(num_blocks),
        "level": before,
        "kept_peak": copies,
        "checkpoint_peak": copies,
        "forward_activation": np.zeros(num_blocks),
        "freed": np.zeros(num_blocks),
        "shared": np.zeros(num_blocks),
        "passed": np.zeros(num_blocks),
        "measuring": np.zeros(num_blocks),
        "backward_peak": np.repeat(backward, num_blocks),
    }
    forward = others * casts + copies.sum()
    outside = np.array([others * casts, forward, forward, backward, backward])
    return np.concatenate([*(by_column[name] for name in PER_BLOCK), outside])
