"""What leaves a party of the label job, and what it refuses: changed messages, steps out of turn, a server that errs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from labelling import AGAIN, SEED, SPREAD, again, blobs, each_request, hash_of, job, order, slow, start
from scipy import stats

from grapevine.core import run_step
from grapevine.core.errors import Mistake
from grapevine.crypto import hamming
from grapevine.crypto.agreement import Identity
from grapevine.run.simulate import StepError

FIELDS = {
    "keys": {"offer", "prelude", "rows", "features", "labels", "classes"},
    "meet": {"letters", "prelude"},
    "pool": {"share", "tag"},
    "moments": {"share", "tag"},
    "share": {"first", "own", "labelled", "blank", "spread"},
    SPREAD: {"rows"},
    "receive": {"hits"},
    "xclp.hamming.evaluate": {"answers", "common", "shares"},
    "xclp.hamming.open": {"shares"},
}


def flat(value):
    """Every leaf of a message as bytes."""
    if isinstance(value, dict):
        return b"|".join(flat(item) for item in value.values())
    return value.tobytes() if isinstance(value, np.ndarray) else value if isinstance(value, bytes) else repr(value).encode()


def markers(run, parties, name):
    """What must not be seen anywhere outside: rows, labels and bits of one party, as they would lie in a message."""
    X, y = parties[name]
    X = np.asarray(X)[order(y)]
    oracle = slow(parties, run.method)
    V = oracle.V[oracle.owner == name]
    B = np.packbits(hash_of(V, run.method.xclp.bits, run.method.xclp.preset), axis=1)
    known = oracle.y[oracle.owner == name]
    known = known[known >= 0]
    out = {f"row {kind}": rows[0].astype(kind).tobytes() for kind in ("<f8", "<f4") for rows in (X,)}
    out |= {f"scaled row {kind}": V[0].astype(kind).tobytes() for kind in ("<f8", "<f4")}
    out |= {f"labels {kind}": known.astype(kind).tobytes() for kind in ("<i8", "<i4", "u1")}
    out |= {"one-hot": np.eye(len(oracle.classes))[known].tobytes(), "bits": B[0].tobytes(), "bits unpacked": np.unpackbits(B[0])}
    return {what: bytes(marker) for what, marker in out.items()}


@pytest.mark.parametrize("protocol", ["psm", pytest.param("mlwe", marks=pytest.mark.slow), "plain"])
def test_no_row_label_or_bit_leaves(protocol):
    parties = blobs((15, 13, 12), labelled=9)
    run = start(job(protocol, bits=64), parties)
    for name in parties:
        for what, marker in markers(run, parties, name).items():
            seen = [(direction, step, id) for direction, step, id, message in run.sent if marker in flat(message)]
            if protocol == "plain" and what == "bits":
                assert seen == [("up", "share", name)]  # the marker is one that this test would see
            else:
                assert not seen, what
    for direction, step, id, message in run.sent:
        if direction == "up":
            assert set(message) == FIELDS[step], (step, id)


def test_what_leaves_in_the_clear_does_not_depend_on_labels():
    parties = blobs((15, 13, 12), labelled=9)
    X, y = parties["p1"]
    turned = dict(parties, p1=(X, [{"a": "b", "b": "c", "c": "a"}.get(label) for label in y]))
    one, other = start(job("plain"), parties), start(job("plain"), turned)
    for step, fields in (("keys", ("rows", "features", "labels", "classes")), ("share", ("first", "own", "labelled", "blank"))):
        for name in fields:
            np.testing.assert_equal(one.up(step, "p1")[0][name], other.up(step, "p1")[0][name])
    assert (one.result("p1")["label"] != other.result("p1")["label"]).any()


def test_only_labelled_columns_go_and_only_to_their_owner():
    parties = blobs((9, 12, 7), labelled=3)
    parties["p2"] = (parties["p2"][0], [None] * 7)
    run = start(job("psm"), parties)
    oracle = slow(parties, run.method)
    for name in parties:
        (message,) = run.down(SPREAD, name)
        own = (oracle.owner == name) & (oracle.y >= 0)
        assert set(message["columns"]) == {0}  # the one (k, α) that is tried
        np.testing.assert_allclose(message["columns"][0], oracle.S[:, own], atol=1e-4)
        assert set(message) == {"columns", "counts", "parties", "round", "attempt", "total"}
    assert run.down(SPREAD, "p2")[0]["columns"][0].shape == (28, 0)


def test_a_party_gets_its_own_rows_alone():
    run = start(job("psm"), blobs((9, 12, 7)))
    for name, n in (("p0", 9), ("p1", 12), ("p2", 7)):
        (message,) = run.down("receive", name)
        assert set(message) == {"rows", "parties", "round", "attempt"} and len(message["rows"]) == n


def uniform(words):
    """p-value of the worst byte's histogram, times the number of bytes."""
    data = np.ascontiguousarray(words).view(np.uint8).reshape(-1, words.dtype.itemsize)
    assert len(data) >= 2560
    worst = min(stats.chisquare(np.bincount(column, minlength=256)).pvalue for column in data.T)
    return min(1.0, worst * data.shape[1])


def test_masked_messages_are_uniform():
    """At a level of 1e-6. Masks come from the operating system, so one run in a million may fail."""
    names = [f"c{i}" for i in range(10)]
    parties = blobs((90, 90, 80), classes=names, labelled=40, d=220)
    run = start(job("psm", bits=64), parties)
    rows = run.up(SPREAD, "p0")[0]["rows"]
    assert uniform(np.concatenate([rows["p1"], rows["p2"]])) > 1e-6
    assert uniform(np.concatenate([run.down("receive", name)[0]["rows"] for name in parties])) > 1e-6
    assert uniform(run.up("pool", "p1")[0]["share"]) > 1e-6
    first = run.up("share", "p0")[0]["first"]
    assert uniform(first["u"]) > 1e-6 and uniform(first["a"]["p1"]) > 1e-6
    # Not a test that anything passes: contributions before masks are far from uniform.
    kept = start(job("psm", bits=64), parties, stop="receive").memory("p0")["spread"]
    assert uniform(np.concatenate([kept["p1"], kept["p2"]])) < 1e-6


def test_hits_leave_under_masks():
    """Counts below 2^32 would be seen at once: masked ones are uniform in 2^64, and only their sum is small."""
    parties = blobs((20, 24, 18), labelled=10)
    run = start(job("psm"), parties)
    shares = np.stack([run.up("receive", name)[0]["hits"] for name in parties])
    assert (shares > 2**32).mean() > 0.99
    assert shares.sum(0, dtype=np.uint64).max() <= 30


def test_letters_are_opaque_and_the_seed_stays_among_clients():
    parties = blobs((9, 12, 7))
    run = start(job("psm"), parties, stop=SPREAD)
    seeds = {name: run.memory(name)["seed"] for name in parties}
    assert len(set(seeds.values())) == 1 and len(seeds["p0"]) == 32
    agreed = [run.memory(name)["agreement"]["ephemeral"]["secret"] for name in parties]
    for _, _, _, message in run.sent:
        assert not any(secret in flat(message) for secret in [*seeds.values(), *agreed])
    letters = [letter for name in parties for letter in run.up("meet", name)[0]["letters"].values()]
    assert {len(letter) for letter in letters} == {12 + 32 + 16} and len(set(letters)) == 6
    for name in parties:
        (message,) = run.down("pool", name)
        assert set(message["letters"]) == set(parties) - {name}


# ---------------------------------------------------------------- signatures and identities


def test_a_changed_identity_stops_the_job_with_a_sentence():
    def impostor(simulation):
        pinned = dict(simulation.pinned)
        simulation.identities, simulation.pinned = dict(simulation.identities, p1=Identity.generate()), pinned

    with pytest.raises(StepError, match="'p1'.* is not signed by the identity pinned for it .*compare fingerprints"):
        start(job("psm"), blobs((9, 10, 8)), prepare=impostor)


def test_a_party_that_nobody_pinned_is_refused():
    def stranger(simulation):
        simulation.pinned = {name: key for name, key in simulation.pinned.items() if name != "p2"}

    with pytest.raises(StepError, match="'p2' offers a key .* is not on the roster"):
        start(job("psm"), blobs((9, 10, 8)), prepare=stranger)


def test_a_swapped_offer_is_refused():
    def swap(id, payload):
        offers = payload["offers"]
        return dict(payload, offers=dict(offers, p1=offers["p2"], p2=offers["p1"]))

    with pytest.raises(StepError, match="is not signed by the identity pinned for it"):
        start(job("psm"), blobs((9, 10, 8)), change=dict(meet=each_request(swap)))


def test_an_offer_of_the_servers_own_is_refused():
    from grapevine.crypto.agreement import Ephemeral, roster_hash

    keep = {}

    def forge(id, payload):
        roster = roster_hash(keep["sim"].pinned, f"seed {SEED} group 0")
        mine = Ephemeral.generate().offer(Identity.generate(), "p2", f"seed {SEED} group 0", roster)
        return dict(payload, offers=dict(payload["offers"], p2=mine))

    with pytest.raises(StepError, match="'p2'.* is not signed by the identity pinned"):
        start(job("psm"), blobs((9, 10, 8)), change=dict(meet=each_request(forge)),
              prepare=lambda sim: keep.update(sim=sim))  # fmt: skip


@pytest.mark.parametrize("damage", ["swap", "flip"])
def test_a_changed_letter_is_refused(damage):
    def change(id, payload):
        letters = dict(payload["letters"])
        a, b = sorted(letters)
        if damage == "swap":
            letters[a], letters[b] = letters[b], letters[a]
        else:
            letters[a] = letters[a][:-1] + bytes([letters[a][-1] ^ 1])
        return dict(payload, letters=letters)

    with pytest.raises(StepError, match="was changed or belongs elsewhere"):
        start(job("psm"), blobs((9, 10, 8)), change=dict(pool=each_request(change)))


def test_a_swapped_ciphertext_is_refused(toy_lattice):
    def swap(requests):
        given = [(id, j) for id, payload in requests.items() for j in payload["ciphers"]]
        (a, j), (b, i) = next(pair for pair in itertools.combinations(given, 2) if pair[0][1] != pair[1][1])
        requests[a]["ciphers"][j] = requests[b]["ciphers"][i]
        return requests

    with pytest.raises(StepError, match="the ciphertext in the name of .* is not signed"):
        start(job("mlwe", bits=16), blobs((5, 4, 3), labelled=2), change={"xclp.hamming.evaluate": swap})


def test_a_party_does_not_decrypt_its_own_ciphertexts_for_the_server(toy_lattice):
    """As answers, a party's own ciphertexts would open to its bits. The first answer is tried: real ones are opened."""
    kept = {}

    def keep(requests):
        kept.update({j: parcel for payload in requests.values() for j, parcel in payload["ciphers"].items()})
        return requests

    def feed(requests):
        for j, payload in requests.items():
            for k in payload["answers"]:
                payload["answers"][k] = dict(payload["answers"][k], message=kept[j]["message"])
        return requests

    change = {"xclp.hamming.evaluate": keep, "xclp.hamming.open": feed}
    with pytest.raises(StepError, match="the answer in the name of .* is not signed"):
        start(job("mlwe", bits=16), blobs((5, 4, 3), labelled=2), change=change)


# ---------------------------------------------------------------- steps are answered once


def test_a_job_is_not_begun_again():
    run = start(job("psm"), blobs((9, 10, 8)), stop="receive")
    with pytest.raises(Mistake, match="p0 has already taken part in this job"):
        again(run, "keys", "p0", session_id="another")


def test_keys_are_not_met_again():
    """That would open the attempts anew, and other columns could be asked for under the same masks."""
    run = start(job("psm"), blobs((9, 10, 8)), stop="receive")
    with pytest.raises(Mistake, match="'p0' has not offered a key that is still to be met"):
        again(run, "meet", "p0")


@pytest.mark.parametrize("protocol", ["psm", "mlwe"])
def test_rows_are_not_hashed_again(protocol, toy_lattice):
    """Other moments would give other bits: under psm's same masks their difference, under any protocol a second H."""
    run = start(job(protocol, bits=32), blobs((5, 6, 4)), stop=SPREAD)
    with pytest.raises(Mistake, match="shares its rows once"):
        again(run, "share", "p0")


def test_masks_of_psm_are_begun_once_per_round():
    """Also where the seed is kept for several rounds."""
    run = start(job("psm", bits=32), blobs((5, 6, 4)), stop=SPREAD)
    client, counts = run.client("p0"), dict(p0=5, p1=6, p2=4)
    bits = np.zeros((5, 4), np.uint8)
    group = hamming.Group({}, counts, 32, 0, tuple(counts))
    with pytest.raises(Mistake, match="masks are used once"):
        run.method.xclp.hamming.begin(client, bits, group, {})
    first = run.method.xclp.hamming.begin(client, bits, replace(group, round=1), {})
    assert (first["u"] != run.up("share", "p0")[0]["first"]["u"]).mean() > 0.99


def test_distances_are_computed_and_opened_once(toy_lattice):
    run = start(job("mlwe", bits=16), blobs((5, 4, 3), labelled=2), stop=SPREAD)
    for step, sentence in (("evaluate", "has already computed its distances"), ("open", "has no ciphertexts to open")):
        id = next(i for i in run.simulation.data if run.down(f"xclp.hamming.{step}", i))
        with pytest.raises(Mistake, match=sentence):
            again(run, f"xclp.hamming.{step}", id)


def test_moments_are_not_masked_again():
    run = start(job("psm"), blobs((9, 10, 8)), stop="share")
    with pytest.raises(Mistake, match="masks are used once"):
        run_step(run.method, "sums.again", run.client("p0"), dict(number=0, attempt=0, parties=dict(p0=0, p1=1)))


@pytest.mark.parametrize("step", [SPREAD, AGAIN, "receive"])
def test_there_is_no_second_round(step):
    run = start(job("psm"), blobs((9, 10, 8)), stop="receive")
    payload = dict(parties=dict(p0=0, p1=1), round=1, attempt=0)
    if step == SPREAD:
        payload = dict(run.down(SPREAD, "p0")[0], **payload)
    if step == "receive":
        payload["rows"] = np.zeros((9, 6), np.uint64)
    with pytest.raises(Mistake, match="round 1 was requested"):
        run_step(run.method, step, run.client("p0"), payload)


def test_after_the_job_secrets_are_gone():
    parties = blobs((9, 10, 8))
    run = start(job("psm"), parties)
    for name in parties:
        assert set(run.memory(name)) == {"classes", "moments", "hidden", "scores", "result"}
        with pytest.raises(Mistake, match="has no labels to spread, or has finished with them"):
            again(run, "receive", name)


# ---------------------------------------------------------------- what a client knows better than the server


@pytest.mark.parametrize("step", ["share", SPREAD])
def test_a_wrong_count_of_own_rows_is_refused(step):
    """Cut otherwise, a party's rows would be summed as another's."""
    change = each_request(lambda id, payload: dict(payload, counts=dict(payload["counts"], p0=8, p1=11)))
    with pytest.raises(StepError, match="p0 has 9 rows, but the server says 8"):
        start(job("psm"), blobs((9, 10, 8)), change={step: change})


def test_columns_of_another_shape_are_refused():
    def less(id, payload):
        return dict(payload, columns={k: S[:, :-1] for k, S in payload["columns"].items()})

    with pytest.raises(StepError, match="the columns that came for p0 are not 27 × 4"):
        start(job("psm"), blobs((9, 10, 8)), change={SPREAD: each_request(less)})


def test_scores_of_another_number_of_rows_are_refused():
    change = each_request(lambda id, payload: dict(payload, rows=payload["rows"][:-1]))
    with pytest.raises(StepError, match="scores of 8 rows came for p0's 9"):
        start(job("psm"), blobs((9, 10, 8)), change=dict(receive=change))


def test_moments_are_summed_only_where_they_are_needed():
    parties = blobs((9, 10, 8))
    for settings, values in ((dict(scale="none"), 0), (dict(scale="none", impute=True), 6), (dict(), 18),
                             (dict(scale="none", preset="code"), 3), (dict(preset="code"), 21)):  # fmt: skip
        run = start(job("psm", **settings), parties, stop="share")
        shape = (values,) if "impute" in settings else (values, 4)  # counts first, which are not of any size
        assert (run.up("pool", "p0")[0]["share"].shape == shape) if values else not run.up("pool", "p0")[0]
        assert not settings.get("impute") or run.up("moments", "p0")[0]["share"].shape == (18, 4)
