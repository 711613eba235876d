"""Keyed streams: HKDF-SHA256 (RFC 5869) turns a secret and a context into a key, AES-256-CTR turns the key into bytes.

Every mask, key and hyperplane of Grapevine comes through here. Secrets themselves come from the operating system
(`fresh_secret`). numpy's and torch's generators are for shuffling data, never for anything that must stay unknown.
"""

from __future__ import annotations

import operator
import os

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SECRET_BYTES = 32


def fresh_secret() -> bytes:
    """256 bits from the operating system's generator."""
    return os.urandom(SECRET_BYTES)


def context(label: str, **parts: int | str | bytes) -> bytes:
    """An unambiguous byte string for HKDF's `info`: the label, then each name and value with its length.

    Masks are one-time, so whatever makes a use different (session, round, attempt, roster, ids, shapes) belongs in here.
    """
    out = [_sized(label.encode())]
    for name in sorted(parts):
        kind, data = _typed(parts[name])
        out.append(_sized(name.encode()) + kind + _sized(data))
    return b"".join(out)


def _typed(value: int | str | bytes) -> tuple[bytes, bytes]:
    if isinstance(value, bytes):
        return b"b", value
    if isinstance(value, str):
        return b"s", value.encode()
    # numpy's integers count as integers: two parties must not differ because one of them read the number from an array.
    return b"i", str(int(operator.index(value))).encode()


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def hkdf(secret: bytes, info: bytes, length: int = 32, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256, extract and expand."""
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


def _counter_mode(key: bytes, counter: bytes) -> CipherContext:
    """AES in counter mode (NIST SP 800-38A, 6.5). The keystream is what it makes of zeros."""
    return Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()


class Stream:
    """An endless keystream. Two holders of the same secret and context draw the same values in the same order."""

    def __init__(self, secret: bytes, info: bytes):
        if len(secret) < 16:
            raise ValueError(f"a secret of {len(secret)} bytes is too short: 16 is the least")
        # The counter may start at zero because no key is ever used for two streams: `info` makes it unique.
        self._cipher = _counter_mode(hkdf(secret, info), bytes(16))

    def __repr__(self) -> str:
        return "Stream(secret hidden)"

    def bytes(self, n: int) -> bytes:
        return self._cipher.update(bytes(n))

    def array(self, shape: int | tuple[int, ...], dtype: str = "uint64") -> np.ndarray:
        """Uniform unsigned integers of a little-endian dtype: the ring Z_2^8, Z_2^16, Z_2^32 or Z_2^64."""
        kind = np.dtype(dtype).newbyteorder("<")
        if kind.kind != "u":
            raise ValueError(f"a stream gives unsigned integers, not {kind}")
        count = int(np.prod(shape, dtype=np.int64))
        out = np.empty(count * kind.itemsize, np.uint8)
        # AES-CTR of zeros is the keystream; in pieces, so that the zeros do not double the memory.
        piece = 1 << 20
        zeros = bytes(min(piece, out.size))
        for at in range(0, out.size, piece):
            n = min(piece, out.size - at)
            out[at : at + n] = np.frombuffer(self._cipher.update(zeros[:n]), np.uint8)
        return out.view(kind).reshape(shape)

    def uniform(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Float64 in the open interval (0, 1), 53 bits each."""
        return ((self.array(shape) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Standard normal float64 by Box–Muller."""
        count = int(np.prod(shape, dtype=np.int64))
        half = (count + 1) // 2
        u = self.uniform((2, half))
        radius, angle = np.sqrt(-2.0 * np.log(u[0])), 2.0 * np.pi * u[1]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)
