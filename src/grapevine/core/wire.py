"""The one codec, for messages, client memory and checkpoints, and the byte account.

A value is a dict (string or integer keys) of dicts, tensors, arrays, bytes, strings, integers, floats and booleans.
Anything else raises, with the path of the field. The format, all little-endian:

    message  = "GV1\\n", value, crc32 of everything before
    value    = tag, body
    d dict   = count (u32), then per entry a key (an s or i value) and a value
    s string = length (u64), UTF-8        b bytes = length (u64), raw
    i int    = 8 bytes, signed            f float = 8 bytes, IEEE 754       T, F = true, false
    a array, t tensor = dtype code (u8), dimensions (u8), each dimension (u64), raw elements

`decode` trusts nothing: every length is compared with the bytes that are left before anything is allocated, depth and
dimensions are bounded, and there is no way to name code. The checksum finds accidents; against forgery there is TLS.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core.tensors import is_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"GV1\n"
MAX_DEPTH = 32
MAX_DIMENSIONS = 16
CRC_BYTES = 4

# The place in this list is the code on the wire: append only.
_DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]
_CODE = {name: code for code, name in enumerate(_DTYPES)}


class WireError(ValueError):
    """A value that cannot be sent, or bytes that are not a message."""


# ---------------------------------------------------------------- encoding


def encode(value: dict) -> bytes:
    """The bytes of a message."""
    if not isinstance(value, dict):
        raise WireError(f"a message is a dict, not {type(value).__name__}")
    body = b"".join([MAGIC, *(piece if isinstance(piece, bytes) else _raw(piece) for piece in _pieces(value))])
    return body + struct.pack("<I", zlib.crc32(body))


def size(value: Any) -> int:
    """How many bytes a value takes on the wire (without the 8 of a message's frame), without encoding it."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in _pieces(value))


def check(value: Any) -> None:
    """Raise what `encode` would raise, without the work: the fast mode's guard."""
    for _ in _pieces(value):
        pass


def _pieces(value: Any, path: str = "", depth: int = 0) -> Iterator[bytes | Tensor | np.ndarray]:
    """What a value is on the wire, piece by piece; tensors and arrays as they are, neither copied nor converted."""
    if isinstance(value, dict):
        if depth >= MAX_DEPTH:
            raise WireError(f"{path}: nested deeper than {MAX_DEPTH} dicts")
        yield b"d" + struct.pack("<I", len(value))
        for key, item in value.items():
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise WireError(f"{path or 'message'}: a key must be a string or an integer, not {type(key).__name__}")
            yield from _pieces(key, path, depth)
            yield from _pieces(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, bool):
        yield b"T" if value else b"F"
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise WireError(f"{path}: the integer {value} does not fit 64 bits; send it as bytes")
        yield b"i" + struct.pack("<q", value)
    elif isinstance(value, float):
        yield b"f" + struct.pack("<d", value)
    elif isinstance(value, (str, bytes, bytearray)):
        data = value.encode() if isinstance(value, str) else bytes(value)
        yield (b"s" if isinstance(value, str) else b"b") + struct.pack("<Q", len(data))
        yield data
    elif is_tensor(value) or isinstance(value, np.ndarray):
        yield _array_head(value, path)
        yield value
    else:
        hint = "; use a dict or an array" if isinstance(value, (list, tuple)) else ""
        raise WireError(f"{path or 'value'}: {type(value).__name__} cannot be sent{hint}")


def _array_head(array: Any, path: str) -> bytes:
    name = str(array.dtype).removeprefix("torch.") if is_tensor(array) else array.dtype.newbyteorder("=").name
    if name not in _CODE or is_tensor(array) and array.layout != torch.strided:
        kind = f"a tensor of {array.dtype}, {array.layout}" if is_tensor(array) else f"an array of {array.dtype}"
        raise WireError(f"{path}: {kind} cannot be sent")
    if array.ndim > MAX_DIMENSIONS:
        raise WireError(f"{path}: {array.ndim} dimensions are more than {MAX_DIMENSIONS}")
    return (b"t" if is_tensor(array) else b"a") + struct.pack(f"<BB{array.ndim}Q", _CODE[name], array.ndim, *array.shape)


def _raw(array: Any) -> bytes:
    if is_tensor(array):
        array = array.detach().cpu().contiguous().numpy()
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


# ---------------------------------------------------------------- decoding


def decode(data: bytes, limit: int | None = None) -> dict:
    """The value of a message; a `WireError` for anything that is not one. `limit` refuses longer messages unread."""
    if limit is not None and len(data) > limit:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limit}")
    if len(data) < len(MAGIC) + CRC_BYTES or data[: len(MAGIC)] != MAGIC:
        raise WireError("not a Grapevine message")
    body = memoryview(data)[:-CRC_BYTES]
    if struct.unpack("<I", data[-CRC_BYTES:])[0] != zlib.crc32(body):
        raise WireError("the message is damaged (checksum)")
    reader = _Reader(body, len(MAGIC))
    value = reader.value(0)
    if reader.at != len(body):
        raise WireError(f"{len(body) - reader.at} bytes after the end of the message")
    if not isinstance(value, dict):
        raise WireError("a message is a dict")
    return value


class _Reader:
    def __init__(self, body: memoryview, at: int):
        self.body, self.at = body, at

    def take(self, n: int) -> memoryview:
        if n > len(self.body) - self.at:
            raise WireError(f"the message ends at byte {len(self.body)}, where {n} more were announced")
        piece = self.body[self.at : self.at + n]
        self.at += n
        return piece

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def value(self, depth: int) -> Any:
        tag = bytes(self.take(1))
        if tag == b"d":
            return self.dict(depth)
        if tag == b"i":
            return self.number("q")
        if tag == b"f":
            return self.number("d")
        if tag in b"TF":
            return tag == b"T"
        if tag == b"s":
            try:
                return str(self.take(self.number("Q")), "utf-8")
            except UnicodeDecodeError:
                raise WireError("a string that is not UTF-8") from None
        if tag == b"b":
            return bytes(self.take(self.number("Q")))
        if tag in b"at":
            array = self.array()
            return torch.from_numpy(array) if tag == b"t" else array
        raise WireError(f"unknown tag {tag!r} at byte {self.at - 1}")

    def dict(self, depth: int) -> dict:
        if depth >= MAX_DEPTH:
            raise WireError(f"nested deeper than {MAX_DEPTH} dicts")
        out: dict = {}
        for _ in range(self.number("I")):  # each entry takes bytes, so a lying count runs into `take`
            if bytes(self.body[self.at : self.at + 1]) not in (b"s", b"i"):
                raise WireError(f"a key at byte {self.at} is neither a string nor an integer")
            key = self.value(depth)
            if key in out:
                raise WireError(f"the key {key!r} stands twice")
            out[key] = self.value(depth + 1)
        return out

    def array(self) -> np.ndarray:
        code, ndim = self.number("B"), self.number("B")
        if code >= len(_DTYPES) or ndim > MAX_DIMENSIONS:
            raise WireError(f"an array with dtype code {code} and {ndim} dimensions")
        shape = [self.number("Q") for _ in range(ndim)]
        dtype = np.dtype(_DTYPES[code]).newbyteorder("<")
        # Python integers, which do not overflow. A zero among the dimensions must not hide the others: numpy refuses such shapes.
        if math.prod(max(n, 1) for n in shape) * dtype.itemsize >= 2**48:
            raise WireError(f"an array of shape {shape}")
        count = math.prod(shape)
        raw = self.take(count * dtype.itemsize)
        if _DTYPES[code] == "bool" and count and max(raw) > 1:
            raise WireError("a boolean that is neither 0 nor 1")
        return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=True)


def digest(data: bytes) -> str:
    """The name of content-addressed bytes."""
    return hashlib.sha256(data).hexdigest()
