"""Wrong labels found: `grapevine clean` (MP-SSFL) and cleanlab, from the same predicted probabilities.

    python benchmarks/clean_cleanlab.py [--quick]

The server's classifier is trained on its own labelled rows and has never seen the parties', so that its probabilities are what
cleanlab asks for: out of sample. Each party's labels are flipped to another class, uniformly, with the share given. Both sides
then see the same probabilities and given labels, party by party:

    mended                 MP-SSFL, case 1: loss above Υ = 0.5, confidence τ = 0.95 or more
    mended or doubted      and case 2: loss above Υ, whatever the confidence (clean excludes these rows)
    cleanlab               filter.find_label_issues as it is (prune_by_noise_rate)
    cleanlab, confident    the same with filter_by="confident_learning"
    disagree               every label that is not the likeliest class: the least one can do

Precision, recall and F1 of wrong labels over all parties' rows; mean and spread over three seeds. cleanlab runs in an environment
of its own, which this script makes. Results: clean_cleanlab.json beside this file, and a table of docs/clean.md.
`--quick`: digits, one seed, without cleanlab.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from machine import DATA, ROOT, about, environment, fill, markdown, need, table, write

import grapevine as gv
from grapevine.data.labels import Flip, flip

CLEANLAB = "cleanlab==2.9.0"
SETTINGS = {"digits": dict(server=200, parties=5, rows=300), "fashion-mnist": dict(server=1000, parties=10, rows=500)}
FLIPS, SEEDS = (0.2, 0.4), (0, 1, 2)
NAMES = {  # on the page
    "mended": "corrected (clean)",
    "mended or doubted": "corrected, or excluded with a loss above Υ",
    "cleanlab": "cleanlab, as it is",
    "disagree": "every label that is not the likeliest class",
}

THERE = """
import json, sys
import numpy as np
from cleanlab.filter import find_label_issues
with np.load(sys.argv[1]) as z:
    out = {}
    for i in range(int(z["parties"])):
        p, y = z[f"p{i}"], z[f"y{i}"]
        out[f"{i} cleanlab"] = find_label_issues(y, p, n_jobs=1).tolist()
        out[f"{i} cleanlab, confident"] = find_label_issues(y, p, filter_by="confident_learning", n_jobs=1).tolist()
print("RESULT " + json.dumps(out))
"""


def cleanlab(python: Path, result: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Which labels cleanlab finds wrong, party by party, all rows in a line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seen.npz"
        arrays = {f"{name}{i}": values for i, pair in enumerate(result) for name, values in zip("py", pair)}
        np.savez(file, parties=len(result), **arrays)
        done = subprocess.run([python, "-c", THERE, file], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"cleanlab gave no result:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found = json.loads(lines[-1].removeprefix("RESULT "))
    ways = dict.fromkeys(name.split(" ", 1)[1] for name in found)
    return {way: np.concatenate([np.array(found[f"{i} {way}"], bool) for i in range(len(result))]) for way in ways}


def one(name: str, seed: int, python: Path | None, quick: bool) -> dict[float, dict[str, dict[str, float]]]:
    """Scores by share of flips and way of finding them. One classifier serves all shares: each is a set of parties of its own."""
    dataset, setting = gv.data.load(name, data_dir=DATA), SETTINGS[name]
    x, y = dataset.x.permute(0, 2, 3, 1).numpy(), dataset.y.numpy()
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(x))
    server, rest = order[: setting["server"]], order[setting["server"] :]
    parts = [rest[i :: setting["parties"]][: setting["rows"]] for i in range(setting["parties"])]
    rows = [part for _ in FLIPS for part in parts]
    shares = [share for share in FLIPS for _ in parts]
    classes = len(dataset.classes)
    given = [flip(y[at], np.zeros(len(at), np.int64), classes, Flip(p), draw) for at, p in zip(rows, shares)]
    result = gv.clean([(x[at], labels) for at, labels in zip(rows, given)], server=(x[server], y[server]), seed=seed,
                      epochs=20 if quick else None)  # fmt: skip
    out = {}
    for share in FLIPS:
        mine = [i for i, p in enumerate(shares) if p == share]
        action, loss, proposed = (
            np.concatenate([getattr(result[i], what) for i in mine]) for what in ("action", "loss", "proposed")
        )
        labels, truth = np.concatenate([given[i] for i in mine]), np.concatenate([y[rows[i]] for i in mine])
        found = {
            "mended": action == "corrected",
            "mended or doubted": loss > result.method.upsilon,
            "disagree": proposed != labels,
        }
        if python:
            found |= cleanlab(python, [(result[i].proba.astype(np.float64), given[i]) for i in mine])
        right = dict(accuracy=float((proposed == truth).mean()))
        out[share] = dict({way: score(mask, labels != truth) for way, mask in found.items()}, classifier=right)
        print(f"{name}, {share:.0%} flipped, seed {seed}: classifier right {right['accuracy']:.1%}", flush=True)
    return out


def score(found: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    hit = int((found & wrong).sum())
    precision, recall = hit / max(int(found.sum()), 1), hit / int(wrong.sum())
    return dict(precision=precision, recall=recall, f1=2 * hit / (int(found.sum()) + int(wrong.sum())))


def document(result: dict, root: Path = ROOT) -> None:
    columns = dict.fromkeys((cell["data"], cell["flipped"]) for cell in result["results"])
    cells = {(cell["way"], cell["data"], cell["flipped"]): cell for cell in result["results"]}
    rows = [(name, *(_cell(cells[(way, *column)]) for column in columns)) for way, name in NAMES.items()]
    head = ("F1 of wrong labels (precision / recall)", *(f"{data}, {100 * share:.0f} % flipped" for data, share in columns))
    fill(root / "docs" / "clean.md", "clean_cleanlab.py", markdown(head, rows))


def _cell(scores: dict) -> str:
    f1, precision, recall = (scores[key]["mean"] for key in ("f1", "precision", "recall"))
    return f"{f1:.2f} ({precision:.2f} / {recall:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test on digits, without cleanlab; writes nothing")
    flags = parser.parse_args()
    if not flags.quick:
        need("fashion-mnist")
    machine = about()
    python = None if flags.quick else environment("cleanlab", free=(CLEANLAB,))
    cells = []
    for name in ("digits",) if flags.quick else SETTINGS:
        runs = [one(name, seed, python, flags.quick) for seed in (SEEDS[:1] if flags.quick else SEEDS)]
        for share in FLIPS:
            for way in runs[0][share]:
                values = {key: [run[share][way][key] for run in runs] for key in runs[0][share][way]}
                numbers = {key: dict(mean=float(np.mean(v)), least=min(v), most=max(v)) for key, v in values.items()}
                cells.append(dict(data=name, flipped=share, way=way, **numbers))
    shown = [c for c in cells if "f1" in c]
    lines = [
        (f"{c['data']}, {c['flipped']:.0%}, {c['way']}", *(c[k]["mean"] for k in ("precision", "recall", "f1"))) for c in shown
    ]
    print(table(("mean over seeds", "precision", "recall", "F1"), lines))
    if not flags.quick:
        setting = dict(settings=SETTINGS, flips=FLIPS, seeds=SEEDS, tau=0.95, upsilon=0.5, model="cnn", cleanlab=CLEANLAB)
        result = dict(machine=machine, setting=setting, results=cells)
        write(__file__, result)
        document(result)


if __name__ == "__main__":
    main()
