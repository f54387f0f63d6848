"""What a simulated GPU is: its memory, and the rates that its clock charges with.

Each GPU is one JSON file, beside this one for those that come along, anywhere for those that
``mimose-bench calibrate`` measured. Peaks are the maker's; *attained* rates are what programs got,
and ``calibration`` says where they come from.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mimose.devices.sim.checks import check_count, check_keys, check_number, check_text

GPUS = (
    "v100-16gb",
    "v100-32gb",
    "t4",
    "a100-40gb",
    "a100-80gb",
    "h100",
    "h200",
    "rtx3090",
    "rtx4090",
)
"""Names of the GPUs that come along."""

ALIASES = {
    "v100": "v100-32gb",
    "a100": "a100-40gb",
    "h100-80gb": "h100",
    "rtx-3090": "rtx3090",
    "3090": "rtx3090",
    "rtx-4090": "rtx4090",
    "4090": "rtx4090",
}
"""Other names for them. ``v100`` is the one that the paper used."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
"""What matrix products are computed in."""

WORK_UNITS = ("lookup", "estimate", "candidate", "update", "evaluation", "metadata", "upkeep")
"""Units of planning work, priced in ``host_unit_seconds``; see :class:`mimose.records.Work`."""

ASSUMED_EVICTION_SECONDS = {"evaluation": 0.2e-6, "metadata": 0.2e-6, "upkeep": 0.2e-6}
"""Prices of the units of tensor-level eviction that no measurement stands behind: the order of a
runtime in C++, as DTR's original is, which Python on this host would not tell."""

_FOLDER = Path(__file__).parent / "gpus"


@dataclass(frozen=True, slots=True)
class ClockError:
    """How far simulated times are off published ones.

    Attributes:
        mean: Mean of the relative errors' magnitudes; 0.05 is five percent.
        maximum: The largest of them.
        count: Number of times compared.
        against: Which ones.
    """

    mean: float
    maximum: float
    count: int
    against: str

    def __post_init__(self) -> None:
        check_number("clock_error.mean", self.mean, least=0.0)
        check_number("clock_error.maximum", self.maximum, least=self.mean)
        check_count("clock_error.count", self.count)
        check_text("clock_error.against", self.against)


_LISTS = ("calibrated_on", "prices_calibrated_on", "sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU and the host that it sits in.

    Attributes:
        name: Short name, as in ``sim:NAME``.
        title: The product and its memory.
        memory_bytes: Total memory as PyTorch reports it.
        context_bytes: Taken by the CUDA context, outside PyTorch's allocator.
        compute_capability: Major and minor.
        num_sms: Number of streaming multiprocessors.
        peak_flops: The maker's dense FLOP/s by precision, those that the hardware has units for;
            none where they were not looked up, as for a measured GPU. No clock uses them.
        peak_bandwidth: The maker's bytes a second of device memory; None likewise.
        attained_flops: FLOP/s that matrix products attain, by precision.
        attained_bandwidth: Bytes a second, read and written, that element-wise kernels attain.
        kernel_seconds: Device time of a kernel beyond what its FLOPs and bytes take.
        launch_seconds: Host time of one operator of eager PyTorch.
        copy_bandwidth: Bytes a second between device and pinned host memory.
        pageable_copy_bandwidth: The same with pageable host memory.
        synchronize_seconds: Host time of a synchronisation, the waiting left out.
        host_unit_seconds: Seconds of each of :data:`WORK_UNITS`.
        calibration: Where the attained figures come from.
        calibrated_on: Names of the published times that the attained rates were set by, as
            ``mimose-bench reproduce clock`` names them; those are not evidence for the clock.
        prices_calibrated_on: The same for ``host_unit_seconds``, as ``mimose-bench reproduce fig5``
            names them.
        clock_error: How far simulated times are off published ones, where that was examined.
        sources: Where the figures come from, a line each.

    Raises:
        ValueError: If a figure is not one.
    """

    name: str
    title: str
    memory_bytes: int
    context_bytes: int
    compute_capability: tuple[int, int]
    num_sms: int
    peak_flops: Mapping[str, float]
    peak_bandwidth: float | None
    attained_flops: Mapping[str, float]
    attained_bandwidth: float
    kernel_seconds: float
    launch_seconds: float
    copy_bandwidth: float
    pageable_copy_bandwidth: float
    synchronize_seconds: float
    host_unit_seconds: Mapping[str, float]
    calibration: str
    calibrated_on: tuple[str, ...] = ()
    prices_calibrated_on: tuple[str, ...] = ()
    clock_error: ClockError | None = None
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("name", "title", "calibration"):
            check_text(name, getattr(self, name))
        for name in ("memory_bytes", "num_sms"):
            check_count(name, getattr(self, name))
        check_count("context_bytes", self.context_bytes, least=0)
        if self.context_bytes >= self.memory_bytes:
            raise ValueError("context_bytes must be less than memory_bytes")
        if len(self.compute_capability) != 2:
            raise ValueError("compute_capability must be a major and a minor number")
        for part in self.compute_capability:
            check_count("compute_capability", part, least=0)
        if self.peak_bandwidth is not None:
            check_number("peak_bandwidth", self.peak_bandwidth)
        for name in ("attained_bandwidth", "copy_bandwidth", "pageable_copy_bandwidth"):
            check_number(name, getattr(self, name))
        for name in ("kernel_seconds", "launch_seconds", "synchronize_seconds"):
            check_number(name, getattr(self, name), least=0.0)
        for name in ("peak_flops", "attained_flops"):
            rates = check_keys(name, getattr(self, name), PRECISIONS)
            if name == "attained_flops" and "fp32" not in rates:
                raise ValueError("attained_flops must have a rate for fp32")
            for precision, rate in rates.items():
                check_number(f"{name}.{precision}", rate)
        costs = check_keys("host_unit_seconds", self.host_unit_seconds, WORK_UNITS)
        for unit in WORK_UNITS:
            check_number(f"host_unit_seconds.{unit}", costs.get(unit), least=0.0)
        for name in _LISTS:
            for text in getattr(self, name):
                check_text(name, text)
        # Frozen all the way down, in the order of the literals above.
        for name, keys in (
            ("peak_flops", PRECISIONS),
            ("attained_flops", PRECISIONS),
            ("host_unit_seconds", WORK_UNITS),
        ):
            given = getattr(self, name)
            ordered = {key: float(given[key]) for key in keys if key in given}
            object.__setattr__(self, name, MappingProxyType(ordered))

    def matmul_flops(self, precision: str) -> float:
        """Return the FLOP/s that matrix products attain.

        Precisions that the GPU has no rate for (TF32 before Ampere) run as FP32.

        Args:
            precision: One of :data:`PRECISIONS`.
        """
        return self.attained_flops.get(precision, self.attained_flops["fp32"])


def load_gpu(name_or_path: str | Path) -> Gpu:
    """Return the GPU called so, or the one that a JSON file describes.

    Args:
        name_or_path: A name of :data:`GPUS` or :data:`ALIASES`, or the path of a file that
            ``mimose-bench calibrate`` or :func:`save` wrote.

    Raises:
        ValueError: If there is no such GPU or file, or if the file is not a GPU's.
    """
    text = str(name_or_path)
    name = ALIASES.get(text.lower(), text.lower())
    if name in GPUS:
        return from_json(_read(_FOLDER / f"{name}.json"))
    path = Path(text)
    if isinstance(name_or_path, Path) or path.suffix == ".json" or len(path.parts) > 1:
        data = _read(path)
        try:
            gpu = from_json(data)
        except ValueError as error:
            raise ValueError(
                f"{path} does not describe a GPU ({error}): write one with mimose-bench calibrate"
            ) from error
        if gpu.name in GPUS and gpu != load_gpu(gpu.name):
            # Its figures would carry another GPU's label, and its clock another clock's record.
            raise ValueError(
                f"{path} has other figures than {gpu.name} and yet its name: give it a name of "
                "its own, a calibration that says where its rates come from, and clock_error null"
            )
        return gpu
    near = difflib.get_close_matches(text.lower(), [*GPUS, *ALIASES], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(GPUS)}"
    raise ValueError(f"there is no simulated GPU called {text!r}: {hint}")


def to_json(gpu: Gpu) -> dict[str, Any]:
    """Return ``gpu`` in JSON's types; :func:`from_json` takes it back."""
    data = {field.name: getattr(gpu, field.name) for field in fields(gpu)}
    for name, value in data.items():
        if isinstance(value, Mapping):
            data[name] = dict(value)
        elif isinstance(value, tuple):
            data[name] = list(value)
        elif isinstance(value, ClockError):
            data[name] = asdict(value)
    return data


def from_json(data: Any) -> Gpu:
    """Return the GPU that :func:`to_json` turned into ``data``.

    Raises:
        ValueError: If ``data`` is not that; the message names the field.
    """
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    given = dict(data)
    known = {field.name for field in fields(Gpu)}
    for name in given:
        if name not in known:
            raise ValueError(f"{name} is not one of its fields")
    for name in known - {"clock_error", *_LISTS} - set(given):
        raise ValueError(f"{name} is missing")
    for name in ("compute_capability", *_LISTS):
        value = given.setdefault(name, [])
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list")
        given[name] = tuple(value)
    error = given.get("clock_error")
    if error is not None:
        names = {field.name for field in fields(ClockError)}
        if not isinstance(error, dict) or set(error) != names:
            raise ValueError(f"clock_error must be null or have {', '.join(sorted(names))}")
        given["clock_error"] = ClockError(**error)
    return Gpu(**given)


def save(gpu: Gpu, path: Path) -> None:
    """Write ``gpu`` to ``path`` as JSON that :func:`load_gpu` reads.

    Raises:
        OSError: If it cannot be written.
    """
    path.write_text(json.dumps(to_json(gpu), indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error
