"""The zoo's encoders of text."""

from __future__ import annotations

import functools

from zoo_batches import WORDS, questions, tokens, unmasked, up_to
from zoo_building import TEXT, maker
from zoo_conformance import Case

_text = functools.partial(maker, **TEXT)

ENCODERS = [
    Case("BERT", _text("BertForMaskedLM", "BertConfig"), tokens),
    Case("RoBERTa", _text("RobertaForMaskedLM", "RobertaConfig"), tokens),
    Case(
        "XLNet",
        maker(
            "XLNetForQuestionAnsweringSimple",
            "XLNetConfig",
            vocab_size=WORDS,
            d_model=64,
            n_layer=4,
            n_head=4,
            d_inner=128,
        ),
        questions,
        quick=True,
        note="no checkpointing of its own",
    ),
    Case(
        "ALBERT",
        _text(
            "AlbertForMaskedLM",
            "AlbertConfig",
            embedding_size=32,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
        ),
        tokens,
        quick=True,
        note="one layer, called four times",
    ),
    Case(
        "DistilBERT",
        maker(
            "DistilBertForMaskedLM",
            "DistilBertConfig",
            vocab_size=WORDS,
            dim=64,
            n_layers=4,
            n_heads=4,
            hidden_dim=128,
            max_position_embeddings=160,
        ),
        tokens,
    ),
    Case("ELECTRA", _text("ElectraForMaskedLM", "ElectraConfig", embedding_size=32), tokens),
    Case(
        "DeBERTa-v2",
        _text(
            "DebertaV2ForMaskedLM",
            "DebertaV2Config",
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=32,
        ),
        tokens,
        exact=False,
        note="scratch memory",
    ),
    Case(
        "DeBERTa",
        _text(
            "DebertaForMaskedLM",
            "DebertaConfig",
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
        ),
        tokens,
    ),
    Case(
        "MPNet",
        _text("MPNetForMaskedLM", "MPNetConfig"),
        tokens,
    ),
    Case(
        "ModernBERT",
        _text(
            "ModernBertForMaskedLM",
            "ModernBertConfig",
            mlp_dropout=0.1,
            attention_dropout=0.1,
            local_attention=32,
            global_attn_every_n_layers=2,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            cls_token_id=1,
            sep_token_id=2,
        ),
        tokens,
    ),
    Case("ConvBERT", _text("ConvBertForMaskedLM", "ConvBertConfig", embedding_size=64), tokens),
    Case(
        "Funnel",
        maker(
            "FunnelForMaskedLM",
            "FunnelConfig",
            vocab_size=WORDS,
            block_sizes=[2, 2, 2],
            d_model=64,
            n_head=4,
            d_head=16,
            d_inner=128,
        ),
        tokens,
    ),
    Case(
        "Longformer",
        _text("LongformerForMaskedLM", "LongformerConfig", attention_window=16),
        tokens,
        size=up_to(16),
        sheltered=7,
        note="pads to multiples of 16 inside, which `size=` says",
    ),
    Case(
        "BigBird",
        _text("BigBirdForMaskedLM", "BigBirdConfig", attention_type="original_full"),
        tokens,
    ),
    Case(
        "RoFormer",
        _text("RoFormerForMaskedLM", "RoFormerConfig"),
        tokens,
    ),
    Case(
        "SqueezeBERT",
        _text("SqueezeBertForMaskedLM", "SqueezeBertConfig", embedding_size=64),
        tokens,
    ),
    Case(
        "FNet",
        _text("FNetForMaskedLM", "FNetConfig", use_tpu_fourier_optimizations=False),
        unmasked,
    ),
    Case(
        "MobileBERT",
        _text(
            "MobileBertForMaskedLM",
            "MobileBertConfig",
            embedding_size=32,
            intra_bottleneck_size=32,
            true_hidden_size=32,
            hidden_dropout_prob=0.1,
        ),
        tokens,
    ),
]
