"""A client's side of key agreement as steps use it: what is kept in `client.memory`, and who takes part.

Names are strings in the order in which the protocols pair them off. `Group` is what the server tells with every step of a
protocol: the round, the attempt, and the row counts of those who take part. It is part of what every mask depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from grapevine.crypto.agreement import Agreement, Ephemeral, Occasion, roster_hash
from grapevine.crypto.stream import context, fresh_secret, hkdf
from grapevine.crypto.sums import Attempts

if TYPE_CHECKING:
    from grapevine.core import Client


def offer(client: Client, session: str) -> dict:
    """Exchange 1: a fresh X25519 key, signed by this party's identity over session and roster."""
    ephemeral = Ephemeral.generate()
    client.memory["ephemeral"] = dict(ephemeral.to_dict(), session=session)
    return ephemeral.offer(client.identity, client.name, session, roster_hash(client.pinned, session))


def meet(client: Client, offers: Mapping[str, dict]) -> dict[str, bytes]:
    """Exchange 2: check everybody's key, and seal this party's part of the seed to each of the others."""
    own = client.memory["ephemeral"]
    agreed = Agreement.reach(client.name, own["session"], Ephemeral.from_dict(own), offers, client.pinned)
    contribution = fresh_secret()
    client.memory["agreement"] = agreed.to_dict()
    client.memory["contribution"] = contribution
    client.memory["attempts"] = Attempts().to_dict()
    return agreed.seal_seed(contribution)


def learn_seed(client: Client, letters: Mapping[str, bytes]) -> None:
    """Exchange 3: the seed that all clients know and the server does not."""
    client.memory["seed"] = agreement(client).open_seed(client.memory["contribution"], letters)


def agreement(client: Client) -> Agreement:
    return Agreement.from_dict(client.memory["agreement"])


def hash_secret(client: Client, round: int, reproducible: bool) -> tuple[bytes, bytes]:
    """Secret and context of the hyperplanes: from the clients' seed, or, where a run must repeat, from its public seed."""
    session = client.memory["agreement"]["session"]
    info = context("hyperplanes", session=session, round=round)
    if reproducible:
        return hkdf(client.seed.to_bytes(16, "big", signed=True), info), info
    return client.memory["seed"], info


def begin(client: Client, step: str, round: int, attempt: int, parties: Iterable[str]) -> Occasion:
    """The occasion of a masked sum. Refused if this attempt, or a later one, has been masked before: masks are used once."""
    occasion = agreement(client).occasion(step, round, attempt, parties)
    attempts = Attempts.from_dict(client.memory["attempts"])
    attempts.begin(occasion)
    client.memory["attempts"] = attempts.to_dict()
    return occasion


def finish(client: Client, step: str, round: int, attempt: int, parties: Iterable[str]) -> Occasion:
    """The same occasion when its result is opened. Refused if another attempt was begun since, or opened already."""
    occasion = agreement(client).occasion(step, round, attempt, parties)
    attempts = Attempts.from_dict(client.memory["attempts"])
    attempts.finish(occasion)
    client.memory["attempts"] = attempts.to_dict()
    return occasion
