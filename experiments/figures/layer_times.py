"""What recomputing a layer, or its attention core alone, takes: Korthikanti et al. 2022.

arXiv:2205.05198, Table 4 and section 5: forward and backward of a layer of the 22B model, and what
selective recomputation saves of GPT-3 and MT-NLG. The original's layer is split over eight GPUs;
here a whole one is simulated on one GPU of the same kind, in fp16. Layers are told from the rest of
the model by the difference between four and two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from mimose.plan import Plan
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.session import Say, opened, silent, training
from mimose_bench.experiments.figures.workloads import Workload
from mimose_bench.experiments.formulas import GPT3, Layer

DEVICE = "sim:a100-80gb"
SEQUENCE, BATCH, HIDDEN, HEADS = 2048, 4, 6144, 64
"""The 22B model's layer."""
DEPTHS = (2, 4)
STEPS = 3

BASE, FULL, SELECTIVE = "nothing", "the layer", "the attention core"
SLOWER: Mapping[str, float] = {FULL: 0.39, SELECTIVE: 0.07}
TOLERANCE = 0.05
"""The most that a ratio of times may be off."""

MT_NLG = Layer(s=2048, b=1, h=20480, a=128)
SAVED = ((GPT3, "GPT-3", 0.70, 0.027), (MT_NLG, "MT-NLG", 0.65, 0.016))
"""Layer, name, share of memory that selective recomputation saves, share of FLOPs it adds."""
SAVED_TOLERANCE, FLOPS_TOLERANCE = 0.005, 0.001


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of forward and backward of a layer, by what is recomputed.

    Attributes:
        device_label: Where.
        seconds: By :data:`BASE`, :data:`FULL` and :data:`SELECTIVE`.
    """

    device_label: str
    seconds: Mapping[str, float]


def measure(say: Say = silent) -> Times:
    """Simulate a few steps of both depths with each plan."""
    passes: dict[tuple[str, int], float] = {}
    label = ""
    for depth in DEPTHS:
        workload = _workload(depth)
        plans = {
            BASE: Plan.keep_all(depth),
            FULL: Plan.recompute_each(depth),
            SELECTIVE: Plan(depth, (), tuple(range(depth))),
        }
        for name, plan in plans.items():
            say(f"activations: {depth} layers of the 22B model, {name} recomputed")
            with (
                opened(DEVICE) as device,
                training(device, workload, "fixed", plan=str(plan)) as session,
            ):
                label = device.label
                for _ in range(STEPS):
                    record = session.step(SEQUENCE)
                assert record.forward_seconds is not None
                assert record.backward_seconds is not None
                passes[name, depth] = record.forward_seconds + record.backward_seconds
    few, many = DEPTHS
    return Times(
        label,
        {
            name: (passes[name, many] - passes[name, few]) / (many - few)
            for name in (BASE, FULL, SELECTIVE)
        },
    )


def _workload(depth: int) -> Workload:
    return Workload(
        name=f"22B, {depth} layers",
        dataset="SQuAD",
        batch_size=BATCH,
        longest=SEQUENCE,
        new_model=partial(_model, depth),
        labels=_labels,
    )


def _model(depth: int) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=1024,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=depth,
        max_position_embeddings=SEQUENCE,
        attn_implementation="eager",
    )
    return transformers.BertForQuestionAnswering(config).half()


def _labels(samples: int) -> dict[str, torch.Tensor]:
    position = torch.ones(samples, dtype=torch.long)
    return {"start_positions": position, "end_positions": position.clone()}


def claims(times: Times) -> list[Claim]:
    """Return the paper's statements beside what was simulated and what the formulas give."""
    base = times.seconds[BASE]
    found = [
        Claim(
            text=f"22B model: forward and backward of a layer are slower with {name} recomputed",
            source="Korthikanti et al. 2022, Table 4",
            version="other",
            unit="%",
            expected=expected,
            obtained=times.seconds[name] / base - 1,
            tolerance=TOLERANCE,
            device_label=times.device_label,
            note="the original's layer is split over eight GPUs, whose backward pass hides copies "
            "that recomputation cannot",
        )
        for name, expected in SLOWER.items()
    ]
    for layer, name, saved, flops in SAVED:
        rows = (
            (
                "saves of a layer's activations",
                saved,
                layer.selective_bytes / layer.kept_bytes,
                SAVED_TOLERANCE,
            ),
            ("adds to the FLOPs", flops, 2 - layer.selective_flops_ratio, FLOPS_TOLERANCE),
        )
        found += [
            Claim(
                text=f"{name}: what selective recomputation {what}",
                source="Korthikanti et al. 2022, section 5",
                version="other",
                unit="%",
                expected=expected,
                obtained=1 - rest,
                tolerance=tolerance,
                device_label="formula",
            )
            for what, expected, rest, tolerance in rows
        ]
    return found
