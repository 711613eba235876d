"""The clean job on images: folders, arrays and npz, sizes that differ, and features of a trained run."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from clean_job import stripes
from PIL import Image

import grapevine as gv
from grapevine.core.errors import Mistake
from grapevine.jobs.reading import read as read_rows
from grapevine.jobs.settings import CleanSettings


def save(folder, x, y, names=("lying", "upright")):
    for i, (pixels, c) in enumerate(zip(x, y)):
        place = folder / (names[c] if c >= 0 else "unlabelled")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:03}.png")


def test_folders_of_images_with_their_pictures_in_the_report(tmp_path):
    x, truth = stripes(24, 1)
    y = truth.copy()
    y[:4] = 1 - y[:4]
    y[4] = -1
    save(tmp_path / "clinic", x, y)
    save(tmp_path / "experts", *stripes(80, 2))
    colour = np.repeat(x[:, :, :, None], 3, 3)
    save(tmp_path / "colour", colour, y)
    out = tmp_path / "out"
    result = gv.clean([tmp_path / "clinic", tmp_path / "colour"], server=tmp_path / "experts", epochs=30, out=out)
    assert result.model == "cnn" and result[0].ids == result[1].ids
    wrong = {f"{('lying', 'upright')[y[i]]}/{i:03}.png" for i in range(4)}
    corrected = {
        name for name, action, given in zip(result[0].ids, result[0].action, result[0].given) if action == "corrected" and given
    }
    assert corrected == wrong
    np.testing.assert_allclose(result[0].proba, result[1].proba, atol=1e-4)  # grey as colour is the same picture
    examples = json.loads((out / "clinic" / "suspicious.json").read_text())["doubted"]
    assert {one["id"] for one in examples} == wrong
    html = (out / "report.html").read_text(encoding="utf-8")
    assert all(f"data:image/png;base64,{one['picture']}" in html for one in examples)
    assert "default-src 'none'; img-src data:;" in html


def test_arrays_and_npz_of_images_are_images(tmp_path):
    x, y = stripes(20, 1)
    own = stripes(60, 2)
    by_array = gv.clean([(x, y)], server=own, epochs=5)
    assert by_array.model == "cnn"
    np.savez(tmp_path / "a.npz", X=x, y=y)
    np.savez(tmp_path / "s.npz", X=own[0], y=own[1])
    by_file = gv.clean([tmp_path / "a.npz"], server=tmp_path / "s.npz", label="y", epochs=5)
    np.testing.assert_array_equal(by_file[0].loss, by_array[0].loss)
    channels_first = np.repeat(x[:, None], 3, 1)
    assert read_rows(CleanSettings(), [(channels_first, y)], server=own)[0][1].x.shape == (20, 3, 8, 8)
    np.savez(tmp_path / "flat.npz", X=x.reshape(20, -1), y=y)
    with pytest.raises(Mistake, match="s.npz holds images, but --impute is for tables"):
        gv.clean([tmp_path / "a.npz"], server=tmp_path / "s.npz", label="y", impute=True)
    with pytest.raises(Mistake, match="flat.npz is a table but others hold images"):
        gv.clean([tmp_path / "flat.npz"], server=tmp_path / "s.npz", label="y")


def test_images_of_different_sizes(tmp_path):
    save(tmp_path / "experts", *stripes(8, 2))
    save(tmp_path / "large", *stripes(8, 2, size=12))
    with pytest.raises(Mistake, match="large has images of 12×12 pixels and the server has 8×8"):
        gv.clean([tmp_path / "large"], server=tmp_path / "experts")
    save(tmp_path / "mixed", *stripes(8, 2))
    Image.new("L", (9, 8)).save(tmp_path / "mixed" / "lying" / "odd.png")
    with pytest.raises(Mistake, match="resize all images to one size"):
        gv.clean([tmp_path / "mixed"], server=tmp_path / "experts")


def test_truth_of_images_is_a_column_of_labels_csv(tmp_path):
    x, truth = stripes(12, 1)
    save(tmp_path / "clinic", x, np.full(12, -1))
    names = ["lying", "upright"]
    with open(tmp_path / "clinic" / "labels.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "label", "truth"])
        table.writerows([f"unlabelled/{i:03}.png", names[1 - c] if i < 3 else names[c], names[c]] for i, c in enumerate(truth))
    save(tmp_path / "experts", *stripes(80, 2))
    result = gv.clean([tmp_path / "clinic"], server=tmp_path / "experts", truth="truth", epochs=30)
    assert result.measured["wrong labels found"]["of"] == 3


def test_features_of_a_trained_run(tmp_path, digits):
    split = digits.split(clients=4, labels="all")
    gv.train(gv.methods.FedAvg(), split, rounds=2, model="mlp", out=tmp_path / "run")
    X, y = digits.x.flatten(1).numpy(), digits.y.numpy()
    for name, part in (("a", slice(0, 60)), ("s", slice(60, 260))):
        np.savez(tmp_path / f"{name}.npz", X=X[part].astype(np.float64), y=y[part])
    result = gv.clean([tmp_path / "a.npz"], server=tmp_path / "s.npz", label="y", embed=str(tmp_path / "run"), epochs=5)
    assert result.model == "linear" and result[0].examples["doubted"] is not None
    assert (np.array(result[0].proposed) == np.array([str(c) for c in y[:60]])).mean() > 0.7
