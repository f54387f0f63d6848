"""What all tasks over text have in common."""

import numpy as np
import pytest
import torch

from mimose.runtime.blocks import find_blocks
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.tasks import TaskOptions, make_task

NAMES = ("qa-xlnet", "tc-bert", "mc-roberta", "tr-t5")
MODELS = {
    # name: millions of parameters (the paper's Table II where it says), blocks, samples, longest
    "qa-xlnet": (119, 12, 16, (16, 512)),
    "tc-bert": (108, 12, 32, (32, 332)),
    "mc-roberta": (125, 12, 16, (64, 145)),
    "tr-t5": (223, 24, 8, (8, 460, 512)),
}
SIZES = {
    "qa-xlnet": [(1, 8), (3, 128)],
    "tc-bert": [(1, 8), (8, 77)],
    "mc-roberta": [(4, 8), (12, 64)],
    "tr-t5": [(1, 8, 96), (3, 96, 96)],
}
WRONG = {
    "qa-xlnet": [(4,), (0, 64), (4, 7), (4, 129), (4, 64, 64)],
    "tc-bert": [(4,), (0, 64), (4, 7), (4, 129)],
    "mc-roberta": [(6, 32), (4, 65)],
    "tr-t5": [(4, 64), (4, 64, 64), (4, 97, 96), (0, 64, 96)],
}


def _task(name, **options):
    return make_task(name, TaskOptions(**{"data": "synthetic", "scale": "tiny", **options}))


def _equal(left: Batch, right: Batch) -> bool:
    return left.size == right.size and all(
        torch.equal(left.tensors[k], right.tensors[k]) for k in left.tensors | right.tensors
    )


def _cases(table):
    return [(name, size) for name, sizes in table.items() for size in sizes]


@pytest.mark.parametrize("name", NAMES)
def test_full_scale_is_the_papers_model(name):
    task = _task(name, scale="full")
    with torch.device("meta"):
        model = task.build_model()
    parameters, blocks, batch_size, longest = MODELS[name]
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == parameters
    assert len(find_blocks(model)) == blocks
    assert (task.batch_size, task.longest()) == (batch_size, longest)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.training


@pytest.mark.parametrize("name", NAMES)
def test_small_is_as_deep_and_as_long_as_full(name):
    small, full = (_task(name, scale=s) for s in ("small", "full"))
    for field in ("num_layers", "max_length", "vocab_size", "num_examples"):
        assert small.settings()[field] == full.settings()[field]
    assert small.longest()[1:] == full.longest()[1:]


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_batches(name):
    task = _task(name)
    steps = task.epoch_steps + 2
    batches = list(task.batches(steps))
    assert list(task.sizes(steps)) == [batch.size for batch in batches]
    for batch in batches:
        rows, *lengths = batch.size
        assert batch.input_size == rows * sum(lengths)
        assert 0 < batch.num_tokens < batch.input_size
        assert rows == batch.num_samples * task.rows_per_sample
        assert all(x <= most for x, most in zip(batch.size, task.longest()))
    # An epoch's last batch is smaller, and the next one begins with full ones again.
    numbers = [batch.num_samples for batch in batches]
    assert numbers[-3:] == [3, task.batch_size, task.batch_size]
    assert {*numbers[:-3]} == {task.batch_size}


@pytest.mark.parametrize("name", NAMES)
def test_batches_depend_on_the_seed_alone(name):
    first, second = (list(_task(name, seed=1).batches(4)) for _ in range(2))
    other = next(_task(name, seed=2).batches(1))
    assert all(map(_equal, first, second))
    assert not _equal(first[0], other)


@pytest.mark.parametrize(("name", "size"), _cases(SIZES))
def test_example_batch_has_the_size_asked_for(name, size):
    task = _task(name)
    batch = task.example_batch(size)
    drawn = next(task.batches(1))
    assert batch.size == size
    assert {k: v.dtype for k, v in batch.tensors.items()} == {
        k: v.dtype for k, v in drawn.tensors.items()
    }
    assert task.loss(task.build_model(), batch.tensors).isfinite()


@pytest.mark.parametrize(("name", "size"), _cases(WRONG))
def test_impossible_example_batch_is_refused(name, size):
    with pytest.raises(ValueError, match=r"tokens at scale tiny[^\n]*, not \("):
        _task(name).example_batch(size)


@pytest.mark.parametrize("name", NAMES)
def test_size_bins_are_legal_sizes_of_the_distribution(name):
    task = _task(name)
    bins = task.size_bins()
    assert sum(b.share for b in bins) == pytest.approx(1.0)
    assert {b.size[0] for b in bins} == {task.longest()[0]}
    assert [b.size[1] for b in bins] == sorted({b.size[1] for b in bins})
    drawn = np.array([size[1] for size in task.sizes(1000)])
    assert sum(b.share * b.size[1] for b in bins) == pytest.approx(drawn.mean(), rel=0.05)
    for chosen in (bins[0], bins[-1]):
        assert task.example_batch(chosen.size).size == chosen.size


@pytest.mark.parametrize("name", ["tc-bert", "mc-roberta", "qa-xlnet"])
def test_a_length_is_what_a_user_means_by_a_size(name):
    task = _task(name)
    assert task.parse_size(" 40 ") == (task.longest()[0], 40)
    assert task.describe_size(task.parse_size("40")) == "40"
    with pytest.raises(ValueError, match="is a number of tokens, not '40x40'"):
        task.parse_size("40x40")


@pytest.mark.parametrize(
    ("name", "data"),
    [("qa-bert", "SQuAD"), ("qa-xlnet", "SQuAD")],
)
def test_the_papers_histogram_is_the_data_sets(name, data):
    assert _task(name).dataset == data
    assert _task(name).paper_lengths() is not None


def test_attention_that_xlnet_lacks_is_refused():
    with pytest.raises(ValueError, match="qa-xlnet has eager attention only"):
        _task("qa-xlnet", attention="sdpa")


FILES = {
    "qa-xlnet": ("train.json", None),
    "tc-bert": (
        "train.tsv",
        "question1\tquestion2\tlabel\n"
        "who built the old mill?\twhen was the mill built?\t0\n"
        "where is the bridge?\twhere is the stone bridge?\t1\n"
        "was it the river?\twho runs past the mill?\t0\n",
    ),
    "mc-roberta": (
        "train.csv",
        "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
        "the river runs,it,is old.,is a town past a mill.,was built.,runs,1\n"
        "the old mill,who,built it?,runs?,is stone?,was in town?,0\n"
        "monks built it,the bridge,runs past,was built by monks.,is old,is,3\n",
    ),
    "tr-t5": (
        "train.json",
        "".join(
            f'{{"translation": {{"en": "the {a} runs past the town", "fr": "{b}"}}}}\n'
            for a, b in (("river", "it is the river"), ("mill", "mill"), ("monks", "in 1812"))
        ),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_trains_on_a_file(name, squad, write_squad, vocab_path, tmp_path):
    file, content = FILES[name]
    path = write_squad(squad) if content is None else tmp_path / file
    if content is not None:
        path.write_text(content)
    task = _task(name, data=str(path), batch_size=2)
    assert (task.data_source.kind, task.num_examples) == ("path", 3)
    batches = list(task.batches(4))
    assert [b.num_samples for b in batches] == [2, 1, 2, 1]
    assert [b.size for b in batches] == list(task.sizes(4))
    longest = task.longest()
    assert max(b.size[1] for b in batches) == longest[1]
    vocab_size = len(vocab_path.read_text().split())
    model = task.build_model()
    assert model.config.vocab_size == task.settings()["vocab_size"] == vocab_size
    size = (longest[0], 20, *longest[2:])
    for batch in (*batches, task.example_batch(size)):
        assert task.loss(model, batch.tensors).isfinite()
