"""DELTA beside DTR at equal budgets, how far both get, and whether swapping was worth it.

DELTA (arXiv 2203.15980; ACM TACO 2024, doi 10.1145/3689338) reports that it saves 40 to 70 % of
memory on ResNet-50, ResNet-101 and BERT, that the largest batch grows to 2.04 (ResNet-50) and 2.25
times (ResNet-101) plain training's, that its base filter is ahead of LRU and greedy ones, and that
recomputing a tensor is often cheaper than swapping it. Budgets here bound allocated bytes: shares
of plain training's peak, with nothing reserved for fragmentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
GRAINS: Mapping[str, int] = {RESNET50.name: 16, RESNET101.name: 16, QA_BERT.name: 1}
"""Steps of the largest batch."""
SHARES = (0.8, 0.6, 0.5, 0.4)
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "dtr": ("dtr", {}),
    "delta": ("delta", {}),
    "delta, recompute": ("delta", {"actions": "recompute"}),
    "delta, swap": ("delta", {"actions": "swap"}),
    "delta, no prefetch": ("delta", {"prefetch": False}),
    "dtr, not waiting": ("dtr", {"synchronous": False}),
    "dtr, all candidates": ("dtr", {"sampling": False}),
    "delta, filter lru": ("delta", {"filter": "lru"}),
    "delta, filter greedy": ("delta", {"filter": "greedy"}),
    "delta, swap, no prefetch": ("delta", {"actions": "swap", "prefetch": False}),
}
"""Planners and their options by what they are called here, those for a quick look first."""
QUICK_NETWORKS, QUICK_WAYS = 1, 5
BOTH, RECOMPUTE, SWAP = "delta", "delta, recompute", "delta, swap"

SAVED = (0.40, 0.70)
"""The least and the most of memory that the original saved."""
SLOWER = (1.5, 2.0)
"""Memory counts as saved, and a batch as trained, below so many times plain training's time."""
LARGEST: Mapping[str, float] = {RESNET50.name: 2.04, RESNET101.name: 2.25}
RESERVES = ("10%", "30%")
"""What both leave of the whole GPU for fragmentation when batches grow; the better one counts."""
_SAME = 1.01
"""Times that differ by less are as good as equal."""

Cells = Mapping[tuple[str, float], Course]


@dataclass(slots=True)
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
    saved: dict[tuple[str, float], tuple[float, Course] | None] = field(default_factory=dict)
    largest: dict[tuple[str, float], tuple[int, Course | None]] = field(default_factory=dict)
    plain_largest: tuple[int, Course | None] = (0, None)


def check(
    open_device: OpenDevice,
    *,
    networks: int = len(NETWORKS),
    ways: int = len(WAYS),
    limits: bool = True,
    say: Say = silent,
) -> Reproduction:
    """Measure DELTA and DTR on each network.

    Args:
        open_device: Opens the simulated GPU.
        networks: How many of the networks to take.
        ways: How many of the :data:`WAYS` to take.
        limits: Whether to look for least budgets and largest batches.
        say: Takes lines of progress.
    """
    with open_device() as device:
        assert isinstance(device, SimDevice)
        label, bandwidth = device.label, device.gpu.copy_bandwidth
    found = {}
    for network in NETWORKS[:networks]:
        each = found[network.name] = _compare(open_device, network, list(WAYS)[:ways], say)
        if limits:
            _limits(open_device, network, each, say)
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
            *([_saved(found, label), _largest(found, label)] if limits else ()),
            _verdict(found, bandwidth, label),
        ),
        notes=(
            f"images of {RESNET50.side} x {RESNET50.side} in batches of {RESNET50.batch_size}; "
            f"QA-Bert in batches of {QA_BERT.batch_size}, {LENGTH} tokens",
            f"a batch counts as trained below {SLOWER[1]:g} times plain training's time a sample; "
            f"both leave {' or '.join(RESERVES)} of the GPU free there, whichever gets further",
            "the original does not say how much slower its largest batches and least budgets are",
        ),
    )


def _compare(open_device: OpenDevice, network: Network, ways: Sequence[str], say: Say) -> Found:
    """Measure a network at equal budgets."""
    name = network.name
    plain = at(open_device, network, "baseline", None)
    with (
        open_device() as device,
        training(device, network, "baseline") as session,  # type: ignore[arg-type]
    ):
        session.take(batch_of(network))
        kept = kept_for_backward(session, batch_of(network))
    cells = {}
    for way in ways:
        planner, options = WAYS[way]
        for share in SHARES:
            budget = round(share * plain.peak_allocated)
            course = at(open_device, network, planner, budget, **{"reserve": 0, **options})
            cells[way, share] = course
            time = course.reason or f"{course.seconds / plain.seconds:.3f}"
            say(f"delta: {name} at {share:.0%}, {way}: {time}")
    return Found(plain, cells, kept)


def _limits(open_device: OpenDevice, network: Network, found: Found, say: Say) -> None:
    """Look for a network's least budgets and largest batches."""
    name, grain = network.name, GRAINS.get(network.name, 1)
    start = largest_batch(open_device, network, "baseline", grain, from_samples=network.batch_size)
    found.plain_largest = start
    say(f"delta: {name}: {start[0]} samples plainly")
    for planner in ("dtr", "delta"):
        for slower in SLOWER:
            found.saved[planner, slower] = least_share(
                open_device, network, planner, found.plain, slower
            )
        for slower in (0.0, SLOWER[1]):
            most = slower * start[1].seconds / start[0] if slower and start[1] else None
            known = found.largest.get((planner, 0.0))
            if most and known and known[1] and known[1].seconds < most * known[0]:
                found.largest[planner, slower] = known
                continue
            tried = [
                largest_batch(
                    open_device,
                    network,
                    planner,
                    grain,
                    from_samples=start[0],
                    most_seconds=most,
                    reserve=reserve,
                )
                for reserve in RESERVES
            ]
            found.largest[planner, slower] = max(tried, key=lambda each: each[0])
        samples = ", ".join(str(found.largest[planner, slower][0]) for slower in (SLOWER[1], 0.0))
        say(f"delta: {name}: {samples} samples with {planner}")


def _rows(found: Mapping[str, Found]) -> list[Row]:
    """Return published values beside ours; shares, though the unit reads percent."""
    rows = []
    for name, each in found.items():
        if name in LARGEST and each.plain_largest[0]:
            rows.append(
                Row(
                    series=name,
                    what="largest batch over plain training's",
                    unit="%",
                    expected=LARGEST[name],
                    obtained=each.largest["delta", SLOWER[1]][0] / each.plain_largest[0],
                )
            )
        for slower in SLOWER if each.saved else ():
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
    reached = Criterion(
        name="short of the memory saved and the largest batch, at most",
        value=max(short, default=0.0),
        tolerance=0.0,
    )
    return (
        Criterion(name="DELTA slower than DTR", value=behind, tolerance=0, is_count=True),
        *([reached] if short else ()),
        Criterion(
            name="base filter slower than lru or greedy", value=filters, tolerance=0, is_count=True
        ),
        Criterion(name="slower with prefetching", value=prefetch, tolerance=0, is_count=True),
        Criterion(name="director behind the better action alone, at most", value=director),
    )


def _slower(cells: Cells, share: float, ours: str, other: str) -> bool:
    """Return whether ``ours`` fails where ``other`` does not, or takes longer."""
    a, b = cells.get((ours, share)), cells.get((other, share))
    if a is None or b is None:
        return False
    return not b.failure and (bool(a.failure) or a.seconds > _SAME * b.seconds)


def _tables(name: str, found: Found, label: str) -> list[ResultTable]:
    plain = found.plain
    times, work = [], []
    for way in dict.fromkeys(way for way, _ in found.cells):
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
