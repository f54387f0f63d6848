"""Train one architecture twice, unattached and under a budget, and hold the two side by side."""

from __future__ import annotations

import gc
import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

import mimose
from mimose.devices import open_device
from mimose.devices.base import Device
from mimose.handle import SizeFunction
from mimose.records import StepRecord
from mimose.report import is_violation

PLANNERS = ("auto", "mimose")
"""The library's default comes first."""
RESPONSIVE = 6
EXACT = 0.01
"""A prediction is off by less than this share of the measured peak."""
Batch = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One architecture of the zoo.

    Attributes:
        name: What it is called in the table.
        build: Makes the model, small and from its configuration.
        batch: Returns the batch of step ``n``.
        share: The budget as a share of what unattached training reserves at its peak.
        size: What the size of a batch is read by, where its shapes alone do not tell.
        blocks: Names of its blocks, where those that are found do not do.
        sheltered: Number of sheltered steps: more where a size has more extents.
        exact: Whether predictions are expected to be off by less than the bound; where they are
            not, ``note`` says why.
        quick: Whether it is one of the few that always run.
        note: What is special about it.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    share: float = 0.75
    size: SizeFunction | None = None
    blocks: tuple[str, ...] | None = None
    sheltered: int = 4
    exact: bool = True
    quick: bool = False
    note: str = ""

    @property
    def steps(self) -> int:
        """Number of steps under the budget."""
        return self.sheltered + RESPONSIVE


@dataclass
class Trained:
    """What one training left behind.

    Attributes:
        losses: The loss of each step.
        gradients: A digest of all gradients of each step.
        peak_allocated: Highest peak of a step, in bytes; that of one more step left out.
        peak_reserved: The same of reserved bytes.
        state: A digest of parameters, buffers and the random state at the end.
        trace: What the model's modules and PyTorch's registries hold at the end.
        records: The attached steps.
        blocks: Number of blocks.
    """

    losses: list[float] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    peak_allocated: int = 0
    peak_reserved: int = 0
    state: str = ""
    trace: dict[str, Any] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)
    blocks: int = 0

    @property
    def responsive(self) -> list[StepRecord]:
        """The steps that were planned from what the sheltered ones had shown."""
        return [r for r in self.records if r.phase == "responsive"]


@dataclass
class Outcome:
    """Both trainings of a case.

    Attributes:
        plain: Unattached.
        attached: Under the budget.
        budget_bytes: The budget.
        class_name: The model's class.
        device_label: Where it was measured.
    """

    plain: Trained
    attached: Trained
    budget_bytes: int
    class_name: str
    device_label: str

    @property
    def equal(self) -> bool:
        """Whether losses, gradients and the state at the end are the same, bit by bit."""
        one, other = self.plain, self.attached
        return (one.losses, one.gradients, one.state) == (
            other.losses,
            other.gradients,
            other.state,
        )

    @property
    def saving(self) -> int:
        """Number of responsive steps that recomputed blocks or let values go."""
        return sum(bool(r.plan.regions or r.plan.remade) for r in self.attached.responsive)

    @property
    def recomputed_share(self) -> float:
        """Share of the blocks that responsive steps recomputed."""
        return self._share(sum(r.plan.num_recomputed for r in self.attached.responsive))

    @property
    def remade_share(self) -> float:
        """Share of the blocks of which responsive steps let values go."""
        return self._share(sum(len(r.plan.remade) for r in self.attached.responsive))

    def _share(self, blocks: int) -> float:
        return blocks / max(1, self.attached.blocks * len(self.attached.responsive))

    @property
    def peak_ratio(self) -> float:
        """Peak under the budget over the unattached one, of allocated bytes."""
        return self.attached.peak_allocated / self.plain.peak_allocated

    @property
    def prediction_errors(self) -> list[float]:
        """Predicted over measured peak, less one, of each responsive step."""
        return [
            r.predicted_peak_bytes / r.peak_allocated_bytes - 1
            for r in self.attached.responsive
            if r.predicted_peak_bytes is not None and r.peak_allocated_bytes
        ]

    @property
    def violations(self) -> int:
        """Number of steps that ran out of memory, were retried or made the allocator flush."""
        return sum(map(is_violation, self.attached.records))


def conform(case: Case, planner: str, plain: Trained | None = None) -> Outcome:
    """Train ``case`` unattached, then under its budget, and return both.

    Args:
        case: The architecture.
        planner: The planner's name.
        plain: What training unattached has left behind, if that was done before.
    """
    device = open_device("cpu", reset_peaks=True)
    try:
        if plain is None:
            plain = _train(case, device, None, planner)
        budget = int(case.share * plain.peak_reserved)
        gc.collect()  # What is freed in a step that is measured would be missed there.
        device.release_cache()
        attached = _train(case, device, budget, planner)
        name = _built_class(case)
        return Outcome(plain, attached, budget, name, device.label)
    finally:
        device.enforce(None)
        device.close()


def _built_class(case: Case) -> str:
    with torch.device("meta"):
        return type(case.build()).__name__


def _train(case: Case, device: Device, budget: int | None, planner: str) -> Trained:
    transformers.set_seed(0)  # NumPy's generator as well: some models draw masks from it.
    model = case.build().train()
    device.adopt(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    trained = Trained()
    classes = [type(module) for module in model.modules()]
    transformers.set_seed(1)
    if budget is None:
        for number in range(case.steps):
            _step(case, number, model, device, optimizer, trained)
        device.enforce(None)
    else:
        with mimose.attach(
            model,
            budget,
            planner,
            device=device,
            enforce=True,
            size=case.size,
            blocks=case.blocks,
            sheltered=case.sheltered,
        ) as handle:
            for number in range(case.steps):
                _step(case, number, model, device, optimizer, trained)
                trained.records.append(handle.last_record)
            trained.blocks = len(handle.block_names)
    # One more, which is nobody's any more.
    peaks = trained.peak_allocated, trained.peak_reserved
    _step(case, case.steps, model, device, optimizer, trained)
    trained.peak_allocated, trained.peak_reserved = peaks
    trained.state = _digest([*model.state_dict().values(), torch.get_rng_state()])
    trained.trace = trace_of(model)
    trained.trace["classes"] = classes == [type(module) for module in model.modules()]
    return trained


def _step(
    case: Case,
    number: int,
    model: nn.Module,
    device: Device,
    optimizer: torch.optim.Optimizer,
    trained: Trained,
) -> None:
    attached = bool(getattr(model, "forward", None)) and "forward" in vars(model)
    batch = device.put(case.batch(number))
    if not attached:
        device.begin_step()
    loss = loss_of(model(**batch))
    loss.backward()
    trained.losses.append(loss.item())
    del loss
    trained.gradients.append(_digest([p.grad for p in model.parameters() if p.grad is not None]))
    optimizer.step()
    stats = device.stats()
    trained.peak_allocated = max(trained.peak_allocated, stats.step_peak_allocated)
    trained.peak_reserved = max(trained.peak_reserved, stats.step_peak_reserved)
    optimizer.zero_grad()


def loss_of(output: Any) -> torch.Tensor:
    """Return a model's own loss, or something to train by where it has none."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss.mean()
    return output.last_hidden_state.float().pow(2).mean()


def _digest(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)
_SIMPLE = (bool, int, str, type(None))


def trace_of(model: nn.Module) -> dict[str, Any]:
    """Return whatever attaching might leave behind, as plain data.

    Of each module its class, the names of its attributes, the values of the simple ones and how
    many hooks of each kind it has; the configurations' settings; the hooks that are PyTorch's.
    """
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        own = vars(module)
        found[name] = (
            type(module).__qualname__,
            sorted(own),
            {key: value for key, value in own.items() if isinstance(value, _SIMPLE)},
            [len(own[table]) for table in _HOOKS if table in own],
        )
    found["configs"] = sorted(
        {
            repr(config.to_dict())
            for module in model.modules()
            if hasattr(config := getattr(module, "config", None), "to_dict")
        }
    )
    found["hooks"] = [len(table) for table in _global_hooks()]
    return found


def _global_hooks() -> Iterator[dict[int, Any]]:
    from torch.nn.modules import module
    from torch.optim import optimizer

    yield optimizer._global_optimizer_pre_hooks
    yield optimizer._global_optimizer_post_hooks
    yield module._global_forward_pre_hooks
    yield module._global_forward_hooks
    yield module._global_backward_hooks
    yield module._global_backward_pre_hooks


def quietly(case: Case, planner: str, plain: Trained | None = None) -> Outcome:
    """Return :func:`conform`, without what libraries warn about such small models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return conform(case, planner, plain)
