"""Whole training steps under eviction give the same numbers, in the memory that they are given."""

import gc
import weakref

import pytest
import torch
from torch import nn

from mimose.devices import open_device
from mimose.eviction import HEURISTICS, Eviction
from mimose.runtime.evicting import NoRoomError
from mimose.runtime.eviction.engine import Thrashing
from mimose.runtime.eviction.live import EvictionRuntime

EXACT = Eviction(system="dtr", sampling=False, ignore_small=False, thrash_limit=None)
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)


def exact(**changes):
    given = {"sampling": False, "ignore_small": False, "thrash_limit": None, **changes}
    return Eviction(system="dtr", **given)


class Residual(nn.Module):
    """Convolutions with batch norm, activations in place, and a shortcut around each."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(inplace=True),
            )
            for i in range(5)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = block(x) if i == 0 else x + block(x)
        return self.head(x.mean((2, 3)))


def mlp():
    layers = [m for _ in range(6) for m in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*layers)


def bert():
    from transformers import BertConfig, BertForQuestionAnswering

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=50,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    return BertForQuestionAnswering(config)


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        vocab_size=50,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def images():
    return torch.linspace(-1, 1, 4 * 3 * 16 * 16).reshape(4, 3, 16, 16).sin()


def rows():
    return torch.linspace(-1, 1, 128 * 32).reshape(128, 32).sin()


def question():
    tokens = torch.arange(4 * 40).reshape(4, 40) % 50
    mask = torch.ones_like(tokens)
    mask[1, 30:] = 0
    place = torch.tensor([1, 2, 3, 4])
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "start_positions": place,
        "end_positions": place + 3,
    }


def translation():
    tokens = torch.arange(4 * 24).reshape(4, 24) % 50
    return {"input_ids": tokens, "labels": tokens.flip(1)}


MODELS = {
    "mlp": (mlp, rows, 0.4),
    "conv": (Residual, images, 0.5),
    "bert": (bert, question, 0.4),
    "t5": (t5, translation, 0.4),
}


@pytest.fixture(scope="module")
def plain(train):
    return {name: train(build, batch()) for name, (build, batch, _) in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
class TestModels:
    def test_unlimited_changes_nothing(self, train, plain, name):
        build, batch, _ = MODELS[name]
        seen = train(build, batch(), exact())
        assert plain[name].differences(seen) == 0
        assert seen.peaks == plain[name].peaks
        assert seen.figures[-1].num_evictions == 0
        assert seen.figures[-1].num_operators > 20
        assert seen.num_pinned == 0

    def test_equal_and_within_any_budget(self, train, plain, name):
        build, batch, lowest = MODELS[name]
        for share in SHARES:
            if share < lowest:
                continue
            budget = plain[name].budget(share)
            seen = train(build, batch(), exact(), budget)
            assert plain[name].differences(seen) == 0, share
            # In the first step it is not known yet what operators take beside their outputs.
            assert seen.peaks[-1] <= budget, share
            assert all(f.num_evictions and f.num_rematerializations for f in seen.figures)

    def test_every_heuristic_is_equal(self, train, plain, name):
        build, batch, _ = MODELS[name]
        for heuristic in HEURISTICS:
            budget = plain[name].budget(0.8)
            seen = train(build, batch(), exact(heuristic=heuristic), budget)
            assert plain[name].differences(seen) == 0, heuristic
            assert seen.peaks[-1] <= budget, heuristic
            assert seen.figures[-1].num_evictions, heuristic


@pytest.mark.parametrize("trigger", ["after", "oom"])
def test_other_triggers(train, plain, trigger):
    build, batch, _ = MODELS["bert"]
    budget = plain["bert"].budget(0.7)
    seen = train(build, batch(), exact(trigger=trigger), budget)
    assert plain["bert"].differences(seen) == 0
    # Nothing runs out of memory here, since the device has no limit.
    assert bool(seen.figures[-1].num_evictions) == (trigger == "after")
