"""Plans that were solved once, kept in the run's folder and found again by what decided them.

Each run's ``plans.json`` holds a list of entries, each with a *key* and the planner's solution. A
key says everything that a plan depends on: the model, the batch's size, the loop, the planner and
its options, the budget, the device and the program itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
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

    A plan under which steps ran out of memory is not handed on, and nor are those older than it,
    which may be the same.

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
            for entry in _entries(path):
                if entry["key"] != key:
                    continue
                failed, solution = entry.get("retried", 0), _solution(entry["solution"], key)
                if failed:
                    problems.append(
                        f"the plan of {folder.name} is not reused, since steps ran out of memory "
                        f"under it ({failed})"
                    )
                    return None, problems
                if not solution.details.get(INTERRUPTED):
                    return Stored(solution, folder), problems
        except RecursionError:
            problems.append(f"{path} was passed over: it is nested too deeply")
        except (OSError, ValueError) as error:
            problems.append(f"{path} was passed over: {error}")
    return None, problems


def keep(folder: Path, key: Key, solution: Solution, *, retried: int = 0) -> None:
    """Write a run's solution to its folder.

    Args:
        folder: The run's folder.
        key: What decides the plan.
        solution: The plan.
        retried: How many steps ran out of memory under it.
    """
    entry = {"key": key, "solution": solution.to_json(), "retried": retried}
    write_json(folder / FILE_NAME, {"schema_version": SCHEMA_VERSION, "plans": [entry]})


def _solution(data: Any, key: Key) -> Solution:
    """Return the solution in ``data``.

    Raises:
        ValueError: If it is none, or not one for ``key``.
    """
    if not isinstance(data, dict) or not isinstance(data.get("details"), dict):
        raise ValueError("one of its solutions has no details")
    try:
        solution = Solution.from_json(data)
    except (AttributeError, OverflowError):
        raise ValueError("this is not a stored solution of a planner") from None
    if list(solution.size) != key["size"]:
        raise ValueError("one of its solutions is for another size than its key")
    times = (solution.predicted_seconds, solution.baseline_seconds, solution.solve_seconds)
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in times):
        raise ValueError("one of its solutions has times that are none")
    return solution


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not in JSON")


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
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
