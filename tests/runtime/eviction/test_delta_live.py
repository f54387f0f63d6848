"""Whole training steps under DELTA: the same numbers, within the budget, copies beside them."""

import pytest
import torch
from torch import nn

from mimose.devices import open_device
from mimose.devices.cuda import CudaDevice
from mimose.eviction import Eviction
from mimose.runtime.channels import CpuChannel, CudaChannel, SimChannel
from mimose.runtime.eviction.backend import TorchBackend
from mimose.runtime.eviction.live import EvictionRuntime


def delta(**changes):
    given = {"sampling": False, "ignore_small": False, "synchronous": False, "thrash_limit": None}
    return Eviction(system="delta", **{**given, **changes})


def layers():
    return nn.Sequential(
        *(
            part
            for _ in range(6)
            for part in (nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32))
        )
    )


class Images(nn.Module):
    """Batch norm, an activation in place and shortcuts."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
            for _ in range(5)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x.mean((2, 3))


MODELS = {
    "layers": (layers, lambda: torch.linspace(-1, 1, 256 * 32).view(256, 32), 0.5),
    "images": (Images, lambda: torch.linspace(-1, 1, 8 * 6 * 256).view(8, 6, 16, 16), 0.6),
}


@pytest.fixture(scope="module")
def plain(train):
    return {name: train(build, batch(), steps=3) for name, (build, batch, _) in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
class TestEqual:
    @pytest.mark.parametrize("actions", ["recompute", "swap", "both"])
    def test_within_any_budget(self, train, plain, name, actions):
        build, batch, lowest = MODELS[name]
        for share in (0.8, lowest):
            budget = plain[name].budget(share)
            seen = train(build, batch(), delta(actions=actions, prefetch=True), budget, steps=3)
            assert plain[name].differences(seen) == 0, share
            assert seen.peaks[-1] <= budget, share
            # What operators take beside their outputs is known from the second step on.
            for figures in seen.figures[1:]:
                assert figures.num_evictions > 0
                assert (figures.num_rematerializations > 0) <= (actions != "swap")
                assert (figures.swapped_bytes > 0) <= (actions != "recompute")
                if actions == "swap":
                    assert figures.num_swaps_out >= figures.num_swaps_in > 0

    @pytest.mark.parametrize("filter", ["base", "lru", "greedy"])
    @pytest.mark.parametrize("prefetch", [True, False])
    def test_filters_and_prefetching(self, train, plain, name, filter, prefetch):
        build, batch, _ = MODELS[name]
        budget = plain[name].budget(0.7)
        settings = delta(actions="both", filter=filter, prefetch=prefetch)
        # By the real clock: what is chosen depends on it, and what comes of it must not.
        seen = train(build, batch(), settings, budget, steps=3, even=False)
        assert plain[name].differences(seen) == 0
        assert seen.peaks[-1] <= budget
        assert all(figures.num_evictions for figures in seen.figures)


def test_without_a_budget_nothing_is_copied(train, plain):
    build, batch, _ = MODELS["layers"]
    seen = train(build, batch(), delta(actions="both", prefetch=True), None, steps=3)
    assert plain["layers"].differences(seen) == 0
    assert seen.peaks == plain["layers"].peaks
    assert not any(f.swapped_bytes or f.num_evictions for f in seen.figures)


@pytest.mark.parametrize("trigger", ["after", "oom"])
def test_other_triggers(train, plain, trigger):
    build, batch, _ = MODELS["layers"]
    settings = delta(actions="swap", prefetch=True, trigger=trigger)
    seen = train(build, batch(), settings, plain["layers"].budget(0.7), steps=3)
    assert plain["layers"].differences(seen) == 0


class TestCpu:
    def test_copies_lie_on_the_hosts_account_and_are_gone_after_the_step(self):
        device = open_device("cpu")
        try:
            model = device.build(layers)
            device.adopt(model)
            batch = device.put(torch.zeros(256, 32))
            budget = device.allocated_bytes() + (1 << 20)
            runtime = EvictionRuntime(device, delta(actions="swap", prefetch=True), budget)
            before = device.host_bytes()[0]
            runtime.start(model, (batch,), {})
            loss = model(batch).sum()
            within = device.host_bytes()[0]
            loss.backward()
            figures = runtime.stop()
            assert figures.num_swaps_out > 0
            assert within > before
            assert device.host_bytes()[0] == before
        finally:
            device.close()

    def test_a_step_that_is_given_up_leaves_no_copy_under_way(self):
        device = open_device("cpu")
        try:
            model = device.build(layers)
            device.adopt(model)
            batch = device.put(torch.zeros(256, 32))
            budget = device.allocated_bytes() + (1 << 20)
            runtime = EvictionRuntime(device, delta(actions="swap", prefetch=True), budget)
            host = device.host_bytes()[0]
            for _ in range(3):
                runtime.start(model, (batch,), {})
                output = model(batch)
                runtime.abandon()
                del output
                assert device.host_bytes()[0] == host
            runtime.start(model, (batch,), {})
            model(batch).sum().backward()
            assert runtime.stop().num_swaps_out > 0
        finally:
            device.close()

    def test_no_memory_to_bring_storages_ahead_is_no_failure(self, train, plain, monkeypatch):
        build, batch, _ = MODELS["layers"]
        fetch, bring_ahead = CpuChannel.fetch, TorchBackend.bring_ahead
        refused = []

        def refuse(self, storage):
            def out_of_memory(_channel, _host):
                raise torch.OutOfMemoryError("no piece is large enough")

            with monkeypatch.context() as patch:
                patch.setattr(CpuChannel, "fetch", out_of_memory)
                refused.append(bring_ahead(self, storage))
            return refused[-1]

        monkeypatch.setattr(TorchBackend, "bring_ahead", refuse)
        settings = delta(actions="swap", prefetch=True)
        seen = train(build, batch(), settings, plain["layers"].budget(0.5), steps=3)
        assert plain["layers"].differences(seen) == 0
        assert refused
        assert not any(refused)
        assert CpuChannel.fetch is fetch

    def test_channel(self):
        device = open_device("cpu")
        try:
            channel = CpuChannel(device)
            tensor = torch.arange(100_000)
            allocated, host_bytes = device.allocated_bytes(), device.host_bytes()[0]
            host, sent = channel.send(tensor.untyped_storage())
            channel.wait(sent)
            assert channel.is_done(sent)
            assert device.allocated_bytes() == allocated
            assert device.host_bytes()[0] == host_bytes + 800_000
            data, fetched = channel.fetch(host)
            assert device.allocated_bytes() > allocated
            channel.wait(fetched)
            assert torch.equal(torch.empty(0, dtype=torch.int64).set_(data), tensor)
            assert channel.waited_seconds() >= 0
            assert channel.waited_seconds() == 0
        finally:
            device.close()


class TestSim:
    def test_channel_takes_what_the_bus_does(self):
        device = open_device("sim:v100-32gb")
        try:
            channel = SimChannel(device)
            data = torch.empty(12 * 10**8, dtype=torch.uint8, device="meta").untyped_storage()
            allocated = device.allocated_bytes()
            host, sent = channel.send(data)
            assert device.allocated_bytes() == allocated
            assert not channel.is_done(sent)
            channel.wait(sent)
            assert channel.is_done(sent)
            assert channel.waited_seconds() == pytest.approx(0.1, rel=0.01)
            _, fetched = channel.fetch(host)
            assert device.allocated_bytes() == 2 * allocated
            channel.wait(fetched)
            assert channel.waited_seconds() == pytest.approx(0.1, rel=0.01)
        finally:
            device.close()

    def test_swapping_beside_recomputing_saves_time(self):
        def build():
            return nn.Sequential(
                *(
                    part
                    for _ in range(12)
                    for part in (nn.Linear(2048, 2048), nn.GELU(), nn.Dropout(0.1))
                )
            )

        # At v100-32gb's price of host work, DTR's own, looking at both actions costs more time on
        # so small a net than overlapping saves.
        device = open_device("sim:v100-16gb")
        try:
            model = device.build(build)
            device.adopt(model)
            batch = device.put(torch.zeros(4096, 2048))
            resident = device.allocated_bytes()

            def train(settings, budget):
                runtime = EvictionRuntime(device, settings, budget) if settings else None
                figures = None
                for _ in range(2):
                    model.zero_grad()
                    device.synchronize()
                    device.begin_step()
                    begun = device.now()
                    if runtime is not None:
                        runtime.start(model, (batch,), {})
                    model(batch).sum().backward()
                    if runtime is not None:
                        figures = runtime.stop()
                    seconds = device.now() - begun
                    peak = device.end_step().peak_allocated
                return seconds, peak, figures

            seconds, peak, _ = train(None, None)
            budget = resident + int(0.6 * (peak - resident))
            taken = {}
            for actions in ("recompute", "swap", "both"):
                for prefetch in (True, False):
                    settings = delta(actions=actions, prefetch=prefetch)
                    taken[actions, prefetch], used, figures = train(settings, budget)
                    assert used <= budget
                    assert taken[actions, prefetch] > seconds
                    assert (figures.swap_wait_seconds > 0) <= (actions != "recompute")
            assert taken["both", True] < taken["both", False]
            assert taken["both", True] < taken["recompute", True] < taken["swap", True]
            assert taken["swap", True] < taken["swap", False]
        finally:
            device.close()


@pytest.mark.gpu
class TestOnGpu:
    @pytest.fixture
    def device(self):
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        opened = CudaDevice(reset_peaks=True)
        yield opened
        opened.close()

    def test_channel(self, device):
        channel = CudaChannel(device)
        tensor = torch.arange(1_000_000, device=device.torch_device)
        host, sent = channel.send(tensor.untyped_storage())
        assert host.is_pinned()
        channel.wait(sent)
        tensor.zero_()  # ordered behind the copy
        data, fetched = channel.fetch(host)
        channel.wait(fetched)
        back = torch.empty(0, dtype=torch.int64, device=device.torch_device).set_(data)
        assert torch.equal(back.cpu(), torch.arange(1_000_000))
        assert channel.waited_seconds() >= 0

    @pytest.mark.parametrize("actions", ["swap", "both"])
    def test_equal_gradients(self, device, actions):
        torch.manual_seed(0)
        model = layers()
        device.adopt(model)
        batch = device.put(torch.linspace(-1, 1, 4096 * 32).view(4096, 32))

        def train(runtime):
            torch.manual_seed(1)
            model.zero_grad()
            device.begin_step()
            if runtime is not None:
                runtime.start(model, (batch,), {})
            model(batch).square().sum().backward()
            figures = runtime.stop() if runtime is not None else None
            return [p.grad.clone() for p in model.parameters()], device.end_step(), figures

        resident = device.allocated_bytes()
        train(None)
        expected, memory, _ = train(None)
        budget = resident + int(0.7 * (memory.peak_allocated - resident))
        runtime = EvictionRuntime(device, delta(actions=actions, prefetch=True), budget)
        for _ in range(3):
            gradients, _, figures = train(runtime)
            assert all(map(torch.equal, gradients, expected))
            assert figures.num_swaps_out > 0
