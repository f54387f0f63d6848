"""The configuration of one run: every option resolved, checked together, written to the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCALES = ("full", "small", "tiny")
_MOST_THREADS = 1024
PRECISIONS = ("fp32", "bf16", "fp16")
STEPS = 200
"""Training steps of a run unless it says otherwise."""


class BudgetTooSmallError(ValueError):
    """A budget that not even the model's parameters fit: no plan does."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run of one task under one planner.

    Raises:
        ValueError: If options are out of range or do not fit each other; the message names the
            option to change.
    """

    task: str = "qa-bert"
    """Name of the task."""
    planner: str = "mimose"
    """Name of the planner, or ``package.module:Class``."""
    budget: int | None = None
    """Bound on reserved bytes; None is the unlimited reference."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``sim:NAME``."""
    allocator: str | None = None
    """``native`` or ``expandable`` segments, on cpu and sim; None is ``native``, and on cuda what
    PyTorch is set to."""
    scale: str = "full"
    """``full``, ``small`` or ``tiny``."""
    lengths: str = "sampled"
    """``sampled``: batches as the data brings them; ``expected``: each length once, weighted."""
    steps: int | None = None
    """Training steps; None is 200 of ``sampled`` lengths, as many as it takes of ``expected``."""
    seed: int = 42
    """Fixes weights, data and dropout."""
    data: str = "auto"
    """``auto``, ``hub``, ``synthetic`` or a path."""
    vocab: str | None = None
    """Tokenizer for ``data`` paths."""
    weights: str = "random"
    """``random``, ``pretrained`` or a path."""
    attention: str = "eager"
    """``eager`` or ``sdpa``."""
    precision: str = "fp32"
    """``fp32``, or ``bf16`` and ``fp16`` under autocast."""
    plan: str | None = None
    """Plan of the ``fixed`` planner: text or a JSON file."""
    variant: str | None = None
    """Variant of the ``mimose`` planner: ``printed`` or ``authors``."""
    margin: int | None = None
    """Bytes left for fragmentation; None is 5 % for planners that plan once, and lets ``mimose``
    and ``auto`` learn them."""
    sheltered: int | None = None
    """Sheltered iterations of the planners ``mimose`` and ``auto``."""
    cache_step: int | None = None
    """Step to which the planners ``mimose`` and ``auto`` round sizes up."""
    every: int | None = None
    """Blocks in a region of the ``full`` planner."""
    segments: int | None = None
    """Segments of the ``sqrt-n`` planner."""
    heuristic: str | None = None
    """What the ``dtr`` planner evicts first."""
    sampling: str | None = None
    """Whether planners that evict tensors look at a sample of them only: ``on`` or ``off``."""
    trigger: str | None = None
    """When they evict: ``threshold``, ``after`` or ``oom``."""
    reserve: str | None = None
    """Part of the budget that they leave: bytes, or a share such as ``25%``."""
    actions: str | None = None
    """What the ``delta`` planner may do with a tensor: ``recompute``, ``swap`` or ``both``."""
    filter: str | None = None
    """How it chooses tensors: ``base``, ``lru`` or ``greedy``."""
    prefetch: str | None = None
    """Whether it brings swapped tensors back ahead of their use: ``on`` or ``off``."""
    offload: str | None = None
    """Whether the ``auto`` planner may have values in the host's memory: ``on`` or ``off``."""
    time_limit: float | None = None
    """Seconds that a planner may solve for."""
    gap: float | None = None
    """Share by which a solution may be worse than the best one, where a planner stops then."""
    plan_size: str | None = None
    """Size that a planner that plans once plans for, as the task's sizes are written; None is the
    largest batch."""
    fresh_plan: bool = False
    """Solve anew, even if an earlier run has solved the same."""
    flops: str = "auto"
    """Whether to count FLOPs after the loop: ``on``, ``off``, or ``auto``, which is off on cpu."""
    planner_options: dict[str, str] = field(default_factory=dict)
    """Further options of the planner, as text."""
    zero_grad: str = "keep"
    """``keep`` fills gradients with zeros after a step, as the paper's PyTorch did; ``free``."""
    foreach: str = "auto"
    """Whether the optimizer updates many parameters in one kernel: ``on``, ``off`` or ``auto``,
    PyTorch's choice for the device, which is ``on`` for cuda and its simulation."""
    on_oom: str = "stop"
    """``stop`` ends the run at a batch that cannot fit; ``skip`` goes on with the next."""
    enforce: bool = True
    """Whether exceeding the budget fails."""
    lr: float | None = None
    """Learning rate; None is the task's own."""
    batch_size: int | None = None
    """Batch size; None is the task's own."""
    optimizer: str | None = None
    """``adamw``, ``sgd`` or ``momentum``; None is the task's own."""
    task_options: dict[str, str] = field(default_factory=dict)
    """Options that only the task has, as text."""
    out: Path = Path("results")
    """Folder in which the run's own folder is made."""
    threads: int | None = None
    """Threads of torch's CPU operators; None leaves torch's default."""

    def __post_init__(self) -> None:
        _one_of("--lengths", self.lengths, ("sampled", "expected"))
        if self.lengths == "expected" and self.steps is not None:
            raise ValueError(
                "--lengths expected runs each length once: leave --steps out, or use "
                "--lengths sampled"
            )
        if self.lengths == "sampled" and self.steps is None:
            object.__setattr__(self, "steps", STEPS)
        for name, value in (
            ("--steps", self.steps),
            ("--batch-size", self.batch_size),
            ("--threads", self.threads),
            ("--sheltered", self.sheltered),
            ("--cache-step", self.cache_step),
            ("--every", self.every),
            ("--segments", self.segments),
        ):
            if value is not None:
                _positive(name, value)
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"--lr must be above 0, not {self.lr}")
        if self.time_limit is not None and not 0 < self.time_limit < float("inf"):
            raise ValueError(
                f"--time-limit must be a number of seconds above 0 and not endless, not "
                f"{self.time_limit}"
            )
        if self.gap is not None and not 0 <= self.gap < 1:
            raise ValueError(f"--gap is a share from 0 to below 1, not {self.gap}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"--seed must be from 0 to 2^63 - 1, not {self.seed}")
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise ValueError(f"--threads must be at most {_MOST_THREADS}, not {self.threads}")
        if self.allocator is not None:
            _one_of("--allocator", self.allocator, ("native", "expandable"))
            if self.device.partition(":")[0] == "cuda":
                raise ValueError(
                    "on cuda the allocator is PyTorch's: leave --allocator out and set "
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (or False) before the start"
                )
        _one_of("--scale", self.scale, SCALES)
        _one_of("--precision", self.precision, PRECISIONS)
        _one_of("--attention", self.attention, ("eager", "sdpa"))
        _one_of("--zero-grad", self.zero_grad, ("keep", "free"))
        _one_of("--foreach", self.foreach, ("auto", "on", "off"))
        _one_of("--on-oom", self.on_oom, ("stop", "skip"))
        _one_of("--flops", self.flops, ("auto", "on", "off"))
        if self.device.startswith("sim") and self.precision != "fp32":
            raise ValueError(
                f"--precision {self.precision} is not simulated: PyTorch has no autocast for "
                "tensors without data; give --precision fp32"
            )
        if self.plan is not None and self.planner != "fixed":
            raise ValueError(f"--plan belongs to --planner fixed, not to {self.planner}")
        if self.plan is None and self.planner == "fixed":
            raise ValueError("--planner fixed needs --plan, for example 'keep 0-9 | recompute 10'")

    def options(self) -> dict[str, Any]:
        """Return the planner's keyword arguments; only those that were given.

        Raises:
            ValueError: If there is no such planner or it does not take one of them.
        """
        from mimose.planners import planner_options  # Whoever only reads runs needs no planner.

        values = {name: getattr(self, name) for name in PLANNER_OPTIONS}
        given = {name: value for name, value in values.items() if value is not None}
        taken = planner_options(self.planner)
        for name in given if taken is not None else ():
            if name not in taken:
                raise ValueError(
                    f"--{name.replace('_', '-')} is no option of planner {self.planner}, which "
                    + _takes(taken)
                )
        return given | self.planner_options


PLANNER_OPTIONS = (
    "plan",
    "variant",
    "margin",
    "sheltered",
    "cache_step",
    "every",
    "segments",
    "heuristic",
    "sampling",
    "trigger",
    "reserve",
    "actions",
    "filter",
    "prefetch",
    "offload",
    "time_limit",
    "gap",
)
"""Options of planners that the command line has by name; the rest are ``planner_options``."""


def as_flag(option: str) -> str:
    """Return how a planner's option is given on the command line."""
    if option in PLANNER_OPTIONS:
        return f"--{option.replace('_', '-')}"
    return f"--planner-option {option}=..."


def _takes(names: tuple[str, ...]) -> str:
    return f"takes {', '.join(map(as_flag, names))}" if names else "takes none"


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value}")
