"""How far a sweep is and when it will be done, as far as finished cells tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from mimose.units import format_seconds
from mimose_bench.experiments.sweep.cells import Cell


class Estimate:
    """Learns from finished cells how long the others take."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str, str], list[float]] = defaultdict(list)

    def learn(self, cell: Cell, seconds: float | None) -> None:
        """Take note of how long a cell took."""
        if seconds is not None:
            self._seconds[cell.kind].append(seconds)

    def left(self, cells: Iterable[Cell]) -> tuple[float, int]:
        """Return the seconds that ``cells`` take one after another, and how many are unknown.

        Unknown are those of whose task, device and planner none has finished yet.
        """
        seconds, unknown = 0.0, 0
        for cell in cells:
            known = self._seconds.get(cell.kind)
            if known:
                seconds += sum(known) / len(known)
            else:
                unknown += 1
        return seconds, unknown

    def text(self, started: Mapping[str, float], cells: Iterable[Cell], at_once: int) -> str:
        """Return the time left in words.

        Args:
            started: How many seconds ago running cells were started, by what they are known by.
            cells: The cells that are not finished.
            at_once: How many run at once.
        """
        cells = list(cells)
        seconds, unknown = self.left(cells)
        seconds -= sum(
            min(started[cell.id], self.left([cell])[0]) for cell in cells if cell.id in started
        )
        if unknown == len(cells):
            return "time left unknown"
        text = f"about {format_seconds(max(1.0, seconds / max(1, at_once)))} left"
        return f"{text} and that of {unknown} cells of a kind not seen yet" if unknown else text
