"""The secure Hamming protocols that encrypt: `mlwe` and `paillier`, which share the flow of the paper's PHE protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from grapevine.core import Client, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import Form
from grapevine.crypto import mlwe, paillier, secure, session
from grapevine.crypto.secure import PARCEL, SHARE, Blocks, Group, SecureHamming
from grapevine.crypto.stream import context

ANSWERS = "to the server nothing: under another party's key; to that party nothing: masked"


class Encrypted(SecureHamming):
    """The flow of the paper's PHE protocol: j encrypts once, k computes on it, j opens, the server subtracts."""

    collusion = "what the distances and that party's own rows tell about the others' rows"
    shared: tuple[str, ...] = ()
    """Parts of an answer that are the same for every j: they travel once."""

    def encrypt(self, bits: np.ndarray, occasion: bytes) -> tuple[dict, dict]:
        """(secret for this client's memory, message for all partners), from unpacked bits. `occasion` is public and for this H
        alone."""
        raise NotImplementedError

    def compute(self, messages: dict[str, dict], bits: np.ndarray, occasion: bytes) -> tuple[dict[str, dict], dict[str, dict]]:
        """(answer for j, share for the server), for every j."""
        raise NotImplementedError

    def decrypt(self, secret: dict, answer: dict, shape: tuple[int, int], bits: int) -> dict:
        """The share for the server; `shape` is (rows of j, rows of k)."""
        raise NotImplementedError

    def combine(self, from_j: dict, from_k: dict, shape: tuple[int, int], bits: int) -> np.ndarray:
        raise NotImplementedError

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        plain = secure.keep_bits(client, bits, group, computed=False)
        if not self.encrypts(group, client.name):
            return {}
        secret, message = self.encrypt(plain, _occasion(client, group.round))
        client.memory["hamming"] = secret
        return dict(cipher=secure.parcel(client, "ciphertext", message, round=group.round))

    def encrypts(self, group: Group, name: str) -> bool:
        """Whether a party has rows and a partner that computes on their ciphertexts."""
        pairs = [pair for pair in group.pairs if name in pair]
        return group.counts[name] > 0 and any(secure.roles(*pair, group.roster)[0] == name for pair in pairs)

    def form(self, group: Group, name: str) -> Form:
        return dict(cipher=PARCEL) if self.encrypts(group, name) else {}

    @step(reveals=dict(answers=ANSWERS, common=ANSWERS, shares=SHARE))
    def evaluate(self, client: Client, ciphers: dict) -> dict:
        """Client k, for every partner whose ciphertexts it computes on. It does so once, since floods are sized for one
        answer."""
        own, plain = secure.kept_bits(client)
        if own["computed"]:
            raise Mistake(f"{client.name} has already computed its distances in round {own['round']}: start a new session")
        client.memory["bits"] = dict(own, computed=True)
        messages = {j: secure.unpack(client, j, "ciphertext", sent, round=own["round"]) for j, sent in ciphers.items()}
        answers, shares = self.compute(messages, plain, _occasion(client, own["round"]))
        common = {name: next(iter(answers.values()))[name] for name in self.shared}
        apart = {j: {name: part for name, part in answer.items() if name not in common} for j, answer in answers.items()}
        sealed = {j: secure.parcel(client, "answer", answer, j, own["round"]) for j, answer in apart.items()}
        return dict(answers=sealed, common=secure.parcel(client, "common answer", common, round=own["round"]), shares=shares)

    @step(reveals=dict(shares=SHARE))
    def open(self, client: Client, answers: dict, common: dict) -> dict:
        """Client j, for every partner that computed on its ciphertexts. The secret is used up."""
        own = client.memory["bits"]
        if "hamming" not in client.memory:
            raise Mistake(f"{client.name} has no ciphertexts to open in round {own['round']}: start a new session")
        n, secret = len(own["packed"]), client.memory.pop("hamming")
        out = {}
        for k, sent in answers.items():
            answer = secure.unpack(client, k, "answer", sent, client.name, own["round"])
            same = secure.unpack(client, k, "common answer", common.get(k, {}), round=own["round"])
            out[k] = self.decrypt(secret, dict(same, **answer), (n, own["counts"][k]), own["length"])
        return dict(shares=out)

    def finish(self, server: Server, group: Group, firsts: Mapping[str, dict]) -> tuple[set[str], Blocks]:
        full = [name for name in firsts if group.counts[name]]
        tasks = [secure.roles(j, k, group.roster) for j, k in combinations(sorted(full), 2)]
        each = {group.ids[k]: dict(ciphers={j: firsts[j]["cipher"] for j, kk in tasks if kk == k}) for _, k in sorted(tasks)}
        form = secure.for_partners(each, "ciphers", answers=PARCEL, shares=dict)
        computed = server.ask(self.evaluate, each=each, form=lambda id: dict(form(id), common=PARCEL)) if each else {}
        lost = {k for k in full if group.ids[k] in each and group.ids[k] not in computed}
        tasks = [(j, k) for j, k in tasks if not {j, k} & lost]
        each = {
            group.ids[j]: dict(answers={k: computed[group.ids[k]]["answers"][j] for jj, k in tasks if jj == j},
                               common={k: computed[group.ids[k]]["common"] for jj, k in tasks if jj == j})
            for j, _ in sorted(tasks)
        }  # fmt: skip
        form = secure.for_partners(each, "answers", shares=dict)
        opened = server.ask(self.open, each=each, form=form) if each else {}
        lost |= {j for j in full if group.ids[j] in each and group.ids[j] not in opened}
        tasks = [(j, k) for j, k in tasks if not {j, k} & lost]

        def blocks() -> Blocks:
            for j, k in tasks:
                from_j, from_k = opened[group.ids[j]]["shares"][k], computed[group.ids[k]]["shares"][j]
                yield j, k, self.combine(from_j, from_k, (group.counts[j], group.counts[k]), group.bits)

        return set(firsts) - lost, blocks()


@dataclass(frozen=True)
class Mlwe(Encrypted):
    """Lattice encryption (module-LWE): holds even if the server and a client collude."""

    name = "mlwe"
    first = "nothing: lattice ciphertexts of this party's hash bits"
    shared = ("a",)

    def encrypt(self, bits: np.ndarray, occasion: bytes) -> tuple[dict, dict]:
        params = mlwe.Params.for_bits(bits.shape[1])
        secret, message = mlwe.encrypt(params, bits, hashlib.sha256(occasion).digest())
        return dict(secret=secret.to_bytes()), message

    def compute(self, messages: dict[str, dict], bits: np.ndarray, occasion: bytes) -> tuple[dict[str, dict], dict[str, dict]]:
        for j, message in messages.items():
            if message.get("seed") != hashlib.sha256(occasion).digest():
                raise Mistake(f"the ciphertexts of {j} are for another agreement or round: start a new session")
        return mlwe.evaluate_all(mlwe.Params.for_bits(bits.shape[1]), messages, bits)

    def decrypt(self, secret: dict, answer: dict, shape: tuple[int, int], bits: int) -> dict:
        return mlwe.decrypt(mlwe.Secret.from_bytes(mlwe.Params.for_bits(bits), secret["secret"]), answer, shape[1])

    def combine(self, from_j: dict, from_k: dict, shape: tuple[int, int], bits: int) -> np.ndarray:
        block = mlwe.combine(mlwe.Params.for_bits(bits), from_j, from_k)
        return _shaped(block, shape)

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        blocks = -(-n_j // 512)
        return dict(once=0.7 * blocks * bits / 4096, pair=8e-7 * n_k * (512 + n_j) * (0.8 * bits / 4096 + 0.25))

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        params = mlwe.Params.for_bits(bits)
        sizes, own = mlwe.sizes(params, n_j, n_k), mlwe.sizes(params, 0, n_j)  # what it sends where it computes for others
        return dict(once=sizes["up"] + own["common"], pair=sizes["back"], server=sizes["server"])


@dataclass(frozen=True)
class Paillier(Encrypted):
    """The paper's PHE: Paillier's cryptosystem, many rows to a ciphertext."""

    name = "paillier"
    first = "nothing: Paillier ciphertexts of this party's hash bits"
    key_bits: int = param(3072, "", "size of the Paillier modulus; 2048 is the least")

    def encrypt(self, bits: np.ndarray, occasion: bytes) -> tuple[dict, dict]:
        key = paillier.make_key(self.key_bits)
        return key.to_dict(), paillier.encrypt_columns(key, bits)

    def compute(self, messages: dict[str, dict], bits: np.ndarray, occasion: bytes) -> tuple[dict[str, dict], dict[str, dict]]:
        made = {j: paillier.answer(message, bits) for j, message in messages.items()}
        return {j: answer for j, (answer, _) in made.items()}, {j: share for j, (_, share) in made.items()}

    def decrypt(self, secret: dict, answer: dict, shape: tuple[int, int], bits: int) -> dict:
        return paillier.open_answer(paillier.SecretKey.from_dict(secret), answer, shape[0], bits, shape[1])

    def combine(self, from_j: dict, from_k: dict, shape: tuple[int, int], bits: int) -> np.ndarray:
        return _shaped(paillier.distances(from_j, from_k, *shape, bits).astype(np.uint16), shape)

    def cpu_seconds(self, n_j: int, n_k: int, bits: int) -> dict[str, float]:
        packs, size = -(-n_j // 230), (self.key_bits / 3072) ** 2
        return dict(
            once=2 + 4 * size * packs * bits / (3 * 4096), pair=36 * size * n_k * packs * (bits / 4096 + 1) / (500 * 3 * 2)
        )

    def bytes_per_pair(self, n_j: int, n_k: int, bits: int) -> dict[str, int]:
        cost = paillier.cost(n_j, n_k, bits, self.key_bits)
        return dict(once=cost["columns"], pair=cost["masked"], server=cost["server"])


def _occasion(client: Client, round: int) -> bytes:
    """This agreement and round, which everybody knows and nobody chose."""
    agreed = session.agreement(client)
    return context("encrypted hamming", session=agreed.session, roster=agreed.roster, keys=agreed.key_hash, round=round)


def _shaped(block: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    if block.shape != shape:
        raise Mistake(f"a block of {block.shape} distances arrived where {shape} were expected: start a new session")
    return block
