"""What this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mimose.units import GIB, format_bytes
from mimose_bench.experiments import environment

LEAST_DISK_BYTES = GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What.
        state: ``ok``, ``note`` (works, worth knowing) or ``missing`` (something will not work).
        detail: What was found.
        advice: What to do about it, if anything.
    """

    name: str
    state: str
    detail: str
    advice: str | None = None


def examine(results: Path) -> list[Finding]:
    """Return what was found; asks the hub once, for at most three seconds.

    Args:
        results: Folder that will hold runs.
    """
    return [
        Finding("python", "ok", sys.version.split()[0]),
        *_packages(),
        _compiler(),
        *_devices(),
        _allocator(),
        *_hub(),
        _disk(results),
    ]


def _packages() -> Iterator[Finding]:
    for name in ("torch", "transformers", "datasets"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            yield Finding(name, "missing", f"cannot be imported ({error})", f"pip install {name}")
        else:
            yield Finding(name, "ok", str(module.__version__))


def _compiler() -> Finding:
    try:
        from mimose.devices.library import NO_COMPILER, find_compiler
    except ImportError:
        return Finding("C++ compiler", "note", "not looked for without torch")
    command = find_compiler()
    if command is None:
        advice = "sudo apt-get install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"
        return Finding("C++ compiler", "missing", NO_COMPILER.partition(":")[0], advice)
    return Finding("C++ compiler", "ok", shutil.which(command[0]) or " ".join(command))


def _devices() -> Iterator[Finding]:
    cores = os.cpu_count()
    yield Finding("device cpu", "ok", f"{environment.cpu_model()}, {cores} logical cores")
    try:
        import torch
    except ImportError:
        return
    gpu = environment.gpu()
    if gpu is not None:
        detail = f"{gpu['name']}, {format_bytes(gpu['total_bytes'])}, driver {gpu['driver']}"
        yield Finding("device cuda", "ok", detail)
    elif shutil.which("nvidia-smi") and torch.version.cuda is None:
        advice = "install a CUDA build of torch: see https://pytorch.org/get-started/locally"
        yield Finding("device cuda", "missing", "this torch is built for the CPU only", advice)
    else:
        advice = "--device cpu trains here with byte-exact memory"
        yield Finding("device cuda", "note", "no NVIDIA GPU found", advice)


def _allocator() -> Finding:
    settings = environment.allocator_settings()
    if not settings:
        return Finding("allocator settings", "ok", "defaults")
    detail = ", ".join(f"{name}={value}" for name, value in settings.items())
    return Finding(
        "allocator settings",
        "note",
        detail,
        "peaks and fragmentation depend on these: compare runs made with the same ones",
    )


def _hub() -> Iterator[Finding]:
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return
    from mimose_bench.experiments.data.hub import is_reachable

    if is_reachable():
        yield Finding("Hugging Face hub", "ok", "reachable")
    else:
        advice = "--data synthetic or --data PATH and --weights random need no hub"
        yield Finding("Hugging Face hub", "note", "does not answer", advice)
    try:
        names = sorted(repo.repo_id for repo in scan_cache_dir().repos)
    except (CacheNotFound, OSError):
        names = []
    yield Finding("hub cache", "ok" if names else "note", ", ".join(names) or "empty")


def _disk(results: Path) -> Finding:
    folder = results.absolute()
    while not folder.exists():
        folder = folder.parent
    name = f"disk for {results}"
    if not os.access(folder, os.W_OK):
        return Finding(name, "missing", "cannot be written", "name another folder with --out")
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK_BYTES:
        advice = "free some space or name another folder with --out"
        return Finding(name, "missing", f"only {format_bytes(free)} free", advice)
    return Finding(name, "ok", f"{format_bytes(free)} free")
