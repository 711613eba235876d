"""Label, then train: the labels that a label job left, matched by party and row."""

import csv
import json

import numpy as np
import pytest
import torch

import grapevine as gv
from grapevine.core.errors import Mistake
from grapevine.jobs.labels_from import with_labels

COLUMNS = ("id", "label", "confidence", "abstained", "given", "proposed")


def write(folder, parties):
    """A label job's folder: {party: rows of (id, label, confidence, given)}."""
    for name, rows in parties.items():
        (folder / name).mkdir(parents=True)
        with open(folder / name / "labels.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            table.writerows((id, label, sure, int(not label), given, label) for id, label, sure, given in rows)
    (folder / "result.json").write_text(json.dumps(dict(job="label")))
    return folder


def truths(split):
    """Every client's rows with their true labels, in the split's order; the i-th has confidence (i % 10) / 10."""
    parties = {}
    for name, part in zip(split.names, split.parts):
        rows = torch.cat([part.labelled, part.unlabelled])
        given = [str(y) for y in part.labels.tolist()] + [""] * len(part.unlabelled)
        parties[name] = [(i + 1, int(split.truth[row]), i % 10 / 10, own) for i, (row, own) in enumerate(zip(rows, given))]
    return parties


@pytest.fixture
def split(digits):
    return digits.split(clients=3, labels="clients:30", seed=1)


def test_rows_by_number_and_a_least_confidence(split, tmp_path):
    folder = write(tmp_path / "labels", truths(split))
    made = with_labels(split, folder, 0.5)
    for part, before in zip(made.parts, split.parts):
        own = len(before.labelled)
        assert torch.equal(part.labelled[:own], before.labelled)
        expected = [row for i, row in enumerate(before.unlabelled.tolist(), own) if i % 10 >= 5]
        assert part.labelled[own:].tolist() == expected and torch.equal(part.labels[own:], split.truth[part.labelled[own:]])
        assert sorted(part.labelled[own:].tolist() + part.unlabelled.tolist()) == sorted(before.unlabelled.tolist())
    assert made.hash != split.hash and made.hash != with_labels(split, folder, 0.6).hash


def test_what_abstained_stays_unlabelled(split, tmp_path):
    rows = truths(split)
    rows["0"] = [(id, label if given else "", sure, given) for id, label, sure, given in rows["0"]]
    made = with_labels(split, write(tmp_path / "labels", rows))
    assert len(made.parts[0].unlabelled) == len(split.parts[0].unlabelled) and len(made.parts[1].unlabelled) == 0


def change(rows, at, **new):
    line = dict(zip(("id", "label", "confidence", "given"), rows[at])) | new
    rows[at] = tuple(line.values())


@pytest.mark.parametrize(
    "spoil, says",
    [
        (lambda rows: rows.pop("1"), "no folder with labels.csv for client '1', only for 0, 2: use the same party names"),
        (lambda rows: rows["1"].pop(), "rows but client '1' has .* name a column of unique ids with --id"),
        (lambda rows: change(rows["1"], 0, given="no"), "row '1' was labelled 'no' before, but the data says"),
        (lambda rows: change(rows["1"], -1, label="eleven"), "has the label 'eleven', but the classes of the data are 0, 1"),
        (lambda rows: change(rows["1"], 1, id=1), "has the id '1' twice"),
        (lambda rows: change(rows["1"], 1, confidence="high"), "column 'confidence' holds something that is no number"),
    ],
)
def test_a_sentence_for_what_does_not_match(split, tmp_path, spoil, says):
    rows = truths(split)
    spoil(rows)
    with pytest.raises(Mistake, match=says):
        with_labels(split, write(tmp_path / "labels", rows))


def test_a_sentence_for_what_is_not_there(split, tmp_path):
    with pytest.raises(Mistake, match="is not the folder of a finished label job"):
        with_labels(split, tmp_path)
    (tmp_path / "result.json").write_text('{"job": "train", "method": "fedavg"}')
    with pytest.raises(Mistake, match="is not the folder of a finished label job, but of a train job: give the --out of"):
        with_labels(split, tmp_path)
    folder = write(tmp_path / "labels", truths(split))
    with pytest.raises(Mistake, match="has no further label with a confidence of 0.95 or more"):
        with_labels(split, folder, 0.95)
    with pytest.raises(Mistake, match="--min-confidence 0.5 selects labels from --labels-from"):
        gv.train("fedavg", "digits", clients=3, min_confidence=0.5)


def tables(folder, seed=0):
    """Three parties' tables, a fifth labelled, and one table of all of them; ids are unique over all."""
    rng = np.random.default_rng(seed)
    every, names = [], ("ash", "beech", "cedar")
    for name in names:
        y = rng.integers(0, 2, 60)
        x = rng.normal(size=(60, 3)) + 4 * y[:, None]
        rows = [(f"{name}{i}", *x[i].round(4), "ny"[y[i]] if i < 12 else "") for i in range(60)]
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("id", "a", "b", "c", "ill"), *rows])
        every += [(*row, name) for row in rng.permutation(np.array(rows, object)).tolist()]  # in another order
    with open(folder / "all.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "a", "b", "c", "ill", "site"), *every])
    return [folder / f"{name}.csv" for name in names]


def test_label_then_train_by_ids(tmp_path):
    """From files to labels to a model. Rows that are held out for testing are not trained on, whatever their label."""
    files = tables(tmp_path)
    gv.label(files, label="ill", id="id", secure="plain", bits=256, seed=1, out=tmp_path / "labels")
    data = dict(label="ill", id="id", party="site")
    few = gv.train("fedavg", tmp_path / "all.csv", rounds=1, model="linear", out=tmp_path / "few", **data)
    more = gv.train("fedavg", tmp_path / "all.csv", rounds=1, model="linear", labels_from=str(tmp_path / "labels"),
                    out=tmp_path / "more", **data)  # fmt: skip
    before, after = (json.loads((tmp_path / name / "split.json").read_text()) for name in ("few", "more"))
    assert all(part["unlabelled"] for part in before["clients"]) and not any(part["unlabelled"] for part in after["clients"])
    assert more.result["accuracy"] >= few.result["accuracy"]
    job = more.result["data"]["job_labels"]
    given = [len(part["labels"]) for part in after["clients"]]
    assert job == dict(new=sum(given) - sum(len(part["labels"]) for part in before["clients"]), of=sum(given),
                       held_out=36 - sum(len(part["labels"]) for part in before["clients"]))  # fmt: skip
    page = (tmp_path / "more" / "report.html").read_text()
    assert f"{job['new']} of the clients&#39; {job['of']} labels came from the label job (confidence 0 or more)." in page
    assert f"had the labels of {job['held_out']} rows that this run holds out" in page
    assert "--split split.json" in page  # the same split again, with the job's labels in it
    with pytest.raises(Mistake, match="use the same party names for labelling and training"):
        gv.train("fedavg", tmp_path / "all.csv", clients=3, partition="iid", label="ill", id="id", rounds=1,
                 labels_from=str(tmp_path / "labels"))  # fmt: skip
