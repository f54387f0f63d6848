import pytest

from mimose.units import GIB
from mimose_bench.experiments import paper


@pytest.mark.parametrize(
    ("dataset", "mean"), [("SWAG", 55.5), ("SQuAD", 299.0), ("GLUE-QQP", 69.9), ("UN_PC", 73.1)]
)
def test_histograms_have_the_known_means(dataset, mean):
    histogram = paper.length_histogram(dataset)
    assert sum(histogram.shares) == pytest.approx(1)
    assert len(histogram.edges) == len(histogram.shares) + 1
    middles = (edge + histogram.bin_width / 2 for edge in histogram.edges)
    assert sum(m * s for m, s in zip(middles, histogram.shares)) == pytest.approx(mean, rel=0.01)


def test_memory_comes_in_bytes():
    points = dict(paper.unchecked_memory("SQuAD"))
    assert len(paper.unchecked_memory("SQuAD")) == 355
    assert points[512] == pytest.approx(9.03 * GIB, rel=0.005)
    assert len(paper.unchecked_memory("GLUE-QQP")) == 184


def test_figure_11_stays_below_each_budget():
    curves = paper.peak_by_input_size("QA-Bert")
    assert sorted(curves) == [gb * GIB for gb in (4, 5, 6, 7, 8)]
    for budget, points in curves.items():
        assert max(point.peak_bytes for point in points) < budget
    highest = max(point.peak_bytes for point in curves[6 * GIB])
    assert highest == pytest.approx(5.07 * GIB, rel=0.01)


def test_figure_10_has_planners_and_bounds():
    curves = paper.time_by_memory("QA-Bert")
    assert list(curves) == ["Mimose", "Sublinear", "DTR"]
    assert curves["Mimose"][2].relative_time == pytest.approx(1.097, abs=0.001)
    lower, upper = paper.memory_bounds("QA-Bert")
    assert lower == pytest.approx(3.07 * GIB, rel=0.01)
    assert upper == pytest.approx(9.49 * GIB, rel=0.01)


@pytest.mark.parametrize(
    "look_up",
    [paper.length_histogram, paper.unchecked_memory, paper.peak_by_input_size, paper.memory_bounds],
)
def test_what_the_paper_does_not_show_is_an_error(look_up):
    with pytest.raises(ValueError, match=r"of the paper shows .*, not 'COCO'"):
        look_up("COCO")
