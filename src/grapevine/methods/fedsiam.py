"""FedSiam. Long, Che, Wang, Ye, Luo, Wu, Xiao, Ma: "FedSiam: Towards Adaptive Federated Semi-Supervised Learning",
arXiv:2012.03292, 2020: a mean teacher (Tarvainen & Valpola 2017) at every client, and its layer-wise upload (FedSiam-D).

A client trains the student on cross-entropy of its labelled rows plus a rising weight times KL(teacher ‖ student) between two
weak views of all its rows; the teacher is the student's moving average. Student and teacher are both averaged over the clients.

`upload=layers` is FedSiam-D: a client measures how far each layer of the student is from the teacher's,
d_l = ‖θ_l − θ'_l‖ / ‖θ_l‖, and sends of every layer one version: the student's where d_l reaches the server's threshold, else
the teacher's. The threshold is the quantile of the divergences reported so far that lets the share `students` of the layers pass.
In the first `settle` rounds the teacher follows the student exactly. Both networks then start from the average of what was sent.

Departures: batches are two streams of fixed sizes (the public code mixes the rows at random and repeats labelled ones).
Cross-entropy is a mean over the labelled rows of a batch. `preset=code`: over all its rows; the weight rises over 10 local
epochs, not 10 participations; averages are uniform; with `upload=layers` the teacher is sent as a whole besides. With labels at
the server it trains on them in the same way after every average.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.core.reply import COUNT, Array
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import Weights, average, bases, descent, train
from grapevine.learn.losses import consistency_kl, cross_entropy
from grapevine.learn.schedules import ema_, sigmoid_rampup
from grapevine.learn.streams import NONE, epoch_steps, streams

REMEMBERED = 1000  # divergences of the past that the threshold is a quantile of: the code's hundred clients of about ten layers


@dataclass(frozen=True)
class FedSiam(Method):
    """Student and teacher at every client."""

    name = "fedsiam"
    title = "FedSiam: mean teachers at the clients, layers sent by divergence (Long et al. 2020)"
    takes = frozenset({"clients", "server", "both"})

    upload: str = param("both", "", "both student and teacher, or one of them for each layer", choices=("both", "layers"))
    ema: float = param(0.999, "α", "largest decay of the teacher; 1 − 1/(e + 1) while local epochs e are few", least=0, most=1)
    ramp: int = param(10, "", "participations over which the weight of the consistency loss rises to 1", least=0)
    students: float = param(0.5, "", "with upload=layers: share of the layers that come from students", least=0, most=1)
    settle: int = param(10, "φ", "with upload=layers: first rounds, in which the teacher is the student", least=0)
    predict_with: str = param("student", "", "student or teacher", choices=("student", "teacher"))
    lr: float = param(0.01, "η", "learning rate", above=0)
    momentum: float = param(0.9, "", "momentum, forgotten between rounds", least=0, most=1)
    weight_decay: float = param(1e-4, "", "L2 penalty", least=0)
    epochs: int = param(5, "E", "passes over the unlabelled rows per round", least=1)
    batch: int = param(10, "B", "labelled rows in a batch", least=1)
    ratio: int = param(3, "", "unlabelled rows in a batch for each labelled one", least=1)
    preset: str = param("paper", "", "paper, or code: what the authors' released code does", choices=("paper", "code"))

    def reply_form(self) -> dict:
        """With upload=layers one version of each layer is sent, and how far apart the two are."""
        both = self.upload == "both" or self.preset == "code"
        apart = dict(apart=Array("float64", (None,))) if self.upload == "layers" else {}
        return dict(student="student", **(dict(teacher="teacher") if both else {}), **apart, n=COUNT)

    def averages(self) -> dict[str, str]:
        by = "one" if self.preset == "code" else "n"
        return dict(student=by, teacher=by) if self.upload == "both" else {}

    def individual(self) -> str:
        return "" if self.upload == "both" else "upload=layers needs how far apart each client's two models are"

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return self.epochs * epoch_steps(labelled, unlabelled, self.batch, self.ratio)

    # ------------------------------------------------------------ client

    @step(
        reveals=dict(student=bases.MODEL, teacher=bases.MODEL, apart="how far apart the two are in each layer", n=bases.HELD),
        like=lambda method: method.reply_form(), averaged=lambda method: method.averages(),
    )  # fmt: skip
    def train(self, client: Client, student: dict, teacher: dict, follow: bool, threshold: float, round: int) -> dict:
        data, times = client.data, client.memory.get("times", 0) + 1
        client.memory["times"] = times
        model, mean = client.model(student), client.model(teacher or student)
        labels = self.siamese(model, mean, data.labelled, data.unlabelled, times, follow, client.rng("train", round))
        client.judge(labels)
        n = len(data.labelled) + len(data.unlabelled)
        if not n:
            return dict(n=0)
        if self.upload == "both":
            return dict(student=model.state(), teacher=mean.state(), n=n)
        own, others = model.state(), mean.state()
        apart = divergences(own, others)
        sent = {key: own[key] if apart[layer(key)] >= threshold else others[key] for key in own}
        reply = dict(student=sent, apart=torch.tensor(list(apart.values()), dtype=torch.float64), n=n)
        return dict(reply, teacher=others) if self.preset == "code" else reply

    def siamese(self, model: Network, mean: Network, labelled: Rows, unlabelled: Rows, times: int, follow: bool,
                draw: torch.Generator) -> Tensor:  # fmt: skip
        """Train the student and move the teacher after it; the teacher's last labels of the unlabelled rows."""
        mean.train()
        mean.use_rng(draw)
        own, others, code = Views(labelled), Views(unlabelled), self.preset == "code"
        guessed = torch.full((len(unlabelled),), -1)

        def loss(batch: tuple[Tensor, Tensor], rise: float) -> Tensor:
            a, b = batch
            with torch.no_grad():
                target = torch.softmax(mean(torch.cat([own.weak(a, draw), others.weak(b, draw)])), 1)
            logits = model(torch.cat([own.weak(a, draw), others.weak(b, draw)]))
            guessed[b] = target[len(a) :].argmax(1).cpu()
            share = len(a) / len(logits) if code else 1.0
            y = labelled.y[a].to(logits.device)
            return share * cross_entropy(logits[: len(a)], y) + rise * consistency_kl(logits, target)

        optimiser = descent(model.parameters(), self.lr, self.momentum, weight_decay=self.weight_decay)
        steps = epoch_steps(len(labelled), len(unlabelled), self.batch, self.ratio)
        batches = streams(len(labelled), len(unlabelled), self.batch, self.ratio, draw)
        for e in range(self.epochs):
            # Local epochs of this client, this one included; the authors count from its second participation.
            done = (times - (not code)) * self.epochs + e + 1
            rise = sigmoid_rampup(done if code else times, self.ramp)
            follows = partial(ema_, mean, model, 0.0 if follow else min(1 - 1 / (done + 1), self.ema))
            train(model, islice(batches, steps), partial(loss, rise=rise), optimiser, draw, after=follows)
        return guessed

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        weights = server.model().state()
        return dict(student=weights, teacher=weights, apart=torch.empty(0, dtype=torch.float64), round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, layers = state["round"], self.upload == "layers"
        alone = layers and self.preset != "code"  # then there is no teacher's average, and both start alike
        told = dict(student=state["student"], teacher={} if alone else state["teacher"], round=t)
        follow = layers and t < self.settle
        told |= dict(follow=follow, threshold=self.threshold(state["apart"]))
        replies = bases.trained(server.ask(self.train, to=server.sample(t), **told))
        bases.note_diversity(server, bases.moves(replies, state["student"], "student"))
        by = None if self.preset == "code" else "n"
        student = average(replies, "student", by, otherwise=state["student"])
        teacher = student if alone else average(replies, "teacher", by, otherwise=state["teacher"])
        if bases.has_rows(server):
            model, mean = server.model(student), server.model(teacher)
            rows = bases.own_rows(server)
            self.siamese(model, mean, rows, rows.take(NONE), t + 1, follow, server.rng("train", t))
            student, teacher = model.state(), mean.state()
        apart = state["apart"]
        if layers and not follow:
            apart = torch.cat([apart, *(r["apart"] for r in replies.values())])[-REMEMBERED:]
        return dict(student=student, teacher=teacher, apart=apart, round=t + 1)

    def threshold(self, apart: Tensor) -> float:
        """The share `students` of past divergences are at or above it; with none yet, 0: everybody sends the student."""
        if not len(apart):
            return 0.0
        at = min(int((1 - self.students) * len(apart)), len(apart) - 1)
        return float(apart.sort().values[at]) if self.students else float("inf")

    def shared(self, state: dict) -> dict:
        return dict(weights=state[self.predict_with])


def layer(key: str) -> str:
    """The layer that an entry of a state belongs to: its name without the last word."""
    return key.rpartition(".")[0]


def divergences(student: Weights, teacher: Weights) -> dict[str, float]:
    """‖θ_l − θ'_l‖ / ‖θ_l‖ of every layer, over its weights and biases and what else it keeps in floating point."""
    apart: dict[str, float] = {}
    length: dict[str, float] = {}
    for key, value in student.items():
        if value.is_floating_point():
            name = layer(key)
            apart[name] = apart.get(name, 0.0) + (value - teacher[key]).double().square().sum().item()
            length[name] = length.get(name, 0.0) + value.double().square().sum().item()
    return {name: (apart[name] / length[name]) ** 0.5 if length[name] else 0.0 for name in apart}
