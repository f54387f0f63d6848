"""Memory that is reached past the dispatcher, and what else no operator's arguments say."""

import copy
import ctypes
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn

import mimose
from mimose.devices import open_device
from mimose.eviction import Eviction
from mimose.runtime.eviction.live import EvictionRuntime
from mimose.runtime.eviction.pointers import storage_of
from mimose.runtime.eviction.settings import Settings

COUNT = 4096
DROPS = Eviction(system="dtr", sampling=False, ignore_small=False, thrash_limit=None)
SWAPS = Eviction(
    system="delta",
    actions="swap",
    synchronous=False,
    sampling=False,
    ignore_small=False,
    thrash_limit=None,
)


class Step:
    """A step without a model of its own, in which storages are evicted at will."""

    def __init__(self, settings, model=None):
        self.device = open_device("cpu")
        self.model = nn.Identity() if model is None else model
        self.runtime = EvictionRuntime(self.device, settings, 1 << 26)

    def __enter__(self):
        self.runtime.start(self.model, (), {})
        return self

    def evict(self):
        count = 0
        self.runtime._bury()
        while self.runtime._engine.evict_one():
            count += 1
        return count

    def __exit__(self, *error):
        if self.runtime.active:
            self.runtime.abandon()
        self.device.close()


@pytest.fixture(params=[DROPS, SWAPS], ids=["dropping", "swapping"])
def step(request):
    with Step(request.param) as step:
        yield step


def there(tensor):
    """Return whether a tensor has memory right now."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            storage_of(tensor).data_ptr()
    except RuntimeError:
        return False
    return True


def written_unseen(tensor):
    """Write 1 to a tensor as a compiled extension does that was handed it: nobody is told."""
    ones = (ctypes.c_float * tensor.numel())(*[1.0] * tensor.numel())
    ctypes.memmove(storage_of(tensor).data_ptr(), ones, ctypes.sizeof(ones))


class TestMemoryAsItWasFound:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.empty(COUNT),
            lambda: torch.empty_like(torch.zeros(COUNT)),
            lambda: torch.zeros(2).new_empty(COUNT),
            lambda: torch.empty_strided((COUNT,), (1,)),
        ],
    )
    def test_it_stays_with_what_was_written_unseen(self, step, make):
        y = make()
        step.evict()
        written_unseen(y)
        doubled = y * 2
        assert step.evict()
        assert not there(doubled)
        assert (doubled + y == 3).all()

    def test_an_update_reads_it(self, step):
        y = torch.empty(COUNT)
        written_unseen(y)
        y.add_(1)
        step.evict()
        assert (y == 2).all()

    @pytest.mark.parametrize(
        "write",
        [
            lambda y: y.fill_(3),
            lambda y: y.copy_(torch.full((COUNT,), 3.0)),
            lambda y: torch.add(torch.ones(COUNT), 2, out=y),
        ],
    )
    def test_once_written_it_is_evicted_like_any_other(self, step, write):
        y = torch.empty(COUNT)
        write(y)
        step.evict()
        assert not there(y)
        assert (y == 3).all()


class TestAddresses:
    def test_memory_is_back_and_stays_where_it_is(self, step):
        a = torch.ones(COUNT) * 2
        step.evict()
        assert not there(a)
        address = a.data_ptr()
        step.evict()
        assert storage_of(a).data_ptr() == address
        assert (np.frombuffer(ctypes.string_at(address, 4 * COUNT), np.float32) == 2).all()

    @pytest.mark.parametrize("constant", [False, True])
    def test_what_is_written_changes_nothing_that_was_made_before(self, step, constant):
        x = torch.arange(COUNT).float()
        with torch.utils._python_dispatch._disable_current_modes():
            outside = x.clone()
        a = outside if constant else x * 2
        before = a + 1
        step.evict()
        a.numpy()[:] = 7
        after = a + 1
        step.evict()
        assert torch.equal(before, (x if constant else 2 * x) + 1)
        assert (after == 8).all()
        assert (a == 7).all()

    def test_nor_does_what_is_written_later_change_what_is_made_in_between(self, step):
        a = torch.ones(COUNT) * 2
        array = a.numpy()
        between = a + 1
        between.mul_(2)
        step.evict()
        array[:] = 7
        assert (between == 6).all()

    def test_a_kernel_may_write_twice(self, step):
        a = torch.zeros(COUNT)
        ctypes.memset(a.data_ptr(), 0, 4 * COUNT)
        first = a + 1
        ones = torch.ones(COUNT)
        ctypes.memmove(a.data_ptr(), ones.data_ptr(), 4 * COUNT)
        second = a + 1
        step.evict()
        assert (first == 1).all()
        assert (second == 2).all()

    @pytest.mark.parametrize(
        "reach",
        [
            lambda t: np.asarray(t),
            lambda t: np.from_dlpack(t),
            lambda t: torch.utils.dlpack.to_dlpack(t),
            lambda t: t._typed_storage(),
            lambda t: t.share_memory_(),
            lambda t: pickle.dumps(t),
            lambda t: torch.save(t, io.BytesIO()),
        ],
    )
    def test_other_ways_come_down_to_the_same(self, step, reach):
        a = torch.ones(COUNT) * 2
        step.evict()
        kept = reach(a)
        step.evict()
        assert there(a)
        assert (a == 2).all()
        del kept

    def test_reading_leaves_it_free_to_go(self, step):
        a = torch.ones(COUNT) * 2
        step.evict()
        assert a.tolist() == [2.0] * COUNT
        step.evict()
        assert not there(a)

    def test_copies_of_the_object(self, step):
        a = torch.ones(COUNT) * 2
        step.evict()
        assert (copy.deepcopy(a) == 2).all()

    def test_other_threads_are_none_of_its_business(self, step):
        a = torch.ones(COUNT) * 2
        thread = threading.Thread(target=a.data_ptr)
        thread.start()
        thread.join()
        step.evict()
        assert not there(a)

    def test_between_steps_torch_is_as_it_was(self):
        names = ("numpy", "data_ptr", "untyped_storage", "tolist")
        own = torch.Tensor.__dict__["__dlpack__"]
        with Step(DROPS) as step:
            other = EvictionRuntime(step.device, DROPS, None)
            other.start(nn.Identity(), (), {})
            other.abandon()
            assert all(name in vars(torch.Tensor) for name in names)
        assert not any(name in vars(torch.Tensor) for name in names)
        assert torch.Tensor.__dict__["__dlpack__"] is own


class ByNumpy(torch.autograd.Function):
    """tanh, forward and backward by NumPy, into memory that PyTorch has only allocated."""

    @staticmethod
    def forward(ctx, a):
        y = torch.empty_like(a)
        np.tanh(a.detach().numpy(), out=y.numpy())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return torch.from_numpy(gradient.numpy() * (1 - y.numpy() ** 2))


class Chain(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.function = function

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(self.function(x)))
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(16, 16, 2, batch_first=True)

    def forward(self, x):
        return self.inner(torch.tanh(x).view(32, 4, 64)[..., :16])[0]


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, 32, sparse=True)
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        rows = x.abs().sum(1).long() % 64
        return torch.tanh(self.layer(torch.tanh(self.words(rows))))


def gradients(build, settings=None):
    """Return the gradients of one pass in which all is evicted before backward, or nothing."""
    torch.manual_seed(0)
    model = build()
    x = torch.linspace(-1, 1, 128 * 64).sin().view(128, 64)
    x = x[:, :32].contiguous() if not isinstance(model, Recurrent) else x
    if settings is None:
        model(x).pow(2).sum().backward()
    else:
        with Step(settings, model) as step:
            loss = model(x).pow(2).sum()
            assert step.evict() > 1
            loss.backward()
            step.runtime.stop()
    return [p.grad.to_dense() for p in model.parameters()]


@pytest.mark.parametrize("settings", [DROPS, SWAPS], ids=["dropping", "swapping"])
@pytest.mark.parametrize(
    "build", [lambda: Chain(ByNumpy.apply), Recurrent, Sparse], ids=["numpy", "lstm", "sparse"]
)
def test_gradients_are_equal(build, settings):
    for plain, seen in zip(gradients(build), gradients(build, settings), strict=True):
        assert torch.equal(plain, seen)


def test_tensors_within_torch_func(step):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    parameters = dict(model.named_parameters())
    x = torch.ones(4, 8) * 0.5

    def loss(parameters, x):
        result = torch.func.functional_call(model, parameters, (x,))
        step.evict()
        return (result + x).sum()

    with torch.utils._python_dispatch._disable_current_modes():
        expected = torch.func.grad(lambda p: loss(p, torch.full((4, 8), 0.5)))(parameters)
    found = torch.func.grad(loss)(parameters, x)
    assert all(torch.equal(found[name], expected[name]) for name in found)


class Named(torch.Tensor):
    """A subclass that leaves operators alone."""


def test_subclasses_that_are_tensors_like_any_other(step):
    a = (torch.ones(COUNT) * 2).as_subclass(Named)
    b = a * 3
    assert step.evict() == 2
    assert not there(b)
    assert type(b) is Named
    assert (b + a == 8).all()
    step.evict()
    b.data_ptr()
    step.evict()
    assert there(b)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_left_alone(step):
    a, b = torch.ones(3, COUNT) * 2, torch.ones(5, COUNT) * 3
    nested = torch.nested.as_nested_tensor([a, b])
    step.evict()
    doubled = nested * 2
    step.evict()
    assert [float(each.mean()) for each in doubled.unbind()] == [4, 6]


class TestSettings:
    def test_operators_run_again_under_those_of_their_own(self, step):
        torch.set_default_dtype(torch.float64)
        try:
            # Nothing among its arguments says of which type the result is.
            shares = torch.arange(COUNT) / COUNT
        finally:
            torch.set_default_dtype(torch.float32)
        step.evict()
        assert shares.dtype == torch.float64
        assert torch.equal(shares, torch.arange(COUNT, dtype=torch.float64) / COUNT)

    def test_they_are_put_back_and_restored(self):
        settings = Settings("cpu")
        torch._C._set_mkldnn_enabled(False)
        with torch.no_grad():
            recorded = settings.read()
            assert settings.read() is recorded
        torch._C._set_mkldnn_enabled(True)
        before = settings.read()
        assert before != recorded
        with settings.put_back(recorded):
            assert not torch._C._get_mkldnn_enabled()
            assert not torch.is_grad_enabled()
        assert settings.read() == before
        with pytest.raises(KeyError), settings.put_back(recorded):
            raise KeyError
        assert torch.is_grad_enabled()

    def test_one_that_pytorch_does_not_tell_is_left_out(self, monkeypatch):
        def refuses():
            raise RuntimeError("mixed names")

        settings = Settings("cpu")
        count = len(settings.read())
        settings._getters[3] = refuses
        assert len(settings.read()) == count - 1


class TestTheEndOfAStep:
    """With 8 activations of 64 KiB that the program keeps, and room for less."""

    @pytest.fixture
    def kept(self):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
        kept = []
        for layer in model:
            layer.register_forward_hook(lambda module, given, output: kept.append(output.detach()))
        x = torch.ones(256, 64)
        model(x)
        expected = [tensor.clone() for tensor in kept]
        kept.clear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with mimose.attach(model, "512KB", "dtr", reserve=0, thrash_limit="none") as handle:
            loss = model(x).pow(2).sum()
            yield handle, kept, expected, loss, optimizer

    def test_detaching_brings_all_back_whatever_the_budget(self, kept):
        handle, tensors, expected, loss, _ = kept
        assert not all(there(tensor) for tensor in tensors)
        handle.detach()
        assert all(map(torch.equal, tensors, expected))
        loss.backward()

    def test_what_is_kept_is_named_and_nothing_is_lost(self, kept):
        handle, tensors, expected, loss, optimizer = kept
        loss.backward()
        with pytest.raises(torch.OutOfMemoryError, match=r"8 of 256 x 64 \(float32\)"):
            optimizer.step()
        assert not all(there(tensor) for tensor in tensors)
        handle.detach()
        assert all(map(torch.equal, tensors, expected))

    def test_letting_go_of_it_is_enough(self, kept):
        handle, tensors, expected, loss, optimizer = kept
        loss.backward()
        with pytest.raises(torch.OutOfMemoryError, match="let go of what is not needed"):
            optimizer.step()
        del tensors[2:]
        optimizer.step()
        assert all(map(torch.equal, tensors, expected))
        assert handle.last_record.outcome == "ok"
