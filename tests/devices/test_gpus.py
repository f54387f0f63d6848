"""GPU specifications: what comes along, what a file must hold, and what is said of a wrong one."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mimose.devices.sim import gpus
from mimose.devices.sim.gpus import (
    ALIASES,
    GPUS,
    WORK_UNITS,
    ClockError,
    from_json,
    load_gpu,
    save,
    to_json,
)
from mimose.records import Work

FOLDER = Path(gpus.__file__).parent / "gpus"
PAGE = Path(__file__).parents[2] / "docs/simulation.md"


@pytest.mark.parametrize("name", GPUS)
def test_what_comes_along_is_plausible(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    for precision, peak in gpu.peak_flops.items():
        # Cards with a boost clock above the maker's figure go a little beyond it.
        assert 0.3 * peak < gpu.attained_flops[precision] < 1.05 * peak
    assert 0.6 * gpu.peak_bandwidth < gpu.attained_bandwidth < gpu.peak_bandwidth
    assert gpu.pageable_copy_bandwidth < gpu.copy_bandwidth < gpu.attained_bandwidth / 5
    assert gpu.kernel_seconds < gpu.launch_seconds
    tensor_cores = [gpu.attained_flops[p] for p in ("fp16", "tf32") if p in gpu.attained_flops]
    assert all(rate > gpu.attained_flops["fp32"] for rate in tensor_cores)


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_says_where_it_comes_from(name):
    gpu = load_gpu(name)
    said = " ".join(gpu.sources)
    for field in (
        "memory_bytes",
        "context_bytes",
        "attained_flops",
        "attained_bandwidth",
        "copy_bandwidth",
        "pageable_copy_bandwidth",
        "kernel_seconds",
        "launch_seconds",
        "synchronize_seconds",
        "host_unit_seconds",
    ):
        assert field in said, field
    assert "peaks" in said
    assert "measured on cpu" in said


def test_each_has_one_file_and_each_file_a_name():
    assert sorted(f"{name}.json" for name in GPUS) == sorted(p.name for p in FOLDER.iterdir())


@pytest.mark.parametrize("name", GPUS)
def test_the_documented_figures_are_those_of_the_files(name):
    gpu = load_gpu(name)
    rates = gpu.attained_flops
    cells = [
        f"`{name}`",
        gpu.title,
        f"{gpu.memory_bytes / 2**30:.2f}",
        *(f"{rates[p] / 1e12:.1f}" if p in rates else "" for p in gpus.PRECISIONS),
        f"{gpu.attained_bandwidth / 1e9:.0f}",
        f"{gpu.copy_bandwidth / 1e9:.0f}",
    ]
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")


def test_other_names():
    assert load_gpu("v100") == load_gpu("V100-32GB")
    assert set(ALIASES.values()) <= set(GPUS)
    assert not set(ALIASES) & set(GPUS)


def test_each_unit_of_work_has_a_price():
    names = {field.name for field in dataclasses.fields(Work)}
    assert {unit if unit in ("metadata", "upkeep") else f"{unit}s" for unit in WORK_UNITS} == names


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v10", "did you mean 'v100'"),
        ("a100-80", "did you mean 'a100-80gb'"),
        ("zzz", "choose one of v100-16gb"),
        ("nowhere.json", "nowhere.json cannot be read"),
        ("no/where", "no/where cannot be read"),
    ],
)
def test_an_unknown_name(name, said):
    with pytest.raises(ValueError, match=said):
        load_gpu(name)


def test_precisions_without_a_rate_run_as_fp32():
    gpu = load_gpu("v100")
    assert gpu.matmul_flops("tf32") == gpu.matmul_flops("fp32") == gpu.attained_flops["fp32"]
    assert gpu.matmul_flops("fp16") == gpu.attained_flops["fp16"]


def test_a_specification_is_frozen():
    gpu = load_gpu("t4")
    with pytest.raises(TypeError):
        gpu.attained_flops["fp32"] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpu.num_sms = 1


def test_a_file_gives_back_what_was_saved(tmp_path):
    error = ClockError(mean=0.05, maximum=0.1, count=5, against="Table III")
    gpu = dataclasses.replace(
        load_gpu("t4"),
        name="mine",
        peak_flops={},
        peak_bandwidth=None,
        clock_error=error,
        calibrated_on=("one",),
        prices_calibrated_on=("two",),
    )
    path = tmp_path / "mine.json"
    save(gpu, path)
    assert load_gpu(path) == load_gpu(str(path)) == gpu
    assert load_gpu(path).clock_error == error


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_sms": None}, "num_sms must be a whole number"),
        ({"num_sms": True}, "num_sms must be a whole number"),
        ({"memory_bytes": 1.5}, "memory_bytes must be a whole number"),
        ({"context_bytes": 1 << 60}, "context_bytes must be less than memory_bytes"),
        ({"compute_capability": [7]}, "a major and a minor"),
        ({"compute_capability": 7}, "compute_capability must be a list"),
        ({"attained_flops": {"fp16": 1e12}}, "attained_flops must have a rate for fp32"),
        ({"attained_flops": {"fp32": -1.0}}, "attained_flops.fp32 must be a number of more than 0"),
        ({"attained_flops": {"fp32": 1e12, "fp99": 1e12}}, "'fp99', which is not one of fp32"),
        ({"attained_flops": 1.0}, "attained_flops must map"),
        ({"attained_bandwidth": 0}, "attained_bandwidth must be a number of more than 0"),
        ({"launch_seconds": "fast"}, "launch_seconds must be a number of at least 0"),
        ({"launch_seconds": float("nan")}, "launch_seconds must be a number"),
        ({"host_unit_seconds": {"lookup": 1e-6}}, "host_unit_seconds.estimate must be"),
        ({"calibration": " "}, "calibration must be text"),
        ({"sources": "none"}, "sources must be a list"),
        ({"sources": [1]}, "sources must be text"),
        ({"clock_error": {"mean": 0.1}}, "clock_error must be null or have"),
        (
            {"clock_error": {"mean": 0.2, "maximum": 0.1, "count": 1, "against": "x"}},
            "clock_error.maximum must be",
        ),
        ({"colour": "green"}, "colour is not one of its fields"),
    ],
)
def test_a_wrong_file_is_named_with_its_field(tmp_path, change, said):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**to_json(load_gpu("t4")), **change}))
    with pytest.raises(ValueError, match=said) as raised:
        load_gpu(path)
    assert str(path) in str(raised.value)
    assert "mimose-bench calibrate" in str(raised.value)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_file_of_something_else(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="not a JSON"):
        load_gpu(path)


def test_a_missing_field_is_named():
    data = to_json(load_gpu("t4"))
    del data["launch_seconds"]
    with pytest.raises(ValueError, match="launch_seconds is missing"):
        from_json(data)


def test_names_are_listed_without_torch():
    script = "import sys, mimose.devices.sim.gpus; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_changed_copy_needs_a_name_of_its_own(tmp_path):
    path = tmp_path / "mine.json"
    gpus.save(load_gpu("v100"), path)
    assert load_gpu(path) == load_gpu("v100")
    changed = dataclasses.replace(load_gpu("v100"), launch_seconds=1e-6)
    gpus.save(changed, path)
    with pytest.raises(ValueError, match="give it a name of its own"):
        load_gpu(path)
    gpus.save(dataclasses.replace(changed, name="mine", clock_error=None), path)
    assert load_gpu(path).name == "mine"
