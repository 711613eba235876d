"""SecureHamming (XCLP, section 3.2): one interface, five protocols, the same distances bit for bit.

    protocol   exchanges   server learns   server and one client together learn
    psm        0 more      H               everybody's bits
    mlwe       2 more      H               what H and that client's rows tell
    paillier   2 more      H               what H and that client's rows tell
    ot         2 more      H               what H and that client's rows tell (2 more per chunk of 64 MB)
    plain      0 more      everybody's bits

A protocol's first message travels with XCLP's own (`begin`), and `ot`'s base transfers with the key agreement (`prelude`,
`answer_prelude`); the exchanges above are those that it adds (`finish`). The arithmetic, the message flow and the threat model
of each are in the module of its name; their steps are in `encrypted`, `transfers` and here. Ciphertexts are sent once for all
partners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grapevine.core import Client, Server
from grapevine.core.errors import Mistake
from grapevine.core.reply import Array, Form
from grapevine.crypto import psm, session
from grapevine.crypto.bits import hamming
from grapevine.crypto.encrypted import Mlwe, Paillier
from grapevine.crypto.secure import SHARE, Blocks, Group, SecureHamming
from grapevine.crypto.transfers import Ot

__all__ = ["PROTOCOLS", "SHARE", "Group", "Mlwe", "Ot", "Paillier", "Plain", "Psm", "SecureHamming", "protocol"]


@dataclass(frozen=True)
class Plain(SecureHamming):
    """No protection at all: the server gets everybody's bits. The oracle for tests, and the cost of doing nothing."""

    name = "plain"
    collusion = "everything: the server alone has everybody's bits"
    first = "EVERYTHING the hash holds: this party's bits, in the clear"

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        return dict(bits=bits)

    def form(self, group: Group, name: str) -> Form:
        return dict(bits=Array("uint8", (group.counts[name], -(-group.bits // 8))))

    def finish(self, server: Server, group: Group, firsts: Mapping[str, dict]) -> tuple[set[str], Blocks]:
        pairs = [(j, k) for j, k in group.pairs if j in firsts and k in firsts]
        return set(firsts), ((j, k, hamming(firsts[j]["bits"], firsts[k]["bits"]).astype(np.uint16)) for j, k in pairs)

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        return dict(once=0.0, pair=0.05 * n_j * n_k * bits / (500 * 500 * 4096))

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        return dict(once=n_j * -(-bits // 8), pair=0, server=0)


@dataclass(frozen=True)
class Psm(SecureHamming):
    """Masked products from the seed that clients share: cheap, and safe as long as the server and no client collude."""

    name = "psm"
    collusion = "everybody's bits: psm assumes that they do not collude"
    first = "alone nothing: masked with a seed the server lacks; with the others', Hamming distances between rows of two parties"

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        seed, me, L = client.memory["seed"], client.name, group.bits
        # This uses the attempt up: rows hashed again under the same masks would show their difference.
        occasion = session.begin(client, "psm", group.round, 0, group.counts, session.SEALED)
        others = {name: n for name, n in group.counts.items() if name != me}
        return dict(
            u=psm.share(seed, occasion, me, bits, L),
            a={k: psm.pair_message_a(seed, occasion, me, k, bits, n, L) for k, n in others.items() if me < k},
            b={j: psm.pair_message_b(seed, occasion, me, j, bits, n, L) for j, n in others.items() if j < me},
        )

    def form(self, group: Group, name: str) -> Form:
        n = group.counts
        others = [other for other in n if other != name]
        return dict(u=Array("uint16", (n[name], group.bits)),
                    a={k: Array("uint16", (n[name], n[k])) for k in others if name < k},
                    b={j: Array("uint16", (n[j], n[name])) for j in others if j < name})  # fmt: skip

    def finish(self, server: Server, group: Group, firsts: Mapping[str, dict]) -> tuple[set[str], Blocks]:
        pairs = [(j, k) for j, k in group.pairs if j in firsts and k in firsts]
        of = firsts
        return set(firsts), ((j, k, psm.combine(of[j]["u"], of[k]["u"], of[j]["a"][k], of[k]["b"][j])) for j, k in pairs)

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        return dict(once=0.1 * n_j * bits / (500 * 4096), pair=0.3 * n_j * n_k * bits / (500 * 500 * 4096))

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        return dict(once=2 * n_j * bits, pair=0, server=4 * n_j * n_k)


PROTOCOLS: dict[str, type[SecureHamming]] = {p.name: p for p in (Mlwe, Psm, Paillier, Ot, Plain)}


def protocol(name: str) -> SecureHamming:
    """A protocol by its name."""
    if name not in PROTOCOLS:
        raise Mistake(f"there is no protocol '{name}': use {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]()
