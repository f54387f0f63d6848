import dataclasses
import json
import math

import pytest

from mimose_bench.experiments.figures import stored
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import (
    SCHEMA_VERSION,
    Criterion,
    Curve,
    LeftOut,
    Reproduction,
    ResultTable,
    Row,
)
from mimose_bench.experiments.files import write_json

LABEL = "simulated v100-32gb"


@pytest.fixture
def result():
    return Reproduction(
        name="x",
        title="a title",
        source="Fig 1",
        device_label=LABEL,
        rows=(Row(series="A", what="peak", unit="GB", expected=2.0, obtained=3.0, length=7),),
        criteria=(Criterion(name="error", value=0.01, tolerance=0.02),),
        claims=(
            Claim(
                text="so",
                source="Fig 1",
                version="v1",
                unit="x",
                expected=1.0,
                obtained=1.1,
                tolerance=0.2,
                interval=(1.0, 1.2),
                device_label=LABEL,
            ),
        ),
        left_out=(LeftOut(series="A", length=3, expected=1.0, reason="far off"),),
        notes=("a note",),
        tables=(ResultTable(title="t", headers=("a", "b"), rows=(("1", "2"),)),),
        curves=(Curve(name="c", x_unit="s", y_unit="bytes", x=(0.0, 1.0), y=(2.0, 3.0)),),
    )


def test_what_is_written_is_read_back_equal(result, tmp_path):
    write_json(tmp_path / "x.json", {**result.to_json(), "run": {"quick": True}})
    found = stored.read(tmp_path / "x.json")
    assert found.result == result
    assert (found.is_quick, found.error, found.num_rows) == (True, None, 1)


def test_not_a_number_is_one_again(result, tmp_path):
    criterion = Criterion(name="error", value=math.nan, tolerance=0.1)
    write_json(tmp_path / "x.json", dataclasses.replace(result, criteria=(criterion,)).to_json())
    (read,) = stored.read(tmp_path / "x.json").result.criteria
    assert math.isnan(read.value)
    assert not read.passed


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is damaged"),
        ("[]", "names none"),
        ('{"name": "x"}', "schema version None"),
        (json.dumps({"name": "x", "schema_version": SCHEMA_VERSION + 1}), "update mimose-bench"),
        (json.dumps({"name": "x", "schema_version": 1, "rows": []}), "repeat the check"),
    ],
)
def test_what_cannot_be_read_is_named_and_passed_over(result, tmp_path, text, sentence):
    write_json(tmp_path / "good.json", result.to_json())
    (tmp_path / "bad.json").write_text(text)
    found, (problem,) = stored.read_all(tmp_path)
    assert [each.name for each in found] == ["x"]
    assert "bad.json" in problem
    assert sentence in problem


def test_a_folder_of_a_sweep_is_not_one_of_outcomes(result, tmp_path):
    (tmp_path / "sweep.json").write_text('{"cells": [{"error": null}], "criteria": 1}')
    assert not stored.is_folder(tmp_path)
    write_json(tmp_path / "good.json", result.to_json())
    assert stored.is_folder(tmp_path)
