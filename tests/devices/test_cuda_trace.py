"""Reading the CUDA allocator's history, in the shape that PyTorch gives it."""

from __future__ import annotations

import pytest

from mimose.devices.cuda_trace import trace_of_cuda
from mimose.devices.trace import StepPeaks, replay
from mimose.units import MIB

A, B, C = 0x7F0000000000, 0x7F0010000000, 0x7F0020000000


def entry(action: str, addr: int = 0, size: int = 0, stream: int = 0) -> dict:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "frames": []}


def block(size: int, state: str) -> dict:
    return {"size": size, "requested_size": size, "state": state, "frames": []}


def segment(address: int, kind: str, blocks: list[dict]) -> dict:
    return {
        "device": 0,
        "address": address,
        "total_size": sum(b["size"] for b in blocks),
        "stream": 0,
        "segment_type": kind,
        "blocks": blocks,
    }


BEFORE = [entry("alloc", A, 4 * MIB)]
START = {
    "segments": [
        segment(A, "large", [block(4 * MIB, "active_allocated"), block(16 * MIB, "inactive")])
    ],
    "device_traces": [BEFORE],
}


def history(*entries: dict) -> dict:
    return {"segments": [], "device_traces": [[*BEFORE, entry("snapshot"), *entries]]}


def convert(*entries: dict, peaks: list[StepPeaks], limit: int | None = None):
    return trace_of_cuda(START, history(*entries), peaks, device="gpu", torch="2", limit=limit)


def test_steps_frees_and_an_emptied_cache() -> None:
    trace = convert(
        entry("alloc", A + 4 * MIB, 5_000_000),
        entry("segment_alloc", C, 30 * MIB),
        entry("alloc", C, 30 * MIB - 100),
        entry("free_requested", C, 30 * MIB - 100),
        entry("free_completed", C, 30 * MIB - 100),
        entry("snapshot"),
        entry("segment_free", C, 30 * MIB),
        entry("segment_alloc", B, 24 * MIB),
        entry("alloc", B, 24 * MIB),
        entry("free_completed", A, 4 * MIB),
        peaks=[
            StepPeaks(34 * MIB + 5_000_192, 50 * MIB, 0),
            StepPeaks(28 * MIB + 5_000_192, 50 * MIB, 0),
        ],
    )
    assert trace.segments == ((False, (4 * MIB, -16 * MIB)),)
    assert trace.addresses == (A, C, B)
    assert [s.events for s in trace.steps] == [
        (5_000_000, 30 * MIB - 100, -3),
        (0, 24 * MIB, -1),
    ]
    assert replay(trace) == [s.peaks for s in trace.steps]


def test_room_made_by_the_allocator_is_left_to_the_replay() -> None:
    trace = convert(
        entry("segment_alloc", B, 20 * MIB),
        entry("alloc", B, 20 * MIB),
        entry("free_completed", B, 20 * MIB),
        entry("segment_free", B, 20 * MIB),
        entry("segment_alloc", C, 30 * MIB),
        entry("alloc", C, 30 * MIB),
        entry("oom", 0, 40 * MIB),
        entry("free_completed", C, 30 * MIB),
        entry("snapshot"),
        peaks=[StepPeaks(34 * MIB, 50 * MIB, 2)],
        limit=50 * MIB,
    )
    assert trace.steps[0].events == (20 * MIB, -2, 30 * MIB, 40 * MIB, -3)
    assert replay(trace) == [s.peaks for s in trace.steps]


def test_what_is_not_modelled_is_refused() -> None:
    with pytest.raises(ValueError, match="several streams"):
        convert(entry("alloc", A + 4 * MIB, 512, stream=7), peaks=[])
    with pytest.raises(ValueError, match="expandable segments"):
        convert(entry("segment_map", B, 2 * MIB), peaks=[])
    with pytest.raises(ValueError, match="does not reach back"):
        trace_of_cuda(START, {"device_traces": [[entry("snapshot")]]}, [], device="", torch="")
    with pytest.raises(ValueError, match="1 steps were recorded, but peaks of 3"):
        convert(peaks=[StepPeaks(0, 0, 0)] * 3)
