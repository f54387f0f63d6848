"""Settings of a process or thread that decide what an operator makes of the same arguments.

They are read before each operator that can run again, and put back while it does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Values = tuple[Any, ...]
"""What the settings were; the same object for as long as none changes."""

_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _set_deterministic(on: bool) -> None:
    torch._C._set_deterministic_algorithms(
        on, warn_only=torch._C._get_deterministic_algorithms_warn_only()
    )


_EVERYWHERE: tuple[_Setting, ...] = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),  # An LSTM's kernel asks.
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_float32_matmul_precision, torch._C._set_float32_matmul_precision),
    (torch._C._get_deterministic_algorithms, _set_deterministic),
    (torch.get_num_threads, torch.set_num_threads),
)

_CUDNN = ("enabled", "deterministic", "benchmark", "allow_tf32")


class Settings:
    """Reads the settings and puts them back.

    Args:
        kind: The device's kind: ``cuda`` has some of its own.
    """

    def __init__(self, kind: str) -> None:
        settings = list(_EVERYWHERE)
        if kind == "cuda":
            settings += [
                (getattr(torch._C, f"_get_cudnn_{name}"), getattr(torch._C, f"_set_cudnn_{name}"))
                for name in _CUDNN
            ]
        self._adopt(settings)

    def _adopt(self, settings: list[_Setting]) -> None:
        self._getters = [getter for getter, _ in settings]
        self._setters = [setter for _, setter in settings]
        self._last: Values = ()

    def read(self) -> Values:
        """Return what the settings are."""
        try:
            values = tuple([getter() for getter in self._getters])
        except RuntimeError:
            # PyTorch refuses to tell a precision by a name that another one has overridden.
            self._adopt([s for s in zip(self._getters, self._setters) if _tells(s[0])])
            return self.read()
        if values != self._last:
            self._last = values
        return self._last

    @contextlib.contextmanager
    def put_back(self, values: Values) -> Iterator[None]:
        """Make the settings what they were for as long as the context lasts."""
        now = self.read()
        if now is values or len(now) != len(values):
            yield
            return
        changed = [
            (setter, now, then)
            for setter, now, then in zip(self._setters, now, values)
            if now != then
        ]
        try:
            for setter, _, then in changed:
                setter(then)
            yield
        finally:
            for setter, before, _ in reversed(changed):
                setter(before)


def _tells(getter: Callable[[], Any]) -> bool:
    try:
        getter()
    except RuntimeError:
        return False
    return True
