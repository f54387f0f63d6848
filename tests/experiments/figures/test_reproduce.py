"""The verb: names, devices, files, exit codes. Checks are replaced by ones that need no device."""

import json

import pytest
import torch
from typer.testing import CliRunner

from mimose_bench import cli, plots
from mimose_bench.experiments import environment
from mimose_bench.experiments.figures import fig3, reproduce
from mimose_bench.experiments.figures.result import FACTORS

LABEL = "simulated v100-32gb"


def check_with(factor):
    def run(open_device, *, stride=1, say=None):
        measured = {
            dataset: {p.input_size: round(p.peak_bytes * factor) for p in fig3.split(dataset)[0]}
            for dataset in fig3.QUADRATICS
        }
        return fig3.judge(measured, LABEL)

    return run


@pytest.fixture(autouse=True)
def short(monkeypatch, request):
    """Leave out what takes a second a check; one test has the drawings."""
    monkeypatch.setattr(environment, "git_commit", lambda: "0" * 40)
    if request.function is not test_values_and_drawings_are_written:
        monkeypatch.setattr(plots, "draw_reproduced", lambda *_: [])


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run the verb, in this process, with a check that obtains ``factor`` times the paper's values.

    It counts how often it is run in ``call.runs``; ``fig9`` fails.
    """

    def run(*arguments, factor=1.0):
        measure = check_with(factor)

        def counted(*given, **options):
            run.runs += 1
            return measure(*given, **options)

        def fail(*_, **__):
            raise RuntimeError("the device\nwent away")

        monkeypatch.setitem(reproduce.CHECKS, "fig3", reproduce.Check(counted, {"stride": 20}))
        monkeypatch.setitem(reproduce.CHECKS, "fig9", reproduce.Check(fail))
        given = ["reproduce", *arguments, "--jobs", "1", "--out", str(tmp_path / "out")]
        return CliRunner().invoke(cli.app, given)

    run.runs = 0
    return run


def test_values_and_drawings_are_written(call, tmp_path):
    result = call("fig3")
    assert result.exit_code == 0, result.output
    assert LABEL in result.stdout
    assert result.stdout.rstrip().endswith("fig3: within tolerance")
    written = json.loads((tmp_path / "out" / "fig3.json").read_text())
    assert written["passed"] is True
    assert written["device_label"] == LABEL
    assert written["rows"][0]["expected"] > FACTORS["GB"]
    assert (tmp_path / "out" / "plots" / "unchecked-memory.png").stat().st_size > 0


def test_a_value_outside_its_tolerance_is_exit_code_4(call):
    result = call("fig3", factor=1.05)
    assert result.exit_code == 4
    assert "fig3: OUTSIDE" in result.stdout


def test_json_is_all_there_is_on_stdout(call):
    result = call("fig3", "--json", factor=1.05)
    assert result.exit_code == 4
    (document,) = json.loads(result.stdout)
    assert document["name"] == "fig3"
    assert document["rows"][0]["error"] == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fig33"], "did you mean 'fig3'"),
        (["fig3", "--device", "cpu"], "takes --device sim:NAME, not 'cpu'"),
        (["clock", "--device", "sim:a100"], "use --device sim:v100"),
        (["fig3", "--device", "sim:nosuch"], "there is no simulated GPU called 'nosuch'"),
        (["fig10", "--device", "gpu"], "unknown device 'gpu'"),
        (["xyzzy"], ", ".join(reproduce.CHECKS)),
    ],
)
def test_what_cannot_be_done_is_one_sentence(call, arguments, sentence):
    result = call(*arguments)
    assert isinstance(result.exception, ValueError)
    assert sentence in str(result.exception)


def test_cuda_where_there_is_none_is_refused_before_anything_is_written(
    call, monkeypatch, tmp_path
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = call("fig10", "--device", "cuda")
    assert isinstance(result.exception, ValueError)
    assert "there is no CUDA device here" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    made = reproduce.reproduce(["fig3"], "sim:v100", tmp_path / "file" / "out")
    with pytest.raises(ValueError, match=r"cannot write to .*--out"):
        next(made)


def test_names_are_taken_once_and_none_means_all():
    assert reproduce.chosen([]) == tuple(reproduce.CHECKS)
    assert reproduce.chosen(["clock", "fig3", "clock"]) == ("clock", "fig3")


def test_what_was_run_where_and_when_is_written(call, tmp_path):
    call("fig3", "--quick")
    run = json.loads((tmp_path / "out" / "fig3.json").read_text())["run"]
    assert run["command"] == ["mimose-bench", "reproduce", "fig3", "--quick"]
    assert (run["device"], run["quick"], run["version"]) == ("sim:v100", True, "ipdps")
    assert run["seconds"] >= 0
    assert run["torch"]
    assert "command" not in run["environment"]  # it would name the user's folders
    assert str(tmp_path) not in json.dumps(run)


def test_a_check_that_fails_is_a_row_and_not_the_end(call, tmp_path):
    result = call("fig9", "fig3")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2:] == [
        "fig9: FAILED: the device went away",
        "fig3: within tolerance",
    ]
    assert json.loads((tmp_path / "out" / "fig9.json").read_text())["error"] == (
        "the device went away"
    )


def test_kept_is_what_the_same_code_made_with_the_same_settings(call, monkeypatch):
    def runs_after(*arguments):
        call("fig3", *arguments)
        return call.runs

    assert runs_after() == 1
    assert runs_after("--keep") == 1
    assert runs_after("--keep", "--quick") == 2
    assert runs_after("--keep", "--quick") == 2
    assert runs_after("--keep", "--quick", "--device", "sim:a100") == 3
    monkeypatch.setattr(reproduce.provenance.sources, "digest", lambda **_: "another")
    assert runs_after("--keep", "--quick", "--device", "sim:a100") == 4


def test_what_failed_is_not_kept(call, tmp_path):
    call("fig9")
    assert "FAILED" in call("fig9", "--keep").stdout


def test_interrupted_keeps_what_is_done(call, monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(reproduce.CHECKS, "stars", reproduce.Check(interrupt))
    result = call("fig3", "stars")
    assert isinstance(result.exception, KeyboardInterrupt) or result.exit_code == 130
    assert "1 of 2 checks are done: with --keep" in result.stderr
    assert [p.name for p in (tmp_path / "out").glob("*.json")] == ["fig3.json"]


@pytest.mark.parametrize(
    ("given", "recorded", "quick", "cuda", "expected"),
    [
        ("auto", False, False, True, "sim:v100"),
        ("auto", True, False, True, "cuda"),
        ("auto", True, True, True, "sim:v100"),
        ("auto", True, False, False, "sim:v100"),
        ("cpu", True, False, False, "cpu"),
        ("sim:a100", True, False, True, "sim:a100"),
    ],
)
def test_devices_that_checks_run_on(monkeypatch, given, recorded, quick, cuda, expected):
    monkeypatch.setitem(reproduce.CHECKS, "fig3", reproduce.Check(fig3.check, recorded=recorded))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(cuda))
    assert reproduce.device_for("fig3", given, quick=quick) == expected


def test_a_gpu_that_is_not_known_is_said_before_anything_runs(call):
    result = call("fig3", "--device", "sim:v1000")
    assert isinstance(result.exception, ValueError)
    assert call.runs == 0


def test_a_drawing_that_fails_does_not_end_the_checks(call, monkeypatch):
    def fail(*_):
        raise KeyError("x")

    monkeypatch.setattr(plots, "draw_reproduced", fail)
    result = call("fig3")
    assert result.exit_code == 1
    assert "fig3: within tolerance" in result.stdout
    assert "fig3 could not be drawn" in result.stderr
