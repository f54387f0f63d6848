import pytest
from matplotlib.figure import Figure

from mimose_bench import plots
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures import fig3, fig5, fig9, stars
from mimose_bench.experiments.figures.result import Reproduction, Row

LABEL = "simulated v100-32gb"


@pytest.fixture
def fig3_result():
    measured = {
        dataset: {p.input_size: p.peak_bytes for p in fig3.split(dataset)[0]}
        for dataset in fig3.QUADRATICS
    }
    return fig3.judge(measured, LABEL)


@pytest.fixture
def fig9_result():
    curves = {
        curve: {length: round(mb * (1 << 20)) for length, mb in points}
        for curve, points in paper.layer_selection().items()
    }
    return fig9.judge({reading.name: curves for reading in fig9.READINGS}, LABEL)


def labels(figure: Figure) -> str:
    said = [t.get_text() for legend in figure.legends for t in legend.get_texts()]
    return " | ".join(said + [panel.get_title() for panel in figure.axes])


def test_unchecked_memory_has_a_panel_a_data_set_and_names_both_sides(fig3_result):
    figure = plots.unchecked_memory.draw(fig3_result)
    assert [panel.get_title() for panel in figure.axes] == list(fig3.QUADRATICS)
    assert LABEL in labels(figure)
    assert "the paper (Fig 3), V100" in labels(figure)
    points = sum(len(line.get_xdata()) for line in figure.axes[0].lines[:2])
    assert points == 104
    theirs, _, ours = figure.axes[0].lines
    assert theirs.get_markerfacecolor() == "none"
    assert theirs.get_zorder() > ours.get_zorder()


def test_layer_selection_shows_every_curve_and_names_both_sides(fig9_result):
    figure = plots.layer_selection.draw(fig9_result)
    for text in (LABEL, "the paper (Fig 9), V100", *(f"{c} recomputed" for c in fig9.PLANS)):
        assert text in labels(figure)
    assert len(figure.axes[0].lines) == 10
    for panel in figure.axes:
        assert "paper" not in panel.get_title()
        assert LABEL not in panel.get_title()


def test_an_iterations_parts_are_stacked_on_both_sides():
    rows = tuple(
        Row(series=bar.name, what=what, unit="ms", expected=ms / 1e3, obtained=ms / 2e3)
        for bar in fig5.BARS
        for what, ms in zip(fig5.PARTS, bar.parts)
    )
    result = Reproduction(
        name="fig5", title="", source="Fig 5", device_label=LABEL, rows=rows, criteria=()
    )
    figure = plots.eviction_breakdown.draw(result)
    theirs, ours = figure.axes
    assert "the paper (Fig 5), V100" in labels(figure)
    assert LABEL in labels(figure)
    for panel, factor in ((theirs, 1), (ours, 0.5)):
        tops = [patch.get_y() + patch.get_height() for patch in panel.patches[3::4]]
        assert tops == pytest.approx([factor * sum(bar.parts) for bar in fig5.BARS])


def test_reproduced_figures_are_written_and_equal_rows_give_equal_files(
    fig3_result, fig9_result, tmp_path
):
    for result in (fig3_result, fig9_result):
        first = plots.draw_reproduced(result, tmp_path / "one")
        second = plots.draw_reproduced(result, tmp_path / "two")
        assert [path.suffix for path in first] == [".png", ".pdf", ".svg"]
        for a, b in zip(first, second, strict=True):
            assert a.read_bytes() == b.read_bytes()


def test_a_table_has_no_drawing(tmp_path):
    result: Reproduction = stars.judge(
        {("QA-Bert", stars.LOWER): stars.Star(3 << 30, (3 << 30,))}, LABEL
    )
    assert plots.draw_reproduced(result, tmp_path) == []
