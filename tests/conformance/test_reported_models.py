"""Cases that people reported of models too large for a test: simulated, as docs/cases.md says."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import mimose
from mimose.devices import open_device
from mimose.records import StepRecord

pytestmark = pytest.mark.slow

GIB = 1 << 30
CASES = Path(__file__).resolve().parents[2] / "docs/cases.md"
Batch = dict[str, torch.Tensor]


def train(
    gpu: str,
    build: Callable[[], Any],
    batches: Iterable[Batch],
    planner: str = "baseline",
    budget: str | None = None,
) -> list[StepRecord]:
    """Train on a simulated GPU, which has no more memory than the real one; return the steps."""
    device = open_device(f"sim:{gpu}")
    try:
        model = device.build(build)
        device.adopt(model.train())
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        records = []
        with mimose.attach(model, budget, planner, device=device, enforce=True) as handle:
            for batch in batches:
                tensors = device.put(batch)
                model(**tensors).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                del tensors
                records.append(handle.last_record)
        return records
    finally:
        device.close()


def reserved(records: list[StepRecord]) -> str:
    """Return the most bytes that were reserved, as the table writes them."""
    return f"{max(r.peak_reserved_bytes for r in records) / GIB:.1f} GiB"


def row(issue: str) -> str:
    (found,) = [x for x in CASES.read_text(encoding="utf-8").splitlines() if issue in x]
    return found


def answering(rows: int, length: int) -> Batch:
    place = torch.zeros(rows, dtype=torch.long)
    words = torch.full((rows, length), 7)
    return {"input_ids": words, "start_positions": place, "end_positions": place}


def test_padding_to_the_longest_of_a_batch_or_of_all():
    """Shorter batches need less, and the allocator keeps segments for each of their lengths."""

    def build() -> Any:
        return transformers.BertForQuestionAnswering(
            transformers.BertConfig(attn_implementation="eager")
        )

    rows, most = 24, 384
    drawn = random.Random(0)
    lengths = [min(most, 20 + int(drawn.lognormvariate(5, 0.5))) for _ in range(30)]
    lengths[20] = most
    static = train("h200", build, [answering(rows, most)] * 3)
    dynamic = train("h200", build, [answering(rows, n) for n in lengths])
    planned = train("v100-16gb", build, [answering(rows, n) for n in lengths], "mimose", "14GB")
    needs, takes, keeps = map(reserved, (static, dynamic, planned))
    peaks = [max(r.peak_allocated_bytes for r in each) for each in (static, dynamic)]
    assert peaks[1] <= 1.01 * peaks[0]
    assert float(takes.split()[0]) > 16 > 14 >= float(keeps.split()[0])
    assert [r.outcome for r in planned] == ["ok"] * len(lengths)
    assert sum(r.plan.num_recomputed > 0 for r in planned[10:]) < len(planned[10:]) / 2
    for figure in (needs, takes, keeps):
        assert figure in row("dmlc/gluon-nlp#590")


def test_xlnet_large_on_32_gb():
    def build() -> Any:
        large = transformers.XLNetConfig(d_model=1024, n_layer=24, n_head=16, d_inner=4096)
        return transformers.XLNetForQuestionAnswering(large)

    batches = [answering(8, 512)] * 3
    for planner in ("baseline", "full"):
        assert reserved(train("v100-32gb", build, batches, planner)) in row("zihangdai/xlnet#101")


def test_four_choices_of_512_words():
    def build() -> Any:
        config = transformers.RobertaConfig(
            vocab_size=50265, max_position_embeddings=514, attn_implementation="eager"
        )
        return transformers.RobertaForMultipleChoice(config)

    words = torch.full((16, 4, 512), 7)
    batches = [{"input_ids": words, "labels": torch.zeros(16, dtype=torch.long)}] * 3
    with pytest.raises(torch.OutOfMemoryError):
        train("v100-32gb", build, batches)
    assert reserved(train("h200", build, batches)) in row("huggingface/optimum-neuron#15")
    most = train("v100-16gb", build, batches, "full")
    assert reserved(most) in row("huggingface/optimum-neuron#15")
