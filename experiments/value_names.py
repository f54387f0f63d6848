"""Names in words for what a block saves for backward: *GELU*, *dropout after softmax*."""

from __future__ import annotations

from collections import Counter

from mimose.menu import BlockGraph, Operator

WORDS = {
    "addmm": "linear",
    "mm": "linear",
    "linear": "linear",
    "bmm": "product",
    "baddbmm": "product",
    "matmul": "product",
    "gelu": "GELU",
    "relu": "ReLU",
    "silu": "SiLU",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "softmax": "softmax",
    "log_softmax": "log softmax",
    "dropout_mask": "dropout's mask",
    "native_layer_norm": "layer norm",
    "native_group_norm": "group norm",
    "native_batch_norm": "batch norm",
    "cudnn_batch_norm": "batch norm",
    "fused_rms_norm": "RMS norm",
    "convolution": "convolution",
    "clone": "copy",
    "to_copy": "cast",
    "cat": "concatenation",
    "constant_pad_nd": "padding",
    "add": "sum",
    "sub": "difference",
    "mul": "product by element",
    "div": "quotient",
    "pow": "power",
    "rsqrt": "inverse root",
    "scaled_dot_product_flash_attention": "attention",
    "scaled_dot_product_flash_attention_for_cpu": "attention",
    "scaled_dot_product_efficient_attention": "attention",
    "scaled_dot_product_cudnn_attention": "attention",
}
"""Operators in words; others go by their own names."""

_AFTER = ("dropout", "dropout's mask", "copy", "cast")
"""What is told by what it is made from."""
_NORMS = ("layer norm", "group norm", "batch norm")
_STATISTICS = ("", "'s mean", "'s deviation")


def in_words(graph: BlockGraph) -> tuple[str, ...]:
    """Return a name in words for each value of a block; no two are alike."""
    kinds = [_kind(op) for op in graph.operators]
    total, seen = Counter(kinds), Counter[str]()
    names = [""] * graph.num_values
    for op, kind in zip(graph.operators, kinds):
        seen[kind] += 1
        name = kind if total[kind] == 1 else f"{kind} {seen[kind]}"
        if kind in _AFTER and total[kind] > 1 and op.inputs:
            after = f"{kind} after {names[op.inputs[0]]}"
            name = after if after not in names else name
        for place, value in enumerate(op.outputs):
            names[value] = name + _part(kind, place)
    return tuple(names)


def _kind(operator: Operator) -> str:
    return WORDS.get(operator.name, operator.name.removeprefix("native_").replace("_", " "))


def _part(kind: str, place: int) -> str:
    """Return what tells an operator's outputs apart."""
    if kind in _NORMS and place < len(_STATISTICS):
        return _STATISTICS[place]
    return f", output {place + 1}" if place else ""
