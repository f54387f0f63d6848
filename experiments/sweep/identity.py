"""What a configuration is known by, and how it is given on the command line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.files import jsonable

_FLAGS = {"fresh_plan": ("--fresh-plan", None), "enforce": (None, "--no-enforce")}


def identity(config: Mapping[str, Any]) -> str:
    """Return what a configuration is known by: a hash of all that is not as by default.

    Args:
        config: The fields of :class:`RunConfig`, for example those in a ``run.json``.
    """
    text = json.dumps(jsonable(changes(config)), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def changes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not as by default, the run's folder left out."""
    default = dataclasses.asdict(RunConfig())
    return {k: v for k, v in config.items() if k != "out" and (k, v) not in default.items()}


def arguments(config: RunConfig, only: tuple[str, ...] | None = None) -> list[str]:
    """Return what stands for a configuration on the command line, ``--out`` left out.

    Args:
        config: The configuration.
        only: The options to give; all by default.
    """
    given: list[str] = []
    # Task, planner, budget and device are always said: who reads the command wants to know.
    shown = {k: getattr(config, k) for k in ("task", "planner", "budget", "device")}
    for name, value in {**shown, **changes(dataclasses.asdict(config))}.items():
        if only is not None and name not in only:
            continue
        flag = f"--{name.replace('_', '-')}"
        if name in _FLAGS:
            given.append(str(_FLAGS[name][not value]))
        elif isinstance(value, dict):
            single = flag.removesuffix("s")
            given += [part for k, v in value.items() for part in (single, f"{k}={v}")]
        elif name == "budget":
            given += [flag, "none" if value is None else str(value)]
        elif value is not None:
            given += [flag, repr(value) if isinstance(value, float) else str(value)]
    return given
