"""How large a task's batches are, beside what the paper shows of the same data set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mimose_bench.experiments.paper import AreaSummary, Histogram, detection_areas
from mimose_bench.experiments.tables import table
from mimose_bench.experiments.tasks.base import Task, Unit

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
MOST_BATCHES = 5000
"""Batches looked at unless more are asked for: their mean is then known within half a percent."""
_BARS = 24
_WIDEST_BAR = 30


@dataclass(frozen=True, slots=True)
class Distribution:
    """The sizes of many batches of one task.

    Attributes:
        task: The task's name.
        title: Its name in the paper.
        scale: The size of its model, below ``full`` with shorter text or smaller images.
        unit: What ``lengths`` count.
        source: Where the data comes from, in words.
        notes: What else to know of the data, such as records left out.
        dataset: The data set as the paper's Fig 3 calls it, or nothing.
        batch_size: Samples in the batches.
        num_examples: Examples in an epoch.
        lengths: For each full batch its padded length, or its image's pixels.
        decoder_lengths: Likewise the decoder's, where there is one.
        example_lengths: Length of each single example, where they are stored.
        paper: The paper's histogram of padded lengths (Fig 3), where it shows one.
        paper_areas: What the paper's authors published of image areas, where they did.
    """

    task: str
    title: str
    scale: str
    unit: Unit
    source: str
    notes: tuple[str, ...]
    dataset: str
    batch_size: int
    num_examples: int
    lengths: np.ndarray
    decoder_lengths: np.ndarray | None = None
    example_lengths: np.ndarray | None = None
    paper: Histogram | None = None
    paper_areas: AreaSummary | None = None

    def statistics(self) -> dict[str, float]:
        """Return mean, deviation, extremes and quantiles of ``lengths``, by their names."""
        return _statistics(self.lengths)

    def paper_statistics(self) -> dict[str, float]:
        """Return the same of the paper's, as far as it is known."""
        if self.paper is not None:
            found = {"mean": self.paper.mean, "deviation": self.paper.deviation}
            return found | {_named(q): self.paper.quantile(q) for q in QUANTILES}
        if self.paper_areas is not None:
            return {k: float(v) for k, v in asdict(self.paper_areas).items() if k != "source"}
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return the distribution as plain data, without the single lengths."""
        return {
            "task": self.task,
            "scale": self.scale,
            "unit": self.unit,
            "source": self.source,
            "notes": list(self.notes),
            "batch_size": self.batch_size,
            "num_examples": self.num_examples,
            "num_batches": len(self.lengths),
            "statistics": self.statistics(),
            "decoder_statistics": None
            if self.decoder_lengths is None
            else _statistics(self.decoder_lengths),
            "example_statistics": None
            if self.example_lengths is None
            else _statistics(self.example_lengths),
            "paper": self.paper_statistics(),
        }


def measure_distribution(task: Task, batches: int | None = None) -> Distribution:
    """Return the sizes of a task's batches; none is built.

    Args:
        task: The task.
        batches: How many; by default ``MOST_BATCHES``, of real data an epoch at most. Smaller
            batches, as the last of an epoch is, are left out: they are padded less.
    """
    most = MOST_BATCHES
    if task.data_source.kind != "synthetic":
        most = min(most, task.epoch_steps)
    steps = batches or most
    sizes = list(task.sizes(steps))
    rows = max(size[0] for size in sizes)
    full = np.array([size for size in sizes if size[0] == rows], np.int64)
    settings = task.settings()
    columns = list(task.extents(tuple(full[0])))
    return Distribution(
        task=task.name,
        title=task.title,
        scale=task.scale,
        unit=task.unit,
        source=str(task.data_source),
        notes=task.data_source.notes,
        dataset=task.dataset,
        batch_size=rows // task.rows_per_sample,
        num_examples=int(settings["num_examples"]),
        lengths=full[:, 1],
        decoder_lengths=full[:, 2] if "decoder_length" in columns else None,
        example_lengths=task.example_lengths(),
        # Tests' models have shorter texts.
        paper=None if task.scale == "tiny" else task.paper_lengths(),
        paper_areas=detection_areas(task.title),
    )


def describe(found: Distribution) -> str:
    """Return a distribution as text: statistics and bars, the paper's beside."""
    lines = [
        f"{found.task}, scale {found.scale}: {found.source}",
        *(f"note: {note}" for note in found.notes),
        f"{len(found.lengths)} batch{'' if len(found.lengths) == 1 else 'es'} of "
        f"{found.batch_size}, smaller ones left out; {found.num_examples} examples in an epoch",
        "",
        _compared(found),
    ]
    if found.decoder_lengths is not None and np.ptp(found.decoder_lengths) == 0:
        lines += ["", f"decoder: {found.decoder_lengths[0]} tokens in every batch"]
    elif found.decoder_lengths is not None:
        ours = _statistics(found.decoder_lengths)
        rows = [(name, f"{value:.1f}") for name, value in ours.items()]
        lines += ["", table(("decoder, tokens", "here"), rows)]
    lines += ["", *_bars(found)]
    if found.paper is not None:
        lines += [
            "",
            f"paper: Fig 3, read from the drawing: {found.dataset} in batches of "
            f"{found.paper.batch_size}",
        ]
    elif found.paper_areas is not None:
        lines += ["", f"paper: {found.paper_areas.source}"]
    return "\n".join(lines)


def _compared(found: Distribution) -> str:
    ours, paper = found.statistics(), found.paper_statistics()
    columns = [[f"{value:.1f}" for value in ours.values()]]
    headers = [found.unit, "batches"]
    if found.example_lengths is not None:
        single = _statistics(found.example_lengths)
        columns.insert(0, [f"{value:.1f}" for value in single.values()])
        headers.insert(1, "examples")
    if paper:
        theirs = [paper.get(name) for name in ours]
        columns.append(["-" if x is None else f"{x:.1f}" for x in theirs])
        pairs = zip(ours.values(), theirs)
        columns.append(["-" if x is None else f"{value / x - 1:+.1%}" for value, x in pairs])
        headers += ["paper's batches", "difference"]
    return table(headers, zip(ours, *columns))


def _bars(found: Distribution) -> Iterable[str]:
    """Yield a line a bin: share of the batches here and in the paper, and a bar of the former."""
    values = np.unique(found.lengths)
    few = found.paper is None and len(values) <= _BARS
    edges = np.append(values, values[-1] + 1) if few else bin_edges(found)
    shares = np.histogram(found.lengths, edges)[0] / len(found.lengths)
    theirs = None if found.paper is None else found.paper.shares_between(edges)
    most = max(shares.max(), 1e-9)
    heading = f"{found.unit + ' of a batch':>21}  {'here':>6}"
    yield heading if theirs is None else f"{heading}  {'paper':>6}"
    for number, (low, high) in enumerate(pairwise(edges)):
        bar = "#" * round(_WIDEST_BAR * shares[number] / most)
        beside = "" if theirs is None else f"  {theirs[number]:6.1%}"
        between = f"{low:>21.0f}" if few else f"{low:>9.0f} to {high:>8.0f}"
        yield f"{between}  {shares[number]:6.1%}{beside}  {bar}".rstrip()


def bin_edges(found: Distribution, most: int = _BARS) -> np.ndarray:
    """Return the edges of at most ``most`` bins: the paper's, merged, or equal ones."""
    low, high = float(found.lengths.min()), float(found.lengths.max()) + 1.0
    if found.paper is None:
        return np.linspace(low, high, most + 1) if high - low > 1 else np.array([low, high])
    edges = found.paper.edges
    merged = list(edges[:: -(-len(found.paper.shares) // most)])
    if merged[-1] < edges[-1]:
        merged.append(edges[-1])
    merged[0], merged[-1] = min(merged[0], low), max(merged[-1], high)
    return np.array(merged)


def _statistics(lengths: np.ndarray) -> dict[str, float]:
    found = {
        "mean": float(lengths.mean()),
        "deviation": float(lengths.std()),
        "least": float(lengths.min()),
        "greatest": float(lengths.max()),
    }
    return found | {_named(q): float(np.quantile(lengths, q)) for q in QUANTILES}


def _named(quantile: float) -> str:
    return f"p{100 * quantile:.0f}"
