"""How good a state is, on rows that the server holds (`ServerSet`) or on rows that each client held out (`AskClients`).

An evaluator returns a line of the history for every evaluation, and the numbers of result.json at the end. States are compared by
`validation_accuracy`, where the line has it, and the best one is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from grapevine.core import scores
from grapevine.core.method import Id, Method
from grapevine.core.network import Meter, ModelSource
from grapevine.core.rows import Rows
from grapevine.core.server import Server
from grapevine.data.split import Split

Line = dict[str, Any]


class Evaluator(Protocol):
    def score(self, shared: dict, round: int) -> Line:
        """Accuracies of a state, for a line of the history."""

    def final(self, shared: dict, best: Line, last: Line) -> dict[str, Any]:
        """The numbers of result.json: of the kept state, whose line is `best`."""

    def some_rows(self) -> Rows | None:
        """Rows for a picture of the latent space, where the server has any."""


def number(value: float) -> float | None:
    """JSON has no NaN, so what could not be measured is null."""
    return None if math.isnan(value) else round(value, 6)


def totals(counts: Tensor) -> dict[str, Any]:
    """The shares that follow from a confusion matrix, with the matrix."""
    return dict(accuracy=number(scores.accuracy(counts)), balanced_accuracy=number(scores.balanced_accuracy(counts)),
                confusion=counts.tolist())  # fmt: skip


class ServerSet:
    """A simulation's test and validation rows; where models stay at the clients, each client's model on its test rows.

    Asking clients is then measuring and not part of the method: neither bytes nor operations are counted.
    """

    def __init__(self, method: Method, split: Split, server: Server, models: ModelSource, device: str, map: Callable = map):
        self.method, self.split, self.server, self.models, self.device, self.map = method, split, server, models, device, map
        self.classes = len(split.dataset.classes)

    def score(self, shared: dict, round: int) -> Line:
        if self.method.personal:
            return dict(accuracy=number(scores.accuracy(_sum(self._personal(round), self.classes))))
        predict = self.method.predictor(self.models.new(None, Meter()), shared)
        rows = dict(validation_accuracy=self.split.validation_rows(self.device), accuracy=self.split.test_rows(self.device))
        return {name: number(scores.accuracy(self._counts(predict, some))) for name, some in rows.items()}

    def final(self, shared: dict, best: Line, last: Line) -> dict[str, Any]:
        groups, rows = self.split.test_group, self.split.test_rows(self.device)
        if self.method.personal:
            own = self._personal(last["round"])
            total = _sum(own, self.classes)
            accuracy_last = number(scores.accuracy(total))
        else:
            predict = self.method.predictor(self.models.new(None, Meter()), shared)
            guess = scores.guesses(predict, rows, map=self.map)
            total = scores.confusion(guess, rows.y, self.classes)
            own = {i: total if groups is None else scores.confusion(guess[groups == i], rows.y[groups == i], self.classes)
                   for i in self.server.clients}  # fmt: skip
            accuracy_last = last["accuracy"]
        per_client = [dict(id=i, n=self._rows(i), accuracy=self._client(i, counts, groups is not None))
                      for i, counts in own.items()]  # fmt: skip
        common = dict(class_mix=self._class_mix()) if groups is None else {}
        n = len(rows) if groups is None else int(total.sum())  # common rows count once, however many models they judge
        return dict(totals(total), test_rows=n, validation_rows=self._validation_rows(), accuracy_last=accuracy_last,
                    own_test_rows=groups is not None, **common, per_client=per_client)  # fmt: skip

    def some_rows(self) -> Rows | None:
        return None if self.method.personal else self.split.test_rows(self.device)

    def _validation_rows(self) -> int:
        """On how many rows the round was chosen: on none where every client has its own model."""
        return 0 if self.method.personal else int((self.split.validation_rows().y >= 0).sum())

    def _counts(self, predict: Callable, rows: Rows) -> Tensor:
        return scores.confusion(scores.guesses(predict, rows, map=self.map), rows.y, self.classes)

    def _personal(self, round: int) -> dict[Id, Tensor]:
        transport = self.server.transport
        flops = transport.flops
        replies = transport.exchange("evaluate", {i: {} for i in self.server.clients}, round)
        transport.flops = flops
        return {i: reply["confusion"] for i, reply in replies.items()}

    def _rows(self, i: Id) -> int:
        part = self.split.parts[int(i)]
        return len(part.labelled) + len(part.unlabelled)

    def _class_mix(self) -> list[float | None]:
        """The share of each true class in the rows of all clients."""
        counts = sum((self.split.class_counts(part) for part in self.split.parts), torch.zeros(self.classes)).double()
        return [number(share) for share in (counts / counts.sum().clamp(min=1)).tolist()]

    def _client(self, i: Id, counts: Tensor, own: bool) -> float | None:
        """On the client's own test rows; or, when the test set is common, on it with the client's mix of classes."""
        if own:
            return number(scores.accuracy(counts))
        mix, recall = self.split.class_mix(int(i)), scores.recalls(counts)
        seen = (mix > 0) & recall.isfinite()
        return number(float((mix[seen] * recall[seen]).sum() / mix[seen].sum()))


class AskClients:
    """The `evaluate` step at every client, on rows that it held out: some to choose the best state by, others to report."""

    def __init__(self, method: Method, server: Server):
        self.method, self.server, self.classes = method, server, len(server.classes)

    def score(self, shared: dict, round: int) -> Line:
        told: dict[str, Any] = {} if self.method.personal else dict(shared=shared)
        replies = self.server.ask(self.method.evaluate, **told)
        counts = {i: reply["confusion"] for i, reply in replies.items() if self._is_matrix(reply.get("confusion"))}
        chosen = {i: reply["validation"] for i, reply in replies.items() if self._is_matrix(reply.get("validation"))}
        line, validation = totals(_sum(counts, self.classes)), _sum(chosen, self.classes)
        line["per_client"] = [dict(id=i, n=int(c.sum()), accuracy=number(scores.accuracy(c))) for i, c in counts.items()]
        return dict(validation_accuracy=number(scores.accuracy(validation)), validation_rows=int(validation.sum()), **line)

    def final(self, shared: dict, best: Line, last: Line) -> dict[str, Any]:
        kept = {name: best[name] for name in ("accuracy", "balanced_accuracy", "confusion", "per_client")}
        kept["validation_rows"] = best.get("validation_rows")  # an evaluation of an older version does not say it
        return dict(kept, test_rows=sum(map(sum, kept["confusion"])), accuracy_last=last["accuracy"], own_test_rows=True)

    def some_rows(self) -> Rows | None:
        return None

    def _is_matrix(self, counts: Any) -> bool:
        """Whether a party sent a confusion matrix: one that did not is left out of the accuracy."""
        good = isinstance(counts, Tensor) and counts.shape == (self.classes, self.classes) and counts.dtype == torch.int64
        return good and bool((counts >= 0).all())


def _sum(counts: dict[Id, Tensor], classes: int) -> Tensor:
    return sum(counts.values(), torch.zeros(classes, classes, dtype=torch.int64))
