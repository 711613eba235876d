"""The result of one party in a label job: a label or none for each row, from what the method left in its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grapevine.core import Client
from grapevine.core.ledger import Ledger
from grapevine.data.tables import sort_names
from grapevine.jobs.label_result import PartyLabels
from grapevine.jobs.reading import Party
from grapevine.methods.chorus import Chorus
from grapevine.methods.label import Label


def without_labels(party: Party, classes: Sequence[str], disclosure: list[dict]) -> PartyLabels:
    """A party that lost its connection keeps what it had."""
    n, known = len(party.labels), np.array([label is not None for label in party.labels])
    return PartyLabels(party.name, party.ids, list(party.labels), known.astype(float), np.zeros((n, len(classes))), party.labels,
                       [None] * n, ~known, disclosure=disclosure)  # fmt: skip


def party_labels(party: Party, client: Client, method: Label | Chorus, abstain: float, target: float | None,
                 disclosure: list[dict], classes: Sequence[str] | None = None,
                 others: dict[str, list] | None = None, ledger: Ledger | None = None) -> PartyLabels:  # fmt: skip
    """A party's result in the order of its rows. A labelled row keeps its label; the others get the one that was found, or none.

    `classes` are the columns of `proba`, by default those that this party heard of; `others` are baselines, labelled rows first.
    """
    known = np.array([label is not None for label in party.labels])
    result, names = client.memory["result"], [*client.memory["classes"].values()]
    classes = sort_names(names) if classes is None else list(classes)
    back = np.argsort(order(client))
    found, confidence, proba = (result[key][back] for key in ("label", "confidence", "proba"))
    proposed = [None if c < 0 else names[c] for c in found]
    least = abstain if target is None else max(abstain, threshold(confidence[~known], target, result.get("expected")))
    abstained = ~known & ((found < 0) | (confidence < least))
    labels = [g if g is not None else None if a else p for g, a, p in zip(party.labels, abstained, proposed)]
    columns = np.zeros((len(labels), len(classes)))
    columns[:, [classes.index(name) for name in names]] = proba
    alone = result["alone"] if isinstance(method, Chorus) else method.alone(client, result["candidate"])[0]
    by: dict[str, list] = {"alone": _alone([None if c < 0 else names[c] for c in alone[back]], party)}
    by |= {name: [values[i] for i in back] for name, values in (others or {}).items()}
    by |= {"model": party.model} if party.model else {}
    return PartyLabels(
        party.name, party.ids, labels, np.where(known, 1.0, confidence), columns, party.labels, proposed, abstained,
        int(result["blank"].sum()), others=by, disclosure=disclosure, least=float(least),
        verdict=result.get("verdict") if len(names) > 1 else None, ledger=ledger, **_measured(party, labels, by),
    )  # fmt: skip


def _alone(labels: list[str | None], party: Party) -> list[str | None]:
    """What a party says without the others: where all its labels are of one class, it knows no other."""
    return labels if any(labels) or len(party.classes) != 1 else [party.classes[0]] * len(labels)


def order(client: Client) -> np.ndarray:
    """Which rows a client's results are of, one after the other: the labelled ones come first."""
    return np.concatenate([np.asarray(client.data.labelled.index), np.asarray(client.data.unlabelled.index)])


def threshold(probability: np.ndarray, target: float, tally: Mapping[str, Any] | None = None) -> float:
    """The smallest probability a label needs so that the given labels are right `target` of the time on average. It is above 1
    where no row is sure enough. `tally` are all parties' hidden labels by bin of probability: where more of them were wrong than
    their probabilities say, so many more of the given labels are expected to be wrong."""
    sure = np.sort(probability)[::-1]
    wrong = np.cumsum(1 - sure)
    if tally is not None and len(tally.get("sure", ())):
        more = _oftener_wrong(tally)
        wrong = wrong * more[np.minimum((sure * len(more)).astype(int), len(more) - 1)]
    enough = np.flatnonzero(wrong <= (1 - target) * np.arange(1, len(sure) + 1) + 1e-12)
    return float(sure[enough[-1]]) if len(enough) else np.nextafter(1.0, 2.0)


def _oftener_wrong(tally: Mapping[str, Any]) -> np.ndarray:
    """How many times as many hidden labels were wrong as their probabilities say, of those in each bin and all above it. One
    that is wrong as expected stands beside them, because a few prove little; luck is no reason to be surer."""
    rows, hits, sure = (np.asarray(tally[name], float) for name in ("rows", "hits", "sure"))
    wrong, told = (np.cumsum((rows - right)[::-1])[::-1] for right in (np.clip(hits, 0, rows), sure))
    return np.maximum((wrong + 1) / (told + 1), 1.0)


def _measured(party: Party, labels: Sequence[str | None], others: dict[str, list]) -> dict[str, Any]:
    """What the truth says of rows that had no label, got one, and whose truth is known."""
    truth = party.truth or [None] * len(labels)
    rows = [i for i, (given, new, true) in enumerate(zip(party.labels, labels, truth))
            if given is None and new is not None and true is not None]  # fmt: skip

    def hits(values: Sequence[str | None]) -> np.ndarray:
        return np.array([values[i] == truth[i] for i in rows], bool)

    def share(values: Sequence[str | None]) -> float | None:
        return float(hits(values).mean()) if rows and any(value is not None for value in values) else None

    job, own = hits(labels), {name: hits(values) for name, values in others.items()}
    differ = {name: (int((job & ~other).sum()), int((other & ~job).sum())) for name, other in own.items() if rows}

    by_class: dict[str, tuple[int, int]] = {}
    for i in rows:
        n, right = by_class.get(str(truth[i]), (0, 0))
        by_class[str(truth[i])] = n + 1, right + (labels[i] == truth[i])
    return dict(accuracy=share(labels), measured=len(rows), recalled=by_class, differ=differ,
                other_accuracy={name: share(values) for name, values in others.items()})  # fmt: skip
