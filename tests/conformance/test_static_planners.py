"""Planners that plan once: nothing changes but memory and time, and both as predicted."""

import dataclasses
import gc
import statistics

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mimose.costs import Infeasible, predict_backward_flops
from mimose.devices import open_device
from mimose.planners import PLANNERS, make_planner
from mimose.planners.static import Static
from mimose_bench.experiments.bounds import measure_bounds
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.run import task_of

STATIC = [name for name, planner in PLANNERS.items() if issubclass(planner, Static)]
SOLVED = ("checkmate", "checkmate-lp")
"""Those whose programmes take most of the time."""
OPTIONS = {"checkmate": {"time_limit": 20}, "full": {"every": 2}}
STEPS = 3
ROUNDS = 3
WITHIN = 0.02


def batches_of(task, steps=STEPS):
    """Return the run's first batches, the largest there can be as the last of them."""
    return [*task.batches(steps - 1), task.example_batch(task.longest())]


def trained(trainer, batches):
    taken = list(trainer.steps(batches))
    assert [s.error for s in taken] == [None] * len(taken)
    with trainer.handle.device.host_memory():
        state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return taken, state


def flops_of(trainer, batch):
    """Return the FLOPs of one forward and backward pass."""
    handle = trainer.handle
    handle.device.enforce(None)  # Counting keeps tensors alive for longer.
    tensors = handle.device.put(batch.tensors)
    handle.begin(batch.size)
    with FlopCounterMode(display=False) as counter:
        trainer._gradients(tensors)
    trainer.optimizer.step()
    handle.end()
    trainer.optimizer.zero_grad(set_to_none=trainer.config.zero_grad == "free")
    return counter.get_total_flops()


def carry_out(lab, name, budget):
    """Train a few steps under a planner; return what is to be judged, or None if nothing fits."""
    gc.collect()  # The model before this one, which would count against the budget.
    trainer = lab.trainer(name, budget, enforce=True, **OPTIONS.get(name, {}))
    planner = trainer.handle.planner
    largest = lab.task.example_batch(lab.task.longest())
    try:
        solution = planner.take_profile(trainer.measure(largest))
    except Infeasible as refused:
        least = refused.least_budget_bytes
    else:
        least = None
    if least is not None:
        assert least > budget
        return None
    if solution.need_bytes > planner.costs.limit_bytes:
        # The least it can do leaves no margin for memory in pieces: steps may be repeated.
        return None
    taken, state = trained(trainer, batches_of(lab.task))
    record = taken[-1].record
    profile, costs = planner.costs.profile, planner.costs
    assert record.plan == solution.plan
    assert max(s.record.peak_reserved_bytes for s in taken) <= budget
    expected = (
        sum(profile.forward_flops)
        + profile.outside_flops
        + predict_backward_flops(profile, solution.plan, costs.info.cuts or ())
    )
    assert flops_of(trainer, largest) == expected
    return {
        "losses": [s.loss for s in taken],
        "state": state,
        "solution": solution,
        "peak": record.peak_allocated_bytes,
        "predicted": record.predicted_peak_bytes,
    }


@pytest.mark.parametrize(
    ("zero_grad", "share", "names"),
    [
        pytest.param("free", 0.35, [n for n in STATIC if n not in SOLVED], id="free-0.35-chains"),
        pytest.param("free", 0.35, SOLVED, id="free-0.35-solved", marks=pytest.mark.slow),
        pytest.param("keep", 0.7, STATIC, id="keep-0.7-all", marks=pytest.mark.slow),
    ],
)
def test_nothing_but_memory_changes(config, zero_grad, share, names, bounds, make_lab, report):
    from tests.conformance.conftest import make_deep

    config = dataclasses.replace(config, zero_grad=zero_grad)
    device = open_device("cpu", reset_peaks=True)
    lab = make_lab(device, make_deep(config), config)
    try:
        baseline = lab.trainer("baseline")
        taken, state = trained(baseline, batches_of(lab.task))
        lab.close()
        budget = bounds.budget_at(share)
        feasible = 0
        for name in names:
            found = carry_out(lab, name, budget)
            lab.close()
            if found is None:
                continue
            feasible += 1
            assert found["losses"] == [s.loss for s in taken], name
            assert all(torch.equal(found["state"][key], state[key]) for key in state), name
            off = found["predicted"] / found["peak"] - 1
            assert abs(off) <= WITHIN, name
            report(planner=name, zero_grad=zero_grad, share=share, off=off)
        assert feasible >= len(names) // 2
    finally:
        lab.close()
        device.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_on_the_small_bert_at_five_budgets(share, make_lab, report):
    config = RunConfig(task="qa-bert", scale="small", data="synthetic", device="cpu", threads=1)
    device = open_device("cpu", reset_peaks=True)
    lab = make_lab(device, task_of(config), config)
    try:
        budget = measure_bounds(config, lab.task, device).budget_at(share)
        taken, state = trained(lab.trainer("baseline"), batches_of(lab.task))
        lab.close()
        plans = {}
        for name in STATIC:
            found = carry_out(lab, name, budget)
            lab.close()
            if found is None:
                report(share=share, planner=name, feasible=False)
                continue
            assert found["losses"] == [s.loss for s in taken], name
            assert all(torch.equal(found["state"][key], state[key]) for key in state), name
            assert abs(found["predicted"] / found["peak"] - 1) <= WITHIN, name
            plans[name] = found
        times = rounds(lab, {n: f["solution"] for n, f in plans.items()})
        for name, found in plans.items():
            solution = found["solution"]
            report(
                share=share,
                planner=name,
                peak_off=found["predicted"] / found["peak"] - 1,
                time=times[name] / times["baseline"],
                predicted=solution.predicted_seconds / solution.baseline_seconds,
                solve_seconds=solution.solve_seconds,
                plan=solution.plan,
            )
    finally:
        lab.close()
        device.close()


def rounds(lab, solutions):
    """Return the median time of the passes under each plan and under none, taken in turns."""
    trainer = lab.trainer("baseline")
    handle = trainer.handle
    batch = lab.task.example_batch(lab.task.longest())
    seconds = {name: [] for name in ("baseline", *solutions)}
    for _ in range(ROUNDS + 1):
        for name in seconds:
            planner = make_planner("baseline" if name == "baseline" else "full")
            if name != "baseline":
                planner.solution = solutions[name]
            handle.planner = planner
            handle.rebind()
            record, _ = trainer.train(batch, lab.device.put(batch.tensors))
            seconds[name].append(record.forward_seconds + record.backward_seconds)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}
