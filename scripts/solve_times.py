"""Print how long each static planner takes to plan, in CPU seconds of this process.

    python scripts/solve_times.py [--blocks 12 24 48 100] [--planners rotor checkmate ...]

The steps are made up: blocks of uneven sizes and times, the same in every run. The budget lies at
0.3 and at 0.6 of the way from the least that Rotor can do with to what keeping everything takes.
Solvers with a time limit have the default one, and print how far from the optimum they still were.
"""

from __future__ import annotations

import argparse
import functools
import random
import time

from mimose.costs import Infeasible, Profile
from mimose.plan import Plan
from mimose.planners import PLANNERS, candidates, checkmate_lp, make_planner
from mimose.planners.static import Static, StepCosts
from mimose.records import ModelInfo, Situation

MB = 1 << 20
SHARES = (0.3, 0.6)


def step(count: int, budget: int | None = None, seed: int = 0) -> StepCosts:
    """Return the costs of a step of ``count`` uneven blocks, no two of them alike."""
    rng = random.Random(seed + count)

    def sizes(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(low * MB, high * MB, 512) for _ in range(count))

    output, activation = sizes(4, 24), sizes(40, 240)
    level = tuple(8 * MB + sum(output[:i]) for i in range(count))
    working = sizes(4, 60)
    forward = tuple(rng.uniform(0.002, 0.02) for _ in range(count))
    profile = Profile(
        activation=activation,
        output=output,
        level=level,
        kept_peak=tuple(a + o + w for a, o, w in zip(activation, output, working)),
        checkpoint_peak=tuple(o + 2 * w for o, w in zip(output, working)),
        backward_peak=tuple(
            x + a + 2 * o + w for x, a, o, w in zip(level, activation, output, working)
        ),
        forward_seconds=forward,
        first_peak=16 * MB,
        head_peak=level[-1] + output[-1] + 64 * MB,
        tail_peak=32 * MB,
        optimizer_peak=64 * MB,
        recompute_seconds=tuple(rng.uniform(0.7, 0.95) * f for f in forward),
        backward_seconds=tuple(rng.uniform(1.8, 2.2) * f for f in forward),
        outside_seconds=0.02,
    )
    info = ModelInfo(
        tuple(f"layer.{i}" for i in range(count)), exact=True, cuts=(), budget_bytes=budget
    )
    return StepCosts((1, 1), profile, info, Situation(256 * MB), 0)


@functools.cache
def budgets(count: int) -> tuple[int, ...]:
    """Return the budgets that ``count`` blocks are planned for."""
    costs = step(count)
    least = make_planner("rotor").solve(costs).least_budget_bytes
    most = costs.need_bytes(Plan.keep_all(count))
    return tuple(int(least + share * (most - least)) for share in SHARES)


def measure(name: str, count: int, budget: int) -> str:
    """Return a row of the table: one planner, one number of blocks, one budget."""
    # Nothing that was solved before for another planner or budget counts.
    candidates.forget()
    checkmate_lp.forget()
    costs = step(count, budget)
    wall, began = time.perf_counter(), time.process_time()
    try:
        found = make_planner(name).solve(costs)
    except Infeasible as error:
        seconds = time.process_time() - began
        return f"{seconds:9.2f} {time.perf_counter() - wall:9.2f}  {error}"
    seconds, waited = time.process_time() - began, time.perf_counter() - wall
    slower = found.predicted_seconds / found.baseline_seconds - 1
    gap = found.details.get("gap")
    beyond = "" if gap is None else f"  gap {gap:.4f} ({found.details['status']})"
    return f"{seconds:9.2f} {waited:9.2f}  {100 * slower:6.2f} %{beyond}"


def main() -> None:
    """Print the table, a row as soon as it is known."""
    static = [n for n, p in PLANNERS.items() if issubclass(p, Static) and n != "selective"]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[12, 24, 48, 100])
    parser.add_argument("--planners", nargs="+", default=static, choices=static)
    options = parser.parse_args()
    print(f"{'planner':17s} {'blocks':>6s} {'budget':>6s} {'cpu s':>9s} {'wall s':>9s}  slower")
    for count in options.blocks:
        for name in options.planners:
            for share, budget in zip(SHARES, budgets(count)):
                row = measure(name, count, budget)
                print(f"{name:17s} {count:6d} {share:6.1f} {row}", flush=True)


if __name__ == "__main__":
    main()
