"""Known answers for HKDF and AES-CTR, and that contexts cannot be confused."""

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats
from uniformity import looks_uniform

from grapevine.crypto import stream
from grapevine.crypto.stream import Stream, context, fresh_secret, hkdf

SECRET = bytes(range(32))


def run(start: int, stop: int) -> bytes:
    return bytes(range(start, stop))


# RFC 5869, appendix A.1 to A.3: secret, salt, info, output.
RFC_5869 = [
    (
        b"\x0b" * 22,
        run(0x00, 0x0D),
        run(0xF0, 0xFA),
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        run(0x00, 0x50),
        run(0x60, 0xB0),
        run(0xB0, 0x100),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
        "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
    ),
    (
        b"\x0b" * 22,
        b"",
        b"",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]


@pytest.mark.parametrize("secret, salt, info, output", RFC_5869)
def test_hkdf_gives_the_answers_of_rfc_5869(secret, salt, info, output):
    assert hkdf(secret, info, len(output) // 2, salt).hex() == output


def test_no_salt_is_the_empty_salt_of_rfc_5869():
    secret, _, info, output = RFC_5869[2]
    assert hkdf(secret, info, 42).hex() == output


def test_counter_mode_gives_the_answers_of_sp_800_38a():
    # NIST SP 800-38A, F.5.5, CTR-AES256.Encrypt.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    assert stream._counter_mode(key, run(0xF0, 0x100)).update(plain) == cipher


def test_a_stream_is_the_encrypted_counter():
    block = Cipher(algorithms.AES(hkdf(SECRET, b"use")), modes.ECB()).encryptor()
    expected = b"".join(block.update(n.to_bytes(16, "big")) for n in range(20))
    assert Stream(SECRET, b"use").bytes(320) == expected
    assert Stream(SECRET, b"use").array(40).tobytes() == expected
    assert Stream(SECRET, b"use").array((5, 32), "uint16").tobytes() == expected


def test_how_a_stream_is_cut_does_not_matter():
    whole = Stream(SECRET, b"").bytes(3_000_000)
    pieces = Stream(SECRET, b"")
    assert pieces.bytes(7) + pieces.array(2_500_001, "uint8").tobytes() + pieces.bytes(499_992) == whole


def test_contexts_of_different_uses_differ():
    uses = [
        context("mask", a="1", b="2"),
        context("mask", a="12", b=""),
        context("mask", a="", b="12"),
        context("mask", a=1, b="2"),
        context("mask", a=b"1", b="2"),
        context("mask", ab="12"),
        context("mask", b="1", a="2"),
        context("maska", b="2"),
        context("mask"),
    ]
    assert len(set(uses)) == len(uses)
    drawn = {Stream(SECRET, use).bytes(16) for use in uses}
    assert len(drawn) == len(uses)


def test_a_value_cannot_pass_for_the_next_part():
    """A name or a value that is written to look like what would follow it."""
    for tail in (b"\0\0\0\x01bby", b"\0\0\0\x01bb\0\0\0\x01y"):
        assert context("m", a=b"x" + tail) != context("m", a=b"x", b=b"y")
    assert context("m", a="x") != context("m\0\0\0\x01as\0\0\0\x01x")


def test_a_context_does_not_depend_on_order_or_on_the_kind_of_integer():
    assert context("x", a=3, b="y") == context("x", b="y", a=np.int64(3))


@pytest.mark.parametrize("value", [0.5, None, ("a",), np.float64(1)])
def test_a_context_takes_only_integers_strings_and_bytes(value):
    with pytest.raises(TypeError):
        context("x", a=value)


def test_secrets_are_fresh_and_hidden():
    secret = fresh_secret()
    assert len(secret) == 32 and secret != fresh_secret()
    assert secret.hex() not in repr(Stream(secret, b"")) and "hidden" in repr(Stream(secret, b""))


def test_all_256_bits_of_a_secret_come_from_the_operating_system(monkeypatch):
    """Secrets of 64 random bits, stretched to 32 bytes, passed every test."""
    drawn = []

    def noted(n):
        drawn.append(real(n))
        return drawn[-1]

    real = os.urandom
    monkeypatch.setattr(os, "urandom", noted)
    secrets = [fresh_secret() for _ in range(100)]
    assert secrets == drawn
    bits = np.unpackbits(np.frombuffer(b"".join(secrets), np.uint8).reshape(100, 32), axis=1)
    assert bits.any(0).all() and not bits.all(0).any()  # none of the 256 stands still


def test_a_short_secret_and_a_signed_type_are_refused():
    with pytest.raises(ValueError, match="15 bytes is too short"):
        Stream(bytes(15), b"")
    with pytest.raises(ValueError, match="unsigned"):
        Stream(SECRET, b"").array(3, "int64")


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "uint64"])
def test_arrays_are_uniform_over_the_ring(kind):
    values = Stream(SECRET, kind.encode()).array((100, 500), kind)
    assert values.dtype == kind and looks_uniform(values)


def test_the_uniformity_test_sees_a_small_bias():
    values = Stream(SECRET, b"bias").array(50_000, "uint16")
    values[::50] = 7  # one value in fifty
    assert not looks_uniform(values)


def test_floats_follow_their_distributions():
    u = Stream(SECRET, b"u").uniform(20_001)
    z = Stream(SECRET, b"z").normal((67, 301))
    assert 0 < u.min() and u.max() < 1 and stats.kstest(u, "uniform").pvalue > 1e-6
    assert z.shape == (67, 301) and stats.kstest(z.ravel(), "norm").pvalue > 1e-6
    # Box–Muller gives pairs: they must not be correlated.
    half = z.size // 2
    assert abs(np.corrcoef(z.ravel()[:half], z.ravel()[-half:])[0, 1]) < 5 / np.sqrt(half)
