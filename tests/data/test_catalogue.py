"""Where files of named data sets are looked for, and what is said when they are not there."""

import numpy as np
import pytest
from data_files import write_idx

from grapevine.core.errors import Mistake
from grapevine.data import download
from grapevine.data.catalogue import load, names
from grapevine.data.download import cache_dir, places


def test_data_dir_comes_before_the_environment_before_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPEVINE_DATA", str(tmp_path / "environment"))
    looked = places(tmp_path / "given")
    assert looked == [tmp_path / "given", tmp_path / "environment", cache_dir()]
    write_idx(cache_dir() / "mnist", (np.arange(3), np.arange(2)))
    assert len(load("mnist").x) == 3
    write_idx(tmp_path / "environment" / "mnist", (np.arange(4), np.arange(2)))
    assert len(load("mnist").x) == 4
    write_idx(tmp_path / "given" / "mnist", (np.arange(5), np.arange(2)))
    assert len(load("mnist", tmp_path / "given").x) == 5 and len(load("mnist").x) == 4
    where = {known["name"]: known["where"] for known in names(tmp_path / "given")}
    assert where["mnist"] == str(tmp_path / "given" / "mnist") and where["svhn"] == "" and where["digits"] == "embedded"


def test_a_missing_set_says_where_it_looked_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPEVINE_DATA", str(tmp_path / "environment"))
    with pytest.raises(Mistake) as error:
        load("svhn", tmp_path / "given")
    for word in ("svhn", "train_32x32.mat", str(tmp_path / "given"), str(tmp_path / "environment"), str(cache_dir())):
        assert word in str(error.value)
    assert "`grapevine data get svhn`" in str(error.value) and "--data-dir" in str(error.value)


@pytest.mark.parametrize("name", sorted(download.BY_HAND))
def test_a_missing_set_does_not_recommend_a_download_that_is_refused(tmp_path, name):
    """`data get cifar10-lite0` was recommended, and said that it cannot be downloaded; the same for the others made by hand."""
    with pytest.raises(Mistake) as error:
        load(name, tmp_path)
    assert "data get" not in str(error.value) and download.way(name, tmp_path) in str(error.value)
    assert str(tmp_path / name) in str(error.value) and str(error.value).endswith(", or use --data-dir.")


def test_bad_requests(tmp_path):
    for options, words in [
        (dict(name_or_path="fashion_mnist"), "did you mean 'fashion-mnist'"),
        (dict(name_or_path="digits", label="y"), "for your own files"),
        (dict(name_or_path="digits", size=8), "does not take size"),
    ]:
        with pytest.raises(Mistake, match=words):
            load(**options)
    np.savez(tmp_path / "femnist_leaf.npz", x=np.zeros(3))
    with pytest.raises(Mistake, match="damaged or of another version"):
        load("femnist", tmp_path)


def test_a_mistyped_path_names_the_file_that_is_near(tmp_path):
    """It was answered with the names of all data sets."""
    (tmp_path / "patients.csv").write_text("a,label\n1,k\n")
    with pytest.raises(Mistake, match=r"there is no file .*patient.csv \(did you mean 'patients.csv'\?\): check the path"):
        load(str(tmp_path / "patient.csv"))
    for name in ("missing.csv", "x.csv", "rows.csv"):  # an ending alone is not near
        with pytest.raises(Mistake, match=f"there is no file .*{name}: check the path"):
            load(str(tmp_path / name))
    with pytest.raises(Mistake, match="there is no folder .*nowhere and so no file"):
        load(str(tmp_path / "nowhere" / "patients.csv"))
