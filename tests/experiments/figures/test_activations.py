"""The formulas beside measured layers, at a size that takes a second."""

from dataclasses import replace

import pytest

from mimose_bench.experiments.figures import activations, text
from mimose_bench.experiments.figures.activations import ATTENTIONS, FULL, KEPT, SELECTIVE
from mimose_bench.experiments.figures.session import opened
from mimose_bench.experiments.tasks import TaskOptions, make_task


@pytest.fixture(scope="module")
def measured():
    found = []
    for name in ("sim:v100", "cpu"):
        for attention in ATTENTIONS:
            task = make_task(
                "qa-bert", TaskOptions(scale="tiny", data="synthetic", attention=attention)
            )
            with opened(name) as device:
                found.append(activations.measure(device, task, attention, 128))
    return found


def test_layers_keep_what_the_formulas_say(measured):
    for found in measured:
        for name in (KEPT, SELECTIVE, FULL):
            expected = found.formula(name)
            assert found.kept[name] == pytest.approx(expected, rel=0.02), (found.series, name)


def test_selective_saves_the_core_unless_a_fused_kernel_stores_none(measured):
    eager, sdpa, cpu, cpu_sdpa = measured
    assert eager.stores_scores
    assert not sdpa.stores_scores
    assert cpu_sdpa.stores_scores
    layer = eager.layer
    assert eager.share_saved == pytest.approx(layer.core_bytes / layer.kept_bytes, abs=0.01)
    # With one head the mask, which is kept for all heads together, is as large as the matrix.
    saved = 1 - layer.selective_bytes / layer.fused_bytes
    assert sdpa.share_saved == pytest.approx(saved, abs=0.01)
    assert cpu.share_saved == pytest.approx(cpu_sdpa.share_saved, abs=0.01)
    # Early stop leaves the second of the two products out.
    assert eager.core_flops == pytest.approx((layer.counted_flops_ratio - 1) / 2, rel=0.01)
    assert sdpa.core_flops <= (sdpa.layer.counted_flops_ratio - 1) * 1.01


def test_the_verdict(measured):
    result = activations.judge(measured, "simulated v100-32gb")
    missed = [criterion.name for criterion in result.criteria if not criterion.passed]
    # Of twelve heads, not one.
    assert missed == [
        "simulated v100-32gb: what selective still saves with fused kernels, of eager's"
    ]
    shown = text.describe(result)
    assert "no attention matrix stored" in shown
    assert "What selective recomputation saves" in shown
    assert "published as 74" in shown
    assert result.to_json()["rows"]


def test_a_layer_that_keeps_more_is_outside(measured):
    eager, *others = measured
    more = replace(eager, kept={**eager.kept, FULL: 1.05 * eager.kept[FULL]})
    criteria = activations.judge([more, *others], "simulated v100-32gb").criteria
    assert not criteria[1].passed
