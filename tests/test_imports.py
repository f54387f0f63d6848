import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def checker():
    spec = importlib.util.spec_from_file_location(
        "check_imports", ROOT / "scripts/check_imports.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_project_keeps_to_its_arrows(checker):
    assert list(checker.problems(ROOT)) == []


def test_every_module_is_looked_at(checker):
    names = {name for name, _ in checker.modules(ROOT)}
    assert {"mimose", "mimose.plan", "mimose_bench.cli", "mimose_bench.plots.style"} <= names


@pytest.mark.parametrize(
    ("path", "code", "culprit"),
    [
        ("mimose/handle.py", "import pandas as pd", "pandas"),
        ("mimose/handle.py", "def f():\n    from mimose_bench import plots", "mimose_bench.plots"),
        ("mimose/planners/full.py", "import torch.nn", "torch.nn"),
        ("mimose/planners/full.py", "from mimose.runtime import blocks", "mimose.runtime.blocks"),
        ("mimose/planners/full.py", "from ..runtime.blocks import find", "mimose.runtime.blocks"),
        ("mimose/planners/__init__.py", "from .. import runtime", "mimose.runtime"),
        ("mimose/runtime/executor.py", "import mimose.planners.full", "mimose.planners.full"),
        ("mimose/plan.py", "import numpy", "numpy"),
        ("mimose/costs.py", "from mimose.handle import attach", "mimose.handle.attach"),
        ("mimose/handle.py", "import mimose.integrations.shared", "mimose.integrations.shared"),
        ("mimose/runtime/blocks.py", "def f():\n    import transformers", "transformers"),
        ("mimose/runtime/step.py", "import mimose.distributed.alarm", "mimose.distributed.alarm"),
        ("mimose/planners/full.py", "from mimose import distributed", "mimose.distributed"),
        ("mimose/distributed/alarm.py", "from mimose.runtime import step", "mimose.runtime.step"),
        ("mimose/distributed/alarm.py", "import mimose.handle", "mimose.handle"),
        ("mimose/integrations/shared.py", "from mimose.runtime import step", "mimose.runtime.step"),
        ("experiments/run.py", "from mimose_bench import cli", "mimose_bench.cli"),
        ("plots/loss.py", "import typer", "typer"),
    ],
)
def test_a_wrong_arrow_is_named(checker, tmp_path, path, code, culprit):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(code)
    (line,) = checker.problems(tmp_path)
    assert line.startswith(str(file))
    assert culprit in line


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("mimose/plan.py", "from mimose.costs import Infeasible\nimport dataclasses"),
        ("mimose/runtime/executor.py", "import torch\nfrom mimose.devices import base"),
        ("mimose/__init__.py", "from mimose.integrations.transformers import MimoseCallback"),
        ("mimose/integrations/transformers.py", "import transformers\nfrom mimose import handle"),
        ("mimose/distributed/together.py", "import torch\nfrom mimose.devices import base"),
        ("mimose/handle.py", "from mimose.distributed import together"),
        ("plots/loss.py", "from mimose_bench.experiments import reading"),
        ("cli.py", "import typer\nfrom mimose_bench import plots"),
    ],
)
def test_a_right_arrow_passes(checker, tmp_path, path, code):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    assert list(checker.problems(tmp_path)) == []


def test_its_exit_code_tells(checker, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check_imports", str(tmp_path)])
    assert checker.main() == 0
    (tmp_path / "mimose").mkdir()
    (tmp_path / "mimose/a.py").write_text("import rich")
    assert checker.main() == 1
    assert "rich" in capsys.readouterr().out
