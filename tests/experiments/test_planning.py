"""The verb plan: what is measured, what is refused, and what a refusal advises."""

from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from mimose.records import Size
from mimose.units import format_bytes, parse_bytes
from mimose_bench import cli
from mimose_bench.experiments import planning, teaching
from mimose_bench.experiments.bounds import Bounds
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.planning import Planned, plan_sizes, plans_table
from mimose_bench.experiments.tasks import TaskOptions, make_task


def asked(planner: str, budget: int, lengths: list[str]) -> tuple[list[Planned], dict]:
    config = RunConfig(
        planner=planner,
        budget=budget,
        scale="tiny",
        data="synthetic",
        device="sim:v100",
        threads=1,
    )
    return plan_sizes(config, lengths)


def test_nothing_larger_than_what_is_asked_for_is_measured():
    bins = [SimpleNamespace(size=size) for size in ((4, 10, 50), (4, 40, 20), (4, 90, 90))]
    task = SimpleNamespace(size_bins=lambda: bins, longest=lambda: (4, 99, 99))
    sizes = list(teaching._shown(task, [(4, 20, 60), (4, 50, 20)]))
    assert set(sizes) == {(4, 10, 50), (4, 40, 20), (4, 20, 60), (4, 50, 20)}
    assert len(sizes) == teaching.MOST_STEPS


def test_what_does_not_fit_is_refused_alone_and_the_budget_advised_works():
    answers, facts = asked("auto", 29 << 20, ["60", "128"])
    assert [answer.plan is None for answer in answers] == [False, True]
    assert answers[0].predicted_peak_bytes <= 29 << 20 < answers[1].least_budget_bytes
    text = planning.describe(answers[1])
    assert text == f"does not fit: it needs {format_bytes(answers[1].least_budget_bytes, up=True)}"
    enough = parse_bytes(format_bytes(facts["enough_bytes"], up=True))
    answers, facts = asked("auto", enough, ["60", "128"])
    assert all(answer.plan is not None for answer in answers)
    assert facts["enough_bytes"] is None


def test_a_planner_that_recomputes_nothing_is_told_what_that_takes():
    (answer,), facts = asked("baseline", 24 << 20, ["60"])
    assert answer.plan is None
    assert facts["enough_bytes"] >= answer.least_budget_bytes > 24 << 20
    (answer,), _ = asked("baseline", facts["enough_bytes"], ["60"])
    assert answer.plan == "keep 0-3"


class Budgets:
    """Stands for measuring: each of two sizes fits from a budget on."""

    def __init__(self, needs: dict[Size, int | None]) -> None:
        self.needs = needs
        self.tried: list[int] = []

    def __call__(self, config, task, shown, planned, say):
        self.tried.append(config.budget)
        lost = {
            size: Planned(size, text, None, None, None, self.needs[size])
            for size, text in shown.items()
            if self.needs[size] is None or self.needs[size] > config.budget
        }
        return lost or {s: Planned(s, t, "keep 0", 0, 1) for s, t in shown.items()}, {}


@pytest.mark.parametrize(
    ("needs", "enough"),
    [
        ({(1, 1): 40, (1, 2): 70 << 20}, 70 << 20),
        ({(1, 1): 40, (1, 2): None}, None),
        ({(1, 1): 40, (1, 2): 41}, None),
    ],
)
def test_advice_is_for_all_and_only_what_was_tried(monkeypatch, needs, enough):
    measured = Budgets(needs)
    monkeypatch.setattr(planning, "_answers", measured)
    shown = {size: str(size[1]) for size in needs}
    config = RunConfig(budget=50 << 20)
    answers, _ = measured(config, None, shown, None, None)
    assert planning._enough(config, None, shown, answers) == enough
    assert enough is None or measured.tried[-1] == enough


def test_what_fits_by_itself_and_not_beside_others_gets_a_larger_budget(monkeypatch):
    def answers(config, task, shown, planned, say):
        fits = config.budget >= 53 << 20
        return {(1, 1): Planned((1, 1), "1", "keep 0" if fits else None, 0, 1, 30 << 20)}, {}

    monkeypatch.setattr(planning, "_answers", answers)
    config = RunConfig(budget=50 << 20)
    first, _ = answers(config, None, None, None, None)
    assert planning._enough(config, None, {(1, 1): "1"}, first) == 54 << 20


@pytest.mark.parametrize("planner", ["auto", "rotor", "dtr", "full"])
def test_a_budget_below_the_parameters_exits_as_a_run_does(planner, monkeypatch, capsys):
    given = ["plan", "--planner", planner, "--budget", "1MB", "--lengths", "60"]
    common = ["--scale", "tiny", "--data", "synthetic", "--device", "sim:v100"]
    monkeypatch.setattr("sys.argv", ["mimose-bench", *given, *common])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
    assert "less than the model's parameters take" in capsys.readouterr().err


def test_a_device_without_room_for_a_plan_exits_as_a_run_does(monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(planning, "plan_sizes", fails)
    result = CliRunner().invoke(cli.app, ["plan", "--lengths", "60"])
    assert (result.exit_code, result.stderr) == (3, "mimose-bench: no room\n")


def test_an_unknown_task_is_said_before_missing_sizes():
    with pytest.raises(ValueError, match="no task called 'qa-bret': did you mean 'qa-bert'"):
        plan_sizes(RunConfig(task="qa-bret"), [])


@pytest.mark.parametrize(("text", "commas"), [("60-128", True), ("60;128", True), ("x", False)])
def test_several_lengths_that_are_no_list_are_told_of_commas(text, commas):
    task = make_task("qa-bert", TaskOptions(scale="tiny", data="synthetic"))
    with pytest.raises(ValueError, match="is a number of tokens") as refused:
        planning.parse_sizes(task, [text])
    assert ("separated by commas" in str(refused.value)) is commas


@pytest.mark.parametrize(("budget", "code"), [(30 << 20, 0), (20 << 20, 3)])
def test_bounds_beyond_the_budget_exit_with_3(budget, code, monkeypatch):
    monkeypatch.setattr(
        "mimose_bench.experiments.bounds.measure_bounds",
        lambda *_: Bounds(25 << 20, 40 << 20, (4, 60), "60", "measured on cpu"),
    )
    given = ["plan", "--bounds", "--scale", "tiny", "--data", "synthetic", "--lengths", "60"]
    result = CliRunner().invoke(cli.app, [*given, "--budget", str(budget), "--device", "sim:v100"])
    assert result.exit_code == code
    assert ("does not fit" in result.stdout) == (code == 3)


@pytest.mark.parametrize("beside", [[], [Planned((4, 50), "50", "keep 0-1", 0, 9 << 20)]])
def test_a_size_without_a_plan_exits_with_3_and_names_a_budget(beside, monkeypatch):
    lost = [*beside, Planned((4, 60), "60", None, None, None, 30 << 20)]
    facts = {
        "device_label": "measured on cpu",
        "unit": "tokens",
        "blocks": ["a", "b"],
        "budget_bytes": 20 << 20,
        "margin_bytes": None,
        "enough_bytes": 31 << 20,
    }
    monkeypatch.setattr(planning, "plan_sizes", lambda *_: (lost, facts))
    given = ["plan", "--budget", "20MB", "--lengths", "60"]
    result = CliRunner().invoke(cli.app, given)
    assert result.exit_code == 3
    assert "does not fit: it needs 30.00 MiB" in result.stdout
    assert "give --budget 31.00MiB" in result.stderr
    assert CliRunner().invoke(cli.app, [*given, "--json"]).exit_code == 3


def test_blocks_in_part_have_a_column_of_their_own():
    facts = {"unit": "tokens", "blocks": ["a"] * 12}
    whole = Planned((4, 60), "60", "recompute 0", 1, 5 << 20)
    part = Planned((4, 80), "80", "recompute 0 | remake 1-9 [3]", 1, 6 << 20, num_remade=9)
    text = plans_table([whole, part], facts)
    assert text.splitlines()[0].split() == [
        "batch",
        "tokens",
        "recomputed",
        "in",
        "part",
        "predicted",
        "peak",
        "plan",
    ]
    assert text.splitlines()[3].split()[:4] == ["4", "80", "1", "9"]
    assert "of 12 blocks" in text
    assert "in part" not in plans_table([whole], facts)
