"""DELTA beside DTR at equal budgets, how far both get, and whether swapping was worth it.

DELTA (arXiv 2203.15980; ACM TACO 2024, doi 10.1145/3689338) reports that it saves 40 to 70 % of
memory on ResNet-50, ResNet-101 and BERT, that the largest batch grows to 2.04 (ResNet-50) and 2.25
times (ResNet-101) plain training's, that its base filter is ahead of LRU and greedy ones, and that
recomputing a tensor is often cheaper than swapping it. Budgets here bound allocated bytes: shares
of plain training's peak, with nothing reserved for fragmentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mimose.devices.sim.device import SimDevice
from mimose.units import GIB
from mimose_bench.experiments.figures.classifiers import RESNET50, RESNET101
from mimose_bench.experiments.figures.evicting import Course
from mimose_bench.experiments.figures.limits import (
    LENGTH,
    Network,
    at,
    batch_of,
    largest_batch,
    least_share,
)
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable, Row
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent, training
from mimose_bench.experiments.figures.transfers import Kept, kept_for_backward
from mimose_bench.experiments.figures.workloads import QA_BERT

NETWORKS: tuple[Network, ...] = (RESNET50, RESNET101, QA_BERT)
GRAINS: Mapping[str, int] = {RESNET50.name: 8, RESNET101.name: 8, QA_BERT.name: 1}
"""Steps of the largest batch."""
QUICK_NETWORKS = 1

SHARES = (0.8, 0.6, 0.5, 0.4)
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "dtr": ("dtr", {}),
    "dtr, not waiting": ("dtr", {"synchronous": False}),
    "dtr, all candidates": ("dtr", {"sampling": False}),
    "delta": ("delta", {}),
    "delta, recompute": ("delta", {"actions": "recompute"}),
    "delta, swap": ("delta", {"actions": "swap"}),
    "delta, filter lru": ("delta", {"filter": "lru"}),
    "delta, filter greedy": ("delta", {"filter": "greedy"}),
    "delta, no prefetch": ("delta", {"prefetch": False}),
    "delta, swap, no prefetch": ("delta", {"actions": "swap", "prefetch": False}),
}
"""Planners and their options by what they are called here."""
BOTH, RECOMPUTE, SWAP = "delta", "delta, recompute", "delta, swap"

SAVED = (0.40, 0.70)
"""The least and the most of memory that the original saved."""
SLOWER = (1.5, 2.0)
"""Memory counts as saved, and a batch as trained, below so many times plain training's time."""
LARGEST: Mapping[str, float] = {RESNET50.name: 2.04, RESNET101.name: 2.25}
RESERVE = "10%"
"""What both leave of the whole GPU for fragmentation, when batches grow."""
_SAME = 1.01
"""Times that differ by less are as good as equal."""

Cells = Mapping[tuple[str, float], Course]


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of one network.

    Attributes:
        plain: Plain training.
        cells: Steps by way and share of plain training's peak.
        kept: What its forward pass leaves for backward.
        saved: By planner and slowdown: the least share, and its steps.
        largest: By planner and slowdown (0: any), samples of the largest batch and its steps.
        plain_largest: Plain training's largest batch and its steps.
    """

    plain: Course
    cells: Cells
    kept: Sequence[Kept]
    saved: Mapping[tuple[str, float], tuple[float, Course] | None]
    largest: Mapping[tuple[str, float], tuple[int, Course | None]]
    plain_largest: tuple[int, Course | None]


def check(
    open_device: OpenDevice, *, networks: int = len(NETWORKS), say: Say = silent
) -> Reproduction:
    """Measure DELTA and DTR on each network.

    Args:
        open_device: Opens the simulated GPU.
        networks: How many of the networks to take.
        say: Takes lines of progress.
    """
    with open_device() as device:
        assert isinstance(device, SimDevice)
        label, bandwidth = device.label, device.gpu.copy_bandwidth
    found = {n.name: _measure(open_device, n, say) for n in NETWORKS[:networks]}
    rows = _rows(found)
    return Reproduction(
        name="delta",
        title="DELTA and DTR at the same budgets",
        source="arXiv 2203.15980",
        device_label=label,
        rows=tuple(rows),
        criteria=_criteria(found, rows),
        tables=(
            *(table for name, each in found.items() for table in _tables(name, each, label)),
            _saved(found, label),
            _largest(found, label),
            _verdict(found, bandwidth, label),
        ),
        notes=(
            f"images of {RESNET50.side} x {RESNET50.side} in batches of {RESNET50.batch_size}; "
            f"QA-Bert in batches of {QA_BERT.batch_size}, {LENGTH} tokens",
            f"a batch counts as trained below {SLOWER[1]:g} times plain training's time a sample; "
            f"both leave {RESERVE} of the GPU for fragmentation there",
            "the original does not say how much slower its largest batches and least budgets are",
        ),
    )


def _measure(open_device: OpenDevice, network: Network, say: Say) -> Found:
    name = network.name
    plain = at(open_device, network, "baseline", None)
    with (
        open_device() as device,
        training(device, network, "baseline") as session,  # type: ignore[arg-type]
    ):
        session.take(batch_of(network))
        kept = kept_for_backward(session, batch_of(network))
    cells = {}
    for way, (planner, options) in WAYS.items():
        for share in SHARES:
            budget = round(share * plain.peak_allocated)
            course = at(open_device, network, planner, budget, **{"reserve": 0, **options})
            cells[way, share] = course
            time = course.reason or f"{course.seconds / plain.seconds:.3f}"
            say(f"delta: {name} at {share:.0%}, {way}: {time}")
    saved, largest = {}, {}
    grain = GRAINS.get(name, 1)
    first = largest_batch(
        open_device, network, "baseline", grain, from_samples=network.batch_size
    )
    say(f"delta: {name}: {first[0]} samples plainly")
    for planner in ("dtr", "delta"):
        for slower in SLOWER:
            saved[planner, slower] = least_share(open_device, network, planner, plain, slower)
        for slower in (SLOWER[1], 0.0):
            most = slower * first[1].seconds / first[0] if slower and first[1] else None
            largest[planner, slower] = largest_batch(
                open_device,
                network,
                planner,
                grain,
                from_samples=first[0],
                most_seconds=most,
                reserve=RESERVE,
            )
        samples = ", ".join(str(largest[planner, slower][0]) for slower in (SLOWER[1], 0.0))
        say(f"delta: {name}: {samples} samples with {planner}")
    return Found(plain, cells, kept, saved, largest, first)


def _rows(found: Mapping[str, Found]) -> list[Row]:
    """Return published values beside ours; shares, though the unit reads percent."""
    rows = []
    for name, each in found.items():
        if name in LARGEST and each.largest["delta", SLOWER[1]][1] is not None:
            rows.append(
                Row(
                    series=name,
                    what="largest batch over plain training's",
                    unit="%",
                    expected=LARGEST[name],
                    obtained=each.largest["delta", SLOWER[1]][0] / each.plain_largest[0],
                )
            )
        for slower in SLOWER:
            least = each.saved["delta", slower]
            rows.append(
                Row(
                    series=name,
                    what=f"memory saved below {slower:g} times the time",
                    unit="%",
                    expected=SAVED[0],
                    obtained=0.0 if least is None else 1 - least[0],
                    note=f"the original's range: {SAVED[0]:.0%} to {SAVED[1]:.0%}",
                )
            )
    return rows


def _criteria(found: Mapping[str, Found], rows: Sequence[Row]) -> tuple[Criterion, ...]:
    behind = filters = prefetch = 0
    director = 0.0
    for each in found.values():
        for share in SHARES:
            behind += _slower(each.cells, share, BOTH, "dtr")
            for name in ("delta, filter lru", "delta, filter greedy"):
                filters += _slower(each.cells, share, BOTH, name)
            prefetch += _slower(each.cells, share, BOTH, "delta, no prefetch")
            prefetch += _slower(each.cells, share, SWAP, "delta, swap, no prefetch")
            alone = [
                course.seconds
                for name in (RECOMPUTE, SWAP)
                if not (course := each.cells[name, share]).failure
            ]
            both = each.cells[BOTH, share]
            if alone and not both.failure:
                director = max(director, both.seconds / min(alone) - 1)
    short = [
        max(0.0, -row.error)
        for row in rows
        if "batch" in row.what or f"below {SLOWER[0]:g} " in row.what
    ]
    return (
        Criterion(name="DELTA slower than DTR", value=behind, tolerance=0, is_count=True),
        Criterion(
            name="short of the memory saved and the largest batch, at most",
            value=max(short, default=0.0),
            tolerance=0.0,
        ),
        Criterion(
            name="base filter slower than lru or greedy", value=filters, tolerance=0, is_count=True
        ),
        Criterion(
            name="slower with prefetching", value=prefetch, tolerance=0, is_count=True
        ),
        Criterion(name="director behind the better action alone, at most", value=director),
    )


def _slower(cells: Cells, share: float, ours: str, other: str) -> bool:
    """Return whether ``ours`` fails where ``other`` does not, or takes longer."""
    a, b = cells[ours, share], cells[other, share]
    return not b.failure and (bool(a.failure) or a.seconds > _SAME * b.seconds)


def _tables(name: str, found: Found, label: str) -> list[ResultTable]:
    plain = found.plain
    times, work = [], []
    for way in WAYS:
        cells = [found.cells[way, share] for share in SHARES]
        times.append((way, *(c.failure or f"{c.seconds / plain.seconds:.3f}" for c in cells)))
        for share, cell in zip(SHARES, cells):
            if cell.failure:
                continue
            swapped = cell.count("swapped_bytes") / GIB
            work.append(
                (
                    f"{way}, {share:.0%}",
                    f"{cell.peak_allocated / GIB:.2f}",
                    f"{cell.peak_reserved / GIB:.2f}",
                    f"{cell.count('num_evictions'):.0f}",
                    f"{cell.count('num_rematerializations'):.0f}",
                    f"{swapped:.2f}",
                    f"{1e3 * cell.count('recompute_seconds'):.1f}",
                    f"{1e3 * cell.count('swap_wait_seconds'):.1f}",
                )
            )
    seconds, peak = plain.seconds, plain.peak_allocated
    return [
        ResultTable(
            title=f"{name}: time relative to plain training ({1e3 * seconds:.1f} ms) at shares of "
            f"its peak ({peak / GIB:.2f} GB allocated), {label}",
            headers=("planner", *(f"{share:.0%}" for share in SHARES)),
            rows=tuple(times),
        ),
        ResultTable(
            title=f"{name}: memory in GB, what a step evicts, runs again and copies in GB, and "
            f"how long it recomputes and waits for copies in ms, {label}",
            headers=(
                "planner, budget",
                "allocated",
                "reserved",
                "evictions",
                "run again",
                "swapped",
                "recomputing",
                "waiting",
            ),
            rows=tuple(work),
        ),
    ]


def _saved(found: Mapping[str, Found], label: str) -> ResultTable:
    rows = []
    for name, each in found.items():
        for (planner, slower), least in each.saved.items():
            cells: tuple[str, ...] = ("-", "-", "-")
            if least is not None:
                share, course = least
                cells = (
                    f"{1 - share:.0%}",
                    f"{1 - course.peak_reserved / each.plain.peak_reserved:.0%}",
                    f"{course.seconds / each.plain.seconds:.3f}",
                )
            rows.append((name, planner, f"{slower:g}", *cells))
    return ResultTable(
        title=f"memory saved at the least budget below so many times the time, {label}",
        headers=("network", "planner", "below", "allocated", "reserved", "time"),
        rows=tuple(rows),
    )


def _largest(found: Mapping[str, Found], label: str) -> ResultTable:
    rows = []
    for name, each in found.items():
        samples, plain = each.plain_largest
        for (planner, slower), (most, course) in each.largest.items():
            slowdown = "-"
            if course is not None and plain is not None:
                slowdown = f"{course.seconds / most * samples / plain.seconds:.2f}"
            rows.append(
                (
                    name,
                    planner,
                    f"below {slower:g}" if slower else "any",
                    str(samples),
                    str(most) if course is not None else "-",
                    f"{most / samples:.2f}",
                    slowdown,
                )
            )
    return ResultTable(
        title=f"largest batch that the GPU's memory is enough for, {label}",
        headers=("network", "planner", "time a sample", "plain", "samples", "ratio", "time"),
        rows=tuple(rows),
    )


def _verdict(found: Mapping[str, Found], bandwidth: float, label: str) -> ResultTable:
    """Return by storage and by run whether recomputing was cheaper than swapping."""
    rows = []
    for name, each in found.items():
        count, total = len(each.kept), sum(kept.num_bytes for kept in each.kept)
        cheaper = [kept for kept in each.kept if kept.seconds < kept.num_bytes / bandwidth]
        rows.append(
            (
                name,
                "its operators take less than one copy of it",
                f"{len(cheaper) / count:.0%} of {count}",
                f"{sum(kept.num_bytes for kept in cheaper) / total:.0%} of the bytes",
            )
        )
        for share in SHARES:
            both = each.cells[BOTH, share]
            recompute, swap = each.cells[RECOMPUTE, share], each.cells[SWAP, share]
            chosen = "-"
            if both.count("num_evictions"):
                ratio = both.count("num_dropped") / both.count("num_evictions")
                chosen = f"{ratio:.0%} of {both.count('num_evictions'):.0f}"
            runs = "-"
            if not recompute.failure and not swap.failure:
                runs = f"{recompute.seconds / swap.seconds:.3f}"
            rows.append((name, f"the director recomputes, at {share:.0%}", chosen, runs))
    return ResultTable(
        title="is recomputing cheaper than swapping: by storage, by decision (predicted, overlap "
        f"included), and a run that only recomputes over one that only swaps, {label}",
        headers=("network", "what", "share", "bytes, or time ratio"),
        rows=tuple(rows),
    )
