"""Fig 10 from runs made by hand: points, ratios, orderings, what is out of bounds, the drawing."""

from pathlib import Path

import pytest

from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures import fig10, fig10_bars, fig10_claims, fig10_series, points
from mimose_bench.experiments.sweep.grid import read_grid
from mimose_bench.plots import relative_time, style

LABEL = "simulated v100-32gb"
GRIDS = Path(__file__).parents[3] / "docs" / "grids"


@pytest.fixture
def run_of(write_run):
    """Write a run of a task's steps, so many times as slow as plain training's."""

    def run(planner, budget, factor, *, lengths="expected", outcome="done", reserved=None, **more):
        expected = lengths == "expected"
        mimose = planner == "mimose"
        rows = [
            {
                "step": step,
                "phase": "sheltered" if mimose and step < 3 else "responsive",
                "input_size": 100 + step,
                "step_seconds": (2.0 if mimose and step < 3 else factor) * (1 + step / 10),
                "peak_allocated_bytes": round((reserved or 3) * GIB) - (GIB >> 1),
                "peak_reserved_bytes": None if expected else round((reserved or 3) * GIB),
                "weight": (0.0 if step < 3 else 0.2) if expected else None,
            }
            for step in range(8)
        ]
        config = {"lengths": lengths, "steps": None if expected else 8, **more.pop("config", {})}
        num_bytes = None if budget is None else round(budget * GIB)
        return write_run(planner, num_bytes, rows, outcome=outcome, config=config, **more)

    return run


def test_the_grid_is_the_file():
    grid = read_grid(None, {**fig10.GRID, "devices": ["sim:v100"]})
    assert grid == read_grid(GRIDS / "fig10.toml", {})


@pytest.mark.parametrize("extent", ["whole", "quick"])
def test_every_grid_can_be_read(extent):
    for grid in fig10.grids(extent):
        read_grid(None, {"devices": ["sim:v100"], **grid})


def test_a_points_time_is_of_expected_and_its_memory_of_sampled_lengths(run_of):
    runs = [
        run_of("baseline", None, 1.0),
        run_of("baseline", None, 1.0, lengths="sampled"),
        run_of("mimose", 6, 1.2),
        run_of("mimose", 6, 1.5, lengths="sampled", reserved=5.5),
    ]
    (point,) = points.points_of(runs)
    assert point.time.value == pytest.approx(1.2)
    assert point.time.low is None
    assert point.reserved_bytes == round(5.5 * GIB)
    # Two of seven steps that count took twice plain training's time: 1.1 and 1.2 of 9.8 s.
    assert point.whole_time.value == pytest.approx((2 * 2.3 + 1.5 * 7.5) / 9.8)


def test_settings_apart_make_points_apart_and_no_baseline_makes_none(run_of):
    own = {"reserve": "2.5GB", "trigger": "after"}
    runs = [
        run_of("baseline", None, 1.0),
        run_of("dtr", 7, 1.2),
        run_of("dtr", 7, 1.3, config=own),
        run_of("mimose", 7, 1.1, config={"variant": "authors"}),
        run_of("full", 7, 1.3, config={"scale": "small"}),
    ]
    found = points.points_of(runs)
    assert [(p.planner, p.variant, p.own) for p in found] == [
        ("dtr", "", ""),
        ("dtr", "", "2.5GB left, trigger after"),
        ("mimose", "authors", ""),
    ]


def test_what_did_not_finish_has_no_time_and_is_said(run_of):
    runs = [run_of("baseline", None, 1.0), run_of("sublinear-greedy", 4, 1.3)]
    runs.append(run_of("mimose", 4, 1.1, outcome="oom"))
    claims = fig10.judge(runs, LABEL).claims
    (first, *_) = claims
    assert first.text == "QA-Bert at 4 GB: Mimose (printed) is ahead of Sublinear"
    assert first.verdict == "not measured"
    assert "mimose ended oom" in first.note


def curve_runs(run_of, *, late=1.0):
    """Return runs that lie on the paper's curves of QA-Bert, Mimose's ``late`` times as slow."""
    title = "QA-Bert"
    shown = paper.time_by_memory(title)
    runs = [run_of("baseline", None, 1.0), run_of("baseline", None, 1.0, lengths="sampled")]
    for planner, name, factor in (
        ("mimose", "Mimose", late),
        ("sublinear-greedy", "Sublinear", 1.0),
    ):
        for budget, point in zip(paper.budgets(title), shown[name], strict=True):
            for lengths in ("expected", "sampled"):
                runs.append(
                    run_of(
                        planner,
                        budget / GIB,
                        factor * point.relative_time,
                        lengths=lengths,
                        reserved=point.reserved_bytes / GIB,
                    )
                )
    for pair, point in zip(fig10_series.DTR_PAIRS["qa-bert"], shown["DTR"], strict=True):
        config = fig10_series.evicting(pair)
        runs.append(run_of("dtr", pair[0], point.relative_time, config=config))
    return runs


def test_the_papers_own_points_hold(run_of):
    result = fig10.judge(curve_runs(run_of), LABEL)
    assert all(criterion.passed for criterion in result.criteria)
    orders = [claim for claim in result.claims if "is ahead of" in claim.text]
    assert len(orders) == 5 + 2
    assert {claim.verdict for claim in orders} == {"holds"}
    assert all(claim.obtained == pytest.approx(claim.expected, abs=1e-3) for claim in orders)


def test_a_slower_mimose_is_outside_in_points_and_orderings(run_of):
    result = fig10.judge(curve_runs(run_of, late=1.2), LABEL)
    assert not result.passed
    (slow,) = [c for c in result.criteria if c.name.startswith("Mimose (printed): times")]
    assert slow.value == 5
    orders = {c.text: c.verdict for c in result.claims if "is ahead of Sublinear" in c.text}
    assert set(orders.values()) == {"outside"}


def test_a_run_over_its_budget_is_counted(run_of):
    runs = [
        run_of("baseline", None, 1.0, lengths="sampled"),
        run_of("mimose", 4, 1.1, lengths="sampled", reserved=4.1),
    ]
    (criterion,) = [
        c for c in fig10.judge(runs, LABEL, "quick").criteria if "their budget" in c.name
    ]
    assert criterion.value == 1


def test_the_means_are_the_papers_own_on_its_curves(run_of):
    found = points.points_of(curve_runs(run_of))
    assert fig10_claims._sublinear(found, "printed", "qa-bert") == pytest.approx(1.130, abs=2e-3)
    assert fig10_claims._dtr(found, "printed", "qa-bert") == pytest.approx(1.137, abs=2e-3)
    assert fig10_claims._at_8gb(found, "printed", "qa-bert") == pytest.approx(0.018, abs=1e-3)
    # A mean over tasks of which one was not run is none.
    means = fig10_claims.means(found, LABEL)
    assert {claim.verdict for claim in means} == {"not measured"}
    assert {claim.version for claim in means} == {"ipdps", "v1"}


def test_sheltered_steps_are_spread_over_a_tenth_of_an_epoch(run_of):
    settings = {"num_examples": 1000, "batch_size": 10}
    runs = [run_of("baseline", None, 1.0), run_of("mimose", 6, 1.2, task_settings=settings)]
    (point,) = points.points_of(runs)
    # Sizes below the smallest that counts take its time, 1.3 s; ten steps of 1.5 s in the mean.
    extra = 2.0 * (1.1 + 1.2) - 2 * 1.3
    assert points.with_sheltered(point, 0.1) == pytest.approx(1.2 + extra / (10 * 1.5))


def test_the_detectors_bars(run_of):
    runs = [
        run_of("baseline", None, 1.0, task="od-r50"),
        run_of("sublinear-greedy", 14, 1.337, task="od-r50"),
        run_of("mimose", 14, 1.128, task="od-r50"),
        run_of("dtr", 20, 1.2, task="od-r50"),
        run_of("dtr", 14, 1.2, task="od-r50", outcome="oom"),
    ]
    claims = {c.text: c for c in fig10_bars.claims(points.points_of(runs), LABEL)}
    verdicts = {text: claim.verdict for text, claim in claims.items()}
    assert verdicts["OD-R50: Sublinear relative to plain training"] == "holds"
    assert verdicts["OD-R50: Mimose (printed) relative to plain training"] == "holds"
    assert verdicts["OD-R50: DTR relative to plain training"] == "outside"
    assert verdicts["OD-R50 at 14 GB: Mimose (printed) is ahead of Sublinear"] == "holds"
    assert verdicts["OD-R50: Mimose and Sublinear keep 14 GB"] == "holds"
    assert verdicts["OD-R50 at 14 GB: Mimose (authors) is ahead of Sublinear"] == "not measured"


def test_the_drawing_has_a_panel_a_task_and_names_both_sides(run_of):
    figure = relative_time.draw(
        [
            *curve_runs(run_of),
            run_of("baseline", None, 1.0, task="od-r50"),
            run_of("mimose", 14, 1.1, task="od-r50", config={"variant": "authors"}),
        ]
    )
    titles = [panel.get_title() for panel in figure.axes]
    assert [title.partition(",")[0] for title in titles] == ["QA-Bert", "OD-R50"]
    assert all(LABEL in title for title in titles)
    said = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert any("the paper (Fig 10)" in text for text in said)
    assert "Mimose, variant authors" in said
    assert "DTR, reserve as given" in said


def said(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_a_drawing_without_a_baseline_is_refused(run_of):
    with pytest.raises(style.NothingToDrawError, match="has a baseline"):
        relative_time.draw([run_of("mimose", 6, 1.1)])


def test_a_drawing_of_steps_that_all_measured_is_refused(run_of):
    runs = [run_of("baseline", None, 1.0), run_of("mimose", 6, 1.1)]
    runs[1].steps["phase"] = "sheltered"
    with pytest.raises(style.NothingToDrawError, match="add runs of more steps"):
        relative_time.draw(runs)


@pytest.mark.parametrize(
    ("scale", "label", "beside"),
    [
        ("full", LABEL, True),
        ("full", "measured on cuda", True),
        ("full", "measured on cpu", False),
        ("full", "simulated a100-40gb", False),
        ("small", LABEL, False),
        ("small", "measured on cuda", False),
    ],
)
def test_the_papers_curves_stand_beside_full_scale_on_its_device_only(run_of, scale, label, beside):
    config = {"scale": scale}
    runs = [
        run_of("baseline", None, 1.0, config=config),
        run_of("dtr", 5 / 1024, 1.3, config=config),
    ]
    for run in runs:
        run.info["device_label"] = label
    figure = relative_time.draw(runs)
    (panel,) = figure.axes
    assert any("the paper" in text for text in said(figure)) == beside
    assert any(line.get_linestyle() == "--" for line in panel.lines) == beside
    assert ("scale small" in " ".join(panel.get_title().split())) == (scale == "small")
    assert "(MiB)" in panel.get_xlabel()
    assert not any("the paper" in text for text in said(relative_time.draw(runs, False)))


def test_runs_of_two_scales_have_panels_of_their_own(run_of):
    runs = [
        run_of(planner, budget, factor, config={"scale": scale})
        for scale in ("full", "small")
        for planner, budget, factor in (("baseline", None, 1.0), ("dtr", 6, 1.3))
    ]
    assert len(relative_time.draw(runs).axes) == 2
