"""Which tensors of a step a program still holds, told when they do not fit together."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Mapping

from mimose.runtime.eviction.known import Holder
from mimose.runtime.eviction.lineage import PLAIN
from mimose.runtime.eviction.pointers import storage_of
from mimose.units import format_bytes

_SHOWN = 3


def describe(known: Mapping[int, Holder], gradients: Collection[int]) -> str:
    """Return what keeps the storages that a step has made alive, as a clause; may be empty.

    All objects of the program are looked through, which takes a moment: for errors only.

    Args:
        known: The storages that live, by their addresses.
        gradients: Addresses of those that parameters' gradients lie in.
    """
    made = {a: h for a, h in known.items() if not h.constant and a not in gradients}
    found: dict[int, str] = {}
    # Not among all objects: whoever has them in hand breaks a tuple that another thread is making.
    # What refers to the classes are their instances, and little else.
    for each in gc.get_referrers(*PLAIN):
        if type(each) in PLAIN:
            try:
                address = storage_of(each)._cdata
                # Of views of one storage the first will do.
                if address in made and address not in found:
                    extents = " x ".join(map(str, each.shape)) or "a number"
                    found[address] = f"{extents} ({each.dtype})".replace("torch.", "")
            except (NotImplementedError, RuntimeError):
                continue
    counts, sizes = Counter(found.values()), Counter[str]()
    for address, shape in found.items():
        sizes[shape] += made[address].num_bytes
    shown = [shape for shape, _ in sizes.most_common(_SHOWN)]
    parts = [f"{counts[shape]} of {shape}" for shape in shown]
    if len(sizes) > _SHOWN:
        parts.append(f"{len(found) - sum(counts[shape] for shape in shown)} others")
    text = f"the program holds tensors of this step ({', '.join(parts)})" if parts else ""
    rest = sum(holder.num_bytes for address, holder in made.items() if address not in found)
    if rest:
        text += " and " if text else ""
        text += f"{format_bytes(rest, up=True)} are saved for a backward pass"
    return text
