"""SecureHamming (XCLP, section 3.2): one interface, five protocols, the same distances bit for bit.

    protocol   exchanges   server learns   server and one client together learn
    psm        0 more      H               everybody's bits
    mlwe       2 more      H               what H and that client's rows tell
    paillier   2 more      H               what H and that client's rows tell
    ot         2 more      H               what H and that client's rows tell (2 more per chunk of 64 MB)
    plain      0 more      everybody's bits

A protocol's first message travels with XCLP's own (`begin`), and `ot`'s base transfers with the key agreement (`prelude`,
`answer_prelude`); the exchanges above are those that it adds (`finish`). The arithmetic, the message flow and the threat model
of each are in the module of its name. Ciphertexts are sent once for all partners. What one client sends to another through the
server is signed by the sender's identity, as a *parcel* of message and signature: `open` decrypts for the server what it is
handed, and must not do so for the party's own ciphertexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from grapevine.core import Id, Server, SubProtocol, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import Array, Form
from grapevine.core.server import Forms
from grapevine.crypto import mlwe, naor_pinkas, ot, paillier, psm, session
from grapevine.crypto.bits import hamming
from grapevine.crypto.stream import context

if TYPE_CHECKING:
    from grapevine.core import Client

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
    """Of a pair, who encrypts (or sends) and who computes (or receives), dealt so that everybody has about as much of each.

    By places in the whole roster, so that nobody's role changes when somebody else drops out.
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

    def named(self, text: str) -> SecureHamming:
        return protocol(text)

    def prelude(self, client: Client) -> dict:
        """Rides on exchange 1 of the key agreement."""
        return {}

    def answer_prelude(self, client: Client, preludes: Mapping[str, dict]) -> dict:
        """Rides on exchange 2."""
        return {}

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        """The first message, from packed bits. Rides on XCLP's own."""
        raise TypeError(f"{type(self).__name__} has no begin")

    def form(self, group: Group, name: str) -> Form:
        """What a party's first message must be."""
        return dict

    def finish(self, server: Server, group: Group, firsts: Mapping[str, dict]) -> tuple[set[str], Blocks]:
        """The server's program: who was there to the end, and H block by block, (j, k, n_j × n_k)."""
        raise TypeError(f"{type(self).__name__} has no finish")

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        """What one pair sends: `once` for all partners of j, `pair` between clients, `server`."""
        raise TypeError(f"{type(self).__name__} has no bytes_per_pair")

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        """About how long one core works: `once` for j's rows, `pair` for all sides of a pair. For estimates before a run;
        the constants are what benchmarks/secure_hamming.py measured for 500 × 500 rows of 4096 bits, rounded up."""
        raise TypeError(f"{type(self).__name__} has no cpu_seconds")


# ---------------------------------------------------------------- plain


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


# ---------------------------------------------------------------- psm


@dataclass(frozen=True)
class Psm(SecureHamming):
    """Masked products from the seed that clients share: cheap, and safe as long as the server and no client collude."""

    name = "psm"
    collusion = "everybody's bits: psm assumes that they do not collude"
    first = "alone nothing: masked with a seed the server lacks; with the others', Hamming distances between rows of two parties"

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        seed, me, L = client.memory["seed"], client.name, group.bits
        # Begun, not only named: rows hashed anew under the same masks would show the difference.
        occasion = session.begin(client, "psm", group.round, 0, group.counts)
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


# ---------------------------------------------------------------- mlwe and paillier: encrypt, compute, open


class Encrypted(SecureHamming):
    """The flow of the paper's PHE protocol: j encrypts once, k computes on it, j opens, the server subtracts."""

    collusion = "what H and that client's own rows tell about the other's directions"

    def encrypt(self, bits: np.ndarray) -> tuple[dict, dict]:
        """(secret for the own memory, message for all partners), from unpacked bits."""
        raise TypeError(f"{type(self).__name__} has no encrypt")

    def compute(self, message: dict, bits: np.ndarray) -> tuple[dict, dict]:
        """(answer for j, share for the server)."""
        raise TypeError(f"{type(self).__name__} has no compute")

    def decrypt(self, secret: dict, answer: dict, shape: tuple[int, int], bits: int) -> dict:
        """The share for the server; `shape` is (rows of j, rows of k)."""
        raise TypeError(f"{type(self).__name__} has no decrypt")

    def combine(self, from_j: dict, from_k: dict, shape: tuple[int, int], bits: int) -> np.ndarray:
        raise TypeError(f"{type(self).__name__} has no combine")

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        plain = np.unpackbits(bits, axis=1, count=group.bits)
        client.memory["bits"] = dict(packed=bits, length=group.bits, counts=group.counts, round=group.round, computed=False)
        if not self.encrypts(group, client.name):
            return {}
        secret, message = self.encrypt(plain)
        client.memory["hamming"] = secret
        return dict(cipher=parcel(client, "ciphertext", message, round=group.round))

    def encrypts(self, group: Group, name: str) -> bool:
        """Whether a party has rows and a partner that computes on their ciphertexts."""
        pairs = [pair for pair in group.pairs if name in pair]
        return group.counts[name] > 0 and any(roles(*pair, group.roster)[0] == name for pair in pairs)

    def form(self, group: Group, name: str) -> Form:
        return dict(cipher=PARCEL) if self.encrypts(group, name) else {}

    @step(reveals=dict(answers="to the server nothing: under another party's key; to that party nothing: masked", shares=SHARE))
    def evaluate(self, client: Client, ciphers: dict) -> dict:
        """Client k, for every partner whose ciphertexts it is to compute on. Once: floods are sized for one answer."""
        own = client.memory["bits"]
        if own["computed"]:
            raise Mistake(f"{client.name} has computed its distances in round {own['round']}: start a new session")
        client.memory["bits"] = dict(own, computed=True)
        plain = np.unpackbits(own["packed"], axis=1, count=own["length"])
        answers, shares = {}, {}
        for j, sent in ciphers.items():
            answer, shares[j] = self.compute(unpack(client, j, "ciphertext", sent, round=own["round"]), plain)
            answers[j] = parcel(client, "answer", answer, j, own["round"])
        return dict(answers=answers, shares=shares)

    @step(reveals=dict(shares=SHARE))
    def open(self, client: Client, answers: dict) -> dict:
        """Client j, for every partner that computed on its ciphertexts. The secret is used up."""
        own = client.memory["bits"]
        if "hamming" not in client.memory:
            raise Mistake(f"{client.name} has no ciphertexts to open in round {own['round']}: start a new session")
        n, secret = len(own["packed"]), client.memory.pop("hamming")
        out = {}
        for k, sent in answers.items():
            answer = unpack(client, k, "answer", sent, client.name, own["round"])
            out[k] = self.decrypt(secret, answer, (n, own["counts"][k]), own["length"])
        return dict(shares=out)

    def finish(self, server: Server, group: Group, firsts: Mapping[str, dict]) -> tuple[set[str], Blocks]:
        full = [name for name in firsts if group.counts[name]]
        tasks = [roles(j, k, group.roster) for j, k in combinations(sorted(full), 2)]
        each = {}
        for k in sorted({k for _, k in tasks}):
            partners = [j for j, kk in tasks if kk == k]
            each[group.ids[k]] = dict(ciphers={j: firsts[j]["cipher"] for j in partners})
        computed = server.ask(self.evaluate, each=each, form=_for(each, "ciphers", answers=PARCEL, shares=dict)) if each else {}
        lost = {k for k in full if group.ids[k] in each and group.ids[k] not in computed}
        tasks = [(j, k) for j, k in tasks if not {j, k} & lost]
        each = {
            group.ids[j]: dict(answers={k: computed[group.ids[k]]["answers"][j] for jj, k in tasks if jj == j})
            for j in sorted({j for j, _ in tasks})
        }
        opened = server.ask(self.open, each=each, form=_for(each, "answers", shares=dict)) if each else {}
        lost |= {j for j in full if group.ids[j] in each and group.ids[j] not in opened}
        tasks = [(j, k) for j, k in tasks if not {j, k} & lost]

        def blocks() -> Blocks:
            for j, k in tasks:
                from_j, from_k = opened[group.ids[j]]["shares"][k], computed[group.ids[k]]["shares"][j]
                yield j, k, self.combine(from_j, from_k, (group.counts[j], group.counts[k]), group.bits)

        return set(firsts) - lost, blocks()


def _for(each: Mapping[Id, dict], request: str, **forms: Form) -> Forms:
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


@dataclass(frozen=True)
class Mlwe(Encrypted):
    """Lattice encryption (module-LWE): holds even if the server and a client collude."""

    name = "mlwe"
    first = "nothing: lattice ciphertexts of this party's hash bits"

    def encrypt(self, bits: np.ndarray) -> tuple[dict, dict]:
        params = mlwe.Params.for_bits(bits.shape[1])
        secret, message = mlwe.encrypt(params, bits)
        return dict(secret=secret.to_bytes(), bits=bits.shape[1]), message

    def compute(self, message: dict, bits: np.ndarray) -> tuple[dict, dict]:
        return mlwe.evaluate(mlwe.Params.for_bits(bits.shape[1]), message, bits)

    def decrypt(self, secret: dict, answer: dict, shape: tuple[int, int], bits: int) -> dict:
        return mlwe.decrypt(mlwe.Secret.from_bytes(mlwe.Params.for_bits(bits), secret["secret"]), answer)

    def combine(self, from_j: dict, from_k: dict, shape: tuple[int, int], bits: int) -> np.ndarray:
        block = mlwe.combine(mlwe.Params.for_bits(bits), from_j, from_k)
        return _shaped(block, shape)

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        blocks = -(-n_j // 512)
        return dict(once=1.7 * blocks * bits / 4096, pair=2.3 * n_k * bits * (3584 + n_j) / (500 * 4096 * 4084))

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        sizes = mlwe.sizes(mlwe.Params.for_bits(bits), n_j, n_k)
        return dict(once=sizes["up"], pair=sizes["back"], server=sizes["server"])


@dataclass(frozen=True)
class Paillier(Encrypted):
    """The paper's PHE: Paillier's cryptosystem, many rows to a ciphertext."""

    name = "paillier"
    first = "nothing: Paillier ciphertexts of this party's hash bits"
    key_bits: int = param(3072, "", "size of the Paillier modulus; 2048 is the least")

    def encrypt(self, bits: np.ndarray) -> tuple[dict, dict]:
        key = paillier.make_key(self.key_bits)
        return key.to_dict(), paillier.encrypt_columns(key, bits)

    def compute(self, message: dict, bits: np.ndarray) -> tuple[dict, dict]:
        return paillier.answer(message, bits)

    def decrypt(self, secret: dict, answer: dict, shape: tuple[int, int], bits: int) -> dict:
        return paillier.open_answer(paillier.SecretKey.from_dict(secret), answer, shape[0], bits, shape[1])

    def combine(self, from_j: dict, from_k: dict, shape: tuple[int, int], bits: int) -> np.ndarray:
        return _shaped(paillier.distances(from_j, from_k, *shape, bits).astype(np.uint16), shape)

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        packs, size = -(-n_j // 230), (self.key_bits / 3072) ** 2
        return dict(
            once=2 + 4 * size * packs * bits / (3 * 4096), pair=27 * size * n_k * packs * (bits / 4096 + 1) / (500 * 3 * 2)
        )

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        cost = paillier.cost(n_j, n_k, bits, self.key_bits)
        return dict(once=cost["columns"], pair=cost["masked"], server=cost["server"])


def _shaped(block: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    if block.shape != shape:
        raise Mistake(f"a block of {block.shape} distances came where {shape} were due: start a new session")
    return block


# ---------------------------------------------------------------- ot


@dataclass(frozen=True)
class Ot(SecureHamming):
    """The paper's oblivious transfer, extended and batched: few computations, very many bytes."""

    name = "ot"
    collusion = "what H and that client's own rows tell about the other's directions"
    first = "nothing: masked choices"
    preludes = "public values of the base oblivious transfers; nothing about the rows"
    has_prelude = True
    chunk_bytes: int = param(64 << 20, "", "the most bytes of transfers in one message")

    def prelude(self, client: Client) -> dict:
        """As receiver k: one offer for the base transfers with every sender."""
        secret, offer = naor_pinkas.offer()
        client.memory["ot.offer"] = dict(secret=secret, offer=offer)
        return parcel(client, "base offer", offer)

    def answer_prelude(self, client: Client, preludes: Mapping[str, dict]) -> dict:
        """As sender j: choose in every receiver's base transfers. The choices Δ are this pair's alone."""
        replies, keys = {}, {}
        for k, sent in preludes.items():
            if k != client.name and roles(client.name, k, sorted(client.pinned))[0] == client.name:
                delta, offer = ot.fresh_delta(), unpack(client, k, "base offer", sent)
                key, reply = naor_pinkas.choose(offer, ot.delta_bits(delta), _pair_info(client, client.name, k))
                replies[k] = parcel(client, "base choice", reply, k)
                keys[k] = dict(delta=delta, keys=key)
        client.memory["ot.keys"] = keys
        return replies

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        """As receiver k: the base keys, and the first chunk's choices, masked. `preludes[j]` are the replies of sender j."""
        plain = np.unpackbits(bits, axis=1, count=group.bits)
        client.memory["bits"] = dict(packed=bits, length=group.bits, counts=group.counts, round=group.round)
        own = client.memory["ot.offer"]
        requests = {}
        for j, replies in preludes.items():
            if client.name not in replies or not group.counts.get(j) or not len(bits):
                continue
            info = _pair_info(client, j, client.name)
            choice = unpack(client, j, "base choice", replies[client.name], client.name)
            keys = naor_pinkas.both_keys(own["secret"], own["offer"], choice, info)
            receiver = ot.Receiver(plain, group.counts[j], info, keys, self.chunk_bytes)
            requests[j] = parcel(client, "request", receiver.request(0), j, group.round)
            client.memory[f"ot.receiver.{j}"] = dict(receiver.to_dict(), keys=keys)
        del client.memory["ot.offer"]  # base transfers serve one computation of H: a second one would reuse their masks
        return dict(requests=requests)

    def form(self, group: Group, name: str) -> Form:
        return dict(requests=[PARCEL])

    @step(
        reveals=dict(chunks="to the server and the receiver nothing but what they chose: masked", shares=SHARE),
        like=dict(shares=[dict]),
    )
    def transfer(self, client: Client, requests: dict) -> dict:
        """As sender j: a chunk for every receiver that asks; after the last one, the share for the server."""
        own = client.memory["bits"]
        plain = np.unpackbits(own["packed"], axis=1, count=own["length"])
        chunks, shares = {}, {}
        for k, request in requests.items():
            slot, keys, info = f"ot.sender.{k}", client.memory["ot.keys"][k], _pair_info(client, client.name, k)
            done = client.memory.get(slot)
            sender = ot.Sender(plain, own["counts"][k], info, **keys, chunk_bytes=self.chunk_bytes, done=done)
            chunk = sender.transfer(unpack(client, k, "request", request, client.name, own["round"]))
            chunks[k] = parcel(client, "chunk", chunk, k, own["round"])
            client.memory[slot] = sender.to_dict()
            if sender.next == sender.plan.chunks:
                shares[k] = sender.share()
                # Base keys serve one computation of H: used again, they would repeat the pads.
                del client.memory[slot]
                client.memory["ot.keys"] = {other: keys for other, keys in client.memory["ot.keys"].items() if other != k}
        return dict(chunks=chunks, shares=shares)

    @step(reveals=dict(requests="nothing: masked choices", shares=SHARE), like=dict(requests=[PARCEL], shares=[dict]))
    def receive(self, client: Client, chunks: dict) -> dict:
        """As receiver k: take a chunk of every sender; then the next request, or the share for the server."""
        own, requests, shares = client.memory["bits"], {}, {}
        plain = np.unpackbits(own["packed"], axis=1, count=own["length"])
        for j, chunk in chunks.items():
            slot, info = f"ot.receiver.{j}", _pair_info(client, j, client.name)
            done = client.memory[slot]
            receiver = ot.Receiver(plain, own["counts"][j], info, done["keys"], self.chunk_bytes, done)
            receiver.receive(unpack(client, j, "chunk", chunk, client.name, own["round"]))
            if receiver.next == receiver.plan.chunks:
                shares[j] = receiver.share()
                del client.memory[slot]
            else:
                requests[j] = parcel(client, "request", receiver.request(receiver.next), j, own["round"])
                client.memory[slot] = dict(receiver.to_dict(), keys=done["keys"])
        return dict(requests=requests, shares=shares)

    def finish(self, server: Server, group: Group, firsts: Mapping[str, dict]) -> tuple[set[str], Blocks]:
        present, ids = set(firsts), group.ids
        requests = {k: dict(first["requests"]) for k, first in firsts.items()}
        from_j: dict[tuple[str, str], dict] = {}
        from_k: dict[tuple[str, str], dict] = {}
        while any(requests.values()):
            open_pairs = [(j, k) for k in sorted(requests) for j in requests[k] if {j, k} <= present]
            if not open_pairs:
                break
            each = {ids[j]: dict(requests={k: requests[k][j] for jj, k in open_pairs if jj == j}) for j, _ in open_pairs}
            sent = server.ask(self.transfer, each=each, form=_for(each, "requests", chunks=PARCEL))
            present -= {j for j, _ in open_pairs if ids[j] not in sent}
            open_pairs = [(j, k) for j, k in open_pairs if j in present]
            each = {ids[k]: dict(chunks={j: sent[ids[j]]["chunks"][k] for j, kk in open_pairs if kk == k}) for _, k in open_pairs}
            got = server.ask(self.receive, each=each) if each else {}
            present -= {k for _, k in open_pairs if ids[k] not in got}
            from_j |= {(j, k): sent[ids[j]]["shares"][k] for j, k in open_pairs if k in sent[ids[j]]["shares"]}
            from_k |= {(j, k): got[ids[k]]["shares"][j] for j, k in open_pairs if k in present and j in got[ids[k]]["shares"]}
            requests = {k: dict(got[ids[k]]["requests"]) for k in sorted({k for _, k in open_pairs}) if k in present}

        def blocks() -> Blocks:
            for j, k in from_k:
                if {j, k} <= present:
                    shape = (group.counts[j], group.counts[k])
                    yield j, k, ot.distances(from_j[j, k], from_k[j, k], *shape, group.bits).astype(np.uint16)

        return present, blocks()

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        return dict(once=0.0, pair=3 + 8 * n_j * n_k * bits / (500 * 500 * 4096))

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        cost = ot.cost(n_j, n_k, bits, self.chunk_bytes)
        return dict(once=0, pair=cost["base"] + cost["u"] + cost["tau"], server=cost["server"])


def _pair_info(client: Client, sender: str, receiver: str) -> bytes:
    agreed = session.agreement(client)
    return context("ot", session=agreed.session, roster=agreed.roster, keys=agreed.key_hash, sender=sender, receiver=receiver)


PROTOCOLS: dict[str, type[SecureHamming]] = {p.name: p for p in (Mlwe, Psm, Paillier, Ot, Plain)}


def protocol(name: str) -> SecureHamming:
    """A protocol by its name."""
    if name not in PROTOCOLS:
        raise Mistake(f"there is no protocol '{name}': take {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]()
