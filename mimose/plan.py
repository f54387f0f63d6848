"""The plan of one iteration: which blocks keep their activations and which are recomputed.

A plan is frozen data over a model's ordered *blocks* (a block is one call of one module, numbered
from 0 in the order of the forward pass). It is a tree: a :class:`Region` of one or more consecutive
blocks saves its input only and is run again in backward; while it is recomputed, its ``inner``
regions say which of its blocks are themselves recomputed later. A block in no region is kept.

=====================  ==========================================================================
baseline               no region
full recomputation     one region a block
Chen's segments        flat regions of several blocks (Chen et al. 2016)
Rotor                  nested regions (Beaumont et al. 2019)
Mimose                 one-block regions, chosen for each input
selective              no region; ``cores``: blocks of which the attention core alone is run again
auto                   one-block regions, and ``remade``: kept blocks that let single values go
=====================  ==========================================================================

What a tree cannot hold is a :class:`mimose.schedule.Schedule`.

Text and JSON forms round-trip: ``Plan.parse(str(plan), plan.num_blocks) == plan`` and
``Plan.from_json(plan.to_json()) == plan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mimose import plan_text
from mimose.plan_parts import Region, Remade, check_order, cut

__all__ = ["Plan", "Region", "Remade"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one iteration recomputes.

    Attributes:
        num_blocks: Number of blocks that the plan covers.
        regions: The recomputed regions, sorted and disjoint. Every other block is kept.
        cores: Kept blocks of which the attention core (QK^T, softmax, its dropout, times V) keeps
            its inputs only and is run again in backward, sorted: selective recomputation
            (Korthikanti et al. 2022).
        remade: Kept blocks that let some of the values go that they save for backward, sorted by
            block.
    """

    num_blocks: int
    regions: tuple[Region, ...] = ()
    cores: tuple[int, ...] = ()
    remade: tuple[Remade, ...] = ()

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise ValueError(f"a plan covers at least one block, not {self.num_blocks}")
        check_order(self.regions, 0, self.num_blocks - 1)
        if self.cores:
            _check_cores(self.cores, self.num_blocks, self.recomputed)
        if self.remade:
            _check_remade(self.remade, self.num_blocks, self.recomputed, self.cores)

    @classmethod
    def keep_all(cls, num_blocks: int) -> Plan:
        """Return the plan that recomputes nothing."""
        return cls(num_blocks)

    @classmethod
    def recompute_each(cls, num_blocks: int, blocks: Iterable[int] | None = None) -> Plan:
        """Return the plan with one region for each of ``blocks`` (all of them by default)."""
        chosen = range(num_blocks) if blocks is None else sorted(set(blocks))
        return cls(num_blocks, tuple(Region(b, b) for b in chosen))

    @property
    def recomputed(self) -> frozenset[int]:
        """The blocks whose activations are not kept after the forward pass."""
        return frozenset(b for r in self.regions for b in range(r.first, r.last + 1))

    @property
    def num_recomputed(self) -> int:
        """How many blocks do not keep their activations after the forward pass."""
        return sum(len(r) for r in self.regions)

    @property
    def num_remade(self) -> int:
        """How many blocks keep their activations but for some that are made again or offloaded."""
        return len(self.remade)

    @property
    def keeps_all(self) -> bool:
        """Whether everything that backward needs stays where it is after the forward pass."""
        return not (self.regions or self.cores or self.remade)

    @property
    def spans_blocks(self) -> bool:
        """Whether any region, inner ones included, has more than one block."""
        return any(len(r) > 1 for r in self.regions)

    def cut(self, cuts: Iterable[int]) -> Plan:
        """Return the plan with every region split where it may not span.

        Args:
            cuts: Numbers ``c`` such that no region may hold both block ``c - 1`` and block ``c``.
        """
        points = frozenset(cuts)
        pieces = tuple(p for r in self.regions for p in cut(r, points))
        return Plan(self.num_blocks, pieces, self.cores, self.remade)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain lists and dictionaries."""
        data: dict[str, Any] = {
            "num_blocks": self.num_blocks,
            "regions": [_to_json(r) for r in self.regions],
        }
        if self.cores:
            data["cores"] = list(self.cores)
        if self.remade:
            data["remade"] = [_remade_to_json(r) for r in self.remade]
        return data

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Return the plan that :meth:`to_json` wrote.

        Raises:
            ValueError: If ``data`` is not such a plan.
        """
        try:
            regions = tuple(_from_json(r) for r in data["regions"])
            cores = tuple(int(b) for b in data.get("cores", ()))
            remade = tuple(_remade_from_json(r) for r in data.get("remade", ()))
            return cls(int(data["num_blocks"]), regions, cores, remade)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                'a plan in JSON is {"num_blocks": N, "regions": [{"first": I, "last": J}, ...]}'
            ) from error

    def __str__(self) -> str:
        return plan_text.write(self.num_blocks, self.regions, self.cores, self.remade)

    @classmethod
    def parse(cls, text: str, num_blocks: int | None = None) -> Plan:
        """Return the plan that ``text`` spells, for example ``keep 0-9 | recompute 10-11``.

        ``recompute 10-11`` is one region of two blocks; ``recompute each 10-11`` is two regions of
        one. A region's inner plan follows in brackets: ``recompute 0-3 (keep 0 | recompute 1-3)``.
        Of the blocks in ``selective 4-7`` the attention core alone is recomputed. Each of those in
        ``remake 0-3 [2 5] offload [7]`` makes its values 2 and 5 again and has value 7 in the
        host's memory meanwhile; ``offload 0-3 [7]`` makes none again.

        Args:
            text: The plan, its parts separated by ``|``.
            num_blocks: Number of blocks to cover; blocks not named are kept. By default one more
                than the last block named.

        Raises:
            ValueError: If ``text`` is not a plan or names a block beyond ``num_blocks``.
        """
        read = plan_text.read(text)
        count = read.last + 1 if num_blocks is None else num_blocks
        if read.last >= count:
            raise ValueError(
                f"plan {text!r} names block {read.last}, but the last block is {count - 1}"
            )
        return cls(count, tuple(read.regions), tuple(read.cores), tuple(read.remade))


def _check_cores(cores: Sequence[int], num_blocks: int, recomputed: frozenset[int]) -> None:
    if list(cores) != sorted(set(cores)) or cores[0] < 0 or cores[-1] >= num_blocks:
        raise ValueError(
            f"blocks whose cores are recomputed must be in order and within 0-{num_blocks - 1}, "
            f"not {', '.join(map(str, cores))}"
        )
    both = recomputed.intersection(cores)
    if both:
        raise ValueError(f"block {min(both)} is recomputed whole, so that its core cannot be alone")


def _check_remade(
    remade: Sequence[Remade], num_blocks: int, recomputed: frozenset[int], cores: Sequence[int]
) -> None:
    blocks = [r.block for r in remade]
    if blocks != sorted(set(blocks)) or blocks[0] < 0 or blocks[-1] >= num_blocks:
        raise ValueError(
            "blocks that let values go must be in order, each once, and within "
            f"0-{num_blocks - 1}, not {', '.join(map(str, blocks))}"
        )
    both = recomputed.union(cores).intersection(blocks)
    if both:
        raise ValueError(
            f"block {min(both)} is recomputed, whole or its core, so that it cannot let values go "
            "as well"
        )


def _to_json(region: Region) -> dict[str, Any]:
    data: dict[str, Any] = {"first": region.first, "last": region.last}
    if region.inner:
        data["inner"] = [_to_json(r) for r in region.inner]
    return data


def _from_json(data: Any) -> Region:
    inner = tuple(_from_json(r) for r in data.get("inner", ()))
    return Region(int(data["first"]), int(data["last"]), inner)


def _remade_to_json(remade: Remade) -> dict[str, Any]:
    data: dict[str, Any] = {"block": remade.block}
    if remade.dropped:
        data["dropped"] = list(remade.dropped)
    if remade.offloaded:
        data["offloaded"] = list(remade.offloaded)
    if remade.graph:
        data["graph"] = remade.graph
    return data


def _remade_from_json(data: Any) -> Remade:
    dropped, offloaded = (
        tuple(int(v) for v in data.get(name, ())) for name in ("dropped", "offloaded")
    )
    return Remade(int(data["block"]), dropped, offloaded, str(data.get("graph", "")))
