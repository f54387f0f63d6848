"""Microseconds that the tensor-level runtimes' book-keeping takes for one operator.

    python scripts/eviction_times.py [--operators N] [--live 10 100 1000]

A chain of operators of which each reads the last result and a parameter, on a backend without
data. ``kept``: nothing has to go, and results are released when there are as many as are to be
live. ``evicted``: results are never released and the budget holds as many, so that each operator
evicts one. ``and back``: the backward pass of that, reading the chain's results last to first, so
that evicted ones are computed again. Work per operator that ran, the second runs included.
"""

from __future__ import annotations

import argparse
from collections import deque
from time import process_time

from mimose.runtime.eviction.engine import Engine, NoRoom, Thrashing
from mimose.runtime.eviction.heuristics import HEURISTICS
from mimose.runtime.eviction.player import Machine


def forward(engine, machine, count, live, released):
    window, made = deque([engine.constant(0)]), []
    parameter = engine.constant(0)
    for _ in range(count):
        parents = [window[-1], parameter]
        engine.request(parents)
        engine.make_room(1)
        machine.run(1, 1)
        result = engine.complete(parents, [(1, None)], 1).outputs[0]
        made.append(result)
        window.append(result)
        if len(window) > live:
            oldest = window.popleft()
            if released:
                engine.release(oldest)
    return made


def backward(engine, machine, made):
    gradient = None
    for result in reversed(made):
        parents = [result] if gradient is None else [result, gradient]
        engine.request(parents)
        engine.make_room(1)
        machine.run(1, 1)
        new = engine.complete(parents, [(1, None)], 1).outputs[0]
        engine.release(result)
        if gradient is not None:
            engine.release(gradient)
        gradient = new


def times(name, sampling, count, live):
    """Return microseconds an operator: kept, evicted, and back."""
    found = []
    for budget in (None, live):
        machine = Machine()
        policy = HEURISTICS[name](sampling=sampling)
        engine = Engine(machine, policy, budget, thrash_limit=20)
        start = process_time()
        made = forward(engine, machine, count, live, released=budget is None)
        stats = engine.stats
        done = count + stats.num_rematerializations
        found.append((process_time() - start) / done * 1e6)
    start = process_time()
    try:
        backward(engine, machine, made)
    except (NoRoom, Thrashing) as failure:
        return [*found, type(failure).__name__]
    done = stats.num_operators + stats.num_rematerializations - done
    return [*found, (process_time() - start) / done * 1e6]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, default=2000, help="length of the chain")
    parser.add_argument("--live", type=int, nargs="+", default=[10, 100, 1000])
    options = parser.parse_args()
    print(f"{'microseconds an operator':24}{'live':>6}{'kept':>10}{'evicted':>10}{'and back':>12}")
    for name in HEURISTICS:
        for sampling in (False, True) if name != "random" else (False,):
            for live in options.live:
                row = times(name, sampling, options.operators, live)
                cells = [f"{x:.1f}" if isinstance(x, float) else x for x in row]
                label = f"{name}{', sampled' if sampling else ''}"
                print(f"{label:24}{live:>6}{cells[0]:>10}{cells[1]:>10}{cells[2]:>12}", flush=True)


if __name__ == "__main__":
    main()
