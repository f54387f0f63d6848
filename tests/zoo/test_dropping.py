"""Architectures of ``transformers`` of which all that can be is dropped: the same training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn
from zoo_cases import CASES
from zoo_conformance import Case
from zoo_dropping import drop

QUICK = frozenset(("GPT-2", "Swin"))
BY_NAME = {case.name: case for case in CASES}
BY_SIZE = ("Mamba", "RWKV")
"""Their graphs depend on the length: a loop over time."""
NOT_IN_BFLOAT16 = ("DeBERTa",)
"""Plain, too: it fills with a number that is beyond the type's range."""
UNCERTAIN = ("Wav2Vec2, layer drop",)
"""Skip blocks by chance."""
pytestmark = pytest.mark.filterwarnings("ignore")


def check(case: Case, autocast: bool = False) -> None:
    dropped = drop(case, autocast)
    assert dropped.equal
    assert dropped.bad == 0
    assert dropped.strays == 0
    assert dropped.share > 0.3
    if case.name not in (*BY_SIZE, *UNCERTAIN):
        assert dropped.missed == 0
        assert dropped.calls == dropped.wanted > 0


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=() if c.name in QUICK else pytest.mark.slow) for c in CASES],
)
def test_what_is_dropped_is_made_again(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in NOT_IN_BFLOAT16], ids=lambda case: case.name
)
def test_what_is_dropped_is_made_again_under_autocast(case):
    check(case, autocast=True)


def _frozen_but_adapters(case: Case) -> Callable[[], nn.Module]:
    peft = pytest.importorskip("peft")

    def build() -> nn.Module:
        options = {"r": 4, "lora_dropout": 0.1, "target_modules": "all-linear"}
        return peft.get_peft_model(case.build(), peft.LoraConfig(**options))

    return build


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["BERT", "Llama", "GPT-NeoX"])
def test_adapters(name, autocast):
    case = BY_NAME[name]
    check(replace(case, build=_frozen_but_adapters(case), blocks=None), autocast)


def _caching(case: Case) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = case.build()
        model.config.use_cache = True
        return model

    return build


@pytest.mark.parametrize("name", ["GPT-2", pytest.param("Llama", marks=pytest.mark.slow)])
def test_caches_of_keys_and_values(name):
    case = BY_NAME[name]
    dropped = drop(replace(case, build=_caching(case)))
    assert dropped.equal
    assert dropped.strays == dropped.bad == 0


def _tied(case: Case) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model: Any = case.build()
        layers = model.get_submodule(_LAYERS[case.name])
        # Two layers share their weights, and two linear ones within each.
        layers[2].load_state_dict(layers[1].state_dict())
        for name, parameter in layers[1].named_parameters():
            owner, _, last = name.rpartition(".")
            setattr(layers[2].get_submodule(owner), last, parameter)
        attention = layers[0].get_submodule(_ATTENTION[case.name])
        attention.k_proj.weight = attention.q_proj.weight
        return model

    return build


_LAYERS = {"OPT": "model.decoder.layers"}
_ATTENTION = {"OPT": "self_attn"}


@pytest.mark.slow
def test_tied_weights():
    case = BY_NAME["OPT"]
    dropped = drop(replace(case, build=_tied(case)))
    assert dropped.equal
    assert dropped.strays == dropped.bad == dropped.missed == 0
