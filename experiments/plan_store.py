"""Plans that were solved once, kept in the run's folder and found again by what decided them.

Each run's ``plans.json`` holds a list of entries, each with a *key* and the planner's solution. A
key says everything that a plan depends on: the model, the batch's size, the loop, the planner and
its options, the budget, the device and the program itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimose.planners.static import Solution
from mimose_bench.experiments import environment
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.files import jsonable, write_json
from mimose_bench.experiments.reading import find_runs

if TYPE_CHECKING:
    from torch import nn

    from mimose.devices.base import Device
    from mimose.handle import Handle
    from mimose.records import Size
    from mimose_bench.experiments.tasks.base import Task

FILE_NAME = "plans.json"
SCHEMA_VERSION = 1
"""Raised whenever a key or a solution changes its meaning: older plans are then not reused."""

INTERRUPTED = "interrupted"
"""What a solution's details say of a solve that was ended early: nobody else is to make do with it.
"""

Key = Mapping[str, Any]

# What a task says of itself that changes no memory and no time.
_IRRELEVANT = ("data", "lr", "num_examples")


@dataclass(frozen=True, slots=True)
class Stored:
    """A solution that was found again.

    Attributes:
        solution: The solution.
        folder: The run that holds it.
    """

    solution: Solution
    folder: Path


def key_of(config: RunConfig, task: Task, handle: Handle, size: Size) -> dict[str, Any]:
    """Return everything that a plan depends on, as plain data.

    Args:
        config: The run.
        task: Its task.
        handle: Its model, attached; no step has been taken.
        size: The size planned for.
    """
    import torch

    settings = {k: v for k, v in task.settings().items() if k not in _IRRELEVANT}
    return jsonable(
        {
            "model": {
                "settings": settings,
                "class": type(handle.model).__name__,
                "shapes": _shapes(handle.model),
                "blocks": list(handle.block_names),
            },
            "loop": {
                "precision": config.precision,
                "zero_grad": config.zero_grad,
                "foreach": config.foreach,
                "enforce": config.enforce,
            },
            "planner": config.planner,
            "options": {name: str(value) for name, value in sorted(config.options().items())},
            "size": list(size),
            "budget_bytes": config.budget,
            "device": {**_device(handle.device), "threads": torch.get_num_threads()},
            "program": {"code": _code(config.planner), **environment.versions()},
        }
    )  # type: ignore[no-any-return]


def find(root: Path, key: Key, *, own: Path | None = None) -> tuple[Stored | None, list[str]]:
    """Return the newest solution for ``key`` among the runs in ``root``.

    Args:
        root: Folder that holds runs.
        key: What decides the plan.
        own: A run to leave out: the one that asks.

    Returns:
        The solution, or None; and a sentence for each file that was passed over.
    """
    problems: list[str] = []
    for folder in find_runs(root):
        path = folder / FILE_NAME
        if folder == own or not path.exists():
            continue
        try:
            entries = _entries(path)
        except (OSError, ValueError) as error:
            problems.append(f"{path} was passed over: {error}")
            continue
        for entry in entries:
            if entry["key"] != key:
                continue
            try:
                solution = Solution.from_json(entry["solution"])
            except ValueError as error:
                problems.append(f"{path} was passed over: {error}")
                continue
            if not solution.details.get(INTERRUPTED):
                return Stored(solution, folder), problems
    return None, problems


def keep(folder: Path, solved: Iterable[tuple[Key, Solution]]) -> None:
    """Write solutions to a run's folder."""
    entries = [{"key": key, "solution": solution.to_json()} for key, solution in solved]
    write_json(folder / FILE_NAME, {"schema_version": SCHEMA_VERSION, "plans": entries})


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError("it is not a JSON document") from None
    if not isinstance(data, dict) or not isinstance(data.get("plans"), list):
        raise ValueError("it holds no list of plans")
    if data.get("schema_version") != SCHEMA_VERSION:
        return []  # Another version's plans are no fault; they only mean something else.
    for entry in data["plans"]:
        if not isinstance(entry, dict) or not {"key", "solution"} <= entry.keys():
            raise ValueError("one of its plans has no key or no solution")
    return list(data["plans"])


def _shapes(model: nn.Module) -> str:
    """Return a digest of the shapes, types and training flags of what the model consists of."""
    facts = [
        (name, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
        for part in (model.named_parameters(), model.named_buffers())
        for name, tensor in part
    ]
    return _digest([repr(facts).encode()])


def _device(device: Device) -> dict[str, Any]:
    gpu = getattr(device, "gpu", None)
    if gpu is not None:  # A simulated one: what a file says of it is part of it.
        return {"label": device.label, "name": _digest([repr(gpu).encode()])}
    if device.kind == "cuda":
        import torch

        return {"label": device.label, "name": torch.cuda.get_device_name(device.torch_device)}
    return {"label": device.label, "name": environment.cpu_model()}


def _code(planner: str) -> str:
    """Return a digest of the library and of a planner from outside."""
    import mimose

    root = Path(mimose.__file__).parent
    files = sorted(root.rglob("*.py"))
    if ":" in planner:
        found = importlib.util.find_spec(planner.partition(":")[0])
        if found is not None and found.origin is not None:
            files.append(Path(found.origin))
    return _digest(file.read_bytes() for file in files)


def _digest(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
        found.update(b"\0")
    return found.hexdigest()[:16]
