import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mimose_bench.experiments.data.order import epoch_batches


@given(
    num_examples=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    steps=st.integers(0, 30),
    seed=st.integers(0, 3),
)
def test_every_epoch_visits_each_example_once(num_examples, batch_size, steps, seed):
    batches = list(epoch_batches(num_examples, batch_size, steps, seed))
    assert len(batches) == steps
    per_epoch = -(-num_examples // batch_size)
    for epoch in range(steps // per_epoch):
        part = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert {number for number, _ in part} == {epoch}
        visited = np.concatenate([chosen for _, chosen in part])
        assert sorted(visited.tolist()) == list(range(num_examples))
        assert {len(chosen) for _, chosen in part[:-1]} <= {batch_size}
        assert len(part[-1][1]) == (num_examples % batch_size or batch_size)


def test_order_changes_with_epoch_and_seed_only():
    def order(seed):
        return [chosen.tolist() for _, chosen in epoch_batches(20, 20, 2, seed)]

    np.random.seed(1)
    before = order(5)
    np.random.seed(2)
    assert order(5) == before
    assert before[0] != before[1]
    assert order(6)[0] != before[0]
