"""The codec: round trips, exact sizes, refusals with a path, and hostile bytes."""

import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grapevine.core import wire
from grapevine.core.account import Account

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]


def framed(body: bytes) -> bytes:
    data = wire.MAGIC + body
    return data + struct.pack("<I", zlib.crc32(data))


def same(a, b) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and same(a.numpy(), b.numpy())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and (a == b or (a != a and b != b))


arrays = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 99),
)  # fmt: skip
leaves = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=8), st.binary(max_size=8), arrays,
    arrays.map(torch.from_numpy),
)  # fmt: skip
keys = st.one_of(st.text(max_size=5), st.integers(-5, 5))
messages = st.dictionaries(
    keys, st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8), max_size=4
)


@given(messages)
def test_decode_undoes_encode_and_size_is_exact(message):
    data = wire.encode(message)
    assert same(message, wire.decode(data))
    assert len(data) == wire.size(message) + len(wire.MAGIC) + wire.CRC_BYTES
    wire.check(message)


def test_the_bytes_are_as_documented():
    expected = b"d" + struct.pack("<I", 1) + b"s" + struct.pack("<Q", 1) + b"a" + b"t" + struct.pack("<BBQ", 10, 1, 2)
    expected += struct.pack("<2f", 1.5, -2.0)
    assert wire.encode({"a": torch.tensor([1.5, -2.0])}) == framed(expected)


def test_a_channels_last_tensor_travels_as_its_values():
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert torch.equal(wire.decode(wire.encode({"x": x}))["x"], x)


def test_big_endian_arrays_travel_as_their_values():
    x = np.arange(5, dtype=">i4")
    assert np.array_equal(wire.decode(wire.encode({"x": x}))["x"], x)


@pytest.mark.parametrize(
    "value", [[1], (1,), None, {1, 2}, object(), 1j, np.array(["a"]), np.array([object()]), torch.zeros(1, dtype=torch.bfloat16)]
)
def test_anything_else_raises_with_its_path(value):
    for function in (wire.encode, wire.check):
        with pytest.raises(wire.WireError, match=r"^outer\.inner"):
            function({"outer": {"inner": value}})


@pytest.mark.parametrize("message", [{"n": 2**63}, {1.5: 1}, {True: 1}])
def test_numbers_and_keys_that_do_not_fit(message):
    for function in (wire.encode, wire.check):
        with pytest.raises(wire.WireError):
            function(message)


def test_too_deep_raises_both_ways():
    message: dict = {}
    for _ in range(40):
        message = {"a": message}
    with pytest.raises(wire.WireError, match="deeper"):
        wire.encode(message)
    deep = (b"d" + struct.pack("<I", 1) + b"i" + struct.pack("<q", 0)) * 100_000
    with pytest.raises(wire.WireError, match="deeper"):
        wire.decode(framed(deep))


def announced(tag: bytes, *rest: bytes) -> bytes:
    return framed(b"d" + struct.pack("<I", 1) + b"s" + struct.pack("<Q", 1) + b"a" + tag + b"".join(rest))


HUGE = struct.pack("<Q", 2**60)
HOSTILE = {
    "empty": b"",
    "no magic": b"x" * 100,
    "not a dict": framed(b"i" + struct.pack("<q", 1)),
    "unknown tag": announced(b"Z"),
    "string longer than the message": announced(b"s", HUGE),
    "bytes longer than the message": announced(b"b", HUGE),
    "array longer than the message": announced(b"a", struct.pack("<BB", 11, 1), HUGE),
    "product overflows": announced(b"a", struct.pack("<BB", 11, 2), struct.pack("<QQ", 2**33, 2**33)),
    "a zero hides a huge dimension": announced(b"a", struct.pack("<BB", 11, 2), struct.pack("<QQ", 0, 2**60)),
    "a zero hides a product that no array can have": announced(
        b"t", struct.pack("<BB", 11, 3), struct.pack("<QQQ", 0, 2**47, 2**47)
    ),
    "too many dimensions": announced(b"a", struct.pack("<BB", 11, 200)),
    "unknown dtype": announced(b"a", struct.pack("<BB", 200, 0)),
    "a count that lies": framed(b"d" + struct.pack("<I", 2**32 - 1)),
    "not UTF-8": announced(b"s", struct.pack("<Q", 1), b"\xff"),
    "a boolean of 7": announced(b"a", struct.pack("<BBQ", 0, 1, 1), b"\x07"),
    "bytes left over": framed(b"d" + struct.pack("<I", 0) + b"x"),
    "a key twice": framed(b"d" + struct.pack("<I", 2) + (b"i" + struct.pack("<q", 0) + b"T") * 2),
    "a dict as a key": framed(b"d" + struct.pack("<I", 1) + b"d" + struct.pack("<I", 0) + b"T"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused(name):
    with pytest.raises(wire.WireError):
        wire.decode(HOSTILE[name])


@settings(max_examples=300)
@given(messages, st.data())
def test_a_changed_byte_is_noticed(message, data):
    good = wire.encode(message)
    at = data.draw(st.integers(0, len(good) - 1))
    with pytest.raises(wire.WireError):
        wire.decode(good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :])


@settings(max_examples=500)
@given(st.binary(max_size=60))
def test_random_bodies_with_a_right_checksum_give_a_value_or_a_wire_error(body):
    try:
        assert isinstance(wire.decode(framed(b"d" + body)), dict)
    except wire.WireError:
        pass


heads = st.builds(
    lambda tag, dtype, shape, rest: announced(tag, struct.pack(f"<BB{len(shape)}Q", dtype, len(shape), *shape), rest),
    st.sampled_from([b"a", b"t"]), st.integers(0, 13),
    st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=18),
    st.binary(max_size=40),
)  # fmt: skip


@settings(max_examples=500)
@given(heads)
def test_arrays_of_any_announced_shape_give_a_value_or_a_wire_error(data):
    try:
        assert isinstance(wire.decode(data), dict)
    except wire.WireError:
        pass


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_no_message(data):
    with pytest.raises(wire.WireError):
        wire.decode(data)


def test_a_limit_is_kept():
    data = wire.encode({"a": b"x" * 100})
    with pytest.raises(wire.WireError, match="limit"):
        wire.decode(data, limit=50)


def test_the_account_adds_up_to_the_bytes_on_the_wire():
    account = Account()
    first, second = {"w": torch.zeros(3, 4), "n": 1}, {"w": torch.zeros(2), "n": 1}
    account.add(0, "train", "up", 1, first)
    account.add(0, "train", "up", 2, second)
    (line,) = account.drain()
    assert line["bytes"] == len(wire.encode(first)) + len(wire.encode(second)) == account.totals["up"]
    assert line["messages"] == line["parties"] == 2
    assert line["fields"]["w"]["shape"] == ["varies"] and line["fields"]["n"]["shape"] == []
    assert account.drain() == []
