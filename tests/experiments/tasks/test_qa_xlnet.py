import torch

from mimose_bench.experiments.tasks import TaskOptions, make_task


def _batches(number=6):
    task = make_task("qa-xlnet", TaskOptions(scale="tiny", data="synthetic"))
    return list(task.batches(number))


def test_padding_is_on_the_left_and_the_classification_token_last():
    for batch in _batches():
        ids, mask, types, hidden = (
            batch.tensors[k] for k in ("input_ids", "attention_mask", "token_type_ids", "p_mask")
        )
        assert torch.equal(ids == 5, mask == 0)
        assert (mask.diff(dim=1) >= 0).all()
        assert mask.sum(1).max() == batch.size[1]
        assert (ids[:, -1] == 3).all()
        assert (batch.tensors["cls_index"] == batch.size[1] - 1).all()
        for row in range(batch.num_samples):
            # padding, context with its separator, question with its separator, classification
            assert torch.unique_consecutive(types[row, mask[row] == 1]).tolist() == [0, 1, 2]
            assert (types[row, mask[row] == 0] == 3).all()
            separators = (ids[row] == 4).nonzero().flatten().tolist()
            assert [types[row, s].item() for s in separators] == [0, 1]
            answerable = (types[row] == 0) & (ids[row] != 4)
            answerable[-1] = True
            assert torch.equal(hidden[row] == 0, answerable)


def test_the_answers_ends_are_marked_wherever_padding_moves_them():
    for batch in _batches():
        ids, starts, ends = (
            batch.tensors[k] for k in ("input_ids", "start_positions", "end_positions")
        )
        assert (ids.gather(1, starts[:, None]) == 7).all()
        assert (ids.gather(1, ends[:, None]) == 8).all()
        assert (batch.tensors["is_impossible"] == 0).all()


def test_the_head_is_that_of_the_beam_search():
    task = make_task("qa-xlnet", TaskOptions(scale="tiny", data="synthetic"))
    model = task.build_model()
    batch = task.example_batch((3, 40))
    assert (task.loss(model, batch.tensors)).isfinite()
    out = model(**batch.tensors)
    assert out.mems is None
    assert model.config.d_head == 64
    model.eval()
    inputs = {
        k: v for k, v in batch.tensors.items() if k not in ("start_positions", "end_positions")
    }
    assert model(**inputs).start_top_index.shape == (3, 5)


def test_a_window_without_its_answer_is_impossible():
    from mimose_bench.experiments.data.collate import collate_qa_xlnet

    task = make_task("qa-xlnet", TaskOptions(scale="tiny", data="synthetic"))
    (long, *_), (short, *_) = (task.data.examples_of_size(1, (n,), 0) for n in (30, 20))
    last = len(short.tokens) - 1
    batch = collate_qa_xlnet([long, short._replace(start=last, end=last)], 5)
    assert batch.tensors["is_impossible"].tolist() == [0.0, 1.0]
    assert batch.tensors["start_positions"].tolist() == [long.start, 29]
