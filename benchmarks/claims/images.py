"""X5, X6, P1, P6 and A1 on CIFAR-10 images from scratch, with thin networks of the papers: hours on two cores.

    python benchmarks/claims/images.py [--quick] [--only x5|x6|p1|p6|a1] [--seeds 3]

Networks have an eighth or a quarter of the papers' channels and batch normalisation; there are 20,000 training images (the
papers: 50,000) and 100 rounds (500 to 3000). Each method chooses its learning rate as for the other claims, by four trials, of a
tenth of the rounds here; those of X5 serve X6, too. images.json beside this file has every run that is finished, with its curve,
and is written after each: a run that is there is not repeated, on another machine either, and more seeds are added to it. What
stands there may be half of a comparison. docs/claims.md shows it below the claims.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import FEW, Setting, accuracies, run, spread, tuned
from machine import about, need
from settings import ANCHOR_TRIALS, LABELLED_ONLY, PROTO_TRIALS, STAGE_1, XCLP_TRIALS

FILE = Path(__file__).with_suffix(".json")
SHARE = 10  # a trial has one in so many of the rounds
_IMAGES = dict(data="cifar10", clients=100, norm="bn", rounds=100, per_round=5, evaluate_every=10)
# 50 labels a client: with 10, a hundred rounds of a network with batch normalisation end at chance for all methods.
# A round's graph holds the labels of 20 clients; with those of all 100 a round takes tens of processor seconds.
_XCLP = dict(_IMAGES, model="cnn13:0.125", labels="clients:5000", budget=dict(STAGE_1, epochs=2, batch=10))
_X5 = Setting("images-x5", _XCLP, XCLP_TRIALS, share=SHARE, further=False)
# Trials of a tenth of the rounds prefer 2.0 to 0.6, the largest of the four rates, for these two, so they have it as well.
FURTHER = ("fedavg:lr=2.0", "perclient-lp:lr=2.0")
_PROTO = dict(_IMAGES, model="resnet9:0.125", labels="clients:5000")
_ANCHOR = dict(_IMAGES, model="wrn28x2:0.25", labels="server:250", budget=dict(epochs=1, server_epochs=1, pretrain=5))
CLAIMS: dict[str, tuple[Setting, tuple[str, ...]]] = {  # the cheapest first
    "p1": (
        Setting("images-p1", _PROTO, PROTO_TRIALS, share=SHARE, further=False),
        ("protofssl", "protofssl:unlabelled=0", *LABELLED_ONLY, "fixmatch", "fedmatch"),  # the second: without pseudo-labels
    ),
    "p6": (Setting("images-p6", _PROTO, PROTO_TRIALS, share=SHARE, further=False), ("protofssl",)),
    "x5": (_X5, ("fedavg", "xclp", "network", "perclient-lp", *FURTHER)),
    "x6": (
        Setting("images-x6", dict(_XCLP, labels="clients:5000~5"), tuned_as=_X5),
        ("fedavg", "xclp", "perclient-lp", *FURTHER),
    ),
    "a1": (
        Setting("images-a1", _ANCHOR, ANCHOR_TRIALS, share=SHARE, further=False),
        ("server-only", "semifl", "fedanchor", "fixmatch"),
    ),
}
NORMS = ("none", "gn", "sbn")  # batch normalisation is P1's run
QUICK = dict(clients=20, per_round=5, rounds=1)


def settings(claim: str) -> dict[str, Setting]:
    """A claim's comparisons: one, or for P6 one for each norm."""
    setting = CLAIMS[claim][0]
    if claim != "p6":
        return {claim: setting}
    each = {norm: dict(setting.flags, norm=norm) for norm in NORMS}
    return {f"p6, norm {norm}": replace(setting, name=f"images-p6-{norm}", flags=flags) for norm, flags in each.items()}


def curve(one: dict[str, Any]) -> list[tuple[int, float]]:
    return [(line["round"], round(100 * line["accuracy"], 2)) for line in one["history"] if line.get("accuracy") is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of the first claim's first method; nothing is kept")
    parser.add_argument("--only", choices=CLAIMS, help="one of the claims [all]")
    parser.add_argument("--seeds", type=int, default=FEW, help=f"of each run [{FEW}]")
    options = parser.parse_args()
    need("cifar10")
    if options.quick:
        setting, methods = CLAIMS["p1"]
        with tempfile.TemporaryDirectory() as folder:
            small = replace(setting, flags=setting.flags | QUICK)
            print({spec: accuracies(runs) for spec, runs in run(small, methods[:1], "quick", [0], {}, Path(folder)).items()})
        return
    for claim in [options.only] if options.only else CLAIMS:
        for name, setting in settings(claim).items():
            for method in CLAIMS[claim][1]:
                one = finished().get(name, {}).get(method, {})
                one = one if one.get("setting") == setting.words() else {}
                if len(one.get("curves", ())) < options.seeds:
                    keep(name, method, measured(setting, method, options.seeds, one))


def finished() -> dict[str, Any]:
    return json.loads(FILE.read_text())["runs"] if FILE.exists() else {}


def keep(name: str, method: str, one: dict[str, Any]) -> None:
    """Beside what is there, of which another process may have written some since."""
    found = finished()
    found.setdefault(name, {})[method] = one
    FILE.write_text(json.dumps(dict(machine=about(), runs=found), indent=1) + "\n")


def measured(setting: Setting, method: str, seeds: int, before: dict[str, Any]) -> dict[str, Any]:
    """A method's runs with the fields that its trials chose; those of `before`, and the seeds that it lacks."""
    spec = before["fields"] if before else chosen(setting, method)
    curves, done = before.get("curves", []), before["accuracy"]["seeds"] if before else []
    runs = run(setting, [spec], setting.name, list(range(len(curves), seeds)), {})[spec]
    curves, done = curves + list(map(curve, runs)), done + accuracies(runs)
    return dict(setting=setting.words(), fields=spec, accuracy=spread(done), curves=curves)


def chosen(setting: Setting, method: str) -> str:
    """The method with the fields that its trials chose, here or in the setting that this one is tuned as, if they are known."""
    name, _, own = method.partition(":")
    like = setting.tuned_as or setting
    for methods in finished().values():
        one = methods.get(name, {})
        if one.get("setting") == like.words():
            return ",".join([one["fields"], own]) if own else one["fields"]
    return tuned(setting, [method])[method][0]


if __name__ == "__main__":
    main()
