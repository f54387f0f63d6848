"""Compiles C++ at first use and loads it.

Compiled libraries lie in the user's own cache folder (``$XDG_CACHE_HOME/mimose``, by default
``~/.cache/mimose``), each named by a hash of everything that it depends on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Library:
    """What a library is made of.

    Attributes:
        name: The beginning of its file's name.
        purpose: What it is, in words, for messages.
        files: The source, and the headers of its own that it includes.
        no_compiler: What to say where there is no compiler.
        flags: Flags of the compiler.
        links: What to link with.
        version: Whatever else the result depends on.
    """

    name: str
    purpose: str
    files: tuple[Path, ...]
    no_compiler: str
    flags: tuple[str, ...] = ("-O2", "-std=c++20", "-shared", "-fPIC")
    links: tuple[str, ...] = ()
    version: str = ""


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


def load(library: Library, *, keep_lock: bool = False) -> ctypes.CDLL:
    """Return a library, compiled first if it has not been yet.

    Args:
        library: What it is made of.
        keep_lock: Whether to hold the interpreter's lock during calls, which is faster for short
            ones.

    Raises:
        ValueError: If there is no compiler or it fails; the message says what to install.
    """
    kind = ctypes.PyDLL if keep_lock else ctypes.CDLL
    path = build(library)
    try:
        return kind(str(path))
    except OSError:
        # Cut short or damaged in the cache: once more from the source.
        path.unlink(missing_ok=True)
        path = build(library)
        try:
            return kind(str(path))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise ValueError(
                f"{library.purpose} was compiled but cannot be loaded ({error}): check the "
                "compiler that $CXX names, or install g++ 10 or newer"
            ) from error


def build(library: Library) -> Path:
    """Return the compiled library's file, compiled first if it has not been yet.

    Raises:
        ValueError: As for :func:`load`.
    """
    folder = cache_folder()
    sources = [file.read_text() for file in library.files]
    inputs = (*sources, library.version, platform.machine(), *library.flags)
    stem = f"{library.name}-{_digest(*inputs)}"
    compiler = find_compiler()
    if compiler is None:
        earlier = next(iter(sorted(folder.glob(f"{stem}-*.so"))), None)
        if earlier is None:
            raise ValueError(library.no_compiler)
        return earlier
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    target = folder / f"{stem}-{_digest(*compiler, version.stdout)}.so"
    if not target.exists():
        _compile(compiler, library, target)
    return target


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: list[str], library: Library, target: Path) -> None:
    handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    built = Path(name)
    # The linker drops a library that comes before the source that needs it.
    command = [*compiler, *library.flags, str(library.files[0]), "-o", name, *library.links]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise ValueError(
                f"{' '.join(compiler)} could not compile {library.purpose} "
                f"({(errors or [done.stderr.strip() or f'exit code {done.returncode}'])[0]}): "
                "check the compiler that $CXX names, or install g++ 10 or newer"
            )
        # Renaming is atomic: of two processes that compile at once, the later one wins.
        built.replace(target)
    finally:
        built.unlink(missing_ok=True)
