"""Single kinds of operators: all is evicted after one ran, and has to come back the same."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mimose.devices import open_device
from mimose.eviction import Eviction
from mimose.runtime.evicting import NoRoomError
from mimose.runtime.eviction.live import EvictionRuntime
from mimose.runtime.eviction.pointers import storage_of

MIB = 1 << 20
SETTINGS = Eviction(system="dtr", sampling=False, ignore_small=False, thrash_limit=None)


@pytest.fixture
def device():
    device = open_device("cpu")
    yield device
    device.close()


class Watched:
    """A runtime without a model, on which storages are evicted at will."""

    def __init__(self, device, budget=64 * MIB, settings=SETTINGS):
        self.device = device
        self.runtime = EvictionRuntime(device, settings, budget)
        self.engine = self.runtime._engine

    def __enter__(self):
        self.runtime.start(nn.Identity(), (), {})
        return self

    def __exit__(self, *error):
        if self.runtime.active:
            self.runtime.abandon()

    def evict_all(self):
        """Evict all that can be, and return how many storages that was."""
        count = 0
        while self.engine.evict_one():
            count += 1
        return count

    def stop(self):
        return self.runtime.stop()


@pytest.fixture
def watched(device):
    with Watched(device) as watched:
        yield watched


def check(device, function, *given, at_least=1):
    """Compare what ``function`` returns plainly, and with all evicted before each later use.

    ``function`` is a generator that yields wherever all is to be evicted, and returns tensors.
    """
    copies = [t.clone() for t in given]
    torch.manual_seed(3)
    expected = _finish(function(*copies))
    state = torch.get_rng_state()
    copies = [t.clone() for t in given]
    torch.manual_seed(3)
    with Watched(device) as watched:
        evicted = 0
        steps = function(*copies)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found = done.value
                break
            evicted += watched.evict_all()
        evicted += watched.evict_all()
        pinned = watched.runtime.num_pinned
        figures = watched.stop()
    assert evicted >= at_least
    assert figures.num_rematerializations >= at_least
    assert len(found) == len(expected)
    for mine, its in zip(found, expected, strict=True):
        assert torch.equal(mine, its)
    assert torch.equal(torch.get_rng_state(), state)
    for mine, its in zip(copies, given, strict=True):
        assert mine.shape == its.shape
    return pinned


def _finish(steps):
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def numbers(*shape):
    count = torch.Size(shape).numel()
    return torch.linspace(-2, 2, count).sin().reshape(shape)


class TestKinds:
    def test_views_come_back_with_their_storage(self, device):
        def run(x):
            a = x * 2
            views = (a[2:], a.t(), a.view(-1)[3:9], a.detach())
            yield
            return [a, *views, views[0] + 1]

        check(device, run, numbers(8, 8))

    def test_random_operators_draw_the_same_numbers(self, device):
        def run(x):
            a = torch.nn.functional.dropout(x * 2, 0.5)
            b = torch.rand(8) + torch.randn(8)
            c = torch.empty(8).bernoulli_(0.5)
            d = torch.randperm(8)
            yield
            return [a * 1, b * 1, c * 1, d * 1, torch.rand(3)]

        check(device, run, numbers(8, 8))

    def test_a_generator_of_its_own(self, device):
        def run(x):
            generator = torch.Generator().manual_seed(5)
            a = torch.rand(8, generator=generator)
            b = torch.rand(8, generator=generator)
            yield
            return [a + 0, b + 0, torch.rand(2, generator=generator)]

        check(device, run, numbers(2))

    @pytest.mark.parametrize("whole", [True, False])
    def test_changes_in_place(self, device, whole):
        def run(x):
            a = x * 2
            b = a + 1
            yield
            (a if whole else a[1:3]).relu_()
            yield
            a.add_(b)
            yield
            c = a * b
            a.mul_(3)
            yield
            return [a, b, c, a + c]

        check(device, run, numbers(8, 8), at_least=3)

    def test_a_change_that_reads_the_same_storage(self, device):
        def run(x):
            a = x * 2
            a[1:].copy_(a[:-1] * 3)
            yield
            a[0].add_(a[1])
            yield
            return [a]

        check(device, run, numbers(8, 8))

    def test_one_operator_makes_several(self, device):
        def run(x):
            a = x * 2
            parts = torch.split(a, 3)
            values, places = torch.topk(a, 2, dim=1)
            yield
            first = values + 1
            yield
            normed = torch.ops.aten.native_layer_norm(a, [8], None, None, 1e-5)
            ordered = torch.sort(a)
            yield
            return [*parts, values, places, first, *normed, *ordered]

        check(device, run, numbers(8, 8), at_least=3)

    def test_written_to_what_is_given(self, device):
        def run(x):
            a = torch.empty(8, 8)
            torch.mul(x, 2, out=a)
            yield
            b = a + 1
            torch.add(a, b, out=b)
            yield
            grown = torch.empty(0)
            torch.add(a, 1, out=grown)
            yield
            return [a, b, grown, grown * 2]

        check(device, run, numbers(8, 8))

    def test_lists(self, device):
        def run(x):
            a, b = x * 2, x * 3
            sums = torch._foreach_add([a, b], 1.0)
            yield
            c = torch.cat([a, b, *sums])
            d = torch.stack((a, c[:8]))
            yield
            torch._foreach_mul_([a, b], 2.0)
            yield
            return [a, b, c, d, *sums]

        assert check(device, run, numbers(8, 8), at_least=3) == 2

    def test_indices(self, device):
        def run(x):
            a = x * 2
            places = torch.arange(8).flip(0)
            b = a[places]
            c = a[:, places, None]
            d = a[a > 0]
            yield
            a[places[:3]] = 0.0
            a.index_put_((places[:2],), torch.ones(8), accumulate=True)
            yield
            found = (a == 0).nonzero()
            yield
            return [a, b, c, d, found]

        check(device, run, numbers(8, 8), at_least=3)

    def test_values_are_read(self, device):
        def run(x):
            a = x * 2
            yield
            total = a.sum().item()
            yield
            same = torch.equal(a, x * 2)
            yield
            return [torch.tensor(total), torch.tensor(same), torch.tensor(bool((a > 0).any()))]

        check(device, run, numbers(8, 8))

    def test_complex_numbers(self, device):
        def run(x):
            a = torch.view_as_complex(x.reshape(8, 4, 2) * 2)
            b = a.conj()
            yield
            c = b * a
            d = b.imag + 1
            yield
            return [a, c, d]

        check(device, run, numbers(8, 8))

    def test_strides_and_types(self, device):
        def run(x):
            a = (x * 2).t()
            b = a.to(torch.bfloat16)
            c = a.contiguous()
            d = torch.empty_strided((4, 4), (8, 2)).copy_(x[:4, :4])
            e = (x > 0).to(torch.int8)
            yield
            return [a, b, c, d, e, b.float() + c]

        check(device, run, numbers(8, 8), at_least=3)

    def test_an_output_that_is_an_argument_though_the_schema_does_not_say_so(self, device):
        def run(x):
            a = x * 2
            b = torch.ops.aten._unsafe_view(a, [64])
            yield
            b.add_(1)
            yield
            return [a, b]

        check(device, run, numbers(8, 8))

    def test_reshaping_in_place(self, device):
        def run(x):
            a = x * 2
            b = a + 1
            yield
            a.t_()
            b.unsqueeze_(0)
            yield
            c = a @ b
            yield
            d = torch.empty(0).set_(c)
            yield
            b.resize_(2, 2)
            c.add_(1)
            return [a, b, c, d, d * 2]

        check(device, run, numbers(8, 8))

    def test_sparse(self, device):
        def run(x):
            a = x * 2
            sparse = (a * (a > 0)).to_sparse()
            yield
            b = torch.sparse.mm(sparse, a)
            yield
            values = sparse.coalesce().values() * 2
            yield
            return [a, b, values]

        check(device, run, numbers(8, 8))

    def test_a_subclass_that_wraps(self, device):
        from torch.testing._internal.two_tensor import TwoTensor

        def run(x):
            a, b = x * 2, x * 3
            both = TwoTensor(a, b)
            yield
            more = both + 1
            yield
            more.mul_(2)
            return [a * 1, b * 1, more.a * 1, more.b * 1]

        assert check(device, run, numbers(8, 8)) == 2

    def test_many_steps_back(self, device):
        def run(x):
            values = [x * 1]
            for i in range(400):
                values[-1] = values[-1] * 1.001 + i
            yield
            return values

        check(device, run, numbers(8))


class TestConstants:
    def test_a_change_keeps_what_depended_on_the_old_value(self, device):
        def run(counter):
            a = counter * 2
            yield
            counter.add_(1)
            b = counter * 3
            yield
            counter.add_(1)
            yield
            return [a, b, counter]

        check(device, run, numbers(8))

    def test_an_argument_may_go_before_it_is_needed_again(self, device):
        def run(x):
            b = torch.tensor([1.0, 2.0]) * x
            c = torch.from_numpy(x.numpy().copy()) + 1
            yield
            return [b, c]

        check(device, run, numbers(2))

    def test_only_what_the_step_makes_is_evicted(self, device):
        model = nn.Linear(4, 4)
        device.adopt(model)
        x = device.put(torch.ones(2, 4))
        with Watched(device) as watched:
            model(x).sum().backward()
            watched.evict_all()
            for tensor in (x, *model.parameters()):
                storage_of(tensor).data_ptr()  # Raises where the data is gone.
            gradients = [p.grad for p in model.parameters()]
            with pytest.raises(RuntimeError, match="was evicted to keep"):
                storage_of(gradients[0]).data_ptr()
            watched.stop()
        assert all(torch.isfinite(g).all() for g in gradients)
        gradients[0].numpy()

    def test_running_statistics_move_once(self, device):
        def run(x):
            norm = nn.BatchNorm1d(8)
            mean, var = norm.running_mean, norm.running_var
            a = norm(x) * 2
            yield
            b = torch.ops.aten.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)[0]
            yield
            return [a.detach() * 1, b * 1, *norm.buffers()]

        check(device, run, numbers(8, 8), at_least=2)


class TestMemory:
    def test_eviction_frees_and_a_rerun_takes_as_much(self, device):
        x = torch.ones(MIB)
        with Watched(device) as watched:
            self.evict_and_return(device, watched, x)

    def evict_and_return(self, device, watched, x):
        before = device.allocated_bytes()
        a = x * 2
        view = a[3:]
        taken = device.allocated_bytes() - before
        assert taken == 4 * MIB
        assert watched.evict_all() == 1
        assert device.allocated_bytes() == before
        assert (view[0] * 1).item() == 2
        assert device.allocated_bytes() == before + taken
        del a, view
        assert device.allocated_bytes() == before

    def test_nothing_is_kept_alive(self, device, watched):
        x = torch.ones(MIB, requires_grad=True)
        before = device.allocated_bytes()
        for _ in range(3):
            y = (x * 2).exp()
            del y
        gc.collect()
        assert device.allocated_bytes() == before

    def test_a_storage_that_autograd_keeps_is_alive(self, device, watched):
        died = []
        x = torch.ones(MIB, requires_grad=True)
        y = x.exp()
        weakref.finalize(y.untyped_storage(), died.append, "y")
        ref = weakref.ref(y.untyped_storage(), lambda _: died.append("ref"))
        loss = y.sum()
        del y
        gc.collect()
        assert ref() is not None
        assert died == []
        watched.evict_all()
        loss.backward()
        assert x.grad[0] == torch.tensor(1.0).exp()
        del loss
        assert ref() is None
        assert "ref" in died

    def test_what_was_made_again_for_others_is_freed_at_the_end(self, device):
        before = device.allocated_bytes()
        with Watched(device) as watched:
            x = torch.ones(MIB)
            a = x * 2
            b = a + 1
            c = b + 1
            del a, b
            watched.evict_all()
            assert c[0].item() == 4
            assert device.allocated_bytes() > before + 8 * MIB
            watched.stop()
            assert device.allocated_bytes() == before + 8 * MIB

    def test_gradients_are_stolen_and_not_copied(self, device):
        x = torch.ones(4 * MIB, requires_grad=True)
        peaks = []
        for runs in (False, True):
            x.grad = None
            watched = Watched(device)
            if runs:
                watched.runtime.start(nn.Identity(), (), {})
            device.begin_step()
            (x * torch.ones(1)).sum().backward()
            if runs:
                watched.stop()
            peaks.append(device.end_step().peak_allocated)
        assert peaks[0] == peaks[1]

    def test_room_is_made_for_what_an_operator_takes_while_it_runs(self, device):
        with Watched(device, device.allocated_bytes() + 13 * MIB) as watched:
            device.begin_step()
            a = torch.ones(MIB)
            kept = [a * i for i in range(8)]
            figures = watched.engine.stats
            assert figures.num_evictions == 6
            assert device.end_step().peak_allocated <= watched.engine.budget
            with pytest.raises(NoRoomError, match="give a larger budget"):
                torch.cat(kept)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class TestSteps:
    def test_a_mode_entered_before_leaves_as_it_came(self, device):
        watched = Watched(device)
        with Counting() as mode:
            watched.runtime.start(nn.Identity(), (), {})
            a = torch.ones(8) * 2
        seen = mode.count
        b = a + 1
        assert mode.count == seen == 2
        watched.evict_all()
        assert watched.stop().num_operators == 3
        assert b[0] == 3
        assert watched.engine.stats.num_operators == 3

    def test_a_mode_entered_in_between_stays(self, device):
        watched = Watched(device)
        watched.runtime.start(nn.Identity(), (), {})
        with Counting() as mode:
            a = torch.ones(8) * 2
            watched.evict_all()
            watched.stop()
            a + 1
            assert mode.count >= 3
        assert watched.engine.stats.num_operators == 2

    def test_a_step_may_have_several_forward_passes(self, device):
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        x = torch.ones(4, 8)
        for _ in range(2):
            model(x).sum().backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        watched = Watched(device)
        for _ in range(2):
            watched.runtime.start(model, (x,), {})
            loss = model(x).sum()
            assert watched.evict_all()
            loss.backward()
            assert watched.evict_all()
        watched.stop()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            assert torch.equal(parameter.grad, gradient)

    def test_abandoning_frees_and_leaves_what_was_evicted_empty(self, device):
        before = device.allocated_bytes()
        watched = Watched(device)
        watched.runtime.start(nn.Identity(), (), {})
        x = torch.ones(MIB)
        a = x * 2
        b = a + 1
        del a
        watched.evict_all()
        watched.runtime.abandon()
        assert not watched.runtime.active
        assert device.allocated_bytes() == before + (0 if _is_gone(x) else 4 * MIB)
        assert _is_gone(b)
        assert (torch.ones(2) + 1)[0] == 2
        watched.runtime.start(nn.Identity(), (), {})
        c = torch.ones(8) * 2
        watched.evict_all()
        watched.stop()
        assert c[0] == 2

    def test_an_operator_that_fails_leaves_all_in_order(self, device, watched):
        a, b = torch.ones(8) * 2, torch.ones(4) * 2
        watched.evict_all()
        with pytest.raises(RuntimeError, match="size of tensor"):
            a + b
        watched.evict_all()
        assert (a + 1)[0] == 3
        assert (b + 1)[0] == 3
        watched.stop()

    def test_out_of_memory_makes_room(self, device):
        settings = Eviction(system="dtr", sampling=False, ignore_small=False, trigger="oom")
        # The device fails, not the runtime: its own budget is never asked.
        device.enforce(64 * MIB)
        with Watched(device, 64 * MIB, settings) as watched:
            a = torch.ones(5 * MIB)
            many = [a * i for i in range(4)]
            assert watched.engine.stats.num_evictions >= 2
            assert [int(each[0]) for each in many] == [0, 1, 2, 3]
            with pytest.raises(torch.OutOfMemoryError):
                torch.cat(many)
        device.enforce(None)


def _is_gone(tensor):
    try:
        tensor.data_ptr()
    except RuntimeError as error:
        return "was evicted to keep" in str(error)
    return False
