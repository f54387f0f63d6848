"""The columns of a run's tables and the rows that fill them.

``steps.parquet`` has a row an iteration, ``blocks.parquet`` a row a collected block and iteration.
Bytes are integers, times float seconds; a figure that does not exist is null, never a stand-in.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa

from mimose.eviction import COLUMNS as EVICTION_COLUMNS
from mimose.records import StepRecord
from mimose.report import num_remade

SCHEMA_VERSION = 7
"""Raised whenever a column or a key of ``run.json`` is added or changes its meaning.

2: ``weight`` in the steps, ``clock`` in ``run.json``; runs of version 1 have neither.
3: ``decoder_length`` and ``image_pixels`` in the steps.
4: ``model_flops`` and ``hardware_flops`` in the steps; ``solution``, ``profile``, ``flops`` and
``least_budget_bytes`` in ``run.json``.
5: ``num_rematerializations``, ``eviction_maintenance_seconds``, ``eviction_overhead_seconds`` and
``swap_wait_seconds`` in the steps; outcome ``thrashing`` of steps and runs.
6: ``num_remade`` in the steps.
7: ``remade_bytes`` and ``offloaded_bytes`` in the steps.
"""

RUN_OUTCOMES = ("running", "done", "oom", "infeasible", "thrashing", "interrupted", "failed")
"""How a run ended. ``running`` in a run that was killed; ``thrashing`` where a tensor-level policy
recomputed so much that the step was given up."""

STEPS = pa.schema(
    [
        ("rank", pa.int64()),
        ("step", pa.int64()),
        ("phase", pa.string()),
        ("input_size", pa.int64()),
        ("batch_size", pa.int64()),
        ("sequence_length", pa.int64()),
        ("plan", pa.string()),
        ("num_recomputed", pa.int64()),
        ("loss", pa.float64()),
        ("outcome", pa.string()),
        ("step_seconds", pa.float64()),
        ("forward_seconds", pa.float64()),
        ("backward_seconds", pa.float64()),
        ("optimizer_seconds", pa.float64()),
        ("collector_seconds", pa.float64()),
        ("estimator_seconds", pa.float64()),
        ("scheduler_seconds", pa.float64()),
        ("cache_hit", pa.bool_()),
        ("predicted_peak_bytes", pa.int64()),
        ("peak_allocated_bytes", pa.int64()),
        ("peak_reserved_bytes", pa.int64()),
        ("fragmentation_bytes", pa.int64()),
        ("num_alloc_retries", pa.int64()),
        ("num_evictions", pa.int64()),
        ("eviction_search_seconds", pa.float64()),
        ("recompute_seconds", pa.float64()),
        ("swapped_bytes", pa.int64()),
        ("wait_seconds", pa.float64()),
        ("weight", pa.float64()),
        ("decoder_length", pa.int64()),
        ("image_pixels", pa.int64()),
        ("model_flops", pa.int64()),
        ("hardware_flops", pa.int64()),
        ("num_rematerializations", pa.int64()),
        ("eviction_maintenance_seconds", pa.float64()),
        ("eviction_overhead_seconds", pa.float64()),
        ("swap_wait_seconds", pa.float64()),
        ("num_remade", pa.int64()),
        ("remade_bytes", pa.int64()),
        ("offloaded_bytes", pa.int64()),
    ]
)

BLOCKS = pa.schema(
    [
        ("step", pa.int64()),
        ("input_size", pa.int64()),
        ("block", pa.int64()),
        ("activation_bytes", pa.int64()),
        ("output_bytes", pa.int64()),
        ("forward_seconds", pa.float64()),
        ("valid", pa.bool_()),
    ]
)

Row = dict[str, Any]


def step_row(
    record: StepRecord | None,
    *,
    step: int,
    input_size: int,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    decoder_length: int | None = None,
    image_pixels: int | None = None,
    loss: float | None = None,
    wait_seconds: float | None = None,
    weight: float | None = None,
    let_go: tuple[int, int] | None = None,
    rank: int = 0,
) -> Row:
    """Return a row of ``steps.parquet``.

    Args:
        record: The finished step; None if the planner refused the batch before it started, which
            counts as out of memory. What only tensor-level policies know
            (:data:`mimose.eviction.COLUMNS`) is looked up in ``record.extra``; its seconds are in
            ``forward_seconds`` and ``backward_seconds``, too. Other planners evict 0 times, and
            have no such seconds.
        step: Number of the iteration, from 0.
        input_size: Padded tokens, or pixels, of the whole mini-batch.
        batch_size: Samples in the mini-batch; by default what the record says.
        sequence_length: Padded length of text, the encoder's where there is a decoder.
        decoder_length: Padded length of the decoder's text, where there is one.
        image_pixels: Padded height times width of an image.
        loss: The loss, or None if the step never got that far.
        wait_seconds: Time spent waiting for the batch, which ``step_seconds`` leaves out.
        weight: In a run over expected lengths the share of an epoch's batches that the step stands
            for, 0 for one that only prepares. Reserved bytes, which depend on the order of
            batches, are left out then.
        let_go: Bytes of single values that were made again, and of those in the host's memory
            meanwhile, as far as they are known.
        rank: The process's rank.
    """
    if batch_size is None and record is not None:
        batch_size = record.size[0]
    row: Row = {
        "rank": rank,
        "step": step,
        "input_size": input_size,
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "decoder_length": decoder_length,
        "image_pixels": image_pixels,
        "loss": loss,
        "outcome": "oom",
        "wait_seconds": wait_seconds,
        "weight": weight,
    }
    if record is None:
        return row
    row |= {name: getattr(record, name) for name in _SAME_NAME}
    if weight is not None:
        row["peak_reserved_bytes"] = None
    peak, reserved = row["peak_allocated_bytes"], row["peak_reserved_bytes"]
    evicted = {
        name: int(record.extra.get(name, 0))
        if pa.types.is_integer(STEPS.field(name).type)
        else record.extra.get(name)
        for name in EVICTION_COLUMNS
    }
    return row | {
        "plan": str(record.plan),
        "num_recomputed": record.plan.num_recomputed,
        "num_remade": num_remade(record.plan),
        "remade_bytes": None if let_go is None else let_go[0],
        "offloaded_bytes": None if let_go is None else let_go[1],
        "fragmentation_bytes": None if peak is None or reserved is None else reserved - peak,
        **evicted,
    }


_SAME_NAME = tuple(
    item.name
    for item in dataclasses.fields(StepRecord)
    if item.name in STEPS.names and item.name != "plan"
)


def block_rows(record: StepRecord, *, step: int, input_size: int) -> list[Row]:
    """Return the rows of ``blocks.parquet`` for a step; none unless the collector ran in it.

    ``valid`` says whether the paper's three-rule data filter keeps the sample: nothing checkpointed
    may have been the block itself, around it or within it.
    """
    if record.collected is None:
        return []
    return [
        {
            "step": step,
            "input_size": input_size,
            "block": sample.block,
            "activation_bytes": sample.activation_bytes,
            "output_bytes": sample.output_bytes,
            "forward_seconds": sample.forward_seconds,
            "valid": not (
                sample.checkpointed or sample.inside_checkpoint or sample.around_checkpoint
            ),
        }
        for sample in record.collected.blocks
    ]


def to_table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    """Return ``rows`` as a table; missing keys become null.

    Raises:
        ValueError: If a row has a key that the schema lacks or a value of another type.
    """
    for row in rows:
        unknown = row.keys() - set(schema.names)
        if unknown:
            raise ValueError(f"a row has no column called {', '.join(sorted(unknown))}")
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"a row does not fit the table: {error}") from error
