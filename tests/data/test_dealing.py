"""Who gets which rows: the papers' settings worked out, what always holds, and what is refused."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import images, toy
from hypothesis import given, settings
from hypothesis import strategies as st

from grapevine.core.errors import Mistake
from grapevine.data.catalogue import load
from grapevine.data.dealing import split
from grapevine.data.foreign import IRRELEVANT

DATA = Path(os.environ.get("GRAPEVINE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def tables(s):
    """Labelled and unlabelled rows per client and true class."""
    truth = [s.client_truth(i) for i in range(len(s))]
    classes = len(s.dataset.classes)
    return tuple(np.stack([np.bincount(t[k][t[k] >= 0], minlength=classes) for t in truth]) for k in (0, 1))


def everything(s):
    parts = [*s.parts] + ([s.server] if s.server else [])
    return torch.cat([rows for part in parts for rows in (part.labelled, part.unlabelled)] + [s.validation])


# Worked cases


def test_xclp_iid_on_cifar10s_numbers():
    """45,000 + 5,000 rows, 100 clients of 450, 1000 labels: one per class and client."""
    s = split(toy(50_000), 100, labels="clients:1000")
    labelled, unlabelled = tables(s)
    assert len(s.validation) == 5000 and torch.bincount(s.truth[s.validation]).tolist() == [500] * 10
    assert (labelled == 1).all() and (unlabelled == 44).all()


def test_xclp_half_of_the_clients_have_labels():
    labelled, unlabelled = tables(split(toy(50_000), 100, labels="clients:1000/50"))
    assert sorted(labelled.sum(1)) == [0] * 50 + [20] * 50
    assert ((labelled == 2) | (labelled == 0)).all() and (labelled + unlabelled == 45).all()


def test_xclp_skewed_labels_leave_the_unlabelled_rows_iid():
    labelled, unlabelled = tables(split(toy(50_000), 100, labels="clients:5000~5"))
    assert ((labelled == 10) | (labelled == 0)).all() and ((labelled > 0).sum(1) == 5).all()
    assert ((labelled > 0).sum(0) == 50).all()
    assert (unlabelled == 40).all()


def test_skewed_labels_on_some_clients():
    labelled, unlabelled = tables(split(toy(50_000), 100, labels="clients:1000/50~5"))
    assert sorted((labelled > 0).sum(1)) == [0] * 50 + [5] * 50 and ((labelled > 0).sum(0) == 25).all()
    assert ((labelled + unlabelled).sum(1) == 450).all()


def test_protofssl_labels_iid_unlabelled_rows_circulant():
    """100 clients of 540: five labels per class, and 490 unlabelled rows in FedMatch's mixes."""
    labelled, unlabelled = tables(split(toy(54_000), 100, "fedmatch", "clients:5000", validation=0))
    assert (labelled == 5).all()
    row = np.array([0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15])
    mixes = np.stack([490 * np.roll(row, i % 10) for i in range(100)])
    assert np.abs(unlabelled - mixes).max() <= 1 and (unlabelled.sum(1) == 490).all()


def test_fedmatch_with_a_fraction_or_with_all_labels():
    labelled, unlabelled = tables(split(toy(10_000), 10, "fedmatch", "fraction:0.1", validation=0))
    assert (labelled == 10).all() and unlabelled[0].argmax() == 0 and unlabelled[3].argmax() == 3
    labelled, unlabelled = tables(split(toy(10_000), 10, "fedmatch", "all", validation=0))
    assert labelled[0].tolist() == [500, 150, 30, 30, 30, 20, 30, 30, 30, 150] and not unlabelled.any()


def test_labels_at_the_server():
    s = split(toy(1000), 10, labels="server:50", validation=0.1)
    assert torch.bincount(s.server.labels).tolist() == [5] * 10
    assert not tables(s)[0].any() and sum(map(len, s.parts)) == 850
    assert split(toy(1000), 10).server_rows() is None


def test_a_server_that_lacks_classes_and_clients_with_labels():
    s = split(toy(1000), 10, labels="server:30@0,2-3,clients:100")
    assert torch.bincount(s.server.labels, minlength=10).tolist() == [10, 0, 10, 10, 0, 0, 0, 0, 0, 0]
    assert (tables(s)[0] == 1).all()
    assert split(toy(1000), 10, labels="server:30@0+2+3").server.labels.unique().tolist() == [0, 2, 3]


def test_fraction_is_of_every_client_and_class():
    labelled, unlabelled = tables(split(toy(2000), 5, "iid", "fraction:0.25", validation=0))
    assert (labelled == 10).all() and (unlabelled == 30).all()
    free = split(toy(2000), 5, "dirichlet:0.5:free", "fraction:0.25", validation=0)
    for part in free.parts:
        assert abs(len(part.labelled) - 0.25 * len(part)) < 1


def test_rows_of_unknown_class_are_unlabelled():
    s = split(toy(500, unknown=300), 5, labels="all")
    assert [int((s.client_truth(i)[1] == -1).sum()) for i in range(5)] == [60] * 5
    assert all((s.truth[part.labelled] >= 0).all() for part in s.parts) and (s.truth[s.validation] >= 0).all()
    assert len(s.validation) == 50


def test_digits():
    s = load("digits").split(clients=10, labels="clients:100")
    assert (tables(s)[0] == 1).all()


# What always holds

LABELS = [
    "all", "clients:60", "clients:60/3", "clients:60~4", "clients:70/5~3", "fraction:0.3",
    "server:40", "server:40,clients:30", "server:20@0-7", "server:20@1+3,fraction:0.5",
]  # fmt: skip
PARTITIONS = ["iid", "dirichlet:0.3", "dirichlet:1:free", "shards:2", "fedmatch", "natural"]


@given(
    st.sampled_from(PARTITIONS), st.sampled_from(LABELS), st.integers(5, 12), st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([None, "other:0.5"]), st.integers(0, 40), st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_invariants(partition, labels, clients, flip, irrelevant, unknown, seed):
    data, other = toy(600, unknown=unknown, groups=12), toy(500, name="other")
    try:
        s = split(data, clients, partition, labels, flip, irrelevant, other, 0.1, seed)
    except Mistake as mistake:
        assert (
            "Nobody would have a label" in str(mistake)
            or "acts on the clients' labels" in str(mistake)
            or "can have one" in str(mistake)
            or "clients can have labels" in str(mistake)
        )
        return
    held = everything(s)
    assert len(held.unique()) == len(held)  # no row has two holders, labelled and unlabelled are disjoint
    if partition != "natural":
        assert len(held) == len(s.x)  # and every row has one
    assert len(s) == clients and all(len(part) > 0 for part in s.parts)
    for i, part in enumerate(s.parts):
        own = part.labelled[s.truth[part.labelled] != IRRELEVANT]
        foreign = len(part) - int((torch.cat([part.labelled, part.unlabelled]) < len(data.x)).sum())
        assert (s.truth[own] >= 0).all() and len(part.labels) == len(part.labelled)
        assert ((part.labels >= 0) & (part.labels < 10)).all()
        assert foreign == (round(0.5 * (len(part) - foreign)) if irrelevant else 0)
        assert (s.client(i).unlabelled.y == -1).all()
    labelled = torch.cat([part.labelled for part in s.parts])
    given_ = torch.cat([part.labels for part in s.parts])[s.truth[labelled] >= 0]
    truth = s.truth[labelled][s.truth[labelled] >= 0]
    assert int((given_ != truth).sum()) == round(flip * len(truth))
    wanted = {"clients:60": 60, "clients:60/3": 60, "clients:60~4": 60, "clients:70/5~3": 70, "server:40,clients:30": 30}
    assert len(truth) == wanted.get(labels, len(truth))
    if s.server:
        assert (s.server.labels == s.truth[s.server.labelled]).all()
    again = split(data, clients, partition, labels, flip, irrelevant, other, 0.1, seed)
    assert again.hash == s.hash


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.3", "natural", "fedmatch"])
def test_one_setting_does_not_disturb_another(partition):
    data, other = toy(1000, groups=10), toy(600, name="other")
    plain = split(data, 10, partition, "clients:200", seed=3)
    noisy = split(data, 10, partition, "clients:200", flip=0.5, irrelevant="other:0.5", foreign=other, seed=3)
    for a, b in zip(plain.parts, noisy.parts):
        assert torch.equal(a.labelled, b.labelled[: len(a.labelled)]) and torch.equal(
            a.unlabelled, b.unlabelled[: len(a.unlabelled)]
        )
    assert torch.equal(plain.validation, noisy.validation)
    assert torch.equal(plain.validation, split(data, 10, partition, "server:50", seed=3).validation)


def test_more_labels_do_not_move_rows():
    few, many = (split(toy(1000), 10, "dirichlet:0.3", labels) for labels in ("clients:100", "fraction:0.5"))
    for a, b in zip(few.parts, many.parts):
        assert set(torch.cat([a.labelled, a.unlabelled]).tolist()) == set(torch.cat([b.labelled, b.unlabelled]).tolist())


def test_another_seed_is_another_split():
    assert split(toy(), 10, seed=0).hash != split(toy(), 10, seed=1).hash


# Validation and test


def test_validation_never_takes_the_last_row_of_a_class_or_a_party():
    data = toy(y=[0] * 60 + [1] + [2] * 39)
    data = replace(data, group=torch.tensor([0] * 99 + [1]), group_names=("big", "small"))
    for seed in range(20):
        s = split(data, partition="natural", validation=0.5, seed=seed)
        assert len(s.validation) == 50 and len(s.parts[1]) == 1 and 60 in torch.cat([part.labelled for part in s.parts])


def test_the_data_sets_own_validation_set_is_used():
    data = toy(100)
    data = replace(data, x_val=data.x[:7], y_val=data.y[:7])
    s = split(data, 5)
    assert len(s.validation) == 0 and sum(map(len, s.parts)) == 100
    assert s.validation_rows().y.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_natural_parties_have_their_own_test_rows():
    data = toy(120, groups=4)
    data = replace(data, group_test=torch.arange(60) % 5)  # a fifth party that has no training rows
    s = split(data, partition="natural")
    assert s.names == ("site 0", "site 1", "site 2", "site 3") and len(s) == 4
    assert s.test_group.tolist() == [0, 1, 2, 3, -1] * 12
    assert s.client(2).test.index.tolist() == list(range(2, 60, 5)) and len(s.test_rows()) == 60
    two = split(data, 2, "natural", seed=5)
    assert len(two.groups) == 2 and set(two.names) < set(s.names)
    for i, g in enumerate(two.groups):
        assert (data.group[torch.cat([two.parts[i].labelled, two.parts[i].unlabelled])] == g).all()
        assert (data.group_test[two.client(i).test.index] == g).all()
    assert np.isin(data.group[two.validation].numpy(), two.groups).all()


def test_parties_without_test_rows_share_the_common_ones():
    data = replace(toy(120, groups=4), group_test=torch.full((60,), 7))
    s = split(data, partition="natural")
    assert s.test_group is None and len(s.client(0).test) == 60


# Guards


@pytest.mark.parametrize(
    "flags, says",
    [
        (dict(clients=0), "at least 1 client"),
        (dict(clients=-3), "at least 1 client"),
        (dict(clients=2000), "2,000 clients cannot share the 1,000 rows"),
        (dict(clients=950), "would hold no row"),
        (dict(flip=1.5), "between 0 and 1"),
        (dict(flip=-0.1), "between 0 and 1"),
        (dict(flip=float("nan")), "between 0 and 1"),
        (dict(flip=0.5, labels="server:50"), "clients' labels"),
        (dict(validation=1.0), "validation share"),
        (dict(labels="clients:5000"), "5,000 labels on the clients, but only 900 rows"),
        (dict(labels="clients:300/2"), "300 labels on the clients, but only 180 rows"),
        (dict(labels="clients:300/2~5"), "150 labels where each of the 10 clients holds 90 rows"),
        (dict(labels="clients:50/20"), "only 10 clients can have labels"),
        (dict(labels="clients:50~11"), "more classes per client than the 10"),
        (dict(labels="clients:9"), "Nobody would have a label of class 'c[0-9]'"),
        (dict(labels="server:9"), "Nobody would have a label of class 'c[0-9]'"),
        (dict(labels="server:5000"), "more labels than the 900"),
        (dict(labels="server:200@0"), "more labels than the 90"),
        (dict(labels="server:50@0-10"), "classes 0 to 9"),
        (dict(partition="natural"), "no natural parties"),
        (dict(partition="shards:200"), "needs 2000 rows but there are only 900"),
        (dict(irrelevant="other:0.5"), "pass it as `foreign`"),
        (dict(irrelevant="other"), "NAME:0.5"),
    ],
)
def test_guards(flags, says):
    with pytest.raises(Mistake, match=says) as caught:
        split(toy(1000), **{"clients": 10, **flags})
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_guards_of_other_data():
    with pytest.raises(Mistake, match="has 4 natural parties"):
        split(toy(100, groups=4), 5, "natural")
    with pytest.raises(Mistake, match="needs 540 foreign rows and other has 100"):
        split(toy(600), 5, irrelevant="other:1", foreign=toy(100, name="other"))
    with pytest.raises(Mistake, match="images 1×6×6.*1 columns"):
        split(toy(600), 5, irrelevant="grey:0.01", foreign=images(40, (1, 6, 6), "grey"))
    with pytest.raises(Mistake, match="no labelled row"):
        split(toy(0, unknown=50), 5)
    with pytest.raises(Mistake, match="every label of toy is 'c0', so there is nothing to learn: label rows of another class"):
        split(toy(50, classes=1), 5)


# Real data


@pytest.mark.skipif(not (DATA / "femnist_leaf.npz").exists(), reason="needs femnist_leaf.npz in $GRAPEVINE_DATA")
def test_femnist_by_writer():
    data = load("femnist", DATA)
    s = split(data, partition="natural", labels="fraction:0.1")
    assert len(s) == 279
    for i, part in enumerate(s.parts):
        assert (data.group[torch.cat([part.labelled, part.unlabelled])] == s.groups[i]).all()
        assert abs(len(part.labelled) - 0.1 * len(part)) < 1 + 1e-2 and len(s.client(i).test) > 0


def test_scaling_of_channels_last_colour_gives_the_same_bits():
    from grapevine.core.rows import Scale

    x = torch.randint(0, 256, (5, 3, 8, 9), dtype=torch.uint8)
    scale = Scale(1 / 255, torch.rand(3, 1, 1), torch.rand(3, 1, 1) + 0.1)
    assert torch.equal(scale(x), scale(x.contiguous(memory_format=torch.channels_last)))
