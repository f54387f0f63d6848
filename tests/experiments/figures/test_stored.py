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
        ('{"name": "x", "schema_version": 0}', "schema version 0, which no version"),
        ('{"name": "x", "schema_version": true}', "schema version True, which no version"),
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


def _set(path, value):
    *parents, last = path

    def change(document):
        for key in parents:
            document = document[key]
        document[last] = value

    return change


def _drop(*path):
    *parents, last = path

    def change(document):
        for key in parents:
            document = document[key]
        del document[last]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set(["title"], 3), "title is not text"),
        (_set(["device_label"], None), "device_label is not text"),
        (_drop("device_label"), "device_label is missing"),
        (_set(["run"], "yes"), "run is not an object"),
        (_set(["run", "seconds"], "long"), "run.seconds is not a number"),
        (_set(["run", "version"], "v3"), "run.version is none of"),
        (_set(["run", "environment"], {"gpu": "H100"}), "run.environment.gpu is not an object"),
        (_set(["notes"], "a note"), "notes is not a list"),
        (_set(["notes"], [1]), "notes[0] is not text"),
        (_set(["curves"], {"x": 1}), "curves is not a list"),
        (_drop("curves"), "curves is missing"),
        (_set(["curves", 0, "x"], [1]), "not as many x as y"),
        (_drop("rows", 0, "expected"), "rows[0].expected is missing"),
        (_set(["rows", 0, "expected"], 0), "is 0"),
        (_set(["rows", 0, "unit"], "lb"), "rows[0].unit is none of"),
        (_set(["rows", 0, "length"], 7.5), "rows[0].length is not a whole number"),
        (_set(["criteria", 0, "is_count"], 1), "criteria[0].is_count is not true or false"),
        (_set(["claims", 0, "interval"], [1]), "claims[0].interval has 1 values, not 2"),
        (_set(["claims", 0], None), "claims[0] is not an object"),
        (_set(["tables", 0, "rows"], [["1"]]), "not as long as its headers"),
        (_set(["error"], 5), "error is not text"),
    ],
)
def test_what_was_damaged_by_hand_is_named(result, tmp_path, change, words):
    document = json.loads(json.dumps({**result.to_json(), "run": {"seconds": 1}}))
    change(document)
    write_json(tmp_path / "x.json", document)
    with pytest.raises(ValueError, match=r"x\.json is not the outcome") as caught:
        stored.read(tmp_path / "x.json")
    assert words in str(caught.value)


def test_what_an_older_schema_had_not_is_not_missing(result, tmp_path):
    document = {**result.to_json(), "schema_version": 1}
    del document["claims"], document["curves"]
    write_json(tmp_path / "x.json", document)
    found = stored.read(tmp_path / "x.json").result
    assert found == dataclasses.replace(result, claims=(), curves=())


def test_a_folder_of_a_sweep_is_not_one_of_outcomes(result, tmp_path):
    (tmp_path / "sweep.json").write_text('{"cells": [{"error": null}], "criteria": 1}')
    assert not stored.is_folder(tmp_path)
    write_json(tmp_path / "good.json", result.to_json())
    assert stored.is_folder(tmp_path)
