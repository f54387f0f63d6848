"""Image data sets of the hub, which are too large to be fetched unasked."""

from __future__ import annotations

from typing import Any

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.data.images import Normalisation
from mimose_bench.experiments.data.sources import HubUnavailableError


def cached_or_asked(names: tuple[str, ...], split: str, *, download: bool, size: str) -> Any:
    """Return one split of a data set: the copy in the cache, or the hub's if it may be fetched.

    Args:
        names: As in :func:`hub.load_split`.
        split: For example ``train``.
        download: Whether it may be fetched; ``--data auto`` does not.
        size: How much that would be, for the message.

    Raises:
        HubUnavailableError: If it is neither cached nor to be fetched.
    """
    if download:
        return hub.load_split(names, split)
    found = hub.load_cached(names, split)
    if found is None:
        raise HubUnavailableError(
            f"{names[0]} is not cached here, and its {size} are fetched only with --data hub"
        )
    return found


class _Processor:
    """Loads the settings of a model's image processor.

    The processor itself, in recent versions of transformers, wants torchvision.
    """

    @staticmethod
    def from_pretrained(name: str, **options: Any) -> dict[str, Any]:
        from transformers.image_processing_base import ImageProcessingMixin

        return ImageProcessingMixin.get_image_processor_dict(name, **options)[0]


def read_normalisation(model: str) -> Normalisation:
    """Return the mean and deviation that the image processor of a model of the hub has.

    Raises:
        HubUnavailableError: If no copy is cached and the hub does not answer.
    """
    found = hub.from_hub_or_cache(_Processor, model, "the image processor")
    try:
        mean, std = found["image_mean"], found["image_std"]
        return Normalisation(tuple(map(float, mean)), tuple(map(float, std)))
    except (KeyError, TypeError, ValueError) as error:
        raise HubUnavailableError(
            f"the image processor of {model!r} says no mean and deviation"
        ) from error
