"""Generated images: how large, how many boxes, and whether a class can be seen."""

import numpy as np
import pytest

from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.synthetic_images import (
    SHAPES,
    SyntheticClasses,
    SyntheticDetection,
    colours,
)
from mimose_bench.experiments.data.views import MultiScale, up

SOURCE = DataSource(kind="synthetic", detail="", reason="test")


@pytest.fixture(scope="module")
def coco():
    return SyntheticDetection(SOURCE, 80, 117266, MultiScale())


@pytest.fixture(scope="module")
def batches(coco):
    return list(coco.batches(6, 600, 0))


def _area(examples):
    return up(max(e.height for e in examples), 32) * up(max(e.width for e in examples), 32)


def test_areas_are_those_of_the_published_log(batches):
    # mimose-mmdet, log/resnet101_dc13.log: batches of 6, mean 858k, 442,368 to 1,333,248 pixels;
    # Fig 11 has batches of up to 1.42 million.
    areas = np.array([_area(examples) for examples in batches])
    assert areas.mean() == pytest.approx(858e3, rel=0.03)
    assert 420e3 < areas.min() < 560e3
    assert 1.25e6 < areas.max() <= np.prod(MultiScale().greatest(32))


def test_numbers_of_boxes_are_like_cocos(coco, batches):
    rng = np.random.default_rng(0)
    drawn = np.array([len(coco._boxes(rng)[1]) for _ in range(4000)])
    assert drawn.mean() == pytest.approx(7.3, rel=0.1)
    assert (drawn.min(), drawn.max()) == (1, 60)
    assert np.median(drawn) == 4
    for example in batches[0]:
        assert (example.boxes[:, 2:] > example.boxes[:, :2]).all()
        assert example.boxes.max() <= max(example.height, example.width)


def test_shares_of_shapes_sum_to_one():
    assert sum(share for _, share in SHAPES) == pytest.approx(1)


def test_a_batch_holds_images_of_one_orientation(coco):
    wide = [shape for (shape, _) in SHAPES if shape[1] >= shape[0]]
    assert coco.epoch_steps(6) == pytest.approx(117266 / 6, abs=2)
    assert len(wide) == 7


@pytest.mark.parametrize("count", [1, 2, 8, 80, 1000])
def test_colours_differ(count):
    assert len(np.unique(colours(count), axis=0)) == count


def test_a_box_is_filled_with_its_classs_colour():
    data = SyntheticDetection(SOURCE, 4, 20, MultiScale(shorts=(64,), longest=100, crop=(40, 60)))
    (example,) = data.of_size(1, 64, 96, seed=3)
    pixels = example.pixels()
    assert pixels.shape == (64, 96, 3)
    smallest = np.argmin((example.boxes[:, 2:] - example.boxes[:, :2]).prod(1))
    x, y = ((example.boxes[smallest, :2] + example.boxes[smallest, 2:]) / 2).astype(int)
    assert (pixels[y, x] == colours(4)[example.labels[smallest]]).all()
    assert np.array_equal(example.pixels(), pixels)


def test_a_class_is_seen_in_the_middle():
    data = SyntheticClasses(SOURCE, 8, 20, 64)
    for example in data.batch(1, np.arange(5), 64, 0):
        assert (example.pixels()[32, 32] == colours(8)[example.label]).all()
