"""The four classes of operators, and how their output grows with the mini-batch's input.

The first version of the paper (arXiv 2209.02478) tells them apart, and IPDPS 2023 draws their
shapes (Fig 8): element-wise operators return as much as they take, some pool to a fixed size, some
change it by a fixed factor (implicit reduction), and attention has terms in the square. Hence the
estimator's polynomial of degree two. Here the operators are PyTorch's own, their outputs' bytes
read at several sizes, and the polynomial through them is exact: in fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from mimose.devices.base import Device
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent

Kind = Literal["element-wise", "fixed output", "implicit reduction", "typical structure"]

BATCH, HIDDEN, HEADS, INNER = 12, 768, 12, 3072
CHANNELS, WIDTH = 64, 224
LENGTHS = (32, 77, 128, 200, 331, 512)
HEIGHTS = (64, 96, 160, 224, 320, 448)
"""Multiples of 32, as detectors pad to; the width stays."""

ODD_HEIGHTS = tuple(range(65, 449))
MOST_DEGREE = 3


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator, and what the paper says of it.

    Attributes:
        name: Its name.
        kind: Its class.
        degree: The degree that its class has in the input's size.
        run: Takes the input and returns the output.
        of_images: Whether its input is one of images, which grows by height; else text, by length.
        factor: Whether its output must be a multiple of its input, no constant added.
    """

    name: str
    kind: Kind
    degree: int
    run: Callable[[Tensor], Tensor]
    of_images: bool = False
    factor: bool = False


def _linear(columns: int) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.linear(x, x.new_empty(columns, x.shape[-1]))


def _convolution(stride: int, padding: int = 1) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        weight = x.new_empty(2 * CHANNELS, CHANNELS, 3, 3)
        return functional.conv2d(x, weight, stride=stride, padding=padding)

    return run


def _heads(x: Tensor) -> Tensor:
    batch, length, hidden = x.shape
    return x.reshape(batch, length, HEADS, hidden // HEADS).transpose(1, 2)


def _scores(x: Tensor) -> Tensor:
    return _heads(x) @ _heads(x).transpose(-1, -2)


def _valid(x: Tensor) -> Tensor:
    return _convolution(1, padding=0)(x)


def _attended(x: Tensor) -> Tensor:
    return _scores(x).softmax(-1) @ _heads(x)


ELEMENT, FIXED, REDUCTION, STRUCTURE = (
    "element-wise",
    "fixed output",
    "implicit reduction",
    "typical structure",
)
OPERATORS: tuple[Operator, ...] = (
    Operator("ReLU", ELEMENT, 1, torch.relu, factor=True),
    Operator("GELU", ELEMENT, 1, functional.gelu, factor=True),
    Operator("add", ELEMENT, 1, lambda x: x + x, factor=True),
    Operator("ReLU of images", ELEMENT, 1, torch.relu, of_images=True, factor=True),
    Operator("adaptive average pooling", FIXED, 0, nn.AdaptiveAvgPool2d(7), of_images=True),
    Operator("adaptive max pooling", FIXED, 0, nn.AdaptiveMaxPool2d(1), of_images=True),
    Operator("linear, 768 to 3072", REDUCTION, 1, _linear(INNER), factor=True),
    Operator("linear, 768 to 2", REDUCTION, 1, _linear(2), factor=True),
    Operator("convolution 3x3", REDUCTION, 1, _convolution(1), of_images=True, factor=True),
    Operator(
        "convolution 3x3, stride 2", REDUCTION, 1, _convolution(2), of_images=True, factor=True
    ),
    Operator(
        "max pooling 3x3, stride 2",
        REDUCTION,
        1,
        nn.MaxPool2d(3, stride=2, padding=1),
        of_images=True,
        factor=True,
    ),
    Operator("attention: Q, K or V", STRUCTURE, 1, _linear(HIDDEN), factor=True),
    Operator("attention: QK^T", STRUCTURE, 2, _scores),
    Operator("attention: scale", STRUCTURE, 2, lambda x: _scores(x) / 8.0),
    Operator("attention: softmax", STRUCTURE, 2, lambda x: _scores(x).softmax(-1)),
    Operator("attention: scores times V", STRUCTURE, 1, _attended, factor=True),
    Operator("attention: output", STRUCTURE, 1, _linear(HIDDEN), factor=True),
)
NO_FACTOR = Operator("convolution 3x3, no padding", REDUCTION, 1, _valid, of_images=True)
"""An edge is lost whatever the size: a constant beside the factor. Reported, as odd heights are."""


@dataclass(frozen=True, slots=True)
class Grown:
    """How an operator's output grew.

    Attributes:
        degree: The least degree of a polynomial that goes through all points; None above
            :data:`MOST_DEGREE`.
        coefficients: Its coefficients, the constant first; empty where there is none.
        points: Elements of input and output.
    """

    degree: int | None
    coefficients: tuple[Fraction, ...]
    points: tuple[tuple[int, int], ...]

    @property
    def is_factor(self) -> bool:
        """Whether the output is a multiple of the input."""
        return self.degree == 1 and self.coefficients[0] == 0


def through(points: Sequence[tuple[int, int]]) -> Grown:
    """Return the polynomial of least degree that goes through all points exactly.

    Raises:
        ValueError: If there are too few points to contradict one of :data:`MOST_DEGREE`.
    """
    if len({x for x, _ in points}) < MOST_DEGREE + 2:
        raise ValueError(f"give at least {MOST_DEGREE + 2} different sizes, not {len(points)}")
    for degree in range(MOST_DEGREE + 1):
        coefficients = _interpolate(points[: degree + 1])
        if all(_value(coefficients, x) == y for x, y in points):
            return Grown(degree, coefficients, tuple(points))
    return Grown(None, (), tuple(points))


def measure(device: Device, operator: Operator, extents: Sequence[int]) -> Grown:
    """Return how ``operator``'s output grows over lengths or heights."""
    points = []
    for extent in extents:
        shape = (BATCH, CHANNELS, extent, WIDTH) if operator.of_images else (BATCH, extent, HIDDEN)
        with torch.no_grad():
            given = torch.empty(shape, device=device.torch_device)
            points.append((given.numel(), operator.run(given).numel()))
    return through(points)


def judge(
    found: Mapping[str, Grown], device_label: str, edges: Mapping[str, float] | None = None
) -> Reproduction:
    """Compare how operators grew with their classes.

    Args:
        found: By name of :data:`OPERATORS`, and of :data:`NO_FACTOR`.
        device_label: Where they ran.
        edges: The most that an operator's output is off its factor over all heights, as a share.
    """
    by_name = {operator.name: operator for operator in OPERATORS}
    claims = [
        Claim(
            text=f"{operator.name} ({operator.kind}): degree of its output in its input",
            source="text on four classes of operators",
            version="v1",
            unit="count",
            expected=operator.degree,
            obtained=found[name].degree,
            device_label=device_label,
            note="" if found[name].degree is not None else f"no polynomial up to {MOST_DEGREE}",
        )
        for name, operator in by_name.items()
        if name in found
    ]
    inexact = [n for n, o in by_name.items() if n in found and found[n].degree is None]
    constants = [
        n for n, o in by_name.items() if n in found and o.factor and not found[n].is_factor
    ]
    unequal = [
        n
        for n, o in by_name.items()
        if n in found and o.kind == ELEMENT and any(x != y for x, y in found[n].points)
    ]
    counts = (
        ("operators that no polynomial goes through exactly", inexact),
        ("operators whose output is no multiple of their input where it must be", constants),
        ("element-wise operators that do not return as much as they take", unequal),
    )
    notes = [f"{what}: {', '.join(names)}." for what, names in counts if names]
    if edges:
        notes.append(
            "Where a side is no multiple of the stride, pooling and strided convolution round: "
            + "; ".join(
                f"{name} is up to {share:.2%} off its factor" for name, share in edges.items()
            )
            + f", heights {ODD_HEIGHTS[0]} to {ODD_HEIGHTS[-1]}. Without padding an edge is lost: "
            "a constant beside the factor."
        )
    return Reproduction(
        name="operators",
        title="four classes of operators: output against input",
        source="Fig 8",
        device_label=device_label,
        rows=(),
        criteria=tuple(
            Criterion(name=what, value=len(names), tolerance=0, is_count=True)
            for what, names in counts
        ),
        claims=tuple(claims),
        tables=(_table(found),),
        notes=tuple(notes),
    )


def check(open_device: OpenDevice, *, say: Say = silent) -> Reproduction:
    """Run every operator over several sizes and compare."""
    found: dict[str, Grown] = {}
    edges: dict[str, float] = {}
    with open_device() as device:
        for operator in (*OPERATORS, NO_FACTOR):
            say(f"operators: {operator.name}")
            extents = HEIGHTS if operator.of_images else LENGTHS
            found[operator.name] = measure(device, operator, extents)
            if "stride" in operator.name:
                odd = measure(device, operator, ODD_HEIGHTS)
                edges[operator.name] = off(odd, found[operator.name])
        return judge(found, device.label, edges)


def off(odd: Grown, even: Grown) -> float:
    """Return the most that points are off another's polynomial, as a share of it.

    Raises:
        ValueError: If that has none.
    """
    if even.degree is None:
        raise ValueError("there is no polynomial to be off")
    return max(float(abs(y / _value(even.coefficients, x) - 1)) for x, y in odd.points)


def _table(found: Mapping[str, Grown]) -> ResultTable:
    rows = []
    for operator in (*OPERATORS, NO_FACTOR):
        if operator.name in found:
            grown = found[operator.name]
            rows.append(
                (
                    operator.name,
                    operator.kind,
                    f"{operator.degree}",
                    "-" if grown.degree is None else f"{grown.degree}",
                    _formula(grown),
                )
            )
    return ResultTable(
        title=f"elements of the output for x elements of input; text ({BATCH}, length, {HIDDEN}), "
        f"images ({BATCH}, {CHANNELS}, height, {WIDTH})",
        headers=("operator", "class", "degree: paper", "here", "polynomial"),
        rows=tuple(rows),
    )


def _formula(grown: Grown) -> str:
    if grown.degree is None:
        return "-"
    powers = ("", " x", " x^2", " x^3")
    terms = [f"{c}{power}" for c, power in zip(grown.coefficients, powers) if c]
    return " + ".join(reversed(terms)) or "0"


def _value(coefficients: Sequence[Fraction], x: int) -> Fraction:
    value = Fraction(0)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def _interpolate(points: Sequence[tuple[int, int]]) -> tuple[Fraction, ...]:
    """Return the coefficients of the polynomial through ``points``, by Newton's differences."""
    xs = [x for x, _ in points]
    table = [Fraction(y) for _, y in points]
    for level in range(1, len(points)):
        for i in range(len(points) - 1, level - 1, -1):
            table[i] = (table[i] - table[i - 1]) / (xs[i] - xs[i - level])
    coefficients = [Fraction(0)]
    for value, x in zip(reversed(table), reversed(xs)):
        shifted = [Fraction(0), *coefficients]
        scaled = [*(-x * c for c in coefficients), Fraction(0)]
        coefficients = [a + b for a, b in zip(shifted, scaled)]
        coefficients[0] += value
    return tuple(coefficients[: len(points)])
