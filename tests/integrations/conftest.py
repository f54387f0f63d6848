"""What the tests of the adapters share: the examples' model and data, small enough for a test."""

from __future__ import annotations

import gc
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports an example by its name, as running its file would."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of the libraries that it imports.
            return importlib.import_module(name)

    yield load
    for name in {path.stem for path in EXAMPLES.glob("*.py")} - before:
        sys.modules.pop(name, None)


@pytest.fixture
def generated(example: Callable[[str], ModuleType]) -> ModuleType:
    """The examples' model and data."""
    return example("generated")


@pytest.fixture(autouse=True, scope="session")
def _frozen_libraries() -> Iterator[None]:
    """Leave the libraries' objects out of each garbage collection: attaching asks for one."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _fresh_accelerator() -> Iterator[None]:
    """Forget the precision that Accelerate keeps for the whole process."""
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(True)
