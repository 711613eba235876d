"""The server's matrix times sealed labels: exact against a plain product, and attacked with what each side holds."""

import numpy as np
import pytest

from grapevine.core.errors import Mistake
from grapevine.crypto import product
from grapevine.crypto.stream import Stream, context, fresh_secret

PUBLIC, SEED = b"p" * 32, b"s" * 32


def stream() -> Stream:
    return Stream(fresh_secret(), context("test"))


@pytest.fixture
def key() -> np.ndarray:
    return product.secret_key(SEED, b"round 0")


def labels(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.eye(columns, dtype=np.int64)[np.random.default_rng(seed).integers(0, columns, rows)]


def influence(rows: int, labelled: int, seed: int = 1) -> np.ndarray:
    """Rows of S as a graph gives them: a few large entries, many small ones."""
    return product.scaled(np.random.default_rng(seed).random((rows, labelled)) ** 8)


def sealed(key, Y: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: product.encrypt(PUBLIC, name, key, y, stream()) for name, y in Y.items()}


@pytest.mark.parametrize("rows, columns, sizes", [(1, 1, (1,)), (30, 20, (5, 0, 7)), (3, 512, (4, 4)), (60, 7, (40, 2))])
def test_every_row_is_that_of_the_plain_product(key, rows, columns, sizes):
    Y = {f"party {i}": labels(n, columns, i) for i, n in enumerate(sizes)}
    S = influence(rows, sum(sizes))
    u, v = product.evaluate(PUBLIC, sealed(key, Y), product.public_key(PUBLIC, key, stream()), S, columns, stream())
    Z = product.decrypt(key, u, v, rows, columns)
    assert np.array_equal(Z, (S @ np.concatenate(list(Y.values()))).astype(np.int64))
    told = product.sizes(sizes[0], rows, columns)
    assert u.nbytes + v.nbytes == told["down"]
    assert sealed(key, Y)["party 0"].nbytes + product.public_key(PUBLIC, key, stream()).nbytes == told["up"]


def test_the_largest_sum_and_the_empty_row_come_out(key):
    """A row may sum to 2^16 - 1 and no further: one more and it would wrap to 0."""
    S = np.array([[product.MOST, 0.0], [0.0, 0.0], [1.0, product.MOST - 1]])
    bodies = sealed(key, dict(a=np.array([[1], [1]])))
    u, v = product.evaluate(PUBLIC, bodies, product.public_key(PUBLIC, key, stream()), S, 1, stream())
    assert product.decrypt(key, u, v, 3, 1)[:, 0].tolist() == [product.MOST, 0, product.MOST]


def test_rows_are_scaled_each_by_itself():
    S = product.scaled(np.array([[1e-9, 3e-9], [5.0, 5.0], [0.0, 0.0], [-1.0, 2.0]]))
    assert S.tolist() == [[16383, 49151], [32767, 32767], [0, 0], [0, 65535]]
    assert (product.scaled(np.random.default_rng(0).random((200, 333))).sum(1) <= product.MOST).all()


def test_too_many_columns_are_refused():
    with pytest.raises(Mistake, match="513 columns"):
        product.rows_per_ciphertext(513)


def test_values_survive_the_wire():
    limbs = np.random.default_rng(0).integers(-(2**40), 2**40, (product.LIMBS, 3, 5))
    plain = sum(int(v) << (product.LIMB * i) for i, v in enumerate(limbs[:, 1, 2])) % 2**96
    back = product.from_wire(product.to_wire(limbs))[:, 1, 2]
    assert sum(int(v) << (product.LIMB * i) for i, v in enumerate(back)) == plain


def test_another_seed_or_round_is_another_key(key):
    assert not np.array_equal(key, product.secret_key(SEED, b"round 1"))
    assert not np.array_equal(key, product.secret_key(b"t" * 32, b"round 0"))
    assert set(np.unique(key)) == {-1, 0, 1}


def test_the_server_sees_nothing_but_noise(key):
    """Ciphertexts of all zeros and of all ones have the same uniform bytes: a chi-square over 256 values, ten deviations wide."""
    for Y in (np.zeros((40, 10), np.int64), np.ones((40, 10), np.int64)):
        body = product.encrypt(PUBLIC, "a", key, Y, stream())
        for byte in range(product.BYTES):
            counts = np.bincount(body[:, :10, byte].reshape(-1), minlength=256)
            assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 255 + 10 * np.sqrt(2 * 255)


# ---------------------------------------------------------------- a party that wants S


def u_of(S: np.ndarray, columns: int) -> np.ndarray:
    """What u would be of this S, if nothing hid it: a party knows all a_l, for they come from a public seed."""
    nothing = {"a": np.zeros((S.shape[1], product.RING, product.BYTES), np.uint8)}
    u, _ = product.evaluate(
        PUBLIC, nothing, np.zeros((product.RANK, product.RING, product.BYTES), np.uint8), S, columns, stream()
    )
    return product.from_wire(u, 3)[0]


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The share of coefficients that are equal up to the rounding."""
    apart = (a - b) % 2**product.KEPT
    return float((np.minimum(apart, 2**product.KEPT - apart) <= 1).mean())


@pytest.mark.parametrize("hidden", [True, False])
def test_a_party_cannot_tell_which_S_it_was_unless_the_encryption_of_zero_is_left_out(key, monkeypatch, hidden):
    Y, right, wrong = labels(6, 3), influence(4, 6), influence(4, 6, seed=2)
    if not hidden:
        monkeypatch.setattr(product, "_add_zero", lambda *told: None)
    u, _ = product.evaluate(PUBLIC, sealed(key, dict(a=Y)), product.public_key(PUBLIC, key, stream()), right, 3, stream())
    monkeypatch.setattr(product, "_add_zero", lambda *told: None)
    seen = product.from_wire(u, 3)[0]
    found = agreement(seen, u_of(right, 3)), agreement(seen, u_of(wrong, 3))
    assert found[1] < 0.01
    assert (found[0] < 0.01) if hidden else (found[0] > 0.99)


def errors_of(key: np.ndarray, sums: np.ndarray, ciphertext: int = 0) -> np.ndarray:
    """v − ⟨u, s⟩ mod 2^96 of a ciphertext that encrypts zeros, as signed numbers."""
    limbs = product._carried(sums[:, ciphertext])
    inner = [product.convolve(limb[None, : product.RANK].astype(np.float64), key[:, None])[0, 0] for limb in limbs]
    out = []
    for c in range(product.RING):
        value = sum((int(v[product.RANK, c]) - int(i[c])) << (product.LIMB * n) for n, (v, i) in enumerate(zip(limbs, inner)))
        out.append((value + 2**95) % 2**96 - 2**95)
    return np.array(out, float)


@pytest.mark.parametrize("flooded", [True, False])
def test_a_party_cannot_read_S_off_the_error_unless_the_flood_is_left_out(key, monkeypatch, flooded):
    """A party knows the errors of its own ciphertexts; of a row of S that rests on them it could predict the error of Z. All 96
    bits are looked at here, more than travel, and the encryption of zero is left out: the flood alone must hide it."""
    monkeypatch.setattr(product, "_add_zero", lambda *told: None)
    if not flooded:
        monkeypatch.setattr(product, "_add_flood", lambda *told: None)
    monkeypatch.setattr(product, "gauss", lambda s, shape: np.full(shape, 29))
    bodies = sealed(key, dict(a=np.zeros((2, 1), np.int64)))
    for row in ([40000.0, 20000.0], [10.0, 0.0]):
        error = errors_of(key, product.hidden(PUBLIC, bodies, None, np.array([row]), 512, stream()))
        assert (error[0] == 29 * sum(row)) != flooded


def test_the_error_before_the_flood_is_as_the_page_says(key, monkeypatch):
    """Σ S e and the encryption of zero: their deviation, measured over 512 coefficients."""
    monkeypatch.setattr(product, "_add_flood", lambda *told: None)
    S = influence(3, 30)
    bodies, p = sealed(key, dict(a=np.zeros((30, 1), np.int64))), product.public_key(PUBLIC, key, stream())
    sums = product.hidden(PUBLIC, bodies, p, S, 512, stream())
    measured = [errors_of(key, sums, i).std() for i in range(3)]
    wanted = [product.error_sigma(float(np.linalg.norm(row))) for row in S]
    assert measured == pytest.approx(wanted, rel=0.15)


def test_the_flood_is_wide_enough_and_leaves_room_for_rounding():
    assert product.flood_distance(500, 60) < -46
    margin = 2.0 ** (96 - product.T_BITS - 1) - 1.5 * 2.0**product.FLOOD_BITS  # of E and of the rounding
    rounding = 2.0 ** (96 - product.KEPT) * np.sqrt(product.RING * product.RANK * 2 / 3 / 12)  # one deviation of ⟨δ, s⟩
    assert margin / rounding > 7


def test_coefficients_without_a_score_are_drawn_anew(key):
    """Of two evaluations of the same thing, what lies beyond the scores has nothing in common."""
    bodies, p = sealed(key, dict(a=labels(3, 5))), product.public_key(PUBLIC, key, stream())
    free = [product.evaluate(PUBLIC, bodies, p, influence(1, 3), 5, stream())[1][:, 510:] for _ in range(2)]
    assert not np.array_equal(*free)


def test_fewer_bytes_than_the_papers_columns_and_sums():
    """Five parties of 500 rows with 50 labels each, ten classes, all labels and those not hidden: for one party, up and down."""
    private = product.sizes(50, 500, 20)
    columns, sums_up, sums_down = 4 * 2500 * 50, 8 * 2000 * 20, 8 * 500 * 20
    assert private["up"] + private["down"] < 0.75 * (columns + sums_up + sums_down)
