import copy
import io
import json
import os

import datasets
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mimose_bench.experiments.data.coco import from_rows, read_coco

SIZES = {"a.jpg": (64, 48), "b.jpg": (48, 64), "c.png": (80, 60)}


@pytest.fixture
def coco():
    """Three images with 2, 1 and 1 boxes, as the object in a file."""
    images = [
        {"id": number, "file_name": name, "width": width, "height": height}
        for number, (name, (width, height)) in enumerate(SIZES.items(), 7)
    ]
    boxes = [(7, [4, 5, 20, 10], 90), (7, [0, 0, 64, 48], 1), (8, [5, 5, 9, 9], 1)]
    boxes.append((9, [70.5, 50, 20, 20], 90))  # reaches beyond the image
    annotations = [
        {"id": number, "image_id": image, "bbox": box, "category_id": category, "iscrowd": 0}
        for number, (image, box, category) in enumerate(boxes, 100)
    ]
    categories = [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def _draw(folder):
    folder.mkdir(exist_ok=True, parents=True)
    for name, size in SIZES.items():
        Image.new("RGB", size, (200, 10, 10)).save(folder / name)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file called ``instances_tr.json`` and images beside it."""

    def write(content, folder="tr"):
        _draw(tmp_path / "ann" / folder)
        path = tmp_path / "ann" / "instances_tr.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_boxes_become_corners_and_categories_numbers(coco, write):
    found = read_coco(write(coco))
    assert found.categories == ("person", "toothbrush")
    assert [len(image.labels) for image in found.images] == [2, 1, 1]
    first, _, last = found.images
    assert first.boxes.tolist() == [[4, 5, 24, 15], [0, 0, 64, 48]]
    assert first.labels.tolist() == [1, 0]
    assert (first.height, first.width) == (48, 64)
    assert last.boxes.tolist() == [[70.5, 50, 80, 60]]
    assert not len(found.omitted)
    assert found.total == 7
    assert first.picture.load().size == (64, 48)


@pytest.mark.parametrize("folder", ["tr", "images", "."])
def test_images_are_found_beside_the_file(coco, write, folder):
    path = write(coco, folder)
    assert read_coco(path).folder == str(path.parent / folder)


def test_images_are_found_one_level_up(coco, write, tmp_path):
    path = write(coco)
    (tmp_path / "ann" / "tr").rename(tmp_path / "tr")
    assert read_coco(path).folder == str(tmp_path / "tr")


def test_images_that_are_nowhere_are_said_to_be_with_the_folders_tried(coco, write):
    path = write(coco)
    for file in (path.parent / "tr").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"such as a\.jpg, are in none of [^\n]*ann/tr, [^\n]*"):
        read_coco(path)


def _without(**changes):
    def change(coco):
        for key, value in changes.items():
            if value is None:
                del coco["annotations"][2][key]
            else:
                coco["annotations"][2][key] = value

    return change


def _image(**changes):
    return lambda coco: coco["images"][1].update(changes)


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (_without(bbox=None), ["annotations without a box (annotation 102)"]),
        (_without(bbox=[1, 2, 3]), ["annotations whose box is not four numbers (annotation 102)"]),
        (_without(bbox=[1, 2, 3, float("nan")]), ["whose box is not four numbers"]),
        (_without(bbox="box"), ["whose box is not four numbers"]),
        (_without(bbox=[1, True, 3, 4]), ["whose box is not four numbers"]),
        (_without(category_id=True), ["annotations of an unknown category"]),
        (_without(image_id=True), ["annotations of an unknown image"]),
        (_image(id=True), ["images without an id (image True)", "an unknown image"]),
        (_without(bbox=[1, 2, 0, 9]), ["annotations whose box has no extent (annotation 102)"]),
        (_without(bbox=[1, 2, 5, -9]), ["annotations whose box has no extent"]),
        (_without(bbox=[99, 2, 5, 9]), ["annotations whose box lies outside its image"]),
        (_without(category_id=5), ["annotations of an unknown category (annotation 102)"]),
        (_without(category_id=None), ["annotations of an unknown category"]),
        (_without(image_id=55), ["annotations of an unknown image (annotation 102)"]),
        (_without(image_id=[8]), ["annotations of an unknown image"]),
        (_image(file_name="absent.jpg"), ["images without a file (absent.jpg)"]),
        (_image(width=None), ["images without a width in pixels (image 8)", "an unknown image"]),
        (_image(height=-3), ["images without a height in pixels (image 8)", "an unknown image"]),
        (_image(file_name=7), ["images without a file name (image 8)", "an unknown image"]),
        (_image(id=7), ["images with an id that another has (image 7)", "an unknown image"]),
        (_image(width=31), ["images smaller than 32 pixels (b.jpg)"]),
    ],
)
def test_malformed_records_are_counted_and_named(coco, write, change, reasons):
    change(coco)
    found = read_coco(write(coco))
    told = found.omitted.describe()
    assert [image.picture.name[-5:] for image in found.images] == ["a.jpg", "c.png"]
    for reason in reasons:
        assert reason in told


def test_records_that_are_no_objects_are_counted(coco, write):
    coco["images"].append(3)
    coco["annotations"].append(None)
    told = read_coco(write(coco)).omitted.describe()
    assert "1 images not an object (image at place 3)" in told
    assert "1 annotations that are no objects (annotation at place 4)" in told


JUNK = (None, True, -1, 0, 7, 10**400, 1e308, float("nan"), "", "x" * 5000, "\0", "\ud800", [], {})


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_file_is_named_or_refused_in_one_sentence(coco, write, data):
    coco = copy.deepcopy(coco)
    for _ in range(data.draw(st.integers(1, 3))):
        where = coco[data.draw(st.sampled_from(sorted(coco)))]
        place = data.draw(st.integers(0, len(where) - 1))
        junk = data.draw(st.sampled_from(JUNK))
        if isinstance(where[place], dict) and where[place] and data.draw(st.booleans()):
            where[place][data.draw(st.sampled_from(sorted(where[place])))] = junk
        else:
            where[place] = junk
    refusal, images = "", []
    try:
        images = read_coco(write(coco)).images
    except ValueError as error:
        refusal = str(error)
    assert bool(images) != bool(refusal)
    assert "\n" not in refusal
    assert all(len(image.labels) for image in images)


def test_crowds_are_no_error_but_an_image_of_nothing_else_is_left_out(coco, write):
    coco["annotations"][2]["iscrowd"] = 1
    found = read_coco(write(coco))
    assert found.omitted.describe() == "1 images without boxes (b.jpg)"


def test_an_empty_image_file_is_left_out(coco, write):
    path = write(coco)
    (path.parent / "tr" / "b.jpg").write_bytes(b"")
    assert read_coco(path).omitted.describe() == "1 images whose file is empty (b.jpg)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty: download it again"),
        ("9" * 5001, "is damaged: it has numbers of thousands of digits"),
        ("[" * 100_000, "is damaged: .* brackets as deep"),
        ('{"images": [', "breaks off or is damaged at line 1"),
        ("[1, 2]", 'it has no list "images"'),
        ('{"images": [], "annotations": []}', 'it has no list "categories"'),
        ('{"images": [], "annotations": [], "categories": []}', "has no categories"),
        ('{"images": [], "annotations": [], "categories": [{}]}', "category without a whole"),
        ('{"images": [], "annotations": [], "categories": [{"id": true}]}', "id, at place 0"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1}]}', "it has no images"),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1}, {"id": 1}]}',
            "a category with an id that another has, at place 1",
        ),
    ],
)
def test_a_file_that_is_not_coco_is_refused_in_one_sentence(write, content, message):
    with pytest.raises(ValueError, match=rf"^[^\n]*{message}[^\n]*$"):
        read_coco(write(content))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no data file"):
        read_coco(tmp_path / "absent.json")
    with pytest.raises(ValueError, match="is a folder: give the COCO JSON file"):
        read_coco(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match=r"pipe\.json is not a file: give a COCO JSON file"):
        read_coco(tmp_path / "pipe.json")
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(ValueError, match=r"too long|a.x00b' cannot be the name") as caught:
            read_coco(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_links_that_lead_nowhere_are_missing_images(coco, write):
    path = write(coco)
    for name, target in (("b.jpg", "b.jpg"), ("c.png", "nothing"), ("stray.jpg", "stray.jpg")):
        (path.parent / "tr" / name).unlink(missing_ok=True)
        (path.parent / "tr" / name).symlink_to(target)
    found = read_coco(path)
    assert found.omitted.describe() == "2 images without a file (b.jpg, c.png)"


def test_an_unreadable_image_folder_is_one_sentence(coco, write, monkeypatch):
    path = write(coco)

    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ValueError, match=r"ann/tr cannot be read: Permission denied$"):
        read_coco(path)


def test_a_file_without_usable_images_says_why(coco, write):
    coco["annotations"] = []
    with pytest.raises(ValueError, match="holds no usable image: 3 images without boxes"):
        read_coco(write(coco))


def _rows(change=lambda rows: None):
    content = io.BytesIO()
    Image.new("RGB", (64, 48)).save(content, "PNG")
    row = {
        "image": {"bytes": content.getvalue(), "path": None},
        "width": 64,
        "height": 48,
        "objects": {"bbox": [[1.0, 2.0, 30.0, 40.0], [0.0, 0.0, 9.0, 9.0]], "category": [1, 0]},
    }
    rows = [copy.deepcopy(row) for _ in range(3)]
    change(rows)
    return datasets.Dataset.from_list(rows)


def test_rows_of_the_hub_hold_corners():
    found = from_rows(_rows(), ["person", "bicycle"])
    assert len(found.images) == 3
    assert found.images[2].boxes.tolist() == [[1, 2, 30, 40], [0, 0, 9, 9]]
    assert found.images[2].labels.tolist() == [1, 0]
    assert np.asarray(found.images[2].picture.load()).shape == (48, 64, 3)


def test_malformed_rows_of_the_hub_are_counted_and_named():
    def change(rows):
        rows[0]["objects"]["bbox"][0] = [30.0, 2.0, 1.0, 40.0]
        rows[1]["objects"] = {"bbox": [], "category": []}
        rows[2]["objects"]["category"][1] = 9

    told = from_rows(_rows(change), ["person", "bicycle"]).omitted.describe()
    assert "1 boxes whose box has no extent (row 0 box 0)" in told
    assert (
        "1 images without boxes (image of row 1)" in told or "images without boxes (row 1)" in told
    )
    assert "1 boxes of an unknown category (row 2 box 1)" in told


def test_boxes_of_the_hub_that_are_no_corners_are_refused():
    def change(rows):
        for row in rows:
            row["objects"]["bbox"] = [[30.0, 20.0, 9.0, 8.0] for _ in row["objects"]["bbox"]]

    with pytest.raises(ValueError, match=r"not corners .* --data PATH"):
        from_rows(_rows(change), ["person", "bicycle"])
