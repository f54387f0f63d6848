import pytest
import torch

from mimose_bench.experiments.tasks import TaskOptions, make_task


def _task(**options):
    return make_task("mc-roberta", TaskOptions(**{"scale": "tiny", "data": "synthetic", **options}))


def test_four_choices_a_sample_are_four_rows():
    for batch in _task().batches(5):
        ids, mask = batch.tensors["input_ids"], batch.tensors["attention_mask"]
        assert ids.shape == mask.shape == (batch.num_samples, 4, batch.size[1])
        assert batch.size[0] == 4 * batch.num_samples
        assert torch.equal(ids == 1, mask == 0)
        assert (mask.diff(dim=2) <= 0).all()
        assert mask.sum(2).max() == batch.size[1]
        assert batch.num_tokens == mask.sum()


def test_only_the_right_ending_is_marked():
    for batch in _task().batches(5):
        marked = (batch.tensors["input_ids"] == 4).sum(2)
        assert marked.sum(1).eq(1).all()
        assert torch.equal(marked.argmax(1), batch.tensors["labels"])


def test_choices_share_their_context_and_end_apart():
    for example in next(iter(_task(scale="full").data.batches(16, 1, 0))):
        choices = example.choices
        told = int(example.splits[0])
        assert all(c[:told].tolist() == choices[0][:told].tolist() for c in choices)
        assert all(c[told - 1] == c[told] == c[-1] == 2 for c in choices)
        assert max(map(len, choices)) == example.lengths[0]


def test_positions_are_counted_from_the_padding_on():
    with torch.device("meta"):
        model = _task(scale="full").build_model()
    assert model.config.max_position_embeddings == 514
    assert model.config.type_vocab_size == 1
    assert model.config.layer_norm_eps == 1e-5


def test_weights_from_a_folder_must_pad_as_the_data_does(tmp_path):
    model = _task().build_model()
    model.save_pretrained(tmp_path)
    _task(weights=str(tmp_path)).build_model()
    model.config.pad_token_id = 0
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="use the vocabulary it was trained with"):
        _task(weights=str(tmp_path)).build_model()
