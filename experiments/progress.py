"""Progress on stderr: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO

from mimose.units import format_bytes, format_seconds

LINE_SECONDS = 10.0
"""Least time between two plain lines."""


class Progress:
    """Shows how far a run is, its rate, the time left, its peak against the budget and the loss.

    The first iteration, and what a planner profiles before it, are no part of the rate.

    Use it as a context manager around the loop and call :meth:`step` after each iteration.

    Args:
        total: Number of iterations.
        title: What runs, for example ``qa-bert mimose 6GB``.
        budget_bytes: The bound on reserved bytes, or None.
        simulated: Steps are simulated: how many pass in a second says nothing of the GPU, and the
            line says so.
        quiet: Show nothing.
        stream: Where to write; stderr by default, so that stdout stays free for results.
    """

    def __init__(
        self,
        total: int,
        title: str,
        *,
        budget_bytes: int | None = None,
        simulated: bool = False,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._total = total
        self._title = title
        self._budget = budget_bytes
        self._simulated = simulated
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._live: Any = None
        self._task: Any = None
        self._done = 0
        self._peak = 0
        self._loss: float | None = None
        self._first = self._last = self._said = time.monotonic()

    def __enter__(self) -> Progress:
        self._said = time.monotonic()
        if not self._quiet and self._stream.isatty():
            self._live, self._task = _live_bar(self._stream, self._title, self._total)
            self._live.start()
        elif not self._quiet:
            self._write(f"{self._title}: {self._total} steps")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
        elif not self._quiet:
            self._write(self.line())

    def step(
        self,
        *,
        peak_bytes: int | None = None,
        loss: float | None = None,
        total: int | None = None,
    ) -> None:
        """Count one finished iteration.

        Args:
            peak_bytes: Its peak of reserved bytes.
            loss: Its loss; the last one known stays on show if None.
            total: Number of iterations as it is known now; the one known before if None.
        """
        self._total = self._total if total is None else total
        self._done += 1
        self._peak = max(self._peak, peak_bytes or 0)
        self._loss = self._loss if loss is None else loss
        self._last = now = time.monotonic()
        if self._done == 1:
            self._first = now
        if self._quiet:
            return
        if self._live is not None:
            self._live.update(self._task, advance=1, total=self._total, figures=self.figures())
            return
        if now - self._said >= LINE_SECONDS and self._done < self._total:
            self._said = now
            self._write(self.line())

    def say(self, text: str) -> None:
        """Print a message without breaking the bar."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self._write(text)

    def figures(self) -> str:
        """Return rate, time left, peak against budget and loss as text."""
        elapsed = self._last - self._first
        parts = []
        if self._done > 1 and elapsed > 0:
            rate = (self._done - 1) / elapsed
            text = f"{rate:.2f} steps/s" if rate >= 0.1 else f"{1 / rate:.1f} s/step"
            parts.append(f"{text} here" if self._simulated else text)
            if self._done < self._total:
                parts.append(f"{format_seconds((self._total - self._done) / rate)} left")
        if self._peak:
            budget = "" if self._budget is None else f" of {format_bytes(self._budget)}"
            parts.append(f"peak {format_bytes(self._peak)}{budget}")
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4f}")
        return ", ".join(parts)

    def line(self) -> str:
        """Return the state as one plain line."""
        figures = self.figures()
        return f"{self._title}: {self._done}/{self._total}" + (f", {figures}" if figures else "")

    def _write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def _live_bar(stream: TextIO, title: str, total: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
        console=Console(file=stream),
        refresh_per_second=4,
    )
    return bar, bar.add_task(title, total=total, figures="")
