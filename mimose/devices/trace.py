"""Allocator traces: every request of some training steps, and replaying them through the model.

A trace is JSON (``.json`` or ``.json.gz``)::

    {"version": 1, "device": "...", "torch": "...", "limit": null, "foreign": 0,
     "segments": [[small, [512, -2096640]], ...],
     "addresses": [...],
     "steps": [{"events": [1024, -1, 0, ...],
                "peak_allocated": N, "peak_reserved": N, "num_alloc_retries": N}, ...]}

``segments`` is the state at the start, by address: the pool (1: small) and the sizes of the blocks,
negative for free ones. In ``events`` a positive number requests that many bytes, a negative one
frees the allocation of that number, and 0 empties the cache; allocations are numbered from 1, first
the live blocks of ``segments``, then the requests (those that ran out of memory included).
``addresses`` says where segments lie, first those of ``segments`` and then those reserved later;
if empty, each lies above all earlier ones.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mimose.devices.allocator import AllocatorModel

VERSION = 1
_STEP_MARK = -(1 << 63)


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """What a step took, in bytes, and how often the cache was flushed to make room in it."""

    peak_allocated: int
    peak_reserved: int
    num_alloc_retries: int


@dataclass(frozen=True, slots=True)
class Step:
    """The events of one step, and what was measured in it."""

    events: tuple[int, ...]
    peaks: StepPeaks


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run. See the module's text for the encoding.

    Attributes:
        device: The device's name, for a reader.
        torch: PyTorch's version, for a reader.
        limit: Bound on reserved bytes during the whole trace, or None.
        foreign: Bytes from elsewhere that were counted.
        segments: The state at the start: for each segment by address whether it is of the small
            pool, and the sizes of its blocks.
        addresses: Where the segments lie, those reserved later included; may be empty.
        steps: The steps.
    """

    device: str
    torch: str
    limit: int | None
    foreign: int
    segments: tuple[tuple[bool, tuple[int, ...]], ...]
    addresses: tuple[int, ...]
    steps: tuple[Step, ...]

    def save(self, path: str | Path) -> None:
        """Write the trace, compressed if ``path`` ends in ``.gz``."""
        steps = [{"events": s.events, **dataclasses.asdict(s.peaks)} for s in self.steps]
        data = {
            "version": VERSION,
            "device": self.device,
            "torch": self.torch,
            "limit": self.limit,
            "foreign": self.foreign,
            "segments": [[int(small), sizes] for small, sizes in self.segments],
            "addresses": self.addresses,
            "steps": steps,
        }
        content = json.dumps(data, separators=(",", ":")).encode()
        if str(path).endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        Path(path).write_bytes(content)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace.

        Raises:
            ValueError: If the file is not one.
        """
        content = Path(path).read_bytes()
        try:
            if str(path).endswith(".gz"):
                content = gzip.decompress(content)
            data = json.loads(content)
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']}")
            return cls(
                device=data["device"],
                torch=data["torch"],
                limit=data["limit"],
                foreign=data["foreign"],
                segments=tuple((bool(small), tuple(sizes)) for small, sizes in data["segments"]),
                addresses=tuple(data["addresses"]),
                steps=tuple(
                    Step(
                        tuple(s["events"]),
                        StepPeaks(s["peak_allocated"], s["peak_reserved"], s["num_alloc_retries"]),
                    )
                    for s in data["steps"]
                ),
            )
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not an allocator trace (version {VERSION})") from error


def replay(trace: Trace) -> list[StepPeaks]:
    """Return what each step takes according to the allocator model."""
    model = AllocatorModel(trace.limit)
    for address in trace.addresses:
        model.add_address(address)
    model.add_foreign(trace.foreign)
    handles: list[int | None] = [None]  # allocations are numbered from 1
    for small, sizes in trace.segments:
        handles.extend(model.add_segment(small, sizes))
    peaks = []
    for step in trace.steps:
        before = model.stats().num_alloc_retries
        model.begin_step()
        for event in step.events:
            if event > 0:
                handles.append(model.malloc(event))
            elif event == 0:
                model.release_cache()
            elif (handle := handles[-event]) is not None:
                model.free(handle)
                handles[-event] = None
        after = model.stats()
        peaks.append(
            StepPeaks(
                after.step_peak_allocated,
                after.step_peak_reserved,
                after.num_alloc_retries - before,
            )
        )
    return peaks


def trace_of_recording(
    recorded: Sequence[int],
    peaks: Sequence[StepPeaks],
    *,
    device: str,
    torch: str,
    limit: int | None = None,
) -> Trace:
    """Return the trace of what the allocator model recorded.

    Args:
        recorded: What ``AllocatorModel.events`` or ``CpuDevice.recorded_events`` returned. Its
            steps begin at each ``begin_step``, so call that right after ``record``.
        peaks: What was measured in each step.
        device: The device's name.
        torch: PyTorch's version.
        limit: Bound on reserved bytes while recording, or None.

    Raises:
        ValueError: If there are not as many steps as peaks, or events before the first step.
    """
    numbers = iter(recorded)
    foreign = next(numbers)
    segments = []
    for small in numbers:
        if small == _STEP_MARK:
            break
        count = next(numbers)
        segments.append((bool(small), tuple(next(numbers) for _ in range(count))))
    steps: list[list[int]] = [[]]
    for number in numbers:
        if number == _STEP_MARK:
            steps.append([])
        else:
            steps[-1].append(number)
    if steps.pop(0):
        raise ValueError("events were recorded before the first step: begin it right after record")
    return Trace(device, torch, limit, foreign, tuple(segments), (), pair(steps, peaks))


def pair(steps: Sequence[Sequence[int]], peaks: Sequence[StepPeaks]) -> tuple[Step, ...]:
    """Return the steps with what was measured in each.

    Raises:
        ValueError: If there are not as many of one as of the other.
    """
    if len(steps) != len(peaks):
        raise ValueError(f"{len(steps)} steps were recorded, but peaks of {len(peaks)} are given")
    return tuple(Step(tuple(events), taken) for events, taken in zip(steps, peaks))
