"""Whether an optimizer has state of a model's parameters, found without a word from the loop."""

import threading

import torch

from mimose.runtime.optimizers import with_state


class Own(torch.optim.SGD):
    """A user's own class."""


def test_state_is_found_in_any_class_of_optimizer():
    model, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    optimizer = Own(model.parameters(), lr=0.1, momentum=0.9)
    assert not with_state(model.parameters())
    model.weight.grad = torch.ones(3, 3)
    optimizer.step()
    assert with_state(model.parameters())
    assert not with_state(other.parameters())


def test_looking_disturbs_no_thread_that_makes_a_tuple():
    """As a thread that reads data ahead does, of a generator: its tuple must be nobody else's."""
    ended, errors = threading.Event(), []

    def make_tuples():
        while not ended.is_set():
            try:
                tuple(i for i in range(2000))
            except SystemError as error:
                errors.append(error)

    thread = threading.Thread(target=make_tuples)
    thread.start()
    model = torch.nn.Linear(3, 3)
    for _ in range(5):
        with_state(model.parameters())
    ended.set()
    thread.join()
    assert errors == []
