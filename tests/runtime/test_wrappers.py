"""An attached model looks, copies and saves like any other; detached there is no trace."""

import copy
import inspect
import io
import pickle
import types
import warnings
from typing import Any

import pytest
import torch
import transformers

from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor
from mimose.runtime.wrappers import Wrapper


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=8,
        num_hidden_layers=3,
    )
    return transformers.BertForSequenceClassification(config).train()


def batch() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 20, (2, 4)), "labels": torch.tensor([0, 1])}


def attributes(model: torch.nn.Module) -> list[dict[str, Any]]:
    return [dict(vars(module)) for module in model.modules()]


def wrapped(model: torch.nn.Module) -> int:
    return sum(isinstance(vars(m).get("forward"), Wrapper) for m in model.modules())


def test_detach_leaves_no_trace(device: Any) -> None:
    model = bert()
    earlier = types.MethodType(type(model.bert.encoder.layer[1]).forward, model)
    model.bert.encoder.layer[1].forward = earlier
    before = attributes(model)
    executor = Executor(model, device, find_blocks(model))
    assert wrapped(model) == 4
    executor.detach()
    assert attributes(model) == before
    assert model.bert.encoder.layer[1].forward is earlier


def test_a_wrapper_put_on_top_goes_on_after_detach(device: Any) -> None:
    model = bert()
    executor = Executor(model, device, find_blocks(model))
    layer = model.bert.encoder.layer[0]
    ours, calls = layer.forward, []

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return ours(*args, **kwargs)

    layer.forward = theirs
    executor.detach()
    assert layer.forward is theirs
    model(**batch()).loss.backward()
    assert calls == [1]


def test_keys_and_signature_stay(device: Any) -> None:
    model = bert()
    keys, signature = list(model.state_dict()), inspect.signature(model.forward)
    Executor(model, device, find_blocks(model))
    assert list(model.state_dict()) == keys
    assert inspect.signature(model.forward) == signature


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save", "accelerated"])
def test_copies_are_unattached(way: str, device: Any) -> None:
    model = bert()
    if way == "accelerated":
        layer = model.bert.encoder.layer[1]
        layer.forward = types.MethodType(type(layer).forward, layer)
    executor = Executor(model, device, find_blocks(model))
    if way in ("deepcopy", "accelerated"):
        twin = copy.deepcopy(model)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    assert wrapped(model) == 4
    assert wrapped(twin) == 0
    inputs = batch()
    torch.manual_seed(1)
    twin(**inputs).loss.backward()
    assert all(p.grad is None for p in model.parameters())
    executor.begin(Plan.recompute_each(3))
    torch.manual_seed(1)
    model(**inputs).loss.backward()
    for one, other in zip(model.parameters(), twin.parameters()):
        assert torch.equal(one.grad, other.grad)


def test_a_copy_can_be_attached_too(device: Any) -> None:
    model = bert()
    Executor(model, device, find_blocks(model))
    twin = copy.deepcopy(model)
    executor = Executor(twin, device, find_blocks(twin))
    executor.begin(Plan.recompute_each(3))
    twin(**batch()).loss.backward()
    assert executor.effective_plan == Plan.recompute_each(3)
    executor.detach()
    assert wrapped(twin) == 0


def test_nothing_is_planned_without_training(device: Any) -> None:
    model = bert()
    asked: list[int] = []
    executor = Executor(model, device, find_blocks(model), lambda args, kwargs: asked.append(1))
    executor.begin(Plan.recompute_each(3))
    with torch.no_grad():
        model(**batch())
    with torch.inference_mode():
        model(**batch())
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**batch())
    with pytest.raises(RuntimeError, match="no forward pass has ended"):
        _ = executor.effective_plan
    assert asked == []
    model.train()
    model(**batch())
    assert executor.effective_plan == Plan.recompute_each(3)
    assert asked == []


def test_training_in_eval_mode_warns_once(device: Any) -> None:
    model = bert().eval()
    Executor(model, device, find_blocks(model))
    with pytest.warns(UserWarning, match=r"call model.train\(\)"):
        model(**batch()).loss.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**batch()).loss.backward()


def test_a_users_loop_is_asked_for_a_plan_before_every_forward(device: Any) -> None:
    model = bert()
    seen: list[Any] = []

    def on_forward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["input_ids"])
        executor.begin(Plan.recompute_each(3, [len(seen) - 1]))

    executor = Executor(model, device, find_blocks(model), on_forward)
    for expected in range(2):
        inputs = batch()
        model(**inputs).loss.backward()
        assert seen[-1] is inputs["input_ids"]
        assert executor.effective_plan == Plan.recompute_each(3, [expected])
