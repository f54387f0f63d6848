"""The zoo's decoders of text, mixtures of experts and state-space models among them."""

from __future__ import annotations

import functools

from zoo_batches import WORDS, short, tokens, up_to
from zoo_building import TEXT, maker
from zoo_conformance import Case

DECODER = {
    **TEXT,
    "num_key_value_heads": 2,
    "attention_dropout": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_decoder = functools.partial(maker, **DECODER)

DECODERS = [
    Case(
        "GPT-2",
        maker(
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=WORDS,
            n_embd=64,
            n_layer=4,
            n_head=4,
            n_positions=160,
            bos_token_id=1,
            eos_token_id=2,
        ),
        tokens,
        quick=True,
    ),
    Case(
        "GPT-Neo",
        maker(
            "GPTNeoForCausalLM",
            "GPTNeoConfig",
            vocab_size=WORDS,
            hidden_size=64,
            num_layers=4,
            attention_types=[[["global", "local"], 2]],
            num_heads=4,
            intermediate_size=128,
            window_size=32,
            attention_dropout=0.1,
            max_position_embeddings=160,
            bos_token_id=1,
            eos_token_id=2,
        ),
        tokens,
    ),
    Case(
        "GPT-J",
        maker(
            "GPTJForCausalLM",
            "GPTJConfig",
            vocab_size=WORDS,
            n_embd=64,
            n_layer=4,
            n_head=4,
            rotary_dim=8,
            n_positions=160,
            attn_pdrop=0.1,
            resid_pdrop=0.1,
            bos_token_id=1,
            eos_token_id=2,
        ),
        tokens,
    ),
    Case(
        "OPT",
        maker(
            "OPTForCausalLM",
            "OPTConfig",
            vocab_size=WORDS,
            hidden_size=64,
            num_hidden_layers=4,
            ffn_dim=128,
            num_attention_heads=4,
            max_position_embeddings=160,
            word_embed_proj_dim=64,
            attention_dropout=0.1,
        ),
        tokens,
    ),
    Case("GPT-NeoX", _decoder("GPTNeoXForCausalLM", "GPTNeoXConfig", hidden_dropout=0.1), tokens),
    Case("Llama", _decoder("LlamaForCausalLM", "LlamaConfig"), tokens),
    Case("Mistral", _decoder("MistralForCausalLM", "MistralConfig", sliding_window=48), tokens),
    Case("Qwen2", _decoder("Qwen2ForCausalLM", "Qwen2Config"), tokens),
    Case("Qwen3", _decoder("Qwen3ForCausalLM", "Qwen3Config", head_dim=16), tokens),
    Case("Gemma", _decoder("GemmaForCausalLM", "GemmaConfig", head_dim=16), tokens),
    Case(
        "Gemma 2",
        _decoder("Gemma2ForCausalLM", "Gemma2Config", head_dim=16, sliding_window=48),
        tokens,
    ),
    Case(
        "Gemma 3",
        _decoder("Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=16, sliding_window=48),
        tokens,
    ),
    Case("Phi", _decoder("PhiForCausalLM", "PhiConfig", resid_pdrop=0.1), tokens),
    Case("Phi-3", _decoder("Phi3ForCausalLM", "Phi3Config", resid_pdrop=0.1), tokens),
    Case("Falcon", _decoder("FalconForCausalLM", "FalconConfig", hidden_dropout=0.1), tokens),
    Case(
        "BLOOM",
        maker(
            "BloomForCausalLM",
            "BloomConfig",
            vocab_size=WORDS,
            hidden_size=64,
            n_layer=4,
            n_head=4,
            hidden_dropout=0.1,
            attention_dropout=0.1,
        ),
        tokens,
    ),
    Case(
        "MPT",
        maker(
            "MptForCausalLM",
            "MptConfig",
            vocab_size=WORDS,
            d_model=64,
            n_layers=4,
            n_heads=4,
            max_seq_len=160,
            resid_pdrop=0.1,
        ),
        tokens,
    ),
    Case("StableLM", _decoder("StableLmForCausalLM", "StableLmConfig", hidden_dropout=0.1), tokens),
    Case(
        "StarCoder2",
        _decoder("Starcoder2ForCausalLM", "Starcoder2Config", residual_dropout=0.1),
        tokens,
    ),
    Case("OLMo 2", _decoder("Olmo2ForCausalLM", "Olmo2Config"), tokens),
    Case("Granite", _decoder("GraniteForCausalLM", "GraniteConfig"), tokens),
    Case("Cohere", _decoder("CohereForCausalLM", "CohereConfig"), tokens),
    Case("SmolLM3", _decoder("SmolLM3ForCausalLM", "SmolLM3Config"), tokens),
    Case(
        "Mixtral",
        _decoder(
            "MixtralForCausalLM", "MixtralConfig", num_local_experts=4, router_jitter_noise=0.1
        ),
        tokens,
    ),
    Case(
        "Qwen3-MoE",
        _decoder(
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
        ),
        tokens,
    ),
    Case(
        "Mamba",
        maker(
            "MambaForCausalLM",
            "MambaConfig",
            vocab_size=WORDS,
            hidden_size=64,
            num_hidden_layers=4,
            state_size=8,
        ),
        short,
    ),
    Case(
        "Mamba 2",
        maker(
            "Mamba2ForCausalLM",
            "Mamba2Config",
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=4,
            state_size=8,
            num_heads=4,
            head_dim=16,
            n_groups=1,
            chunk_size=16,
        ),
        tokens,
        size=up_to(16),
        sheltered=7,
        note="pads to multiples of 16 inside, which `size=` says",
    ),
    Case(
        "RWKV",
        maker(
            "RwkvForCausalLM",
            "RwkvConfig",
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=4,
            context_length=160,
        ),
        short,
    ),
]
