import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mimose.devices.sim.gpus import load_gpu
from mimose_bench import cli
from mimose_bench.experiments.records import RunWriter
from mimose_bench.experiments.schema import SCHEMA_VERSION
from mimose_bench.experiments.tasks import TASKS

MIB = 1 << 20


@pytest.fixture
def call(monkeypatch, capsys):
    """Run the command line in this process; returns exit code, stdout and stderr."""
    monkeypatch.delenv("MIMOSE_DEBUG", raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["mimose-bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.fixture
def results(tmp_path):
    """A folder of three runs over the same batches: finished, out of memory, and still going."""
    root = tmp_path / "results"
    for planner, budget, seconds in [("baseline", None, 1.0), ("full", 60, 1.3), ("dtr", 60, 2.0)]:
        writer = RunWriter.create(
            root,
            task="qa-bert",
            planner=planner,
            budget="none" if budget is None else "60MB",
            device="cpu",
            budget_bytes=budget and budget * MIB,
            device_label="measured on cpu",
        )
        for step in range(6):
            died = planner == "full" and step == 5
            writer.add(
                {
                    "rank": 0,
                    "step": step,
                    "phase": "static",
                    "input_size": 400 + step,
                    "batch_size": 4,
                    "sequence_length": 100 + step,
                    "plan": "keep 0-11",
                    "num_recomputed": 0,
                    "loss": None if died else 3.0 - step,
                    "outcome": "oom" if died else "ok",
                    "step_seconds": None if died else seconds,
                    "peak_allocated_bytes": 50 * MIB,
                    "peak_reserved_bytes": 55 * MIB,
                    "num_alloc_retries": 0,
                }
            )
        if planner == "dtr":
            writer.flush()
        else:
            writer.finish("oom" if planner == "full" else "done")
    return root


def names(results):
    return {p.name.split("-")[2]: str(p) for p in results.glob("qa-bert-*")}


def one_sentence(code, out, err, expected=1):
    assert code == expected
    assert out == ""
    (line,) = err.splitlines()
    return line


# -- the command itself


def test_help_is_quick_because_it_imports_nothing_heavy():
    script = (
        "import sys, mimose_bench.cli as cli\n"
        "sys.argv = ['mimose-bench', '--help']\n"
        "try:\n    cli.main()\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'torch', 'pandas', 'matplotlib', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    for verb in ("list", "plan", "run", "show", "compare", "plot", "report", "doctor", "smoke"):
        assert f"\n  {verb} " in done.stdout


def test_help_has_a_short_name(call):
    for command in ([], ["compare"]):
        assert call(*command, "-h") == call(*command, "--help")
        assert call(*command, "-h")[0] == 0


@pytest.mark.parametrize("command", cli.app.registered_commands, ids=lambda c: c.callback.__name__)
def test_every_option_has_help(command):
    import typing

    hints = typing.get_type_hints(command.callback, include_extras=True)
    hints.pop("return")
    assert hints
    for name, hint in hints.items():
        (option,) = hint.__metadata__
        assert option.help, f"{name} has no help"
    assert command.callback.__doc__


def test_usage_errors_exit_with_2(call):
    code, out, err = call("run", "--no-such-option")
    assert (code, out) == (2, "")
    assert "--no-such-option" in err
    assert call("no-such-verb")[0] == 2
    assert call("run", "--steps", "many")[0] == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_no_error(unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = f"{sys.executable} -m mimose_bench.cli list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_interruption_exits_with_130(call, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mimose_bench.experiments.reading.open_run", interrupt)
    code, out, err = call("show")
    assert (code, out) == (130, "")
    assert "Traceback" not in err


def test_debugging_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("MIMOSE_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["mimose-bench", "show", "nothing"])
    with pytest.raises(ValueError, match="no run called"):
        cli.main()


# -- what there is


def test_list_names_what_there_is(call):
    from mimose.planners import PLANNERS

    code, out, _ = call("list", "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found["tasks"]) == set(TASKS)
    assert set(found["planners"]) == set(PLANNERS)
    assert all(found["planners"].values())
    plain = call("list")[1]
    assert found["planner_options"]["mimose"][0] == "sheltered"
    assert "full: --every, --margin" in plain or "full: --margin, --every" in plain
    assert all(name in plain for name in (*TASKS, *PLANNERS, "cuda"))


def test_doctor_looks_at_everything(call, monkeypatch, tmp_path):
    monkeypatch.setattr("mimose_bench.experiments.data.hub.is_reachable", lambda: False)
    code, out, _ = call("doctor", "--json", "--out", tmp_path)
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert code == any(finding["state"] == "missing" for finding in findings.values())
    assert findings["torch"]["state"] == "ok"
    assert findings["Hugging Face hub"]["advice"]
    assert findings[f"disk for {tmp_path}"]["state"] == "ok"
    assert "torch" in call("doctor", "--out", tmp_path)[1]


def test_doctor_says_how_to_get_a_compiler(call, monkeypatch, tmp_path):
    monkeypatch.setattr("mimose_bench.experiments.data.hub.is_reachable", lambda: False)
    monkeypatch.setattr("mimose.devices.library.find_compiler", lambda: None)
    code, out, _ = call("doctor", "--out", tmp_path)
    assert code == 1
    assert "apt-get install g++" in out


# -- what a user can get wrong


@pytest.mark.parametrize("budget", ["abc", "-3GB", "0", ""])
def test_a_budget_that_is_none_is_one_sentence(call, budget):
    assert "number of bytes" in one_sentence(*call("run", "--budget", budget))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--steps", "0"], "--steps must be at least 1"),
        (["--lengths", "expected", "--steps", "9"], "leave --steps out"),
        (["--lengths", "all"], "--lengths must be sampled or expected"),
        (["--foreach", "maybe"], "--foreach must be auto, on or off"),
        (["--scale", "huge"], "--scale must be"),
        (["--planner-option", "novalue"], "KEY=VALUE"),
        (["--planner", "mimosa"], "mimose"),
        (["--plan", "keep 0"], "--planner fixed"),
        (["--margin", "lots"], "--margin must be 0 or a number of bytes"),
        (["--planner", "checkmate", "--time-limit", "inf"], "--time-limit must be a number of"),
        (["--margin", "1GB", "--planner", "baseline"], "--margin is no option of planner baseline"),
        (["--every", "0", "--planner", "full"], "--every must be at least 1"),
        (["--segments", "3"], "--segments is no option of planner mimose, which takes --"),
        (["--time-limit", "0"], "--time-limit must be a number of seconds above 0"),
        (["--gap", "2"], "--gap is a share"),
        (["--flops", "maybe"], "--flops must be auto, on or off"),
        (["--plan-size", "64"], "--plan-size is for planners that plan once"),
        (["--fresh-plan", "--planner", "baseline"], "--fresh-plan is for planners that plan once"),
        (["--budget", "80 percent"], "for example 80%"),
        (["--budget", "6"], "write 6GB if that is meant"),
        (["--budget", "101%"], "up to 100%"),
        (["--budget", "80%", "--device", "sim:v1000"], "v100"),
        (["--budget", "100%", "--device", "sim:v100"], "has for PyTorch: give a smaller budget"),
        (["--task", "qa-brt"], "did you mean 'qa-bert'?"),
        (["--optimizer", "what"], "there is no optimizer called 'what'"),
        (["--task-option", "what=1"], "drop what=1"),
        (["--data", "nowhere.json"], "there is no data file nowhere.json"),
        (["--scale", "tiny", "--data", "synthetic", "--weights", "nowhere"], "nowhere"),
        (["--planner", "rotor", "--scale", "tiny", "--plan-size", "999"], "--plan-size 999: "),
        (["--planner", "sqrt-n", "--scale", "tiny", "--segments", "99"], "from 1 to 4"),
    ],
)
def test_a_wrong_option_of_run_is_one_sentence(call, options, expected, tmp_path):
    assert expected in one_sentence(*call("run", "--out", tmp_path, *options))
    assert list(tmp_path.iterdir()) == []


def test_a_budget_may_be_a_share_of_the_devices_memory():
    assert cli._budget("none", "nowhere") is None
    assert cli._budget("50%", "sim:v100") == load_gpu("v100").memory_bytes // 2
    assert 0 < cli._budget("50%", "cpu") < cli._budget("100%", "cpu")


@pytest.mark.parametrize("lengths", ["", "12,x", "0"])
def test_wrong_lengths_are_one_sentence(call, lengths):
    assert "--lengths" in one_sentence(*call("plan", "--lengths", lengths))


def test_a_wrong_run_is_one_sentence(call, results):
    near = names(results)["full"][:-1].rpartition("/")[2]
    line = one_sentence(*call("show", near, "--results", results))
    assert line.startswith(f"mimose-bench: there is no run called '{near}': did you mean")
    assert "two runs" in one_sentence(*call("compare", names(results)["full"]))
    assert "no run in" in one_sentence(*call("plot", "--results", results / "away"))


@pytest.mark.parametrize("option", ["--results", "--out"])
def test_the_latest_run_is_looked_for_where_run_puts_it(call, results, option):
    code, out, _ = call("show", "latest", option, results, "--json")
    assert code == 0
    assert Path(json.loads(out)["summary"]["run_dir"]).parent == results
    line = one_sentence(*call("show", option, results / "away"))
    assert f"no run in {results / 'away'} yet" in line
    assert "--results" in line


def test_show_of_a_folder_of_runs_says_what_takes_one(call, results, monkeypatch):
    monkeypatch.chdir(results.parent.parent)  # Where no other folder is called so.
    line = one_sentence(*call("show", results))
    assert f"{results} holds runs (3)" in line
    assert "mimose-bench compare" in line
    assert "mimose-bench plot" in line
    assert line == one_sentence(*call("show", results.name, "--results", results.parent))


# -- reading


def test_show_prints_and_gives_json(call, results):
    path = names(results)["full"]
    code, out, err = call("show", path)
    assert (code, err) == (0, "")
    assert "out of memory" in out
    assert "measured on cpu" in out
    document = json.loads(call("show", path, "--json")[1])
    assert document["summary"]["num_oom"] == 1
    assert document["schema_version"] == SCHEMA_VERSION


def test_show_reads_a_killed_run_and_says_what_it_passed_over(call, results):
    path = names(results)["dtr"]
    code, out, err = call("show", path)
    assert (code, err) == (0, "")
    assert "running, or killed" in out
    Path(path, "steps.parts", "000001.parquet").write_bytes(b"PAR1 and no more")
    code, _, err = call("show", path, "--json")
    assert code == 0
    assert err.startswith("warning: ")
    assert "000001.parquet was passed over" in err


def test_compare_pairs_steps_with_the_first_run(call, results):
    paths = names(results)
    code, out, _ = call("compare", paths["baseline"], paths["full"], paths["dtr"], "--json")
    rows = {row["planner"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["full"]["time_ratio"] == pytest.approx(1.3)
    assert rows["full"]["num_pairs"] == 5
    assert rows["dtr"]["time_ratio"] == pytest.approx(2.0)
    assert rows["dtr"]["max_loss_difference"] == 0
    table = call("compare", paths["baseline"], paths["full"])[1]
    assert "1.300" in table
    assert "out of memory at step 5" in table


def test_compare_takes_the_baseline_or_what_it_is_told_to(call, results):
    paths = names(results)
    given = [paths["dtr"], paths["full"], paths["baseline"]]
    found = json.loads(call("compare", *given, "--json")[1])
    assert [row["planner"] for row in found] == ["baseline", "dtr", "full"]
    assert [row["is_reference"] for row in found] == [True, False, False]
    out = call("compare", *given)[1]
    assert f"the reference is {Path(paths['baseline']).name}, baseline without a budget" in out
    told = ["--reference", Path(paths["dtr"]).name, "--results", results]
    found = json.loads(call("compare", *given, *told, "--json")[1])
    assert [row["planner"] for row in found] == ["dtr", "full", "baseline"]
    assert found[2]["time_ratio"] == pytest.approx(0.5)
    assert "two runs" in one_sentence(*call("compare", paths["dtr"], *told))


def test_compare_takes_a_folder_of_runs(call, results, monkeypatch):
    code, out, err = call("compare", results, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)[0]["planner"] == "baseline"
    assert {row["planner"] for row in json.loads(out)} == {"baseline", "full", "dtr"}
    told = [names(results)["dtr"], results, "--reference", names(results)["full"], "--json"]
    assert [row["planner"] for row in json.loads(call("compare", *told)[1])][:2] == ["full", "dtr"]
    monkeypatch.chdir(results.parent.parent)
    line = one_sentence(*call("compare", results.parent))
    assert line.endswith(f"name a folder of runs in it, for example {results}")
    line = one_sentence(*call("compare", names(results)["dtr"], "--reference", results))
    assert f"{results} holds runs (3)" in line
    RunWriter.create(results, task="tc-bert", planner="full", budget="none", device="cpu")
    assert "several tasks (qa-bert, tc-bert)" in one_sentence(*call("compare", results))


def test_plot_writes_the_figures_asked_for(call, results, tmp_path):
    code, out, _ = call(
        "plot", "--results", results, "--out", tmp_path / "f", "--figure", "loss", "--json"
    )
    assert code == 0
    assert json.loads(out) == [str(tmp_path / f"f/loss.{kind}") for kind in ("png", "pdf", "svg")]
    twice = ["--figure", "loss", "--figure", "loss"]
    code, out, _ = call("plot", "--results", results, "--out", tmp_path / "f", *twice)
    assert (code, len(out.splitlines())) == (0, 3)
    line = one_sentence(*call("plot", "--results", results, "--figure", "los"))
    assert "did you mean 'loss'" in line
    alone = names(results)["full"]
    line = one_sentence(*call("plot", alone, "--out", tmp_path / "f", "--figure", "fig10"))
    assert "nothing to draw as fig10" in line


@pytest.fixture
def damaged(results):
    """The same folder: a run cut short, one of a newer version, a foreign file, an empty folder."""
    paths = names(results)
    (Path(paths["dtr"]) / "steps.parts" / "000000.parquet").write_bytes(b"PAR1")
    document = Path(paths["full"]) / "run.json"
    newer = json.loads(document.read_text()) | {"schema_version": SCHEMA_VERSION + 1}
    document.write_text(json.dumps(newer))
    (results / "foreign.txt").write_text("hello")
    (results / "empty").mkdir()
    return results


def test_plot_names_what_it_cannot_read_and_draws_the_rest(call, damaged, tmp_path):
    for given in (("--results", damaged), (damaged,)):
        code, out, err = call("plot", *given, "--out", tmp_path / "f", "--figure", "step-time")
        assert code == 0
        assert len(out.splitlines()) == 3
        for named in ("000000.parquet", "newer than", "foreign.txt", "empty"):
            assert sum(named in line for line in err.splitlines()) == 1, err
    line = one_sentence(*call("plot", names(damaged)["full"]))
    assert "newer than" in line


def test_compare_passes_over_what_it_cannot_read(call, damaged):
    paths = names(damaged)
    given = [paths["baseline"], paths["full"]]
    assert "newer than" in one_sentence(*call("compare", *given))
    code, out, err = call("compare", *given, paths["baseline"])
    assert code == 0
    assert "full" not in out
    assert "newer than" in err
    assert "newer than" in one_sentence(*call("show", paths["full"]))


def test_report_and_plot_take_reproduced_values(call, tmp_path):
    from mimose_bench.experiments.figures import fig3
    from mimose_bench.experiments.files import write_json

    measured = {
        dataset: {p.input_size: p.peak_bytes for p in fig3.split(dataset)[0]}
        for dataset in fig3.QUADRATICS
    }
    values = tmp_path / "values"
    values.mkdir()
    write_json(values / "fig3.json", fig3.judge(measured, "simulated v100-32gb").to_json())
    (values / "fig9.json").write_text("{")
    code, out, err = call("report", values, "--out", tmp_path / "report")
    assert code == 0
    assert "fig9.json is damaged" in err
    files = [str(tmp_path / "report" / name) for name in ("report.html", "report.md")]
    assert out.splitlines()[:2] == files
    assert "<svg" in (tmp_path / "report" / "report.html").read_text()
    code, out, err = call("plot", values, "--out", tmp_path / "f", "--figure", "fig3")
    assert code == 0
    assert [Path(line).name for line in out.splitlines()] == [
        f"unchecked-memory.{kind}" for kind in ("png", "pdf", "svg")
    ]
    assert "no reproduced values in" in one_sentence(*call("report", tmp_path / "f"))


def test_report_and_plot_name_values_they_cannot_use_and_report_checks_that_failed(call, tmp_path):
    from mimose_bench.experiments.figures.result import Reproduction
    from mimose_bench.experiments.files import write_json

    good = Reproduction(name="static", title="t", source="s", device_label="d", rows=()).to_json()
    bad = {
        "newer": {**good, "schema_version": 99},
        "zero": {**good, "schema_version": 0},
        "typed": {**good, "notes": "a note"},
        "cut": {key: value for key, value in good.items() if key != "title"},
    }
    values = tmp_path / "values"
    values.mkdir()
    for name, document in bad.items():
        write_json(values / f"{name}.json", document)
    said = one_sentence(*call("report", values, "--out", tmp_path / "report"))
    assert all(f"{name}.json" in said for name in bad)
    assert "make them with" not in said
    write_json(values / "static.json", good)
    write_json(values / "fig9.json", {"schema_version": 2, "name": "fig9", "error": "no memory"})
    code, out, err = call("report", values, "--out", tmp_path / "report")
    assert code == 0
    assert all(f"{name}.json" in err for name in bad)
    assert "warning: fig9 failed: no memory" in err
    for file in out.splitlines():
        text = Path(file).read_text(encoding="utf-8")
        assert "Failed:" in text
        assert "(no memory)" in text
    write_json(values / "fig4.json", {**good, "name": "fig4"})  # without the curves it draws
    code, _, err = call("report", values, "--out", tmp_path / "report")
    assert (code, "the figure of fig4 could not be drawn" in err) == (0, True)
    code, _, err = call("plot", values, "--out", tmp_path / "f")
    assert code == 1  # No figure is drawn of what is left.
    assert all(f"{name}.json" in err for name in bad)
    assert "warning: the figure of fig4" in err
    code, _, err = call("plot", values, "--out", tmp_path / "f", "--figure", "fig4")
    assert (code, "repeat the check" in err) == (1, True)


def test_a_closed_stdout_is_no_traceback() -> None:
    script = f"exec 1>&-; exec {sys.executable} -m mimose_bench.cli list"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_plan_of_a_hundred_thousand_million_blocks_is_refused(tmp_path) -> None:
    arguments = [
        "run",
        "--scale",
        "tiny",
        "--planner",
        "fixed",
        "--plan",
        "recompute 0-99999999999",
    ]
    command = [sys.executable, "-m", "mimose_bench.cli", *arguments, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_is_one_sentence(call, monkeypatch, tmp_path):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "run.json"))

    monkeypatch.setattr("mimose_bench.experiments.doctor.examine", full)
    code, _, err = call("doctor")
    assert code == 1
    (line,) = err.splitlines()
    assert f"cannot read or write {tmp_path}/run.json (No space left on device)" in line
    assert "name another folder with --out" in line


def test_a_working_folder_that_is_gone_is_one_sentence(call, monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = call("list")
    assert code == 1
    assert err == "mimose-bench: the working folder is not there any more: change to another one\n"
