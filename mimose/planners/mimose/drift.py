"""Concept drift: predictions that miss call for more samples, but not for ever."""

from __future__ import annotations

from collections import deque

TOLERANCE = 0.02
"""A prediction that is further off than this share of the measured peak has missed."""
_WINDOW = 50
_CALM = 20


class Drift:
    """Decides when one more sheltered iteration is due, and how far to mistrust predictions.

    After a miss the next step is sheltered. If misses go on all the same, the samples are not the
    cause: each further one waits twice as long as the one before, until 20 predictions in a row
    have held. Once two of the last 50 steps needed more than predicted, plans are made for
    predictions raised by the larger miss, so that a systematic error costs some recomputation and
    not a violation. A single one is left to the margin.
    """

    def __init__(self) -> None:
        self._under: deque[float] = deque(maxlen=_WINDOW)
        self._inflation = 0.0
        self._wait = 0
        self._next_wait = 1
        self._calm = 0
        self.due = False

    @property
    def inflation(self) -> float:
        """By which share to raise a step's predicted bytes when planning."""
        return self._inflation

    def sheltered(self) -> None:
        """Take note that a sheltered iteration was run."""
        self.due = False

    def observe(self, raw: int, measured: int, resident: int, *, exact_size: bool = True) -> None:
        """Compare a responsive step's prediction with what was measured.

        Args:
            raw: Predicted peak, not inflated, above the resident bytes.
            measured: Measured peak above the resident bytes.
            resident: Resident bytes.
            exact_size: Whether the prediction was for this very size. One for a larger size may
                be too high without having missed.
        """
        if self._wait:
            self._wait -= 1
        tolerance = TOLERANCE * (measured + resident)
        short = measured - raw > tolerance
        covered = measured - raw * (1.0 + self._inflation) <= tolerance
        under = self._under
        if short or any(under):
            under.append(measured / max(raw, 1) - 1.0 if short else 0.0)
            self._inflation = max(under) if sum(u > 0 for u in under) > 1 else 0.0
        if covered and (not exact_size or raw - measured <= tolerance):
            self._calm += 1
            if self._calm >= _CALM:
                self._next_wait = 1
            return
        self._calm = 0
        if self._wait == 0:
            self.due = True
            self._wait = self._next_wait
            self._next_wait *= 2
