import pytest
from matplotlib.figure import Figure

from mimose.planners import PLANNERS
from mimose_bench import plots
from mimose_bench.experiments.reading import load_run
from mimose_bench.experiments.records import RunWriter
from mimose_bench.plots import breakdown, loss, paired_times, peak_memory, series, step_time, style

MIB = 1 << 20
OF_A_TASK = [name for name in plots.FIGURES if name not in plots.ACROSS]


CLOCK = {"calibration": "", "error": {"mean": 0.4, "maximum": 0.6, "count": 5, "against": "x"}}
SENTENCE = "times: measured on sim (clock: mean 40 %, max 60 % off 5 published times)"


def make_run(
    parent,
    planner,
    budget,
    device="cpu",
    task="qa-bert",
    died=False,
    seed=42,
    expected=False,
    dead_on_arrival=False,
    config=None,
):
    """Write a run of 12 steps; over expected lengths the first 4 only prepare."""
    writer = RunWriter.create(
        parent,
        task=task,
        planner=planner,
        budget="none" if budget is None else f"{budget}MB",
        device=device,
        budget_bytes=None if budget is None else budget * MIB,
        device_label=f"measured on {device}",
        seed=seed,
        clock=CLOCK if device == "sim" else None,
        config=config,
    )
    oom = 0 if dead_on_arrival else 11 if died else None
    for step in range(1 if dead_on_arrival else 12):
        writer.add(
            {
                "rank": 0,
                "step": step,
                "phase": "sheltered" if planner == "mimose" and step < 4 else "responsive",
                "input_size": 4 * (100 + step),
                "batch_size": 4,
                "sequence_length": 100 + step,
                "loss": None if device == "sim" or step == oom else 3.0 - step / 10,
                "outcome": "oom" if step == oom else "ok",
                "step_seconds": None if step == oom else 0.5 + step / 100,
                "forward_seconds": 0.2,
                "backward_seconds": 0.25,
                "peak_allocated_bytes": (50 + step) * MIB,
                "peak_reserved_bytes": (55 + step) * MIB,
                "weight": (0.0 if step < 4 else 1 / 8) if expected else None,
            }
        )
    writer.finish("done" if oom is None else "oom")
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


def note(figure):
    """What a figure says once for all panels, as one line."""
    return figure.get_suptitle().replace("\n", " ")


def num_points(panel):
    return sum(len(points.get_offsets()) for points in panel.collections)


@pytest.mark.parametrize("name", OF_A_TASK)
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
        f"{name}.{kind}" for name in OF_A_TASK for kind in ("png", "pdf", "svg")
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
    points = peak_memory.paper_points("qa-bert")
    ours = peak_memory.draw(runs[-1:])
    beside = peak_memory.draw(runs[-1:], points)
    assert len(beside.axes) == len(ours.axes) + 1
    assert "V100" in beside.axes[-1].get_title()
    assert len(peak_memory.draw(runs[:1], points).axes) == 1, "beside runs on a cpu there are none"
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
    assert PLANNERS.keys() <= style.PLANNERS.keys()
    assert style.look("package.module:Mine").label == "Mine"


@pytest.mark.parametrize(
    ("names", "sentence"), [(["peak"], "did you mean 'peak-memory'"), (["zzz"], "choose one of")]
)
def test_an_unknown_figure_names_the_nearest(runs, tmp_path, names, sentence):
    with pytest.raises(ValueError, match=sentence):
        plots.draw_figures(runs, tmp_path, names)


def test_runs_of_several_tasks_are_drawn_task_by_task(runs, tmp_path):
    other = make_run(tmp_path, "full", 60, task="tc-bert")
    written = plots.draw_figures([*runs, other], tmp_path / "figures", ["step-time"])
    assert {path.parent.name for path in written} == {"qa-bert", "tc-bert"}


def test_runs_without_a_step_are_refused(tmp_path):
    empty = RunWriter.create(tmp_path, task="t", planner="p", budget="none", device="cpu")
    with pytest.raises(ValueError, match="none of these runs"):
        plots.draw_figures([load_run(empty.directory)], tmp_path)


def test_a_folder_that_cannot_be_written_is_one_sentence(runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write figures to .*--out"):
        plots.draw_figures(runs, tmp_path / "file", ["loss"])


@pytest.mark.parametrize("draw", [step_time.draw, breakdown.draw])
def test_the_clock_is_said_once_and_never_cut(draw, tmp_path):
    runs = [make_run(tmp_path, "mimose", budget, device="sim") for budget in (58, 60, 62)]
    figure = draw([*runs, make_run(tmp_path, "full", 60)])
    assert not any("clock" in panel.get_title() for panel in figure.axes)
    assert note(figure).count(SENTENCE) == 1
    figure.draw_without_rendering()
    texts = [figure._suptitle, *(panel.title for panel in figure.axes)]
    for extent in (text.get_window_extent() for text in texts):
        assert figure.bbox.x0 <= extent.x0
        assert extent.x1 <= figure.bbox.x1
        assert extent.y1 <= figure.bbox.y1


def test_clocks_of_one_device_are_told_apart(tmp_path):
    runs = [make_run(tmp_path, "mimose", 60, device="sim") for _ in range(2)]
    runs[1].info["clock"] = {"error": None}
    titles = [panel.get_title().replace("\n", " ") for panel in step_time.draw(runs).axes]
    assert len(set(titles)) == 2
    assert any("clock error unknown" in title for title in titles)


def test_runs_drawn_alike_have_one_entry_and_are_counted(runs, tmp_path):
    twins = [make_run(tmp_path, "baseline", None, seed=seed) for seed in (7, 8)]
    figure = step_time.draw([runs[0], runs[2], *twins])
    assert texts(figure).count("Baseline, no limit") == 1
    assert "drawn alike: 3 runs of Baseline, no limit" in note(figure)
    assert note(step_time.draw(runs[:3])) == ""


def test_bars_are_told_apart_by_lengths_seed_and_time(tmp_path):
    runs = [
        make_run(tmp_path, "baseline", None),
        make_run(tmp_path, "baseline", None, seed=7),
        make_run(tmp_path, "baseline", None, expected=True),
        make_run(tmp_path, "full", 60),
        make_run(tmp_path, "full", 60),
    ]
    found = series.labels(runs)
    assert found[:3] == [
        "Baseline, no limit, seed 42",
        "Baseline, no limit, seed 7",
        "Baseline, no limit, expected lengths",
    ]
    assert len(set(found)) == 5
    assert all(text.startswith("Full recomputation, 60 MB, ") for text in found[3:])


def test_options_that_are_not_as_by_default_are_told_in_legends_titles_and_markers(tmp_path):
    configs = ({}, {"sheltered": 4}, {"sheltered": 10})  # 10 is the default.
    runs = [make_run(tmp_path, "mimose", 60, config=config) for config in configs]
    assert [series.short_label(run) for run in runs] == [
        "Mimose, 60 MB",
        "Mimose sheltered=4, 60 MB",
        "Mimose, 60 MB",
    ]
    plain, other, same = map(series.look, runs)
    assert plain == same
    assert (plain.colour, plain.marker != other.marker) == (other.colour, True)
    times = step_time.draw(runs[:2])
    assert {"Mimose", "Mimose sheltered=4"} <= set(texts(times))
    assert note(times) == ""
    assert "drawn alike: 2 runs of Mimose, 60 MB" in note(step_time.draw(runs))
    titles = [panel.get_title() for panel in peak_memory.draw(runs).axes]
    assert titles == ["Mimose, measured on cpu", "Mimose sheltered=4, measured on cpu"]
    plain_run = make_run(tmp_path, "baseline", None)
    drawn = paired_times.draw([*runs[:2], plain_run])
    assert texts(drawn)[1:] == ["Mimose", "Mimose sheltered=4"]


@pytest.mark.parametrize("draw", [step_time.draw, peak_memory.draw])
def test_expected_lengths_have_their_own_panel_without_preparing_steps(draw, tmp_path):
    runs = [make_run(tmp_path, "full", 60, expected=expected) for expected in (False, True)]
    figure = draw(runs)
    sampled, expected = figure.axes
    assert expected.get_title().endswith("expected lengths")
    assert "expected" not in sampled.get_title()
    assert (num_points(sampled), num_points(expected)) == (12, 8)
    assert "expected lengths: " in note(figure)
    assert note(draw(runs[:1])) == ""


def test_only_runs_with_a_loss_have_a_panel_of_it(runs, tmp_path):
    simulated = make_run(tmp_path, "mimose", 60, device="sim")
    (panel,) = loss.draw([runs[0], simulated]).axes
    assert panel.get_title() == "measured on cpu"
    assert "the steps are simulated" in note(loss.draw([runs[0], simulated]))
    with pytest.raises(style.NothingToDrawError, match="no run has a loss: the steps are simul"):
        loss.draw([simulated, simulated])
    dead = make_run(tmp_path, "baseline", 60, dead_on_arrival=True)
    with pytest.raises(style.NothingToDrawError, match="no run has a loss: no step finished"):
        loss.draw([dead])


def test_a_run_without_a_finished_step_has_no_bar(runs, tmp_path):
    dead = make_run(tmp_path, "baseline", 59, dead_on_arrival=True)
    figure = breakdown.draw([runs[2], dead])
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [
        "Full recomputation, 60 MB"
    ]
    assert "no step finished: Baseline, 59 MB (measured on cpu)" in note(figure)
    for draw in (breakdown.draw, step_time.draw):
        with pytest.raises(style.NothingToDrawError, match="no step finished"):
            draw([dead])


def test_budgets_are_told_apart_without_their_colours(tmp_path):
    budgets = [60 * MIB, 80 * MIB, 100 * MIB]
    assert len({marker for _, marker in style.budget_looks(budgets).values()}) == 3
    figure = peak_memory.draw([make_run(tmp_path, "mimose", b // MIB) for b in budgets])
    (panel,) = figure.axes
    drawn = [points for points in panel.collections if len(points.get_offsets())]
    assert len({points.get_paths()[0].vertices.tobytes() for points in drawn}) == 3
    assert [text.get_text() for text in panel.texts] == list(map(series.budget_text, budgets))
