"""What keeps time on a device, and how far a simulated clock is known to be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimose.devices.base import Device  # The readers of runs need no torch.


def device_name(device: Device) -> str:
    """Return the device's name for a folder: its kind, and the GPU where that is simulated."""
    return f"sim-{device.gpu.name}" if device.kind == "sim" else device.kind  # type: ignore[attr-defined]


def clock_of(device: Device) -> dict[str, Any] | None:
    """Return what ``run.json`` says of a simulated clock; None where time is real.

    Returns:
        ``calibration``, a sentence, and ``error``: None where it is unknown, otherwise ``mean``
        and ``maximum`` (shares), ``count`` and ``against`` (what it was compared with).
    """
    if device.kind != "sim":
        return None
    gpu = device.gpu  # type: ignore[attr-defined]
    error = None if gpu.clock_error is None else asdict(gpu.clock_error)
    return {"calibration": gpu.calibration, "error": error}


def time_label(device_label: str, clock: Mapping[str, Any] | None) -> str:
    """Return what every figure that shows times carries.

    Args:
        device_label: For example ``measured on cpu`` or ``simulated v100-32gb``.
        clock: What :func:`clock_of` returned.
    """
    if clock is None:
        return device_label
    error = clock.get("error")
    if error is None:
        return f"{device_label} (clock error unknown)"
    return (
        f"{device_label} (clock: mean {_percent(error['mean'])}, max {_percent(error['maximum'])} "
        f"off {error['count']} published times)"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
