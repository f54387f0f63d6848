"""A step that runs out of memory is undone and run again; nothing of it shows in what is learned.

The model is convolutional, so that batch norm's statistics would show a forward pass run twice.
"""

import pytest
import torch
from torch import nn

from mimose.plan import Plan
from mimose.planners.fixed import Fixed
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.reading import load_run
from mimose_bench.experiments.run import run

BLOCKS = 4
FAILING_STEP = 2
MIB = 1 << 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return x + nn.functional.dropout(self.norm(self.conv(x)).relu(), 0.2, self.training)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(8, 3)

    def forward(self, images):
        for block in self.blocks:
            images = block(images)
        return self.head(images.mean((2, 3)))


class Images:
    """What the training loop asks of a task."""

    def loss(self, model, tensors):
        return nn.functional.cross_entropy(model(tensors["images"]), tensors["labels"])

    def settings(self):
        return {}

    def optimizer(self, model, *, foreach=None):
        return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=foreach)

    def batches(self, steps):
        generator = torch.Generator().manual_seed(5)
        for _ in range(steps):
            images = torch.randn(4, 8, 12, 12, generator=generator)
            labels = torch.randint(3, (4,), generator=generator)
            yield Batch({"images": images, "labels": labels}, (4, 144), 576, 4, 576)


class Injected:
    """Raises out of memory once, when the module is run or gone back through for the n-th time."""

    def __init__(self, module, place, count):
        self.left = count
        self.place = place
        self.forwards = 0
        module.register_forward_hook(self)

    def __call__(self, module, inputs, output):
        self.forwards += 1
        if self.place == "forward":
            self.count()
        elif output.requires_grad:
            output.register_hook(lambda gradient: self.count())

    def count(self):
        self.left -= 1
        if self.left == 0:
            raise torch.OutOfMemoryError("injected")


def keep_all():
    return Fixed(Plan.keep_all(BLOCKS))


def train(lab, planner, inject=None, steps=5):
    torch.manual_seed(0)
    lab.task = Images()
    trainer = lab.trainer(planner, model=Net().train())
    injected = inject(trainer) if inject else None
    return trainer, list(trainer.steps(lab.task.batches(steps))), injected


def state(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


@pytest.mark.parametrize("zero_grad", ["keep", "free"])
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_step_that_ran_out_of_memory_once_leaves_no_trace(lab, place, zero_grad):
    lab.config = RunConfig(zero_grad=zero_grad)
    undisturbed, expected, _ = train(lab, "baseline")

    def inject(trainer):
        return Injected(trainer.model.blocks[2], place, FAILING_STEP + 1)

    trainer, steps, _ = train(lab, keep_all(), inject)
    outcomes = [s.record.outcome for s in steps]
    assert outcomes == ["ok"] * FAILING_STEP + ["retried"] + ["ok"] * (4 - FAILING_STEP)
    assert steps[FAILING_STEP].record.plan == Plan.recompute_each(BLOCKS)
    assert [s.loss for s in steps] == [s.loss for s in expected]
    before = state(undisturbed)
    assert int(before["blocks.0.norm.num_batches_tracked"]) == 5
    for name, tensor in state(trainer).items():
        assert torch.equal(tensor, before[name]), name


def test_nothing_of_a_failed_attempt_stays_allocated(lab):
    def inject(trainer):
        return Injected(trainer.model.blocks[3], "forward", FAILING_STEP + 1)

    _, steps, _ = train(lab, keep_all(), inject)
    _, full, _ = train(lab, "full")
    failed, alike = steps[FAILING_STEP].record, full[FAILING_STEP].record
    # The failed attempt kept three blocks' activations; the second one must not carry them along.
    above = failed.peak_allocated_bytes - failed.situation.resident_bytes
    kept = steps[1].record.peak_allocated_bytes - steps[1].record.situation.resident_bytes
    recomputed = alike.peak_allocated_bytes - alike.situation.resident_bytes
    assert recomputed < kept
    assert above <= kept


def test_the_optimizers_step_is_never_repeated(lab):
    def inject(trainer):
        calls = iter(range(10))

        def fail(*_):
            if next(calls) == FAILING_STEP:
                raise torch.OutOfMemoryError("injected")

        trainer.optimizer.register_step_pre_hook(fail)
        return Injected(trainer.model.blocks[0], "forward", -1)

    _, steps, blocks = train(lab, keep_all(), inject, steps=FAILING_STEP + 1)
    failed = steps[FAILING_STEP]
    assert failed.in_optimizer
    assert not failed.rescued
    assert failed.record.outcome == "oom"
    assert blocks.forwards == FAILING_STEP + 1


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_the_baseline_is_never_rescued(lab, place):
    def inject(trainer):
        return Injected(trainer.model.blocks[1], place, FAILING_STEP + 1)

    _, steps, block = train(lab, "baseline", inject, steps=FAILING_STEP + 1)
    assert [s.error is None for s in steps] == [True] * FAILING_STEP + [False]
    assert steps[-1].record.outcome == "oom"
    assert not steps[-1].rescued
    assert block.forwards == FAILING_STEP + 1


def test_a_second_failure_escapes_with_the_figures_in_its_text(lab):
    def inject(trainer):
        Injected(trainer.model.blocks[1], "forward", FAILING_STEP + 1)
        return Injected(trainer.model.blocks[1], "forward", FAILING_STEP + 1)

    _, steps, _ = train(lab, keep_all(), inject, steps=FAILING_STEP + 2)
    assert steps[FAILING_STEP].record.outcome == "oom"
    assert "The plan was: recompute each 0-3." in steps[FAILING_STEP].error
    assert steps[FAILING_STEP + 1].record.outcome == "ok"


@pytest.mark.parametrize("planner", ["fixed", "mimose"])
@pytest.mark.parametrize(("on_oom", "exit_code"), [("stop", 3), ("skip", 0)])
def test_a_batch_that_cannot_fit_stops_the_run_or_is_skipped(tmp_path, planner, on_oom, exit_code):
    # One step in this stream is far longer than the others.
    config = RunConfig(
        scale="tiny",
        data="synthetic",
        device="cpu",
        planner=planner,
        plan="recompute each 0-3" if planner == "fixed" else None,
        budget=8 * MIB,
        steps=30,
        seed=1,
        on_oom=on_oom,
        out=tmp_path,
    )
    result = run(config, quiet=True)
    steps = load_run(result.info["summary"]["run_dir"]).steps
    assert result.exit_code == exit_code
    failed = steps.index[steps["outcome"] == "oom"]
    assert len(failed) > 0
    if on_oom == "stop":
        assert list(failed) == [len(steps) - 1]
        assert "budget" in result.message
    else:
        assert len(steps) == 30
        assert (steps["outcome"][failed[0] :] != "oom").any()
