"""What every test shares: one thread, no network, no cached data, figures without a screen."""

from __future__ import annotations

import os
from collections.abc import Callable

# Before any import that reads them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["MIMOSE_BENCH_CACHE"] = "off"  # tests neither read nor fill the user's

import pytest
import torch

from mimose.menu import BlockGraph, Operator, Traced

# Two threads on a busy two-core machine turn a tenth of a second into five.
torch.set_num_threads(1)


_LONG = ("test_cli.py", "test_docs.py", "test_checkmate.py", "test_scheduled.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first; skip tests that need a GPU where there is none, and say so."""
    # Side by side, a file that takes minutes and comes last keeps one process busy alone.
    items.sort(key=lambda item: item.path.name not in _LONG)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def _bert_block(batch: int, length: int, hidden: int = 768, heads: int = 12) -> Traced:
    """An encoder layer of BERT in single precision, attention written out.

    With U bytes of a hidden state and A of the scores it saves 15.5 U and 2.25 A, its output left
    out. Times are those of a device of 10 TFLOP/s and 800 GB/s, and 5 us an operator.
    """
    u, a = 4 * batch * length * hidden, 4 * batch * heads * length * length
    operators: list[Operator] = []
    sizes: list[int] = []
    seconds: list[float] = []

    def run(name: str, inputs: list[int], outputs: list[int], flops: float = 0.0) -> list[int]:
        made = list(range(len(sizes), len(sizes) + len(outputs)))
        sizes.extend(-(-x // 512) * 512 for x in outputs)
        operators.append(Operator(name, tuple(inputs), tuple(made), name != "mask"))
        moved = sum(sizes[v] for v in inputs) + sum(outputs)
        seconds.append(max(flops / 1e13, moved / 8e11) + 5e-6)
        return made

    linear = 2.0 * batch * length * hidden * hidden
    attention = 2.0 * batch * length * length * hidden
    row = 4 * batch * length
    (q,), (k,), (v,) = (run("linear", [], [u], linear) for _ in range(3))
    (scores,) = run("scores", [q, k], [a], attention)
    (probabilities,) = run("softmax", [scores], [a])
    (mask,) = run("mask", [], [a // 4])
    (dropped,) = run("dropout", [probabilities, mask], [a])
    (context,) = run("context", [dropped, v], [u], attention)
    (joined,) = run("clone", [context], [u])
    (projected,) = run("linear", [joined], [u], linear)
    (mask_1,) = run("mask", [], [u // 4])
    (hidden_1,) = run("dropout", [projected, mask_1], [u])
    (sum_1,) = run("add", [hidden_1], [u])
    normed, mean_1, deviation_1 = run("layer_norm", [sum_1], [u, row, row])
    (inner,) = run("linear", [normed], [4 * u], 4 * linear)
    (active,) = run("gelu", [inner], [4 * u])
    (outer,) = run("linear", [active], [u], 4 * linear)
    (mask_2,) = run("mask", [], [u // 4])
    (hidden_2,) = run("dropout", [outer, mask_2], [u])
    (sum_2,) = run("add", [hidden_2, normed], [u])
    output, mean_2, deviation_2 = run("layer_norm", [sum_2], [u, row, row])
    uses = [output, sum_2, mean_2, deviation_2, mask_2, active, inner, normed, sum_1, mean_1]
    uses += [deviation_1, mask_1, joined, dropped, v, mask, probabilities, q, k]
    graph = BlockGraph(tuple(operators), tuple(uses), frozenset([output]))
    return Traced(0, graph, tuple(sizes), tuple(seconds))


@pytest.fixture(scope="session")
def bert_block() -> Callable[..., Traced]:
    """``bert_block(batch, length, hidden=768, heads=12)``, see :func:`_bert_block`."""
    return _bert_block
