"""Lightning: which module is attached, what is logged, kept and left behind; Fabric."""

import warnings

import pytest
import torch

pytest.importorskip("lightning", reason="needs lightning")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    from lightning.fabric import Fabric

from mimose.integrations.lightning import MimoseCallback, attach

pytestmark = pytest.mark.filterwarnings("default")


class Module(pl.LightningModule):
    """A few layers, as ``net``; what ``training_step`` calls is up to each test."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3)]
        self.net = torch.nn.Sequential(*layers)

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Dropping(Module):
    """Draws random numbers in its forward pass."""

    def __init__(self):
        super().__init__()
        self.net.append(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)))
        self.losses = []

    def training_step(self, batch, batch_idx):
        if batch_idx == 0:
            torch.manual_seed(1)
        loss = self.net(batch).square().mean()
        self.losses.append(loss.item())
        return loss


class Own(Module):
    """Calls its own forward, which uses two parts."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 1)

    def forward(self, batch):
        return self.head(self.net(batch))

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()


class Apart(Own):
    """Calls its parts one by one, and not its own forward."""

    def training_step(self, batch, batch_idx):
        return self.head(self.net(batch)).square().mean()


class Recording(pl.loggers.logger.DummyLogger):
    def __init__(self):
        super().__init__()
        self.metrics = {}

    def log_metrics(self, metrics, step=None):
        self.metrics.setdefault(step, {}).update(metrics)


class Watching(MimoseCallback):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.records = []

    def on_train_batch_end(self, *arguments):
        self.records.append(self.handle.last_record)
        super().on_train_batch_end(*arguments)


def fit(module, callback, tmp_path, **settings):
    settings = {"logger": False, "accelerator": "cpu", "max_steps": 4, **settings}
    trainer = pl.Trainer(
        callbacks=[callback],
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    batches = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=4))
    return trainer


@pytest.mark.parametrize(
    ("kind", "name", "attached"),
    [
        (Module, None, "Sequential"),
        (Own, None, "Own"),
        (Own, "net", "Sequential"),
        (Apart, "net", "Sequential"),
    ],
)
def test_the_module_whose_forward_is_called_is_attached(kind, name, attached, tmp_path):
    module, callback = kind(), MimoseCallback(None, "full", module=name, size=first_extents)
    fit(module, callback, tmp_path)
    assert callback.summary.startswith(f"mimose on {attached} ")
    assert "steps: 4" in callback.summary
    assert "recomputed: 3.00 of 3" in callback.summary
    assert callback.handle is None
    assert "forward" not in vars(module) | vars(module.net)


def first_extents(args, kwargs):
    return tuple(args[0].shape)


def test_a_forward_that_is_never_called_is_noticed(tmp_path):
    callback = MimoseCallback(None, "full", size=first_extents)
    module = Apart()
    with pytest.raises(ValueError, match="did not call the forward pass of Apart"):
        fit(module, callback, tmp_path)
    # And an exception leaves nothing behind.
    assert callback.handle is None
    assert "forward" not in vars(module)


def test_a_part_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="no part called 'nest': it has net"):
        fit(Module(), MimoseCallback(None, "full", module="nest"), tmp_path)


def test_accumulated_steps_are_logged_and_the_optimizer_is_seen_to_begin(tmp_path):
    logger = Recording()
    callback = Watching(None, "full", size=first_extents)
    fit(
        Module(),
        callback,
        tmp_path,
        max_steps=2,
        accumulate_grad_batches=2,
        logger=logger,
        log_every_n_steps=1,
    )
    assert set(logger.metrics) >= {1, 2}
    assert logger.metrics[2]["mimose_recomputed_blocks"] == 3
    assert callback.records[-1].optimizer_peak_bytes is not None
    assert callback.records[-1].situation.grads_resident


def test_accumulated_and_cast_losses_are_those_without(tmp_path):
    settings = {"accumulate_grad_batches": 4, "precision": "bf16-mixed", "max_steps": 2}
    kept, recomputed = Dropping(), Dropping()
    fit(kept, Watching(None, "baseline", size=first_extents), tmp_path, **settings)
    callback = Watching(None, "full", size=first_extents)
    fit(recomputed, callback, tmp_path, **settings)
    assert len(kept.losses) == 8
    assert recomputed.losses == kept.losses
    assert all("autocast torch.bfloat16" in r.situation.signature for r in callback.records[1:])
    assert callback.records[-1].plan.num_recomputed == 4


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_step_that_runs_out_is_run_again(tmp_path, stage):
    undisturbed, module = Dropping(), Dropping()
    fit(undisturbed, Watching(None, "baseline", size=first_extents), tmp_path)
    left = [torch.OutOfMemoryError("CUDA out of memory. Injected by a test")]

    def fail(*_):
        if module.global_step == 2 and left:
            raise left.pop()

    if stage == "forward":
        module.net.register_forward_hook(fail)
    else:
        module.net[1].register_full_backward_hook(fail)
    callback = MimoseCallback(None, "fixed", plan="keep 0", size=first_extents)
    fit(module, callback, tmp_path)
    assert not left
    assert "violations: 1" in callback.summary
    for one, other in zip(module.parameters(), undisturbed.parameters()):
        assert torch.equal(one, other)
    assert "optimizer_step" not in vars(module)


def test_an_accumulated_step_that_runs_out_ends_the_training(tmp_path):
    module, error = Module(), torch.OutOfMemoryError("CUDA out of memory. Injected by a test")

    def fail(*_):
        raise error

    module.net.register_forward_hook(fail)
    callback = MimoseCallback(None, "full", size=first_extents)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        fit(module, callback, tmp_path, accumulate_grad_batches=2)
    assert raised.value is error
    assert callback.handle is None
    assert not {"forward", "optimizer_step"} & (vars(module).keys() | vars(module.net).keys())


def test_an_optimizers_step_that_runs_out_has_the_figures(tmp_path):
    error = torch.OutOfMemoryError("CUDA out of memory. Injected by a test")

    class Optimized(Module):
        def on_before_optimizer_step(self, optimizer):
            raise error

    with pytest.raises(torch.OutOfMemoryError) as raised:
        fit(Optimized(), MimoseCallback(None, "full", size=first_extents), tmp_path)
    assert raised.value is error
    assert str(error).count("largest free block is") == 1


def test_validation_that_runs_out_is_none_of_its_business(tmp_path):
    class Validated(Module):
        def val_dataloader(self):
            return torch.utils.data.DataLoader(torch.randn(4, 8), batch_size=4)

        def validation_step(self, batch, batch_idx):
            assert "forward" in vars(self.net), "attached, and left alone"
            self.net(batch)
            raise error

    module, error = Validated(), torch.OutOfMemoryError("CUDA out of memory. Injected by a test")
    callback = MimoseCallback(None, "full", size=first_extents)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        fit(module, callback, tmp_path, num_sanity_val_steps=0)
    assert raised.value is error
    assert error.args == ("CUDA out of memory. Injected by a test",)
    assert "steps: 4" in callback.summary
    assert "forward" not in vars(module.net)


def test_a_checkpoint_holds_what_was_learned(tmp_path):
    callback = MimoseCallback("1GB", sheltered=1, size=first_extents)
    trainer = fit(Module(), callback, tmp_path, max_epochs=1, max_steps=-1)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    (state,) = (s for name, s in saved["callbacks"].items() if "Mimose" in name)
    assert state["learned"]["planner"] == "auto"
    again = Watching("1GB", sheltered=1, size=first_extents)
    again.load_state_dict(state)
    fit(Module(), again, tmp_path, max_steps=1)
    assert again.records[0].phase == "responsive"


def test_fabric():
    fabric = Fabric(accelerator="cpu", devices=1)
    with pytest.raises(ValueError, match=r"fabric\.setup\(model\) first"):
        attach(Module().net, None)
    net = Module().net
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with attach(model, None, "full", size=first_extents) as handle:
        assert handle.model is net
        fabric.backward(model(torch.randn(4, 8)).square().mean())
        optimizer.step()
        assert handle.last_record.plan.num_recomputed == 3


def test_a_fabric_loop_runs_accumulated_micro_batches_again():
    def trained(planner, out=0, **options):
        fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        module = Dropping()
        left = [torch.OutOfMemoryError("CUDA out of memory. Injected by a test")] * out
        seen = []

        def fail(*_):
            seen.append(None)
            if left and len(seen) == 3:
                raise left.pop()

        module.net.register_forward_hook(fail)
        model, optimizer = fabric.setup(module.net, torch.optim.SGD(module.parameters(), lr=0.1))
        with attach(model, None, planner, size=first_extents, **options) as handle:

            def gradients():
                for part in torch.arange(128.0).reshape(4, 4, 8) / 100:
                    fabric.backward(model(part).square().mean())

            torch.manual_seed(0)
            handle.run(gradients)
            optimizer.step()
            record = handle.last_record
        return list(module.parameters()), len(seen), record

    expected, passes, _ = trained("baseline")
    parameters, more, record = trained("fixed", out=1, plan="keep 0")
    assert (passes, more) == (4, 7)
    assert all(torch.equal(p, q) for p, q in zip(parameters, expected))
    assert "autocast torch.bfloat16" in record.situation.signature
