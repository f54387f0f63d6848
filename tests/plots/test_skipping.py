"""What is refused, what is skipped, and what tells a figure's parts apart without colour."""

from pathlib import Path

import pytest

from mimose_bench import plots
from mimose_bench.experiments.reading import Run, to_frame
from mimose_bench.experiments.schema import STEPS, to_table
from mimose_bench.plots import breakdown, loss, style


@pytest.fixture
def run_of(monkeypatch):
    """Make a run of four steps as it would be read back; drawings are written as SVG only."""
    monkeypatch.setattr(style, "FORMATS", {"svg": style.FORMATS["svg"]})

    def make(planner="full", task="qa-bert", with_loss=True, seconds=0.5, **config):
        rows = [
            {
                "rank": 0,
                "outcome": "ok",
                "batch_size": 4,
                "step": step,
                "phase": "responsive",
                "input_size": 100 + step,
                "loss": 3.0 - step / 10 if with_loss else None,
                "step_seconds": seconds,
                "forward_seconds": seconds / 2,
                "backward_seconds": seconds / 3,
                "peak_allocated_bytes": 50 << 20,
            }
            for step in range(4)
        ]
        info = {"task": task, "planner": planner, "budget_bytes": 60 << 20, "outcome": "done"}
        info |= {"device_label": "measured on cpu", "config": config}
        run = Run(Path("-".join(map(str, (task, planner, *config.values())))), info)
        run.__dict__["steps"] = to_frame(to_table(rows, STEPS))
        return run

    return make


@pytest.mark.parametrize(
    ("name", "why"), [("fig10", "baseline"), ("cpu-training", "baseline"), ("loss", "no run has")]
)
def test_a_figure_asked_for_by_name_with_nothing_to_draw_is_refused(run_of, tmp_path, name, why):
    with pytest.raises(ValueError, match=f"nothing to draw as {name}: .*{why}"):
        plots.draw_figures([run_of(with_loss=False)], tmp_path / "f", ["step-time", name])
    assert not (tmp_path / "f").exists()


def test_without_names_it_is_skipped_with_a_warning(run_of, tmp_path):
    said = []
    written = plots.draw_figures([run_of(with_loss=False)], tmp_path, say=said.append)
    assert {path.stem for path in written} == {"peak-memory", "step-time", "breakdown"}
    (line,) = said
    assert line.startswith("warning: loss was skipped: no run has a loss")


def test_a_task_with_nothing_to_draw_is_skipped_beside_others(run_of, tmp_path):
    said = []
    runs = [run_of(), run_of(task="tc-bert", with_loss=False)]
    written = plots.draw_figures(runs, tmp_path, ["loss"], say=said.append)
    assert {path.parent.name for path in written} == {"qa-bert"}
    (line,) = said
    assert line.startswith("warning: loss of tc-bert was skipped")


def test_bars_are_hatched_and_their_unit_follows_the_panel(run_of):
    runs = [run_of(), run_of(seconds=5e-4, scale="small")]
    full, small = breakdown.draw(runs).axes
    assert len(set(style.HATCHES.values())) == len(style.PARTS)
    assert [bar.get_hatch() or "" for bar in full.patches] == list(style.HATCHES.values())
    assert full.get_xlabel() == "mean step time (ms)"
    assert small.get_xlabel() == "mean step time (\N{MICRO SIGN}s)"
    assert "scale small" in small.get_title()


def test_curves_of_the_loss_have_different_markers(run_of):
    planners = ("full", "mimose", "mimose", "sublinear-greedy", "sublinear-greedy")
    figure = loss.draw([run_of(planner, seed=seed) for seed, planner in enumerate(planners)])
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata())]
    assert len({(line.get_marker(), line.get_fillstyle()) for line in lines}) == 5
    assert len({line.get_markevery() for line in lines}) == 5
