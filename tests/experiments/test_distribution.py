import json

import numpy as np
import pytest

from mimose_bench.experiments.distribution import (
    QUANTILES,
    Distribution,
    bin_edges,
    describe,
    measure_distribution,
)
from mimose_bench.experiments.paper import detection_areas, length_histogram
from mimose_bench.experiments.tasks import TaskOptions, make_task
from mimose_bench.plots import draw_distribution


def found(**changes):
    made = {
        "task": "qa-bert",
        "title": "QA-Bert",
        "scale": "full",
        "unit": "tokens",
        "source": "synthetic: words (asked for)",
        "notes": (),
        "dataset": "SQuAD",
        "batch_size": 12,
        "num_examples": 100,
        "lengths": np.array([200, 300, 400, 500]),
        "paper": length_histogram("SQuAD"),
    }
    return Distribution(**(made | changes))


# The summaries that the authors of the digitised data gave beside the histograms.
@pytest.mark.parametrize(
    ("dataset", "mean", "deviation", "quantiles"),
    [
        ("SWAG", 55.5, 11.0, (39, 42, 48, 53, 60, 77, 95)),
        ("SQuAD", 299.0, 68.4, (188, 209, 251, 287, 333, 438, 508)),
        ("GLUE-QQP", 69.9, 18.3, (43, 49, 58, 66, 78, 103, 125)),
        ("UN_PC", 73.1, 30.0, (30, 39, 54, 68, 86, 123, 173)),
    ],
)
def test_the_papers_statistics_follow_from_its_histogram(dataset, mean, deviation, quantiles):
    histogram = length_histogram(dataset)
    assert histogram.mean == pytest.approx(mean, abs=0.06)
    assert histogram.deviation == pytest.approx(deviation, abs=0.06)
    for share, expected in zip(QUANTILES, quantiles, strict=True):
        assert histogram.quantile(share) == pytest.approx(expected, abs=0.6)
    assert sum(histogram.shares_between(histogram.edges)) == pytest.approx(1.0)


def test_ours_stand_beside_the_papers():
    text = describe(found())
    mean = next(line for line in text.splitlines() if line.startswith("mean"))
    assert mean.split() == ["mean", "350.0", "299.0", "+17.1%"]
    assert "Fig 3" in text


def test_bins_cover_all_batches_and_all_of_the_paper():
    edges = bin_edges(found(lengths=np.array([20, 600])))
    assert edges[0] <= 20
    assert edges[-1] > 600
    assert (np.diff(edges) > 0).all()


def test_batches_of_one_length_have_a_distribution_too():
    text = describe(found(lengths=np.array([224] * 5), paper=None, unit="pixels"))
    assert "100.0%" in text


def test_areas_of_a_released_log_stand_beside_where_there_is_one():
    areas = detection_areas("OD-R101")
    text = describe(found(unit="pixels", paper=None, paper_areas=areas))
    assert "858000.0" in text
    assert areas.source in text
    assert detection_areas("QA-Bert") is None


def test_an_epochs_batches_are_looked_at_the_smaller_last_one_left_out():
    task = make_task("qa-bert", TaskOptions(scale="tiny", data="synthetic"))
    made = measure_distribution(task, task.epoch_steps)
    assert task.epoch_steps == 51
    assert len(made.lengths) == 50
    assert json.dumps(made.to_json())
    assert made.lengths.max() <= 128


def test_the_drawing_is_written(tmp_path):
    paths = draw_distribution(found(), tmp_path)
    assert [p.suffix for p in paths] == [".png", ".pdf", ".svg"]
    assert all(p.stat().st_size > 1000 for p in paths)
