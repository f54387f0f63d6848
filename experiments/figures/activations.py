"""Activation bytes of a transformer layer: the published formulas beside what blocks keep.

Korthikanti et al. 2022, arXiv:2205.05198 (:mod:`mimose_bench.experiments.formulas`): GPT-3's layer
with nothing, its attention core or all of it recomputed, and the same three for QA-Bert's layers in
fp32, measured on the simulated GPU and on the CPU, with eager attention and with PyTorch's fused
kernels (sdpa). Kernels in the manner of FlashAttention store no attention matrix: with them most of
what selective recomputation would save is saved already.

What a layer keeps is the bytes of the tensors saved for backward, of which its input is one, and
none of them a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from mimose.devices.base import Device
from mimose.planners.mimose.collector import tensor_bytes
from mimose.records import Measured
from mimose_bench.experiments.figures import layer_times
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import (
    FACTORS,
    Criterion,
    Reproduction,
    ResultTable,
    Row,
    max_error,
)
from mimose_bench.experiments.figures.session import OpenDevice, Say, opened, silent, training
from mimose_bench.experiments.formulas import (
    GPT3,
    GPT3_LAYERS,
    GPT3_TENSOR_PARALLEL,
    Layer,
    best_num_checkpoints,
)
from mimose_bench.experiments.tasks import Task, TaskOptions, make_task

PERCENT = FACTORS["%"]
MB = FACTORS["MB"]
KEPT, SELECTIVE, FULL = "nothing recomputed", "attention core recomputed", "layer recomputed"
ATTENTIONS = ("eager", "sdpa")

PUBLISHED_BYTES = {KEPT: 359e6, SELECTIVE: 107e6, FULL: 50e6}
"""Bytes a layer of GPT-3 split over eight GPUs with sequence parallelism."""
PUBLISHED_MODEL_BYTES = {KEPT: 34.4e9, SELECTIVE: 10.3e9, FULL: 4.8e9}
"""The same over its 96 layers."""
PUBLISHED_CHECKPOINTS = 74
PUBLISHED_EXTRA_FLOPS = 2.7 * PERCENT

ROUNDING = 1 * PERCENT
"""The published figures have two or three digits."""
TOLERANCE = 2 * PERCENT
"""The most that a layer may keep more or less than its formula says."""
STILL_SAVED = 10 * PERCENT
"""The most that selective recomputation may save with fused kernels, of what it saves with eager
attention."""

LENGTH = 384
QUICK_LENGTH = 128
_CPU_SCALE = "small"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What a layer was measured to keep, on average over all of them.

    Attributes:
        device_label: What the figures carry.
        attention: ``eager`` or ``sdpa``.
        layer: The layer, for the formulas.
        kept: Bytes kept, by what is recomputed.
        core_flops: FLOPs of running the attention core again over those of forward and backward.
    """

    device_label: str
    attention: str
    layer: Layer
    kept: dict[str, float]
    core_flops: float

    @property
    def series(self) -> str:
        """What its rows are called."""
        return f"QA-Bert, {self.attention}, {self.device_label}"

    @property
    def share_saved(self) -> float:
        """The share of what a layer keeps that selective recomputation saves."""
        return 1 - self.kept[SELECTIVE] / self.kept[KEPT]

    @property
    def stores_scores(self) -> bool:
        """Whether the attention matrix is stored: more is kept than half of what it takes."""
        return self.kept[KEPT] - self.layer.linear_bytes > self.layer.core_bytes / 2

    def formula(self, recomputed: str) -> int:
        """Return the formula's bytes; a fused kernel keeps no matrix."""
        if recomputed == KEPT and not self.stores_scores:
            return self.layer.fused_bytes
        by_name = {
            KEPT: self.layer.kept_bytes,
            SELECTIVE: self.layer.selective_bytes,
            FULL: self.layer.full_bytes,
        }
        return by_name[recomputed]


def measure(device: Device, task: Task, attention: str, length: int) -> LayerBytes:
    """Measure what a BERT task's layers keep at a padded length.

    Args:
        device: An open device.
        task: The task, with that attention.
        attention: ``eager`` or ``sdpa``.
        length: Padded length.
    """
    rows, longest = task.longest()
    batch = task.example_batch((rows, min(length, longest)))
    with training(device, task, "baseline") as session:
        plain = session.measure(batch)
        cores = session.measure(batch, cores=True)
    setting = task.settings()
    layer = Layer(
        s=batch.size[1],
        b=rows,
        h=setting["hidden"],
        a=setting["num_heads"],
        width=4,
        mask=4 if device.kind == "cpu" else 1,
    )
    kept, inputs = _bytes(plain)
    selective, _ = _bytes(cores)
    again = sum(_backward(cores)) - sum(_backward(plain))
    return LayerBytes(
        device_label=device.label,
        attention=attention,
        layer=layer,
        kept={KEPT: kept + inputs, SELECTIVE: selective + inputs, FULL: inputs},
        core_flops=again / _layers_flops(plain),
    )


def _bytes(measured: Measured) -> tuple[float, float]:
    """Return what a block keeps without its output, and its output, which is the next's input."""
    collected = measured.records[-1].collected
    assert collected is not None
    return (
        mean(tensor_bytes(sample) for sample in collected.blocks),
        mean(sum(sample.output_storages) for sample in collected.blocks),
    )


def _backward(measured: Measured) -> list[int]:
    collected = measured.records[0].collected
    assert collected is not None
    return [sample.backward_flops or 0 for sample in collected.blocks]


def _layers_flops(measured: Measured) -> int:
    collected = measured.records[0].collected
    assert collected is not None
    return sum(_backward(measured)) + sum(sample.forward_flops or 0 for sample in collected.blocks)


def published_rows() -> list[Row]:
    """Return GPT-3's figures as published and by the formulas."""
    t = GPT3_TENSOR_PARALLEL
    by_formula = {
        KEPT: GPT3.sequence_parallel_bytes(t),
        SELECTIVE: GPT3.selective_sequence_parallel_bytes(t),
        FULL: float(GPT3.full_bytes),
    }
    series = "GPT-3, fp16, formulas"
    rows = [
        Row(
            series=series,
            what=f"{name}, {extent}",
            unit="MB",
            expected=expected[name],
            obtained=layers * by_formula[name],
            note=f"tensor and sequence parallel over {t}" if name != FULL else "",
        )
        for extent, layers, expected in (
            ("a layer", 1, PUBLISHED_BYTES),
            (f"{GPT3_LAYERS} layers", GPT3_LAYERS, PUBLISHED_MODEL_BYTES),
        )
        for name in by_formula
    ]
    rows.append(
        Row(
            series=series,
            what="FLOPs of selective recomputation",
            unit="%",
            expected=PUBLISHED_EXTRA_FLOPS,
            obtained=GPT3.selective_flops_ratio - 1,
            note="s / 6h",
        )
    )
    return rows


def layer_rows(found: LayerBytes) -> list[Row]:
    """Return the rows of one measurement."""
    return [
        Row(
            series=found.series,
            what=name,
            unit="MB",
            expected=found.formula(name),
            obtained=kept,
            length=found.layer.s,
            note="no attention matrix stored, but the mask" if _fused(found, name) else "",
        )
        for name, kept in found.kept.items()
    ]


def _fused(found: LayerBytes, name: str) -> bool:
    return name == KEPT and not found.stores_scores


def judge(
    measured: Sequence[LayerBytes], device_label: str, claims: Sequence[Claim] = ()
) -> Reproduction:
    """Compare the published figures and what was measured with the formulas.

    Args:
        measured: One measurement a device and attention.
        device_label: Of the simulated device.
        claims: What was found of a layer's times.
    """
    published = published_rows()
    rows = [row for found in measured for row in layer_rows(found)]
    criteria = [
        Criterion(
            name="GPT-3: formulas against the published figures, maximum error",
            value=max_error([row for row in published if row.unit == "MB"]),
            tolerance=ROUNDING,
        ),
        Criterion(
            name="measured bytes a layer against the formulas, maximum error",
            value=max_error(rows),
            tolerance=TOLERANCE,
        ),
    ]
    by_kind = {(found.device_label, found.attention): found for found in measured}
    for label in dict.fromkeys(found.device_label for found in measured):
        eager, sdpa = (by_kind[label, attention] for attention in ATTENTIONS)
        if sdpa.stores_scores:
            continue
        saved = [found.kept[KEPT] - found.kept[SELECTIVE] for found in (eager, sdpa)]
        criteria.append(
            Criterion(
                name=f"{label}: what selective still saves with fused kernels, of eager's",
                value=saved[1] / saved[0],
                tolerance=STILL_SAVED,
            )
        )
    return Reproduction(
        name="activations",
        title="activation bytes a transformer layer",
        source="Korthikanti et al. 2022",
        device_label=device_label,
        rows=(*published, *rows),
        criteria=tuple(criteria),
        claims=tuple(claims),
        tables=(_saved(measured),),
        notes=_notes(measured),
    )


def _saved(measured: Sequence[LayerBytes]) -> ResultTable:
    return ResultTable(
        title="What selective recomputation saves of a layer's activations",
        headers=(
            "attention",
            "device",
            "length",
            "kept a layer",
            "with selective",
            "saved",
            "FLOPs more",
            "by formula",
            "s / 6h",
        ),
        rows=tuple(
            (
                found.attention,
                found.device_label,
                str(found.layer.s),
                f"{found.kept[KEPT] / MB:.1f} MB",
                f"{found.kept[SELECTIVE] / MB:.1f} MB",
                f"{100 * found.share_saved:.1f} %",
                f"{100 * found.core_flops:.2f} %",
                f"{100 * (found.layer.counted_flops_ratio - 1):.2f} %",
                f"{100 * (found.layer.selective_flops_ratio - 1):.2f} %",
            )
            for found in measured
        ),
    )


def _notes(measured: Sequence[LayerBytes]) -> tuple[str, ...]:
    best = best_num_checkpoints(GPT3_LAYERS, GPT3.best_checkpoints_ratio)
    notes = [
        f"Chen's rule c* = sqrt(l A_int / A_in) with A_int / A_in = "
        f"{GPT3.best_checkpoints_ratio:.0f}: {best:.1f} of GPT-3's {GPT3_LAYERS} layers, published "
        f"as {PUBLISHED_CHECKPOINTS}.",
        "Formulas in fp32: 66 sbh + 9 a s^2 b with masks of a byte, as CUDA has them; 72 sbh + "
        "12 a s^2 b with masks of four, as the CPU's kernels have them.",
        "s / 6h is the published share of FLOPs that selective recomputation adds. Its two "
        "products once more are 4 b s^2 h over 72 b s h^2 + 12 b s^2 h, less than a third of that: "
        "the column by formula. Eager attention takes half of that: its recomputation stops "
        "before the product with V, whose result nothing needs.",
    ]
    unfused = [found for found in measured if found.attention == "sdpa" and found.stores_scores]
    if unfused:
        labels = ", ".join(found.device_label for found in unfused)
        notes.append(
            f"sdpa, {labels}: PyTorch has no fused kernel with dropout there and falls back to one "
            "that stores the attention matrix."
        )
    return tuple(notes)


def check(
    open_device: OpenDevice,
    *,
    length: int = LENGTH,
    say: Say = silent,
) -> Reproduction:
    """Measure QA-Bert's layers on the simulated GPU and on the CPU, and time a large one."""
    measured: list[LayerBytes] = []
    label = ""
    for opening, scale in ((open_device, "full"), (lambda: opened("cpu"), _CPU_SCALE)):
        for attention in ATTENTIONS:
            task = make_task(
                "qa-bert",
                TaskOptions(scale=scale, data="synthetic", attention=attention),  # type: ignore[arg-type]
            )
            with opening() as device:
                label = label or device.label
                say(f"activations: qa-bert {scale}, {attention}, {device.label}")
                measured.append(measure(device, task, attention, length))
    return judge(measured, label, layer_times.claims(layer_times.measure(say)))
