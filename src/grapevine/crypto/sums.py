"""Masked sums: SecureSum, where the server learns the sum, and SecureRowSums, where it learns nothing (XCLP, section 3.2).

Everything is in the ring Z_2^64, or for SecureSum also Z_2^256 (`fixed` turns real numbers into them). Each pair j < k of the
parties P shares a secret (`agreement`) and draws from it the same mask P_jk. Client j's mask is

    M^(j) = Σ_{k > j} P_jk − Σ_{k < j} P_kj        so that        Σ_j M^(j) = 0: every P_jk is added once and taken off once.

SecureSum (Bonawitz et al. 2017, without its recovery from dropouts)

    client j → server    Z̃^(j) = Z^(j) + M^(j)
    server               Σ_j Z̃^(j) = Σ_j Z^(j)

The server learns the sum and nothing else. It and a set T of clients learn the sum of the honest clients' parts and nothing
else.

SecureRowSums: the rows are split among their owners, R_i belongs to client i

    client j → server    Z̃^(j)[R_i] = Z^(j)[R_i] + M^(j)[R_i]   for every owner i except j itself: own rows are withheld
    server → client i    Ẑ[R_i] = Σ_{j ≠ i} Z̃^(j)[R_i]
    client i             Z[R_i] = Ẑ[R_i] + Z^(i)[R_i] + M^(i)[R_i]

Why it comes out: Σ_{j ≠ i} M^(j) = −M^(i), so Ẑ[R_i] = Σ_{j ≠ i} Z^(j)[R_i] − M^(i)[R_i], and the owner, who alone of all
parties knows the whole of M^(i), adds it back together with the part that it never sent.

Why the server learns nothing, not even the sum: on the rows R_i it sees one matrix from each j ≠ i. The mask of j holds P_ij
(or P_ji) with its sign. These |P| − 1 masks are independent and uniform, and each is in one of the matrices seen: its second
occurrence is in M^(i)[R_i], which is not sent. Hence the matrices are jointly uniform, whatever the data, and so are their
sums.

Under collusion of the server with a set T of clients: on rows of an honest owner i, every honest j still has its P_ij, which is
unknown to T, so the coalition learns nothing. On rows of an owner in T, it learns the sum over the honest clients, which that
owner's result says anyway; the masks among honest clients keep the summands apart (this is why the masks of all pairs are used,
where those with the owner alone would do against the server). With one honest client besides the owner, that sum is its part:
see `few`.

Assumption: AES-256-CTR under HKDF-SHA256 keys is a pseudorandom stream, and each mask is used once. HKDF's info holds session,
roster, hash of keys, step, round, attempt, the parties of the attempt, the ordered pair, owner, place and shape.

Dropouts (section 3.3): a sum with a missing client cannot be opened. It is restarted as a new attempt without that client, with
fresh masks. Results of two attempts with different parties differ by the missing client's part, so at most one may ever be
opened: `Attempts` keeps client and server to that. In SecureRowSums a late message of a closed attempt tells the server
nothing, as no message does. In SecureSum it would complete the old sum: the server must drop it unread, and a server that does
not can take the late client's part from the difference. This is the price of one exchange instead of Bonawitz et al.'s four.

Bounded memory: masks come in blocks of about `BLOCK_VALUES` values, each with its own key, so that beside its message a client
holds one block of each pair at a time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto.agreement import AgreementError, Occasion
from grapevine.crypto.fixed import add_wide, subtract_wide
from grapevine.crypto.stream import Stream

BLOCK_VALUES = 1 << 17  # 1 MB of uint64

Part = Callable[[str, slice], np.ndarray]  # a client's summand on some of an owner's rows


def few(parties: int) -> str | None:
    """The sentence that warns when a sum says too much by itself."""
    if parties < 2:
        raise Mistake(
            f"a secure sum over {parties} party is just that party's own data: at least two must take part, preferably three"
        )
    if parties == 2:
        return (
            "a secure sum over 2 parties shows each of them the other's part (the sum less its own): ask for at least 3 parties"
        )
    return None


# --- masks --------------------------------------------------------------------------------------------------------------------


def pair_mask(secret: bytes, info: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """P_jk: uniform ring elements that only the two holders of the secret can draw."""
    return Stream(secret, info).array(shape, "uint64")


def mask(me: str, secrets: Mapping[str, bytes], occasion: Occasion, shape: tuple[int, ...], owner: str = "", start: int = 0,
         wide: bool = False) -> np.ndarray:  # fmt: skip
    """M^(me) for one array, or for the block of an owner's rows that begins at `start`."""
    _require_partners(me, secrets, occasion)
    shape_text = "x".join(str(int(side)) for side in shape)
    add, subtract = _arithmetic(wide)
    total = np.zeros(shape, np.uint64)
    for other, secret in sorted(secrets.items()):
        first, second = sorted((me, other))
        info = occasion.context("mask", first=first, second=second, owner=owner, start=start, shape=shape_text, wide=wide)
        part = pair_mask(secret, info, shape)
        total = add(total, part) if me == first else subtract(total, part)
    return total


def _arithmetic(wide: bool) -> tuple[Callable, Callable]:
    """Addition and subtraction in Z_2^64, or in Z_2^256 whose elements have four words on the last axis."""
    return (add_wide, subtract_wide) if wide else (np.add, np.subtract)


def _require_partners(me: str, secrets: Mapping[str, bytes], occasion: Occasion) -> None:
    few(len(occasion.parties))
    if {me, *secrets} != set(occasion.parties) or me in secrets:
        others = ", ".join(sorted(secrets))
        raise AgreementError(f"{me!r} has pair secrets with {others}, and {occasion} is among {', '.join(occasion.parties)}")


def _require_ring(values: np.ndarray) -> np.ndarray:
    if values.dtype != np.uint64:
        raise TypeError(f"ring elements are uint64, not {values.dtype}: encode them first")
    return values


# --- SecureSum ----------------------------------------------------------------------------------------------------------------


def sum_share(me: str, secrets: Mapping[str, bytes], occasion: Occasion, values: np.ndarray, wide: bool = False) -> np.ndarray:
    """Client: Z̃^(me), ring elements of any shape, the same at every client. `wide` for those of `fixed.encode_wide`."""
    add, _ = _arithmetic(wide)
    return add(_require_ring(values), mask(me, secrets, occasion, values.shape, wide=wide))


def sum_open(shares: Mapping[str, np.ndarray], occasion: Occasion, wide: bool = False) -> np.ndarray:
    """Server: the sum, once every party's share is there."""
    few(len(occasion.parties))
    _require_all(shares, occasion.parties, occasion)
    return _add(shares.values(), occasion, wide)


def _require_all(shares: Mapping[str, object], wanted: tuple[str, ...], occasion: Occasion) -> None:
    if set(shares) != set(wanted):
        missing, foreign = sorted(set(wanted) - set(shares)), sorted(set(shares) - set(wanted))
        found = f"has no share of {', '.join(missing)}" if missing else f"has a share of {', '.join(foreign)}, who is not in it"
        raise Mistake(f"{occasion} {found}: start a new attempt with the remaining parties")


def _add(arrays: Iterable[np.ndarray], occasion: Occasion, wide: bool = False) -> np.ndarray:
    arrays = [_require_ring(array) for array in arrays]
    if len({array.shape for array in arrays}) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise Mistake(f"the shares of {occasion} have different shapes ({shapes}): all must agree")
    add, _ = _arithmetic(wide)
    return functools.reduce(add, arrays)


# --- SecureRowSums ------------------------------------------------------------------------------------------------------------


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """How an owner's rows are cut. Both ends of a pair must cut alike, since each block has its own key."""
    step = max(1, BLOCK_VALUES // max(1, columns))
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def row_shares(
    me: str, secrets: Mapping[str, bytes], occasion: Occasion, sizes: Mapping[str, int], columns: int, part: Part
) -> dict[str, np.ndarray]:
    """Client: Z̃^(me), ring elements, a matrix for each owner except `me`.

    `sizes` says how many rows each party owns; `part(owner, rows)` gives Z^(me) on these rows, as ring elements.
    """
    _require_owners(sizes, occasion)
    message = {}
    for owner in sorted(set(sizes) - {me}):
        message[owner] = np.empty((sizes[owner], columns), np.uint64)
        for rows in row_blocks(sizes[owner], columns):
            shape = (rows.stop - rows.start, columns)
            values = _require_ring(part(owner, rows))
            if values.shape != shape:
                raise ValueError(f"the part for rows {rows.start}..{rows.stop} of {owner!r} is {values.shape}, not {shape}")
            message[owner][rows] = values + mask(me, secrets, occasion, shape, owner, rows.start)
    return message


def row_totals(shares: Mapping[str, Mapping[str, np.ndarray]], occasion: Occasion) -> dict[str, np.ndarray]:
    """Server: Ẑ[R_i] for each owner i, from every client's message."""
    _require_all(shares, occasion.parties, occasion)
    totals = {}
    for owner in occasion.parties:
        senders = tuple(name for name in occasion.parties if name != owner)
        matrices = {sender: shares[sender][owner] for sender in senders if owner in shares[sender]}
        _require_all(matrices, senders, occasion)
        totals[owner] = _add(matrices.values(), occasion)
    return totals


def own_rows(me: str, secrets: Mapping[str, bytes], occasion: Occasion, total: np.ndarray, part: Part) -> np.ndarray:
    """Owner: Z[R_me] = Ẑ[R_me] + Z^(me)[R_me] + M^(me)[R_me], as ring elements."""
    rows_in_all, columns = total.shape
    out = np.empty_like(_require_ring(total))
    for rows in row_blocks(rows_in_all, columns):
        shape = (rows.stop - rows.start, columns)
        out[rows] = total[rows] + _require_ring(part(me, rows)) + mask(me, secrets, occasion, shape, me, rows.start)
    return out


def _require_owners(sizes: Mapping[str, int], occasion: Occasion) -> None:
    if set(sizes) != set(occasion.parties):
        raise Mistake(
            f"row counts are given for {', '.join(sorted(sizes))}, but {occasion} is among {', '.join(occasion.parties)}"
        )


# --- attempts -----------------------------------------------------------------------------------------------------------------


class Attempts:
    """Keeps one side to the rule: masks are used once, and of all attempts at a sum at most one is opened.

    A client calls `begin` before it masks and `finish` before it opens its rows; the server calls `begin` before it asks and
    `finish` before it opens or returns a sum. Beginning an attempt closes all earlier ones; finishing one closes the round. From
    one attempt to the next parties may be lost, and none comes or returns: sums over {a, b} and {a, c} would give b less c. It
    belongs to the session, not to one agreement: new keys are no way round it.
    """

    def __init__(self, latest: Mapping[str, Mapping[str, Any]] | None = None):
        self._latest = {step: dict(state) for step, state in (latest or {}).items()}

    def begin(self, occasion: Occasion) -> None:
        last = self._latest.get(occasion.step)
        if last is not None:
            same_round = occasion.round == last["round"]
            if occasion.round < last["round"] or (same_round and (last["finished"] or occasion.attempt <= last["attempt"])):
                latest = f"attempt {last['attempt']} in round {last['round']}{', finished' if last['finished'] else ''}"
                raise AgreementError(f"{occasion} is closed (the latest is {latest}): masks are used once, so start a later one")
            more = sorted(set(occasion.parties) - set(json.loads(last["parties"]))) if same_round else []
            if more:
                raise AgreementError(
                    f"{occasion} has {', '.join(more)} in it, who was not in the last one: parties can leave, but not join"
                )
        self._latest[occasion.step] = self._state(occasion)

    def finish(self, occasion: Occasion) -> None:
        last = self._latest.get(occasion.step)
        if last != self._state(occasion):
            # Two results would show a lost party's part.
            raise AgreementError(f"{occasion} is not open: only the latest attempt may be finished, and only once")
        last["finished"] = 1

    @staticmethod
    def _state(occasion: Occasion) -> dict[str, Any]:
        return dict(round=occasion.round, attempt=occasion.attempt, parties=json.dumps(occasion.parties), finished=0)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return {step: dict(state) for step, state in self._latest.items()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Mapping[str, Any]]) -> Attempts:
        return cls(state)
