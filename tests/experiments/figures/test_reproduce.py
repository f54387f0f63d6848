"""The verb: names, devices, files, exit codes. Checks are replaced by ones that need no device."""

import json

import pytest
from typer.testing import CliRunner

from mimose_bench import cli
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


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run the verb with a check that obtains ``factor`` times the paper's values."""

    def run(*arguments, factor=1.0):
        check = reproduce.Check(check_with(factor), {"stride": 20})
        monkeypatch.setitem(reproduce.CHECKS, "fig3", check)
        return CliRunner().invoke(
            cli.app, ["reproduce", *arguments, "--out", str(tmp_path / "out")]
        )

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
    ],
)
def test_what_cannot_be_done_is_one_sentence(call, arguments, sentence):
    result = call(*arguments)
    assert isinstance(result.exception, ValueError)
    assert sentence in str(result.exception)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    made = reproduce.reproduce(["fig3"], "sim:v100", tmp_path / "file" / "out")
    with pytest.raises(ValueError, match=r"cannot write to .*--out"):
        next(made)


def test_names_are_taken_once_and_none_means_all():
    assert reproduce.chosen([]) == tuple(reproduce.CHECKS)
    assert reproduce.chosen(["clock", "fig3", "clock"]) == ("clock", "fig3")
