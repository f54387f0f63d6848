import json
import sys
import types
from pathlib import Path

from mimose_bench.experiments import environment
from mimose_bench.experiments.files import jsonable


def test_the_environment_is_plain_data_and_names_no_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/mimose-bench", "run", "--steps", "3"])
    found = environment.capture()
    text = json.dumps(jsonable(found), allow_nan=False)
    assert found["command"] == ["mimose-bench", "run", "--steps", "3"]
    assert found["versions"]["torch"]
    assert found["num_threads"] >= 1
    assert found["memory_bytes"] > found["memory_available_bytes"] > 0
    assert str(Path.home()) not in text
    assert found["gpu"] is None


def test_no_commit_outside_a_checkout(tmp_path, monkeypatch):
    (tmp_path / "experiments").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "experiments/environment.py"))
    assert environment.git_commit() is None


def test_allocator_settings_are_kept(monkeypatch):
    for name in environment.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert environment.allocator_settings() == {}
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert environment.allocator_settings() == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


class FakeError(Exception):
    pass


def fake_nvml(**changes):
    """A driver with one GPU whose power reading is not supported."""

    def unsupported(handle):
        raise FakeError

    module = types.ModuleType("pynvml")
    facts = {
        "NVMLError": FakeError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"550.54",
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1000 * kind,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetPowerUsage": unsupported,
        "nvmlDeviceGetTemperature": lambda handle, kind: 41,
        "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=7),
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(used=123),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [],
    }
    module.__dict__.update(facts | changes)
    return module


def test_a_figure_that_nvml_does_not_give_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    figures = environment.nvml("abc")
    assert figures["driver"] == "550.54"
    assert figures["sm_clock_mhz"] == 1000
    assert figures["used_bytes"] == 123
    assert figures["power_watts"] is None
    assert figures["process_bytes"] is None


def test_without_a_driver_every_figure_is_none(monkeypatch):
    def absent():
        raise FakeError

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=absent))
    assert set(environment.nvml(None).values()) == {None}
