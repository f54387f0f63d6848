"""Two processes on the CPU (gloo) that train together, each within its budget."""

from __future__ import annotations

import signal

import pytest

# Gradients summed in another order differ in their last bits.
EQUAL = 1e-4
EXACT = 0.01
"""A prediction is off by less than this share of the measured peak."""
GATHERED = 4 * (4 * 32 * 32 + 2 * 32 * 128 + 9 * 32 + 128) + 1024
"""Bytes of a layer's parameters, rounded up: gloo's thread lets go of what it has gathered for one
layer when it gets round to it, now and then only once the next layer has been gathered, too. In a
step that is learned from, this makes the predictions of later steps larger; in a later step, its
peak."""
SECONDS = 10
"""Within so many of one process's failure all have ended."""
FAILED = (1, -signal.SIGABRT)
"""How a process ends that has failed. With or without mimose, one of gloo's threads that is still
at work while the interpreter ends now and then aborts it, after all has been said."""
ABORTED = "terminate called without an active exception"


def last_words(process):
    return [line for line in process.errors.splitlines() if line != ABORTED][-1]


def check_training(ended, scenario, *, alike=False):
    plans = [process.told[scenario]["plans"] for process in ended]
    for process in ended:
        told = process.told[scenario]
        assert told["difference"] < EQUAL
        assert told["violations"] == 0
        assert len(set(told["plans"])) > 1, "plans change from step to step"
        assert told["peaks"]
        late = GATHERED if scenario.startswith("fsdp") else 0
        for predicted, peak in told["peaks"]:
            assert abs(peak - predicted) < EXACT * peak + late
    if alike:
        assert plans[0] == plans[1]
    else:
        assert plans[0] != plans[1]


def test_each_process_has_its_plan_or_all_have_one(launch):
    scenarios = ["ddp", "fsdp", "sync", "sync-infeasible", "out-of-memory", "refusals"]
    ended = launch(*scenarios)
    assert [process.status for process in ended] == [0, 0], ended[0].errors
    check_training(ended, "ddp")
    check_training(ended, "fsdp")
    check_training(ended, "sync", alike=True)

    # Of a sharded model each process has half of every gradient.
    growing = ended[0].told["fsdp"]["growing"]
    whole = 4 * 4 * (4 * 32 * 32 + 2 * 32 * 128 + 9 * 32 + 128)
    assert growing == pytest.approx(whole / 2, rel=0.01)

    infeasible = [process.told["sync-infeasible"] for process in ended]
    assert infeasible[0] == infeasible[1]
    assert infeasible[0]["message"].startswith("rank 1: a mini-batch of size 4 x 190 needs")

    for process in ended:
        told = process.told["out-of-memory"]
        assert told["calls"] == 1
        assert "not run again, since other processes" in told["message"]
        said = process.told["refusals"]
        assert "attach after sharding" in said["sharded since"]
        assert 'shard whole blocks, or attach with sync="max"' in said["parts"]
        assert "fully_shard instead" in said["flat"]
        assert "one process a GPU" in said["threads"]
        assert 'sync is None or "max"' in said["sync"]


def test_a_batch_that_fits_nowhere_ends_all_processes(launch):
    ended = launch("infeasible")
    message = "rank 1 ended by Infeasible: a mini-batch of size 4 x 190 needs"
    for process in ended:
        assert process.status in FAILED
        assert process.over - process.told[""]["began"] < SECONDS
        assert "not reached" not in process.told
    assert "Infeasible: a mini-batch of size 4 x 190 needs" in ended[1].errors
    assert last_words(ended[0]).startswith(f"mimose: {message}")


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_by_the_failure_of_another(launch):
    ended = launch("hangs")
    assert all(process.status in FAILED for process in ended)
    assert all(process.over - process.told[""]["began"] < SECONDS for process in ended)
    assert last_words(ended[0]) == "mimose: rank 1 ended by RuntimeError: the data set is gone"


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    ["ddp-before", "ddp-unused", "ddp-static", "ddp-views", "fsdp-kept"],
)
def test_every_way_to_wrap(launch, scenario):
    ended = launch(scenario)
    assert [process.status for process in ended] == [0, 0], ended[0].errors
    check_training(ended, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["ddp-window", "fsdp-sync", "fsdp-parts", "fsdp-spans"])
def test_accumulation_sync_and_regions(launch, scenario):
    ended = launch(scenario)
    assert [process.status for process in ended] == [0, 0], ended[0].errors
    for process in ended:
        assert process.told[scenario]["difference"] < EQUAL
        assert process.told[scenario]["violations"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["ddp-long", "fsdp-long"])
def test_200_steps(launch, scenario):
    ended = launch(scenario, timeout=280)
    assert [process.status for process in ended] == [0, 0], ended[0].errors
    check_training(ended, scenario)
    assert all(len(process.told[scenario]["plans"]) == 200 for process in ended)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with_ddp", "with_fsdp2"])
def test_an_example_trains_as_without(launch, name):
    ended = launch(name)
    assert [process.status for process in ended] == [0, 0], ended[0].errors
    for process in ended:
        told = process.told[name]
        assert len(told["plain"]) == 12
        assert told["own"] == pytest.approx(told["plain"], rel=1e-5)
        assert told["one"] == pytest.approx(told["plain"], rel=1e-5)
    assert ended[0].told[name]["plain"] != ended[1].told[name]["plain"]
