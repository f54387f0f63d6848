"""What every test shares: one thread, no network, no cached data, figures without a screen."""

from __future__ import annotations

import os

# Before any import that reads them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["MIMOSE_BENCH_CACHE"] = "off"  # tests neither read nor fill the user's

import pytest
import torch

# Two threads on a busy two-core machine turn a tenth of a second into five.
torch.set_num_threads(1)


_LONG = ("test_cli.py", "test_docs.py", "test_checkmate.py", "test_scheduled.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first; skip tests that need a GPU where there is none, and say so."""
    # Side by side, a file that takes minutes and comes last keeps one process busy alone.
    items.sort(key=lambda item: item.path.name not in _LONG)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
