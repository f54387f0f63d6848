"""Where boxes and pixels go under a view, and the augmentation of the published runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mimose_bench.experiments.data.image_order import grouped_batches, grouped_steps
from mimose_bench.experiments.data.images import (
    IMAGENET,
    FilePicture,
    ImageExample,
    Painters,
    View,
)
from mimose_bench.experiments.data.views import MultiScale, resized_crop

sides = st.integers(32, 700)


def _with_a_square(height, width, box):
    pixels = np.zeros((height, width, 3), np.uint8)
    x1, y1, x2, y2 = box
    pixels[y1:y2, x1:x2] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize("flipped", [False, True])
def test_a_box_stays_on_what_it_is_around(flipped):
    view = View((10.0, 20.0, 90.0, 80.0), 120, 160, flipped)
    box = (30, 30, 50, 60)
    moved, shown = view.move(np.array([box, (0, 0, 9, 9)]))
    assert shown.tolist() == [True, False]
    seen = view.take(_with_a_square(100, 100, box))
    assert seen.shape == (120, 160, 3)
    rows, columns = np.nonzero(seen[..., 0] > 127)
    found = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    assert found == pytest.approx(moved[0], abs=1.5)


@given(height=sides, width=sides, seed=st.integers(0, 2**31))
def test_views_lie_within_the_image_and_the_policys_bounds(height, width, seed):
    policy = MultiScale()
    view = policy.draw(np.random.default_rng(seed), height, width)
    left, top, right, bottom = view.box
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    shorter, longer = sorted((view.height, view.width))
    bounds = policy.greatest(32)
    assert shorter <= min(bounds)
    assert longer <= policy.longest <= max(bounds)
    boxes = np.array([[0.0, 0.0, width, height]])
    moved, shown = view.move(boxes)
    assert shown.all()
    assert moved[0] == pytest.approx([0, 0, view.width, view.height])


@given(height=sides, width=sides, seed=st.integers(0, 2**31))
def test_crops_lie_within_the_image(height, width, seed):
    view = resized_crop(np.random.default_rng(seed), height, width, 64)
    left, top, right, bottom = view.box
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert (view.height, view.width) == (64, 64)


def test_pixels_are_normalised_as_the_models_expect():
    pixels = np.array([[[0, 128, 255]]], np.uint8)
    out = np.empty((3, 1, 1), np.float32)
    IMAGENET.write(pixels, out)
    wanted = (pixels[0, 0] / 255 - IMAGENET.mean) / IMAGENET.std
    assert out.ravel() == pytest.approx(wanted, rel=1e-5)


def test_images_keep_their_order_and_are_zero_beyond_their_edges():
    examples = [
        ImageExample(2, side, 0, lambda side=side: np.full((2, side, 3), side, np.uint8))
        for side in (1, 2, 3, 2, 1)
    ]
    images = Painters(threads=3).stack(examples, IMAGENET, 2, 3)
    for image, example in zip(images, examples):
        wanted = np.empty((3, 2, example.width), np.float32)
        IMAGENET.write(example.pixels(), wanted)
        assert np.array_equal(image[:, :, : example.width], wanted)
        assert not image[:, :, example.width :].any()


def test_a_damaged_image_is_named_in_one_sentence(tmp_path):
    path = tmp_path / "cut.jpg"
    _with_a_square(64, 64, (0, 0, 9, 9)).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"^[^\n]*cut\.jpg is damaged or not an image[^\n]*$"):
        FilePicture(str(path)).load()
    path.write_text("not an image")
    with pytest.raises(ValueError, match=r"^[^\n]*cut\.jpg is damaged or not an image[^\n]*$"):
        FilePicture(str(path)).load()


def test_an_image_of_another_size_than_its_record_is_refused(tmp_path):
    path = tmp_path / "a.png"
    _with_a_square(40, 50, (0, 0, 9, 9)).save(path)
    assert FilePicture(str(path), (50, 40)).load().mode == "RGB"
    with pytest.raises(ValueError, match=r"is 50 x 40 pixels and its record says 40 x 50"):
        FilePicture(str(path), (40, 50)).load()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_images_of_any_kind_become_rgb(tmp_path, mode):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    _with_a_square(40, 50, (0, 0, 9, 9)).convert(mode).save(path)
    pixels = View((0, 0, 50, 40), 40, 50, False).take(FilePicture(str(path)).load())
    assert pixels.shape == (40, 50, 3)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 7), st.integers(0, 99))
def test_batches_hold_one_orientation_and_an_epoch_every_image(wide, batch_size, seed):
    wide = np.array(wide)
    steps = grouped_steps(wide, batch_size)
    batches = list(grouped_batches(wide, batch_size, 2 * steps, seed))
    assert [epoch for epoch, _ in batches] == [0] * steps + [1] * steps
    assert all(len(chosen) == batch_size for _, chosen in batches)
    assert all(len(set(wide[chosen])) == 1 for _, chosen in batches)
    for epoch in (0, 1):
        seen = np.concatenate([chosen for e, chosen in batches if e == epoch])
        assert set(seen) == set(range(len(wide)))
