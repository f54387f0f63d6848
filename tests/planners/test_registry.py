from __future__ import annotations

import pytest

from mimose.plan import Plan
from mimose.planners import PLANNERS, make_planner
from mimose.planners.baseline import Baseline
from mimose.planners.mimose import Mimose


def test_every_name_is_its_class_s():
    assert {name: cls.name for name, cls in PLANNERS.items()} == {n: n for n in PLANNERS}


def test_makes_planners_with_options():
    assert isinstance(make_planner("baseline"), Baseline)
    planner = make_planner("mimose", sheltered="12", variant="authors", margin="1GB")
    assert isinstance(planner, Mimose)
    assert planner.variant == "authors"


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("mimoze", {}, "did you mean 'mimose'"),
        ("Full", {}, "did you mean 'full'"),
        ("xyzzy", {}, "There are baseline, full, selective"),
        ("mimose", {"margn": 3}, "its options are sheltered, margin, cache_step, variant"),
        ("baseline", {"margin": 3}, "it has no options"),
        ("fixed", {}, "its options are plan"),
        ("no_such_module:Planner", {}, "cannot be loaded"),
        ("mimose.plan:NoSuchClass", {}, "cannot be loaded"),
        (":Planner", {}, "cannot be loaded"),
        ("mimose.plan:Plan", {}, "is not a planner class"),
    ],
)
def test_what_is_wrong_is_said(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        make_planner(name, **options)


def test_a_planner_from_outside():
    planner = make_planner("mimose.planners.fixed:Fixed", plan=Plan.keep_all(2))
    assert planner.name == "fixed"


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("sheltered", 0, "sheltered must be a whole number, from 1 to 30"),
        ("sheltered", 31, "sheltered must be a whole number, from 1 to 30"),
        ("sheltered", "ten", "sheltered must be a whole number"),
        ("cache_step", 0, "cache_step must be a whole number, 1 or more"),
        ("margin", "much", "margin must be 0 or a number of bytes"),
        ("margin", -1, "margin must be 0 or"),
        ("variant", "mine", "variant must be printed or authors"),
    ],
)
def test_bad_options_of_mimose(option, value, complaint):
    with pytest.raises(ValueError, match=complaint):
        make_planner("mimose", **{option: value})


def test_no_planner_imports_torch():
    import subprocess
    import sys

    code = "import sys, mimose.planners; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
