"""MP-SSFL. Aladwani, Anagnostopoulos: "Semi-Supervised Federated Learning over Relevant Heterogeneous Data", 2024, Algorithm 1:
a classifier that the server trains on its own labelled rows decides, at each client, which labels to keep, which to replace, and
which rows do not belong to the task; then FedAvg trains on what is relevant.

`MPSSFL` is the whole of it, for `grapevine train`. `Clean` is the job of `grapevine clean`: the decisions alone, in one exchange,
each party's own kept in its memory.

Decisions where the paper is silent: the loss is the cross-entropy of the server's model against the client's label; a label that
the server does not know has an infinite loss; unlabelled rows are decided by confidence alone; Υ is at most ln 2, so that "loss
low and confidence high" always means that both agree, and keeping y (case 3) or writing ŷ (line 6) is the same; a label that the
classifier agrees with is kept whatever its loss (below Υ = −ln τ, case 1 would replace it by itself); averages are uniform.
Equation (4) adds the loss on the server's own rows to the clients'. Its server trains each round's weights on them as a client
does (lr, epochs, batch) and joins the average as `server_weight` clients. The equation's own weight cannot be read: with the
inner sum as a mean, the server counts as much as all clients together (`server_weight` = --per-round), with the sum as it is
printed, one n-th of a client of n rows. The default, 1, makes it one more client; 0 leaves the term out. The model of the task
starts fresh; `start=classifier` starts it from θ_S, which equation (4) also names. Nothing about single rows leaves a client.
With `counts=true` it tells how many rows it kept, corrected and excluded. A client whose rows were all excluded answers `train`
with n = 0, which tells as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT
from grapevine.core.rows import Rows, Scale
from grapevine.data.datasets import hold_out, image_scale
from grapevine.learn import average, bases, fit
from grapevine.learn.training import fit_finite, outputs, steps_of

KEPT, CORRECTED, EXCLUDED = 0, 1, 2
ACTIONS = ("kept", "corrected", "excluded")
STARTS = ("fresh", "classifier")
COUNTS = "how many rows were kept, corrected and excluded"


DECIDES: dict[str, Any] = dict(
    reveals=dict(counts=COUNTS), like=lambda method: dict(counts=dict.fromkeys(ACTIONS, COUNT)) if method.counts else {}
)
"""What both methods' `decide` reveals, and its form."""


def counted(action: Tensor) -> dict[str, int]:
    return {name: int((action == i).sum()) for i, name in enumerate(ACTIONS)}


def check_classes(server: Server) -> None:
    if len(bases.own_rows(server).y.unique()) < 2:
        raise Mistake(f"{server.method.name}: the server needs rows of at least two classes, to learn the difference.")


def decide(p: Tensor, y: Tensor, tau: float, upsilon: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four cases of Table 1: (label, action, loss, confidence) per row, from class probabilities and labels (−1: none).

    `p` is 0 for a class that the server does not know, so a label of that class has an infinite loss.
    """
    confidence, guess = p.max(1)
    known = y >= 0
    loss = torch.where(known, -p.gather(1, y.clamp(min=0)[:, None])[:, 0].log(), torch.nan)
    sure = confidence >= tau
    agree = known & ((loss <= upsilon) | (guess == y))
    action = torch.where(~sure, EXCLUDED, torch.where(agree, KEPT, CORRECTED))  # cases 2 and 4; 3; 1 and unlabelled
    label = torch.where(action == CORRECTED, guess, y)
    return label, action, loss, confidence


def probabilities(model: Network, rows: Rows, known: Tensor) -> Tensor:
    """Class probabilities of rows, among the classes that the server knows."""
    logits = outputs(model.eval(), rows, len(known))
    return torch.softmax(logits.masked_fill(~known, -math.inf), 1)


def train_classifier(server: Server, rows: Rows, lr: float, epochs: int, batch: int) -> tuple[dict, Tensor]:
    """Stage 1: the classifier's weights from the server's rows, and which classes it has seen."""
    model = server.model()
    fit_finite(model, rows, lr, epochs, server.rng("classifier"), batch)
    known = torch.bincount(rows.y, minlength=len(server.classes)) > 0
    return model.state(), known


@dataclass(frozen=True)
class MPSSFL(Method):
    """FedAvg on rows whose labels the server's classifier has kept or corrected; rows off the task are excluded."""

    name = "mp-ssfl"
    title = "MP-SSFL: labels kept, corrected or excluded by the server's classifier (Aladwani et al. 2024)"
    extra = "a classifier at the server first, labels that it gives or changes"
    takes = frozenset({"server", "both"})

    tau: float = param(0.95, "τ", "confidence from which a prediction counts", least=0.5, most=1)
    upsilon: float = param(0.5, "Υ", "loss up to which a client's label is acceptable; at most ln 2", above=0, most=math.log(2))
    server_epochs: int = param(30, "", "passes over the server's rows for the classifier", least=1)
    server_batch: int = param(10, "", "batch size at the server", least=1)
    server_lr: float = param(0.05, "", "learning rate at the server", above=0)
    lr: float = param(0.1, "η", "learning rate of the clients", above=0)
    epochs: int = param(5, "E", "passes per round over the relevant rows", least=1)
    batch: int = param(50, "B", "batch size of the clients", least=1)
    server_weight: float = param(1.0, "", "clients that the server's own rows count as in the average; 0: none", least=0)
    start: str = param("fresh", "θ", "first weights of the task's model: fresh, or the classifier's", choices=STARTS)
    mend: bool = param(True, "", "false: rows with a wrong label are excluded rather than corrected")
    counts: bool = param(False, "", "clients tell how many rows they kept, corrected and excluded")

    def check(self, server: Server) -> None:
        check_classes(server)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(labelled + unlabelled, self.batch, self.epochs)

    # ------------------------------------------------------------ client

    @step(**DECIDES)
    def decide(self, client: Client, classifier: dict, known: Tensor) -> dict:
        """Steps 2 and 3 (lines 1–15): every row's label and whether it is relevant, kept here."""
        data, model = client.data, client.model(classifier)
        p = torch.cat([probabilities(model, rows, known) for rows in (data.labelled, data.unlabelled)])
        y = torch.cat([data.labelled.y, data.unlabelled.y])
        label, action, _, _ = decide(p, y, self.tau, self.upsilon)
        if not self.mend:
            action = torch.where((action == CORRECTED) & (y >= 0), EXCLUDED, action)
        client.memory["decided"] = dict(label=label, action=action)
        client.judge(torch.where(action == EXCLUDED, -1, label)[len(data.labelled) :])
        return dict(counts=counted(action)) if self.counts else {}

    @step(
        reveals=dict(weights=bases.MODEL, n="1, or 0 if every row of this party was excluded"),
        like=dict(weights="weights", n=range(2)), averaged=dict(weights="n"),
    )  # fmt: skip
    def train(self, client: Client, weights: dict, round: int) -> dict:
        """FedAvg's ClientUpdate on the relevant rows (equation 10)."""
        rows = self.relevant(client)
        if not len(rows):
            return dict(n=0)
        model = client.model(weights)
        fit(model, rows, self.lr, self.epochs, client.rng("train", round), self.batch)
        return dict(weights=model.state(), n=1)

    def relevant(self, client: Client) -> Rows:
        data, found = client.data, client.memory["decided"]
        all_rows = replace(data.labelled, index=torch.cat([data.labelled.index, data.unlabelled.index]), y=found["label"])
        return all_rows.take(torch.nonzero(found["action"] != EXCLUDED).flatten())

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        """Stage 1 at the server, and one pass of decisions at every client."""
        rows = bases.own_rows(server)
        classifier, known = train_classifier(server, rows, self.server_lr, self.server_epochs, self.server_batch)
        replies = server.ask(self.decide, classifier=classifier, known=known)
        if self.counts:
            server.note(**{name.replace(" ", "_"): sum(r["counts"][name] for r in replies.values()) for name in ACTIONS})
        decided = bases.answered(server, server.clients, replies)
        weights = classifier if self.start == "classifier" else server.model().state()
        return dict(weights=weights, classifier=classifier, known=known, decided=decided, nothing={}, round=0)

    def round(self, server: Server, state: dict) -> dict:
        chosen, decided = server.sample(state["round"]), state["decided"]
        late = [id for id in chosen if id not in decided]  # whoever missed the decision is asked when it is chosen
        if late:
            found = server.ask(self.decide, to=late, classifier=state["classifier"], known=state["known"])
            decided = decided | bases.answered(server, late, found)
        chosen = [id for id in chosen if decided.get(id)]
        replies = server.ask(self.train, to=chosen, weights=state["weights"], round=state["round"])
        nothing = state["nothing"] | {id: True for id, reply in replies.items() if not reply["n"]}
        if not server.masked:
            server.note(nothing_relevant=len(nothing), nothing_relevant_at=sorted(nothing))
        weights = self._with_server(server, average(replies, otherwise=state["weights"]), replies, state)
        return dict(state, weights=weights, decided=decided, nothing=nothing, round=state["round"] + 1)

    def _with_server(self, server: Server, clients: dict, replies: dict, state: dict) -> dict:
        """Equation (4)'s first term: the mean of the clients that trained, and of the server as `server_weight` more of them."""
        if not self.server_weight:
            return clients
        model, draw = server.model(state["weights"]), server.rng("task", state["round"])
        fit(model, bases.own_rows(server), self.lr, self.epochs, draw, self.batch)
        n = sum(reply["n"] for reply in replies.values())
        return average({0: dict(weights=clients, n=n), 1: dict(weights=model.state(), n=self.server_weight)})


# ---------------------------------------------------------------- the clean job


def moments(x: Tensor, scale: str) -> tuple[Tensor, Tensor]:
    """Mean and deviation of features (of the channels of images), which travel with the classifier; for `scale` none 0 and 1.

    Missing values do not count. A feature that never changes at the server has no weight in its classifier, and a deviation of ∞:
    it is 0 after scaling, whatever a party has there.
    """
    if scale == "none":
        shape = (x.shape[1], 1, 1) if x.dim() == 4 else (x.shape[1],)
        kind = torch.float32 if x.dim() == 4 else torch.float64
        return torch.zeros(shape, dtype=kind), torch.ones(shape, dtype=kind)
    if x.dim() == 4:
        found = image_scale(x)
        return found.mean, found.std
    wide = x.double()
    mean = wide.nanmean(0).nan_to_num()
    std = (wide - mean).square().nanmean(0).nan_to_num().sqrt()
    return mean, torch.where(std <= 1e-12 * wide.nan_to_num().abs().amax(0), torch.inf, std)


def standardised(rows: Rows, fill: Tensor, mean: Tensor, std: Tensor) -> Rows:
    """Rows by the server's moments; `fill`, if given, for missing values. In float64: as float32, dates would look alike."""
    if rows.x.dim() == 4:
        return replace(rows, scale=Scale(1 / 255, mean, std))
    x = torch.where(rows.x.isnan(), fill, rows.x.double()) if len(fill) else rows.x.double()
    return replace(rows, x=((x - mean) / std).nan_to_num().float())


@dataclass(frozen=True)
class Clean(Method):
    """One exchange: the server's classifier goes to the parties, and each decides on its own rows."""

    name = "clean"
    title = "MP-SSFL's decisions alone: labels kept or corrected, rows excluded (Aladwani et al. 2024)"
    takes = frozenset({"server", "both"})

    tau: float = param(0.95, "τ", "confidence from which a prediction counts", least=0.5, most=1)
    upsilon: float = param(0.5, "Υ", "loss up to which a label is acceptable; at most ln 2", above=0, most=math.log(2))
    epochs: int = param(30, "", "passes over the server's rows for the classifier", least=1)
    batch: int = param(10, "", "batch size at the server", least=1)
    lr: float = param(0.05, "", "learning rate at the server", above=0)
    scale: str = param("standard", "", "by the server's means and deviations, or none: as they are", choices=("standard", "none"))
    impute: bool = param(False, "", "missing features become the server's mean")
    counts: bool = param(False, "", "parties tell how many rows they kept, corrected and excluded")

    def check(self, server: Server) -> None:
        check_classes(server)

    # ------------------------------------------------------------ party

    @step(**DECIDES)
    def decide(self, client: Client, classifier: dict, classes: dict, fill: Tensor, mean: Tensor, std: Tensor) -> dict:
        """Lines 1–15. What is found stays in memory, labelled rows first. A label unknown to the server is class C here."""
        data, number = client.data, {name: int(i) for i, name in classes.items()}
        rows = replace(data.labelled, index=torch.cat([data.labelled.index, data.unlabelled.index]))
        known = torch.ones(len(number), dtype=torch.bool)
        p = probabilities(client.model(classifier), standardised(rows, fill, mean, std), known)
        p = p.clamp(min=torch.finfo(p.dtype).tiny)  # a known class has a finite loss, however unlikely it is
        own = torch.tensor([number.get(name, len(number)) for name in data.classes], dtype=torch.int64)
        y = torch.cat([own[data.labelled.y], data.unlabelled.y])
        _, action, loss, confidence = decide(F.pad(p, (0, 1)), y, self.tau, self.upsilon)
        client.memory["decided"] = dict(action=action, loss=loss, confidence=confidence, proba=p)
        client.memory["moments"] = dict(mean=mean, std=std)  # for telling a party which of its rows lie far from the server's
        return dict(counts=counted(action)) if self.counts else {}

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        """Stage 1: the classifier, and how far to trust it."""
        held = bases.own_rows(server)
        own = held.x[held.index]
        fill, (mean, std) = self.fill(own), moments(own, self.scale)
        rows = standardised(held, fill, mean, std)
        classifier, _ = train_classifier(server, rows, self.lr, self.epochs, self.batch)
        classes = dict(enumerate(server.classes))
        expected = self.expected(server, rows)
        return dict(classifier=classifier, classes=classes, fill=fill, mean=mean, std=std, expected=expected)

    def fill(self, x: Tensor) -> Tensor:
        """What replaces a missing value: the mean of the server's values, 0 if it has none; empty without `impute`."""
        return x.double().nanmean(0).nan_to_num() if self.impute else torch.empty(0, dtype=torch.float64)

    def expected(self, server: Server, rows: Rows) -> dict:
        """A second classifier on four fifths of the rows, tried on the rest: rows, right, sure (τ), right of these."""
        held = torch.from_numpy(hold_out(rows.y.numpy()))
        test = rows.take(torch.nonzero(held).flatten())
        classifier, known = train_classifier(server, rows.take(torch.nonzero(~held).flatten()), self.lr, self.epochs, self.batch)
        confidence, guess = probabilities(server.model(classifier), test, known).max(1)
        sure, right = confidence >= self.tau, guess == test.y
        return dict(n=len(test), right=int(right.sum()), sure=int(sure.sum()), sure_right=int((sure & right).sum()))

    def round(self, server: Server, state: dict) -> dict:
        told = {name: state[name] for name in ("classifier", "classes", "fill", "mean", "std")}
        replies = server.ask(self.decide, **told)
        counts = {id: reply["counts"] for id, reply in replies.items() if self.counts}
        return dict(state, counts=counts, answered={i: id for i, id in enumerate(replies)})

    def shared(self, state: dict) -> dict:
        return dict(weights=state["classifier"])
