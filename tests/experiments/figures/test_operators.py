"""The classes of operators: exact polynomials, and what fails."""

from dataclasses import replace
from fractions import Fraction

import pytest

from mimose_bench.experiments.figures import operators
from mimose_bench.experiments.figures.session import opened

XS = (3, 5, 8, 13, 21, 34)


@pytest.mark.parametrize(
    ("function", "degree", "coefficients"),
    [
        (lambda x: 7, 0, (7,)),
        (lambda x: 4 * x, 1, (0, 4)),
        (lambda x: 3 * x + 2, 1, (2, 3)),
        (lambda x: x * (x + 1) // 2, 2, (0, Fraction(1, 2), Fraction(1, 2))),
        (lambda x: x**3 - x, 3, (0, -1, 0, 1)),
        (lambda x: x**4, None, ()),
        (lambda x: x + (x == 8), None, ()),
    ],
)
def test_the_least_polynomial_through_all_points_is_exact(function, degree, coefficients):
    grown = operators.through([(x, function(x)) for x in XS])
    assert grown.degree == degree
    assert grown.coefficients == coefficients


def test_too_few_points_prove_nothing():
    with pytest.raises(ValueError, match="at least 5"):
        operators.through([(x, x) for x in XS[:4]])


def test_every_operator_on_meta_is_of_its_class():
    result = operators.check(lambda: opened("sim:v100"))
    assert result.passed
    assert {claim.verdict for claim in result.claims} == {"holds"}
    assert {o.kind for o in operators.OPERATORS} == {
        "element-wise",
        "fixed output",
        "implicit reduction",
        "typical structure",
    }
    assert "up to" in result.notes[0]


def test_an_operator_of_another_degree_fails_by_name(monkeypatch):
    wrong = replace(operators.OPERATORS[0], run=operators._scores)
    monkeypatch.setattr(operators, "OPERATORS", (wrong,))
    with opened("sim:v100") as device:
        found = {wrong.name: operators.measure(device, wrong, operators.LENGTHS)}
    result = operators.judge(found, "simulated v100-32gb")
    assert [c.verdict for c in result.claims] == ["outside"]
    assert [c.value for c in result.criteria] == [0, 1, 1]
    assert wrong.name in result.notes[0]
