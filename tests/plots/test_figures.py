import pytest
from matplotlib.figure import Figure

from mimose_bench import plots
from mimose_bench.experiments.reading import load_run
from mimose_bench.experiments.records import RunWriter
from mimose_bench.plots import peak_memory, series, step_time, style

MIB = 1 << 20


def make_run(parent, planner, budget, device="cpu", task="qa-bert", died=False):
    writer = RunWriter.create(
        parent,
        task=task,
        planner=planner,
        budget="none" if budget is None else f"{budget}MB",
        device=device,
        budget_bytes=None if budget is None else budget * MIB,
        device_label=f"measured on {device}",
    )
    for step in range(12):
        writer.add(
            {
                "rank": 0,
                "step": step,
                "phase": "sheltered" if planner == "mimose" and step < 4 else "responsive",
                "input_size": 4 * (100 + step),
                "batch_size": 4,
                "sequence_length": 100 + step,
                "loss": 3.0 - step / 10,
                "outcome": "oom" if died and step == 11 else "ok",
                "step_seconds": None if died and step == 11 else 0.5 + step / 100,
                "forward_seconds": 0.2,
                "backward_seconds": 0.25,
                "peak_allocated_bytes": (50 + step) * MIB,
                "peak_reserved_bytes": (55 + step) * MIB,
            }
        )
    writer.finish("oom" if died else "done")
    return load_run(writer.directory)


@pytest.fixture
def runs(tmp_path):
    return [
        make_run(tmp_path, "baseline", None),
        make_run(tmp_path, "baseline", 60, died=True),
        make_run(tmp_path, "full", 60),
        make_run(tmp_path, "mimose", 60),
        make_run(tmp_path, "mimose", 58),
        make_run(tmp_path, "mimose", 60, device="cuda"),
    ]


def texts(figure):
    """Everything a figure says, each panel's title first."""
    said = [panel.get_title() for panel in figure.axes]
    said += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return said


@pytest.mark.parametrize("name", plots.FIGURES)
def test_every_figure_names_every_device_and_gives_each_a_panel(name, runs):
    figure = plots.FIGURES[name](runs)
    assert isinstance(figure, Figure)
    titles = [panel.get_title() for panel in figure.axes]
    for title in titles:
        assert ("measured on cpu" in title) != ("measured on cuda" in title)
    assert {"cpu", "cuda"} == {title.rpartition(" ")[2] for title in titles}


def test_both_formats_are_written_and_equal_rows_give_equal_files(runs, tmp_path):
    first = plots.draw_figures(runs, tmp_path / "one")
    second = plots.draw_figures(runs, tmp_path / "two")
    assert [p.name for p in first] == [
        f"{name}.{kind}" for name in plots.FIGURES for kind in ("png", "pdf")
    ]
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_peaks_show_budgets_and_out_of_memory(runs):
    said = texts(peak_memory.draw(runs))
    assert "budget 58 MB" in said
    assert "no limit" in said
    assert "out of memory" in said
    assert "out of memory" not in texts(peak_memory.draw(runs[2:]))


def test_the_papers_points_have_a_panel_of_their_own(runs):
    ours = peak_memory.draw(runs[:1])
    beside = peak_memory.draw(runs[:1], peak_memory.paper_points("qa-bert"))
    assert len(beside.axes) == len(ours.axes) + 1
    assert "V100" in beside.axes[-1].get_title()
    assert peak_memory.paper_points("something else") is None


def test_measuring_steps_are_told_apart_and_the_reference_is_in_each_panel(runs):
    figure = step_time.draw(runs[:5])
    assert [panel.get_title().partition(",")[0] for panel in figure.axes] == ["58 MB", "60 MB"]
    for panel in figure.axes:
        _, labels = panel.get_legend_handles_labels()
        assert "Baseline, no limit" in labels
        assert "Mimose (measuring)" in labels


def test_only_unlimited_runs_still_make_a_panel(runs):
    (panel,) = step_time.draw(runs[:1]).axes
    assert panel.get_title() == "no limit, measured on cpu"


def test_runs_that_look_alike_are_told_apart_by_name(runs, tmp_path):
    twin = make_run(tmp_path, "mimose", 60)
    names = series.labels([*runs, twin])
    assert len(set(zip(names, [r.device_label for r in [*runs, twin]], strict=True))) == 7
    assert names[2] == "Full recomputation, 60 MB"


def test_every_planner_has_a_look_of_its_own():
    looks = list(style.PLANNERS.values())
    for part in ("colour", "marker", "label"):
        assert len({getattr(look, part) for look in looks}) == len(looks)
    assert style.look("package.module:Mine").label == "Mine"


@pytest.mark.parametrize(
    ("names", "sentence"), [(["peak"], "did you mean 'peak-memory'"), (["zzz"], "choose one of")]
)
def test_an_unknown_figure_names_the_nearest(runs, tmp_path, names, sentence):
    with pytest.raises(ValueError, match=sentence):
        plots.draw_figures(runs, tmp_path, names)


def test_several_tasks_and_empty_runs_are_refused(runs, tmp_path):
    other = make_run(tmp_path, "full", 60, task="tc-bert")
    with pytest.raises(ValueError, match="several tasks"):
        plots.draw_figures([*runs, other], tmp_path)
    empty = RunWriter.create(tmp_path, task="t", planner="p", budget="none", device="cpu")
    with pytest.raises(ValueError, match="none of these runs"):
        plots.draw_figures([load_run(empty.directory)], tmp_path)


def test_a_folder_that_cannot_be_written_is_one_sentence(runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write figures to .*--out"):
        plots.draw_figures(runs, tmp_path / "file", ["loss"])
