"""Where DTR's time goes (Fig 5 of the paper), and what it costs where nothing has to be evicted.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025, Fig 5: an iteration of MC-Roberta under DTR with
budgets of its own of 4.2 to 5.5 GB, which really used 6.7 to 8 GB. There forward and backward take
422.7 ms in all four; cost maintaining is 26.0 % in the mean and planning 7.2 %, both of these 422.7
ms. The released scripts (github.com/buaa-hipo/mimose-transformers) let the prototype evict after
each operator, sample and ignore small tensors, and cap what PyTorch reserves: here that cap is what
each run really used. The overhead without a budget is of DTR's own published runs
(github.com/uwsampl/dtr-prototype, data_files/data-full.json): from 7 (Inception-v4) to 28 %
(ResNet-1202) at its largest budgets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mimose.devices.sim.device import SimDevice
from mimose.units import GIB, format_bytes
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.claims import Claim, ClaimUnit
from mimose_bench.experiments.figures.evicting import Course, mean, train
from mimose_bench.experiments.figures.fig5_cpu import CPU_STEPS, PARTS, SETTLE, measured_on_cpu
from mimose_bench.experiments.figures.result import (
    FACTORS,
    Criterion,
    Reproduction,
    ResultTable,
    Row,
    max_error,
    mean_error,
)
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent
from mimose_bench.experiments.figures.stars import sampled
from mimose_bench.experiments.figures.workloads import MC_ROBERTA
from mimose_bench.experiments.tasks.base import Scale

MS = FACTORS["ms"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the figure.

    Attributes:
        used: What the run really used, in GB.
        own: DTR's own budget, in GB.
        parts: Its parts in ms, in the order of :data:`PARTS`.
    """

    used: float
    own: float
    parts: tuple[float, float, float, float]

    @property
    def name(self) -> str:
        """What the bar is called here."""
        return f"{self.used:g} GB ({self.own:g})"

    @property
    def key(self) -> str:
        """What :attr:`mimose.devices.sim.gpus.Gpu.prices_calibrated_on` calls it."""
        return f"fig5-dtr-{self.used:g}gb"

    def share(self, part: str) -> float:
        """Return a part's share of forward and backward; ``part`` is one of :data:`PARTS`."""
        return self.parts[list(PARTS).index(part)] / self.parts[0]


BARS = (
    Bar(6.7, 4.2, (422.7, 183.6, 171.5, 50.3)),
    Bar(7.0, 4.5, (422.7, 65.5, 136.3, 36.3)),
    Bar(7.5, 5.0, (422.7, 55.4, 92.4, 22.5)),
    Bar(8.0, 5.5, (422.7, 67.5, 40.1, 12.3)),
)
PRINTED = {
    "cost maintaining": {"mean": 0.260, "most": 0.401},
    "planning": {"mean": 0.072, "most": 0.119},
}
"""What the text says of the four bars, as shares of forward and backward."""
LEAST_OVERHEAD, MOST_OVERHEAD = 0.07, 0.28

USED_TOLERANCE = 0.05
"""Relative error of the memory really used, as of the stars of Fig 10."""
SHARE_TOLERANCE = 0.10
"""Mean difference of a part's share of forward and backward."""
TOTAL_TOLERANCE = 0.15
"""Mean relative error of the whole over forward and backward, as of the clock."""

_SHORTEST = 32
STEPS, QUICK_STEPS = 60, 6
QUICK_CPU_STEPS = 2


def check(
    open_device: OpenDevice,
    *,
    steps: int = STEPS,
    cpu_steps: int = CPU_STEPS,
    cpu_scale: Scale = "small",
    say: Say = silent,
) -> Reproduction:
    """Measure the four bars and two lines of overhead.

    Args:
        open_device: Opens the simulated GPU.
        steps: Steps of each run.
        cpu_steps: Steps of each run that is measured on the cpu; 0 for none.
        cpu_scale: Scale of the task that is measured there.
        say: Takes lines of progress.
    """
    batches = [MC_ROBERTA.example_batch(length) for length in sampled(MC_ROBERTA, 0, steps)]
    with open_device() as device:
        assert isinstance(device, SimDevice)
        label, prices = device.label, device.gpu.host_unit_seconds
        own = device.gpu.prices_calibrated_on
    courses = []
    for bar in BARS:
        course = _under(open_device, bar, batches)
        courses.append(course)
        say(f"fig5: {bar.name}: {course.reason or f'{course.pass_seconds / MS:.1f} ms'}")
    longest = [MC_ROBERTA.example_batch(MC_ROBERTA.longest)] * 4
    alone = [_under(open_device, bar, longest) for bar in BARS]
    length = _length_of(open_device, BARS[0].parts[0] * MS)
    as_long = [MC_ROBERTA.example_batch(length)] * 4
    alike = [_under(open_device, bar, as_long) for bar in BARS]
    say(f"fig5: batches of {length} tokens take as long as the paper's iterations")
    readings = {"mean over the data's lengths": courses, f"{length} tokens": alike}
    plain = train(open_device, MC_ROBERTA, "baseline", None, batches)
    free = train(open_device, MC_ROBERTA, "dtr", None, batches)
    overlapped = train(open_device, MC_ROBERTA, "dtr", None, batches, synchronous=False)
    overhead = free.seconds / plain.seconds - 1
    say(f"fig5: no budget: {overhead:+.1%}")
    on_cpu = measured_on_cpu(cpu_steps, cpu_scale, say) if cpu_steps else ()
    rows = _rows(courses)
    return Reproduction(
        name="fig5",
        title="where DTR's time goes, MC-Roberta",
        source="Fig 5",
        device_label=label,
        rows=tuple(rows),
        criteria=_criteria(readings, rows, own),
        claims=(*_claims(readings, own, label), *_overhead_claims(overhead, label)),
        tables=(
            _shares("shares of forward and backward, the paper's and ours", courses, label),
            _shares(f"the same, batches of {length} tokens", alike, label),
            _longest(alone, label),
            _work(courses, alone, prices["metadata"], prices["evaluation"], label),
            ResultTable(
                title=f"overhead without a budget over plain training, {label}",
                headers=("DTR", "step", "forward and backward"),
                rows=tuple(
                    (
                        name,
                        f"{course.seconds / plain.seconds - 1:+.1%}",
                        f"{course.pass_seconds / plain.pass_seconds - 1:+.1%}",
                    )
                    for name, course in (
                        ("waiting after each operator, as the original", free),
                        ("without waiting", overlapped),
                    )
                ),
            ),
            *on_cpu,
        ),
        notes=(
            "the paper does not say which lengths its iterations had; they are read in two ways: "
            f"as the mean over lengths drawn from its Fig 3, {steps} steps less the first {SETTLE},"
            f" and as batches of {length} tokens, whose forward and backward take "
            f"{BARS[0].parts[0]} ms under DTR on this clock",
            "cost maintaining and planning are counted work times a price; the table of work says "
            "at which price the paper's figures would come out"
            + (
                f". The prices were calibrated on {', '.join(own)}, which judges neither"
                * bool(own)
            ),
        ),
    )


def _under(open_device: OpenDevice, bar: Bar, batches: Sequence[Batch]) -> Course:
    budget = round(bar.used * GIB)
    return train(
        open_device,
        MC_ROBERTA,
        "dtr",
        budget,
        batches,
        settle=SETTLE,
        trigger="after",
        reserve=budget - round(bar.own * GIB),
    )


def _rows(courses: Sequence[Course]) -> list[Row]:
    rows = []
    for bar, course in zip(BARS, courses):
        parts = course.parts() if course.records else {}
        for (what, ours), theirs in zip(PARTS.items(), bar.parts):
            if ours in parts:
                rows.append(
                    Row(
                        series=bar.name,
                        what=what,
                        unit="ms",
                        expected=theirs * MS,
                        obtained=parts[ours],
                    )
                )
        rows.append(
            Row(
                series=bar.name,
                what="really used",
                unit="GB",
                expected=bar.used * GIB,
                obtained=course.peak_reserved,
                note=course.failure,
            )
        )
    return rows


def _length_of(open_device: OpenDevice, seconds: float) -> int:
    """Return the padded length whose forward and backward under DTR take about that long.

    Without a budget; the waiting after each operator is part of it.
    """
    low, high = _SHORTEST, MC_ROBERTA.longest
    while low < high:
        middle = (low + high) // 2
        batches = [MC_ROBERTA.example_batch(middle)] * 3
        parts = train(open_device, MC_ROBERTA, "dtr", None, batches).parts()
        if parts["forward_backward_seconds"] < seconds:
            low = middle + 1
        else:
            high = middle
    return low


Readings = Mapping[str, Sequence[Course]]
"""Runs under the four budgets, by how the paper's iterations are read."""


def _criteria(
    readings: Readings, rows: Sequence[Row], own: Collection[str]
) -> tuple[Criterion, ...]:
    measured = []
    for reading, runs in readings.items():
        measured += [
            Criterion(
                name=f"{part} over forward and backward, mean difference, {reading}",
                value=mean([abs(share - bar.share(part)) for bar, share in shares]),
                tolerance=SHARE_TOLERANCE,
            )
            for part in list(PARTS)[1:]
            if (shares := _judged(part, runs, own if part != "recomputation" else ()))
        ]
        totals = [
            Row(
                series=bar.name,
                what="whole over forward and backward",
                unit="%",
                expected=sum(bar.parts) / bar.parts[0],
                obtained=1 + sum(_share(part, course) for part in list(PARTS)[1:]),
            )
            for bar, course in zip(BARS, runs)
            if course.records and bar.key not in own
        ]
        if totals:
            measured.append(
                Criterion(
                    name=f"whole over forward and backward, mean error, {reading}",
                    value=mean_error(totals),
                    tolerance=TOTAL_TOLERANCE,
                )
            )
    return (
        Criterion(
            name="runs that failed",
            value=sum(bool(course.failure) for runs in readings.values() for course in runs),
            tolerance=0,
            is_count=True,
        ),
        Criterion(
            name="memory really used, maximum error",
            value=max_error([row for row in rows if row.unit == "GB"]),
            tolerance=USED_TOLERANCE,
        ),
        *measured,
    )


def _share(part: str, course: Course) -> float:
    """Return a part's share of forward and backward."""
    parts = course.parts()
    return parts[PARTS[part]] / parts["forward_backward_seconds"]


def _judged(part: str, courses: Sequence[Course], own: Collection[str]) -> list[tuple[Bar, float]]:
    """Return the bars that a part is judged by, those that were run and not calibrated on."""
    return [
        (bar, _share(part, course))
        for bar, course in zip(BARS, courses)
        if course.records and bar.key not in own
    ]


def _claims(readings: Readings, own: Collection[str], label: str) -> list[Claim]:
    """Return what the paper's text says of the four bars, of those that judge."""
    claims = []
    for reading, courses in readings.items():
        for part, printed in PRINTED.items():
            shares = _judged(part, courses, own)
            theirs = [bar.share(part) for bar in BARS if bar.key not in own]
            ours = [share for _, share in shares]
            for name, of in (("mean", mean), ("most", max)):
                claims.append(
                    Claim(
                        text=f"{part} takes {of(theirs):.1%} of forward and backward "
                        f"({name} of budgets; {reading})",
                        source="Fig 5",
                        version="ipdps",
                        unit="%",
                        expected=of(theirs),
                        obtained=of(ours) if len(ours) == len(theirs) else None,
                        tolerance=SHARE_TOLERANCE,
                        device_label=label,
                        note=f"the paper prints {printed[name]:.1%} of all four budgets"
                        + (f", {', '.join(own)} among them" if own else ""),
                    )
                )
    return claims


def _overhead_claims(overhead: float, label: str) -> list[Claim]:
    what: ClaimUnit = "%"
    common = {"source": "dtr-prototype, data-full.json", "unit": what, "obtained": overhead}
    return [
        Claim(
            text=f"DTR without a budget costs {word} {expected:.0%}",
            version="other",
            expected=expected,
            bound=word,
            device_label=label,
            **common,  # type: ignore[arg-type]
        )
        for word, expected in (("at least", LEAST_OVERHEAD), ("at most", MOST_OVERHEAD))
    ]


def _shares(title: str, courses: Sequence[Course], label: str) -> ResultTable:
    rows = []
    for bar, course in zip(BARS, courses):
        if not course.records:
            rows.append((bar.name, course.failure, *["-"] * 7))
            continue
        parts = course.parts()
        whole = parts["forward_backward_seconds"]
        rows.append(
            (
                bar.name,
                *(
                    cell
                    for name, theirs in zip(list(PARTS.values())[1:], bar.parts[1:])
                    for cell in (f"{theirs / bar.parts[0]:.1%}", f"{parts[name] / whole:.1%}")
                ),
                f"{parts['num_evictions']:.1f}",
                f"{parts['num_rematerializations']:.1f}",
            )
        )
    return ResultTable(
        title=f"{title}, {label}",
        headers=(
            "really used (own)",
            "recomputation",
            "ours",
            "maintaining",
            "ours",
            "planning",
            "ours",
            "evictions a step",
            "run again",
        ),
        rows=tuple(rows),
    )


def _work(
    courses: Sequence[Course],
    alone: Sequence[Course],
    metadata: float,
    evaluation: float,
    label: str,
) -> ResultTable:
    """Return counted work, and at which prices it would take the paper's times."""
    rows = []
    for which, runs in (("mean", courses), ("longest", alone)):
        for bar, course in zip(BARS, runs):
            if not course.records:
                continue
            parts = course.parts()
            accesses = parts["maintenance_seconds"] / metadata
            evaluations = parts["search_seconds"] / evaluation
            rows.append(
                (
                    f"{bar.name}, {which}",
                    f"{accesses:.0f}",
                    f"{bar.parts[2] * MS / accesses * 1e6:.2f}" if accesses else "-",
                    f"{evaluations:.0f}",
                    f"{bar.parts[3] * MS / evaluations * 1e6:.2f}" if evaluations else "-",
                )
            )
    return ResultTable(
        title=(
            f"work counted in a step and the price in microseconds that would give the paper's "
            f"times; charged here: {metadata * 1e6:g} and {evaluation * 1e6:g}, {label}"
        ),
        headers=("really used (own), lengths", "metadata", "price", "evaluations", "price"),
        rows=tuple(rows),
    )


def _longest(courses: Sequence[Course], label: str) -> ResultTable:
    rows = []
    for bar, course in zip(BARS, courses):
        if not course.records:
            rows.append((bar.name, course.failure, *["-"] * 7))
            continue
        parts = course.parts()
        rows.append(
            (
                bar.name,
                *(f"{parts[name] / MS:.1f}" for name in PARTS.values()),
                f"{parts['recompute_seconds'] / parts['forward_backward_seconds']:.1%}",
                f"{bar.parts[1] / bar.parts[0]:.1%}",
                f"{parts['num_evictions']:.0f}",
                format_bytes(course.peak_reserved),
            )
        )
    return ResultTable(
        title=f"the longest batches alone ({MC_ROBERTA.longest} tokens), ms, {label}",
        headers=(
            "really used (own)",
            *PARTS,
            "recomputation, share",
            "the paper's",
            "evictions",
            "reserved",
        ),
        rows=tuple(rows),
    )
