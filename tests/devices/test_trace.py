"""Traces: recorded, saved, read back and replayed to the same peaks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mimose.devices.allocator import AllocatorModel
from mimose.devices.cpu import CpuDevice
from mimose.devices.trace import StepPeaks, Trace, replay, trace_of_recording
from mimose.units import MIB

TRACES = sorted((Path(__file__).parents[1] / "traces").glob("*.json.gz"))


def record_training(limit: int | None) -> Trace:
    device = CpuDevice()
    try:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(3))
        )
        optimizer = torch.optim.AdamW(model.parameters())
        device.add_foreign(4096)
        fragment = [torch.empty(1000 * i) for i in range(1, 30)]
        del fragment[::2]
        device.enforce(limit)
        device.record()
        peaks = []
        for rows in (1000, 45000, 9000, 50000):
            device.begin_step()
            model(torch.randn(rows, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if rows == 1000:
                device.release_cache()
            step = device.end_step()
            peaks.append(StepPeaks(step.peak_allocated, step.peak_reserved, step.num_alloc_retries))
        events = device.recorded_events()
    finally:
        device.close()
    return trace_of_recording(events, peaks, device="cpu", torch=torch.__version__, limit=limit)


# 130 MiB leaves so little room that cached segments must be handed back in the last step.
@pytest.mark.parametrize("limit", [None, 130 * MIB])
def test_replay_of_a_recording_has_the_measured_peaks(limit: int | None, tmp_path) -> None:
    trace = record_training(limit)
    path = tmp_path / "trace.json.gz"
    trace.save(path)
    assert Trace.load(path) == trace
    assert replay(trace) == [step.peaks for step in trace.steps]
    assert len({step.peaks.peak_allocated for step in trace.steps}) == 4
    assert sum(step.peaks.num_alloc_retries for step in trace.steps) == (limit is not None)
    assert trace.foreign == 4096
    assert any(size < 0 for _, sizes in trace.segments for size in sizes)


def test_replay_notices_a_changed_trace() -> None:
    trace = record_training(None)
    first = trace.steps[0]
    largest = max(first.events)
    grown = tuple(e + MIB if e == largest else e for e in first.events)
    changed = Trace(
        trace.device, trace.torch, None, trace.foreign, trace.segments, (),
        (type(first)(grown, first.peaks), *trace.steps[1:]),
    )  # fmt: skip
    assert replay(changed)[0] != first.peaks


def test_out_of_memory_is_replayed() -> None:
    model = AllocatorModel(limit=20 * MIB)
    model.record()
    model.begin_step()
    kept = model.malloc(4 * MIB)
    assert model.malloc(30 * MIB) is None
    model.free(kept)
    model.malloc(6 * MIB)
    stats = model.stats()
    peaks = StepPeaks(stats.step_peak_allocated, stats.step_peak_reserved, 1)
    assert peaks == StepPeaks(6 * MIB, 20 * MIB, 1)
    trace = trace_of_recording(model.events(), [peaks], device="", torch="", limit=20 * MIB)
    assert trace.steps[0].events == (4 * MIB, 30 * MIB, -1, 6 * MIB)
    assert replay(trace) == [peaks]


def test_what_does_not_fit_together_is_refused(tmp_path) -> None:
    model = AllocatorModel()
    model.record()
    model.malloc(1)
    with pytest.raises(ValueError, match="before the first step"):
        trace_of_recording(model.events(), [], device="", torch="")
    model.record()
    model.begin_step()
    with pytest.raises(ValueError, match="1 steps were recorded, but peaks of 0"):
        trace_of_recording(model.events(), [], device="", torch="")
    for content in (b"", b"{}", b'{"version": 2}', b"[1]"):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(ValueError, match="not an allocator trace"):
            Trace.load(tmp_path / "bad.json")
    (tmp_path / "bad.json.gz").write_bytes(b"not compressed")
    with pytest.raises(ValueError, match="not an allocator trace"):
        Trace.load(tmp_path / "bad.json.gz")


@pytest.mark.skipif(not TRACES, reason="no trace of a real GPU has been recorded yet")
@pytest.mark.parametrize("path", TRACES or [None], ids=lambda p: p.name if p else "none")
def test_traces_of_real_gpus(path: Path) -> None:
    trace = Trace.load(path)
    assert replay(trace) == [step.peaks for step in trace.steps]
