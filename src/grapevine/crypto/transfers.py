"""The secure Hamming protocol by oblivious transfer: `ot`, in chunks, its base transfers before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grapevine.core import Client, Mistake, Server, param, step
from grapevine.core.reply import Form
from grapevine.crypto import naor_pinkas, ot, secure, session
from grapevine.crypto.secure import PARCEL, SHARE, Blocks, Group, SecureHamming
from grapevine.crypto.stream import context


@dataclass(frozen=True)
class Ot(SecureHamming):
    """The paper's oblivious transfer, extended and batched: few computations, very many bytes."""

    name = "ot"
    collusion = "what the distances and that party's own rows tell about the others' rows"
    first = "nothing: masked choices"
    preludes = "public values of the base oblivious transfers; nothing about the rows"
    has_prelude = True
    chunk_bytes: int = param(64 << 20, "", "the most bytes of transfers in one message")

    def prelude(self, client: Client, round: int = 0) -> dict:
        """As receiver k: one offer for the base transfers with every sender."""
        secret, offer = naor_pinkas.offer()
        client.memory["ot.offer"] = dict(secret=secret, offer=offer, round=round)
        return secure.parcel(client, "base offer", offer, round=round)

    def answer_prelude(self, client: Client, preludes: Mapping[str, dict], round: int = 0) -> dict:
        """As sender j: choose in every receiver's base transfers. The choices Δ are this pair's alone."""
        replies, keys = {}, {}
        for k, sent in preludes.items():
            if k != client.name and secure.roles(client.name, k, sorted(client.pinned))[0] == client.name:
                delta, offer = ot.fresh_delta(), secure.unpack(client, k, "base offer", sent, round=round)
                key, reply = naor_pinkas.choose(offer, ot.delta_bits(delta), _pair_info(client, client.name, k, round))
                replies[k] = secure.parcel(client, "base choice", reply, k, round)
                keys[k] = dict(delta=delta, keys=key)
        client.memory["ot.keys"] = dict(round=round, partners=keys)
        return replies

    def begin(self, client: Client, bits: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        """As receiver k: the base keys, and the first chunk's choices, masked. `preludes[j]` are the replies of sender j."""
        plain = secure.keep_bits(client, bits, group)
        own = _of_round(client, "ot.offer", group.round)
        requests = {}
        for j, replies in preludes.items():
            if client.name not in replies or not group.counts.get(j) or not len(bits):
                continue
            info = _pair_info(client, j, client.name, group.round)
            choice = secure.unpack(client, j, "base choice", replies[client.name], client.name, group.round)
            keys = naor_pinkas.both_keys(own["secret"], own["offer"], choice, info)
            receiver = ot.Receiver(plain, group.counts[j], info, keys, self.chunk_bytes)
            requests[j] = secure.parcel(client, "request", receiver.request(0), j, group.round)
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
        own, plain = secure.kept_bits(client)
        chunks, shares = {}, {}
        for k, request in requests.items():
            partners = _of_round(client, "ot.keys", own["round"])["partners"]
            slot, keys, info = f"ot.sender.{k}", partners[k], _pair_info(client, client.name, k, own["round"])
            done = client.memory.get(slot)
            sender = ot.Sender(plain, own["counts"][k], info, **keys, chunk_bytes=self.chunk_bytes, done=done)
            chunk = sender.transfer(secure.unpack(client, k, "request", request, client.name, own["round"]))
            chunks[k] = secure.parcel(client, "chunk", chunk, k, own["round"])
            client.memory[slot] = sender.to_dict()
            if sender.next == sender.plan.chunks:
                shares[k] = sender.share()
                # Base keys serve one computation of H: used again, they would repeat the pads.
                del client.memory[slot]
                left = {other: keys for other, keys in partners.items() if other != k}
                client.memory["ot.keys"] = dict(round=own["round"], partners=left)
        return dict(chunks=chunks, shares=shares)

    @step(reveals=dict(requests="nothing: masked choices", shares=SHARE), like=dict(requests=[PARCEL], shares=[dict]))
    def receive(self, client: Client, chunks: dict) -> dict:
        """As receiver k: take a chunk of every sender; then the next request, or the share for the server."""
        own, plain = secure.kept_bits(client)
        requests, shares = {}, {}
        for j, chunk in chunks.items():
            slot, info = f"ot.receiver.{j}", _pair_info(client, j, client.name, own["round"])
            done = client.memory[slot]
            receiver = ot.Receiver(plain, own["counts"][j], info, done["keys"], self.chunk_bytes, done)
            receiver.receive(secure.unpack(client, j, "chunk", chunk, client.name, own["round"]))
            if receiver.next == receiver.plan.chunks:
                shares[j] = receiver.share()
                del client.memory[slot]
            else:
                requests[j] = secure.parcel(client, "request", receiver.request(receiver.next), j, own["round"])
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
            sent = server.ask(self.transfer, each=each, form=secure.for_partners(each, "requests", chunks=PARCEL))
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


def _of_round(client: Client, name: str, round: int) -> dict:
    """What the base transfers of this round left. Those of another were not made for these rows."""
    kept = client.memory.get(name)
    if kept is None or kept["round"] != round:
        raise Mistake(
            f"{client.name} has no base transfers for round {round}: they are made before each round, so start it again"
        )
    return kept


def _pair_info(client: Client, sender: str, receiver: str, round: int) -> bytes:
    agreed = session.agreement(client)
    return context("ot", session=agreed.session, roster=agreed.roster, keys=agreed.key_hash, sender=sender, receiver=receiver,
                   round=round)  # fmt: skip
