import pytest

from mimose_bench.experiments.formulas import GPT3, GPT3_LAYERS, Layer, best_num_checkpoints


def test_the_published_figures_of_gpt3():
    t = 8
    assert GPT3.sequence_parallel_bytes(t) == pytest.approx(359e6, rel=2e-3)
    assert GPT3.selective_sequence_parallel_bytes(t) == pytest.approx(107e6, rel=2e-3)
    assert GPT3.full_bytes == pytest.approx(50e6, rel=1e-2)
    assert GPT3_LAYERS * GPT3.sequence_parallel_bytes(t) == pytest.approx(34.4e9, rel=2e-3)
    assert GPT3.kept_bytes == pytest.approx(2.9e9, rel=2e-2)
    assert round(best_num_checkpoints(GPT3_LAYERS, GPT3.best_checkpoints_ratio)) == 74
    assert GPT3.best_checkpoints_ratio == 57
    assert GPT3.selective_flops_ratio - 1 == pytest.approx(0.027, abs=1e-3)
    assert 1 - GPT3.selective_bytes / GPT3.kept_bytes == pytest.approx(0.70, abs=5e-3)


def test_the_coefficients_are_those_printed():
    one = Layer(s=1, b=1, h=1, a=1)
    assert (one.linear_bytes, one.core_bytes, one.full_bytes) == (34, 5, 2)
    fp32 = Layer(s=1, b=1, h=1, a=1, width=4)
    assert (fp32.linear_bytes, fp32.core_bytes, fp32.full_bytes) == (66, 9, 4)
    cpu = Layer(s=1, b=1, h=1, a=1, width=4, mask=4)
    assert (cpu.linear_bytes, cpu.core_bytes) == (72, 12)


def test_tensor_parallelism_leaves_ten_whole():
    layer = Layer(s=64, b=2, h=32, a=4)
    t = 4
    core = 5 * layer.a * layer.s / layer.h
    assert layer.tensor_parallel_bytes(t) == layer.sbh * (10 + 24 / t + core / t)
    assert layer.selective_tensor_parallel_bytes(t) == layer.sbh * (10 + 24 / t)
    assert layer.sequence_parallel_bytes(t) == layer.sbh * (34 + core) / t
    assert layer.tensor_parallel_bytes(1) == layer.kept_bytes


def test_the_core_run_once_more_is_a_third_of_what_was_published():
    layer = Layer(s=128, b=2, h=1 << 16, a=4)
    assert 3 * (layer.counted_flops_ratio - 1) == pytest.approx(
        layer.selective_flops_ratio - 1, rel=1e-3
    )


@pytest.mark.parametrize("name", ["s", "b", "h", "a", "width", "mask"])
def test_figures_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        Layer(**{"s": 1, "b": 1, "h": 1, "a": 1} | {name: 0})
