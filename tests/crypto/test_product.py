"""The server's matrix times sealed labels: exact against a plain product, and attacked with what each side holds."""

import numpy as np
import pytest

from grapevine.core.errors import Mistake
from grapevine.crypto import lattice, product
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
    u, v = product.evaluate(
        PUBLIC, product.unpacked(PUBLIC, sealed(key, Y)), product.public_key(PUBLIC, key, stream()), S, columns, stream()
    )
    Z = product.decrypt(key, u, v, rows, columns)
    assert np.array_equal(Z, (S @ np.concatenate(list(Y.values()))).astype(np.int64))
    told = product.sizes(sizes[0], rows, columns)
    assert u.nbytes + v.nbytes == told["down"]
    assert sealed(key, Y)["party 0"].nbytes + product.public_key(PUBLIC, key, stream()).nbytes == told["up"]


@pytest.mark.parametrize("most, columns", [(2, 60), (255, 10), (255, 372), (7, 512)])
def test_larger_labels_give_the_plain_product_too(key, most, columns):
    rng = np.random.default_rng(3)
    Y = {"a": rng.integers(0, most + 1, (6, columns)), "b": rng.integers(0, most + 1, (4, columns))}
    S = product.scaled(rng.random((9, 10)) ** 4, most)
    bodies = {name: product.encrypt(PUBLIC, name, key, y, stream(), most) for name, y in Y.items()}
    u, v = product.evaluate(
        PUBLIC, product.unpacked(PUBLIC, bodies), product.public_key(PUBLIC, key, stream()), S, columns, stream(), most
    )
    Z = product.decrypt(key, u, v, 9, columns, most)
    assert np.array_equal(Z, (S @ np.concatenate(list(Y.values()))).astype(np.int64))
    assert u.nbytes + v.nbytes == product.sizes(6, 9, columns, most)["down"]


@pytest.mark.parametrize("most", [1, 2, 3, 127, 128, 255])
def test_no_score_wraps(most):
    """Rows that sum to their room, all labels at their largest: still below t; and rows keep at least fourteen bits."""
    scale = product.Scale(most)
    assert scale.room * most < 2**scale.t_bits and scale.room >= 2**14
    sums = product.scaled(np.random.default_rng(0).random((50, 80)), most).sum(1)
    assert scale.room - 80 <= sums.min() and sums.max() <= scale.room


def test_the_largest_score_of_large_labels_comes_out(key):
    scale = product.Scale(255)
    S = np.array([[scale.room, 0.0], [0.0, 0.0], [1.0, scale.room - 1]])
    bodies = dict(a=product.encrypt(PUBLIC, "a", key, np.array([[255], [255]]), stream(), 255))
    u, v = product.evaluate(
        PUBLIC, product.unpacked(PUBLIC, bodies), product.public_key(PUBLIC, key, stream()), S, 1, stream(), 255
    )
    assert product.decrypt(key, u, v, 3, 1, 255)[:, 0].tolist() == [255 * scale.room, 0, 255 * scale.room]


def test_labels_and_rows_beyond_what_was_agreed_are_refused(key):
    for bad in ([[2]], [[-1]]):
        with pytest.raises(Mistake, match="outside the agreed range of 0 to 1"):
            product.encrypt(PUBLIC, "a", key, np.array(bad), stream())
    with pytest.raises(Mistake, match="0 to 255 at most"):
        product.Scale(256)
    bodies, p = sealed(key, dict(a=labels(2, 1))), product.public_key(PUBLIC, key, stream())
    for row in ([40000.0, 30000.0], [-1.0, 5.0]):
        with pytest.raises(Mistake, match="scores would wrap"):
            product.evaluate(PUBLIC, product.unpacked(PUBLIC, bodies), p, np.array([row]), 1, stream())


# ---------------------------------------------------------------- against Python's integers

Q = 1 << 96


def polynomial(limbs: np.ndarray) -> list[int]:
    """Coefficients mod q from limbs first."""
    return [sum(int(v) << (product.LIMB * i) for i, v in enumerate(c)) % Q for c in limbs.T]


def times(f: list[int], g: list[int]) -> list[int]:
    """A product mod x^512 + 1 and q, by one product of large integers: coefficients are digits, 256 bits apart."""
    digits = [int.from_bytes(b"".join((c % Q).to_bytes(32, "little") for c in h), "little") for h in (f, g)]
    whole = (digits[0] * digits[1]).to_bytes(2 * 32 * 512, "little")
    c = [int.from_bytes(whole[32 * i : 32 * i + 32], "little") for i in range(1024)]
    return [(c[i] - c[i + 512]) % Q for i in range(512)]


def plus(*polynomials: list[int]) -> list[int]:
    return [sum(c) % Q for c in zip(*polynomials)]


def public_of(label: str, count: int) -> list[list[list[int]]]:
    limbs = np.stack([product._expand(PUBLIC, label, limb, count) for limb in range(product.LIMBS)])
    return [[polynomial(limbs[:, l, i]) for i in range(product.RANK)] for l in range(count)]


@pytest.mark.parametrize("most", [1, 200])
def test_every_message_against_python_integers(key, monkeypatch, most):
    """The ciphertexts, and what the server makes of them, coefficient by coefficient, by another way of multiplying."""
    scale, Y = product.Scale(most), np.array([[most, 0], [0, most // 2]])
    body = product.encrypt(PUBLIC, "a", key, Y, stream(), most)
    a, s = public_of("rows of a", 2), [[int(c) for c in f] for f in key]
    b = [polynomial(product.from_wire(row)) for row in body]
    for l in range(2):
        wanted = plus(*(times(a[l][i], s[i]) for i in range(product.RANK)))
        label = [int(y) * (Q >> scale.t_bits) for y in Y[l]] + [0] * 510
        error = [(x - w - y + Q // 2) % Q - Q // 2 for x, w, y in zip(b[l], wanted, label)]
        assert max(map(abs, error)) <= lattice.TAIL and len(set(error)) > 10
    monkeypatch.setattr(product, "_add_zero", lambda *told: None)
    monkeypatch.setattr(product, "_add_flood", lambda *told: None)
    S = np.array([[7.0, 9.0], [scale.room - 1, 1.0], [3.0, 0.0]])
    sums = product._carried(product.hidden(PUBLIC, product.unpacked(PUBLIC, dict(a=body)), None, S, 2, stream(), most))[:, 0]
    shifted = [[int(S[r, l]) if c == 2 * r else 0 for r in range(3) for c in (2 * r, 2 * r + 1)] for l in range(2)]
    multiplier = [row + [0] * 506 for row in shifted]
    for i in range(product.RANK + 1):
        parts = [times(multiplier[l], a[l][i] if i < product.RANK else b[l]) for l in range(2)]
        assert polynomial(sums[:, i]) == plus(*parts)


def test_the_largest_sum_and_the_empty_row_come_out(key):
    """A row may sum to 2^16 - 1 and no further: one more and it would wrap to 0."""
    S = np.array([[product.MOST, 0.0], [0.0, 0.0], [1.0, product.MOST - 1]])
    bodies = sealed(key, dict(a=np.array([[1], [1]])))
    u, v = product.evaluate(PUBLIC, product.unpacked(PUBLIC, bodies), product.public_key(PUBLIC, key, stream()), S, 1, stream())
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
        PUBLIC,
        product.unpacked(PUBLIC, nothing),
        np.zeros((product.RANK, product.RING, product.BYTES), np.uint8),
        S,
        columns,
        stream(),
    )
    return lattice.from_bytes(u)


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The share of coefficients that are equal up to the rounding."""
    apart = (a - b) % 2**24
    return float((np.minimum(apart, 2**24 - apart) <= 1).mean())


@pytest.mark.parametrize("hidden", [True, False])
def test_a_party_cannot_tell_which_S_it_was_unless_the_encryption_of_zero_is_left_out(key, monkeypatch, hidden):
    Y, right, wrong = labels(6, 3), influence(4, 6), influence(4, 6, seed=2)
    if not hidden:
        monkeypatch.setattr(product, "_add_zero", lambda *told: None)
    u, _ = product.evaluate(
        PUBLIC, product.unpacked(PUBLIC, sealed(key, dict(a=Y))), product.public_key(PUBLIC, key, stream()), right, 3, stream()
    )
    monkeypatch.setattr(product, "_add_zero", lambda *told: None)
    seen = lattice.from_bytes(u)
    found = agreement(seen, u_of(right, 3)), agreement(seen, u_of(wrong, 3))
    assert found[1] < 0.01
    assert (found[0] < 0.01) if hidden else (found[0] > 0.99)


def errors_of(key: np.ndarray, sums: np.ndarray, ciphertext: int = 0) -> np.ndarray:
    """v − ⟨u, s⟩ mod 2^96 of a ciphertext that encrypts zeros, as signed numbers."""
    limbs = product._carried(sums[:, ciphertext])
    inner = [product.convolve(limb[None, : product.RANK], key[:, None])[0, 0] for limb in limbs]
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
        error = errors_of(key, product.hidden(PUBLIC, product.unpacked(PUBLIC, bodies), None, np.array([row]), 512, stream()))
        assert (error[0] == 29 * sum(row)) != flooded


def test_the_error_before_the_flood_is_as_the_page_says(key, monkeypatch):
    """Σ S e and the encryption of zero: their deviation, measured over 512 coefficients."""
    monkeypatch.setattr(product, "_add_flood", lambda *told: None)
    S = influence(3, 30)
    bodies, p = sealed(key, dict(a=np.zeros((30, 1), np.int64))), product.public_key(PUBLIC, key, stream())
    sums = product.hidden(PUBLIC, product.unpacked(PUBLIC, bodies), p, S, 512, stream())
    measured = [errors_of(key, sums, i).std() for i in range(3)]
    wanted = [product.error_sigma(float(np.linalg.norm(row))) for row in S]
    assert measured == pytest.approx(wanted, rel=0.15)


def failure(most: int) -> float:
    """log2 of a bound on the chance that one score is wrong: Chernoff's, for a sum of products of a uniform rounding error and a
    ternary secret, against what the flood leaves of the margin."""
    scale = product.Scale(most)
    room = 2.0 ** (scale.kept - scale.t_bits - 1) - 1.5 * 2.0 ** (scale.flood_bits - 96 + scale.kept) - 1
    lam = np.linspace(0.001, 6, 6000)
    log_mgf = np.log(1 / 3 + 2 / 3 * np.sinh(lam / 2) / (lam / 2))
    return 1 + float((product.RING * product.RANK * log_mgf - lam * room).min()) / np.log(2)


@pytest.mark.parametrize("most, distance, wrong", [(1, -49.8, -36.3), (2, -46.8, -286.4), (255, -47.8, -286.4)])
def test_the_flood_is_wide_enough_and_leaves_room_for_rounding(most, distance, wrong):
    """As the page of parameters says."""
    assert product.flood_distance(500, 60, most) == pytest.approx(distance, abs=0.06)
    assert failure(most) == pytest.approx(wrong, abs=0.5)


def test_coefficients_without_a_score_are_drawn_anew(key):
    """Of two evaluations of the same thing, what lies beyond the scores has nothing in common."""
    bodies, p = sealed(key, dict(a=labels(3, 5))), product.public_key(PUBLIC, key, stream())
    free = [
        product.evaluate(PUBLIC, product.unpacked(PUBLIC, bodies), p, influence(1, 3), 5, stream())[1][:, 510:] for _ in range(2)
    ]
    assert not np.array_equal(*free)


def test_fewer_bytes_than_the_papers_columns_and_sums():
    """Five parties of 500 rows with 50 labels each, ten classes, all labels and those not hidden: for one party, up and down."""
    private = product.sizes(50, 500, 20)
    columns, sums_up, sums_down = 4 * 2500 * 50, 8 * 2000 * 20, 8 * 500 * 20
    assert private["up"] + private["down"] < 0.75 * (columns + sums_up + sums_down)
