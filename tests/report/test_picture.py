import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from grapevine.core.rows import Scale
from grapevine.data.datasets import Dataset
from grapevine.data.dealing import split
from grapevine.report import picture


def toy(n=3000, name="toy", classes=10):
    x, y = torch.arange(n).float()[:, None], torch.arange(n) % classes
    scale = Scale(1.0, torch.zeros(1), torch.ones(1))
    return Dataset(name, "table", x, y, x[:10], y[:10], tuple(f"a class called {c}" for c in range(classes)), scale)


def share_of(path, colour):
    """The share of pixels of exactly this colour."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    return (pixels == np.round(np.array(to_rgb(colour)) * 255)).all(-1).mean()


@pytest.mark.parametrize("clients", [3, 45])
def test_only_what_is_there_is_drawn(tmp_path, clients):
    noisy = split(toy(), clients, labels="clients:1500", flip=0.5, irrelevant="other:0.5", foreign=toy(name="other"))
    plain = split(toy(), clients, labels="server:500")
    picture.draw(noisy, tmp_path / "noisy.png")
    picture.draw(plain, tmp_path / "plain.png")
    for colour in (picture.LABELLED, picture.UNLABELLED, picture.FLIPPED, picture.FOREIGN):
        assert share_of(tmp_path / "noisy.png", colour) > 1e-3
    assert share_of(tmp_path / "plain.png", picture.FLIPPED) == share_of(tmp_path / "plain.png", picture.FOREIGN) == 0
    assert share_of(tmp_path / "plain.png", picture.LABELLED) > 1e-4  # the server's column


def test_columns_hold_the_splits_numbers():
    s = split(toy(), 5, "dirichlet:0.3", "server:40,clients:100", flip=0.1)
    columns = picture._columns(s)
    assert columns.names == ["0", "1", "2", "3", "4", "server"] and columns.at[-1] > 5
    for i, line in enumerate(s.table()):
        assert (columns.labelled[i] + columns.unlabelled[i]).tolist() == line["classes"]
        assert (columns.labelled[i].sum(), columns.flipped[i]) == (line["labelled"], line["flipped"])


def test_the_same_split_gives_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        picture.draw(split(toy(300), 4), tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text() and "</svg>" in text
