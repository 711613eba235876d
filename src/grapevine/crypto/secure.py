"""SecureHamming, the interface: who takes part, what a protocol offers, and signed parcels from client to client.

What one client sends to another through the server is signed by the sender's identity, as a *parcel* of message and signature:
`open` decrypts for the server what it is handed, and must not do so for the party's own ciphertexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from grapevine.core import Client, Id, Server, SubProtocol
from grapevine.core.reply import Form
from grapevine.core.server import Forms
from grapevine.crypto import session

Blocks = Iterator[tuple[str, str, np.ndarray]]
PARCEL: Form = dict(message=dict, signature=bytes)
SHARE = "alone nothing: uniform; with the other party's share, Hamming distances between rows of the two"


@dataclass(frozen=True)
class Group:
    """Who takes part in one computation of H: ids by name, row counts by name."""

    ids: dict[str, int | str]
    counts: dict[str, int]
    bits: int
    round: int
    roster: tuple[str, ...]  # everybody's names, fixed before the first exchange

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(combinations(sorted(self.counts), 2))


def roles(first: str, second: str, roster: Sequence[str]) -> tuple[str, str]:
    """Who of a pair encrypts (or sends) and who computes (or receives), so that everybody does about as much of each.

    Roles follow from places in the whole roster, so nobody's role changes when somebody else drops out.
    """
    first, second = sorted((first, second))
    return (first, second) if (roster.index(second) - roster.index(first)) % 2 else (second, first)


class SecureHamming(SubProtocol):
    """Every protocol is a frozen dataclass of this kind."""

    collusion: ClassVar[str]
    """What the server and one client learn together."""
    first: ClassVar[str]
    """What the first message reveals (`begin`)."""
    preludes: ClassVar[str] = "nothing: empty"
    """What the messages before it reveal (`prelude`, `answer_prelude`)."""
    has_prelude: ClassVar[bool] = False
    """True when `prelude` and `answer_prelude` must run before every H."""

    def prelude(self, client: Client, round: int = 0) -> dict:
        """Rides on exchange 1 of the key agreement, or comes before each further round."""
        return {}

    def answer_prelude(self, client: Client, preludes: Mapping[str, dict], round: int = 0) -> dict:
        """Rides on exchange 2."""
        return {}

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        """The first message, from packed bits. Rides on XCLP's own."""
        raise NotImplementedError

    def form(self, group: Group, name: str) -> Form:
        """The form of a party's first message."""
        return dict

    def finish(self, server: Server, group: Group, firsts: Mapping[str, dict]) -> tuple[set[str], Blocks]:
        """The server's program: who was there to the end, and H block by block, (j, k, n_j × n_k)."""
        raise NotImplementedError

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        """What one pair sends: `once` for all partners of j, `pair` between clients, `server`."""
        raise NotImplementedError

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        """About how long one core works: `once` for j's rows, `pair` for all sides of a pair. For estimates before a run;
        the constants are what benchmarks/secure_hamming.py measured for 500 × 500 rows of 4096 bits, rounded up."""
        raise NotImplementedError


def keep_bits(client: Client, bits: np.ndarray, group: Group, **more: Any) -> np.ndarray:
    """Packed bits stay in the client's memory, for its later steps; here they come back unpacked."""
    client.memory["bits"] = dict(packed=bits, length=group.bits, counts=group.counts, round=group.round, **more)
    return np.unpackbits(bits, axis=1, count=group.bits)


def kept_bits(client: Client) -> tuple[dict[str, Any], np.ndarray]:
    """What `keep_bits` kept, and the bits unpacked."""
    own = client.memory["bits"]
    return own, np.unpackbits(own["packed"], axis=1, count=own["length"])


def for_partners(each: Mapping[Id, dict], request: str, **forms: Form) -> Forms:
    """Fields of a reply that have a part for every partner whom the request names."""
    return lambda id: {name: dict.fromkeys(each[id][request], form) for name, form in forms.items()}


def parcel(client: Client, kind: str, message: dict, to: str = "", round: int = 0) -> dict:
    """A message for another client (or all), signed."""
    return dict(message=message, signature=session.sign(client, kind, message, to, round))


def unpack(client: Client, sender: str, kind: str, sent: dict, to: str = "", round: int = 0) -> dict:
    """The message of a parcel, if it is the sender's."""
    message = sent.get("message", {})
    session.require_signed(client, sender, sent.get("signature"), kind, message, to, round)
    return message
