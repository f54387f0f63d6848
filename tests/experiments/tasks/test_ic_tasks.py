"""Image classification: ResNet-50 and Swin-T in batches of changing sides."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.autograd.graph import saved_tensors_hooks

import mimose
from mimose.devices import open_device
from mimose.runtime.blocks import find_blocks
from mimose_bench.experiments.data import hub
from mimose_bench.experiments.tasks import TaskOptions, make_task
from mimose_bench.experiments.tasks.ic_swin import padded_areas

NAMES = ("ic-resnet50", "ic-swin")


def _task(name, **options):
    return make_task(name, TaskOptions(**{"data": "synthetic", "scale": "tiny", **options}))


def _equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize(
    ("name", "parameters", "blocks"), [("ic-resnet50", 25.56, 16), ("ic-swin", 28.29, 12)]
)
def test_full_scale_is_the_published_model(name, parameters, blocks):
    task = _task(name, scale="full")
    with torch.device("meta"):
        model = task.build_model()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(parameters, abs=0.01)
    assert len(find_blocks(model)) == blocks
    assert len(task.size_bins()) == len({size.size for size in task.size_bins()}) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_small_is_as_deep_as_full_and_sees_as_much(name):
    small, full = (_task(name, scale=scale) for scale in ("small", "full"))
    for field in ("depths", "sides"):
        assert small.settings()[field] == full.settings()[field]


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_batches(name):
    task = _task(name)
    sizes = list(task.sizes(task.epoch_steps))
    batches = list(task.batches(task.epoch_steps))
    assert sizes == [batch.size for batch in batches]
    for batch in batches:
        count, _, height, width = batch.tensors["pixel_values"].shape
        assert height == width
        assert batch.size[:2] == (count, height * width)
        assert batch.input_size == batch.num_tokens == count * height * width
    assert {size[0] for size in sizes} == {task.batch_size, 203 % task.batch_size}
    assert {size[1] for size in sizes} == {side**2 for side in task.setting.sides}
    assert max(sizes) == task.longest()


@pytest.mark.parametrize("name", NAMES)
def test_batches_depend_on_the_seed_alone(name):
    first = [b.tensors for b in _task(name, seed=1).batches(4)]
    torch.manual_seed(99)
    second = [b.tensors for b in _task(name, seed=1).batches(4)]
    other = [b.tensors for b in _task(name, seed=2).batches(4)]
    assert all(map(_equal, first, second))
    assert not _equal(first[0], other[0])


@pytest.mark.parametrize("name", NAMES)
def test_bins_can_be_made_and_are_read_as_they_are_written(name):
    task = _task(name)
    bins = task.size_bins()
    assert sum(each.share for each in bins) == pytest.approx(1)
    for each in bins:
        assert task.example_batch(each.size).size == each.size
        assert task.parse_size(task.describe_size(each.size)) == each.size
    with pytest.raises(ValueError, match=r"squares of [\d, ]+ pixels at scale tiny, not 100"):
        task.parse_size("100")
    for wrong in ((2,), (0, *bins[0].size[1:]), (2, 96 * 96 + 1), (2, 96 * 96, 1)):
        with pytest.raises(ValueError, match="are squares of"):
            task.example_batch(wrong)


def test_a_resnet_has_no_attention_to_choose():
    with pytest.raises(ValueError, match="task ic-resnet50 has no attention: drop --attention"):
        _task("ic-resnet50", attention="sdpa")
    assert _task("ic-swin", attention="sdpa").build_model().config._attn_implementation == "sdpa"


# -- Swin's size


@pytest.mark.parametrize(
    ("side", "areas"),
    [
        (224, (224**2, 224**2, 224**2, 224**2)),
        (256, (280**2, 280**2, 336**2, 448**2)),
        (448, (448**2, 448**2, 448**2, 448**2)),
    ],
)
def test_areas_are_of_tokens_padded_to_windows(side, areas):
    assert padded_areas(side, patch=4, window=7, stages=4) == areas


def _saved_bytes(model, task, size):
    """Return the bytes that each block saves for its backward pass, by stage and place in it."""
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}
    found = {}

    def watch(block):
        name, forward = block.name, block.module.forward

        def watched(*args, **kwargs):
            storages = {}

            def pack(tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in parameters:
                    storages[storage._cdata] = storage
                return tensor

            with saved_tensors_hooks(pack, lambda tensor: tensor):
                result = forward(*args, **kwargs)
            found[name] = sum(storage.nbytes() for storage in storages.values())
            return result

        block.module.forward = watched
        return block.module, forward

    watched = [watch(block) for block in find_blocks(model)]
    task.loss(model, task.example_batch(size).tensors)
    for module, forward in watched:
        module.forward = forward
    return found


@pytest.mark.parametrize("attention", [pytest.param("eager", marks=pytest.mark.slow), "sdpa"])
def test_a_blocks_memory_is_linear_in_the_areas_of_its_size(attention):
    task = _task("ic-swin", scale="small", attention=attention, batch_size=1)
    torch.manual_seed(0)
    model = task.build_model()
    for block in find_blocks(model):  # whether a path is dropped is drawn: it saves a mask or not
        block.module.drop_path = torch.nn.Identity()
    sizes = [bin_.size for bin_ in task.size_bins()]
    measured = [_saved_bytes(model, task, size) for size in sizes]
    assert len(measured[0]) == 12
    for name in measured[0]:
        stage = int(name.split(".layers.")[1][0])
        features = np.array([[1, size[1], size[2 + stage]] for size in sizes], float)
        saved = np.array([each[name] for each in measured], float)
        fit, *_ = np.linalg.lstsq(features, saved, rcond=None)
        assert np.abs(features @ fit / saved - 1).max() < 1e-9
        alone, *_ = np.linalg.lstsq(features[:, :2], saved, rcond=None)
        worst = np.abs(features[:, :2] @ alone / saved - 1).max()
        if stage in (1, 2):  # up to 10 % beside the truth, were it not for the padded area
            assert worst > 0.02


def test_windows_are_never_larger_than_a_stage():
    # Where they are, the model changes its windows for good at the first such batch.
    for scale in ("full", "small", "tiny"):
        setting = _task("ic-swin", scale=scale).setting
        smallest = -(-min(setting.sides) // setting.patch)
        for _ in range(3):
            smallest = -(-smallest // 2)
        assert smallest > setting.window


# -- planners and devices


def _train(name, planner, steps=3):
    task = _task(name)
    device = open_device("cpu")
    try:
        torch.manual_seed(0)
        model = task.build_model()
        device.adopt(model)
        optimizer = task.optimizer(model)
        handle = mimose.attach(model, None, planner, device=device)
        losses = []
        for batch in task.batches(steps):
            loss = task.loss(model, device.put(batch.tensors))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
        handle.detach()
        return torch.stack(losses), {k: v.clone() for k, v in model.state_dict().items()}
    finally:
        device.close()


@pytest.mark.parametrize("name", NAMES)
def test_recomputing_every_block_changes_no_bit(name):
    losses, state = _train(name, "baseline")
    again, recomputed = _train(name, "full")
    assert torch.equal(losses, again)
    assert _equal(state, recomputed)


@pytest.mark.parametrize("name", NAMES)
def test_recomputation_saves_memory_on_a_simulated_gpu(name):
    task = _task(name, scale="small")
    device = open_device("sim:v100")
    try:
        model = device.build(task.build_model)
        device.adopt(model)
        peaks = []
        for planner in ("baseline", "full"):
            handle = mimose.attach(model, None, planner, device=device)
            for _ in range(2):
                batch = task.example_batch(task.longest())
                task.loss(model, device.put(batch.tensors)).backward()
            peaks.append(handle.last_record.peak_allocated_bytes)
            handle.detach()
        assert peaks[1] < 0.7 * peaks[0]
    finally:
        device.close()


# -- data and weights


@pytest.fixture
def pets(tmp_path):
    for number, name in enumerate(["ant", "ant", "bee", "cow", "cow"]):
        path = tmp_path / "pets" / name / f"{number}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.new("RGB", (90 + number, 70), (40 * number, 0, 0)).save(path)
    return tmp_path / "pets"


@pytest.mark.parametrize("name", NAMES)
def test_trains_on_a_folder_of_classes(name, pets, caplog):
    (pets / "bee" / "readme.txt").write_text("a bee")
    task = _task(name, data=str(pets), batch_size=2)
    assert "left out 1 of 6: 1 files that are no images" in caplog.text
    assert task.settings()["num_classes"] == 3
    batches = list(task.batches(4))
    assert [batch.size[0] for batch in batches] == [2, 2, 1, 2]
    model = task.build_model()
    for batch in batches:
        assert task.loss(model, batch.tensors).isfinite()
    again = list(_task(name, data=str(pets), batch_size=2).batches(4))
    assert all(_equal(a.tensors, b.tensors) for a, b in zip(batches, again))


def test_a_damaged_image_stops_the_run_and_is_named(pets):
    path = pets / "bee" / "2.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"^[^\n]*2\.png is damaged or not an image[^\n]*$"):
        list(_task("ic-resnet50", data=str(pets)).batches(2))


def test_a_file_is_no_folder_of_classes(pets):
    with pytest.raises(ValueError, match="is a file: give the folder"):
        _task("ic-swin", data=str(pets / "bee" / "2.png"))


def test_imagenet_needs_a_token_and_is_not_fetched_unasked(monkeypatch):
    monkeypatch.setattr(hub, "load_cached", lambda *arguments: None)
    source = _task("ic-resnet50", data="auto").data_source
    assert source.kind == "synthetic"
    assert "150 GB are fetched only with --data hub" in source.reason
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    with pytest.raises(ValueError, match="it needs a token"):
        _task("ic-resnet50", data="hub")


def test_trains_on_the_hubs_rows(monkeypatch):
    import datasets

    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b", "c"])
    )
    rows = [{"image": Image.new("RGB", (70, 50)), "label": label} for label in (0, 2, -1, 1)]
    found = datasets.Dataset.from_list(rows, features=features)
    processor = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    monkeypatch.setattr(hub, "load_split", lambda *arguments: found)
    monkeypatch.setattr(hub, "from_hub_or_cache", lambda *arguments: processor)
    task = _task("ic-resnet50", data="hub")
    assert task.num_examples == 3
    assert task.data_source.notes == ("left out 1 of 4 images without a class",)
    batch = next(task.batches(1))
    assert sorted(batch.tensors["labels"].tolist()) == [0, 1, 2]
    assert batch.tensors["pixel_values"].unique().tolist() == [-2]


@pytest.mark.parametrize("name", NAMES)
def test_weights_from_a_folder_with_a_head_for_other_classes(name, tmp_path, pets):
    torch.manual_seed(7)
    saved = _task(name).build_model()
    saved.save_pretrained(tmp_path)
    loaded = _task(name, weights=str(tmp_path)).build_model()
    assert _equal(dict(saved.state_dict()), dict(loaded.state_dict()))
    other = _task(name, weights=str(tmp_path), data=str(pets)).build_model()
    assert other.config.num_labels == 3
    with pytest.raises(ValueError, match=r"has depths .* choose the scale it was saved at"):
        _task(name, weights=str(tmp_path), scale="small").build_model()
