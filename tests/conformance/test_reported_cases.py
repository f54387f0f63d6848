"""Cases that people reported elsewhere, as docs/cases.md lists them, on small models."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import mimose

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
_WORDS = {"vocab_size": 200}
_SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 600,
}


def build(kind: Any, config: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    taken = settings if config is transformers.XLNetConfig else {**_SHAPE, **settings}
    return kind(config(**_WORDS, **taken)).train()


def roberta() -> Any:
    return build(transformers.RobertaForMaskedLM, transformers.RobertaConfig)


def words(rows: int, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(2, 200, (rows, length), generator=generator)
    return {"input_ids": tokens, "labels": tokens.clone()}


def step(model: Any, batch: Any, seed: int = 1) -> list[torch.Tensor]:
    """Run both passes; return the gradients, which are gone then."""
    torch.manual_seed(seed)
    model(**batch).loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return grads


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def peaks(build_model: Any, batch: Any) -> tuple[int, int]:
    """Return the peaks of a step with everything kept and recomputed, above what is resident."""
    found = []
    for planner in ("baseline", "full"):
        model = build_model()
        with mimose.attach(model, None, planner) as handle:
            for _ in range(2):
                step(model, batch)
                record = handle.end()
        found.append(record.peak_allocated_bytes - record.situation.resident_bytes)
    return found[0], found[1]


def test_layers_that_are_frozen_are_free_and_never_recomputed():
    model = roberta()
    model.roberta.embeddings.requires_grad_(False)
    model.roberta.encoder.layer[:3].requires_grad_(False)
    expected = step(copy.deepcopy(model), words(4, 64))
    calls = []
    for number, layer in enumerate(model.roberta.encoder.layer):
        layer.output.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    with mimose.attach(model, None, "full") as handle:
        assert same(step(model, words(4, 64)), expected)
        calls.clear()
        assert same(step(model, words(4, 64)), expected)
        assert handle.planner.info.free == {0, 1, 2}
        assert handle.end().plan.recomputed == {3}
    assert calls == [0, 1, 2, 3, 3]


def test_choices_count_as_sequences():
    model = build(transformers.RobertaForMultipleChoice, transformers.RobertaConfig)
    tokens = torch.randint(2, 200, (3, 4, 40))
    with mimose.attach(model, None, "full") as handle:
        step(model, {"input_ids": tokens, "labels": torch.zeros(3, dtype=torch.long)})
        assert handle.end().size == (3 * 4, 40)


def test_plans_grow_with_the_length():
    model = roberta()
    ramp = range(64, 513, 64)
    with mimose.attach(model, None, "full") as handle:
        for _ in range(2):
            step(model, words(4, 512))
            least = handle.end().peak_allocated_bytes
    with mimose.attach(model, int(1.6 * least), sheltered=4, margin=0) as handle:
        for length in (64, 192, 320, 512):
            step(model, words(4, length))
        handle.end()
        planned = [handle.plan_for(**words(4, n)).num_recomputed for n in ramp]
    assert planned == sorted(planned)
    assert planned[0] == 0 < planned[-1]


CASES = {
    "XLNet": (
        transformers.XLNetForQuestionAnsweringSimple,
        transformers.XLNetConfig,
        {"d_model": 32, "n_layer": 4, "n_head": 2, "d_inner": 128},
    ),
    "ALBERT": (
        transformers.AlbertForQuestionAnswering,
        transformers.AlbertConfig,
        {"embedding_size": 16},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_models_that_support_no_checkpointing_of_their_own(name):
    kind, config, settings = CASES[name]
    place = torch.zeros(4, dtype=torch.long)
    batch = {**words(4, 96), "start_positions": place, "end_positions": place}
    del batch["labels"]
    model = build(kind, config, **settings)
    expected = step(copy.deepcopy(model), batch)
    with mimose.attach(model, None, "full") as handle:
        assert same(step(model, batch), expected)
        assert handle.end().plan.num_recomputed == 4
    kept, recomputed = peaks(lambda: build(kind, config, **settings), batch)
    assert recomputed < 0.6 * kept


class Dropped(nn.Module):
    """Blocks with dropout, recomputed with PyTorch's own checkpoint if ``preserve`` says how."""

    def __init__(self, preserve: bool | None) -> None:
        super().__init__()
        layers = [
            nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16))
            for _ in range(4)
        ]
        self.layers = nn.ModuleList(layers)
        self.preserve = preserve

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.preserve is None:
                x = x + layer(x)
            else:
                again = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=self.preserve)
                x = x + again
        return x.pow(2).mean()


def test_dropout_draws_the_same_again():
    """And recomputing without the random state does not, which this would show."""

    def curve(preserve: bool | None, attached: bool) -> list[float]:
        torch.manual_seed(0)
        model = Dropped(preserve).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        handle = mimose.attach(model, None, "full") if attached else None
        losses = []
        for _ in range(50):
            loss = model(torch.ones(8, 16))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if handle is not None:
            handle.detach()
        return losses

    kept = curve(None, False)
    assert curve(None, True) == kept
    assert curve(True, False) == kept
    assert curve(False, False) != kept


def test_a_chain_of_layers_takes_less():
    """Where people saw no difference, the peak was elsewhere; see the next test."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                [
                    nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
                    for _ in range(12)
                ]
            )

        def forward(self, x: torch.Tensor) -> Any:
            for layer in self.layers:
                x = x + layer(x)
            return transformers.utils.ModelOutput(loss=x.pow(2).mean())

    kept, recomputed = peaks(lambda: Chain().train(), {"x": torch.ones(2048, 64)})
    assert recomputed < 0.4 * kept


class TopHeavy(nn.Module):
    """Nearly all of its memory is taken outside its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)])
        self.head = nn.Linear(8, 2000)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = x + layer(x)
        return transformers.utils.ModelOutput(loss=self.head(x).exp().log().pow(2).mean())


def test_recomputing_that_saves_nothing_is_said():
    model = TopHeavy().train()
    batch = {"x": torch.ones(16, 100, 8)}
    with mimose.attach(model, None, "full") as handle:
        for _ in range(2):
            step(model, batch)
            budget = int(1.02 * handle.end().peak_allocated_bytes)
    with mimose.attach(model, budget, sheltered=1):
        step(model, batch)
        with pytest.warns(
            UserWarning, match=r"saves only .* because its peak is elsewhere \(head\)"
        ):
            step(model, batch)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls what transformers has renamed.
def test_lora_recomputes_no_more_than_a_forward_pass():
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        config = peft.LoraConfig(r=8, target_modules=["query", "value"])
        return peft.get_peft_model(roberta(), config)

    def flops(model: Any, backward: bool = True) -> int:
        with FlopCounterMode(display=False) as counted:
            loss = model(**words(4, 64)).loss
            if backward:
                loss.backward()
        return counted.get_total_flops()

    model = adapted()
    forward, plain = flops(model, backward=False), flops(model)
    with mimose.attach(model, None, "full") as handle:
        step(model, words(4, 64))
        recomputing = flops(model)
        assert handle.end().plan.num_recomputed == 4
    assert plain < recomputing <= plain + forward


def test_generating_and_validating_are_left_alone():
    config = transformers.GPT2Config(
        **_WORDS, n_embd=32, n_layer=3, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=1
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    prompt = torch.tensor([[5, 6, 7]])
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 1}

    def outputs() -> tuple[torch.Tensor, torch.Tensor, Any]:
        widths = []
        hook = model.transformer.h[0].register_forward_pre_hook(
            lambda module, args: widths.append(args[0].shape[1])
        )
        model.eval()
        generated = model.generate(prompt, **settings)
        with torch.no_grad():
            validated = model(**words(2, 20))
        with torch.inference_mode():
            model(**words(2, 20))
        hook.remove()
        # One word at a time: the cache was on.
        assert widths == [3, 1, 1, 1, 1, 1, 20, 20]
        model.train()
        return generated, validated.logits, validated.past_key_values

    expected = outputs()
    with mimose.attach(model, "1GB", sheltered=1) as handle:
        step(model, words(2, 20))
        assert handle.statistics()["num_steps"] == 0  # It is still open.
        found = outputs()
        assert handle.end().size == (2, 20)
        assert handle.end() is None
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert found[2] is not None


def test_a_step_has_a_peak_of_its_own_and_it_is_never_nothing():
    model = roberta()
    with mimose.attach(model, None, "baseline") as handle:
        found = []
        for length in (200, 200, 40):
            step(model, words(4, length))
            found.append(handle.end())
    assert all(r.peak_allocated_bytes > 2 * r.situation.resident_bytes > 0 for r in found[:2])
    # A short step after a long one: its own allocated bytes, and the same reserved ones.
    assert found[2].peak_allocated_bytes < 0.7 * found[1].peak_allocated_bytes
    assert found[2].peak_reserved_bytes == found[1].peak_reserved_bytes


def named_in_the_table() -> list[str]:
    text = (ROOT / "docs/cases.md").read_text(encoding="utf-8")
    return sorted(set(re.findall(r"(tests/[\w/]+\.py::\w+)", text)))


def test_each_test_that_the_table_names_exists():
    named = named_in_the_table()
    assert len(named) > 20
    for name in named:
        path, function = name.split("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in functions, name


def test_the_table_names_every_test_here():
    here = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    listed = {name.split("::")[1] for name in named_in_the_table()}
    of_the_table = {
        "test_each_test_that_the_table_names_exists",
        "test_the_table_names_every_test_here",
    }
    for node in here.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert node.name in listed | of_the_table, node.name
