"""Builds the allocator model at first use and loads it.

The compiled library lies in the user's own cache folder (``$XDG_CACHE_HOME/mimose``, by default
``~/.cache/mimose``), named by a hash of everything it depends on.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("allocator.cpp")
HEADER = Path(__file__).with_name("allocator_model.h")
NO_COMPILER = (
    "no C++ compiler was found, and the devices 'cpu' and 'sim' need one: install g++ "
    "(Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or name one in $CXX"
)
_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC")


class Stats(ctypes.Structure):
    """All figures of an allocator model at one moment, in bytes; ``num_*`` are counts.

    ``allocated`` and ``reserved`` include ``foreign``. Peaks are since the model was made,
    ``step_`` peaks since the step began.
    """

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "allocated",
            "reserved",
            "foreign",
            "peak_allocated",
            "peak_reserved",
            "step_peak_allocated",
            "step_peak_reserved",
            "num_alloc_retries",
            "num_ooms",
            "num_segments",
            "largest_free_block",
        )
    ]

    allocated: int
    reserved: int
    foreign: int
    peak_allocated: int
    peak_reserved: int
    step_peak_allocated: int
    step_peak_reserved: int
    num_alloc_retries: int
    num_ooms: int
    num_segments: int
    largest_free_block: int


def find_compiler() -> list[str] | None:
    """Return the command of the C++ compiler (``$CXX``, else the usual names), or None."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named and shutil.which(named[0]):
        return named
    return next(([name] for name in ("g++", "c++", "clang++") if shutil.which(name)), None)


def cache_folder() -> Path:
    """Return the user's own folder for compiled code, made with mode 0700.

    Raises:
        ValueError: If the folder cannot be made, or if someone else could write to it: code from
            it would run as this user.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mimose"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise ValueError(
            f"cannot use {folder} for compiled code ({error.strerror}): "
            "set XDG_CACHE_HOME to a folder of yours"
        ) from error
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{folder} belongs to or can be written by someone else: give it mode 0700, "
            "or set XDG_CACHE_HOME to a folder of yours"
        )
    return folder


@functools.cache
def load() -> ctypes.PyDLL:
    """Return the library, compiled first if this source, torch and compiler have not been yet.

    Raises:
        ValueError: If there is no compiler or it fails; the message says what to install.
    """
    # PyDLL keeps the interpreter's lock during calls: they take well under a microsecond.
    path = _build()
    try:
        library = ctypes.PyDLL(str(path))
    except OSError:
        # Cut short or damaged in the cache: once more from the source.
        path.unlink(missing_ok=True)
        path = _build()
        try:
            library = ctypes.PyDLL(str(path))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise ValueError(
                f"the allocator model was compiled but cannot be loaded ({error}): check the "
                "compiler that $CXX names, or install g++ 10 or newer"
            ) from error
    model, size, pointer = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER
    log = ctypes.c_void_p
    signatures: dict[str, tuple[object, ...]] = {
        "open": (model, ctypes.c_int, ctypes.c_char_p),
        "close": (None, ctypes.c_int, model),
        "enter_ignored": (None,),
        "leave_ignored": (None,),
        "enter_host": (None,),
        "leave_host": (None,),
        "host_bytes": (None, ctypes.c_int, pointer(size), pointer(size)),
        "new": (model,),
        "delete": (None, model),
        "malloc": (ctypes.c_void_p, model, size),
        "free": (None, model, ctypes.c_void_p),
        "release": (None, model),
        "set_limit": (None, model, size),
        "add_foreign": (None, model, size),
        "add_segment": (None, model, ctypes.c_int, pointer(size), size, pointer(ctypes.c_void_p)),
        "add_address": (None, model, size),
        "begin_step": (None, model),
        "mark": (size, model, pointer(size)),
        "allocated": (size, model),
        "reserved": (size, model),
        "stats": (None, model, pointer(Stats)),
        "record": (None, model, ctypes.c_int),
        "events": (size, model, pointer(size), size),
        "workspace": (ctypes.c_int, model, size),
        "log_new": (log,),
        "log_delete": (None, log),
        "log_start": (None, model, log),
        "log_stop": (ctypes.c_int, model),
        "log_size": (size, log),
        "log_event": (size, log, size),
        "log_replay": (size, model, log, size, size),
        "log_abandon": (None, model, log),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, f"mimose_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _build() -> Path:
    folder = cache_folder()
    abi = int(torch.compiled_with_cxx11_abi())
    flags = [*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    inputs = (SOURCE.read_text(), HEADER.read_text(), torch.__version__, platform.machine(), *flags)
    stem = f"allocator-{_digest(*inputs)}"
    compiler = find_compiler()
    if compiler is None:
        earlier = next(iter(sorted(folder.glob(f"{stem}-*.so"))), None)
        if earlier is None:
            raise ValueError(NO_COMPILER)
        return earlier
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    target = folder / f"{stem}-{_digest(*compiler, version.stdout)}.so"
    if not target.exists():
        _compile(compiler, flags, target)
    return target


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: list[str], flags: list[str], target: Path) -> None:
    root = Path(torch.__file__).parent
    handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    built = Path(name)
    # The linker drops a library that comes before the source that needs it.
    command = [*compiler, *flags, f"-I{root / 'include'}", str(SOURCE), "-o", name]
    command += [f"-L{root / 'lib'}", "-lc10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise ValueError(
                f"{' '.join(compiler)} could not compile the allocator model "
                f"({(errors or [done.stderr.strip() or f'exit code {done.returncode}'])[0]}): "
                "check the compiler that $CXX names, or install g++ 10 or newer"
            )
        # Renaming is atomic: of two processes that compile at once, the later one wins.
        built.replace(target)
    finally:
        built.unlink(missing_ok=True)
