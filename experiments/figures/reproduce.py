"""The checks there are, and how one is run: the verb ``reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mimose_bench.experiments.figures import (
    activations,
    clock,
    delta,
    fig3,
    fig5,
    fig9,
    fragmentation,
    operator_graphs,
    rotor,
    stars,
    static,
    table5,
)
from mimose_bench.experiments.figures.recorded import recorder
from mimose_bench.experiments.figures.result import Reproduction
from mimose_bench.experiments.figures.session import Say, opened, silent
from mimose_bench.experiments.files import write_json
from mimose_bench.experiments.names import unknown_name


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and what makes it quick.

    Attributes:
        run: Called with a function that opens a device, or with one that runs a grid.
        quick: Keyword arguments for a quick run.
        recorded: Whether it is made from recorded runs, and so is called with a
            :data:`~mimose_bench.experiments.figures.recorded.Record`.
        require: Raises ``ValueError`` for the name of a device that it cannot run on.
    """

    run: Callable[..., Reproduction]
    quick: Mapping[str, int | str] = field(default_factory=dict)
    require: Callable[[str], None] | None = None
    recorded: bool = False


CHECKS: dict[str, Check] = {
    "fig3": Check(fig3.check, {"stride": fig3.QUICK_STRIDE}),
    "fig9": Check(fig9.check, {"stride": fig9.QUICK_STRIDE}),
    "stars": Check(stars.check, {"runs": stars.QUICK_RUNS, "steps": stars.QUICK_STEPS}),
    "table5": Check(table5.check, {"sizes": table5.QUICK_SIZES}),
    "rotor": Check(rotor.check, {"blocks": rotor.QUICK_BLOCKS}),
    "static": Check(static.check, {"stride": static.QUICK_STRIDE}),
    "activations": Check(activations.check, {"length": activations.QUICK_LENGTH}),
    "checkmate-graphs": Check(operator_graphs.check, {"seconds": operator_graphs.QUICK_SECONDS}),
    "fig5": Check(
        fig5.check,
        {"steps": fig5.QUICK_STEPS, "cpu_steps": fig5.QUICK_CPU_STEPS, "cpu_scale": "tiny"},
    ),
    "fragmentation": Check(
        fragmentation.check,
        {
            "runs": fragmentation.QUICK_RUNS,
            "steps": fragmentation.QUICK_STEPS,
            "ways": fragmentation.QUICK_WAYS,
            "cpu_steps": fragmentation.QUICK_CPU_STEPS,
            "cpu_scale": "tiny",
        },
    ),
    "delta": Check(
        delta.check,
        {"networks": delta.QUICK_NETWORKS, "ways": delta.QUICK_WAYS, "limits": False},
    ),
    "clock": Check(clock.check, {"stride": clock.QUICK_STRIDE}, clock.require_v100),
}
"""What can be reproduced. To add one: a module with such a function, and a line here."""


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Return ``names``, each once; all of :data:`CHECKS` where there are none.

    Raises:
        ValueError: If a name is unknown; the nearest is named.
    """
    for name in names:
        if name not in CHECKS:
            raise unknown_name("figure to reproduce", name, CHECKS)
    return tuple(dict.fromkeys(names)) or tuple(CHECKS)


def reproduce(
    names: Iterable[str], device: str, out: Path, *, quick: bool = False, say: Say = silent
) -> Iterator[Reproduction]:
    """Yield each check's outcome, written to ``NAME.json`` in ``out`` first.

    Args:
        names: Keys of :data:`CHECKS`.
        device: ``sim:NAME``.
        out: Folder to write to; made before anything is measured.
        quick: Measure a few points of each curve only.
        say: Takes lines of progress.

    Raises:
        ValueError: If a check cannot run on the device or the folder cannot be made; before
            anything is measured.
    """
    if device.partition(":")[0] != "sim":
        raise ValueError(
            f"reproduce simulates the paper's GPU and takes --device sim:NAME, not {device!r}"
        )
    names = list(names)
    for name in names:
        if (require := CHECKS[name].require) is not None:
            require(device)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write to {out} ({error.strerror}): name another folder with --out"
        ) from error
    for name in names:
        check = CHECKS[name]
        means: Any = partial(opened, device)
        if check.recorded:
            means = recorder(out / "runs" / name, device, say)
        result = check.run(means, say=say, **(check.quick if quick else {}))
        write_json(out / f"{name}.json", {**result.to_json(), "quick": quick})
        yield result
