"""Hugging Face's Trainer: what the callback refuses, logs, keeps and leaves behind."""

import gc
import json
import warnings
import weakref

import pytest
import torch

pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import Trainer, TrainerCallback, TrainingArguments

import mimose
from mimose.integrations.transformers import MimoseCallback

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def trainer(generated, tmp_path):
    """Return a function that makes a Trainer, and detach whatever it left attached."""
    used = []

    def make(callback, *others, model=None, texts=16, **settings):
        settings = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 4,
            "max_steps": 2,
            "logging_steps": 1,
            "save_strategy": "no",
            "use_cpu": True,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            "report_to": [],
            **settings,
        }
        used.append(callback)
        return Trainer(
            model=model or generated.build_model(),
            args=TrainingArguments(**settings),
            train_dataset=generated.Texts(texts),
            eval_dataset=generated.Texts(4),
            data_collator=generated.collate,
            callbacks=[callback, *others],
        )

    yield make
    for callback in used:
        callback.detach()


class Failing(TrainerCallback):
    """Raises at the end of a step, once."""

    def __init__(self, step=1, error=None):
        self.step, self.error = step, error or RuntimeError("stopped by a test")

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step and self.error is not None:
            error, self.error = self.error, None
            raise error


class Silent(TrainerCallback):
    """Stands where the callback would."""

    def detach(self):
        pass


def losses(trained):
    return [log["loss"] for log in trained.state.log_history if "loss" in log]


def test_mimose_names_it():
    assert mimose.MimoseCallback is MimoseCallback


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"activation_checkpointing": True}, "gradient_checkpointing .activation_checkpointing"),
        ({"gradient_checkpointing": True}, "(gradient|activation)_checkpointing"),
        ({"torch_compile": True, "torch_compile_backend": "eager"}, "torch_compile"),
        ({"auto_find_batch_size": True}, "leave auto_find_batch_size out"),
    ],
)
def test_settings_that_work_against_it_are_refused(trainer, settings, words, monkeypatch):
    if not settings.keys() <= TrainingArguments.__dataclass_fields__.keys():
        pytest.skip("this version of transformers has no such setting")
    for name in ("ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_DYNAMO_MODE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=words):
        trainer(MimoseCallback("20MB"), **settings)
    for name in ("ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_DYNAMO_MODE"):
        monkeypatch.delenv(name, raising=False)


def test_checkpointing_switched_on_by_hand_is_refused(trainer, generated):
    model = generated.build_model()
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="already on"):
        trainer(MimoseCallback("20MB"), model=model).train()


def test_checkpointing_that_the_trainer_switches_on_is_refused(trainer, generated):
    model = generated.build_model()
    recent = "activation_checkpointing" in TrainingArguments.__dataclass_fields__
    name = "activation_checkpointing" if recent else "gradient_checkpointing"
    with (
        mimose.attach(model, "20MB"),
        pytest.raises(ValueError, match=r"turned on in .* after attaching, .* TrainingArguments"),
    ):
        trainer(Silent(), model=model, **{name: True}).train()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"planner": "mimosa"}, "did you mean 'mimose'"),
        ({"shelter": 3}, "has no option shelter"),
        ({"enforced": True}, "did you mean 'enforce', which mimose.attach takes itself"),
        ({"planner": "rotor"}, "a callback cannot take: choose 'mimose'"),
        ({"planner": mimose.PLANNERS["full"]()}, "is named"),
    ],
)
def test_a_wrong_option_is_refused_at_once(options, words):
    with pytest.raises(ValueError, match=words):
        MimoseCallback("20MB", **options)


def test_logs_gain_figures_and_the_model_comes_back(trainer):
    callback = MimoseCallback(None, "full")
    given = "<MimoseCallback budget=None, planner='full'"
    assert repr(callback) == f"{given}: not training>"
    trained = trainer(callback, eval_strategy="steps", eval_steps=1)
    model = trained.model
    trained.train()
    logs = [log for log in trained.state.log_history if "loss" in log]
    assert [log["mimose_recomputed_blocks"] for log in logs] == [6, 6]
    assert all(log["mimose_num_violations"] == 0 for log in logs)
    assert all(log["mimose_planning_seconds"] >= 0 for log in logs)
    # Evaluation in between was no step, and its logs say nothing of steps.
    assert "steps: 2" in callback.summary
    assert repr(callback) == f"{given}: trained, see its summary>"
    evaluated = [log for log in trained.state.log_history if "eval_loss" in log]
    assert len(evaluated) == 2
    assert not any(name.startswith("mimose") for log in evaluated for name in log)
    assert callback.handle is None
    assert "forward" not in vars(model)


def test_values_made_again_or_offloaded_are_logged_and_change_no_loss(trainer):
    kept = trainer(Silent())
    kept.train()
    again = trainer(MimoseCallback(None, "fixed", plan="remake 0-5 [16] offload [8]"))
    again.train()
    assert losses(again) == losses(kept)
    logs = [log for log in again.state.log_history if "loss" in log]
    assert [log["mimose_remade_blocks"] for log in logs] == [6, 6]
    assert [log["mimose_recomputed_blocks"] for log in logs] == [0, 0]


def test_offloading_is_an_option_that_a_checkpoint_keeps(trainer):
    callback = MimoseCallback("20MB", offload=True)
    seen = []

    class Watching(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(callback.handle.planner.offload)

    trainer(callback, Watching(), max_steps=1).train()
    assert seen == [True]
    assert MimoseCallback.from_state(callback.state()).options == {"offload": True}


def test_first_in_the_list_its_figures_reach_those_that_report(trainer):
    class Reporting(TrainerCallback):
        seen = ()

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen = (*self.seen, *logs)

    reporting = Reporting()
    trained = trainer(MimoseCallback(None, "full"), max_steps=1)
    trained.callback_handler.callbacks.insert(0, reporting)
    ours = trained.pop_callback(MimoseCallback)
    trained.callback_handler.callbacks.insert(0, ours)
    trained.train()
    assert "mimose_recomputed_blocks" in reporting.seen


class Breaking:
    """A hook that runs out of memory at its ``at``-th forward pass with gradients, or without.

    The error says what the kernel's would, and after it nothing is wrong.
    """

    def __init__(self, at, *, training=True):
        self.left, self.training = at, training
        self.error = torch.OutOfMemoryError("CUDA out of memory. Injected by a test")

    def __call__(self, module, args, output):
        if module.training == self.training:
            self.left -= 1
            if self.left == 0:
                raise self.error


@pytest.mark.parametrize("stage", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
def test_a_step_that_runs_out_is_run_again_with_its_other_micro_batches(trainer, generated, stage):
    settings = {"gradient_accumulation_steps": 4, "max_steps": 1}
    plain = Silent()
    undisturbed = trainer(plain, **settings)
    undisturbed.train()
    model = generated.build_model()
    breaking = Breaking(3)  # Of four micro-batches.
    if stage == "forward":
        model.qa_outputs.register_forward_hook(breaking)
    else:
        embeddings = model.get_input_embeddings()
        embeddings.register_full_backward_hook(lambda *args: breaking(embeddings, (), None))
    callback = MimoseCallback(None, "fixed", plan="keep 0")
    trained = trainer(callback, model=model, **settings)
    trained.train()
    assert breaking.left < 0, "it did run out, and went on"
    assert losses(trained) == losses(undisturbed)
    for one, other in zip(model.parameters(), undisturbed.model.parameters()):
        assert torch.equal(one, other)
    assert "violations: 1" in callback.summary


def test_out_of_memory_for_good_is_pytorchs_error_and_the_model_comes_back(trainer, generated):
    model = generated.build_model()
    breaking = Breaking(1)
    model.qa_outputs.register_forward_hook(breaking)
    callback = MimoseCallback(None, "baseline")  # Never rescued.
    with pytest.raises(torch.OutOfMemoryError, match=r"largest free block is") as raised:
        trainer(callback, model=model).train()
    assert raised.value is breaking.error
    assert callback.handle is None
    assert "forward" not in vars(model)


class FailingOptimizer(TrainerCallback):
    def __init__(self, error):
        self.error = error

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        optimizer.optimizer.register_step_pre_hook(self.fail)  # Within Accelerate's own.

    def fail(self, *_):
        raise self.error


def test_an_optimizers_step_that_runs_out_has_the_figures(trainer):
    error = torch.OutOfMemoryError("CUDA out of memory. Injected by a test")
    callback = MimoseCallback(None, "full")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer(callback, FailingOptimizer(error)).train()
    assert raised.value is error
    assert "largest free block is" in str(error)
    assert "An optimizer's step had begun" in str(error)
    assert callback.handle is None


def test_evaluation_that_runs_out_is_none_of_its_business(trainer, generated):
    model = generated.build_model()
    breaking = Breaking(1, training=False)
    model.qa_outputs.register_forward_hook(breaking)
    callback = MimoseCallback(None, "full")
    trained = trainer(callback, model=model, eval_strategy="steps", eval_steps=1)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trained.train()
    assert raised.value is breaking.error
    assert raised.value.args == ("CUDA out of memory. Injected by a test",)
    assert callback.handle is None
    assert "forward" not in vars(model)
    # Nothing of a training is in the way of what comes after it.
    assert trained.predict(trained.eval_dataset).metrics["test_loss"] > 0


def test_an_exception_from_anywhere_gives_the_model_back(trainer):
    callback = MimoseCallback(None, "full")
    trained = trainer(callback, Failing(error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        trained.train()
    assert callback.handle is None
    assert "steps: 1" in callback.summary
    assert "forward" not in vars(trained.model)


def test_nothing_holds_a_trainer_that_is_let_go(trainer):
    trained = trainer(MimoseCallback(None, "full"), max_steps=1)
    gone = weakref.ref(trained)
    trained.train()
    gc.collect()
    gc.disable()
    try:
        del trained
        assert gone() is None
    finally:
        gc.enable()


def test_a_callback_that_was_added_later_is_found_out_by_the_next_training(trainer, generated):
    model = generated.build_model()
    trained = trainer(Silent(), Failing(), model=model)
    trained.add_callback(MimoseCallback(None, "full"))
    with pytest.raises(RuntimeError, match="stopped by a test"):
        trained.train()
    left = vars(model)["forward"]
    # Another callback on the same model, as when a cell of a notebook is run again.
    with MimoseCallback(None, "full") as callback:
        again = trainer(Silent(), model=model)
        again.add_callback(callback)
        again.add_callback(Failing())
        with pytest.raises(RuntimeError, match="stopped by a test"):
            again.train()
        assert vars(model)["forward"] is not left
    assert "forward" not in vars(model)


def test_accumulated_and_cast_losses_are_those_without(trainer):
    settings = {"gradient_accumulation_steps": 4, "bf16": True, "max_steps": 1}
    kept = trainer(Silent(), **settings)
    kept.train()
    callback = MimoseCallback(None, "full")
    seen = []

    class Watching(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(callback.handle.last_record)

    recomputed = trainer(callback, Watching(), **settings)
    recomputed.train()
    assert losses(recomputed) == losses(kept)
    # Accelerate casts below the handle's wrapper, and the plan knows of it all the same.
    assert all("bfloat16" in record.situation.signature for record in seen)
    assert seen[-1].situation.grads_resident
    assert "steps: 4" in callback.summary


def test_losses_grouped_by_length_are_those_without(trainer):
    settings = {"train_sampling_strategy": "group_by_length"}
    if not settings.keys() <= TrainingArguments.__dataclass_fields__.keys():
        settings = {"group_by_length": True}  # As older versions of transformers call it.
    # Two batches an epoch, the two texts left over dropped: the third step is another epoch's.
    settings = {"texts": 10, "dataloader_drop_last": True, "max_steps": 3, **settings}
    kept = trainer(Silent(), **settings)
    kept.train()
    callback = MimoseCallback("20MB", sheltered=1)
    recomputed = trainer(callback, **settings)
    recomputed.train()
    assert losses(recomputed) == losses(kept)
    assert len(losses(kept)) == 3
    assert "violations: 0" in callback.summary
    # The first step measured, and so recomputed all, which says nothing of the budget.
    (measured,) = (log for log in recomputed.state.log_history if log.get("step") == 1)
    assert measured["mimose_recomputed_blocks"] == 6
    assert "mimose_budget_use" not in measured


@pytest.mark.slow
def test_a_checkpoint_from_before_the_callback_is_resumed(trainer, tmp_path):
    trainer(Silent(), save_strategy="steps", save_steps=1, max_steps=1).train()
    callback = MimoseCallback("20MB", sheltered=1)
    again = trainer(callback, save_strategy="steps", save_steps=1, max_steps=2)
    again.train(resume_from_checkpoint=True)
    state = json.loads((tmp_path / "out/checkpoint-2/trainer_state.json").read_text())
    saved = state["stateful_callbacks"]["MimoseCallback"]
    assert saved["args"] == {"budget": "20MB", "planner": "auto", "sheltered": 1}
    assert saved["attributes"]["learned"]["planner"] == "auto"


def test_a_restored_callback_says_what_a_checkpoint_cannot_hold(trainer):
    callback = MimoseCallback("20MB", size=lambda args, kwargs: (1, 2))
    state = callback.state()
    restored = MimoseCallback.from_state(json.loads(json.dumps(state)))
    assert restored.budget == "20MB"
    with pytest.raises(ValueError, match="size: set restore_callback_states"):
        trainer(restored).train()


class NeverFits(mimose.PLANNERS["baseline"]):
    """Knows of no plan."""

    def plan(self, size, situation):
        raise mimose.Infeasible("nothing fits: give a larger budget", 1)


def test_a_batch_that_no_plan_fits_ends_the_training(trainer):
    callback = MimoseCallback(None, f"{NeverFits.__module__}:NeverFits")
    trained = trainer(callback)
    with pytest.raises(mimose.Infeasible, match="nothing fits"):
        trained.train()
    assert "forward" not in vars(trained.model)
