"""The snippets of docs/use.md run as they stand, those of a section one after another."""

import importlib.util
import re
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import mimose

pytestmark = pytest.mark.filterwarnings("default")

PAGE = Path(__file__).resolve().parents[2] / "docs/use.md"
SNIPPET = re.compile(r"^ *```python\n(.*?)^ *```", flags=re.M | re.S)
NEEDS = {
    "Hugging Face's Trainer": "accelerate",
    "Accelerate": "accelerate",
    "Lightning": "lightning",
    "LoRA and frozen layers": "peft",
}
SLOW = ("Lightning", "LoRA and frozen layers", "Several processes")


def sections():
    found = re.split(r"^## (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(found[1::2], found[2::2]))


def cases():
    params = []
    for title, text in sections().items():
        if SNIPPET.search(text) is None:
            continue
        missing = title in NEEDS and importlib.util.find_spec(NEEDS[title]) is None
        marks = [pytest.mark.skipif(missing, reason=f"{NEEDS.get(title)} is not installed")]
        if title in SLOW:
            marks.append(pytest.mark.slow)
        params.append(pytest.param(title, id=title, marks=marks))
    return params


@pytest.mark.parametrize("title", cases())
def test_a_section_runs(generated, example, title, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = generated.Texts(24)
    # Of several lengths, so that what depends on the length can be told.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]["input_ids"]))
    loader = torch.utils.data.DataLoader(
        texts, sampler=order, batch_size=4, collate_fn=generated.collate
    )
    model = generated.build_model()
    names = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "loader": loader,
        "largest": list(loader)[-1],
        "texts": texts,
        "collate": generated.collate,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the libraries that are imported.
        if "arguments" in sections()[title]:
            from transformers import TrainingArguments

            names["arguments"] = TrainingArguments("out", max_steps=2, use_cpu=True, report_to=[])
        if "module," in sections()[title]:
            names["module"] = example("with_lightning").Answering()
    together = title == "Several processes"
    if together:
        names["sharded"] = generated.build_model()
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for code in SNIPPET.findall(sections()[title]):
            exec(compile(textwrap.dedent(code), f"{PAGE.name}, {title}", "exec"), names)
    finally:
        for thing in list(names.values()):
            if type(thing).__name__ in ("Handle", "MimoseCallback"):
                thing.detach()
        if together:
            torch.distributed.destroy_process_group()
    if title == "How much slower am I":
        used = int(re.search(r"(\d+) of 40 batches were used", capsys.readouterr().out)[1])
        assert 20 <= used <= 37  # But for three lengths at least, which were measured.
    if title == "It still runs out of memory":
        assert re.search(r"longest input that fits: \d+", capsys.readouterr().out)


def test_every_line_of_the_summary_is_explained(generated):
    model = generated.build_model()
    texts = [generated.Texts(8)[0]]
    with mimose.attach(model, generated.BUDGET, sheltered=1) as handle:
        for length in (3, 3, 3):
            batch = generated.collate(length * texts)
            model(**batch).loss.backward()
        lines = handle.summary().splitlines()[1:]
    assert len(lines) >= 8
    said = sections()["A loop of your own"].partition("### What the summary says")[2]
    for line in lines:
        assert f"**{line.partition(':')[0]}**" in said, line
