"""Models that do other things than in the pass that was recorded, and loops between the passes."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, parametrize
from torch.utils.flop_counter import FlopCounterMode

from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor

REGION = Plan.parse("recompute 0-3", 4)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout(torch.tanh(self.up(x)), 0.5, self.training)
        return x + self.down(hidden)


class Model(nn.Module):
    """Does ``between`` with the output of each block, and adds what that returns to its result."""

    def __init__(self, layer: type[nn.Module] = Layer) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 8)
        self.layers = nn.ModuleList([layer() for _ in range(4)])
        self.between: list[Callable[[int, torch.Tensor], Any]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, side = self.inside(x), torch.zeros(())
        for number, layer in enumerate(self.layers):
            x = layer(x)
            for act in self.between:
                side = side + act(number, x)
        return x.pow(2).sum() + side


def pair(device: Any, layer: type[nn.Module] = Layer) -> tuple[Any, Any, Executor]:
    """Return a model whose flow is recorded, its twin without an executor, and the executor."""
    torch.manual_seed(0)
    model = Model(layer).train()
    twin = copy.deepcopy(model)
    executor = Executor(model, device, find_blocks(model))
    executor.begin(REGION)
    model(torch.randn(2, 8)).backward()
    model.zero_grad()
    return model, twin, executor


def step(model: Any, loss: Callable[[Any, torch.Tensor], torch.Tensor] | None = None) -> Any:
    torch.manual_seed(1)
    x = torch.randn(2, 8)
    result = model(x) if loss is None else loss(model, x)
    result.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return result.detach(), gradients, torch.get_rng_state()


def check_equal(one: Any, other: Any) -> None:
    assert torch.equal(one[0], other[0])
    # Two ways to one block are summed in another order.
    torch.testing.assert_close(one[1], other[1], rtol=1e-5, atol=1e-6)
    assert torch.equal(one[2], other[2])


def at(number: int, act: Callable[[torch.Tensor], Any]) -> Callable[[int, torch.Tensor], Any]:
    return lambda n, x: act(x) if n == number else 0.0


def logged(x: torch.Tensor) -> float:
    with torch.no_grad():
        return float(x.norm())


class Held:
    """Keeps each block's output, and reads the first one once the last block has run."""

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def __call__(self, number: int, x: torch.Tensor) -> Any:
        self.outputs.append(x)
        return self.outputs[-4].cos().sum() if number == 3 else 0.0


@pytest.mark.parametrize(
    "act",
    [
        at(0, lambda x: x.sin().sum()),
        at(2, logged),
        Held(),
        at(1, lambda x: float(x.numpy(force=True)[0, 0])),
    ],
    ids=["a head", "a norm", "held", "numpy"],
)
def test_whoever_reads_an_inner_output_gets_the_right_one(device: Any, act: Any) -> None:
    model, twin, executor = pair(device)
    model.between.append(act)
    twin.between.append(act)
    executor.begin(REGION)
    with pytest.warns(UserWarning, match="computed once more"):
        check_equal(step(model), step(twin))
    assert executor.effective_plan == REGION
    for _ in range(2):  # The flow is recorded anew, and then cut.
        executor.begin(REGION)
        check_equal(step(model), step(twin))
    assert executor.effective_plan != REGION


def test_without_a_reader_nothing_is_computed_again(device: Any) -> None:
    model, twin, executor = pair(device)
    calls = []
    model.layers[0].up.register_forward_hook(lambda m, a, out: calls.append(1))
    form = at(
        1, lambda x: 0.0 if x.shape == (2, 8) and x.requires_grad and x.to(x.device) is x else 1.0
    )
    model.between.append(form)
    executor.begin(REGION)
    check_equal(step(model), step(twin))
    assert len(calls) == 2


def test_counting_flops_changes_nothing(device: Any) -> None:
    model, twin, executor = pair(device)
    executor.begin(REGION)
    with FlopCounterMode(display=False) as counter:
        result = step(model)
    check_equal(result, step(twin))
    assert executor.effective_plan == REGION
    # Layers run twice, but for the last product; what comes before them needs no input gradient.
    one = 2 * 2 * 8 * 16
    assert counter.get_total_flops() == 8 * one * 4 - one + 2 * (2 * 2 * 8 * 8)


def test_a_hook_on_all_modules_is_noticed_before_the_pass(device: Any) -> None:
    model, twin, executor = pair(device)
    norms: list[float] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, Layer):
            norms.append(logged(output))

    executor.begin(REGION)
    with register_module_forward_hook(note):
        check_equal(step(model), step(twin))
    assert norms[:4] == norms[4:]
    assert executor.effective_plan == Plan.recompute_each(4)


def test_a_switch_of_the_model_is_noticed_before_the_pass(device: Any) -> None:
    model, twin, executor = pair(device)
    for m in (model, twin):
        m.noisy = True
        m.between.append(at(1, lambda x: torch.rand(())))
    executor.begin(REGION)
    check_equal(step(model), step(twin))


@pytest.mark.filterwarnings("ignore:the output of a block")
@pytest.mark.parametrize(
    "act",
    [
        lambda x: torch.rand(()),
        lambda x: x.add_(1.0).sum(),
        lambda x: x.register_hook(print) and 0.0,
    ],
    ids=["random numbers", "in place", "a gradient's hook"],
)
def test_what_cannot_be_made_right_is_refused_once(device: Any, act: Any) -> None:
    model, twin, executor = pair(device)
    model.between.append(at(1, act))
    twin.between.append(at(1, act))
    executor.begin(REGION)
    with pytest.raises(RuntimeError, match="run the step again"):
        step(model)
    executor.begin(REGION)
    check_equal(step(model), step(twin))


@pytest.mark.filterwarnings("ignore:the output of a block")
def test_a_gradient_that_would_be_lost_is_refused(device: Any) -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return 2 * gradient

    model, _, executor = pair(device)
    model.between.append(at(1, lambda x: Scale.apply(x).sum()))
    executor.begin(REGION)
    with pytest.raises(RuntimeError, match="a gradient arrived"):
        step(model)


def validated(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x)
    model.eval()
    with torch.no_grad():
        model(x)
    return loss


def thawed(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.layers.requires_grad_(False)
    model.layers[2].requires_grad_(True)
    loss = model(x)
    model.layers.requires_grad_(True)
    model.layers[2].requires_grad_(False)
    return loss


def lent(model: Any, x: torch.Tensor) -> torch.Tensor:
    return functional_call(model, {n: 0.9 * p for n, p in model.named_parameters()}, (x,))  # type: ignore[no-any-return]


@pytest.mark.parametrize("plan", [Plan.recompute_each(4), REGION], ids=["each", "region"])
@pytest.mark.parametrize("loss", [validated, thawed, lent])
def test_between_forward_and_backward(device: Any, loss: Any, plan: Plan) -> None:
    model, twin, executor = pair(device)
    executor.begin(plan)
    check_equal(step(model, loss), step(twin, loss))
    assert all(p.requires_grad for p in model.layers[3].parameters())
    assert loss is not thawed or not any(p.requires_grad for p in model.layers[2].parameters())
    assert model.training == (loss is not validated)
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


class Attention(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x.view(1, 1, 2, 8)
        return super().forward(nn.functional.scaled_dot_product_attention(q, q, q).view(2, 8) + x)


class Weighted(Layer):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.up)


def mathematical(model: Any, x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return model(x)  # type: ignore[no-any-return]


def cached(model: Any, x: torch.Tensor) -> torch.Tensor:
    with parametrize.cached():
        return model(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("layer", "loss"), [(Attention, mathematical), (Weighted, cached)])
@pytest.mark.parametrize("collect", [True, False])
def test_contexts_around_the_forward_pass_alone(
    device: Any, layer: Any, loss: Any, collect: bool
) -> None:
    model, twin, executor = pair(device, layer)
    executor.begin(Plan.recompute_each(4), collect=collect)
    check_equal(step(model, loss), step(twin, loss))
    assert not parametrize._cache
    assert not parametrize._cache_enabled


class Scaled(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.rand(1)  # What was drawn before the change is drawn again.
        x *= 1.5
        return super().forward(x.clone())


class Clamped(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.relu(x.view(-1), inplace=True).view(2, 8))


@pytest.mark.parametrize("layer", [Scaled, Clamped])
def test_a_block_that_changes_its_input_is_kept_from_the_first_pass_on(
    device: Any, layer: Any
) -> None:
    torch.manual_seed(0)
    model = Model(layer).train()
    twin = copy.deepcopy(model)
    executor = Executor(model, device, find_blocks(model))
    for _ in range(2):
        executor.begin(Plan.recompute_each(4))
        check_equal(step(model), step(twin))
        assert executor.keep_only == {0, 1, 2, 3}
        assert executor.effective_plan == Plan.keep_all(4)


@pytest.mark.parametrize("plan", [Plan.recompute_each(4), REGION], ids=["each", "region"])
def test_another_thread_that_evaluates_is_no_part_of_the_pass(device: Any, plan: Plan) -> None:
    model, twin, executor = pair(device)
    results: list[torch.Tensor] = []

    def evaluate() -> None:
        with torch.no_grad():
            results.append(model.layers[1](model.layers[0](torch.ones(2, 8))))

    def meanwhile(x: torch.Tensor) -> float:
        state = torch.get_rng_state()
        other = threading.Thread(target=evaluate)
        other.start()
        other.join()
        torch.set_rng_state(state)
        return 0.0

    model.between.append(at(1, meanwhile))
    executor.begin(plan)
    check_equal(step(model), step(twin))
    assert len(results) == 1
    assert executor.block_names == tuple(f"layers.{i}" for i in range(4))
