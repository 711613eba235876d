"""Folders of images: classes from folders or from a list, one size, and a sentence for each thing that is wrong."""

import numpy as np
import pytest
import torch
from data_files import sentence
from PIL import Image

from grapevine.core.errors import Mistake
from grapevine.data.pictures import read_images


def picture(path, pixels):
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


def test_a_folder_per_class(tmp_path):
    picture(tmp_path / "cat" / "1.png", np.full((2, 3, 3), 7))
    picture(tmp_path / "dog" / "old" / "2.png", np.arange(18).reshape(2, 3, 3))
    picture(tmp_path / "unlabelled" / "3.png", np.zeros((2, 3, 3)))
    picture(tmp_path / "4.png", np.full((2, 3), 9))
    (tmp_path / "notes.txt").write_text("not an image")
    images = read_images(tmp_path)
    assert images.ids == ["4.png", "cat/1.png", "dog/old/2.png", "unlabelled/3.png"]
    assert images.labels == [None, "cat", "dog", None]
    assert images.x.shape == (4, 3, 2, 3) and images.x.dtype == torch.uint8
    assert images.x[0].unique().tolist() == [9] and images.x[2].permute(1, 2, 0).flatten().tolist() == list(range(18))


def test_grey_images_keep_one_channel_and_labels_come_from_a_file(tmp_path):
    picture(tmp_path / "a.png", [[1, 2]])
    picture(tmp_path / "b.png", [[3, 4]])
    (tmp_path / "labels.csv").write_text("file,label,site\nb.png,3,north\n")
    images = read_images(tmp_path, other=["site"])
    assert images.x.tolist() == [[[[1, 2]]], [[[3, 4]]]] and images.labels == [None, "3"]
    assert images.other == {"site": [None, "north"]}


def test_images_are_brought_to_one_size_when_told(tmp_path):
    picture(tmp_path / "a.png", np.full((8, 12, 3), 50))
    picture(tmp_path / "b.png", np.full((20, 10, 3), 60))
    images = read_images(tmp_path, size=4)
    assert images.x.shape == (2, 3, 4, 4) and images.x.flatten(1).unique(dim=1).tolist() == [[50], [60]]
    with pytest.raises(Mistake, match="b.png is 10×20 pixels and .*a.png is 12×8") as error:
        read_images(tmp_path)
    sentence(error)


def test_bad_images(tmp_path):
    with pytest.raises(Mistake, match="no folder"):
        read_images(tmp_path / "none")
    with pytest.raises(Mistake, match="no images"):
        read_images(tmp_path)
    picture(tmp_path / "a.png", [[1, 2]])
    with pytest.raises(Mistake, match="no labels.csv"):
        read_images(tmp_path, other=["site"])
    for text, words in [
        ("file,kind\na.png,k\n", "no column 'label'"),
        ("file,label\nb.png,k\n", "'b.png', which is not an image"),
        ("file,label\na.png,k\na.png,k\n", "two lines for file 'a.png'"),
        ("file,label\na.png\n", "line 2: 1 cells"),
    ]:
        (tmp_path / "labels.csv").write_text(text)
        with pytest.raises(Mistake, match=words) as error:
            read_images(tmp_path)
        sentence(error)
    (tmp_path / "labels.csv").unlink()
    Image.fromarray(np.ones((2, 2), dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(Mistake, match="deep.png has more than 8 bits"):
        read_images(tmp_path)
    (tmp_path / "deep.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    with pytest.raises(Mistake, match="deep.png cannot be read as an image"):
        read_images(tmp_path)
    (tmp_path / "deep.png").write_text("no picture")
    with pytest.raises(Mistake, match=r"deep.png cannot be read as an image \(it is in no known format\): repair it"):
        read_images(tmp_path)
