"""Places for results: what cannot be written is refused before any work, and the check leaves nothing behind."""

from __future__ import annotations

import os

import pytest

from grapevine.core.errors import Mistake
from grapevine.core.places import require_file, require_folder, writing_name
from grapevine.core.store import write_atomically


def test_a_good_place_is_as_it_was(tmp_path):
    (tmp_path / "old").write_text("kept")
    require_folder(tmp_path / "new" / "inside")
    require_folder(tmp_path)
    require_file(tmp_path / "new")
    require_file(tmp_path / "old")
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "kept"


@pytest.mark.parametrize("check", [require_folder, require_file])
def test_a_bad_place_is_a_sentence_with_a_way_out(tmp_path, check):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    bad = [tmp_path / ("x" * 300), tmp_path / "file" / "x"]
    bad += [tmp_path / "file"] if check is require_folder else [tmp_path / "folder", tmp_path / "no" / "x"]
    for place in bad:
        with pytest.raises(Mistake, match="choose another --out") as refused:
            check(place)
        assert str(place.name) in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.parametrize("name", ["x" * 250, "é" * 120])
def test_a_long_name_that_fits_can_be_written(tmp_path, name):
    write_atomically(tmp_path / name, b"1")
    assert os.listdir(tmp_path) == [name] and len(os.fsencode(writing_name(tmp_path / name).name)) < 255
