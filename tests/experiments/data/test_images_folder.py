import pytest
from PIL import Image

from mimose_bench.experiments.data.image_folder import read_image_folder


@pytest.fixture
def folder(tmp_path):
    for name in ("cat/1.jpg", "cat/more/2.PNG", "dog/3.jpeg"):
        path = tmp_path / "pets" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.new("RGB", (40, 30)).save(path)
    return tmp_path / "pets"


def test_folders_are_classes_in_alphabetical_order(folder):
    found = read_image_folder(folder)
    assert found.classes == ("cat", "dog")
    assert found.labels == [0, 0, 1]
    names = [picture.name.removeprefix(f"{folder}/") for picture in found.pictures]
    assert names == ["cat/1.jpg", "cat/more/2.PNG", "dog/3.jpeg"]
    assert not len(found.omitted)


def test_the_folder_of_the_training_split_is_meant(folder):
    for split in ("train", "val"):
        (folder.parent / "set" / split).mkdir(parents=True)
    folder.rename(folder.parent / "set" / "train" / "pets")
    assert read_image_folder(folder.parent / "set").classes == ("pets",)


def test_what_cannot_be_used_is_counted_and_named(folder):
    (folder / "dog" / "notes.txt").write_text("barks")
    (folder / "dog" / "4.jpg").touch()
    (folder / "emu").mkdir()
    (folder / "dog" / ".DS_Store").write_text("hidden")
    found = read_image_folder(folder)
    assert found.classes == ("cat", "dog", "emu")
    assert found.total == 5
    told = found.omitted.describe()
    assert "1 files that are no images" in told
    assert "1 empty files" in told
    assert "1 classes without an image (emu)" in told


def test_what_is_no_folder_of_classes_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="is a file: give the folder"):
        read_image_folder(folder / "cat" / "1.jpg")
    with pytest.raises(ValueError, match="there is no data folder"):
        read_image_folder(tmp_path / "absent")
    with pytest.raises(ValueError, match="has no folders: put the images of each class"):
        read_image_folder(folder / "dog")
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(ValueError, match="no usable image: 1 classes without an image"):
        read_image_folder(tmp_path / "empty")
