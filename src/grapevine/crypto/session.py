"""Key agreement and masked sums as steps use them: what a client keeps in `client.memory`, and what the server relays and opens.

Names are strings in the order in which the protocols pair them off. Who takes part, the round and the attempt are part of what
every mask depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from grapevine.core import Client, Id, Mistake, party_name, wire
from grapevine.crypto import sums
from grapevine.crypto.agreement import Agreement, AgreementError, Ephemeral, Identity, Occasion, roster_hash
from grapevine.crypto.stream import context, fresh_secret, hkdf

# What the fields of these exchanges tell, for the steps that carry them; and the form of an offer.
OFFER = "a public key, signed by this party's identity"
LETTERS = "to the server nothing: sealed for one other party each"
OFFER_FORM = dict(public=bytes, signature=bytes)

# Mechanisms, for the ledger, of what passes `begin` and is no exact sum.
EMPTY = dict(kind="empty")  # no numbers in it
SEALED = dict(kind="sealed")  # nobody learns a sum of these parties' parts
COVERED = dict(kind="covered")  # made of what had its noise before, in a line of its own
COUNTS = dict(kind="counts")  # numbers of rows and of labels, which no promise hides


class TooFew(Mistake):
    """Fewer than two parties are left, and what is done together needs two."""


# ---------------------------------------------------------------- client: keys and seed


def offer(client: Client, session: str) -> dict:
    """Exchange 1: a fresh X25519 key, signed by this party's identity over session and roster."""
    if "agreement" in client.memory and client.memory["agreement"]["session"] == session:
        # `Attempts` belongs to the session. New keys under the old name would be a way to ask for closed sums again.
        raise AgreementError(f"{client.name!r} has agreed on keys in session {session!r} before: start a session of another name")
    ephemeral = Ephemeral.generate()
    client.memory["ephemeral"] = dict(ephemeral.to_dict(), session=session)
    return ephemeral.offer(_identity(client), client.name, session, roster_hash(client.pinned, session))


def meet(client: Client, offers: Mapping[str, dict]) -> dict[str, bytes]:
    """Exchange 2: check everybody's key, and seal this party's part of the seed to each of the others.

    An offer is met once: meeting again would reopen `attempts`, and the masks of this agreement could be used twice.
    """
    own = _take(client, "ephemeral", "offered a key that is still to be met")
    agreed = Agreement.reach(client.name, own["session"], Ephemeral.from_dict(own), offers, client.pinned)
    contribution = fresh_secret()
    client.memory["agreement"] = agreed.to_dict()
    client.memory["contribution"] = contribution
    client.memory["attempts"] = sums.Attempts().to_dict()
    return agreed.seal_seed(contribution)


def learn_seed(client: Client, letters: Mapping[str, bytes]) -> None:
    """Exchange 3: the seed that all clients know and the server does not. Once: a client hashes its rows once per agreement."""
    contribution = _take(client, "contribution", "sealed a part of a seed that is still to be opened")
    client.memory["seed"] = agreement(client).open_seed(contribution, letters)


def agreement(client: Client) -> Agreement:
    if "agreement" not in client.memory:
        raise AgreementError(f"{client.name!r} has not agreed on keys, or has finished with them: start a new session")
    digest = client.memory.manifest["agreement"]
    if client.agreed is None or client.agreed[0] != digest:
        client.agreed = digest, Agreement.from_dict(client.memory["agreement"])
    return client.agreed[1]


def forget(client: Client) -> None:
    """The job is done: delete keys and seed, so that a later theft opens nothing of what was recorded."""
    for name in ("ephemeral", "contribution", "agreement", "seed", "attempts"):
        client.memory.pop(name, None)


def _take(client: Client, name: str, what: str) -> Any:
    """Take out of memory what is used once."""
    if name not in client.memory:
        raise AgreementError(f"{client.name!r} has not {what}: a step is asked once, in its turn, so start a new session")
    return client.memory.pop(name)


def _identity(client: Client) -> Identity:
    if not isinstance(client.identity, Identity):
        raise AgreementError(f"{client.name!r} has no identity to sign with: make one first")
    return client.identity


# ---------------------------------------------------------------- client: signatures

# What one client sends to another passes through the server in the open: ciphertexts, answers, transfers. It is signed, since
# whoever could change it on the way would have j decrypt what it likes, or choose in k's place.


def sign(client: Client, kind: str, message: dict, to: str = "", round: int = 0) -> bytes:
    """This party's signature under a message of this kind, to one other party or to all."""
    return _identity(client).sign(_statement(client, client.name, kind, message, to, round))


def require_signed(client: Client, sender: str, signature: Any, kind: str, message: dict, to: str = "", round: int = 0) -> None:
    """Refuse a message that `sender` did not sign for this place in this agreement."""
    try:
        statement = _statement(client, sender, kind, message, to, round)
        Ed25519PublicKey.from_public_bytes(client.pinned[sender]).verify(signature, statement)
    except (InvalidSignature, KeyError, TypeError):
        raise AgreementError(f"the {kind} in the name of {sender!r} is not signed by its identity: start a new session") from None


def _statement(client: Client, sender: str, kind: str, message: dict, to: str, round: int) -> bytes:
    """Bound to the sender's ephemeral key, which is new in every agreement, whatever the session is called."""
    if "ephemeral" in client.memory:
        own = client.memory["ephemeral"]
        session, roster, key = own["session"], roster_hash(client.pinned, own["session"]), Ephemeral.from_dict(own).public
    else:
        agreed = agreement(client)
        session, roster, key = agreed.session, agreed.roster, agreed.keys[sender]
    content = hashlib.sha256()
    _absorb(content, message)
    return context("signed", kind=kind, sender=sender, to=to, round=round, digest=content.digest(), session=session,
                   roster=roster, key=key)  # fmt: skip


def _absorb(content: hashlib._Hash, value: object) -> None:
    """Hash a message as it lies in memory: chunks of transfers are large, and to encode them takes five times as long."""
    if isinstance(value, dict):
        content.update(b"d" + len(value).to_bytes(4, "little"))
        for name, item in value.items():
            content.update(wire.encode({name: True}))
            _absorb(content, item)
    elif isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        content.update(context("array", dtype=array.dtype.str, shape="x".join(map(str, value.shape))))
        content.update(array.reshape(-1).view(np.uint8).data)
    else:
        content.update(wire.encode({"value": value}))


# ---------------------------------------------------------------- client: the hash secret, and masked sums


def hash_secret(client: Client, reproducible: bool) -> tuple[bytes, bytes]:
    """Secret and context of the hyperplanes: from the clients' secret, or, where a run must repeat, from its public seed.

    Parties who agreed on no seed have none in common, and take the secret all the same. Hyperplanes are the same in all rounds of
    a session: distances under fresh ones could be averaged over the rounds.
    """
    session = client.memory["agreement"]["session"]
    info = context("hyperplanes", session=session)
    if reproducible and client.common_seed:
        return hkdf(client.seed.to_bytes(16, "big", signed=True), info), info
    return client.memory["seed"], info


def begin(client: Client, step: str, round: int, attempt: int, parties: Iterable[str],
          mechanism: Mapping[str, Any] | None = None) -> Occasion:  # fmt: skip
    """The occasion of a masked sum. Refused if this attempt, or a later one, has been masked before: masks are used once.

    It is written to the party's ledger before anything is masked. `mechanism` is None where the sum is opened as it is: then rows
    that were summed with others before are refused. A sum that is opened, with noise or without, needs the agreed quorum.
    """
    agreed = agreement(client)
    occasion = agreed.occasion(step, round, attempt, parties)
    opened = mechanism is None or mechanism["kind"] not in (EMPTY["kind"], SEALED["kind"])
    if opened and len(occasion.parties) < client.quorum:
        raise AgreementError(f"{occasion} has {len(occasion.parties)} parties, and {client.quorum} were agreed on as the fewest")
    attempts = sums.Attempts.from_dict(client.memory["attempts"])
    attempts.begin(occasion)
    client.memory["attempts"] = attempts.to_dict()
    if client.ledger is not None:
        rows = client.ledger.rows(client.data)
        client.ledger.release(job=agreed.key_hash.hex(), what=step, rows=rows, parties=occasion.parties, mechanism=mechanism)
    return occasion


def finish(client: Client, step: str, round: int, attempt: int, parties: Iterable[str]) -> Occasion:
    """The same occasion when its result is opened. Refused if another attempt was begun since, or opened already."""
    occasion = agreement(client).occasion(step, round, attempt, parties)
    attempts = sums.Attempts.from_dict(client.memory["attempts"])
    attempts.finish(occasion)
    client.memory["attempts"] = attempts.to_dict()
    return occasion


def masked(client: Client, what: str, round: int, attempt: int, parties: Iterable[str], values: np.ndarray,
           mechanism: Mapping[str, Any] | None = None) -> np.ndarray:  # fmt: skip
    """This client's share of a secure sum of whole numbers or of ring elements. `mechanism` is as for `begin`."""
    occasion = begin(client, what, round, attempt, parties, mechanism if values.size else EMPTY)
    return sums.sum_share(client.name, agreement(client).pair_secrets(occasion.parties), occasion, values.astype(np.uint64))


# ---------------------------------------------------------------- server


def named(replies: Mapping[Id, dict], what: str) -> dict[str, dict]:
    """Replies by the names that the protocols use."""
    found = {party_name(id): reply for id, reply in replies.items()}
    if len(found) < 2:
        raise TooFew(f"only {', '.join(found) or 'nobody'} answered: {what} needs two parties.")
    return found


def require_two(parties: list[str]) -> list[str]:
    if len(parties) < 2:
        raise TooFew(f"only {', '.join(parties) or 'nobody'} is left: propagation needs two parties.")
    return parties


def letters_form(parties: Iterable[str], id: Id) -> dict[str, type]:
    """The form of a client's letters: one for each of the others."""
    return {name: bytes for name in parties if name != party_name(id)}


def relayed(met: Mapping[str, dict], ids: Mapping[str, Id]) -> dict[Id, dict]:
    """Exchange 3: for each client the letters that the others sealed for it."""
    return {ids[name]: dict(letters={other: met[other]["letters"][name] for other in met if other != name}) for name in met}


def numbered(parties: Iterable[str]) -> dict[str, int]:
    """Names as the codec carries them, in order."""
    return {name: i for i, name in enumerate(parties)}


def opened(what: str, round: int, attempt: int, parties: Iterable[str], shares: Mapping[str, np.ndarray]) -> np.ndarray:
    """The sum of the shares that exactly these parties masked for it."""
    return sums.sum_open(shares, Occasion("", b"", b"", what, round, attempt, tuple(sorted(parties))))
