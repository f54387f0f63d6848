"""Tables I and II: what planners can do, and which models are trained.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025. A planner's features here follow from its class: one
that plans once is made for one size, one of tensors takes whatever graph comes. Parameters are
counted in the models as they are trained, ties once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from mimose.planners import PLANNERS
from mimose.planners.constant import Constant
from mimose.planners.evicting import Evicting
from mimose.planners.static import Static
from mimose_bench.experiments.figures.claims import Claim, Version
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent
from mimose_bench.experiments.tasks import TASKS, TaskOptions, make_task

PARAMETER_TOLERANCE = 0.05
"""Relative; the paper prints them in millions."""


@dataclass(frozen=True, slots=True)
class Features:
    """A row of Table I.

    Attributes:
        dynamic_input: Whether plans follow the size of each input.
        dynamic_graph: Whether the operators may be others from iteration to iteration.
        granularity: What is recomputed as one.
        solving: How long making a plan takes.
    """

    dynamic_input: bool
    dynamic_graph: bool
    granularity: str
    solving: str


PAPER: Mapping[str, Features] = {
    "Mimose": Features(True, False, "block", "short"),
    "DTR": Features(True, True, "tensor", "short"),
    "Sublinear": Features(False, False, "layer", "short"),
    "Checkmate": Features(False, False, "layer", "< 1 hour"),
    "MONeT": Features(False, False, "tensor", "hours"),
    "Capuchin": Features(False, False, "tensor", "short"),
    "MegTaiChi": Features(False, True, "tensor", "short"),
    "HOME": Features(False, False, "tensor", "short"),
    "STR": Features(False, False, "tensor", "minutes"),
}
"""Table I."""

OURS = {"mimose": "Mimose", "dtr": "DTR", "sublinear": "Sublinear", "checkmate": "Checkmate"}
"""Planners that are in Table I, by their names here."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A row of Table II.

    Attributes:
        model: The model's name.
        parameters: How many it has; None where the paper does not say.
        batch_size: Samples in a batch.
        version: Whose row it is.
    """

    model: str
    parameters: float | None
    batch_size: int
    version: Version = "ipdps"


TRAINED: Mapping[str, Trained] = {
    "mc-roberta": Trained("RoBERTa-base", 125e6, 16),
    "tr-t5": Trained("T5-base", 220e6, 8),
    "qa-bert": Trained("BERT-base", 110e6, 12),
    "tc-bert": Trained("BERT-base", 110e6, 32),
    "od-r50": Trained("ResNet-50", None, 8),
    "od-r101": Trained("ResNet-101", None, 6),
    "qa-xlnet": Trained("XLNet-base", None, 16, "v1"),
}
"""Table II by task; QA-XLNet is the first version's."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A task as it is here.

    Attributes:
        parameters: Of the model as built, ties counted once.
        batch_size: Samples in a batch.
    """

    parameters: int
    batch_size: int


def features(planner: str) -> Features:
    """Return what a planner of :data:`mimose.planners.PLANNERS` can do, by its class."""
    kind = PLANNERS[planner]
    of_tensors = issubclass(kind, Evicting)
    limited = "time_limit" in inspect.signature(kind).parameters
    solving = "within the step" if of_tensors else "before each step"
    if issubclass(kind, Static):
        solving = "once, up to a limit" if limited else "once"
    one_plan = issubclass(kind, Static)
    if issubclass(kind, Constant) and not of_tensors:
        solving, one_plan = "given", True
    return Features(
        dynamic_input=not one_plan,
        dynamic_graph=of_tensors,
        granularity="tensor" if of_tensors else "block",
        solving=solving,
    )


def count_parameters(model: nn.Module) -> int:
    """Return how many parameters a model has, ties counted once, frozen ones with them."""
    return sum(parameter.numel() for parameter in model.parameters())


def judge(counted: Mapping[str, Counted], device_label: str) -> Reproduction:
    """Compare features and tasks with the paper's.

    Args:
        counted: Tasks as they are here.
        device_label: What models were built on.
    """
    differing = [
        f"{name}: {what}"
        for planner, name in OURS.items()
        for what in ("dynamic_input", "dynamic_graph")
        if getattr(features(planner), what) != getattr(PAPER[name], what)
    ]
    claims = []
    for task, found in counted.items():
        paper = TRAINED[task]
        title = TASKS[task].title
        if paper.parameters is not None:
            claims.append(
                Claim(
                    text=f"{title}: parameters of {paper.model}",
                    source="Table II",
                    version=paper.version,
                    unit="count",
                    expected=paper.parameters,
                    obtained=found.parameters,
                    tolerance=PARAMETER_TOLERANCE,
                    relative=True,
                    device_label=device_label,
                )
            )
        claims.append(
            Claim(
                text=f"{title}: samples in a batch",
                source="Table II",
                version=paper.version,
                unit="count",
                expected=paper.batch_size,
                obtained=found.batch_size,
                device_label=device_label,
            )
        )
    return Reproduction(
        name="tables12",
        title="features of planners, and the tasks",
        source="Tables I and II",
        device_label=device_label,
        rows=(),
        criteria=(
            Criterion(
                name="planners that take dynamic inputs or graphs where the paper's do not, or "
                "do not where it does",
                value=len(differing),
                tolerance=0,
                is_count=True,
            ),
        ),
        claims=tuple(claims),
        tables=(_features_table(), _tasks_table(counted)),
        notes=(
            *([f"They differ: {', '.join(differing)}."] if differing else []),
            "Sublinear and Checkmate plan over blocks here, as Mimose does, so that planners alone "
            "are compared; in the paper over layers. What solving takes here is in check static.",
        ),
    )


def check(open_device: OpenDevice, *, say: Say = silent) -> Reproduction:
    """Build every task's model, count, and compare."""
    counted: dict[str, Counted] = {}
    label = ""
    for name in TRAINED:
        say(f"tables12: {name}")
        task = make_task(name, TaskOptions(scale="full", data="synthetic"))
        with open_device() as device:
            label = device.label
            counted[name] = Counted(
                count_parameters(device.build(task.build_model)), task.batch_size
            )
    return judge(counted, label)


def _features_table() -> ResultTable:
    rows = []
    for name, theirs in PAPER.items():
        rows.append((name, "the paper", *_cells(theirs)))
        rows += [(name, f"here: {p}", *_cells(features(p))) for p, n in OURS.items() if n == name]
    others = [planner for planner in PLANNERS if planner not in OURS]
    rows += [(planner, "here", *_cells(features(planner))) for planner in others]
    return ResultTable(
        title="Table I: features of planners",
        headers=("planner", "where", "dynamic input", "dynamic graph", "granularity", "solving"),
        rows=tuple(rows),
    )


def _cells(found: Features) -> tuple[str, ...]:
    words = {True: "yes", False: "no"}
    return (
        words[found.dynamic_input],
        words[found.dynamic_graph],
        found.granularity,
        found.solving,
    )


def _tasks_table(counted: Mapping[str, Counted]) -> ResultTable:
    return ResultTable(
        title="Table II: tasks",
        headers=("task", "data", "model", "parameters: paper", "here", "batch: paper", "here"),
        rows=tuple(
            (
                TASKS[task].title,
                getattr(TASKS[task], "dataset", "") or "-",
                TRAINED[task].model,
                "-" if (told := TRAINED[task].parameters) is None else f"{told / 1e6:.0f} M",
                f"{found.parameters / 1e6:.1f} M",
                f"{TRAINED[task].batch_size}",
                f"{found.batch_size}",
            )
            for task, found in counted.items()
        ),
    )
