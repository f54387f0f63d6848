import pytest

from mimose_bench.experiments.figures import stored
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable, Row
from mimose_bench.experiments.files import write_json

LABEL = "simulated v100-32gb"
NASTY = "a < b & c > d | *e* [f](http://g) <script>alert(1)</script>"


def claim(**changes):
    given = {
        "text": "so it is",
        "source": "Fig 1",
        "version": "ipdps",
        "unit": "x",
        "expected": 1.0,
        "obtained": 1.02,
        "tolerance": 0.05,
        "interval": (1.01, 1.03),
        "device_label": LABEL,
    }
    return Claim(**given | changes)


CLAIMS = (
    claim(),
    claim(text="first version", version="v1", obtained=1.2, interval=None, note="because"),
    claim(text="open", version="v1", interval=(1.0, 1.1)),
    claim(text="nobody knows", obtained=None, interval=None, note="no GPU here"),
    claim(text="just so", tolerance=None),
    claim(text=NASTY, unit="GB", expected=2.0 * (1 << 30), obtained=1.9 * (1 << 30), relative=True),
)


@pytest.fixture
def folder(tmp_path):
    """Outcomes of three checks: one with everything, one quick, one that failed."""
    run = {
        "command": ["mimose-bench", "reproduce", "all"],
        "seconds": 90.0,
        "date": "2026-01-02",
        "device": "sim:v100",
        "quick": False,
        "version": "ipdps",
        "recorded": True,
        "source": "0123",
        "environment": {
            "cpu": "a processor",
            "num_cpus": 2,
            "platform": "a-kernel",
            "versions": {"torch": "2.0"},
        },
    }
    rows = tuple(
        Row(series="A", what=f"length {n}", unit="GB", expected=n * 1e9, obtained=n * 1.01e9)
        for n in range(1, 21)
    )
    result = Reproduction(
        name="all",
        title="everything",
        source="Fig 1",
        device_label=LABEL,
        rows=rows,
        criteria=(
            Criterion(name="mean error", value=0.01, tolerance=0.02),
            Criterion(name="maximum error", value=0.03, tolerance=0.02),
            Criterion(name="count", value=3, is_count=True),
        ),
        claims=CLAIMS,
        notes=(NASTY,),
        tables=(ResultTable(title=NASTY, headers=("a", "b"), rows=((NASTY, "1.0"),)),),
    )
    outcomes = tmp_path / "reproduced"
    outcomes.mkdir()
    write_json(outcomes / "all.json", {**result.to_json(), "run": run})
    quick = Reproduction(
        name="quick",
        title="a part",
        source="Fig 2",
        device_label="measured on cpu",
        rows=(),
        criteria=(Criterion(name="error", value=0.0, tolerance=0.0),),
    )
    write_json(
        outcomes / "quick.json",
        {**quick.to_json(), "run": {**run, "quick": True, "version": "other"}},
    )
    failed = {"schema_version": 2, "name": "broken", "error": NASTY, "run": run}
    write_json(outcomes / "broken.json", failed)
    return outcomes


@pytest.fixture
def outcomes(folder):
    found, problems = stored.read_all(folder)
    assert problems == []
    return found
