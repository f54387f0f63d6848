"""The Trainer, Accelerate and Lightning in two processes: trained, broken off and resumed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("adapters.py")
ADAPTERS = {
    "trainer": "accelerate",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "fabric": "lightning",
}


@pytest.fixture
def told(launch):
    """Return a function that runs scenarios and returns what the processes told of each."""

    def run(*scenarios, needs):
        if importlib.util.find_spec(needs) is None:
            pytest.skip(f"{needs} is not installed")
        ended = launch(*scenarios, worker=WORKER, timeout=280)
        assert [process.status for process in ended] == [0, 0], ended[0].errors
        return [[process.told[scenario] for process in ended] for scenario in scenarios]

    return run


def check_whole(processes, alike=False):
    for process in processes:
        plain, whole = process["plain"], process["whole"]
        assert len(plain["losses"]) == 10
        assert whole["losses"] == plain["losses"]
        assert whole["violations"] == 0
        assert any("recompute" in plan for plan in whole["plans"])
    one, other = (process["whole"] for process in processes)
    assert one["lengths"] != other["lengths"]
    assert (one["plans"] == other["plans"]) is alike


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_two_processes_train_as_without_and_go_on_where_they_stopped(told, adapter):
    (processes,) = told(adapter, needs=ADAPTERS[adapter])
    check_whole(processes)
    for process in processes:
        plain, first, rest = (process[name]["losses"] for name in ("plain", "first", "rest"))
        assert first == plain[:5]
        # The Trainer's checkpoint holds the losses of the first part, too.
        assert rest == plain[-len(rest) :]
        # Each goes on with what it had learned itself; Fabric has one state for all.
        whose = processes[0] if adapter == "fabric" else process
        assert process["rest"]["knew"][0] in whose["first"]["knew"][1:]
    one, other = (process["rest"]["knew"][0] for process in processes)
    assert (one == other) is (adapter == "fabric")


def test_what_one_process_saves_serves_all(told):
    ((first, second),) = told("accelerate-alone", needs="accelerate")
    assert first["rest"]["knew"][0] == second["rest"]["knew"][0]
    assert first["rest"]["knew"][0] in first["first"]["knew"][1:]
    assert second["rest"]["phases"][0] == "responsive"


def test_the_trainers_processes_can_have_one_plan(told):
    (processes,) = told("trainer-sync", needs="accelerate")
    check_whole(processes, alike=True)


def test_the_trainer_shards_with_fsdp2(told):
    (processes,) = told("trainer-fsdp", needs="accelerate")
    check_whole(processes)
