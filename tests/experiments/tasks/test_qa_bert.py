import subprocess
import sys

import pytest
import torch

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.paper import length_histogram
from mimose_bench.experiments.tasks import TASKS, TaskOptions, make_task


def _task(**options):
    return make_task("qa-bert", TaskOptions(**{"data": "synthetic", **options}))


def _tiny(**options):
    return _task(**{"scale": "tiny", **options})


def _equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_table_of_tasks_needs_no_torch():
    code = "import sys, mimose_bench.experiments.tasks as t; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert TASKS["qa-bert"].title == "QA-Bert"


def test_unknown_task_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"bert-qa.*did you mean 'qa-bert'\? There are mc-roberta, "
    ):
        make_task("bert-qa")
    with pytest.raises(ValueError, match=r"qa-bart.*did you mean 'qa-bert'"):
        make_task("qa-bart")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "huge"}, "--scale is one of full, small, tiny, not 'huge'"),
        ({"attention": "flash"}, "--attention is eager or sdpa"),
        ({"batch_size": 0}, "--batch-size is at least 1"),
        *(({name: ""}, f"--{name} is empty") for name in ("data", "vocab", "weights", "optimizer")),
        ({"lr": float("nan")}, "--lr is a positive number"),
        ({"seed": -1}, "--seed is zero or more"),
        ({"vocab": "vocab.txt"}, "--vocab belongs to --data PATH"),
        ({"weights": "pretrained"}, "--weights pretrained needs --scale full"),
        ({"data": "absent.json"}, "there is no data file absent.json"),
    ],
)
def test_wrong_options_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        _tiny(**options)


@pytest.mark.parametrize(
    ("scale", "steps"),
    [
        ("tiny", 150),
        pytest.param("small", 200, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_loss_falls_on_synthetic_data(scale, steps):
    task = _task(scale=scale)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = task.optimizer(model)
    losses = []
    for batch in task.batches(steps):
        loss = task.loss(model, batch.tensors)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert sum(losses[:5]) / 5 > 3
    assert sum(losses[-20:]) / 20 < 0.5


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_model_is_as_asked(attention):
    model = _tiny(attention=attention).build_model()
    assert model.config._attn_implementation == attention
    assert model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert len(model.bert.encoder.layer) == 4


def test_full_scale_is_bert_base():
    task = _task()
    with torch.device("meta"):
        model = task.build_model()
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == 109
    assert (task.batch_size, task.longest()) == (12, (12, 512))
    assert task.optimizer(model).param_groups[0]["lr"] == 3e-5
    assert task.settings()["stride"] == 128


def test_small_is_as_deep_and_as_long_as_full():
    small, full = (_task(scale=s) for s in ("small", "full"))
    for field in ("num_layers", "max_length"):
        assert small.settings()[field] == full.settings()[field]
    assert small.optimizer(torch.nn.Linear(1, 1)).param_groups[0]["lr"] == 3e-4


def test_options_override_the_scale():
    task = _tiny(batch_size=3, lr=0.5)
    assert task.batch_size == 3
    assert task.optimizer(torch.nn.Linear(1, 1)).param_groups[0]["lr"] == 0.5
    assert {batch.size[0] for batch in task.batches(5)} == {3}


def test_batches_are_padded_to_their_longest():
    task = _tiny()
    for batch in task.batches(8):
        ids, mask = batch.tensors["input_ids"], batch.tensors["attention_mask"]
        assert batch.size == tuple(ids.shape) == tuple(mask.shape)
        assert mask.sum(1).max() == batch.size[1]
        assert batch.num_tokens == mask.sum() < batch.input_size == ids.numel()
        assert torch.equal(ids == 0, mask == 0)
        assert not batch.tensors["token_type_ids"][mask == 0].any()
        assert batch.num_samples == len(batch.tensors["start_positions"])


def test_batches_depend_on_the_seed_alone():
    first = [b.tensors for b in _tiny(seed=1).batches(5)]
    torch.manual_seed(99)
    state = torch.get_rng_state()
    second = [b.tensors for b in _tiny(seed=1).batches(5)]
    other = [b.tensors for b in _tiny(seed=2).batches(5)]
    assert all(map(_equal, first, second))
    assert not _equal(first[0], other[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_sizes_are_those_of_the_batches():
    task = _tiny()
    assert list(task.sizes(60)) == [batch.size for batch in task.batches(60)]
    assert {size[0] for size in task.sizes(60)} == {4, 3}  # 203 examples: the last batch is smaller


@pytest.mark.parametrize("size", [(1, 8), (4, 77), (3, 128)])
def test_example_batch_has_the_size_asked_for(size):
    task = _tiny()
    batch = task.example_batch(size)
    assert batch.size == size == tuple(batch.tensors["input_ids"].shape)
    assert batch.tensors.keys() == next(task.batches(1)).tensors.keys()
    assert task.loss(task.build_model(), batch.tensors).isfinite()


@pytest.mark.parametrize("size", [(4,), (0, 64), (4, 7), (4, 129), (4, 64, 64)])
def test_impossible_example_batch_is_refused(size):
    with pytest.raises(ValueError, match=r"8 to 128 tokens at scale tiny"):
        _tiny().example_batch(size)


def test_trains_on_a_squad_file(squad, write_squad, vocab_path, caplog):
    squad["data"][0]["paragraphs"][0]["qas"].append({"id": "bad", "question": "?"})
    task = _tiny(data=str(write_squad(squad)), batch_size=2)
    assert task.data_source.kind == "path"
    assert task.data_source.notes == ("left out 1 of 4 records: 1 without an answer (bad)",)
    assert "left out 1 of 4 records" in caplog.text
    batches = list(task.batches(4))
    assert [b.size[0] for b in batches] == [2, 1, 2, 1]
    model = task.build_model()
    assert model.config.vocab_size == len(vocab_path.read_text().split())
    assert task.longest()[1] == max(b.size[1] for b in batches)
    for batch in (*batches, task.example_batch((2, 32))):
        assert task.loss(model, batch.tensors).isfinite()


def test_vocabulary_may_lie_elsewhere(squad, write_squad, vocab_path, tmp_path):
    elsewhere = tmp_path / "other" / "words.txt"
    elsewhere.parent.mkdir()
    vocab_path.rename(elsewhere)
    data = str(write_squad(squad))
    with pytest.raises(ValueError, match=r"no vocabulary next to .*--vocab"):
        _tiny(data=data)
    assert _tiny(data=data, vocab=str(elsewhere)).settings()["num_examples"] == 3


def test_without_the_hub_auto_is_synthetic_and_says_so(monkeypatch, tmp_path):
    import datasets

    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    source = _tiny(data="auto").data_source
    assert source.kind == "synthetic"
    assert source.reason.startswith("auto: the hub does not answer")
    with pytest.raises(ValueError, match="use --data synthetic or --data PATH"):
        _tiny(data="hub")


def test_pretrained_without_hub_or_cache_is_one_sentence(monkeypatch):
    class Absent:
        @staticmethod
        def from_pretrained(name, **options):
            raise OSError(f"{name} is not here\nand a long explanation")

    monkeypatch.setattr("transformers.BertForQuestionAnswering", Absent)
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    task = _task(weights="pretrained")
    with pytest.raises(ValueError, match=r"is not cached here: use --weights random or [^\n]*$"):
        task.build_model()


def test_weights_from_a_folder(tmp_path):
    task = _tiny()
    torch.manual_seed(7)
    saved = task.build_model()
    saved.save_pretrained(tmp_path)
    loaded = _tiny(weights=str(tmp_path), attention="sdpa").build_model()
    assert _equal(dict(saved.state_dict()), dict(loaded.state_dict()))
    assert loaded.training
    assert loaded.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match="knows 1024 tokens and the vocabulary has 30522"):
        _task(weights=str(tmp_path)).build_model()


def test_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        _tiny(weights=str(tmp_path)).build_model()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="no model could be loaded from"):
        _tiny(weights=str(tmp_path)).build_model()


@pytest.mark.parametrize("foreach", [None, True, False])
def test_the_optimizers_form_is_handed_on(foreach):
    optimizer = _tiny().optimizer(torch.nn.Linear(1, 1), foreach=foreach)
    assert optimizer.defaults["foreach"] is foreach


def test_the_bins_are_those_of_the_papers_histogram_at_full_scale():
    bins = _task().size_bins()
    shares = [s for s in length_histogram("SQuAD").shares if s > 0]
    assert [b.share for b in bins] == pytest.approx(shares)
    assert bins[-1].size == (12, 512)
