import numpy as np
import torch

from mimose_bench.experiments.tasks import TaskOptions, make_task


def _task(scale="tiny"):
    return make_task("tc-bert", TaskOptions(scale=scale, data="synthetic"))


def test_pairs_are_padded_on_the_right():
    for batch in _task().batches(6):
        ids, mask, types = (
            batch.tensors[k] for k in ("input_ids", "attention_mask", "token_type_ids")
        )
        assert batch.size == tuple(ids.shape) == tuple(mask.shape)
        assert torch.equal(ids == 0, mask == 0)
        assert (mask.diff(dim=1) <= 0).all()
        assert (ids == 2).sum(1).eq(2).all()
        for row in range(batch.num_samples):
            assert torch.unique_consecutive(types[row, mask[row] == 1]).tolist() == [0, 1]
        assert not types[mask == 0].any()


def test_both_sentences_of_a_duplicate_are_marked():
    labels = []
    for batch in _task("full").batches(40):
        ids, types = batch.tensors["input_ids"], batch.tensors["token_type_ids"]
        for kind in (0, 1):
            marked = ((ids == 3) & (types == kind)).sum(1)
            assert torch.equal(marked, batch.tensors["labels"])
        labels += batch.tensors["labels"].tolist()
    assert 0.33 < np.mean(labels) < 0.41
