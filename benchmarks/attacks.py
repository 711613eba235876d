"""What attackers get out of each job with what they lawfully hold: the figures of the threat model.

    python benchmarks/attacks.py [--quick] [--pages] [--part chorus]

Label job and FedAvg+XCLP: three parties with 60 digits each, 20 of them labelled, and four clients with 20 labels each. Training:
eight clients with 12 labels each of the digits, classes skewed (Dirichlet 0.3), and 40 more that the attacker knows; 3 rounds.
Means over eight splits (XCLP's label job: 24, since its attacks vary), with half of Student's 95 % interval. Labels: the share
that is right. Rows: the area under the ROC curve. Of several ways to attack, the figure is that of the best over all splits.
Masks come from the operating system, so what is got from masked messages does not repeat in the last digits.
Writes attacks.json beside itself, and from it the tables of docs/threat-model.md; --pages writes the tables alone, from the JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attacking
import attacking_chorus as on_chorus
import attacking_labels as on_labels
from attacking import Found, Training, over_splits
from machine import ROOT, about, fill, markdown, write

from grapevine import data, methods
from grapevine.core import Server
from grapevine.learn.averages import Means, individual

SPLITS, LABEL_SPLITS, VICTIMS, SHADOWS, ROUNDS = 8, 24, 8, 40, 3
SMALL: dict[str, dict[str, Any]] = {
    "xclp": dict(bits=256, spread=on_labels.spread("paper")),
    "fixmatch": dict(epochs=2),
    "semifl": dict(threshold=0.5),
}  # few rounds: else hardly a client trains
WITH_LABELS = ("fedavg", "fedprox", "scaffold", "xclp", "perclient-lp", "network", "fedsem", "fixmatch", "mixmatch", "fedsiam",
               "sage", "fedlabel")  # fmt: skip
OF_SERVER = ("mp-ssfl", "semifl", "fedanchor", "fedcon")


def skewed(seed: int) -> Any:
    n = VICTIMS + SHADOWS
    return data.load("digits").split(clients=n, labels=f"clients:{12 * n}", partition="dirichlet:0.3", seed=seed)


def made(name: str) -> Any:
    return methods.find(name)(**SMALL.get(name, {}))


Ways = dict[str, Found]


def summed_up(found: list[tuple[str, Ways]]) -> dict[str, Found]:
    """By question: what the way to attack that is best over all splits found there."""
    ways: dict[str, dict[str, list[Found]]] = defaultdict(lambda: defaultdict(list))
    for question, each in found:
        for way, one in each.items():
            ways[question][way].append(one)
    best = {question: max(map(over_splits, each.values()), key=lambda one: one["right"]) for question, each in ways.items()}
    return {question: {key: round(value, 3) for key, value in one.items()} for question, one in best.items()}


# ---------------------------------------------------------------- labels that spread


def label_job(seeds: int) -> dict[str, Found]:
    found: list[tuple[str, Ways]] = []
    digits = data.load("digits")
    for seed in range(seeds):
        who = on_labels.parties(digits, 3 + seed)
        paper, private = (on_labels.Job(who, on_labels.xclp(way)) for way in ("paper", "private"))
        split = digits.split(clients=4, labels="clients:80", seed=seed)
        found += [
            ("label, party", dict(scores=on_labels.party_without(private))),
            ("label, server", dict(groups=on_labels.server_alone(private, paper.columns))),
            ("label, both", dict(equations=on_labels.server_and_party(private, paper.columns))),
            ("label paper, party", dict(equations=on_labels.party_with_columns(paper))),
            ("xclp, party", dict(scores=on_labels.training_party(split, "private"))),
            ("xclp paper, party", dict(equations=on_labels.training_party(split, "paper"))),
        ]
    return summed_up(found)


def chorus_job(seeds: int) -> dict[str, Found]:
    found: list[tuple[str, Ways]] = []
    for seed in range(seeds):
        job = on_chorus.Job(on_chorus.parties(data.load("digits"), 3 + seed))
        found += [
            ("party", dict(scores=on_chorus.party_by_scores(job), counts=on_chorus.party_by_counts(job))),
            ("server", dict(counts=on_chorus.server_alone(job))),
            ("both", dict(equations=on_chorus.server_and_party(job))),
        ]
    return summed_up(found)


# ---------------------------------------------------------------- training


def by_method(names: tuple[str, ...], seeds: int) -> dict[str, dict[str, Found]]:
    """Of each method: the classes of a client's labels, and whether a row is a client's, from plain and from masked answers."""
    out: dict[str, dict[str, Found]] = {}
    for name in names:
        out[name] = summed_up([one for seed in range(seeds) for one in _of_method(name, seed)])
        print(f"{name}: {out[name]}", flush=True)
    return out


def _of_method(name: str, seed: int) -> Iterator[tuple[str, Ways]]:
    for way in (False, True):
        t = Training(made(name), skewed(seed), VICTIMS, "linear", ROUNDS, seed, secure=way)
        # A client of SCAFFOLD remembers earlier rounds, which shadows cannot: the first is read best.
        yield f"labels{' masked' * way}", attacking.label_inference(t) if way else attacking.labels_of_round(t, 0)
        yield f"rows{' masked' * way}", attacking.membership(t, len(t.seen) - 1, masked=way)
    yield "rows client", attacking.curious_client(t)


def by_server(names: tuple[str, ...], seeds: int) -> dict[str, dict[str, Found]]:
    """Methods whose labels are the server's: of what classes a client's rows are, and whether a row is a client's."""
    n, out = VICTIMS + SHADOWS, {}
    for name in names:
        found: list[tuple[str, Ways]] = []
        for seed in range(seeds):
            split = data.load("digits").split(clients=n, labels="server:120", partition="dirichlet:0.3", seed=seed)
            t = Training(made(name), split, VICTIMS, "mlp" if name in ("fedanchor", "fedcon") else "linear", ROUNDS, seed)
            last = len(t.seen) - 1  # at first few clients find a row that they are sure of
            found.append(("labels", attacking.labels_of_round(t, last)))
            if name != "fedcon":  # whose clients send no head
                found.append(("rows", attacking.membership(t, last)))
        out[name] = summed_up(found)
        print(f"{name}: {out[name]}", flush=True)
    return out


def sampled(seeds: int) -> dict[str, Found]:
    """Masked averages of ten clients, five a round: other five in every round, as without masks, and in groups, as we do."""
    found: list[tuple[str, Ways]] = []
    for seed in range(seeds):
        how = dict(model="linear", rounds=30, seed=seed, secure=True, per_round=5)
        found.append(("groups", dict(sums=attacking.elimination(Training(methods.FedAvg(), skewed(seed), 10, **how)))))
        with patch.object(Means, "sample", lambda means, round: Server.sample(means.server, round)):
            found.append(("other clients", dict(sums=attacking.elimination(Training(methods.FedAvg(), skewed(seed), 10, **how)))))
    return summed_up(found)


def what_is_sent(seeds: int) -> dict[str, Found]:
    """What a party gets from the server: others' prototypes, the server's anchors, its classifier."""
    found: list[tuple[str, Ways]] = []
    for seed in range(seeds):
        for least in (1, 2):
            each = attacking.prototypes(methods.ProtoFSSL(helpers=3, least=least), skewed(seed), VICTIMS, seed)
            found += [(f"prototypes {least}, {what}", dict(means=one)) for what, one in each.items()]
        split = data.load("digits").split(clients=6, labels="server:120", seed=seed)
        for compact in (False, True):
            one = attacking.anchors(methods.FedAnchor(compact=compact), split, seed)
            found.append((f"anchors{' compact' * compact}", dict(cosine=one)))
        found.append(("classifier", dict(loss=attacking.classifier(methods.MPSSFL(), split, seed))))
    return summed_up(found)


# ---------------------------------------------------------------- the page

L, C, T = "tests/attacks/test_labels.py", "tests/attacks/test_chorus.py", "tests/attacks/test_training.py"
TABLE: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (  # and where the figure is, by which test
    ("label", "a party", "others' labels: nothing beyond guessing", ("chorus", "party"), C),
    ("label", "the server", "how alike any two rows are; of what class they are: nothing", ("chorus", "server"), C),
    ("label", "the server and a party together", "**all labels**", ("chorus", "both"), C),
    ("label `--method xclp`", "a party", "others' labels: nothing beyond guessing", ("spread", "label, party"), L),
    ("label `--method xclp`", "the server, told label counts", "how alike any two rows are; of what class they are: nothing",
     ("spread", "label, server"), L),
    ("label `--method xclp`", "the server and a party together", "**all labels**", ("spread", "label, both"), L),
    ("label `--method xclp --spread paper`", "a party", "**others' labels**; for comparison only",
     ("spread", "label paper, party"), L),
    ("train `xclp`", "a client", "others' labels: nothing beyond guessing", ("spread", "xclp, party"), L),
    ("train `xclp` with `spread=paper`", "a client", "**others' labels**", ("spread", "xclp paper, party"), L),
    ("train `fedavg`", "the server", "**which classes each client has**", ("methods", "fedavg", "labels"), T),
    ("train `fedavg`", "the server", "**whether a row is a client's**", ("methods", "fedavg", "rows"), T),
    ("train `fedavg --secure-average`", "the server", "which classes each client has: nothing beyond the mean",
     ("methods", "fedavg", "labels masked"), T),
    ("train `fedavg --secure-average`", "the server", "whether a row is some client's: a little, from the mean",
     ("methods", "fedavg", "rows masked"), T),
    ("train `fedavg --secure-average --per-round 5` of 10", "the server", "which classes a group of clients has",
     ("sampled", "groups"), T),
    ("train `fedavg`", "another client", "whether a row is some client's: a little, from the model it is sent",
     ("methods", "fedavg", "rows client"), T),
    ("train `protofssl`", "another client", "**which classes a client has labels of**", ("sent", "prototypes 1, classes"), T),
    ("train `protofssl`", "the server", "**the row, of a class with one label**", ("sent", "prototypes 1, rows"), T),
    ("train `fedanchor`", "a client", "**whether a row is the server's**", ("sent", "anchors"), T),
    ("train `fedanchor` with `compact=true`", "a client", "whether a row is the server's: a little",
     ("sent", "anchors compact"), T),
    ("clean, train `mp-ssfl`", "a party", "whether a row is the server's: a little, from its classifier",
     ("sent", "classifier"), T),
)  # fmt: skip


def found(result: dict[str, Any], where: tuple[str, ...]) -> Found:
    for name in where:
        result = result[name]
    return result


def document(result: dict[str, Any], root: Path = ROOT) -> None:
    page, rows = root / "docs" / "threat-model.md", []
    for job, attacker, learned, where, test in TABLE:
        one = found(result, where)
        rows.append((job, attacker, learned, right(one), percent(one["prior"]), f"`{test}`"))
    fill(page, "attacks.py, jobs", markdown(("job", "attacker", "learns", "right", "by chance", "test"), rows))
    kinds, each_method = ("labels", "labels masked", "rows", "rows masked"), []
    for name, each in (result["methods"] | result["server"]).items():
        shown = [right(each[kind]) if kind in each else "–" for kind in kinds]
        each_method.append((f"`{name}`", shown[0], percent(each["labels"]["prior"]), *shown[1:]))
    head = ("method", "labels of a client", "by chance", "masked", "rows of a client", "masked")
    fill(page, "attacks.py, methods", markdown(head, each_method))
    fill(page, "attacks.py, averages", markdown(("method", "`--secure-average`"), averages()))


def averages() -> list[tuple[str, str]]:
    """Which methods can have masked averages, and why others cannot."""
    reasons = {name: individual(methods.find(name)()) for name in methods.TABLE}
    can = ", ".join(f"`{name}`" for name, why in reasons.items() if not why)
    return [(can, "yes"), *((f"`{name}`", f"no: {why}") for name, why in reasons.items() if why)]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def right(one: Found) -> str:
    """With half of its interval, of at least a point."""
    return f"{100 * one['right']:.0f} ± {max(100 * one['half'], 1):.0f} %" if one["half"] else percent(one["right"])


PARTS: dict[str, Callable[[bool], Any]] = {  # by whether it is quick
    "spread": lambda quick: label_job(1 if quick else LABEL_SPLITS),
    "chorus": lambda quick: chorus_job(1 if quick else SPLITS),
    "sent": lambda quick: what_is_sent(1 if quick else SPLITS),
    "sampled": lambda quick: sampled(1 if quick else SPLITS),
    "methods": lambda quick: by_method(("fedavg",) if quick else WITH_LABELS, 1 if quick else SPLITS),
    "server": lambda quick: by_server(OF_SERVER[:1] if quick else OF_SERVER, 1 if quick else SPLITS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one split, fewer methods; nothing is written")
    parser.add_argument("--part", choices=PARTS, help="only this; the others' figures are kept")
    parser.add_argument("--pages", action="store_true", help="only the tables of the page, from the JSON that is there")
    args = parser.parse_args()
    logging.getLogger("grapevine").setLevel(logging.ERROR)  # that clients have one label of a class is meant
    if args.pages:
        document(json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")))
        return
    file = Path(__file__).with_suffix(".json")
    before = json.loads(file.read_text(encoding="utf-8")) if args.part else {}
    result: dict[str, Any] = {**before, "machine": about()}
    for part in [args.part] if args.part else PARTS:
        result[part] = PARTS[part](args.quick)
        print(part, result[part], flush=True)
    if not args.quick:
        write(__file__, result)
        document(result)


if __name__ == "__main__":
    main()
