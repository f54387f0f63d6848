"""Builds the allocator model at first use and loads it."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from mimose import compiled
from mimose.compiled import cache_folder, find_compiler

__all__ = ["NO_COMPILER", "Stats", "cache_folder", "find_compiler", "load", "torch_library"]

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


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library, compiled first if this source, torch and compiler have not been yet.

    Raises:
        ValueError: If there is no compiler or it fails; the message says what to install.
    """
    # Calls take well under a microsecond, so the interpreter's lock is kept.
    library = compiled.load(_library(), keep_lock=True)
    model, size, pointer = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER
    log = ctypes.c_void_p
    signatures: dict[str, tuple[object, ...]] = {
        "open": (model, ctypes.c_int, ctypes.c_char_p, ctypes.c_int),
        "close": (None, ctypes.c_int, model),
        "enter_ignored": (None,),
        "leave_ignored": (None,),
        "enter_host": (None,),
        "leave_host": (None,),
        "host_bytes": (None, ctypes.c_int, pointer(size), pointer(size)),
        "new": (model, ctypes.c_int),
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
    return compiled.build(_library())


def _library() -> compiled.Library:
    return torch_library("allocator", "the allocator model", (SOURCE, HEADER), NO_COMPILER)


def torch_library(
    name: str, purpose: str, files: tuple[Path, ...], no_compiler: str
) -> compiled.Library:
    """Return what a library is made of that is compiled against PyTorch's own ``c10``."""
    root = Path(torch.__file__).parent
    abi = int(torch.compiled_with_cxx11_abi())
    return compiled.Library(
        name=name,
        purpose=purpose,
        files=files,
        no_compiler=no_compiler,
        flags=(*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{root / 'include'}"),
        links=(f"-L{root / 'lib'}", "-lc10"),
        version=torch.__version__,
    )
