import io

from mimose_bench.experiments import progress
from mimose_bench.experiments.progress import Progress


def test_plain_lines_when_not_a_terminal(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    with Progress(100, "qa-bert mimose", budget_bytes=4 << 30, stream=stream) as shown:
        for _ in range(100):
            clock[0] += 0.5
            shown.step(peak_bytes=3 << 30, loss=1.25)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "qa-bert mimose: 100 steps"
    assert lines[1] == (
        "qa-bert mimose: 20/100, 2.00 steps/s, 40.00 s left, peak 3.00 GiB of 4.00 GiB, loss 1.2500"
    )
    assert lines[-1].startswith("qa-bert mimose: 100/100, 2.00 steps/s, peak")
    assert len(lines) == 2 + 4


def test_what_comes_before_the_second_step_is_no_part_of_the_rate(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with Progress(9, "t", stream=io.StringIO()) as shown:
        clock[0] = 60.0  # A profile, and the first step.
        shown.step(loss=1.0)
        assert shown.line() == "t: 1/9, loss 1.0000"
        for _ in range(4):
            clock[0] += 2.0
            shown.step()
        clock[0] += 30.0  # Counting FLOPs.
        assert shown.line() == "t: 5/9, 0.50 steps/s, 8.00 s left, loss 1.0000"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Progress(2, "title [x]", stream=stream) as shown:
        shown.say("a line [with] brackets")
        shown.step(loss=1.0)
        shown.step()
    text = stream.getvalue()
    assert "title [x]" in text
    assert "[with]" in text
    assert "2/2" in text


def test_quiet_is_silent():
    stream = io.StringIO()
    with Progress(1, "t", quiet=True, stream=stream) as shown:
        shown.say("x")
        shown.step()
    assert stream.getvalue() == ""
