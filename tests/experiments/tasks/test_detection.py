import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ResNetForImageClassification

import mimose
from mimose.devices import open_device
from mimose.runtime.blocks import find_blocks
from mimose_bench.experiments.data import hub
from mimose_bench.experiments.tasks import TaskOptions, make_task

NAMES = ("od-r50", "od-r101")


def _task(name="od-r50", **options):
    return make_task(name, TaskOptions(**{"data": "synthetic", "scale": "tiny", **options}))


def _equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_opening_a_task_needs_neither_torch_nor_transformers():
    code = (
        "import sys, mimose_bench.experiments.tasks as t\n"
        "t.make_task('od-r50', t.TaskOptions(data='synthetic', scale='tiny'))\n"
        "assert not {'torch', 'transformers', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab": "vocab.txt", "data": "x.json"}, "od-r50 reads no text: drop --vocab"),
        ({"attention": "sdpa"}, "od-r50 has no attention: drop --attention"),
        ({"weights": "pretrained"}, "--weights pretrained needs --scale full"),
        ({"data": "absent.json"}, "there is no data file absent.json"),
        ({"optimizer": "momentun"}, "did you mean 'momentum'"),
    ],
)
def test_wrong_options_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        _task(**options)


@pytest.mark.parametrize(
    ("name", "batch_size", "parameters"), [("od-r50", 8, 37.9), ("od-r101", 6, 56.9)]
)
def test_full_scale_is_the_papers(name, batch_size, parameters):
    task = _task(name, scale="full")
    with torch.device("meta"):
        model = task.build_model()
    # MMDetection's RetinaNet-R50 has 37.74 million parameters, its R101 56.74.
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(parameters, abs=0.2)
    assert task.batch_size == batch_size
    assert task.longest() == (batch_size, 1280 * 1344)
    assert len(find_blocks(model)) == {8: 18, 6: 35}[batch_size]
    group = task.optimizer(model).param_groups[0]
    assert (group["momentum"], group["weight_decay"]) == (0.9, 1e-4)
    assert task.settings()["optimizer"] == "SGD with momentum"


@pytest.mark.parametrize("name", NAMES)
def test_small_is_as_deep_as_full(name):
    small, full = (_task(name, scale=scale) for scale in ("small", "full"))
    for field in ("depths", "tower_depth", "num_classes"):
        assert small.settings()[field] == full.settings()[field]


def test_batches_are_padded_to_their_largest_image():
    task = _task()
    for batch in task.batches(6):
        pixels, boxes, mask = (batch.tensors[n] for n in ("pixel_values", "boxes", "box_mask"))
        count, _, height, width = pixels.shape
        assert batch.size == (count, height * width) == (2, batch.input_size // 2)
        assert height % 32 == width % 32 == 0
        assert batch.num_samples == count
        seen = (pixels != 0).any(1)
        assert batch.num_tokens == seen.sum() < batch.input_size
        assert boxes.shape == (*mask.shape, 4) == (*batch.tensors["box_labels"].shape, 4)
        assert (boxes[mask][:, 2:] > boxes[mask][:, :2]).all()
        assert boxes[..., 2].max() <= width
        assert boxes[..., 3].max() <= height


def test_batches_depend_on_the_seed_alone():
    first = [b.tensors for b in _task(seed=1).batches(4)]
    torch.manual_seed(99)
    second = [b.tensors for b in _task(seed=1).batches(4)]
    other = [b.tensors for b in _task(seed=2).batches(4)]
    assert all(map(_equal, first, second))
    assert not _equal(first[0], other[0])


def test_sizes_are_those_of_the_batches():
    task = _task()
    sizes = list(task.sizes(30))
    assert sizes == [batch.size for batch in task.batches(30)]
    assert max(sizes) <= task.longest()
    assert len(set(sizes)) > 3


def test_bins_are_sizes_of_batches_and_their_shares_sum_to_one():
    task = _task()
    bins = task.size_bins()
    assert sum(each.share for each in bins) == pytest.approx(1)
    assert list(bins) == sorted(bins)
    for each in bins:
        assert task.example_batch(each.size).size == each.size
        assert task.describe_size(each.size) == str(each.size[1])


@pytest.mark.parametrize(
    ("text", "area"),
    [("64x64", 64 * 64), ("90x150", 96 * 160), (" 64 x 33 ", 64 * 64), ("64 X 33", 64 * 64)],
)
def test_sizes_are_read_as_heights_and_widths(text, area):
    assert _task().parse_size(text) == (2, area)


@pytest.mark.parametrize("text", ["", "64", "64x", "ax7", "0x64", "64x0", "-64x64"])
def test_what_is_no_size_is_refused_with_one_that_is(text):
    with pytest.raises(ValueError, match="a height and a width in pixels, for example 160x160"):
        _task().parse_size(text)


def test_images_beyond_the_policy_are_refused():
    with pytest.raises(ValueError, match="160x160 at most at scale tiny, not 100x200"):
        _task().parse_size("100x200")


@pytest.mark.parametrize("size", [(2,), (0, 1024), (2, 1000), (2, 0), (2, 192 * 192), (2, 1, 1)])
def test_impossible_example_batch_is_refused(size):
    with pytest.raises(ValueError, match="multiples of 32"):
        _task().example_batch(size)


@pytest.fixture
def coco_file(tmp_path):
    """Five images of which four have boxes, and one annotation without a category."""
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(5):
        width, height = ((96, 64), (64, 96))[number % 2]
        name = f"{number}.png"
        (tmp_path / "images").mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / name)
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        if number < 4:
            box = {"id": number, "image_id": number, "bbox": [8, 9, 30, 40], "category_id": 3}
            annotations.append(box)
    annotations.append({"id": 99, "image_id": 1, "bbox": [1, 2, 3, 4]})
    path = tmp_path / "boxes.json"
    categories = [{"id": i, "name": str(i)} for i in (3, 5, 6)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content))
    return path


def test_trains_on_a_coco_file(coco_file, caplog):
    task = _task(data=str(coco_file))
    assert task.data_source.kind == "path"
    assert "left out 2 of 10 records" in caplog.text
    assert "images without boxes (4.png)" in caplog.text
    assert (task.num_examples, task.epoch_steps) == (4, 2)
    model = task.build_model()
    assert model.num_classes == 3
    for batch in (*task.batches(4), task.example_batch((2, 64 * 96))):
        assert task.loss(model, batch.tensors).isfinite()
    first = [b.tensors for b in task.batches(3)]
    assert all(map(_equal, first, [b.tensors for b in _task(data=str(coco_file)).batches(3)]))


def test_a_damaged_image_stops_the_run_and_is_named(coco_file):
    image = coco_file.parent / "images" / "2.png"
    image.write_bytes(image.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"^[^\n]*2\.png is damaged or not an image[^\n]*$"):
        list(_task(data=str(coco_file)).batches(4))


def test_without_the_hub_auto_is_synthetic_and_says_so(monkeypatch):
    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    monkeypatch.setattr(hub, "load_cached", lambda *arguments: None)
    source = _task(data="auto").data_source
    assert source.kind == "synthetic"
    assert "its 19 GB are fetched only with --data hub" in source.reason
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    with pytest.raises(ValueError, match="use --data synthetic or --data PATH"):
        _task(data="hub")


def test_trains_on_the_hubs_rows(monkeypatch):
    import datasets

    names = [f"class {number}" for number in range(6)]
    objects = {
        "bbox": datasets.Sequence(datasets.Sequence(datasets.Value("float32"))),
        "category": datasets.Sequence(datasets.ClassLabel(names=names)),
    }
    features = datasets.Features(
        image=datasets.Image(),
        width=datasets.Value("int64"),
        height=datasets.Value("int64"),
        objects=objects,
    )
    row = {
        "image": Image.new("RGB", (96, 64)),
        "width": 96,
        "height": 64,
        "objects": {"bbox": [[4.0, 4.0, 50.0, 60.0]], "category": [5]},
    }
    rows = datasets.Dataset.from_list([row] * 4, features=features)
    processor = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    monkeypatch.setattr(hub, "load_split", lambda *arguments: rows)
    monkeypatch.setattr(hub, "from_hub_or_cache", lambda *arguments: processor)
    task = _task(data="hub")
    assert task.data.num_classes == 6
    batch = next(task.batches(1))
    assert batch.tensors["pixel_values"].min() == pytest.approx(-2)
    assert task.loss(task.build_model(), batch.tensors).isfinite()


def _train(planner, steps=3):
    """Return losses and the model's state after a few steps on the device ``cpu``."""
    task = _task()
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


def test_recomputing_every_block_changes_no_bit():
    losses, state = _train("baseline")
    again, recomputed = _train("full")
    assert torch.equal(losses, again)
    assert _equal(state, recomputed)  # batch norm's statistics among them


def test_recomputation_saves_memory_on_a_simulated_gpu():
    task = _task(scale="small")
    device = open_device("sim:v100")
    try:
        model = device.build(task.build_model)
        device.adopt(model)
        peaks = []
        for planner in ("baseline", "full"):
            handle = mimose.attach(model, None, planner, device=device)
            for _ in range(2):
                batch = task.example_batch(task.parse_size("320x448"))
                task.loss(model, device.put(batch.tensors)).backward()
            peaks.append(handle.last_record.peak_allocated_bytes)
            handle.detach()
        assert peaks[1] < 0.8 * peaks[0]
    finally:
        device.close()


def test_weights_of_the_backbone_come_from_a_folder(tmp_path):
    task = _task()
    torch.manual_seed(7)
    saved = task.build_model().backbone
    saved.save_pretrained(tmp_path)
    loaded = _task(weights=str(tmp_path)).build_model()
    assert _equal(dict(saved.state_dict()), dict(loaded.backbone.state_dict()))
    # A classifier's weights do, too, as the hub's ResNets are: its head is left out.
    whole = ResNetForImageClassification(saved.config)
    whole.save_pretrained(tmp_path)
    loaded = _task(weights=str(tmp_path)).build_model()
    assert _equal(dict(whole.resnet.state_dict()), dict(loaded.backbone.state_dict()))
    with pytest.raises(ValueError, match=r"has depths \[1, 1, 1, 1\] and --scale tiny of od-r101"):
        _task("od-r101", weights=str(tmp_path)).build_model()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        _task(weights=str(tmp_path / "absent")).build_model()
