"""What code this is: digests that tell apart changes that no version and no commit has."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mimose
from mimose_bench import experiments

_SUFFIXES = (".py", ".cpp", ".h", ".json", ".toml")
_NO_RUNS = ("figures", "report", "sweep")
"""Packages of the experiments that no run imports."""

UNKNOWN_CODE = "a version that did not say which it was"


@functools.cache
def digest(*, of_runs: bool = False) -> str:
    """Return a digest of the code and the data that outcomes are made from.

    Args:
        of_runs: Leave out what a single run does not depend on.
    """
    found = hashlib.sha256()
    for package in (mimose, experiments):
        root = Path(package.__file__ or "").parent
        for path in sorted(p for p in root.rglob("*") if p.suffix in _SUFFIXES):
            name = path.relative_to(root)
            if of_runs and package is experiments and name.parts[0] in _NO_RUNS:
                continue
            found.update(f"{name}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def code_of(environment: Mapping[str, Any]) -> str | None:
    """Return in words the code that made a run, from the environment that its record keeps.

    None where the record does not say, as those of versions before this was kept.
    """
    source, versions = environment.get("source"), environment.get("versions") or {}
    if source is None:
        return None
    # A build for another device ("+cpu") is the same code.
    torch = str(versions.get("torch")).partition("+")[0]
    return f"mimose-bench {versions.get('mimose-bench')} ({source}), torch {torch}"
