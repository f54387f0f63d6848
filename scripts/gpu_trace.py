"""Record what the CUDA allocator does in ten qa-bert steps under three planners.

Writes NAME.json.gz (an allocator trace, see mimose/devices/trace.py) for each planner and
block-times.json (forward seconds of each block by size, from the collector) into the folder given.
Copy the traces to tests/traces/: a test replays them through the allocator model from then on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from mimose.devices.cuda import CudaDevice
from mimose.devices.cuda_trace import trace_of_cuda
from mimose.devices.trace import StepPeaks
from mimose.handle import attach
from mimose.units import format_bytes, parse_bytes
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.run import task_of

STEPS = 10
EVENTS = 2_000_000


def trace(planner: str, budget: int | None, scale: str, out: Path) -> list[dict[str, object]]:
    """Trace one planner; return its collected block times."""
    options = {"sheltered": 5} if planner == "mimose" else {}
    config = RunConfig(planner=planner, budget=budget, device="cuda", scale=scale, **options)
    device = CudaDevice(reset_peaks=True)
    task = task_of(config)
    torch.manual_seed(config.seed)
    model = task.build_model()
    device.adopt(model)
    times: list[dict[str, object]] = []
    peaks: list[StepPeaks] = []
    with attach(
        model, budget, planner, device=device, enforce=budget is not None, **config.options()
    ) as handle:
        trainer = Trainer(task, model, handle, config)
        device.release_cache()
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=EVENTS)
        try:
            start = torch.cuda.memory._snapshot()
            for batch in task.batches(STEPS, context=device.host_memory):
                device.begin_step()
                tensors = device.put(batch.tensors)
                record, _ = trainer.train(batch, tensors)
                del tensors
                end = torch.cuda.memory._snapshot()
                assert record is not None
                assert record.peak_allocated_bytes is not None
                assert record.peak_reserved_bytes is not None
                peaks.append(
                    StepPeaks(
                        record.peak_allocated_bytes,
                        record.peak_reserved_bytes,
                        record.num_alloc_retries,
                    )
                )
                for sample in record.collected.blocks if record.collected else ():
                    times.append(
                        {
                            "size": list(record.size),
                            "block": sample.block,
                            "forward_seconds": sample.forward_seconds,
                            "activation_bytes": sample.activation_bytes,
                        }
                    )
        finally:
            torch.cuda.memory._record_memory_history(None)
    name = torch.cuda.get_device_name()
    found = trace_of_cuda(
        start, end, peaks, device=name, torch=torch.__version__, index=0, limit=budget
    )
    path = out / f"qa-bert-{scale}-{planner}-{name.lower().replace(' ', '-')}.json.gz"
    found.save(path)
    peak = max(p.peak_reserved for p in peaks)
    print(f"{path.name}: {STEPS} steps, peak reserved {format_bytes(peak)}")
    device.close()
    return times


def main() -> None:
    """Trace baseline, full and mimose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the traces")
    parser.add_argument("--budget", default="6GB", help="budget of full and mimose")
    parser.add_argument("--scale", default="full", help="scale of the task")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    budget = parse_bytes(arguments.budget)
    trace("baseline", None, arguments.scale, arguments.out)
    trace("full", budget, arguments.scale, arguments.out)
    times = trace("mimose", budget, arguments.scale, arguments.out)
    (arguments.out / "block-times.json").write_text(json.dumps(times))


if __name__ == "__main__":
    main()
