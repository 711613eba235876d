"""A split: what holders see of it, and how it is kept on disk."""

import json
import os
from dataclasses import replace

import pytest
import torch
from data_files import toy

from grapevine.core.errors import Mistake
from grapevine.data.dealing import split
from grapevine.data.split import Split

# What holders see


def test_clients_see_views_of_one_tensor_without_truth():
    data = toy(1000)
    s = split(data, 10, labels="clients:100")
    mine = s.client(3)
    assert mine.labelled.x.data_ptr() == mine.unlabelled.x.data_ptr() == data.x.data_ptr()
    assert torch.equal(mine.labelled.inputs().flatten().long(), s.parts[3].labelled)
    assert torch.equal(mine.labelled.y, data.y[s.parts[3].labelled]) and (mine.unlabelled.y == -1).all()
    assert torch.equal(s.client_truth(3)[1], data.y[s.parts[3].unlabelled])
    assert mine.classes == data.classes
    assert torch.equal(s.validation_rows().y, data.y[s.validation])


def test_class_mix_and_table():
    s = split(toy(400, classes=4), 4, "shards:1", "clients:40", flip=0.25, validation=0)
    for i, line in enumerate(s.table()):
        assert s.class_mix(i).max() == 1 and s.class_mix(i).sum() == 1
        assert (line["client"], line["rows"], line["labelled"], line["unlabelled"]) == (str(i), 100, 10, 90)
        assert sorted(line["classes"]) == [0, 0, 0, 100] and line["irrelevant"] == 0
    assert sum(line["flipped"] for line in s.table()) == 10
    assert split(toy(), 5, labels="server:20").table()[-1]["client"] == "server"


def test_given_and_true_labels_are_counted_over_all_clients(tmp_path):
    s = split(toy(400, classes=4), 4, "iid", "clients:40", flip=0.25, irrelevant="other:0.5", foreign=toy(500, name="other"))
    expected = {}
    for i, part in enumerate(s.parts):
        for pair in zip(part.labels.tolist(), s.client_truth(i)[0].tolist()):
            expected[pair] = expected.get(pair, 0) + 1
    assert {(label, true): n for label, true, n in s.given_true()} == expected
    assert sum(n for label, true, n in s.given_true() if label != true and true >= 0) == 10
    s.save(tmp_path / "split.json")
    assert json.loads((tmp_path / "split.json").read_text())["given_true"] == s.given_true()


def test_reveal_gives_everybody_the_truth():
    data, other = toy(600, unknown=50), toy(500, name="other")
    s = split(data, 6, "dirichlet:0.5", "server:30,clients:60", 0.5, "other:0.5", other)
    r = s.reveal()
    for before, after in zip(s.parts, r.parts):
        assert torch.equal(after.labels, data.y[after.labelled]) and (data.y[after.unlabelled] == -1).all()
        own = torch.cat([before.labelled, before.unlabelled])
        assert set(own[own < 650].tolist()) == set(torch.cat([after.labelled, after.unlabelled]).tolist())
    assert r.x is data.x and torch.equal(r.server.labelled, s.server.labelled)
    assert r.settings["labels"] == "server:30,clients:all" and r.settings["flip"] == 0 and r.hash != s.hash


# On disk


def test_save_and_load(tmp_path):
    data, other = toy(600, groups=6), toy(500, name="other")
    s = split(data, 4, "natural", "server:20,clients:60", 0.5, "other:0.5", other, seed=9)
    s.save(tmp_path / "split.json")
    again = Split.load(tmp_path / "split.json", data, other)
    assert (again.hash, again.settings, again.seed, again.groups) == (s.hash, s.settings, 9, s.groups)
    for a, b in zip([*s.parts, s.server], [*again.parts, again.server]):
        assert torch.equal(a.labelled, b.labelled) and torch.equal(a.labels, b.labels) and torch.equal(a.unlabelled, b.unlabelled)
    assert torch.equal(s.x, again.x) and torch.equal(s.truth, again.truth)
    assert os.listdir(tmp_path) == ["split.json"]
    saved = json.loads((tmp_path / "split.json").read_text())
    assert saved["settings"]["labels"] == "server:20,clients:60" and len(saved["clients"]) == 4


def test_a_split_is_not_applied_to_other_data(tmp_path):
    path = tmp_path / "split.json"
    data = toy(600)
    split(data, 4).save(path)
    x = data.x.clone()
    x[5] += 1
    for other in (toy(601), replace(data, x=x), replace(data, name="another")):
        with pytest.raises(Mistake, match="different data"):
            Split.load(path, other)


def test_a_split_between_parties_asks_for_their_column(tmp_path):
    path, data = tmp_path / "split.json", toy(600)
    group = torch.arange(len(data.x)) % 3
    parties = replace(data, group=group, group_test=torch.arange(len(data.x_test)) % 3, group_names=("N", "S", "W"))
    parties.split(partition="natural").save(path)
    with pytest.raises(Mistake, match=r"it is between parties \(N, S, W\), so name the column of parties with --party"):
        Split.load(path, data)


@pytest.mark.parametrize("change", [
    lambda saved: saved["clients"][1]["labels"].reverse(),
    lambda saved: saved["clients"][0]["labelled"].append(saved["clients"][0]["labelled"].pop(0)),
    lambda saved: saved["clients"].pop(),
    lambda saved: saved["validation"].pop(),
    lambda saved: saved["settings"].update(flip=0.5),
])  # fmt: skip
def test_a_changed_file_is_noticed(tmp_path, change):
    path, data = tmp_path / "split.json", toy(600)
    split(data, 4).save(path)
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(Mistake, match="changed after it was saved"):
        Split.load(path, data)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"clients": 3}', '{"clients": [{"labelled": [-1]}]}', "[" * 100_000])
def test_what_is_no_split_file(tmp_path, text):
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(Mistake, match="is not a split file"):
        Split.load(tmp_path / "split.json", toy())
    with pytest.raises(Mistake, match="no split file"):
        Split.load(tmp_path / "missing.json", toy())
