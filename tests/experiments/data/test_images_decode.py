import io
import warnings

import numpy as np
import pytest
from PIL import Image

from mimose_bench.experiments.data.images import FilePicture, decode

GREY = np.linspace(0, 65535, 64 * 48).round().astype(np.uint16).reshape(48, 64)


def _stored(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PGM"])
def test_grey_of_16_bits_is_scaled_to_8(kind):
    file = _stored(Image.fromarray(GREY), kind if kind != "PGM" else "PPM")
    found = np.asarray(decode(file, "grey"))
    assert found.shape == (48, 64, 3)
    assert np.abs(found - (GREY / 257)[..., None]).max() <= 0.5
    assert (found.min(), found.max()) == (0, 255)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.full((8, 8), 0.5, np.float32), "a.tif holds numbers that are not whole: save it with"),
        (np.full((8, 8), 70_000, np.int32), "a.tif is grey in more than 16 bits: save it with 8"),
        (np.full((8, 8), -1, np.int32), "a.tif is grey in more than 16 bits"),
    ],
)
def test_pixels_of_no_certain_scale_are_refused(tmp_path, pixels, message):
    path = tmp_path / "a.tif"
    Image.fromarray(pixels).save(path)
    with pytest.raises(ValueError, match=message) as caught:
        FilePicture(str(path)).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("transparency", [0, bytes(range(256))])
def test_transparency_of_a_palette_is_passed_over_quietly(transparency):
    image = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16), "P")
    image.putpalette([number * 7 % 256 for number in range(768)])
    expected = np.asarray(image.convert("RGB"))
    file = _stored(image, "PNG", transparency=transparency)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = decode(file, "palette")
    assert not told
    assert np.array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("allowed", [64 * 48 - 1, 64 * 20])
def test_too_many_pixels_are_refused_and_nothing_else_is_told(monkeypatch, allowed):
    file = _stored(Image.new("RGB", (64, 48)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", allowed)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match=rf"^bomb has more than {allowed:,} pixels: make it"):
            decode(file, "bomb")
        warnings.warn_explicit("odd EXIF", UserWarning, "x.py", 1, module="PIL.TiffImagePlugin")
    assert not told
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48)
    assert decode(file, "no bomb").size == (64, 48)
