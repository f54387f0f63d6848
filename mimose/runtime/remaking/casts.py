"""Copies of parameters that autocast holds until it ends: which is whose.

A block that is called several times within one autocast, or shares its weights with another, finds
copies that were made before its call. They are known by having been seen made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mimose.runtime.remaking.trace import Given, storage_of

_MOST = 1024


class Cast(NamedTuple):
    """A copy of a parameter.

    Attributes:
        reference: To its storage.
        source: Where the parameter is found.
        parameter: The parameter.
        version: Its version counter when it was copied.
        function: What copied it.
        kwargs: And with which arguments beside the parameter.
    """

    reference: StorageWeakRef
    source: Given
    parameter: torch.Tensor
    version: int
    function: Any
    kwargs: dict[str, Any]


class Casts:
    """The copies that were seen made, by the identities of their storages."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[int, Cast] = {}

    def add(
        self, copy: torch.Tensor, source: Given, parameter: torch.Tensor, function: Any, kwargs: Any
    ) -> None:
        """Take in a copy that has just been made."""
        if len(self._found) >= _MOST:
            self._found = {k: c for k, c in self._found.items() if not c.reference.expired()}
        reference = StorageWeakRef(copy.untyped_storage())
        version = parameter._version
        cast = Cast(reference, source, parameter, version, function, dict(kwargs))
        self._found[storage_of(copy)] = cast

    def find(self, tensor: torch.Tensor) -> Cast | None:
        """Return the copy that a tensor is, if it is one and its parameter is as it was."""
        # A storage's identity is no other's while there is a reference to it.
        cast = self._found.get(storage_of(tensor))
        if cast is None or cast.reference.expired() or cast.parameter._version != cast.version:
            return None
        return cast
