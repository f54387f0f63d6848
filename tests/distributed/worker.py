"""What each process of a test does: ``worker.py FOLDER SCENARIO ...``, started for every rank.

A scenario returns figures, which go to ``FOLDER/told-RANK.json`` for the test to judge.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mimose

LENGTHS = (72, 96, 48, 84, 60, 96, 78, 54, 90, 66, 96, 48, 72, 84, 93, 63)
TOO_LONG = 190
"""Does not fit even with every block recomputed."""
SHELTERED = 4
RANK = os.environ.get("RANK", "0")
BATCH = 4
WORDS = 100


def build(dropout: float = 0.1) -> torch.nn.Module:
    """Return the same model in every process."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=256,
        hidden_dropout_prob=dropout,
    )
    return transformers.BertForMaskedLM(config)


def batch(step: int, rank: int, length: int | None = None) -> dict[str, torch.Tensor]:
    """Return a process's own batch, of its own length."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    length = length or LENGTHS[(step + 3 * rank) % len(LENGTHS)]
    words = torch.randint(1, WORDS, (BATCH, length), generator=generator)
    return {"input_ids": words, "labels": words.clone()}


def loss_of(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    """Run a forward pass with dropout that step and rank alone decide."""
    torch.manual_seed(1000 * rank + step)
    return model(**batch(step, rank)).loss


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor that may be sharded."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Reference:
    """One process's training on all processes' batches."""

    def __init__(self) -> None:
        self.model = build()

    def difference(self, trained: torch.nn.Module, before: list[torch.Tensor], steps: Any) -> float:
        """Return the greatest difference of a gradient, over the greatest gradient.

        Args:
            trained: The model whose gradients were computed together.
            before: Its parameters before the step.
            steps: The numbers of the batches of its step (several micro-batches' under
                accumulation).
        """
        with torch.no_grad():
            for own, other in zip(self.model.parameters(), before):
                own.copy_(other)
        self.model.zero_grad()
        ranks = range(dist.get_world_size())
        for step in steps:
            for rank in ranks:
                (loss_of(self.model, step, rank) / len(ranks)).backward()
        own = [p.grad for p in self.model.parameters()]
        together = [None if p.grad is None else whole(p.grad) for p in trained.parameters()]
        pairs = [(a, b) for a, b in zip(own, together) if a is not None and b is not None]
        assert len(pairs) > len(own) / 2
        return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-3)) for a, b in pairs)


def train(
    model: torch.nn.Module,
    inner: torch.nn.Module,
    handle: mimose.Handle,
    num_steps: int,
    *,
    window: int = 1,
    compare_every: int = 1,
) -> dict[str, Any]:
    """Train, and return plans, peaks and how gradients differ from a single process's."""
    rank = dist.get_rank()
    reference = Reference()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plans, worst, predicted, over = [], 0.0, [], 0
    for number in range(num_steps):
        steps = range(window * number, window * (number + 1))
        compare = number % compare_every == 0
        with handle.device.host_memory():  # What is compared is no part of the training.
            before = [whole(p.detach()).clone() for p in inner.parameters()] if compare else []
        for step in steps:
            last = step == steps[-1]
            quiet = getattr(model, "no_sync", contextlib.nullcontext)
            with contextlib.nullcontext() if last else quiet():
                loss_of(model, step, rank).backward()
        if compare:
            with handle.device.host_memory():
                worst = max(worst, reference.difference(inner, before, steps))
        optimizer.step()
        optimizer.zero_grad()
        record = handle.last_record
        assert record is not None
        plans.append(str(record.plan))
        budget = handle.budget_bytes or float("inf")
        over += record.peak_reserved_bytes > budget or record.outcome != "ok"
        if record.phase == "responsive" and record.predicted_peak_bytes is not None:
            predicted.append((record.predicted_peak_bytes, record.peak_allocated_bytes))
    return {"plans": plans, "difference": worst, "peaks": predicted, "violations": over}


def ddp(num_steps: int = 20, *, before: bool = False, **options: Any) -> dict[str, Any]:
    """Train under DDP with a plan of each process's own."""
    window, sync = options.pop("window", 1), options.pop("sync", None)
    compare_every = options.pop("compare_every", 1)
    inner = build()
    if before:
        handle = mimose.attach(inner, BUDGET, sheltered=SHELTERED, sync=sync)
        model = DistributedDataParallel(inner, **options)
    else:
        model = DistributedDataParallel(inner, **options)
        handle = mimose.attach(model, BUDGET, sheltered=SHELTERED, sync=sync)
    with handle:
        return train(model, inner, handle, num_steps, window=window, compare_every=compare_every)


def fsdp(num_steps: int = 10, *, reshard: bool = True, **options: Any) -> dict[str, Any]:
    """Train under FSDP2, each layer sharded and the model around them."""
    compare_every = options.pop("compare_every", 1)
    model: Any = build()
    parts = options.pop("parts", False)
    for layer in model.bert.encoder.layer:
        for part in [layer.attention, layer.output] if parts else [layer]:
            fully_shard(part, reshard_after_forward=reshard)
    fully_shard(model)
    planner = options.pop("planner", "mimose")
    given = {"sheltered": SHELTERED} if planner == "mimose" else {}
    with mimose.attach(model, options.pop("budget", BUDGET), planner, **given, **options) as handle:
        figures = train(model, model, handle, num_steps, compare_every=compare_every)
        figures["growing"] = sum(handle.planner.info.grad_bytes)
        return figures


BUDGET = 13 << 19
"""Less than some of the batches take without recomputation, more than all of them take with it."""


def sync() -> dict[str, Any]:
    """Train under DDP with one plan for all processes."""
    return ddp(12, sync="max")


def sync_infeasible() -> dict[str, Any]:
    """The batch of one process fits nowhere, and all agree that it does not."""
    model = DistributedDataParallel(build())
    rank = dist.get_rank()
    # Near its limit: `auto` leaves more room for doubt before it refuses what it has not seen.
    with mimose.attach(model, BUDGET, "mimose", sheltered=SHELTERED, sync="max") as handle:
        train(model, model.module, handle, 6, compare_every=100)
        try:
            model(**batch(0, rank, TOO_LONG if rank else 60))
        except mimose.Infeasible as error:
            return {"message": str(error), "least": error.least_budget_bytes}
    return {}


def infeasible() -> dict[str, Any]:
    """The batch of the last process fits nowhere, and the others do not know."""
    model = DistributedDataParallel(build())
    rank = dist.get_rank()
    # No `with`, and not detached: the error goes through whatever a program has around it.
    handle = mimose.attach(model, BUDGET, "mimose", sheltered=SHELTERED)
    train(model, model.module, handle, 6, compare_every=100)
    tell({"began": time.time()})
    last = rank == dist.get_world_size() - 1
    for _ in range(3):
        model(**batch(0, rank, TOO_LONG if last else 60)).loss.backward()
    return {"not reached": True}


def hangs() -> dict[str, Any]:
    """One process fails while the other hangs outside of any collective's reach."""
    rank = dist.get_rank()
    model = DistributedDataParallel(build())
    mimose.attach(model, BUDGET)
    tell({"began": time.time()})
    if rank:
        raise RuntimeError("the data set is gone")
    time.sleep(60)
    return {"not reached": True}


def out_of_memory() -> dict[str, Any]:
    """A pass that runs out of memory in every process is not run again in any."""
    model = DistributedDataParallel(build())
    calls = []

    def function() -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried.")

    with mimose.attach(model, BUDGET, sheltered=SHELTERED) as handle:
        try:
            handle.run(function)
        except torch.OutOfMemoryError as error:
            return {"calls": len(calls), "message": str(error)}
    return {}


def refusals() -> dict[str, Any]:
    """What is refused, and what it says."""
    said = {}

    def refuse(name: str, function: Callable[[], Any]) -> None:
        try:
            function()
        except ValueError as error:
            said[name] = str(error)

    from torch.distributed.fsdp import FullyShardedDataParallel

    model: Any = build()
    handle = mimose.attach(model, BUDGET)
    fully_shard(model)
    refuse("sharded since", lambda: model(**batch(0, 0)))
    handle.detach()
    parts: Any = build()
    fully_shard(parts.bert.encoder.layer[0].attention)
    refuse("parts", lambda: mimose.attach(parts, BUDGET))
    flat = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    refuse("flat", lambda: mimose.attach(flat, None))
    refuse("threads", lambda: mimose.attach(torch.nn.DataParallel(build()), None))
    refuse("sync", lambda: mimose.attach(build(), BUDGET, sync="min"))
    return said


def example(name: str) -> dict[str, Any]:
    """Train an example plainly, and with a plan of each process's own and of all."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    train_example = importlib.import_module(name).train
    folder = Path(sys.argv[1])
    return {
        "plain": train_example(folder, None),
        "own": train_example(folder),
        "one": train_example(folder, sync="max"),
    }


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "ddp": ddp,
    "ddp-before": lambda: ddp(before=True),
    "ddp-unused": lambda: ddp(find_unused_parameters=True),
    "ddp-static": lambda: ddp(static_graph=True),
    "ddp-views": lambda: ddp(gradient_as_bucket_view=True),
    "ddp-window": lambda: ddp(10, window=3),
    "ddp-long": lambda: ddp(200, compare_every=20),
    "fsdp": fsdp,
    "fsdp-kept": lambda: fsdp(reshard=False),
    "fsdp-parts": lambda: fsdp(parts=True, sync="max"),
    "fsdp-spans": lambda: fsdp(planner="full", every=2, budget=None),
    "fsdp-sync": lambda: fsdp(sync="max"),
    "fsdp-long": lambda: fsdp(200, compare_every=20),
    "sync": sync,
    "sync-infeasible": sync_infeasible,
    "infeasible": infeasible,
    "hangs": hangs,
    "out-of-memory": out_of_memory,
    "refusals": refusals,
    "with_ddp": lambda: example("with_ddp"),
    "with_fsdp2": lambda: example("with_fsdp2"),
}

_told: dict[str, Any] = {}


def tell(figures: dict[str, Any], scenario: str = "") -> None:
    """Write figures down, at once."""
    _told[scenario] = figures
    folder = Path(sys.argv[1])
    (folder / f"told-{dist.get_rank()}.json").write_text(json.dumps(_told))


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Join the others; whoever fails leaves without a word, as programs do."""
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def main() -> None:
    """Run the scenarios named on the command line, one after another."""
    # Taking the interpreter down is a second of work, and no part of what is timed.
    atexit.register(over)
    torch.set_num_threads(1)
    with group():
        for scenario in sys.argv[2:]:
            tell(SCENARIOS[scenario](), scenario)
    if any("fsdp" in scenario for scenario in sys.argv[2:]):
        # With or without mimose, PyTorch's caches of sharded tensors' operators hold the group
        # beyond its end, and so gloo's threads run on: beside the interpreter's end, which now and
        # then aborts.
        over()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def over() -> None:
    """Write down when the program was over."""
    (Path(sys.argv[1]) / f"over-{RANK}").write_text(str(time.time()))


if __name__ == "__main__":
    main()
