import contextlib
import threading
import time

import pytest

from mimose_bench.experiments.data.prefetch import prefetch


def _running():
    return [t for t in threading.enumerate() if t.name == "batch-prefetch"]


def test_keeps_the_order_and_ends():
    assert list(prefetch(iter(range(100)), depth=3)) == list(range(100))
    assert list(prefetch(iter(()))) == []
    assert not _running()


def test_items_are_computed_in_the_thread_within_the_context():
    inside = threading.local()
    entered = []

    @contextlib.contextmanager
    def context():
        inside.value = True
        entered.append(threading.current_thread())
        yield
        inside.value = False

    def items():
        for _ in range(3):
            yield inside.value

    assert list(prefetch(items(), context=context)) == [True] * 3
    assert threading.main_thread() not in entered
    assert len(entered) == 4  # once more to find the end


def test_works_ahead_but_not_beyond_its_depth():
    made = []

    def items():
        for number in range(20):
            made.append(number)
            yield number

    stream = prefetch(items(), depth=2)
    assert next(stream) == 0
    deadline = time.monotonic() + 10
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]  # one handed over, two waiting, one in hand
    stream.close()


def test_an_error_arrives_after_the_items_before_it():
    def items():
        yield 1
        raise OSError("disk gone")

    stream = prefetch(items())
    assert next(stream) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(stream)
    assert not _running()


def test_closing_early_ends_the_thread():
    stream = prefetch(iter(range(1000)), depth=1)
    assert next(stream) == 0
    assert len(_running()) == 1
    stream.close()
    assert not _running()
