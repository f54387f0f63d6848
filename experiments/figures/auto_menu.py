"""What one BERT block saves for backward, and the price of making each of it again.

The block is traced on the simulated GPU at full size. Recomputing the whole block has one price a
byte; inside it the prices lie far apart, which is what planner auto lives on.
"""

from __future__ import annotations

from mimose.menu import Traced, cost_of
from mimose.planners.auto import Auto
from mimose.units import GIB, MIB
from mimose_bench.experiments.figures.auto import SOURCE
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import Curve, Reproduction, ResultTable
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent, training
from mimose_bench.experiments.figures.workloads import QA_BERT
from mimose_bench.experiments.menus import BlockMenu, menus_of
from mimose_bench.experiments.value_names import in_words

LENGTH = 512
BLOCK = 5
BUDGET = 8 * GIB
APART = 10.0
"""Prices a byte are to be so many times apart."""
STAYS = "none"
"""Unit of the price of what cannot be made again."""


def check(open_device: OpenDevice, *, length: int = LENGTH, say: Say = silent) -> Reproduction:
    """Trace QA-Bert's blocks.

    Args:
        open_device: Opens the simulated GPU.
        length: The padded length.
        say: Takes lines of progress.
    """
    say(f"auto-menu: tracing QA-Bert at length {length}")
    with open_device() as device:
        label = device.label
        tried_lengths = (length, length // 2, length // 4, 3 * length // 4, length)
        with training(device, QA_BERT, "auto", BUDGET, sheltered=len(tried_lengths)) as session:
            for tried in tried_lengths:
                record = session.step(tried)
            assert record.collected is not None, "every step of these is sheltered"
            block = next(t for t in record.collected.traced if t.block == BLOCK)
            planner = session.handle.planner
            assert isinstance(planner, Auto)
            size = QA_BERT.example_batch(length).size
            forecast = planner.forecast(size, record.situation)
    assert forecast is not None, "five steps have taught it"
    (menu,) = (m for m in menus_of(size, forecast) if BLOCK in m.blocks)
    return judge(block, menu, label)


def judge(traced: Traced, menu: BlockMenu, device_label: str) -> Reproduction:
    """Return prices by value, and how far apart they are.

    Args:
        traced: The block.
        menu: Its menu at the same size.
        device_label: Where it was traced.
    """
    values = _values(traced)
    per_byte = [s / b for _, b, s in values if s is not None]
    whole = menu.forward_seconds / menu.saved_bytes
    return Reproduction(
        name="auto-menu",
        title="bytes and price of what a BERT block saves for backward",
        source=SOURCE,
        device_label=device_label,
        rows=(),
        claims=(
            Claim(
                text="inside a block the dearest byte costs at least ten times the cheapest",
                source=SOURCE,
                version="other",
                unit="x",
                expected=APART,
                obtained=max(per_byte) / min(per_byte),
                bound="at least",
                device_label=device_label,
            ),
            Claim(
                text="the cheapest byte inside a block costs at most a tenth of one of the whole",
                source=SOURCE,
                version="other",
                unit="%",
                expected=1 / APART,
                obtained=min(per_byte) / whole,
                bound="at most",
                device_label=device_label,
            ),
        ),
        tables=(
            ResultTable(
                title=f"QA-Bert, {menu.size[0]} x {menu.size[1]} tokens, one block, {device_label}",
                headers=("saved value", "MiB", "makes again in (ms)", "us a MiB"),
                rows=tuple(_row(name, size, seconds) for name, size, seconds in values),
            ),
            ResultTable(
                title=f"its menu, {device_label}",
                headers=("frees (MiB)", "takes (ms)", "% of the block's forward", "lets go of"),
                rows=tuple(
                    (
                        f"{e.freed_bytes / MIB:.0f}",
                        f"{1e3 * e.seconds:.2f}",
                        f"{100 * e.share:.1f}",
                        ", ".join(e.drops),
                    )
                    for e in menu.entries
                ),
            ),
        ),
        curves=tuple(
            Curve(
                name=name,
                x_unit="bytes",
                y_unit=STAYS if seconds is None else "s",
                x=(float(size),),
                y=(0.0 if seconds is None else seconds,),
            )
            for name, size, seconds in values
        ),
        notes=(
            f"Values below 1 MiB are left out. {menu.saved_bytes / MIB:.0f} MiB are kept in all; "
            f"the block's forward takes {1e3 * menu.forward_seconds:.1f} ms.",
            "A price is that of the value alone, everything else being kept.",
        ),
    )


def _values(traced: Traced) -> list[tuple[str, int, float | None]]:
    """Return name, bytes and price of what is saved, in the order in which it is made."""
    graph, names = traced.graph, in_words(traced.graph)
    found = []
    for value in sorted(graph.saved - graph.fixed):
        if traced.bytes[value] < MIB:
            continue
        price = None
        if graph.can_drop((value,)):
            price = cost_of(graph, (value,), traced.bytes, traced.seconds).seconds
        found.append((names[value], traced.bytes[value], price))
    return found


def _row(name: str, size: int, seconds: float | None) -> tuple[str, ...]:
    if seconds is None:
        return name, f"{size / MIB:.1f}", "must stay", "-"
    return name, f"{size / MIB:.1f}", f"{1e3 * seconds:.3f}", f"{1e6 * seconds * MIB / size:.1f}"
