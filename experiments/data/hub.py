"""What is taken from the Hugging Face hub, without waiting long where it cannot be reached."""

from __future__ import annotations

import contextlib
import http.client
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mimose_bench.experiments.data.sources import HubUnavailableError

REACH_SECONDS = 3.0
_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def is_reachable(seconds: float = REACH_SECONDS) -> bool:
    """Return whether the hub answers within ``seconds``.

    ``HF_ENDPOINT``, ``HF_HUB_OFFLINE`` and the proxy variables are honoured.
    """
    if any(os.environ.get(name, "").upper() in _TRUE for name in _SWITCHES):
        return False
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    answered = threading.Event()

    def ask() -> None:
        try:
            request = urllib.request.Request(endpoint, method="HEAD")
            with urllib.request.urlopen(request, timeout=seconds):
                answered.set()
        except urllib.error.HTTPError as error:
            error.close()  # most likely a proxy's refusal, not the hub
        except (OSError, ValueError, http.client.HTTPException):
            return

    # In a thread of its own: looking a name up knows no timeout.
    asker = threading.Thread(target=ask, name="hub-reachable", daemon=True)
    asker.start()
    asker.join(seconds)
    return answered.is_set()


def load_split(
    names: tuple[str, ...], split: str, config: str | None = None, first: int | None = None
) -> Any:
    """Return one split of a data set: the cached copy if there is one, else the hub's.

    Args:
        names: Names under which the cache may hold the data set; the hub is asked for the first.
        split: For example ``train``.
        config: Which of the data set's configurations, where it has several.
        first: How many rows to return, from the first on; None for all. Without a cached copy no
            more than these are downloaded.

    Returns:
        A ``datasets.Dataset``, or a list of rows.

    Raises:
        HubUnavailableError: If no copy is cached and the hub does not answer, or fails.
    """
    import datasets

    found = load_cached(names, split, config)
    if found is not None:
        return found if first is None else found.select(range(min(first, len(found))))
    failure = None
    if is_reachable():
        try:
            _check_name(names[0])
            if first is None:
                return datasets.load_dataset(names[0], config, split=split)
            rows = datasets.load_dataset(names[0], config, split=split, streaming=True)
            return list(rows.take(first))
        except Exception as error:  # the libraries below raise whatever their transport does
            failure = error
    raise _unavailable(f"the data set {names[0]!r}", failure)


def load_cached(names: tuple[str, ...], split: str, config: str | None = None) -> Any:
    """Return one split of a data set from the local cache, None where there is no copy.

    Args:
        names: Names under which the cache may hold the data set.
        split: For example ``train``.
        config: Which of the data set's configurations, where it has several.
    """
    import datasets

    with _offline():
        for name in names:
            with contextlib.suppress(Exception):
                _check_name(name)
                return datasets.load_dataset(name, config, split=split)
    return None


def _check_name(name: str) -> None:
    """Refuse a name that ``datasets`` would take for a path, with quite other data in it."""
    if Path(name).exists():
        raise FileExistsError(f"a file or folder {name} in the working directory hides it")


def load_tokenizer(name: str) -> Any:
    """Return the fast tokenizer of a model of the hub, as a ``tokenizers.Tokenizer``.

    Raises:
        HubUnavailableError: If the hub does not answer, or fails, and no copy is cached.
    """
    from transformers import AutoTokenizer

    found = from_hub_or_cache(AutoTokenizer, name, "the tokenizer", use_fast=True)
    backend = getattr(found, "backend_tokenizer", None)
    if backend is None:
        raise HubUnavailableError(f"the hub has no fast tokenizer of {name!r}")
    return backend


def from_hub_or_cache(loader: Any, name: str, what: str, **options: Any) -> Any:
    """Return ``loader.from_pretrained(name)``: the cached copy if there is one, else the hub's.

    Args:
        loader: A class with ``from_pretrained``.
        name: The model's name on the hub.
        what: What is loaded, for the message.
        options: Further arguments of ``from_pretrained``.

    Raises:
        HubUnavailableError: If no copy is cached and the hub does not answer, or fails.
    """
    with contextlib.suppress(OSError, ValueError), _offline():
        return loader.from_pretrained(name, local_files_only=True, **options)
    failure = None
    if is_reachable():
        try:
            return loader.from_pretrained(name, **options)
        except Exception as error:  # the libraries below raise whatever their transport does
            failure = error
    raise _unavailable(f"{what} {name!r}", failure)


def _unavailable(what: str, failure: Exception | None) -> HubUnavailableError:
    if failure is None:
        return HubUnavailableError(f"the hub does not answer and {what} is not cached here")
    reason = f"{type(failure).__name__}: {failure}".splitlines()[0]
    return HubUnavailableError(f"{what} could not be loaded from the hub ({reason})")


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep the hub's libraries from retrying a network that is known not to answer."""
    import datasets
    import huggingface_hub.constants as constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
