"""Families of regressions that predict what blocks keep from the input size (Table IV).

scikit-learn's and XGBoost's come with the extra ``regression``. The paper gives no parameters: each
library's defaults are taken. SVR's do not suit bytes: sizes and bytes are standardised for it.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.float64]


class Fitted(Protocol):
    """Fitted regressions, one a block."""

    def predict_block(self, block: int, length: float) -> float:
        """Return the bytes of one block."""


Fit = Callable[[Bytes, Bytes], Fitted]
"""Takes lengths, and bytes with a row a length and a column a block."""


class Polynomial:
    """Least squares through a polynomial of ``degree``; all blocks at once."""

    def __init__(self, degree: int, lengths: Bytes, memory: Bytes) -> None:
        self._coefficients = np.polyfit(lengths, memory, degree)

    def predict_block(self, block: int, length: float) -> float:
        """Return the bytes of one block."""
        return float(np.polyval(self._coefficients[:, block], length))


class Learned:
    """One of a library's regressors for each block."""

    def __init__(self, new: Callable[[], Any], lengths: Bytes, memory: Bytes) -> None:
        column = lengths[:, None]
        self._models = [new().fit(column, of_block) for of_block in memory.T]

    def predict_block(self, block: int, length: float) -> float:
        """Return the bytes of one block."""
        return float(self._models[block].predict(np.array([[length]]))[0])


@dataclass(frozen=True, slots=True)
class Family:
    """A row's family in Table IV.

    Attributes:
        name: As the table has it.
        package: What it is imported from; numpy for polynomials.
        fit: Fits it.
    """

    name: str
    package: str
    fit: Fit

    @property
    def is_installed(self) -> bool:
        """Whether its package is there."""
        return importlib.util.find_spec(self.package) is not None


def _support_vectors() -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    return TransformedTargetRegressor(
        make_pipeline(StandardScaler(), SVR()), transformer=StandardScaler()
    )


def _tree() -> Any:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(random_state=0)


def _boosted() -> Any:
    from xgboost import XGBRegressor

    return XGBRegressor(n_jobs=1)


LINEAR, QUADRATIC, CUBIC = "polynomial n=1", "polynomial n=2", "polynomial n=3"
SVR, TREE, XGBOOST = "SVR", "decision tree", "XGBoost"

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(LINEAR, "numpy", partial(Polynomial, 1)),
        Family(QUADRATIC, "numpy", partial(Polynomial, 2)),
        Family(CUBIC, "numpy", partial(Polynomial, 3)),
        Family(SVR, "sklearn", partial(Learned, _support_vectors)),
        Family(TREE, "sklearn", partial(Learned, _tree)),
        Family(XGBOOST, "xgboost", partial(Learned, _boosted)),
    )
}


def error(fitted: Fitted, lengths: Sequence[float], memory: Bytes) -> float:
    """Return the mean relative error of the sum of all blocks' predictions.

    Args:
        fitted: Fitted regressions.
        lengths: Lengths to predict.
        memory: What was measured there, a row a length and a column a block.
    """
    blocks = range(memory.shape[1])
    sums = [sum(fitted.predict_block(block, length) for block in blocks) for length in lengths]
    return float(np.mean(np.abs(np.array(sums) / memory.sum(axis=1) - 1)))


def seconds_of(function: Callable[[], Any], rounds: int, *, least: float = 2e-3) -> float:
    """Return the median time of a call, each round as many calls as take ``least`` seconds."""
    function()  # Imports, caches.
    started = time.perf_counter()
    function()
    calls = max(1, round(least / max(time.perf_counter() - started, 1e-9)))
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            function()
        found.append((time.perf_counter() - started) / calls)
    return statistics.median(found)
