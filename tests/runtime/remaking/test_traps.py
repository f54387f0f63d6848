"""What a block may do that makes a recipe wrong: the numbers are those of the plain block."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from dropping import both
from torch import nn
from torch.nn import functional

WIDTH = 8


def tensor(step: int, *shape: int, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(*(shape or (4, WIDTH)), generator=generator).requires_grad_(grad)


def one(step: int) -> Any:
    return (tensor(step),), {}


class Block(nn.Module):
    """Linear layers and buffers for the forwards below to use."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(0.3)
        self.batch = nn.BatchNorm1d(WIDTH)
        self.register_buffer("state", torch.ones(WIDTH))
        self.p = 0.25
        self.scale = 1.5
        self.config = Config()
        self.kept: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


class Config:
    """Settings that are no module's own."""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor


CASES: dict[str, tuple[Any, str]] = {}


def case(expected: str = "dropped") -> Any:
    def add(function: Any) -> Any:
        CASES[function.__name__] = function, expected
        return function

    return add


@case()
def views_of_one_storage(self, x):
    h = functional.gelu(self.first(x))
    turned = h.t().contiguous().t() * self.second(h.view(2, 2, WIDTH)).view(4, WIDTH)
    return turned + h.unflatten(0, (2, 2)).prod(0).repeat(2, 1) * h[::2].exp().repeat(2, 1)


@case()
def chunks_of_a_projection(self, x):
    a, b = self.first(x).chunk(2, -1)
    return torch.cat([functional.silu(a) * b, a.exp()], -1)


@case()
def relu_in_place(self, x):
    return self.second(torch.relu_(self.first(x)))


@case()
def add_in_place(self, x):
    h = self.first(x)
    h += x
    return self.second(self.norm(h)) * h


@case()
def mask_in_place_on_a_view(self, x):
    h = self.first(x)
    h.view(2, 2, WIDTH).masked_fill_(x.view(2, 2, WIDTH) > 0, 0.5)
    return self.second(h.sigmoid())


@case()
def part_in_place(self, x):
    h = self.first(x)
    h[:, :2].mul_(2.0)
    return self.second(h.tanh()) * self.norm(h)


@case()
def copied_into_an_empty_one(self, x):
    h = torch.empty_like(x)
    h.copy_(self.first(x))
    return self.second(h.sin())


@case()
def written_out_of_place(self, x):
    h = torch.zeros(4, 2 * WIDTH)
    h[:, :WIDTH] = self.first(x)
    h[:, WIDTH:] = self.second(x)
    return h.sigmoid().unflatten(1, (2, WIDTH)).prod(1) * functional.gelu(self.first(x)).exp()


@case()
def batch_norm(self, x):
    return self.second(torch.relu_(self.batch(self.first(x))))


@case()
def module_dropout(self, x):
    return self.second(self.drop(functional.gelu(self.first(x))))


@case()
def functional_dropout(self, x):
    h = functional.dropout(self.first(x), self.p, self.training)
    return self.second(functional.dropout(functional.gelu(h), 0.5, True, True).exp())


@case()
def native_dropout(self, x):
    return self.second(functional.gelu(torch.native_dropout(self.first(x), self.p, True)[0]))


@case()
def attention(self, x):
    q, k, v = (f(x).view(1, 2, 2, WIDTH) for f in (self.first, self.second, self.norm))
    return functional.scaled_dot_product_attention(q, k, v).reshape(4, WIDTH)


@case()
def attention_with_dropout(self, x):
    q, k, v = (f(x).view(1, 2, 2, WIDTH) for f in (self.first, self.second, self.norm))
    return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5).reshape(4, WIDTH)


@case()
def random_numbers(self, x):
    h = self.first(x) + torch.randn_like(x) * 0.1
    h = h * torch.rand(4, 1) + torch.bernoulli(torch.full((WIDTH,), 0.5))
    return self.second(functional.gelu(h)) * (h + torch.empty(WIDTH).uniform_()).exp()


@case()
def reads_a_number(self, x):
    h = functional.gelu(self.first(x)).sigmoid()
    factor = x.sum().item()
    return self.second((h * factor).sin()) * h.exp()


@case()
def goes_by_a_number(self, x):
    h = functional.gelu(self.first(x)).sigmoid()
    if x.sum() > 0:
        return self.second(h.sin()) * h.cos()
    return self.second(h.cos()) * h.sin()


@case()
def goes_by_a_list(self, x):
    h = self.first(x).sigmoid()
    factor = x.detach()[0].tolist()[0]
    return self.second((h * factor).sin()) * h.exp()


@case("kept")
def goes_by_an_array(self, x):
    h = self.first(x).sigmoid()
    factor = float(x.detach().numpy().max())
    return self.second((h * factor).sin()) * h.exp()


@case()
def nonzero(self, x):
    h = self.first(x).sigmoid().exp().sigmoid()
    rows = (x[:, 0] > 0).nonzero().flatten()
    return torch.zeros_like(h).index_add(0, rows, self.second(h[rows].exp())) + h.sin()


@case()
def picks_by_numbers(self, x):
    rows = x[:, 0].argsort()
    return self.second(functional.gelu(self.first(x)[rows]).exp())


@case()
def picks_by_a_mask(self, x):
    h = functional.gelu(self.first(x).exp())
    return self.second(h[x[:, 0] > 0]).exp().sum(0) + x


@case("kept")
def drawn_by_python(self, x):
    h = self.first(x)
    return self.second(functional.gelu(h * random.random()).exp())


@case("kept")
def skipped_by_chance(self, x):
    h = self.first(x)
    h = functional.gelu(h) if random.random() < 0.5 else h.sigmoid()
    return self.second(h.exp())


@case()
def skipped_by_torchs_chance(self, x):
    h = functional.gelu(self.first(x).exp())
    if torch.rand([]) < 0.5:
        h = self.second(h.exp())
    return h.sin()


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.half = (x * 0.5).exp()
        return x**3 * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * 3 * x**2 * y + 0 * ctx.half, gradient * x**3


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + 0 * x


@case()
def own_functions(self, x):
    h = functional.gelu(self.first(x))
    return self.second(Doubled.apply(Cubed.apply(h, self.norm(h)).sin()).exp())


@case()
def output_is_a_view(self, x):
    h = functional.gelu(self.first(x))
    return h.view(2, 2, WIDTH), self.second(h.exp()), h.t()


@case()
def changes_its_input(self, x):
    y = x * 1.0
    y = functional.gelu(self.first(y))
    y.detach().zero_()
    return self.second(self.first(x).sigmoid())


@case()
def buffer_is_replaced(self, x):
    h = functional.gelu(self.first(x) * self.state)
    self.state = self.state * 0.5
    return self.second(h.exp())


@case()
def buffer_is_changed(self, x):
    h = functional.gelu(self.first(x) * self.state.clone())
    self.state.mul_(0.5)
    return self.second(h.exp())


HELD = torch.linspace(0, 1, WIDTH)


@case()
def held_by_others(self, x):
    h = self.first(x) * HELD
    return self.second(functional.gelu(h + HELD))


@case()
def constants_made_inside(self, x):
    h = self.first(x) + torch.arange(WIDTH) / torch.full((WIDTH,), 3.0)
    mask = torch.ones(4, WIDTH, dtype=torch.bool).tril()
    return self.second(functional.gelu(h.masked_fill(mask, 0.1))) * torch.ones(4, 1).exp()


@case("unlearned")
def counts_its_calls(self, x):
    self.scale += 0.25
    return self.second(functional.gelu(self.first(x) * self.scale))


@case()
def without_gradients_inside(self, x):
    with torch.no_grad():
        target = self.second(x).softmax(-1)
    return functional.gelu(self.first(x) * target).exp()


@case()
def cumulative_sums(self, x):
    h = self.first(x).tanh().cumsum(0).cumprod(1).tanh()
    return self.second(h.sort(-1).values.exp() * h.logsumexp(0))


@case("kept")
def complex_numbers(self, x):
    h = torch.view_as_complex(self.first(x).view(4, -1, 2).contiguous())
    h = h * h.conj() + torch.fft.fft(h)
    return self.second(torch.view_as_real(h).flatten(1)).sin()


@case()
def settings_of_others(self, x):
    return self.second(functional.gelu(self.first(x) * self.config.factor))


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_plain_block(name):
    function, expected = CASES[name]
    outcome = both(Block(function).train(), one, number=5)
    assert expected in outcome.calls
    if expected != "dropped":
        assert "dropped" not in outcome.calls


SETTINGS = {
    "a number": lambda step, b: setattr(b, "scale", 1.0 + step // 2),
    "a rate": lambda step, b: setattr(b.drop, "p", 0.1 * (1 + step // 2)),
    "a flag": lambda step, b: b.train(step % 4 < 2),
    "a configuration": lambda step, b: setattr(b.config, "factor", 1.0 + step // 2),
    "another configuration": lambda step, b: step % 4 or setattr(b, "config", Config(1 + step)),
    "a module": lambda step, b: step % 4 or setattr(b, "act", [nn.GELU(), nn.SiLU()][step // 4]),
    "a function": lambda step, b: setattr(
        b, "act", [functional.gelu, functional.silu][step // 2 % 2]
    ),
    "what is trained": lambda step, b: b.first.weight.requires_grad_(step % 4 < 2),
    "a hook": lambda step, b: step == 2 and b.first.register_forward_hook(lambda m, i, o: o * 2),
    "a buffer": lambda step, b: setattr(b, "state", torch.full((WIDTH,), 1.0 + step)),
    "a parameter": lambda step, b: setattr(
        b.first, "weight", nn.Parameter(torch.eye(WIDTH) * (1 + step))
    ),
    "the seed of nothing": lambda step, b: setattr(b, "kept", torch.zeros(step + 1)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_between_steps(name):
    def forward(self, x):
        act = getattr(self, "act", functional.gelu)
        h = act(self.first(x) * self.scale * self.state * self.config.factor)
        return self.second(self.drop(self.batch(h)).exp())

    outcome = both(Block(forward).train(), one, number=8, between=SETTINGS[name])
    assert outcome.calls.count("dropped") >= 3


def test_arguments_lie_in_one_storage_or_in_several():
    def forward(self, q, k, v):
        return self.second(functional.gelu(self.first(q)) * self.norm(k).exp() * v.sigmoid())

    def inputs(step):
        x = tensor(step)
        if step in (0, 1):
            return (x, x, x), {}
        if step in (2, 3):
            return (x, tensor(9), tensor(8)), {}
        return tuple(tensor(step, 4, 3 * WIDTH, grad=False).chunk(3, -1)), {}

    outcome = both(Block(forward), inputs, number=6)
    assert outcome.calls == ["traced", "dropped"] * 3


def test_arguments_have_names_and_nest():
    def forward(self, x, *, mask, pair=None, options=None):
        h = self.first(x).masked_fill(mask, 0.0) + pair[0] * options["scale"]
        return self.second(functional.gelu(h)) * pair[1]["deep"]

    def inputs(step):
        pair = [tensor(step), {"deep": tensor(50, grad=False)}]
        return (tensor(step),), {
            "mask": tensor(step, grad=False) > 0,
            "pair": pair,
            "options": {"scale": 1.0 + step // 2},
        }

    outcome = both(Block(forward), inputs, number=4)
    assert outcome.calls == ["traced", "dropped"] * 2


def test_a_number_is_not_a_flag():
    def forward(self, x, number):
        return self.second(functional.gelu(self.first(x) * (2.0 if number is True else number)))

    outcome = both(
        Block(forward), lambda n: ((tensor(n), [1, 1, True, True, 1.0][n]), {}), number=5
    )
    assert outcome.calls == ["traced", "dropped", "traced", "dropped", "traced"]


def test_an_object_of_no_known_kind_is_left_alone():
    def forward(self, x, options):
        return self.second(functional.gelu(self.first(x) * options.factor))

    outcome = both(Block(forward), lambda n: ((tensor(n), Config()), {}))
    assert outcome.calls == ["left alone"] * 3


@pytest.mark.parametrize("cache", [True, False])
def test_autocast(cache):
    def forward(self, x):
        return self.second(self.drop(functional.gelu(self.norm(self.first(x)) + self.first(x))))

    def around():
        return torch.autocast("cpu", torch.bfloat16, cache_enabled=cache)

    assert "dropped" in both(Block(forward), one, around=around).calls


def test_shapes_take_turns():
    def forward(self, x):
        return self.second(functional.gelu(self.first(x)).exp())

    outcome = both(Block(forward), lambda n: ((tensor(n, 2 + n % 2, WIDTH),), {}), number=6)
    assert outcome.calls == ["traced", "traced"] + ["dropped"] * 4
