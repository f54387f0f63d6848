"""The formulas beside measured layers, at a size that takes a second."""

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
    assert eager.share_saved == pytest.approx(
        eager.layer.core_bytes / eager.layer.kept_bytes, abs=0.01
    )
    assert sdpa.share_saved < 0.1 * eager.share_saved
    assert cpu.share_saved == pytest.approx(cpu_sdpa.share_saved, abs=0.01)
    assert eager.core_flops == pytest.approx(sdpa.core_flops / 2, rel=0.01)
    assert sdpa.core_flops <= (sdpa.layer.counted_flops_ratio - 1) * 1.01


def test_the_verdict(measured):
    result = activations.judge(measured, "simulated v100-32gb")
    assert result.passed
    shown = text.describe(result)
    assert "no attention matrix is stored" in shown
    assert "What selective recomputation saves" in shown
    assert "published as 74" in shown
    assert result.to_json()["rows"]


def test_a_layer_that_keeps_more_is_outside(measured):
    from dataclasses import replace

    eager, *others = measured
    more = replace(eager, kept={**eager.kept, FULL: 1.05 * eager.kept[FULL]})
    assert not activations.judge([more, *others], "simulated v100-32gb").passed
