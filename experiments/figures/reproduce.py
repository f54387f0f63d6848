"""The checks there are, and how one is run: the verb ``reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mimose.units import format_seconds
from mimose_bench.experiments.figures import (
    activations,
    auto,
    auto_learning,
    auto_memory,
    auto_menu,
    auto_optimum,
    auto_training,
    break_even,
    cache,
    clock,
    cpu_training,
    delta,
    fig3,
    fig4,
    fig5,
    fig9,
    fig10,
    fig11,
    fragmentation,
    loss,
    operator_graphs,
    operators,
    provenance,
    rotor,
    running,
    stars,
    static,
    stored,
    table3,
    table4,
    table5,
    tables12,
)
from mimose_bench.experiments.figures.claims import Version
from mimose_bench.experiments.figures.result import Reproduction
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.figures.stored import Stored
from mimose_bench.experiments.figures.worker import Task
from mimose_bench.experiments.names import unknown_name
from mimose_bench.experiments.opening import require_device


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and what makes it quick.

    Attributes:
        run: Called with a function that opens a device, or with one that runs a grid.
        quick: Keyword arguments for a quick run.
        recorded: Whether it is made from recorded runs, and so is called with a
            :data:`~mimose_bench.experiments.figures.recorded.Record`.
        require: Raises ``ValueError`` for the name of a device that it cannot run on.
        version: Whose statements its criteria judge; ``other`` where they are not Mimose's.
        alone: Whether it measures this machine's time, so that nothing may run beside it.
    """

    run: Callable[..., Reproduction]
    quick: Mapping[str, int | str] = field(default_factory=dict)
    require: Callable[[str], None] | None = None
    recorded: bool = False
    version: Version = "ipdps"
    alone: bool = False


SIMULATED = "sim:v100"
"""The paper's GPU, simulated."""

CHECKS: dict[str, Check] = {
    "fig3": Check(fig3.check, {"stride": fig3.QUICK_STRIDE}),
    "fig4": Check(fig4.check),
    "fig9": Check(fig9.check, {"stride": fig9.QUICK_STRIDE}),
    "fig10": Check(fig10.check, {"extent": "quick"}, recorded=True),
    "fig11": Check(fig11.check, {"extent": "quick"}, recorded=True),
    "loss": Check(loss.check, {"extent": "quick"}, recorded=True, version="v1"),
    "cpu-training": Check(cpu_training.check, {"extent": "quick"}, recorded=True, alone=True),
    "stars": Check(stars.check, {"runs": stars.QUICK_RUNS, "steps": stars.QUICK_STEPS}),
    "table5": Check(table5.check, {"sizes": table5.QUICK_SIZES}),
    "rotor": Check(rotor.check, {"blocks": rotor.QUICK_BLOCKS}, version="other"),
    "static": Check(static.check, {"stride": static.QUICK_STRIDE}),
    "activations": Check(activations.check, {"length": activations.QUICK_LENGTH}, version="other"),
    "checkmate-graphs": Check(
        operator_graphs.check,
        {"seconds": operator_graphs.QUICK_SECONDS, "solves": operator_graphs.QUICK_SOLVES},
        version="other",
    ),
    "fig5": Check(
        fig5.check,
        {"steps": fig5.QUICK_STEPS, "cpu_steps": fig5.QUICK_CPU_STEPS, "cpu_scale": "tiny"},
        alone=True,
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
        version="other",
    ),
    "table3": Check(
        table3.check,
        {
            "tasks": table3.QUICK_TASKS,
            "seeds": table3.QUICK_SEEDS,
            "steps": table3.QUICK_STEPS,
            "cpu_steps": table3.QUICK_CPU_STEPS,
            "cpu_scale": "tiny",
        },
        recorded=True,
        alone=True,
    ),
    "table4": Check(
        table4.check,
        {
            "samples": table4.QUICK_SAMPLES,
            "sizes": table4.QUICK_SIZES,
            "rounds": table4.QUICK_ROUNDS,
        },
        alone=True,
    ),
    "tables12": Check(tables12.check),
    "break-even": Check(
        break_even.check,
        {
            "tasks": break_even.QUICK_TASKS,
            "budgets": break_even.QUICK_BUDGETS,
            "steps": break_even.QUICK_STEPS,
        },
        recorded=True,
    ),
    "cache": Check(
        cache.check,
        {
            "search_steps": cache.QUICK_SEARCH_STEPS,
            "tasks": cache.QUICK_TASKS,
            "steps": cache.QUICK_STEPS,
        },
        recorded=True,
    ),
    "auto": Check(auto.check, {"extent": "quick"}, recorded=True, version="other"),
    "auto-menu": Check(auto_menu.check, version="other"),
    "auto-memory": Check(
        auto_memory.check,
        {"tasks": auto_memory.QUICK_TASKS, "models": auto_memory.QUICK_MODELS},
        version="other",
    ),
    "auto-optimum": Check(
        auto_optimum.check,
        {
            "workloads": auto_optimum.QUICK_WORKLOADS,
            "lengths": auto_optimum.QUICK_LENGTHS,
            "seconds": auto_optimum.QUICK_SECONDS,
        },
        version="other",
    ),
    "auto-learning": Check(
        auto_learning.check,
        {"tasks": auto_learning.QUICK_TASKS, "steps": auto_learning.QUICK_STEPS},
        recorded=True,
        version="other",
    ),
    "auto-training": Check(
        auto_training.check, {"extent": "quick"}, recorded=True, version="other", alone=True
    ),
    "operators": Check(operators.check, version="v1"),
    "clock": Check(
        clock.check, {"stride": clock.QUICK_STRIDE}, clock.require_v100, version="other"
    ),
}
"""What can be reproduced. To add one: a module with such a function, and a line here."""


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Return ``names``, each once; all of :data:`CHECKS` where there are none.

    Raises:
        ValueError: If a name is unknown; the nearest is named, or all are.
    """
    for name in names:
        if name not in CHECKS:
            raise unknown_name("figure to reproduce", name, CHECKS, most=None)
    return tuple(dict.fromkeys(names)) or tuple(CHECKS)


def device_for(name: str, device: str, *, quick: bool = False) -> str:
    """Return the device that a check runs on.

    Args:
        name: A key of :data:`CHECKS`.
        device: As on the command line. ``auto`` is ``sim:v100``; CUDA where there is one for
            checks that are made from recorded runs, unless they are to be quick.
        quick: Whether a quick run is asked for.

    Raises:
        ValueError: If the check cannot run on the device, or there is no such.
    """
    check = CHECKS[name]
    if device == "auto":
        device = "cuda" if check.recorded and not quick and _has_cuda() else SIMULATED
    if device.partition(":")[0] != "sim" and not check.recorded:
        raise ValueError(
            f"{name} simulates the paper's GPU and takes --device sim:NAME, not {device!r}"
        )
    require_device(device)
    if check.require is not None:
        check.require(device)
    return device


def reproduce(
    names: Iterable[str],
    device: str,
    out: Path,
    *,
    quick: bool = False,
    jobs: int = 1,
    keep: bool = False,
    say: Say = silent,
) -> Iterator[Stored]:
    """Yield each check's outcome once it is written to ``NAME.json`` in ``out``.

    Args:
        names: Keys of :data:`CHECKS`.
        device: ``auto``, ``sim:NAME``, or another device for checks made from recorded runs.
        out: Folder to write to; made before anything is measured.
        quick: Measure a few points of each curve only.
        jobs: Most processes at once.
        keep: Leave out checks whose outcome, made by this version with the same settings, lies in
            the folder; it is yielded as it is.
        say: Takes lines of progress.

    Raises:
        ValueError: If a check cannot run on the device or the folder cannot be made; before
            anything is measured.
        KeyboardInterrupt: If interrupted; outcomes written until then are kept.
    """
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, not {jobs}")
    devices = {name: device_for(name, device, quick=quick) for name in names}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write to {out} ({error.strerror}): name another folder with --out"
        ) from error
    tasks = []
    for name, on in devices.items():
        known = _kept(out / f"{name}.json", on, quick=quick) if keep else None
        if known is None:
            alone = CHECKS[name].alone or on.startswith("cuda")
            tasks.append(Task(name=name, device=on, out=str(out), quick=quick, alone=alone))
        else:
            say(f"{name}: kept, made on {known.run['date']}")
            yield known
    if jobs > 1:  # Those that record runs take longest: at the end they would be waited for.
        tasks.sort(key=lambda task: not CHECKS[task.name].recorded)
    # One check by itself has all processes for its own runs, those on cuda one after another.
    if len(tasks) == 1 and not tasks[0].alone:
        tasks = [replace(tasks[0], jobs=jobs)]
    done = 0
    try:
        for task in running.carry_out(tasks, jobs, say):
            found = stored.read(task.path)
            done += 1
            say(f"{task.name}: {_ending(found)}, {done} of {len(tasks)}")
            yield found
    except KeyboardInterrupt:
        say(f"{done} of {len(tasks)} checks are done: with --keep the same command goes on")
        raise


def _kept(path: Path, device: str, *, quick: bool) -> Stored | None:
    try:
        found = stored.read(path)
    except ValueError:
        return None
    current = provenance.is_current(found.run, device, quick=quick)
    return found if found.error is None and current else None


def _ending(found: Stored) -> str:
    seconds = found.run.get("seconds")
    word = "done" if found.error is None else "FAILED"
    return word if seconds is None else f"{word} after {format_seconds(seconds)}"


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
