"""Reads the history that PyTorch's CUDA allocator records into an allocator trace.

To record, call ``torch.cuda.memory._record_memory_history("all", context=None)``, empty the cache,
and call ``torch.cuda.memory._snapshot()`` before the first step and after every step: each call
leaves a mark among the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mimose.devices.trace import StepPeaks, Trace, pair

_Entry = Mapping[str, Any]


def trace_of_cuda(
    start: Mapping[str, Any],
    end: Mapping[str, Any],
    peaks: Sequence[StepPeaks],
    *,
    device: str,
    torch: str,
    index: int = 0,
    limit: int | None = None,
) -> Trace:
    """Return the trace of what PyTorch's CUDA allocator recorded.

    Args:
        start: The snapshot taken before the first step.
        end: The snapshot taken after the last one.
        peaks: What was measured in each step.
        device: The GPU's name.
        torch: PyTorch's version.
        index: The GPU's index.
        limit: Bound on reserved bytes while recording, or None.

    Raises:
        ValueError: If the history does not reach back to the first step, if it uses what is not
            modelled (several streams, expandable segments), or if it has not as many steps as
            ``peaks``.
    """
    before, entries = start["device_traces"][index], list(end["device_traces"][index])
    # The history is a ring buffer: once it is full, the oldest events are gone.
    if [_place(e) for e in entries[: len(before)]] != [_place(e) for e in before]:
        raise ValueError("the recorded history does not reach back to the first step: keep more")
    entries = entries[len(before) :]
    if entries and entries[0]["action"] == "snapshot":
        entries.pop(0)
    converter = _Converter([s for s in start["segments"] if s["device"] == index], limit)
    for entry in entries:
        converter.take(entry)
    steps = converter.finish()
    if len(steps) == len(peaks) + 1 and not steps[-1]:
        steps.pop()
    return Trace(
        device=device,
        torch=torch,
        limit=limit,
        foreign=0,
        segments=tuple(converter.segments),
        addresses=tuple(converter.addresses),
        steps=pair(steps, peaks),
    )


def _place(entry: _Entry) -> tuple[Any, ...]:
    return entry["action"], entry.get("addr"), entry["size"]


class _Converter:
    def __init__(self, segments: Sequence[Mapping[str, Any]], limit: int | None) -> None:
        self.limit = limit
        self.reserved = sum(s["total_size"] for s in segments)
        self.segments: list[tuple[bool, tuple[int, ...]]] = []
        self.addresses: list[int] = []
        self.steps: list[list[int]] = [[]]
        self.numbers: dict[int, int] = {}  # of live allocations, by address
        self.count = 0
        self.flushed = 0  # bytes handed back by the events just before this one
        self.streams = {s["stream"] for s in segments}
        for segment in sorted(segments, key=lambda s: int(s["address"])):
            self._put_in(segment)
        self._check()

    def take(self, entry: _Entry) -> None:
        action, size = entry["action"], entry["size"]
        if action in ("segment_map", "segment_unmap"):
            raise ValueError("expandable segments are not modelled: record without them")
        if action == "segment_free":
            self.flushed += size
            return
        if action == "segment_alloc":
            self._settle(self.reserved + size)
            self.reserved += size
            self.addresses.append(entry["addr"])
        elif action == "oom":
            self._settle(None)
            self.count += 1
            self.steps[-1].append(size)
        elif action == "alloc":
            self._settle(0)
            self.count += 1
            self.numbers[entry["addr"]] = self.count
            self.steps[-1].append(size)
            self.streams.add(entry["stream"])
            self._check()
        elif action == "free_completed":
            self._settle(0)
            self.steps[-1].append(-self.numbers.pop(entry["addr"]))
        elif action == "snapshot":
            self._settle(0)
            self.steps.append([])

    def finish(self) -> list[list[int]]:
        self._settle(0)
        return self.steps

    def _settle(self, wanted: int | None) -> None:
        """Say who emptied the cache before this event, if anyone did.

        The allocator did, to make room, if what was wanted (None: more than there is) is above
        the limit; the replay does so by itself. Otherwise the program did.
        """
        made_room = self.limit is not None and (wanted is None or wanted > self.limit)
        if self.flushed and not made_room:
            self.steps[-1].append(0)
        self.reserved -= self.flushed
        self.flushed = 0

    def _put_in(self, segment: Mapping[str, Any]) -> None:
        address = int(segment["address"])
        self.addresses.append(address)
        sizes = []
        for block in segment["blocks"]:
            live = block["state"] != "inactive"
            sizes.append(block["size"] if live else -block["size"])
            if live:
                self.count += 1
                self.numbers[address] = self.count
            address += block["size"]
        self.segments.append((segment["segment_type"] == "small", tuple(sizes)))

    def _check(self) -> None:
        if len(self.streams) > 1:
            raise ValueError("several streams are not modelled: record a run on one stream")
