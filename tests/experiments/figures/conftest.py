from itertools import count
from pathlib import Path

import pytest

from mimose_bench.experiments.reading import Run, to_frame
from mimose_bench.experiments.schema import SCHEMA_VERSION, STEPS, to_table


@pytest.fixture
def write_run():
    """Make a run, as it would be read back, from its steps' rows."""
    numbers = count()

    def write(
        planner,
        budget_bytes,
        rows,
        *,
        task="qa-bert",
        label="simulated v100-32gb",
        outcome="done",
        config=None,
        seed=42,
        **info,
    ):
        run = Run(
            Path(f"{task}-{planner}-{next(numbers):03}"),
            {
                "schema_version": SCHEMA_VERSION,
                "task": task,
                "planner": planner,
                "budget_bytes": budget_bytes,
                "device_label": label,
                "outcome": outcome,
                "seed": seed,
                "config": {"task": task, "planner": planner, "seed": seed, **(config or {})},
                **info,
            },
        )
        full = [{"rank": 0, "outcome": "ok", "batch_size": 4, **row} for row in rows]
        run.__dict__["steps"] = to_frame(to_table(full, STEPS))
        return run

    return write
