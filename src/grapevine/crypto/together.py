"""Sums that the parties open themselves: the server carries them, and neither learns nor changes them.

    client j → server    Z^(j) + M^(j) (+ P if j is the first of the parties); tag_j = ⟨r, Z^(j)⟩ + p_j mod Q
    server → everybody   Σ_j of both
    client i             Z = Σ − P; refused unless ⟨r, Z⟩ + Σ_j p_j is the sum of the tags

M^(j) are SecureSum's pairwise masks, which cancel (`sums`). The pad P, the pads p_j and the keys r of the tags come from the seed
that all parties know and the server does not, and are bound to the occasion, as masks are. Q = 2^521 − 1 is a prime larger than
any sum in either ring, so ⟨r, ·⟩ is linear over the whole numbers that the shares stand for.

What each side learns. The server: nothing, the number of values excepted (the sum is padded, tags are padded). A party: the sum.
The server and a set of parties: the sum, which its members learn anyway, and nothing of the others' parts beyond it.

What a server that cheats can do. It changes the sum by an amount of its choice only if it guesses ⟨r, difference⟩, that is with a
chance of 2^-64; else the parties stop. Together with a party it can change the sum, but so can that party alone, by what it adds.
A sum of other parties than those agreed has other masks and pads, and does not open. Who sent a bad tag cannot be told: the job
stops.

The smallest sum. One of values of rows is over `CELL` rows or more: a party takes part in no smaller one (`share`, told how many
rows each party has), or a program sums counts first and leaves out what too few rows have. How many parties a sum needs is for
`session.begin`. Sums of counts may be small.

Programs. A method may run a program at every party in which `yield` is such a sum (`advance`): all parties then decide alike from
the same sums. A program in flight lives in the process; what repeats it, the sums heard so far, is in the client's memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from operator import mul
from typing import Any

import numpy as np

from grapevine.core import Client, Id, Mistake, Server, SubProtocol, step
from grapevine.core.reply import Form
from grapevine.crypto import accountant, fixed, noise, session, sums
from grapevine.crypto.agreement import AgreementError, Occasion
from grapevine.crypto.stream import Stream

Q = (1 << 521) - 1
TAG = 66  # bytes
BLOCK = 2**16  # numbers of an inner product at a time: they stay in the cache
CELL = 10  # rows: a sum of fewer is not opened
SHARE = "nothing: masked, and the sum of all parties' is padded, so that only the parties can open it"
REVEALS = dict(share=SHARE, tag="nothing: padded; with it the parties see that the sum was not changed")


def _share_form(value: Any) -> bool:
    fits = isinstance(value, np.ndarray) and value.dtype == np.uint64 and 0 < value.size <= accountant.MOST_VALUES
    return fits and (value.ndim == 1 or value.ndim == 2 and value.shape[1] == fixed.WIDE_WORDS)


FORM: dict[str, Form] = {"share?": _share_form, "tag?": bytes}


# ---------------------------------------------------------------- client


def share(client: Client, number: int, attempt: int, parties: Iterable[str], values: np.ndarray, wide: bool = False,
          added: accountant.Noise | None = None, mechanism: Mapping[str, Any] | None = None,
          rows: Mapping[str, int] | None = None) -> dict:  # fmt: skip
    """This party's part of sum `number`; with `wide`, of values of any size. It is kept until the sum is opened, with the noise
    `added` once, so a second attempt has the same. `mechanism` is for the ledger where there is no noise; None: exact. `rows` is
    how many rows each party has, for a sum of their values."""
    values, least = np.asarray(values, np.float64), 0
    if added is not None:
        values = fixed.decode(noise.add_noise(fixed.encode(values), added.sigma))
        mechanism, least = accountant.to_table(added.event), added.least
    client.memory["pending"] = dict(values=values, wide=wide, number=number, mechanism=dict(mechanism or {}), least=least,
                                    rows=dict(rows or {}))  # fmt: skip
    return _masked(client, attempt, parties)


def _masked(client: Client, attempt: int, parties: Iterable[str]) -> dict:
    own = client.memory["pending"]
    if len(list(parties)) < own["least"]:
        raise AgreementError(f"sum {own['number']} has {len(list(parties))} parties, whose noise is too little: it needs "
                             f"{own['least']}, so start a new job with those that are left")  # fmt: skip
    if own["rows"]:
        require_cell(sum(own["rows"].get(name, 0) for name in parties))
    mechanism = session.COVERED if attempt and own["least"] else own["mechanism"] or None
    occasion = session.begin(client, "sum", own["number"], attempt, parties, mechanism)
    if own["wide"]:
        ring = fixed.encode_wide(own["values"])
    else:
        fixed.require_headroom(len(occasion.parties) * float(np.abs(own["values"]).max(initial=0.0)), "a sum over the parties")
        ring = fixed.encode(own["values"])
    secrets = session.agreement(client).pair_secrets(occasion.parties)
    masked = sums.sum_share(client.name, secrets, occasion, ring, wide=own["wide"])
    if client.name == occasion.parties[0]:
        masked = (fixed.add_wide if own["wide"] else np.add)(masked, _pad(client, occasion, ring.shape))
    return dict(share=masked, tag=_bytes(_inner(client, occasion, ring) + _tag_pads(client, occasion)[client.name]))


def require_cell(rows: int) -> None:
    if rows < CELL:
        raise Mistake(f"all parties have {rows} rows together, and sums are opened only over {CELL} or more: bring more rows.")


def opened(client: Client, number: int, attempt: int, parties: Iterable[str], total: np.ndarray, tag: bytes) -> np.ndarray:
    """The sum, if it is the one that exactly these parties formed."""
    own = client.memory["pending"]
    if number != own["number"]:
        raise AgreementError(f"{client.name!r} takes part in sum {own['number']}, and the server opens {number}: start a new job")
    occasion = session.finish(client, "sum", number, attempt, parties)
    shape = (*own["values"].shape, fixed.WIDE_WORDS) if own["wide"] else own["values"].shape
    if total.shape != shape or total.dtype != np.uint64:
        raise AgreementError(f"a sum of shape {total.shape} came for {client.name!r}'s {shape}: start a new job")
    ring = (fixed.subtract_wide if own["wide"] else np.subtract)(total, _pad(client, occasion, shape))
    if _bytes(_inner(client, occasion, ring) + sum(_tag_pads(client, occasion).values())) != tag:
        raise AgreementError(
            f"sum {number} that came to {client.name!r} is not the one that the parties formed: the host or a party changed it, "
            "so start a new job with parties and a host that you trust"
        )
    client.memory.pop("pending")
    return fixed.decode_wide(ring) if own["wide"] else fixed.decode(ring)


def _pad(client: Client, occasion: Occasion, shape: tuple[int, ...]) -> np.ndarray:
    return Stream(client.memory["seed"], occasion.context("pad")).array(shape, "uint64")


def _tag_pads(client: Client, occasion: Occasion) -> dict[str, int]:
    """Everybody's p_j, one after the other from one stream."""
    stream = Stream(client.memory["seed"], occasion.context("tag pads"))
    # 64 bits more than Q has: what is left of a bias after the remainder cannot be seen.
    return {name: int.from_bytes(stream.bytes(TAG + 8), "big") % Q for name in occasion.parties}


def _inner(client: Client, occasion: Occasion, ring: np.ndarray) -> int:
    """⟨r, values⟩ mod Q over the whole numbers that ring elements stand for."""
    keys = Stream(client.memory["seed"], occasion.context("tag keys")).array((len(ring),), "uint64")
    if ring.ndim == 1:
        return inner(keys, ring) % Q
    data, size = np.ascontiguousarray(ring, "<u8").tobytes(), 8 * fixed.WIDE_WORDS
    whole = (int.from_bytes(data[at : at + size], "little", signed=True) for at in range(0, len(data), size))
    return sum(map(mul, keys.tolist(), whole)) % Q


def inner(keys: np.ndarray, ring: np.ndarray) -> int:
    """⟨keys, ring⟩ over the whole numbers, ring elements as signed ones. In pieces of 16 bits: a block of products adds up
    to less than 2^52, which float64 holds exactly."""
    shifts, total = np.arange(0, 64, 16, dtype=np.uint64), 0
    for a in range(0, len(keys), BLOCK):
        r, v = ((x[a : a + BLOCK, None] >> shifts & np.uint64(0xFFFF)).astype(np.float64) for x in (keys, ring))
        v[:, 3] -= 2.0**16 * (v[:, 3] >= 2**15)  # the sign
        total += sum(int(G) << 16 * (i + j) for (i, j), G in np.ndenumerate(r.T @ v))
    return total


def _bytes(tag: int) -> bytes:
    return (tag % Q).to_bytes(TAG, "big")


# ---------------------------------------------------------------- server


@dataclass(frozen=True)
class Together(SubProtocol):
    """Carries sums between parties. A method holds it as a field, and its own steps answer with `share`."""

    name = "together"

    @step(reveals=REVEALS, like=FORM)
    def again(self, client: Client, number: int, attempt: int, parties: dict) -> dict:
        """The same part under fresh masks, after a party was lost."""
        if "pending" not in client.memory or client.memory["pending"]["number"] != number:
            raise AgreementError(f"{client.name!r} has no part in sum {number}: a step is asked in its turn, so start a new job")
        return _masked(client, attempt, parties)

    def run(self, server: Server, go_on: Callable, ids: Mapping[str, Id], replies: Mapping[str, dict], parties: Iterable[str],
            number: int) -> tuple[dict[str, dict], int]:  # fmt: skip
        """Sum after sum, until the parties have no more to add: their last replies, and the number of the next sum.

        `replies` hold the first shares, masked among `parties`; the step `go_on` opens a sum and answers with the next share.
        """
        replies, parties = _alike(server, ids, replies), sorted(parties)
        while any("share" in reply for reply in replies.values()):
            told = self.once(server, ids, replies, parties, number)
            parties = list(told["parties"])
            replies = session.named(server.ask(go_on, to=_to(ids, parties), **told), "a sum")
            replies, number = _alike(server, ids, replies), number + 1
        return dict(replies), number

    def once(self, server: Server, ids: Mapping[str, Id], replies: Mapping[str, dict], parties: Iterable[str],
             number: int) -> dict[str, Any]:  # fmt: skip
        """One sum, as the parties are told it. If a party was lost, the others form it again under fresh masks."""
        attempt, parties, replies = 0, sorted(parties), _alike(server, ids, replies)
        while set(replies) != set(parties):
            attempt, parties = attempt + 1, session.require_two(sorted(replies))
            told: dict[str, Any] = dict(number=number, attempt=attempt, parties=session.numbered(parties))
            replies = _alike(server, ids, session.named(server.ask(self.again, to=_to(ids, parties), **told), "a sum"))
        return dict(number=number, attempt=attempt, parties=session.numbered(parties), **added(replies, number, attempt))


def added(replies: Mapping[str, dict], number: int, attempt: int) -> dict[str, Any]:
    """Σ of the shares and of the tags, as the parties are told them."""
    occasion = Occasion("", b"", b"", "sum", number, attempt, tuple(sorted(replies)))
    shares = {name: reply["share"] for name, reply in replies.items()}
    wide = next(iter(shares.values())).ndim == 2
    total = sums.sum_open(shares, occasion, wide=wide)
    return dict(total=total, tag=_bytes(sum(int.from_bytes(reply["tag"], "big") for reply in replies.values())))


def _to(ids: Mapping[str, Id], parties: Iterable[str]) -> list[Id]:
    return [ids[name] for name in parties]


def _alike(server: Server, ids: Mapping[str, Id], replies: Mapping[str, dict]) -> dict[str, dict]:
    """Replies whose shares have the form of most: a share of another form is a bad reply."""
    forms = {name: reply["share"].shape if "share" in reply else None for name, reply in replies.items()}
    usual = Counter(forms.values()).most_common(1)[0][0] if forms else None
    for name, form in forms.items():
        if form != usual:
            server.leave_out(ids[name], "a sum", f"its part has the form {form}, and the others' {usual}")
    return {name: reply for name, reply in replies.items() if forms[name] == usual}


# ---------------------------------------------------------------- programs


@dataclass
class Running:
    """A program in flight: which, how many sums it has heard, and its generator."""

    name: str
    heard: int
    generator: Generator[Any, Any, Any]


def advance(client: Client, name: str, begin: Callable[[], Generator[Any, Any, Any]], total: Any = None) -> tuple[bool, Any]:
    """Go on with a program: (True, what it asks for next) or (False, what it returned).

    Where the process that ran it is gone, it starts again and hears the same sums: a program is a function of the client's
    rows, of its named randomness and of the sums.
    """
    heard = client.memory[f"{name} heard"] if f"{name} heard" in client.memory else 0
    running = client.running
    if total is None:
        running = client.running = None
        heard = -1
    else:
        client.memory[f"{name} {heard}"] = total
    client.memory[f"{name} heard"] = heard + 1
    try:
        if running is None or running.name != name or running.heard != heard:
            running = Running(name, 0, begin())
            asked = next(running.generator)
            for i in range(heard if total is not None else 0):
                asked = running.generator.send(client.memory[f"{name} {i}"])
        if total is not None:
            asked = running.generator.send(total)
    except StopIteration as done:
        client.running = None
        for i in range(heard + 1):
            client.memory.pop(f"{name} {i}", None)
        return False, done.value
    running.heard = heard + 1
    client.running = running
    return True, asked
