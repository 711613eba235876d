"""Data sets from arrays, frames and Hugging Face datasets."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import grapevine as gv
from grapevine.core.errors import Mistake
from grapevine.data import load

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)), np.arange(40) % 2
PIXELS = RNG.integers(0, 256, (40, 6, 5)).astype(np.uint8)


def test_a_pair_is_a_table():
    data = load((X, np.where(Y == 1, 1, -1)))
    assert data.kind == "table" and data.layout.names == ("x1", "x2", "x3") and data.classes == ("1",) and data.group is None
    both = torch.cat([data.x, data.x_test])
    np.testing.assert_allclose(np.sort(both.numpy(), 0), np.sort(X.astype(np.float32), 0))


def test_a_list_is_one_a_party_and_a_dict_has_their_names():
    assert load([(X, Y), (X[:20], Y[:20])]).group_names == ("party-1", "party-2")
    data = load({"north": (X, Y), "south": (X[:20], Y[:20])})
    assert data.group_names == ("north", "south") and torch.bincount(data.group).tolist() == [32, 16]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_frames(make):
    rows = dict(a=X[:, 0], city=["Bonn", "Ulm", "Rom", "Ulm"] * 10, site=["N", "S"] * 20, y=np.where(Y == 1, "ill", "well"))
    one = load(make(rows), party="site")
    assert one.layout.names == ("a", "city=Bonn", "city=Rom", "city=Ulm", "city=other") and one.group_names == ("N", "S")
    rows.pop("site")
    two = load([make(rows), make({**rows, "city": ["Bonn", "Ulm"] * 20})])
    assert two.layout.names == one.layout.names and len(two.x) + len(two.x_test) == 80
    hot = torch.cat([two.x, two.x_test])[:, 1:].sum(0)
    assert hot.tolist() == [10 + 20, 10, 20 + 20, 0]


def test_a_frame_with_labels_beside_it():
    data = load((pd.DataFrame(dict(a=X[:, 0], city=["Bonn", "Ulm"] * 20)), Y))
    assert data.layout.names == ("a", "city=Bonn", "city=Ulm", "city=other") and data.classes == ("0", "1")


@pytest.mark.parametrize("shape", [(40, 6, 5), (40, 6, 5, 1), (40, 1, 6, 5)])
def test_pixels_as_bytes_whole_numbers_or_shares(shape):
    for pixels in (PIXELS, PIXELS.astype(np.int64), PIXELS.astype(np.float32), PIXELS / 255, torch.from_numpy(PIXELS / 255)):
        data = load((pixels.reshape(shape), Y))
        assert data.kind == "image" and data.x.dtype == torch.uint8
        whole = torch.cat([data.x, data.x_test])[:, 0]
        assert sorted(whole.flatten(1).tolist()) == sorted(PIXELS.reshape(40, -1).tolist())


@pytest.mark.parametrize("pixels", [PIXELS / 127.5 - 1, PIXELS + 0.5, PIXELS * 2.0, PIXELS.astype(int) - 1, PIXELS / 100])
def test_pixels_in_another_range_are_refused(pixels):
    with pytest.raises(
        Mistake, match="shape of images and values from .* whole numbers from 0 to 255 or as fractions from 0 to 1"
    ):
        load((pixels, Y))


def test_training_on_objects_and_predicting():
    far = X + 4 * Y[:, None]
    run = gv.train("fedavg", [(far, Y), (far[:20], Y[:20])], rounds=3, model="linear", set={"lr": 0.5})
    assert run.result["data"]["partition"] == "natural" and run.result["accuracy"] == 1.0
    images = gv.train("fedavg", (PIXELS / 255, Y), clients=2, rounds=1, model="linear")
    assert images.predict(PIXELS / 255) == images.predict(PIXELS)
    frame = pd.DataFrame(dict(a=far[:, 0], city=np.where(Y == 1, "Bonn", "Ulm"), label=Y))
    table = gv.train("fedavg", frame, clients=2, rounds=3, model="linear", set={"lr": 0.5})
    asked = table.predict(frame.assign(city="Bonn", a=2.0)[["city", "a"]])  # in another order, without labels
    assert asked == ["1"] * 40


def test_hugging_face():
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    kinds = datasets.Features(dict(image=datasets.Image(), label=datasets.ClassLabel(names=["no", "yes"])))
    made = datasets.Dataset.from_dict(dict(image=[Image.fromarray(each) for each in PIXELS], label=Y.tolist()), features=kinds)
    data = load([made.select(range(20)), made.select(range(20, 40))])
    assert data.classes == ("no", "yes") and data.x.shape[1:] == (1, 6, 5) and data.group_names == ("party-1", "party-2")
    kinds = datasets.Features(dict(a=datasets.Value("float32"), label=datasets.ClassLabel(names=["no", "yes"])))
    table = load(datasets.Dataset.from_dict(dict(a=X[:, 0].tolist(), label=Y.tolist()), features=kinds))
    assert table.classes == ("no", "yes") and table.x.shape[1] == 1


@pytest.mark.parametrize(
    "given, words",
    [
        (3, "data is a int: give a name, a path, a split"),
        ([], "data is a list"),
        ([X, Y, X], "data is a list"),
        ([(X, Y), (X[:, :2], Y)], r"party-2 has rows of shape \(2,\) and party-1 has \(3,\)"),
        ([(X, Y), pd.DataFrame(dict(a=[1], y=[2]))], "some of the parties are frames and others arrays"),
        ((X, Y[:3]), "40 rows and 3 labels"),
        ((np.array([["a", "b"]] * 40), Y), "give numbers, or a frame"),
        ((np.where(X == X[3, 1], np.nan, X), Y), "row 4, column 2: not a finite number"),
        ((pd.DataFrame(X), Y[:3]), "party-1 has 40 rows and 3 labels"),
        ([(pd.DataFrame(X), Y), (X, Y)], "some of the parties are frames and others arrays"),
        (pd.DataFrame(dict(a=[1.0, 2])), "name the label column with --label"),
    ],
)
def test_objects_that_cannot_be_used(given, words):
    with pytest.raises(Mistake, match=words):
        load(given)


def test_data_shows_itself_in_a_line():
    rows = load((X, Y))
    assert repr(rows) == f"the data: {len(rows.x)} rows of {X.shape[1]} to train on, {len(rows.x_test)} to test on, 2 classes"
    split = rows.split(clients=2, labels="clients:12")
    unlabelled = sum(len(part.unlabelled) for part in split.parts)
    assert repr(split) == f"the data at 2 clients: 12 labelled rows and {unlabelled} without a label"


def test_parts_of_a_hugging_face_data_set_are_not_parties():
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_dict(dict(a=[1.0, 2.0], label=["x", "y"]))
    with pytest.raises(Mistake, match=r"DatasetDict with train, test: give one of them, as in data\['train'\]"):
        load(datasets.DatasetDict(train=part, test=part))
