import os

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
    assert found.total == 6
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


def _names(found, folder):
    return [picture.name.removeprefix(f"{folder}/") for picture in found.pictures]


@pytest.mark.parametrize(("name", "target"), [("loop", "."), ("up", ".."), ("out", "../..")])
def test_links_that_lead_back_are_followed_no_further(folder, name, target):
    (folder / "cat" / name).symlink_to(target)
    found = read_image_folder(folder)
    assert _names(found, folder) == ["cat/1.jpg", "cat/more/2.PNG", "dog/3.jpeg"]
    assert "1 links to folders that are read anyway" in found.omitted.describe()
    assert f"cat/{name}" in found.omitted.describe()


def test_a_folder_below_belongs_to_its_own_class_however_linked(folder):
    (folder / "dog" / "inner").mkdir()
    (folder / "dog" / "3.jpeg").rename(folder / "dog" / "inner" / "3.jpeg")
    (folder / "cat" / "link").symlink_to("../dog/inner")
    (folder / "ape").symlink_to("dog")
    found = read_image_folder(folder)
    assert found.classes == ("ape", "cat", "dog")
    assert found.labels == [1, 1, 2]
    told = found.omitted.describe()
    assert "2 links to folders that are read anyway" in told
    assert "1 classes without an image (ape)" in told


def test_folders_elsewhere_are_read_once(folder, tmp_path):
    other = tmp_path / "other"
    (folder / "cat").rename(other)
    (folder / "cat").symlink_to(other)
    (folder / "dog" / "again").symlink_to(other)
    (other / "loop").symlink_to(other)
    found = read_image_folder(folder)
    assert _names(found, folder) == ["cat/1.jpg", "cat/more/2.PNG", "dog/3.jpeg"]
    assert found.omitted.describe().startswith("2 links to folders")


def test_links_that_lead_nowhere_are_counted_and_named(folder):
    (folder / "cat" / "b.png").symlink_to("nothing")
    (folder / "cat" / "c.png").symlink_to("c.png")
    (folder / "cat" / "d").symlink_to("e")
    (folder / "cat" / "e").symlink_to("d")
    (folder / "emu").symlink_to("nothing")
    os.mkfifo(folder / "dog" / "pipe.png")
    found = read_image_folder(folder)
    assert len(found.pictures) == 3
    told = found.omitted.describe()
    assert "5 broken links (emu, " in told
    assert "cat/b.png" in told
    assert "1 pipes and devices" in told
    assert found.total == 9


def _refuse(monkeypatch, refused):
    scandir = os.scandir

    def refusing(path):
        if path == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)


@pytest.mark.parametrize("name", ["cat/more", "cat"])
def test_unreadable_folders_are_named(folder, monkeypatch, name):
    _refuse(monkeypatch, folder / name)
    told = read_image_folder(folder).omitted.describe()
    assert "1 unreadable folders" in told
    assert name in told


def test_what_cannot_be_looked_at_is_one_sentence(folder, monkeypatch):
    for path, message in (
        (folder / ("x" * 300), "x cannot be read: File name too long"),
        (folder / "a\0b", r"'.*a\\x00b' cannot be the name of a data folder"),
    ):
        with pytest.raises(ValueError, match=rf"^[^\n]*{message}[^\n]*$"):
            read_image_folder(path)
    _refuse(monkeypatch, folder)
    with pytest.raises(ValueError, match=r"pets cannot be read: Permission denied$"):
        read_image_folder(folder)
