"""Tokenised data kept on disk, found again by what it was made of.

It lies in ``$XDG_CACHE_HOME/mimose-bench`` (by default ``~/.cache/mimose-bench``), or in the
folder that ``MIMOSE_BENCH_CACHE`` names; ``off`` there keeps nothing. It may be deleted at any
time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

VARIABLE = "MIMOSE_BENCH_CACHE"
_FORMAT = 2  # to be raised when readers, templates or example kinds change what they make
_FACTS = "facts"
log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """What is kept.

    Attributes:
        arrays: Arrays of numbers by name.
        facts: What else there is to know, as plain data.
    """

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


def key_of(parts: Mapping[str, Any]) -> str:
    """Return a hash of everything that an entry depends on, given as plain data."""
    import tokenizers

    whole = {"format": _FORMAT, "tokenizers": tokenizers.__version__, **parts}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def cached(
    name: str, key: str, build: Callable[[], Entry], fits: Callable[[Entry], bool]
) -> tuple[Entry, bool]:
    """Return the entry of this key, built only where it is not kept yet.

    Processes may do this at the same time: a file appears as a whole or not at all. One that is
    damaged is built anew; where nothing can be written, the next run builds it again.

    Args:
        name: What it is, in a word, to begin the file's name.
        key: From :func:`key_of`.
        build: Makes the entry; what it raises is passed on, and then nothing is kept.
        fits: Whether an entry that was read has the right contents.

    Returns:
        The entry, and whether it was read rather than built.
    """
    folder = cache_folder()
    if folder is None:
        return build(), False
    path = folder / f"{name}-{key[:32]}.npz"
    found = _read(path)
    if found is not None:
        if fits(found):
            return found, True
        log.info("%s does not hold what it should: tokenising again", path)
    entry = build()
    _write(path, entry)
    return entry, False


def cache_folder() -> Path | None:
    """Return the folder of the cache, which need not exist, or None if there shall be none."""
    named = os.environ.get(VARIABLE, "")
    if named.lower() == "off":
        return None
    if named:
        return Path(named).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "mimose-bench"
    except RuntimeError:  # nobody's home
        return None


def _read(path: Path) -> Entry | None:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError("it is no file")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return Entry(arrays, json.loads(arrays.pop(_FACTS).tobytes()))
    except FileNotFoundError:
        return None
    except Exception as error:  # there is no end to how damage may show
        log.info("%s cannot be used (%s): tokenising again", path, error)
        return None


def _write(path: Path, entry: Entry) -> None:
    facts = np.frombuffer(json.dumps(entry.facts).encode(), np.uint8)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=".new-", suffix=".npz", delete=False
        ) as file:
            temporary = Path(file.name)
            np.savez(file, **entry.arrays, **{_FACTS: facts})
        temporary.replace(path)
    except OSError as error:
        log.info("tokenised data is not kept for the next run: %s", error)
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
