"""What parties agree on, what it makes, how it is proposed, and a federation's folders."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from PIL import Image
from trials import (
    CLEAN,
    COLUMNS,
    LABEL,
    NAMES,
    TRAIN,
    blobs,
    clean_agreement,
    label_agreement,
    train_agreement,
    write_patients,
    write_table,
)

from grapevine.core.errors import Mistake
from grapevine.crypto.agreement import Identity
from grapevine.jobs.settings import CleanSettings, LabelSettings, TrainSettings
from grapevine.parties import files, rows
from grapevine.parties.agreement import Agreement
from grapevine.parties.federation import Host, load_host, load_party, make_federation
from grapevine.parties.propose import propose
from grapevine.parties.settings import HostSettings, Source


def host(folder, agreed=None, **more) -> Host:
    return Host(folder, agreed or label_agreement(), "127.0.0.1", 1, **more)


# ---------------------------------------------------------------- the agreement


def test_the_hash_is_over_all_that_is_agreed(tmp_path):
    changes = dict(
        name="other", job="train", quorum=2, settings=dict(LABEL, secure="plain"), shape=(5,), method="fedavg",
        features=COLUMNS[::-1], classes=("0",), embed="efficientnet-lite0", scale="none", server=True, seed=1,
        parties=("east", "north", "west"), version="0",
        layout=dict(columns=[dict(name="a", kind="category", values=["x"])]),
    )  # fmt: skip
    assert list(changes) == [f.name for f in fields(Agreement)]
    hashes = {label_agreement(**{name: value}).hash for name, value in changes.items()}
    assert len(hashes) == len(changes) and label_agreement().hash not in hashes


def test_the_hash_is_the_same_after_toml_and_json(tmp_path):
    agreed = label_agreement(settings=dict(LABEL, alpha=1.0 - 1e-3), seed=3)
    files.write_toml(tmp_path / "t.toml", dict(agreed=agreed.to_dict()))
    there = Agreement.from_dict(json.loads(json.dumps(files.read_toml(tmp_path / "t.toml")["agreed"])))
    assert there == agreed and there.hash == agreed.hash


def test_a_federation_is_read_back_as_it_was_made(tmp_path):
    made = make_federation(host(tmp_path / "h", train_agreement(seed=3)))
    assert load_host(tmp_path / "h") == made


def test_the_method_is_built_from_what_is_agreed():
    method = label_agreement().made
    assert (method.xclp.hamming.name, method.xclp.bits, method.xclp.neighbours, method.xclp.reproducible) == ("psm", 64, 3, False)
    assert label_agreement(seed=3).made.xclp.reproducible
    method = train_agreement().made
    assert (method.name, method.lr, method.epochs) == ("fedavg", 0.05, 1)
    method = clean_agreement().made
    assert (method.name, method.tau, method.epochs) == ("clean", 0.6, 20)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(version="0.0.9"), "runs Grapevine 0.0.9"),
        (dict(settings=dict(secrecy="none")), "no setting 'secrecy'"),
        (dict(settings=dict(secure="rot13")), "rot13"),
        (dict(settings=dict(LABEL, groups=2)), "groups is 2"),
        (dict(name="a b"), "cannot be the name"),
        (dict(quorum=1), "quorum is 1"),
        (dict(quorum=4), "quorum is 4"),
        (dict(quorum=2), "quorum is 2, but there are 3 parties: use 3[.]"),
        (dict(quorum=2, parties=("north", "south", "east", "west")), "use 3 or 4"),
        (
            dict(settings=dict(LABEL, groups=2), parties=tuple("abcde")),
            "groups is 2: with 5 parties the smallest would have 2",
        ),
        (dict(shape=()), "what is a row"),
        (dict(shape=(3, 8, 8)), "--embed"),
        (dict(job="guess"), "job 'guess'"),
        (dict(job="train", method="evil.py:Class", settings=TRAIN), "is a file"),
        (dict(job="train", method="server-only", settings=TRAIN), "--server FILE"),
        (dict(job="train", method="fedanchor", settings=TRAIN), "--server FILE"),
        (dict(job="train", method="mixmatch", settings=dict(TRAIN, set={}), server=True), "leave --server out"),
        (dict(job="train", method="fedavg", settings=dict(TRAIN, set=dict(speed="3"))), "no field 'speed'"),
        (dict(job="train", method="fedavg", settings=TRAIN, classes=()), "--classes"),
        (dict(job="train", method="fedavg", settings=dict(TRAIN, model="cnn")), "cnn needs images"),
        (dict(job="train", method="fedavg", settings=dict(TRAIN, per_round=0)), "per.round"),
        (dict(job="train", method="protofssl", settings=dict(TRAIN, set={})), "features"),
        (dict(job="clean", settings=CLEAN), "--server FILE"),
        (dict(job="train", method="fedavg", settings=TRAIN, scale="odd"), "scale 'odd'"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_they_are_made(tmp_path, change, sentence):
    with pytest.raises(Mistake, match=sentence):
        make_federation(host(tmp_path / "new", label_agreement(**change)))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("parties", "sentence"),
    [
        (("north",), "at least two"),
        (("north", "north", "south"), "two parties are called 'north'"),
        (("north", "../south"), "cannot be the name"),
    ],
)
def test_parties_have_names_of_their_own_that_can_be_folders(tmp_path, parties, sentence):
    with pytest.raises(Mistake, match=sentence):
        make_federation(host(tmp_path / "new", label_agreement(parties=parties)))


def test_a_host_without_a_seed_draws_one_and_keeps_it(tmp_path):
    for name in "ab":
        make_federation(host(tmp_path / name))
    first = load_host(tmp_path / "a").seed
    assert first == load_host(tmp_path / "a").seed != load_host(tmp_path / "b").seed
    assert stat.S_IMODE((tmp_path / "a" / "seed.txt").stat().st_mode) == 0o600


# ---------------------------------------------------------------- rows


def test_columns_are_brought_into_the_agreed_order(tmp_path):
    who = blobs("north")
    path = write_table(tmp_path / "n.csv", who, ("d", "b", "a", "c"))
    read = rows.read_rows(Source(str(path), "kind"), label_agreement(), "north")
    np.testing.assert_array_equal(read.x, who.x)
    assert (read.labels, read.ids) == (who.labels, who.ids)


@pytest.mark.parametrize(
    ("columns", "label", "change", "sentence"),
    [
        (("a", "b", "c"), "kind", {}, "no column 'd'"),
        (COLUMNS, "sort", {}, "no column 'sort'"),
        (COLUMNS, None, {}, "--label COL"),
        (COLUMNS, "kind", dict(classes=("0", "1")), "class '2'.*knows 0, 1"),
        (COLUMNS, "kind", dict(features=("id", "a")), "'id'"),
        (COLUMNS, "kind", dict(features=(), shape=(3, 8, 8)), "rows of shape 4, but the federation agreed on 3×8×8"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, columns, label, change, sentence):
    path = write_table(tmp_path / "n.csv", blobs("north"), columns)
    with pytest.raises(Mistake, match=sentence):
        rows.read_rows(Source(str(path), label, "id"), label_agreement(**change), "north")


def test_a_class_that_the_host_does_not_know_is_what_cleaning_finds(tmp_path):
    path = write_table(tmp_path / "n.csv", blobs("north"))
    read = rows.read_rows(Source(str(path), "kind"), clean_agreement(classes=("0", "1")), "north")
    assert read.classes == ("0", "1", "2")


def images(folder, shape=(8, 8), colour="L", classes=("cat", "dog"), n=4):
    draw = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(n):
            size = (*shape, 3) if colour == "RGB" else shape
            Image.fromarray(draw.integers(0, 256, size, np.uint8), colour).save(folder / name / f"{i}.png")
    return folder


def image_agreement(**changes) -> Agreement:
    made = train_agreement(settings=dict(TRAIN, model="cnn"), features=(), shape=(3, 8, 8), classes=("cat", "dog"))
    return replace(made, **changes)


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
def test_images_become_rows_of_the_agreed_shape_and_colour(tmp_path):
    read = rows.read_rows(Source(str(images(tmp_path / "grey"))), image_agreement(), "north")
    assert read.x.shape == (8, 3, 8, 8) and read.x.dtype == np.uint8
    np.testing.assert_array_equal(read.x[:, 0], read.x[:, 2])
    assert read.labels == ["cat"] * 4 + ["dog"] * 4 and read.ids[0] == "cat/0.png"
    with pytest.raises(Mistake, match="rows of shape 3×16×16, but the federation agreed on 3×8×8"):
        rows.read_rows(Source(str(images(tmp_path / "large", (16, 16), "RGB"))), image_agreement(), "north")
    data = rows.client_data(read, image_agreement())
    assert data.labelled.inputs().shape[1:] == (3, 8, 8)
    with pytest.raises(Mistake, match="is a folder"):
        rows.read_rows(Source(str(tmp_path / "grey")), label_agreement(), "north")


def test_images_in_an_npz_are_rows_too(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "x.npz", X=x, y=np.array(["cat", "dog", "cat", "", "dog", "cat"]))
    read = rows.read_rows(Source(str(tmp_path / "x.npz"), "y"), image_agreement(), "north")
    np.testing.assert_array_equal(read.x, x.transpose(0, 3, 1, 2))
    assert read.labels == ["cat", "dog", "cat", None, "dog", "cat"]


def test_an_embedding_run_is_known_by_the_hash_of_its_model(tmp_path):
    agreed = label_agreement(embed="ab" * 32)
    path = str(write_table(tmp_path / "n.csv", blobs("north")))
    with pytest.raises(Mistake, match="name your copy of it with --embed RUN"):
        rows.read_rows(Source(path, "kind"), agreed, "north")
    (tmp_path / "model.safetensors").write_bytes(b"another")
    with pytest.raises(Mistake, match="is not the agreed one"):
        rows.read_rows(Source(path, "kind", embed=str(tmp_path)), agreed, "north")


def test_a_training_party_holds_out_a_fifth_of_each_class_half_of_it_for_choosing(tmp_path):
    n = 90
    who = replace(blobs("north", n=n), labels=[str(i % 3) if i < 60 else None for i in range(n)])
    data = rows.client_data(who, train_agreement())
    np.testing.assert_array_equal(np.bincount(data.labelled.y), [16, 16, 16])
    np.testing.assert_array_equal(np.bincount(data.test.y), [2, 2, 2])  # half of a fifth of twenty
    np.testing.assert_array_equal(np.bincount(data.validation.y), [2, 2, 2])
    assert len(data.unlabelled) == 30 and set(data.unlabelled.y.tolist()) == {-1}
    parts = [data.test.index, data.validation.index, data.labelled.index, data.unlabelled.index]
    assert sorted(np.concatenate(parts)) == list(range(n))
    np.testing.assert_array_equal(rows.client_data(who, train_agreement()).test.index, data.test.index)
    # Standardised by this party's own moments, whichever rows they come from.
    x = np.concatenate([part.inputs().numpy() for part in (data.test, data.validation, data.labelled, data.unlabelled)])
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-5)


def test_a_method_that_takes_no_labels_from_parties_gets_their_rows_without(tmp_path):
    who = blobs("north", known=True)
    data = rows.client_data(who, train_agreement(method="fedanchor", server=True, settings=dict(TRAIN, set={})))
    assert (len(data.labelled), len(data.unlabelled), len(data.test), len(data.validation)) == (0, 24, 3, 3)
    assert set(data.unlabelled.y.tolist()) == {-1}


def test_the_hosts_rows_are_the_labelled_ones_by_its_own_moments(tmp_path):
    own = blobs("server", 5)
    host_ = make_federation(host(tmp_path / "h", train_agreement(server=True)), own)
    data = load_host(host_.folder).data
    assert len(data) == sum(label is not None for label in own.labels)
    np.testing.assert_allclose(data.inputs().numpy(), ((own.x - own.x.mean(0)) / own.x.std(0))[data.index], atol=1e-5)
    assert stat.S_IMODE((tmp_path / "h" / "rows.npy").stat().st_mode) == 0o600


# ---------------------------------------------------------------- a party's folder


def make_party(folder, who, agreed, identities) -> None:
    folder.mkdir(parents=True)
    files.write_toml(folder / "party.toml", dict(name=who.name, agreed=agreed.to_dict(), hash=agreed.hash, seed=7))
    files.write_toml(folder / "pinned.toml", {n: dict(identity=i.public.hex()) for n, i in identities.items()})
    rows.save_rows(folder, who)
    identities[who.name].save(folder / "identity.pem")


def test_a_party_is_read_back_from_its_folder(tmp_path):
    who, identities = blobs("north"), {name: Identity.generate() for name in ("north", "south")}
    make_party(tmp_path / "p", who, label_agreement(), identities)
    party = load_party(tmp_path / "p")
    assert (party.name, party.seed, party.agreed) == ("north", 7, label_agreement())
    assert party.pinned == {name: identity.public for name, identity in identities.items()}
    assert party.identity.public == identities["north"].public
    assert len(party.data.labelled) == sum(label is not None for label in who.labels)
    assert stat.S_IMODE((tmp_path / "p" / "rows.npy").stat().st_mode) == 0o600


def test_a_party_whose_agreed_settings_were_changed_does_nothing(tmp_path):
    make_party(tmp_path / "p", blobs("north"), label_agreement(), {"north": Identity.generate()})
    about = files.read_toml(tmp_path / "p" / "party.toml")
    about["agreed"]["settings"]["secure"] = "plain"
    files.write_toml(tmp_path / "p" / "party.toml", about)
    with pytest.raises(Mistake, match="changed after joining"):
        load_party(tmp_path / "p")


APART = """
import json, sys
import numpy as np
import grapevine.parties.join, grapevine.parties.networks
from grapevine.core.errors import Mistake
from grapevine.parties import rows
from grapevine.parties.agreement import Agreement
from grapevine.parties.settings import Source
agreed = Agreement.from_dict(json.loads(sys.argv[1]))
apart = rows.read_apart(Source(sys.argv[2], "kind", "id"), agreed, "north")
try:
    rows.read_apart(Source(sys.argv[2], "kin"), agreed, "north")
except Mistake as mistake:
    said = str(mistake)
heavy = [name for name in ("pyarrow", "pandas") if name in sys.modules]
here = rows.read_rows(Source(sys.argv[2], "kind", "id"), agreed, "north")
same = (apart.labels, apart.ids, apart.columns) == (here.labels, here.ids, here.columns)
same = same and np.array_equal(apart.x, here.x, equal_nan=True)
print(json.dumps([heavy, same, said]))
"""


def test_a_table_is_read_in_a_process_of_its_own_so_that_a_party_stays_small(tmp_path):
    path = write_patients(tmp_path / "n.csv", blobs("north"))
    said = HostSettings(parties=NAMES, schema=str(path), label="kind", id="id", address="127.0.0.1", features=("ward", "a"))
    agreed = propose(tmp_path / "h", said, LabelSettings())[0].agreed
    command = [sys.executable, "-c", APART, json.dumps(agreed.to_dict()), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    heavy, same, sentence = json.loads(done.stdout)
    assert (heavy, same) == ([], True) and "no column 'kin'" in sentence, done.stderr


# ---------------------------------------------------------------- proposals


def test_a_proposal_takes_columns_and_classes_from_the_hosts_own_rows(tmp_path):
    path = write_table(tmp_path / "own.csv", blobs("server", known=True))
    said = HostSettings(parties=NAMES, server=str(path), label="kind", id="id", address="127.0.0.1")
    made, own = propose(tmp_path / "trial", said, CleanSettings())
    assert (made.agreed.features, made.agreed.shape, made.agreed.classes) == (COLUMNS, (4,), ("0", "1", "2"))
    assert made.agreed.server and len(own.ids) == 30 and made.agreed.name == "trial" and made.agreed.quorum == 3
    assert made.agreed.settings["model"] == "mlp" and made.agreed.settings["epochs"] == 334  # 1000 steps of 3 batches of 10
    make_federation(made, own)
    made, _ = propose(tmp_path / "other", replace(said, method="mp-ssfl"), TrainSettings(rounds=3))
    assert (made.agreed.method, made.agreed.settings["rounds"], made.agreed.scale) == ("mp-ssfl", 3, "own")
    made, own = propose(tmp_path / "other", replace(said, server=None, schema=str(path)), LabelSettings(secure="psm"))
    assert own is None and made.agreed.features == COLUMNS and made.agreed.settings["secure"] == "psm"
    assert made.agreed.settings["method"] == "chorus"
    table = replace(said, server=None, schema=str(path))
    made, _ = propose(tmp_path / "other", replace(table, method="xclp"), LabelSettings())
    assert made.agreed.settings["method"] == "xclp" and type(made.agreed.made).__name__ == "Label"
    with pytest.raises(Mistake, match="method is fedavg, which is not a known value: use chorus or xclp"):
        propose(tmp_path / "other", replace(table, method="fedavg"), LabelSettings())


def test_a_schema_too_short_to_agree_on_text_is_refused(tmp_path):
    """It once left text columns out without an error. A value on ten lines is agreed on, and a rarer one is not named."""
    path = tmp_path / "example.csv"
    said = HostSettings(parties=NAMES, schema=str(path), label="kind", address="127.0.0.1")
    path.write_text("a,ward,kind\n1,north,x\n2,south,\n")
    with pytest.raises(Mistake, match="has 2 lines, and column 'ward' is text: .* on 10 lines, or .* --features"):
        propose(tmp_path / "h", said, LabelSettings(method="xclp"))
    path.write_text("a,ward,kind\n" + "1,north,x\n" * 10 + "2,south,\n")
    made, _ = propose(tmp_path / "h", said, LabelSettings(method="xclp"))
    assert made.agreed.row_layout.names == ("a", "ward=north", "ward=other")


def test_parties_of_chorus_agree_on_columns_beforehand_and_on_values_in_the_job(tmp_path):
    path = tmp_path / "example.csv"
    path.write_text("a,ward,seen,kind\n1,attic,2024-05-03,x\n")
    said = HostSettings(parties=NAMES, schema=str(path), label="kind", address="127.0.0.1")
    agreed = propose(tmp_path / "h", said, LabelSettings())[0].agreed
    assert agreed == Agreement.from_dict(agreed.to_dict()) and agreed.features == ("a", "ward", "seen")
    assert agreed.row_layout.kinds == dict(a="number", ward="category", seen="date")
    assert "attic" not in json.dumps(agreed.to_dict())
    own = tmp_path / "own.csv"
    own.write_text("kind,seen,ward,a,more\n,2024-01-02,west,5,9\ny,2023-07-01,,6,9\n")
    read = rows.read_rows(Source(str(own), "kind"), agreed, "north")
    assert read.x.shape == (2, *agreed.shape) and read.columns[1].values == ("west",) and read.x[0, 0] == 5
    words = replace(said, schema=None, features=("a", "ward"), categories=("ward",))
    assert propose(tmp_path / "h", words, LabelSettings())[0].agreed.row_layout.kinds == dict(a="number", ward="category")
    own.write_text("kind,seen,ward,a\n,2024-01-02,west,\ny,2023-07-01,,6\n")
    with pytest.raises(Mistake, match="'a': the value is missing, fill it in, or ask the host for a federation with --impute[.]"):
        rows.read_rows(Source(str(own), "kind"), agreed, "north")
    with pytest.raises(Mistake, match="'ward' are taken from a table: give one with --schema"):
        propose(tmp_path / "h", words, LabelSettings(method="xclp"))
    with pytest.raises(Mistake, match="names 'seen', which is not among the --features"):
        propose(tmp_path / "h", replace(words, categories=("seen",)), LabelSettings())


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
def test_a_proposal_takes_the_shape_of_images(tmp_path):
    folder = images(tmp_path / "grey")
    said = HostSettings(parties=NAMES, schema=str(folder), classes="cat,dog", address="127.0.0.1")
    made, _ = propose(tmp_path / "h", said, TrainSettings())
    assert (made.agreed.shape, made.agreed.features, made.agreed.settings["model"]) == ((1, 8, 8), (), "cnn")
    made, _ = propose(tmp_path / "h", replace(said, schema=None, shape="3x32x32"), TrainSettings())
    assert made.agreed.shape == (3, 32, 32)
    made, _ = propose(tmp_path / "h", replace(said, embed="efficientnet-lite0"), LabelSettings())
    assert (made.agreed.shape, made.agreed.embed) == ((1280,), "efficientnet-lite0") and "embed" not in made.agreed.settings


@pytest.mark.parametrize(
    ("said", "job", "sentence"),
    [
        (dict(seed=3), LabelSettings(), "add --reproducible"),
        (dict(reproducible=True), LabelSettings(), "add --seed N"),
        (dict(method="fedavg"), CleanSettings(), "--method does not apply to --job clean"),
        (dict(scale="own"), LabelSettings(), "--scale own does not apply to --job label"),
        (dict(scale="standard"), TrainSettings(), "--scale standard does not apply to --job train"),
        (dict(shape="big"), TrainSettings(), "3x32x32"),
        (dict(embed="efficientnet-lite0"), LabelSettings(), "takes images"),
    ],
)
def test_a_proposal_that_cannot_be_meant_is_refused(tmp_path, said, job, sentence):
    with pytest.raises(Mistake, match=sentence):
        propose(tmp_path / "h", HostSettings(**dict(dict(parties=NAMES, features=COLUMNS), **said)), job)


def test_text_and_dates_are_agreed_on_by_the_hosts_table(tmp_path):
    """The host's table says what each column holds and which values are named; a party's own order and values do not matter."""
    own = tmp_path / "own.csv"
    lines = [f"{i},{'Bonn' if i % 2 else 'Ulm'},2024-01-{i % 28 + 1:02d},{i % 2}" for i in range(30)]
    own.write_text("\n".join(["age,city,seen,kind", *lines]) + "\n")
    said = HostSettings(parties=NAMES, server=str(own), label="kind", address="127.0.0.1")
    made, rows_of_host = propose(tmp_path / "h", said, TrainSettings(rounds=1))
    assert made.agreed.features == ("age", "city", "seen") and made.agreed.shape == (8,) == rows_of_host.x.shape[1:]
    files.write_toml(tmp_path / "t.toml", dict(agreed=made.agreed.to_dict()))
    agreed = Agreement.from_dict(files.read_toml(tmp_path / "t.toml")["agreed"])
    assert agreed.hash == made.agreed.hash
    (tmp_path / "n.csv").write_text("kind;seen;city;age\n0;01.01.2024;Rom;1,5\n1;NA;Ulm;unknown\n")
    source = Source(str(tmp_path / "n.csv"), "kind", missing=("unknown",))
    with pytest.raises(Mistake, match="line 3, column 'age': the value is missing"):
        rows.read_rows(source, agreed, "north")
    (tmp_path / "n.csv").write_text("kind;seen;city;age\n0;01.01.2024;Rom;1,5\n1;02.01.2024;Ulm;3\n")
    read = rows.read_rows(source, agreed, "north")
    np.testing.assert_array_equal(read.x[:, :4], [[1.5, 0, 0, 1], [3, 0, 1, 0]])  # age, Bonn, Ulm, other
    assert [column.name for column in read.columns[:4]] == ["age", "city=Bonn", "city=Ulm", "city=other"]
    rows.save_rows(tmp_path, read)
    assert rows.load_rows(tmp_path).columns == read.columns
    (tmp_path / "n.csv").write_text("kind,seen,city,age\n0,soon,Rom,1\n1,later,Ulm,3\n")
    with pytest.raises(Mistake, match="line 2, column 'seen': 'soon' is not a date"):
        rows.read_rows(source, agreed, "north")
