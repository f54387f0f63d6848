import numpy as np
import pytest
import torch

from mimose_bench.experiments.tasks import TaskOptions, make_task


def _task(scale="tiny", **extra):
    return make_task("tr-t5", TaskOptions(scale=scale, data="synthetic", extra=extra))


def test_labels_are_padded_to_the_maximum_as_in_the_released_script():
    for batch in _task().batches(5):
        assert batch.tensors["labels"].shape == (batch.num_samples, 96)
        assert batch.size == (*batch.tensors["input_ids"].shape, 96)
    assert _task("full").settings()["options"] == {"labels": "max"}


def test_labels_may_be_padded_to_the_longest():
    task = _task(labels="longest")
    lengths = {batch.size[2] for batch in task.batches(8)}
    assert len(lengths) > 3
    assert all((b.tensors["labels"] >= 0).sum(1).max() == b.size[2] for b in task.batches(3))
    assert list(task.sizes(8)) == [batch.size for batch in task.batches(8)]
    assert task.example_batch((3, 40, 17)).size == (3, 40, 17)
    with pytest.raises(ValueError, match="8 to 96 and 8 to 96 tokens at scale tiny"):
        task.example_batch((3, 40, 97))


def test_what_is_padding_is_neither_read_nor_predicted():
    batch = next(_task().batches(1))
    ids, mask, labels = (batch.tensors[k] for k in ("input_ids", "attention_mask", "labels"))
    assert torch.equal(ids == 0, mask == 0)
    assert torch.equal(labels == -100, labels < 0)
    assert batch.num_tokens == mask.sum() + (labels >= 0).sum()
    for rows in (ids, labels):
        ends = (rows == 1).sum(1)
        assert ends.tolist() == [1] * batch.num_samples


def test_a_word_has_one_translation():
    lexicon = {}
    for batch in _task(labels="longest").batches(20):
        for source, target in zip(batch.tensors["input_ids"], batch.tensors["labels"]):
            first = int(source[5])  # the first word after the prompt
            lexicon.setdefault(first, set()).add(int(target[0]))
    assert len(lexicon) > 5
    assert all(len(found) == 1 for found in lexicon.values())


def test_targets_are_longer_than_their_sources():
    ratios = [
        (len(e.target) - 1) / (len(e.source) - 6)
        for examples in _task("full").data.batches(8, 200, 0)
        for e in examples
        if len(e.source) > 20
    ]
    assert np.mean(ratios) == pytest.approx(1.15, rel=0.01)
    assert 0.03 < np.std(ratios) < 0.15


@pytest.mark.parametrize(
    ("labels", "text", "expected"),
    [
        ("max", "40", (4, 40, 96)),
        ("max", "40x96", (4, 40, 96)),
        ("longest", "40 x 20", (4, 40, 20)),
    ],
)
def test_a_size_in_words(labels, text, expected):
    task = _task(labels=labels)
    assert task.parse_size(text) == expected
    assert task.describe_size(expected) == f"{expected[1]}x{expected[2]}"
    assert task.extents(expected) == {"sequence_length": expected[1], "decoder_length": expected[2]}


@pytest.mark.parametrize(
    ("labels", "text", "message"),
    [
        ("max", "40x20", "padded to 96 tokens: write 40, or use labels=longest"),
        ("longest", "40", "has the decoder's length, too: write 40x128"),
        ("max", "a lot", "is 384 or 384x128, in tokens, not 'a lot'"),
    ],
)
def test_sizes_that_there_are_not(labels, text, message):
    with pytest.raises(ValueError, match=message):
        _task(labels=labels).parse_size(text)


def test_bins_know_how_long_the_targets_are():
    bins = _task(labels="longest").size_bins()
    assert sum(b.share for b in bins) == pytest.approx(1.0)
    assert len({b.size[2] for b in bins}) > 5
    mean = [sum(b.share * b.size[i] for b in bins) for i in (1, 2)]
    source, target = mean[0] - 6, mean[1] - 1  # words
    assert 1.0 < target / source < 1.4


def test_unknown_options_are_one_sentence():
    with pytest.raises(ValueError, match="option labels of task tr-t5 is max or longest"):
        _task(labels="shortest")
    with pytest.raises(ValueError, match=r"lables.*did you mean 'labels'"):
        _task(lables="max")


def test_nothing_is_cached_for_generating(monkeypatch):
    task = _task()
    model = task.build_model()
    seen = []
    model.decoder.register_forward_hook(lambda module, inputs, out: seen.append(out))
    task.loss(model, next(task.batches(1)).tensors)
    assert seen[0].past_key_values is None
