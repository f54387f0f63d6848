"""Fig 11 from runs and plans made by hand."""

import pytest

from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures import fig11, fig11_claims
from mimose_bench.experiments.sweep.grid import read_grid
from mimose_bench.plots import peak_by_budget, style

LABEL = "simulated v100-32gb"
BUDGET = 6 * GIB


@pytest.fixture
def run_of(write_run):
    """A run of QA-Bert at 6 GB whose peaks are the paper's, ``factor`` times."""

    def run(factor=1.0, variant="authors", planner="mimose"):
        points = fig11_claims.settled(paper.peak_by_input_size("QA-Bert")[BUDGET])
        rows = [
            {
                "step": step,
                "phase": "responsive",
                "input_size": 12 * point.input_size,
                "sequence_length": point.input_size,
                "peak_allocated_bytes": round(factor * point.peak_bytes),
                "weight": 1 / len(points),
            }
            for step, point in enumerate(points)
        ]
        rows[0] |= {"weight": 0.0, "peak_allocated_bytes": 20 * GIB}  # Of preparation.
        return write_run(planner, BUDGET, rows, config={"variant": variant})

    return run


def asked(threshold, *, budget=BUDGET, step=5, first=160):
    """Plans that recompute nothing up to ``threshold`` and one block more every 30 tokens."""

    def count(length):
        rounded = -(-length // step) * step
        return max(0, -(-(rounded - threshold) // 30))

    plans = [(x, f"recompute 0-{count(x)}", count(x)) for x in range(first, 513)]
    return fig11_claims.Asked(
        task="qa-bert", variant="authors", budget_bytes=budget, plans=tuple(plans)
    )


def verdicts(result):
    return {claim.text.rpartition(": ")[2]: claim.verdict for claim in result.claims}


def test_the_papers_own_peaks_hold_and_preparing_steps_do_not_count(run_of):
    result = fig11.judge([run_of()], [asked(300)], LABEL)
    assert result.passed
    assert verdicts(result) == {
        "largest peak": "holds",
        "peak at 511": "holds",
        "longest length without recomputation": "holds",
        "others": "holds",
    }
    largest, *_ = result.claims
    assert largest.expected / GIB == pytest.approx(5.07, abs=0.01)


def test_steps_that_measured_are_left_out_of_the_papers_points():
    gone = {}
    for task in fig11_claims.NOTHING_RECOMPUTED:
        for budget, points in fig11_claims.paper_points(task).items():
            kept = {p.input_size for p in fig11_claims.settled(points)}
            gone[task, budget // GIB] = {p.input_size for p in points} - kept
    assert gone["qa-bert", 6] == {512}
    assert 51 in gone["mc-roberta", 6]
    assert max(map(len, gone.values())) <= 4


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_other_peaks_are_outside(run_of, factor):
    result = fig11.judge([run_of(factor)], [], LABEL)
    assert set(verdicts(result).values()) == {"outside"}


def test_a_step_over_the_budget_is_counted(run_of):
    (criterion, _) = fig11.judge([run_of(1.3)], [], LABEL).criteria
    assert criterion.value > 0
    assert not criterion.passed


@pytest.mark.parametrize(
    ("threshold", "verdict"), [(285, "holds"), (315, "holds"), (280, "outside"), (320, "outside")]
)
def test_the_length_without_recomputation_is_within_a_twentieth(threshold, verdict):
    (claim, _) = fig11.judge([], [asked(threshold)], LABEL).claims
    assert claim.obtained == threshold
    assert claim.verdict == verdict


def test_changes_elsewhere_than_after_multiples_of_five_are_found():
    changes = fig11.judge([], [asked(300, step=7)], LABEL).claims[-1]
    assert changes.verdict == "outside"
    assert changes.obtained > 0


def test_recomputation_from_the_shortest_length_on_has_no_threshold():
    (claim, _) = fig11.judge([], [asked(300, first=310)], LABEL).claims
    assert claim.verdict == "not measured"


def test_thresholds_are_the_figures_own():
    for task, thresholds in fig11_claims.NOTHING_RECOMPUTED.items():
        shown = fig11_claims.paper_points(task)
        for threshold, (budget, points) in zip(thresholds, sorted(shown.items()), strict=True):
            # Memory without recomputation grows with length, and falls once blocks are dropped.
            peaks = {p.input_size: p.peak_bytes for p in points}
            before = [peak for x, peak in peaks.items() if x <= threshold]
            behind = [x for x in peaks if threshold < x <= threshold + 12]
            assert before, (task, budget)
            assert not behind or min(peaks[x] for x in behind) < 1.04 * max(before)


def test_every_grid_can_be_read():
    for grid in fig11.grids((*fig11.TEXT_TASKS, *fig11.DETECTORS), ("paper",)):
        read_grid(None, {"devices": ["sim:v100"], **grid})


def test_the_drawing_has_a_panel_a_variant_and_leaves_others_out(run_of):
    figure = peak_by_budget.draw([run_of(), run_of(variant="printed"), run_of(planner="full")])
    titles = sorted(" ".join(panel.get_title().split()) for panel in figure.axes)
    assert titles == [
        "QA-Bert, variant authors, simulated v100-32gb expected lengths",
        "QA-Bert, variant printed, simulated v100-32gb expected lengths",
    ]
    said = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert said == ["the paper (Fig 11), V100, small"]


@pytest.mark.parametrize(
    ("scale", "label"),
    [("small", LABEL), ("full", "measured on cpu"), ("small", "measured on cpu")],
)
def test_the_papers_points_stand_beside_full_scale_on_its_device_only(run_of, scale, label):
    run = run_of()
    before = sum(len(line.get_xdata()) for line in peak_by_budget.draw([run]).axes[0].lines)
    run.info["config"]["scale"] = scale
    run.info["device_label"] = label
    figure = peak_by_budget.draw([run])
    (panel,) = figure.axes
    assert not figure.legends
    num_theirs = len(paper.peak_by_input_size("QA-Bert")[BUDGET])
    assert sum(len(line.get_xdata()) for line in panel.lines) == before - num_theirs
    assert ("scale small" in " ".join(panel.get_title().split())) == (scale == "small")


def test_the_axis_of_a_small_budget_is_in_its_unit(run_of):
    run = run_of(factor=1e-3)
    run.info["budget_bytes"] = 6 << 20
    (panel,) = peak_by_budget.draw([run]).axes
    assert panel.get_ylabel() == "peak allocated (MiB)"
    assert 6 < panel.get_ylim()[1] < 7


def test_a_drawing_without_mimose_is_refused(run_of):
    with pytest.raises(style.NothingToDrawError, match="none of these runs is of Mimose"):
        peak_by_budget.draw([run_of(planner="full")])
