"""Hashes of what every method and job leaves, on small settings: a change that should change no result changes none of these.

    python benchmarks/fingerprints.py --record      writes fingerprints.json; with names of methods, only theirs anew
    python benchmarks/fingerprints.py               runs everything again and names what differs

A training run's hash covers result.json without seconds, memory and version, history.jsonl, messages.jsonl and the model's
weights; a label or clean job's covers every party's labels, confidences and probabilities, and the messages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import grapevine as gv

FILE = Path(__file__).with_suffix(".json")
LABELS = dict(clients="clients:180", server="server:120", both="server:120,clients:60")
UNTIMED = ("seconds", "peak_memory_mb", "version", "versions", "command")
VARIANTS = {
    "xclp": [
        dict(bits=256, epochs=2),
        dict(bits=256, epochs=1, preset="code", alpha=0.9),
        dict(bits=256, epochs=1, init="contrastive"),
    ],
    "protofssl": [dict(helpers=3), dict(helpers=3, preset="code")],
    "mixmatch": [dict(epochs=2, weight=10.0)],
    "fedmatch": [dict(lr=0.02, interval=1)],
    "fedrgd": [dict(period=8)],
    "fedanchor": [dict(epochs=1, batch=50, pretrain=1)],
    "semifl": [dict(server_epochs=2)],
    "fedcon": [dict(epochs=1, hidden=32, server_epochs=2, server_lr=0.05)],
    "tuor": [dict(server_epochs=10)],
    "fedsem": [dict(), dict(base="fedprox"), dict(base="scaffold")],
    "fixmatch": [dict(epochs=2), dict(epochs=1, base="scaffold", momentum=0.0)],
    "fedsiam": [dict(epochs=2), dict(epochs=1, upload="layers")],
}


def digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, default=lambda a: a.tolist())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(result: dict) -> dict:
    return {name: value for name, value in result.items() if name not in UNTIMED}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(name: str, fields: dict) -> dict[str, str]:
    method = gv.methods.find(name)(**fields)
    where = next(place for place in LABELS if place in method.takes)
    split = gv.data.load("digits").split(clients=6, labels=LABELS[where], seed=3)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        gv.train(method, split, model="mlp", per_round=4, rounds=3, seed=5, workers=2, out=out)
        model = out / "model.safetensors"
        return dict(
            result=digest(plain(json.loads((out / "result.json").read_text()))), history=digest(lines(out / "history.jsonl")),
            messages=digest(lines(out / "messages.jsonl")),
            model=hashlib.sha256(model.read_bytes()).hexdigest()[:16] if model.exists() else "",
        )  # fmt: skip


def parties() -> tuple[list, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    known = np.where(np.random.default_rng(1).random(len(y)) < 0.2, y, -1)
    return [(X[i::3], known[i::3]) for i in range(3)], X, y


def label(**settings: object) -> dict[str, str]:
    result = gv.label(parties()[0], seed=7, **settings)
    told = [(p.labels, np.round(p.confidence, 9), np.round(p.proba, 9), p.proposed) for p in result]
    return dict(labels=digest(told, result.expected, result.about), messages=digest(result.messages))


def clean(**settings: object) -> dict[str, str]:
    _, X, y = parties()
    wrong = np.where(np.random.default_rng(2).random(len(y)) < 0.3, (y + 1) % 3, y)
    result = gv.clean([(X[60 + i :: 3], wrong[60 + i :: 3]) for i in range(3)], (X[:60], y[:60]), seed=7, **settings)
    told = [(p.labels, list(p.action), np.round(p.proba, 6)) for p in result]
    return dict(labels=digest(told, result.expected), messages=digest(result.messages))


def everything(only: list[str]) -> dict[str, dict[str, str]]:
    """Of these methods, or of all and of the label and clean jobs."""
    found = {}
    for name in only or gv.methods.TABLE:
        for fields in VARIANTS.get(name, [{}]):
            words = " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
            found[words] = train(name, fields)
            print(words, *(f"  {part} {hashed}" for part, hashed in found[words].items()), sep="\n", flush=True)
    if only:
        return found
    for settings in (dict(secure="plain"), dict(secure="mlwe", bits=512), dict(secure="psm", neighbours="auto"),
                     dict(secure="psm", method="xclp", preset="paper", scale="none")):  # fmt: skip
        found[f"label {settings}"] = label(**settings)
    for settings in (dict(), dict(counts=True, tau=0.8)):
        found[f"clean {settings}"] = clean(**settings)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="only these [all, and the label and clean jobs]")
    parser.add_argument("--record", action="store_true", help="write what is found instead of comparing with it")
    parser.add_argument("--quick", action="store_true", help="fedavg alone")
    options = parser.parse_args()
    only = ["fedavg"] if options.quick else options.methods
    found, held = everything(only), json.loads(FILE.read_text())
    if options.record:
        FILE.write_text(json.dumps({**(held if only else {}), **found}, indent=1) + "\n")
        return
    before = {name: parts for name, parts in held.items() if name in found or not only}
    changed = [
        f"{name}: {part}" for name, parts in before.items() for part in parts if found.get(name, {}).get(part) != parts[part]
    ]
    print("\n".join(changed) or f"all {len(before)} are as they were")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
