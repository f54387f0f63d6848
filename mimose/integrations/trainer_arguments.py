"""Which of the Trainer's arguments go together with a memory budget."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import TrainingArguments

COMPILED = (
    "the whole model is compiled, and one compiled graph would be made for every plan: leave "
    "torch_compile out, and call layer.compile() on each of the model's layers instead"
)


def check_arguments(args: TrainingArguments) -> None:
    """Refuse settings that work against a memory budget.

    Raises:
        ValueError: If there are any.
    """
    # Recent versions of transformers know it by both names, older ones by the first only.
    if any(
        getattr(args, name, False)
        for name in ("gradient_checkpointing", "activation_checkpointing")
    ):
        raise ValueError(
            "gradient_checkpointing (activation_checkpointing in recent versions) recomputes every "
            "layer whatever the batch, and mimose decides that batch by batch: leave it out of the "
            "TrainingArguments"
        )
    sharding = getattr(args, "fsdp_config", None)
    if isinstance(sharding, Mapping) and sharding.get("activation_checkpointing"):
        raise ValueError(
            "fsdp_config turns FSDP's own activation checkpointing on, and mimose decides what is "
            "recomputed batch by batch: leave activation_checkpointing out of it"
        )
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size starts the training over with a smaller batch where one runs out "
            "of memory, and mimose plans each batch to fit: leave auto_find_batch_size out of the "
            "TrainingArguments"
        )
    if args.torch_compile:
        raise ValueError(COMPILED)
    if getattr(args, "deepspeed", None):
        raise ValueError(
            "DeepSpeed moves parameters and gradients itself, which mimose does not predict: "
            "leave deepspeed out of the TrainingArguments"
        )
    if args.n_gpu > 1:
        raise ValueError(
            f"the Trainer would copy the model to {args.n_gpu} GPUs within one process, and one "
            "budget is for one GPU: start with torchrun, a process a GPU, or set "
            "CUDA_VISIBLE_DEVICES to one of them"
        )
