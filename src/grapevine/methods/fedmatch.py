"""FedMatch. Jeong, Yoon, Yang, Hwang: "Federated Semi-Supervised Learning with Inter-Client Consistency & Disjoint Learning",
ICLR 2021, Algorithms 1 (labels at the clients) and 2 (labels at the server).

θ = σ + ψ. Labelled rows move σ, unlabelled rows move ψ:
    L_s = λ_s CE(y, p(x))
    L_u = λ_ICCS/H Σ_h KL(p_h(u) ‖ p(u)) + λ_a CE(vote, p(strong view of u)) + λ_L2 ‖σ − ψ‖² + λ_L1 ‖ψ‖₁
over rows whose largest probability reaches τ. The vote is the class that the client and its helpers mostly name. Helpers are the
H clients whose models answer one fixed image of noise most alike, and are renewed every R_H rounds. A client keeps its copy of σ
and ψ; only entries that changed since are sent to it, and only entries that it changed by more than a threshold come back.

Departures: a client computes its own answer to the noise (the server need not know what rows look like). Helpers are chosen
among clients that trained in the last R_H rounds, which bounds what the server stores, and a client keeps the helpers it was
sent until the next renewal; `preset=code`: helpers are sent, and used, in every R_H-th round only. A tie of the vote goes to the
client's own class (`preset=code`: to the smaller number). The public code lowers a learning rate when the loss on a common
validation set stops falling; here it is the client's (or server's) own labelled loss. σ is averaged over the clients that hold
labels. Buffers of normalisation layers, which the paper's network lacks, are sent whole and averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grapevine.core import Client, Id, Method, Network, Predict, Server, param, rng, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT, Array, Form
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import average, bases, passes, train, vectors
from grapevine.learn.labels import vote
from grapevine.learn.losses import consistency_kl, cross_entropy
from grapevine.learn.schedules import plateau
from grapevine.learn.training import steps_of
from grapevine.learn.vectors import Decomposed

CHANGED = f"the entries that changed most; {bases.MODEL}"
BUFFERS = "means and variances of activations over batches of this party's rows"
VECTOR = "the class probabilities that the trained model gives to an image of noise"
AT_CLIENTS = dict(l1=1e-4, zero=5e-6, cut=5e-5, batch=10, patience=5)
AT_SERVER = dict(l1=1e-5, zero=1e-5, cut=1e-5, batch=100, patience=20)


@dataclass(frozen=True)
class FedMatch(Method):
    """Disjoint learning of σ and ψ, with the nearest clients' ψ as helpers."""

    name = "fedmatch"
    title = "FedMatch: disjoint weights for labelled and unlabelled rows, helpers (Jeong et al. 2021)"
    takes = frozenset({"clients", "server", "both"})

    helpers: int = param(2, "H", "models of other clients that help a client; 0: none", least=0)
    interval: int = param(10, "R_H", "rounds between renewals of the helpers", least=1)
    threshold: float = param(0.75, "τ", "least probability of a row that is learned from", least=0, most=1)
    supervised: float = param(10.0, "λ_s", "weight of the labelled loss", least=0)
    consistency: float = param(1e-2, "λ_ICCS", "weight of the consistency with helpers", least=0)
    agreement: float = param(1e-2, "λ_a", "weight of the loss on voted labels", least=0)
    l2: float = param(10.0, "λ_L2", "weight of ‖σ − ψ‖²", least=0)
    l1: float = param(-1.0, "λ_L1", "weight of ‖ψ‖₁; below 0: 1e-4 with labels at the clients, 1e-5 with labels at the server")
    cut: float = param(-1.0, "", "changes up to this are not sent up; below 0: 5e-5 and 1e-5")
    psi: float = param(0.2, "", "ψ begins as this share of σ", least=0, most=1)
    lr: float = param(1e-3, "η", "learning rate of plain SGD", above=0)
    patience: int = param(-1, "", "rounds without a lower labelled loss until η is divided by 3; 0: never; below 0: 5 and 20")
    epochs: int = param(1, "E", "passes over the rows per round", least=1)
    batch: int = param(0, "B", "labelled rows in a batch, or unlabelled where there are none; 0: 10 and 100", least=0)
    preset: str = param("paper", "", "paper, or code: what the authors' released code does", choices=("paper", "code"))

    def check(self, server: Server) -> None:
        others, recent = len(server.clients) - 1, server.per_round * self.interval
        if self.helpers > min(others, recent):
            why = f"a client has {others} others, and {recent} clients train in interval={self.interval} rounds"
            raise Mistake(f"fedmatch: helpers={self.helpers}, but {why}: use fewer, or a longer interval.")

    def individual(self) -> str:
        return "each client's weights go to those whom it helps"

    def setting(self, at_server: bool) -> dict:
        """The fields that the paper sets by where the labels are."""
        usual = AT_SERVER if at_server else AT_CLIENTS
        own = {name: getattr(self, name) for name in ("l1", "cut", "patience") if getattr(self, name) >= 0}
        return usual | own | (dict(batch=self.batch) if self.batch else {})

    def spent(self, at_server: int) -> dict[str, Any]:
        return super().spent(at_server) | dict(batch=self.setting(at_server > 0)["batch"])

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        """With labels a step of σ and one of ψ for every batch."""
        of_batch = 2 if labelled else 1
        return of_batch * steps_of(labelled or unlabelled, self.setting(at_server > 0)["batch"], self.epochs)

    # ------------------------------------------------------------ client

    @step(
        reveals=dict(sigma=CHANGED, psi=CHANGED, buffers=BUFFERS, vector=VECTOR, n=bases.HELD),
        like=dict(buffers="buffers", n=COUNT),
    )
    def train(self, client: Client, sigma: dict, psi: dict, helpers: dict, buffers: dict, at_server: bool, noise_seed: int,
              round: int) -> dict:  # fmt: skip
        told = self.setting(at_server)
        copy = client.memory.get("copy")
        if copy is None and not vectors.is_whole(sigma):
            return dict(n=0)  # its copy is lost: the server will send all of it next time
        before = {part: vectors.unpack(change, copy and copy[part]) for part, change in (("sigma", sigma), ("psi", psi))}
        client.memory["copy"] = before
        helpers = {h: vectors.unpack(change, before["psi"]) for h, change in helpers.items()}
        if self.preset != "code":  # there, helpers are for one round
            if helpers:
                client.memory["helpers"] = helpers
            helpers = client.memory.get("helpers", {})
        data, n = client.data, len(client.data.labelled) + len(client.data.unlabelled)
        if not n:
            return dict(n=0)
        local = Decomposed(client.model(), before["sigma"], before["psi"], buffers)
        others = [Decomposed(client.model(), before["sigma"], h, buffers).model.eval() for h in helpers.values()]
        self.learn(client, local, others, told, round)
        after = dict(sigma=local.sigma, psi=torch.where(local.psi.abs() <= told["zero"], 0.0, local.psi))
        moved = {part: after[part] - before[part] for part in (("psi", "sigma") if len(data.labelled) else ("psi",))}
        reply = {part: vectors.differences(change, told["cut"]) for part, change in moved.items()}
        return dict(reply, vector=self.embed(client, local, noise_seed), buffers=local.buffers(), n=n)

    def learn(self, client: Client, local: Decomposed, helpers: list[Network], told: dict, round: int) -> None:
        """LocalUpdate: in every step first σ, then ψ."""
        data, draw = client.data, client.rng("train", round)
        rate = client.memory.get("rate", dict(lr=self.lr, lowest=math.inf, left=told["patience"]))
        L, U = len(data.labelled), len(data.unlabelled)
        steps = -(-L // told["batch"]) if L else -(-U // told["batch"])
        views, labels, used = Views(data.unlabelled), torch.full((U,), -1), torch.zeros(U, dtype=torch.bool)
        turns, losses = Turns(local, rate["lr"], told["l1"], self.l2), list[float]()

        def batches() -> Iterator[tuple[str, Tensor]]:
            for _ in range(self.epochs):
                each_l, each_u = (torch.randperm(count, generator=draw).tensor_split(steps) for count in (L, U))
                for a, b in zip(each_l, each_u):
                    yield from [("sigma", a), ("psi", b)] if len(a) else [("psi", b)]

        def loss(batch: tuple[str, Tensor]) -> Tensor:
            turns.part, at = batch
            if turns.part == "sigma":
                return self.loss_sigma(local, data.labelled, at, losses)
            value, labels[at], used[at] = self.loss_psi(local, helpers, views, at, draw)
            return value

        train(local.model, batches(), loss, turns, draw)
        client.judge(labels, used)
        if L:
            total = sum(value / (steps * self.epochs) for value in losses)
            client.memory["rate"] = plateau(rate, total, told["patience"])

    def loss_sigma(self, local: Decomposed, rows: Rows, at: Tensor, losses: list[float]) -> Tensor:
        """L_s; the cross-entropy itself is added to the losses."""
        x, y = rows.batch(at)
        loss = cross_entropy(local.model(x), y)
        losses.append(loss.item())
        return self.supervised * loss

    def loss_psi(
        self, local: Decomposed, helpers: list[Network], views: Views, at: Tensor, draw: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """L_u without its penalties; the labels of the rows, and which were confident."""
        labels, sure = torch.full((len(at),), -1), torch.zeros(len(at), dtype=torch.bool)
        if len(at):
            logits = local.model(views.plain(at))
            p = torch.softmax(logits.detach(), 1)
            labels, sure = p.argmax(1).cpu(), (p.amax(1) >= self.threshold).cpu()
        if not sure.any():  # the penalties alone
            return sum((0 * w.sum() for w in local.model.parameters()), torch.zeros(())), labels, sure
        kept = at[sure]
        with torch.no_grad():
            answers = [torch.softmax(helper(views.plain(kept)), 1) for helper in helpers]
        y = vote(p[sure.to(p.device)], answers, self.preset)
        loss = self.agreement * cross_entropy(local.model(views.strong(kept, draw)), y)
        for answer in answers:
            loss = loss + self.consistency / len(answers) * consistency_kl(logits[sure.to(p.device)], answer)
        labels[sure] = y.cpu()
        return loss, labels, sure

    @torch.no_grad()
    def embed(self, client: Client, local: Decomposed, noise_seed: int) -> Tensor:
        """The class probabilities that the client's model gives to an image of noise, the same for everybody."""
        local.model.eval()
        rows = client.data.unlabelled
        return torch.softmax(local.model(noise(rows, rng(noise_seed, "fedmatch noise"))), 1)[0].cpu()

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        """`changed` holds for every entry the round since which it has its value; `known` the round of each client's copy."""
        local = Decomposed(server.model())
        told, stamps = self.setting(bases.has_rows(server)), torch.zeros(len(local.sigma), dtype=torch.int32)
        return dict(
            sigma=local.sigma, psi=self.psi * local.sigma, buffers=local.buffers(), changed=dict(sigma=stamps, psi=stamps),
            known={}, helped={}, pool={}, vectors={}, zero=told["zero"], round=0,
            rate=dict(lr=self.lr, lowest=math.inf, left=told["patience"]),
        )  # fmt: skip

    def round(self, server: Server, state: dict) -> dict:
        t, at_server = state["round"], bases.has_rows(server)
        if at_server:
            state = self.at_server(server, state)
        zero = torch.zeros_like(state["psi"])
        packed = partial(vectors.fits, length=len(zero))
        form: dict[str, Form] = {"psi": packed, "sigma?": packed, "vector": Array("float32", (len(server.classes),))}
        each = {id: self.told(state, id, self.setting(at_server)["cut"]) for id in server.sample(t)}
        same = dict(buffers=state["buffers"], at_server=at_server, noise_seed=server.seed, round=t)
        asked = server.ask(self.train, each=each, form=lambda id: form, **same)
        replies = {id: r for id, r in asked.items() if r["n"]}
        moved = {part: {id: vectors.unpack(r[part], zero) for id, r in replies.items() if part in r} for part in ("sigma", "psi")}
        bases.note_diversity(server, [dict(theta=psi + moved["sigma"].get(id, zero)) for id, psi in moved["psi"].items()])
        new = dict(state, round=t + 1, changed=dict(state["changed"]))
        for part, shifts in moved.items():
            if shifts:
                # Uniform, as the paper has it; in float64, so that what every client set to 0 is 0.
                new[part] = (state[part].double() + sum(s.double() for s in shifts.values()) / len(shifts)).float()
                new["changed"][part] = vectors.stamp(new[part] != state[part], t + 1, state["changed"][part])
        if replies and state["buffers"]:
            new["buffers"] = average(replies, "buffers")
        # A client that could not use what it got is sent all of it next time.
        new["known"] = {id: r for id, r in state["known"].items() if id not in asked} | {id: t for id in replies}
        new["helped"] = state["helped"] | {id: t // self.interval for id in replies if each[id]["helpers"]}
        new["vectors"] = state["vectors"] | {id: r["vector"] for id, r in replies.items()}
        pool = state["pool"] | {id: dict(psi=state["psi"] + shift, round=t) for id, shift in moved["psi"].items()}
        new["pool"] = {id: kept for id, kept in pool.items() if kept["round"] > t - self.interval}
        return new

    def told(self, state: dict, id: Id, cut: float) -> dict:
        """What a client is sent: what has changed since it was last here, and perhaps helpers, as changes of ψ."""
        known = state["known"].get(id)
        parts = {part: vectors.since(state[part], state["changed"][part], known) for part in ("sigma", "psi")}
        helpers = {h: vectors.differences(state["pool"][h]["psi"] - state["psi"], cut) for h in self.nearest(state, id)}
        return dict(parts, helpers=helpers)

    def at_server(self, server: Server, state: dict) -> dict:
        """Algorithm 2: σ on the server's labels, before the clients."""
        t, told, rows, draw = state["round"], self.setting(True), bases.own_rows(server), server.rng("train", state["round"])
        local = Decomposed(server.model(), state["sigma"], state["psi"], state["buffers"])
        turns, losses = Turns(local, state["rate"]["lr"], told["l1"], self.l2), list[float]()
        batches = passes(len(rows), told["batch"], self.epochs, draw)
        train(local.model, batches, lambda at: self.loss_sigma(local, rows, at, losses), turns, draw)
        changed = dict(state["changed"], sigma=vectors.stamp(local.sigma != state["sigma"], t, state["changed"]["sigma"]))
        rate = plateau(state["rate"], sum(losses) / len(losses), told["patience"])
        return dict(state, sigma=local.sigma, buffers=local.buffers(), changed=changed, rate=rate)

    def nearest(self, state: dict, id: Id) -> list[Id]:
        """The clients whose models answer the noise most like this one's, if it is to get helpers now."""
        if self.preset == "code":
            due = (state["round"] + 1) % self.interval == 0
        else:
            due = state["helped"].get(id) != state["round"] // self.interval
        if not due or id not in state["vectors"]:
            return []
        own = state["vectors"][id]
        others = [h for h in sorted(state["pool"]) if h != id]
        return sorted(others, key=lambda h: torch.dist(state["vectors"][h], own).item())[: self.helpers]

    # ------------------------------------------------------------ prediction

    def shared(self, state: dict) -> dict:
        psi = torch.where(state["psi"].abs() > state["zero"], state["psi"], 0.0)  # as the authors evaluate
        return dict(sigma=state["sigma"], psi=psi, buffers=state["buffers"])

    def predictor(self, model: Network, shared: dict) -> Predict:
        buffers = shared.get("buffers", {})  # a saved model has none if they are empty
        model = Decomposed(model, shared["sigma"], shared["psi"], buffers).model.eval()
        return lambda x: torch.softmax(model(x), 1)


@dataclass
class Turns:
    """Plain SGD of σ and of ψ in turn; ψ also gets the gradients of its penalties."""

    local: Decomposed
    lr: float
    l1: float
    l2: float
    part: str = "sigma"

    def zero_grad(self) -> None:
        self.local.model.zero_grad()

    def step(self) -> None:
        local, g = self.local, self.local.gradient()
        if self.part == "psi":
            g = g + self.l1 * local.psi.sign() + 2 * self.l2 * (local.psi - local.sigma)
        setattr(local, self.part, getattr(local, self.part) - self.lr * g)
        local.load()


def noise(rows: Rows, draw: torch.Generator) -> Tensor:
    """One row of noise, network-ready: pixels of a normal distribution with mean and deviation 125, cut off at 0 and 255."""
    shape = rows.x.shape[1:]
    if rows.x.dtype != torch.uint8:
        return torch.randn(1, *shape, generator=draw).to(rows.device)
    low, high = (torch.special.ndtr(torch.tensor((edge - 125) / 125, dtype=torch.float64)) for edge in (0, 255))
    u = low + (high - low) * torch.rand(1, *shape, generator=draw, dtype=torch.float64)
    x = 125 + 125 * torch.special.ndtri(u)
    if not rows.scale:
        return x.float().to(rows.device)
    return rows.scale((x / (255 * rows.scale.factor)).to(rows.device))
