"""Table IV: families of regressions on made-up blocks, what is judged, and one small run."""

from functools import partial

import numpy as np
import pytest

from mimose_bench.experiments.figures import regressions, table4
from mimose_bench.experiments.figures.regressions import CUBIC, FAMILIES, LINEAR, QUADRATIC
from mimose_bench.experiments.figures.session import opened
from mimose_bench.experiments.figures.text import describe

LABEL = "simulated v100-32gb"


def blocks(lengths, noise=0.0):
    lengths = np.array(lengths, np.float64)
    generator = np.random.default_rng(0)
    memory = np.stack([1e6 * k + 2e5 * lengths + 300 * k * lengths**2 for k in (1, 2, 3)], axis=1)
    return lengths, memory * (1 + noise * generator.standard_normal(memory.shape))


def held_error(name, noise=0.0):
    lengths, memory = blocks(range(40, 140, 10), noise)
    fitted = FAMILIES[name].fit(lengths, memory)
    others, theirs = blocks([45, 77, 111])
    return regressions.error(fitted, others.tolist(), theirs)


def test_polynomials_predict_squares_as_their_degree_allows():
    assert held_error(QUADRATIC) < 1e-9
    assert held_error(CUBIC) < 1e-9
    assert held_error(LINEAR) > 0.01


@pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if f.package != "numpy"])
def test_every_library_predicts_each_block(name):
    family = FAMILIES[name]
    if not family.is_installed:
        pytest.skip(f"{family.package} is not installed: it comes with the extra regression")
    found = held_error(name)
    assert held_error(QUADRATIC) < found < 0.3


def test_the_error_is_that_of_the_sum_of_blocks():
    class Off:
        def predict_block(self, block, length):
            return 100.0 + (10 if block else -10)  # The two cancel out.

    assert regressions.error(Off(), [1.0], np.array([[100.0, 100.0]])) == 0.0
    assert regressions.error(Off(), [1.0], np.array([[100.0, 150.0]])) == pytest.approx(0.2)


def test_a_times_median_is_of_single_calls():
    assert 0 < regressions.seconds_of(lambda: None, 3) < 1e-4


def lines(factor=1.0, **changes):
    found = {
        line: table4.Found(
            line.samples, line.fit, line.predict, dict.fromkeys(table4.KINDS, line.error * factor)
        )
        for line in table4.PAPER
    }
    for line in table4.PAPER:
        if line.family in changes:
            found[line] = changes[line.family]
    return found


def test_the_papers_own_table_holds_and_larger_errors_are_outside():
    assert table4.judge(lines(), LABEL).passed
    outside = [c.text for c in table4.judge(lines(1.1), LABEL).claims if c.verdict == "outside"]
    assert len(outside) == 2
    assert all("the quadratic's error" in text for text in outside)


def test_a_better_or_faster_rival_is_outside_by_name():
    better = table4.Found(10, 1e-4, 1e-6, dict.fromkeys(table4.KINDS, 1e-4))
    result = table4.judge(lines(XGBoost=better), LABEL)
    outside = [c.text for c in result.claims if c.verdict == "outside"]
    assert sum("no other family" in text for text in outside) == 2
    assert sum("less time than XGBoost" in text for text in outside) == 2
    assert {c.device_label for c in result.claims if "time" in c.text} == {"measured on cpu"}


def test_without_a_library_its_lines_are_not_measured_and_the_note_says_how_to_get_it():
    result = table4.judge(lines(XGBoost=None), LABEL)
    assert result.passed
    assert [c.verdict for c in result.claims].count("not measured") == 2
    assert "mimose-bench[regression]" in result.notes[-1]
    assert "XGBoost" in describe(result)


class Sizes:
    def sizes(self, count):
        pattern = [(8, x) for x in (50, 90, 60, 120, 70, 50, 40, 90, 55, 130, 77, 200, 85, 77, 61)]
        return iter((pattern * 40)[:count])


def test_sizes_to_predict_are_new_and_within_the_first_tens():
    learned, later = table4.chosen(Sizes(), 10, 3)
    assert learned == [50, 90, 60, 120, 70, 50, 40, 90, 55, 130]
    assert later == [77, 85, 61]


@pytest.mark.slow
def test_narrow_blocks_are_predicted_by_the_installed_families(monkeypatch):
    monkeypatch.setattr(table4, "PAPER", table4.PAPER[:3])
    monkeypatch.setattr(table4, "_claims", lambda *_: [])
    result = table4.check(partial(opened, "sim:v100"), samples=12, sizes=2, rounds=1, scale="tiny")
    errors = {r.series: r.obtained for r in result.rows if r.what == "error, tensors"}
    assert len(errors) == 3
    assert errors["polynomial n=2, 10 samples"] < 0.01
