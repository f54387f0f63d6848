"""What is compared with the paper, and when it fails: without a device."""

import pytest

from mimose_bench.experiments import paper
from mimose_bench.experiments.data.lengths import LengthBin
from mimose_bench.experiments.figures import clock, fig3, fig9, stars, text
from mimose_bench.experiments.figures.lengths import bins_of, merge
from mimose_bench.experiments.figures.result import (
    FACTORS,
    Criterion,
    Row,
    max_error,
    mean_error,
)
from mimose_bench.experiments.figures.workloads import MC_ROBERTA, QA_BERT, TC_BERT

LABEL = "simulated v100-32gb"


def fig3_peaks(factor=1.0):
    return {
        dataset: {p.input_size: round(p.peak_bytes * factor) for p in fig3.split(dataset)[0]}
        for dataset in fig3.QUADRATICS
    }


def fig9_curves(factor=1.0, unit="MiB"):
    return {
        curve: {length: round(mb * FACTORS[unit] * factor) for length, mb in points}
        for curve, points in paper.layer_selection().items()
    }


def fig9_peaks(factor=1.0):
    return {r.name: fig9_curves(factor, r.unit) for r in fig9.READINGS}


def star_bytes():
    return {
        (workload.name, which): stars.Star(
            round(expected * 0.9), (expected // 2, expected, expected)
        )
        for workload in stars.WORKLOADS
        for which, expected in zip(stars.PLANNERS, paper.memory_bounds(workload.name))
    }


def clock_seconds(factor=1.0):
    return {timing.name: timing.seconds * factor for timing in clock.TIMINGS}


def test_exactly_the_sheltered_points_are_left_out_of_figure_3():
    left_out = fig3.judge(fig3_peaks(), LABEL).left_out
    assert {(p.series, p.length) for p in left_out} == {
        ("SWAG", 51),
        ("SWAG", 76),
        ("SQuAD", 269),
        ("SQuAD", 512),
        ("GLUE-QQP", 30),
        ("GLUE-QQP", 65),
        ("UN_PC", 62),
    }
    assert len(left_out) == 7


def test_every_other_point_of_figure_3_is_a_row():
    rows = fig3.judge(fig3_peaks(), LABEL).rows
    assert len(rows) == 104 + 355 + 184 + 154 - 7


def test_strides_thin_figure_3_and_keep_its_order():
    lengths = fig3.lengths_of("SQuAD")
    assert fig3.lengths_of("SQuAD", 20) == lengths[::20]
    assert lengths == sorted(set(lengths))


def test_one_bad_curve_of_figure_3_fails_by_name():
    peaks = fig3_peaks()
    assert fig3.judge(peaks, LABEL).passed
    peaks["SQuAD"] = fig3_peaks(1.021)["SQuAD"]
    result = fig3.judge(peaks, LABEL)
    assert [c.name for c in result.criteria if not c.passed] == [
        "SQuAD: mean relative error of peak memory"
    ]


def test_figure_9_keeps_whole_lengths_only():
    curves = paper.layer_selection()
    assert list(curves) == list(fig9.PLANS)
    assert [len(points) for points in curves.values()] == [82, 82, 82, 84, 84]
    assert dict(curves["last"])[141] == 9432


def test_the_papers_own_curves_are_in_its_order():
    peaks = fig9_curves()
    assert all(fig9.in_order(peaks, n, slack_bytes=0) for n in fig9.ORDER_LENGTHS)


def test_figure_9_fails_by_the_name_of_the_reading_that_is_off():
    assert fig9.judge(fig9_peaks(1.019), LABEL).passed
    result = fig9.judge(fig9_peaks(1.021), LABEL)
    missed = [c.name for c in result.criteria if not c.passed]
    assert len(missed) == 5
    assert all(name.startswith(fig9.OLD_SOFTMAX.name) for name in missed)
    assert len([c for c in fig9.judge(fig9_peaks(1.046), LABEL).criteria if not c.passed]) == 10


@pytest.mark.parametrize(("saved_mib", "fails"), [(0, False), (20, False), (21, True)])
def test_figure_9_fails_when_the_last_encoder_saves_more_than_was_read_off(saved_mib, fails):
    curves = fig9_curves()
    curves["last"] = {n: peak - (saved_mib << 20) for n, peak in curves["none"].items()}
    assert all(fig9.in_order(curves, n) != fails for n in fig9.ORDER_LENGTHS)


def test_figure_9_fails_when_the_first_encoder_saves_nothing():
    curves = fig9_curves()
    curves["first"] = curves["none"]
    assert not any(fig9.in_order(curves, n) for n in fig9.ORDER_LENGTHS)


def test_figure_9_always_measures_where_the_order_is_looked_at():
    assert set(fig9.ORDER_LENGTHS) <= set(fig9.lengths_of(1000))


def test_stars_are_the_papers_and_one_off_by_six_percent_fails():
    result = stars.judge(star_bytes(), LABEL)
    gb = [round(row.expected / 2**30, 2) for row in result.rows[:6]]
    assert gb == pytest.approx([3.36, 9.91, 3.07, 9.49, 3.58, 13.40], abs=0.006)
    assert result.passed
    measured = star_bytes()
    star = measured["QA-Bert", stars.LOWER]
    measured["QA-Bert", stars.LOWER] = stars.Star(star.alone, (round(star.middle * 0.94),))
    assert not stars.judge(measured, LABEL).passed


def test_runs_visit_the_longest_batch_and_depend_on_the_seed_alone():
    lengths = stars.sampled(QA_BERT, 3, 60)
    assert lengths == stars.sampled(QA_BERT, 3, 60) != stars.sampled(QA_BERT, 4, 60)
    assert lengths[40] == 512
    assert len(lengths) == 60


def test_times_calibrated_on_do_not_judge_the_clock():
    measured = clock_seconds()
    measured["fig4-pytorch-55"] *= 10
    assert not clock.judge(measured, LABEL, ()).passed
    result = clock.judge(measured, LABEL, ("fig4-pytorch-55",))
    assert result.passed
    assert [row.note for row in result.rows].count("calibrated on this") == 1


def test_relative_times_do_not_depend_on_the_clocks_scale():
    assert clock.scatter(clock.judge(clock_seconds(0.5), LABEL, ()).rows) == pytest.approx(0)
    measured = clock_seconds()
    measured["table3-qa-bert"] *= 1.1
    by_name = {c.name: c for c in clock.judge(measured, LABEL, ()).criteria}
    assert by_name["Table III: mean error of relative times"].value > 0.03
    assert by_name["Fig 4: mean error of relative times"].value == pytest.approx(0)


def test_a_clock_calibrated_on_three_times_is_refused():
    names = [timing.name for timing in clock.TIMINGS[:3]]
    with pytest.raises(ValueError, match="calibrated on 3 published times"):
        clock.judge(clock_seconds(), LABEL, names)


def test_a_clock_must_be_judged_by_something():
    measured = {"fig4-pytorch-55": 0.1}
    with pytest.raises(ValueError, match="no published time is left"):
        clock.judge(measured, LABEL, ("fig4-pytorch-55",))


def test_timings_have_names_of_their_own():
    assert len({timing.name for timing in clock.TIMINGS}) == len(clock.TIMINGS)


@pytest.mark.parametrize(
    ("workload", "mean"), [(MC_ROBERTA, 55.5), (QA_BERT, 299.0), (TC_BERT, 69.9)]
)
@pytest.mark.parametrize("stride", [1, 6])
def test_bins_stand_for_the_papers_lengths(workload, mean, stride):
    bins = bins_of(workload, stride)
    assert sum(b.share for b in bins) == pytest.approx(1)
    assert sum(b.length * b.share for b in bins) == pytest.approx(mean, rel=0.01)
    assert max(b.length for b in bins) <= workload.longest


def test_merged_bins_keep_shares_and_means():
    bins = [LengthBin(10, 0.25), LengthBin(20, 0.25), LengthBin(40, 0.5)]
    assert merge(bins, 2) == (LengthBin(15, 0.5), LengthBin(40, 0.5))
    assert merge(bins, 1) == tuple(bins)


def test_errors_are_relative_to_the_paper():
    rows = [
        Row(series="a", what="", unit="GB", expected=100, obtained=90),
        Row(series="a", what="", unit="GB", expected=100, obtained=130),
    ]
    assert rows[0].error == pytest.approx(-0.1)
    assert mean_error(rows) == pytest.approx(0.2)
    assert max_error(rows) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="no row"):
        mean_error([])


def test_a_criterion_without_tolerance_is_reported_only():
    assert Criterion(name="x", value=9.0).passed
    assert Criterion(name="x", value=0.02, tolerance=0.02).passed
    assert not Criterion(name="x", value=0.0201, tolerance=0.02).passed


def test_the_text_says_what_missed_and_what_was_left_out():
    peaks = fig3_peaks()
    peaks["SWAG"] = fig3_peaks(1.5)["SWAG"]
    result = fig3.judge(peaks, LABEL)
    said = text.describe(result)
    assert LABEL in said
    assert "left out: SWAG 51, SWAG 76" in said
    assert "OUTSIDE" in said
    assert "+50.0 %" in said
    assert text.verdict(result) == "fig3: OUTSIDE: SWAG: mean relative error of peak memory"
    assert text.verdict(fig3.judge(fig3_peaks(), LABEL)) == "fig3: within tolerance"


def test_rows_shown_are_spread_over_a_series():
    rows = [Row(series="a", what=str(i), unit="GB", expected=1, obtained=1) for i in range(100)]
    assert [row.what for row in text.spread(rows, 4)] == ["0", "33", "66", "99"]
    assert text.spread(rows[:3], 4) == rows[:3]
