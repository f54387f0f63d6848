"""The page for choosing a planner: every planner is on it, its figures are docs/reproduced's."""

import importlib
from pathlib import Path

import pytest

import mimose
from mimose.integrations.shared import ready_planner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("choosing")


def test_the_page_has_the_figures_of_the_files(script):
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.written(page) == page, "run python scripts/choosing.py"


def test_every_planner_is_on_it(script):
    assert {*script.CHOICES, "fixed"} == set(mimose.PLANNERS)


def test_what_the_short_list_says_holds_in_the_files(script):
    static = script.load("static")
    for task in script._TASKS:
        found = script.table(static, script._RELATIVE.format(task))
        rows = {row[0]: row[1:] for row in found["rows"] if row[0] in script.CHOICES}
        fits = {
            (name, budget): float(cell)
            for name, row in rows.items()
            for budget, cell in zip(found["headers"][1:], row)
            if not cell.startswith("needs")
        }
        for (name, budget), time in fits.items():
            assert fits["mimose", budget] <= time, (task, name, budget)
            if name not in ("mimose", "selective"):  # Which takes cores apart, and they do not.
                assert fits["rotor", budget] <= time, (task, name, budget)
        # Rounded to a thousandth in the file, as is Checkmate's gap.
        assert rows["checkmate"] == rows["rotor"]


def test_auto_costs_less_than_the_others_in_the_files(script):
    _, _, *rows = script.beside()
    times = {name: cells for name, *cells in (line.strip("| ").split(" | ") for line in rows)}
    mine = [float(cell) for cell in times.pop("`auto`")]
    assert len(mine) == 10
    assert "`mimose`" in times
    for name, cells in times.items():
        assert all(a <= float(cell) for a, cell in zip(mine, cells, strict=True)), name


def test_planners_without_a_profile_are_those_that_a_callback_takes(script):
    for name, choice in script.CHOICES.items():
        if choice.first.startswith("no"):
            ready_planner(name, {})
            continue
        with pytest.raises(ValueError, match="a callback cannot take"):
            ready_planner(name, {})
