"""What tracing blocks and making saved tensors again costs, beside the work itself.

    python scripts/remaking_times.py [--width N ...] [--steps N]

One layer of BERT on the device cpu, one thread. Per width: microseconds that one forward and
backward takes plainly, under ``torch.utils.checkpoint``, and with this library's hooks on what is
saved while nothing is dropped, what the hooks come to for one saved tensor, what looking at a call
takes (its signature), and milliseconds for one trace. With a small width next to nothing is
computed, and what remains is the interpreter's own time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from mimose.runtime.remaking.remaker import Looked, Remaker
from mimose.runtime.remaking.saving import Saving
from mimose.runtime.remaking.trace import Trace
from mimose.runtime.remaking.tracing import tracing


class Clock:
    """A device that only tells the time."""

    torch_device = torch.device("cpu")

    def now(self) -> float:
        """Return seconds."""
        return perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        """Return the difference."""
        return end - start


def layer(width: int) -> nn.Module:
    """Return a layer in training, dropout on."""
    config = BertConfig(
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        attn_implementation="eager",
    )
    return BertLayer(config).train()


def interleaved(steps: int, **ways: Callable[[], Any]) -> dict[str, float]:
    """Return the median microseconds of each way, all ways taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for step in range(steps + 10):
        for name, way in ways.items():
            start = perf_counter()
            way()
            if step >= 10:
                taken[name].append(perf_counter() - start)
    return {name: statistics.median(times) * 1e6 for name, times in taken.items()}


def traced(remaker: Remaker, wrapper: Any, x: torch.Tensor) -> tuple[Looked, Trace]:
    """Return a call of the layer, and its trace."""
    looked = remaker.look((0, 0), wrapper, (x,), {})
    assert looked is not None
    tracer = remaker.tracer(looked)
    with tracing(tracer):
        result = wrapper.inner(x)
    trace = tracer.finish(result)
    remaker.learn(looked, trace)
    return looked, trace


def measure(width: int, steps: int) -> tuple[float, ...]:
    """Return the figures of one width."""
    block = layer(width)
    x = torch.randn(2, 8, width, requires_grad=True)
    remaker = Remaker(Clock())  # type: ignore[arg-type]
    wrapper: Any = SimpleNamespace(
        module=block, inner=block, compiles=False, checkpoints=False, index=0, name="layer"
    )
    _, trace = traced(remaker, wrapper, x)

    def plain() -> None:
        block(x).sum().backward()

    def checkpointed() -> None:
        checkpoint(block, x, use_reentrant=False).sum().backward()

    def hooked() -> None:
        saving = Saving("layer")
        with saving.hooks():
            result = block(x)
        assert saving.matches(trace)
        del saving  # As it is when a block's call is over: backward lets go of tensors one by one.
        result.sum().backward()

    times = interleaved(
        steps,
        plain=plain,
        checkpointed=checkpointed,
        hooked=hooked,
        look=lambda: remaker.look((0, 0), wrapper, (x,), {}),
    )
    traces = interleaved(steps // 10, traced=lambda: traced(remaker, wrapper, x))
    per_tensor = (times["hooked"] - times["plain"]) / len(trace.packs)
    return (
        times["plain"],
        times["checkpointed"],
        times["hooked"],
        per_tensor,
        times["look"],
        traces["traced"] / 1e3,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    head = ("width", "plain us", "checkpoint us", "hooks us", "us/tensor", "look us", "trace ms")
    print("measured on cpu, one layer of BERT, forward and backward")
    print(" ".join(f"{name:>13}" for name in head))
    for width in options.width:
        figures = measure(width, options.steps)
        print(f"{width:13}", " ".join(f"{figure:13.1f}" for figure in figures))


if __name__ == "__main__":
    main()
