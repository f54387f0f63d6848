"""What planner ``auto`` chooses from at a size, in words: a menu for each distinct block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from mimose.plan import Plan, Remade
from mimose.planners.auto.choosing import InsideForecast, room_to_send, sent_away
from mimose.planners.auto.fits import Inside
from mimose.units import format_bytes, format_seconds
from mimose_bench.experiments.tables import MISSING, percent, table
from mimose_bench.experiments.value_names import in_words

KEEPS, RECOMPUTES, UNKNOWN = (
    "nothing: keep all",
    "all: recompute the block",
    "values of a block that was not traced",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a menu.

    Attributes:
        drops: What it lets go, in words.
        values: The same by number, as plans name values; empty for both ends of a menu.
        freed_bytes: What that frees.
        seconds: What making it again takes.
        share: The same as a share of the block's forward.
        offloaded: What goes to the host's memory besides, in words, unless the block is the last.
        offloaded_bytes: What that frees more.
    """

    drops: tuple[str, ...]
    values: tuple[int, ...]
    freed_bytes: int
    seconds: float
    share: float
    offloaded: tuple[str, ...] = ()
    offloaded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BlockMenu:
    """The menu of blocks that are alike, at one size.

    Attributes:
        size: The size.
        blocks: Their numbers.
        saved_bytes: What one of them keeps for backward.
        forward_seconds: What recomputing one of them takes.
        names: What each value is called, by its number.
        entries: From keeping all to recomputing the block, each dearer than the one before it.
    """

    size: tuple[int, ...]
    blocks: tuple[int, ...]
    saved_bytes: int
    forward_seconds: float
    names: tuple[str, ...]
    entries: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def menus_of(
    size: tuple[int, ...], forecast: InsideForecast, bandwidth: float | None = None
) -> list[BlockMenu]:
    """Return the menus of the blocks whose inside is known, equal blocks together.

    Args:
        size: The size.
        forecast: What a step of it is predicted to take.
        bandwidth: Bytes a second that can be sent to the host and back; None if nothing is to be.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for block, inside in sorted(forecast.inside.items()):
        alike.setdefault((id(inside.fit), _inputs(forecast, block)), []).append(block)
    return [_menu(size, tuple(blocks), forecast, bandwidth) for blocks in alike.values()]


def _inputs(forecast: InsideForecast, block: int) -> int:
    """Return the bytes of a block's inputs that stay only if something is made again from them."""
    freed = forecast.profile.freed
    return freed[block] if freed else 0


def _menu(
    size: tuple[int, ...],
    blocks: tuple[int, ...],
    forecast: InsideForecast,
    bandwidth: float | None,
) -> BlockMenu:
    profile, inside = forecast.profile, forecast.inside[blocks[0]]
    price = sum(profile.forward_seconds[b] for b in blocks) / len(blocks)
    saved = profile.activation[blocks[0]]
    fit, names = inside.fit, in_words(inside.fit.graph)
    inputs = _inputs(forecast, blocks[0])
    front = fit.candidates.front(inside.bytes, inside.seconds, inputs)
    sends = bandwidth is not None and blocks != (profile.num_blocks - 1,)
    room = room_to_send(price, bandwidth or 0.0) if sends else 0.0

    def words(values: Sequence[int]) -> tuple[str, ...]:
        return tuple(names[v] for v in _largest_first(values, inside))

    def entry(values: tuple[int, ...], freed: float, seconds: float) -> Entry:
        away = sent_away(inside, values, room)
        sent = round(float(inside.bytes[[*away]].sum())) if away else 0
        dropped = words(values) if values else (KEEPS,)
        return Entry(dropped, values, round(freed), seconds, seconds / price, words(away), sent)

    entries = [entry((), 0.0, 0.0)]
    for place, freed, seconds in zip(front.places.tolist(), front.freed, front.seconds):
        if seconds < price:
            entries.append(entry(fit.candidates.sets[place], float(freed), float(seconds)))
    entries.append(Entry((RECOMPUTES,), (), saved, price, 1.0))
    return BlockMenu(size, blocks, saved, price, names, tuple(entries))


def _largest_first(values: Sequence[int], inside: Inside) -> list[int]:
    return sorted(values, key=lambda v: (-inside.bytes[v], v))


def told(plan: Plan, menus: Sequence[BlockMenu]) -> list[tuple[str, str]]:
    """Return what a plan does block by block, runs of blocks treated alike together.

    Args:
        plan: The plan.
        menus: Those of its size.

    Returns:
        Pairs of blocks, e.g. ``blocks 0-3``, and what they let go.
    """
    known = {block: menu for menu in menus for block in menu.blocks}
    remade = {r.block: r for r in plan.remade}

    def what(block: int) -> str:
        if block in plan.recomputed:
            return RECOMPUTES
        if block not in remade:
            return KEEPS
        if block not in known:
            return UNKNOWN
        return _in_words(remade[block], known[block])

    found = []
    for text, run in groupby(range(plan.num_blocks), what):
        blocks = list(run)
        span = f"{blocks[0]}-{blocks[-1]}" if len(blocks) > 1 else f"{blocks[0]}"
        found.append((f"block{'s' * (len(blocks) > 1)} {span}", text))
    return found


def _in_words(remade: Remade, menu: BlockMenu) -> str:
    """Return what a block lets go, with what that costs where its menu has it."""
    parts = []
    entry = next((e for e in menu.entries if remade.dropped and e.values == remade.dropped), None)
    if entry is not None:
        cost = f"{format_bytes(entry.freed_bytes)} each for {percent(entry.share)} of its forward"
        parts.append(f"{', '.join(entry.drops)} ({cost})")
    elif remade.dropped:
        parts.append(", ".join(menu.names[v] for v in remade.dropped))
    if remade.offloaded:
        parts.append("to the host " + ", ".join(menu.names[v] for v in remade.offloaded))
    return "; ".join(parts)


def describe_menus(
    menus: Sequence[BlockMenu], shown: Mapping[tuple[int, ...], str], unit: str
) -> str:
    """Return menus as tables for the screen.

    Args:
        menus: The menus.
        shown: Each size in words.
        unit: What sizes count, e.g. ``tokens``.
    """
    parts = []
    for menu in menus:
        span = ", ".join(_spans(menu.blocks))
        sends = any(e.offloaded for e in menu.entries)
        rows = [
            (
                format_bytes(e.freed_bytes) if e.freed_bytes else MISSING,
                format_seconds(e.seconds) if e.seconds else MISSING,
                percent(e.share) if e.seconds else MISSING,
                *([format_bytes(e.offloaded_bytes) if e.offloaded else MISSING] if sends else []),
                _going(e.drops, e.offloaded),
            )
            for e in menu.entries
        ]
        headers = (
            "frees",
            "takes",
            "of forward",
            *(["to the host"] if sends else []),
            "lets go of",
        )
        parts.append(
            f"menu of block{'s' * (len(menu.blocks) > 1)} {span} for {menu.size[0]} x "
            f"{shown[menu.size]} {unit}: one keeps {format_bytes(menu.saved_bytes)}, its forward "
            f"takes {format_seconds(menu.forward_seconds)}\n" + table(headers, rows)
        )
        if sends:
            parts.append("to the host: as much more; the last block sends nothing")
    return "\n".join(parts)


def _going(dropped: tuple[str, ...], offloaded: tuple[str, ...]) -> str:
    """Return what an entry lets go in words."""
    parts = [f"to the host {', '.join(offloaded)}"] if offloaded else []
    return "; ".join([*([] if parts and dropped == (KEEPS,) else [", ".join(dropped)]), *parts])


def _spans(blocks: Sequence[int]) -> list[str]:
    """Return numbers as runs, e.g. ``0-3``."""
    spans: list[list[int]] = []
    for block in blocks:
        if spans and block == spans[-1][-1] + 1:
            spans[-1].append(block)
        else:
            spans.append([block])
    return [f"{s[0]}-{s[-1]}" if len(s) > 1 else f"{s[0]}" for s in spans]
