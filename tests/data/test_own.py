"""Data sets of one's own: tables, NPZ files, folders of images."""

import numpy as np
import pytest
import torch
from data_files import RNG, check, picture

from grapevine.core.errors import Mistake
from grapevine.data.catalogue import load
from grapevine.data.datasets import hold_out


def own_csv(path, n=40, extra=None):
    extra = extra or {}
    rows = [
        f"{i},{i % 3 - 0.5},{'' if i % 8 == 7 else 'ab'[i % 2]}" + "".join(f",{v[i]}" for v in extra.values()) for i in range(n)
    ]
    path.write_text(",".join(["height", "width", "label", *extra]) + "\n" + "\n".join(rows) + "\n")
    return path


def test_own_table_has_a_fifth_of_each_class_held_out(tmp_path):
    data = check(load(own_csv(tmp_path / "mine.csv")))
    assert (data.name, data.kind, data.classes) == ("mine", "table", ("a", "b")) and data.group is None
    # 20 rows of class a; 15 of b, the other 5 of which have no label and stay in the training part
    assert torch.bincount(data.y_test).tolist() == [4, 3] and torch.bincount(data.y + 1).tolist() == [5, 16, 12]
    together = torch.cat([data.x, data.x_test])[:, 0].sort().values
    assert together.tolist() == list(range(40))
    np.testing.assert_allclose(data.scale(data.x).std(0, correction=0), [1, 1], rtol=1e-5)


def test_own_table_with_parties_and_a_split_column(tmp_path):
    sites = ["north", "south"] * 20
    data = check(load(own_csv(tmp_path / "a.csv", extra={"site": sites}), party="site"))
    assert data.group_names == ("north", "south") and torch.bincount(data.group_test).tolist() == [4, 3]
    assert data.x.shape[1] == 2  # the party is no feature
    split = ["test" if i in (0, 1, 9) else "val" if i == 2 else "train" for i in range(40)]
    data = check(load(own_csv(tmp_path / "b.csv", extra={"split": split})))
    assert data.x_test[:, 0].tolist() == [0, 1, 9] and data.x_val[:, 0].tolist() == [2] and data.y_test.tolist() == [0, 1, 1]
    data = load(own_csv(tmp_path / "c.csv", extra={"split": [0.5] * 40}))  # numbers: a feature like others
    assert data.x.shape[1] == 3


def test_own_npz(tmp_path):
    x, y = RNG.normal(size=(30, 4)), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", X=x, y=y, clinic=y % 2)
    data = check(load(tmp_path / "a.npz", party="clinic"))
    assert data.classes == ("0", "1", "2") and data.group_names == ("0", "1") and len(data.x) == 24
    np.savez(tmp_path / "b.npz", x_train=x[:20], y_train=y[:20] - 1, x_test=x[20:], y_test=np.full(10, 1))
    data = check(load(tmp_path / "b.npz"))
    assert data.classes == ("0", "1") and data.y.tolist() == (y[:20] - 1).tolist() and len(data.x_test) == 10
    pictures = RNG.integers(0, 256, (30, 3, 6, 7)).astype(np.uint8)
    for name, array in [("c.npz", pictures), ("d.npz", pictures.transpose(0, 2, 3, 1))]:
        np.savez(tmp_path / name, X=array, y=y)
        data = check(load(tmp_path / name))
        assert data.kind == "image" and data.x.shape[1:] == (3, 6, 7)
        np.testing.assert_array_equal(data.x_test, pictures[hold_out(y)])


def test_own_images(tmp_path):
    for i in range(10):
        picture(tmp_path / "pets" / "cat" / f"{i}.png", i, (6, 4))
        picture(tmp_path / "pets" / "dog" / f"{i}.png", 100 + i, (6, 4))
        picture(tmp_path / "pets" / f"{i}.png", 200, (6, 4))
    data = check(load(tmp_path / "pets"))
    assert data.classes == ("cat", "dog") and data.name == "pets" and data.x.shape == (26, 3, 4, 6)
    assert torch.bincount(data.y_test).tolist() == [2, 2] and int((data.y == -1).sum()) == 10
    assert ((data.x_test[:, 0, 0, 0] >= 100).long() == data.y_test).all()


def test_own_images_in_train_and_test_folders(tmp_path):
    for i, where in enumerate(["train/cat", "train/dog", "test/dog", "val/cat"]):
        picture(tmp_path / where / "1.png", i, (6, 4))
    data = check(load(tmp_path))
    assert data.y.tolist() == [0, 1] and data.y_test.tolist() == [1] and data.y_val.tolist() == [0]
    assert data.x_test[0, 0, 0, 0] == 2
    picture(tmp_path / "test" / "dog" / "1.png", 1, (5, 5))
    with pytest.raises(Mistake, match="differ in size"):
        load(tmp_path)
    assert load(tmp_path, size=3).x.shape[1:] == (3, 3, 3)


OWN_MISTAKES = {
    "no label column": ("a,b\n1,2\n", {}, "--label .the columns are a, b"),
    "no label": ("a,y\n1,\n2,-1\n", {}, "no row of .* has a label"),
    "too few rows": ("a,y\n1,k\n2,\n", {}, "too few labelled rows"),
    "no party": ("a,y,site\n1,k,N\n2,k,\n", dict(party="site"), "row 2: the party is missing"),
    "party column missing": ("a,y,site\n1,k,N\n2,k,S\n", dict(party="Site"), "no column 'Site' .did you mean 'site'"),
    "test row without label": ("a,y,split\n1,k,train\n2,,test\n", {}, "row 2 is for testing but has no label"),
    "text in a feature": ("a,y\nx,k\n2,k\n", {}, "line 2, column 'a': 'x' is not a number"),
}


@pytest.mark.parametrize("case", OWN_MISTAKES)
def test_mistakes_in_own_tables(tmp_path, case):
    text, options, words = OWN_MISTAKES[case]
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(Mistake, match=words) as error:
        load(tmp_path / "mine.csv", **options)
    assert str(tmp_path / "mine.csv") in str(error.value)


@pytest.mark.parametrize(
    "arrays, words",
    [
        (dict(X=np.ones((3, 2)), y=np.ones(2)), "one label per row"),
        (dict(X=np.ones((3, 2))), "no array 'y'"),
        (dict(X=np.array([[1, np.inf], [1, 1]]), y=np.ones(2)), "row 1, column 2: not a finite number"),
        (dict(X=np.array([["a"], ["b"]]), y=np.ones(2)), "give numbers"),
    ],
)
def test_mistakes_in_own_npz(tmp_path, arrays, words):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(Mistake, match=words):
        load(tmp_path / "mine.npz")
