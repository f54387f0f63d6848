"""How a check's outcome was made: on what, when, by which code. Written beside its values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from mimose_bench.experiments import environment, sources


def facts(
    name: str,
    device: str,
    *,
    quick: bool,
    seconds: float,
    cpu_seconds: float,
    version: str,
    recorded: bool,
) -> dict[str, Any]:
    """Return what a check's file says of how it was made.

    Args:
        name: The check's name.
        device: The device it was made on.
        quick: Whether it was a quick run.
        seconds: How long it took.
        cpu_seconds: How much of processors' time: it says more where others were at work, too.
        version: Whose statements it judges; see
            :data:`mimose_bench.experiments.figures.claims.Version`.
        recorded: Whether it is made from recorded runs.
    """
    captured = environment.capture(device.partition(":")[0])
    # A worker's own command, and the digest for runs: what a check is made by comes below.
    del captured["command"], captured["source"]
    command = ["mimose-bench", "reproduce", name]
    return {
        "command": [*command, "--quick"] if quick else command,
        **settings(device, quick=quick),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "version": version,
        "recorded": recorded,
        "environment": captured,
    }


def settings(device: str, *, quick: bool) -> dict[str, Any]:
    """Return what an outcome depends on: where this is equal, it need not be made again."""
    return {
        "device": device,
        "quick": quick,
        "code": environment.versions()["mimose-bench"],
        "source": sources.digest(),
        "torch": environment.versions()["torch"],
    }


def is_current(run: Mapping[str, Any], device: str, *, quick: bool) -> bool:
    """Return whether an outcome made so would be made the same way today."""
    return all(run.get(key) == value for key, value in settings(device, quick=quick).items())
