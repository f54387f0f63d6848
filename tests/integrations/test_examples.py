"""Each example: the losses of plain training, and again when it is interrupted and resumed."""

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("default")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDS = {
    "plain_loop": "torch",
    "with_trainer": "accelerate",
    "with_accelerate": "accelerate",
    "with_lightning": "lightning",
    "with_fabric": "lightning",
    "with_lora": "peft",
}
QUICK = ("with_trainer",)


def sheltered(capfd):
    return int(re.search(r"of which (\d+) sheltered", capfd.readouterr().out)[1])


def cases(names):
    params = []
    for name in names:
        missing = importlib.util.find_spec(NEEDS[name]) is None
        marks = [] if name in QUICK else [pytest.mark.slow]
        marks.append(pytest.mark.skipif(missing, reason=f"{NEEDS[name]} is not installed"))
        params.append(pytest.param(name, marks=marks))
    return params


@pytest.mark.parametrize("name", cases(NEEDS))
def test_an_example_trains_as_without_and_goes_on_where_it_stopped(example, name, tmp_path, capfd):
    train = example(name).train
    part = {"epochs": 1} if name == "with_lightning" else {"steps": 8}
    plainly, whole, parts = (tmp_path / name for name in ("plain", "whole", "parts"))
    for folder in (plainly, whole, parts):
        folder.mkdir()
    plain = train(plainly, budget=None)
    assert len(plain) == 16
    assert train(whole) == plain
    said = capfd.readouterr().out
    assert "violations: 0" in said
    assert re.search(r"^peak: .* MiB allocated, .* MiB reserved$", said, flags=re.M)
    first = train(parts, **part)
    assert first == plain[:8]
    learning = sheltered(capfd)
    assert 3 <= learning < 8
    rest = train(parts, resume=True)
    # All but Accelerate's and Lightning's keep the first part's losses in their checkpoint.
    assert (rest if len(rest) == 16 else first + rest) == plain
    # A length that is too far from those seen before is measured, too, but nothing is twice.
    assert sheltered(capfd) < learning


def test_every_example_is_tested():
    # Those of several processes in tests/distributed.
    together = {"with_ddp", "with_fsdp2"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NEEDS, "generated", *together}


def test_those_of_several_processes_say_how_to_start_them(generated, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("sys.argv", ["examples/with_ddp.py"])
    with pytest.raises(SystemExit, match=r"torchrun --nproc-per-node 2 examples/with_ddp\.py$"):
        generated.join_processes()
