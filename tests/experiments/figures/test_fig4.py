"""Fig 4: memory over time within a step, the curve's points, the claims, the drawing."""

from dataclasses import replace

import pytest
import torch

from mimose_bench import plots
from mimose_bench.experiments.figures import fig4
from mimose_bench.experiments.figures.session import opened
from mimose_bench.experiments.figures.stored import read
from mimose_bench.experiments.figures.timeline import recording, thinned
from mimose_bench.experiments.files import write_json

LABEL = "simulated v100-32gb"
GIB = 1 << 30


def measured(**changes):
    found = {
        case.name: fig4.Measured(
            seconds=case.seconds,
            peak_bytes=round(case.peak_bytes or 2.9 * GIB),
            reserved_bytes=round((case.peak_bytes or 2.9 * GIB) * 1.05),
            times=(0.0, case.seconds / 2, case.seconds),
            allocated=(1.6 * GIB, 2.5 * GIB, 1.6 * GIB),
        )
        for case in fig4.CASES
    }
    for name, value in changes.items():
        case = getattr(fig4, name)
        found[case.name] = value(found[case.name])
    return found


@pytest.mark.parametrize("name", ["cpu", "sim:v100"])
def test_a_timeline_sees_what_operators_allocate_and_free_and_nothing_once_it_is_over(name):
    with opened(name) as device:
        with recording(device) as timeline:
            kept = torch.empty(1 << 20, device=device.torch_device)
            more = kept * 2
            del more
            kept.relu()
        seconds = timeline.seconds(device)
        count = len(timeline.allocated)
        torch.empty(1, device=device.torch_device)
        assert len(timeline.allocated) == count
    least, most = timeline.allocated[0], max(timeline.allocated)
    # Two tensors of 4 MiB at most, one at the end; a device may count some alignment.
    assert 0 <= most - least - (8 << 20) < 4096
    assert 0 <= timeline.allocated[-1] - least - (4 << 20) < 4096
    assert seconds == sorted(seconds)
    assert seconds[0] == 0


def test_a_thinned_curve_keeps_its_ends_and_extremes():
    seconds = [float(i) for i in range(1000)]
    allocated = [i % 7 for i in range(1000)]
    allocated[501], allocated[777] = 100, -5
    times, heights = thinned(seconds, allocated, 90)
    assert len(times) == len(heights) <= 120
    assert (times[0], times[-1]) == (0.0, 999.0)
    assert (times[heights.index(100)], times[heights.index(-5)]) == (501.0, 777.0)
    assert list(times) == sorted(times)
    assert thinned([0.0, 1.0], [3, 4], 90) == ((0.0, 1.0), (3.0, 4.0))


def test_the_papers_own_iterations_hold_and_others_fail_by_name():
    result = fig4.judge(measured(), LABEL, ())
    assert result.passed, [c.text for c in result.claims if c.verdict == "outside"]
    slower = measured(SHORT=lambda m: replace(m, seconds=m.seconds * 0.9))
    outside = [c.text for c in fig4.judge(slower, LABEL, ()).claims if c.verdict == "outside"]
    assert outside == ["at 55 tokens Sublinear's iteration over PyTorch's"]
    larger = measured(SHORT=lambda m: replace(m, peak_bytes=round(m.peak_bytes * 1.06)))
    outside = [c.text for c in fig4.judge(larger, LABEL, ()).claims if c.verdict == "outside"]
    assert len(outside) == 2
    assert all("Sublinear" in text for text in outside)


def test_times_that_the_clock_is_calibrated_on_are_marked():
    result = fig4.judge(measured(), LABEL, ("fig4-pytorch-55",))
    assert [row.note for row in result.rows].count("calibrated on this") == 1
    assert "117.5 ms" in result.notes[0]


def test_the_curves_are_drawn_from_what_was_written_down(tmp_path):
    write_json(tmp_path / "fig4.json", fig4.judge(measured(), LABEL, ()).to_json())
    result = read(tmp_path / "fig4.json").result
    figure = plots.timeline.draw(result)
    whole, short = figure.axes
    texts = " ".join(t.get_text() for t in figure.legends[0].get_texts())
    assert LABEL in texts
    assert "the budget, 3 GB" in texts
    assert whole.lines[0].get_xdata()[-1] == pytest.approx(117.5)
    assert len(short.lines) < len(whole.lines)
