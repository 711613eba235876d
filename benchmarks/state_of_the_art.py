"""All methods on the same four settings: labels at the clients, i.i.d. and Dirichlet 0.1, and at the server, 50 and 250; CIFAR-10
as images from scratch and as features of EfficientNet-lite0. Accuracy, bytes, processor seconds, and "label, then train" beside.

    python benchmarks/state_of_the_art.py [--quick] [--only features|images] [--seeds 3] [--pages]

One run after the other, each written to state_of_the_art.json beside this file as soon as it is done: what is there, with the
same rows, rounds and network, is not repeated, on another machine either, unless its method has changed: fingerprints.json says
what methods do. Makes the table of docs/state-of-the-art.md after every setting: first the cheap methods with all seeds, then
label, then train, then the others, all settings with the first seed before any with the second.

All methods have the same rounds, clients and local epochs, the same batches and the same passes at the server (`BUDGET`, for the
fields that a method has). A line's learning rate is the best on validation of four (a third of its default, the default, three
and ten times it), tried in each setting for a third of the rounds with a seed that is not used again; other fields are the
defaults. One-shot heads have one round and no rate. Label, then train is `grapevine label` with its defaults, then FedAvg on what
it left, with a rate of its own; for images it labels by the features of the pretrained network, which no other line of that table
has. Distances are in the clear there and in `xclp`, which changes no label.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from machine import DATA, ROOT, about, fill, markdown, need, one_blas_thread, write

import grapevine as gv
from grapevine import methods
from grapevine.core.errors import Mistake
from grapevine.core.method import parameters
from grapevine.core.words import many
from grapevine.crypto.hamming import protocol as hamming_protocol
from grapevine.crypto.spread import protocol as spread_protocol
from grapevine.data import Dataset, Split
from grapevine.jobs.labels_from import with_labels
from grapevine.methods.moment_heads import MomentHead

sys.path.insert(0, str(Path(__file__).parent / "claims"))
from common import beats  # noqa: E402

FILE = Path(__file__).with_suffix(".json")
BEHAVIOUR = FILE.with_name("fingerprints.json")
ROWS, CLIENTS, PER_ROUND = 6_000, 20, 5
BUDGET = dict(epochs=2, batch=32, server_epochs=2, server_batch=32, pretrain=10)
LABELLED = "label, then fedavg"
PLACES = {  # name: where, flags of the split
    "clients, i.i.d.": ("clients", dict(labels="clients:500", partition="iid")),
    "clients, Dirichlet 0.1": ("clients", dict(labels="clients:500", partition="dirichlet:0.1")),
    "server, 50": ("server", dict(labels="server:50", partition="iid")),
    "server, 250": ("server", dict(labels="server:250", partition="iid")),
}
PEAK = dict(labels=(200, 250, 300, 500), ridges=(0.01, 100.0))  # of Fed3R where labels are about as many as features
NOT_YET = "Not measured yet: `python benchmarks/state_of_the_art.py` writes the tables here, and goes on where it was stopped."
TRIAL_SEED, SHARE_OF_ROUNDS, TIMES = 100, 3, (1 / 3, 1, 3, 10)  # as the claims choose fields
IN_THE_CLEAR = {"xclp": dict(hamming=hamming_protocol("plain"), spread=spread_protocol("paper"))}
BOUNDS = ("fedavg", "server-only", "supervised")
LEFT_OUT = {
    "alone": "a model for each client, not one",
    "rds": "for rows off the topic",
    "tuor": "for rows off the topic",
    "mp-ssfl": "for wrong labels and rows off the topic",
}


@dataclass(frozen=True)
class Space:
    """What rows are, which network learns them, and what the label job sees of them."""

    name: str
    data: Dataset
    features: Dataset
    model: str
    norm: str | None
    rounds: int

    def settings(self) -> dict[str, Any]:
        """What a run must have been made with to count."""
        return dict(rows=ROWS, clients=CLIENTS, per_round=PER_ROUND, budget=BUDGET, model=self.model, norm=self.norm,
                    rounds=self.rounds)  # fmt: skip

    def lines(self, where: str) -> list[list[str]]:
        """Methods that take labels there, the cheapest first: heads, only where rows are features; bounds; label, then train; all
        others."""
        fit = [name for name in methods.TABLE if where in methods.find(name).takes and name not in LEFT_OUT]
        heads = [name for name in fit if issubclass(methods.find(name), MomentHead)]
        bounds = [name for name in fit if name in BOUNDS]
        rest = [name for name in fit if name not in heads and name not in bounds]
        return [heads if self.name == "features" else [], bounds, [LABELLED], rest]


def spaces(quick: bool) -> Iterator[Space]:
    if quick:
        digits = first(gv.data.load("digits"), 300)
        yield Space("features", digits, digits, "linear", None, 2)
        yield Space("images", digits, digits, "cnn", None, 2)
        return
    need("cifar10", "cifar10-lite0")
    features, images = (first(gv.data.load(name, data_dir=DATA), ROWS) for name in ("cifar10-lite0", "cifar10"))
    yield Space("features", features, features, "mlp", None, 25)
    yield Space("images", images, features, "cnn", "bn", 50)


def first(data: Dataset, rows: int) -> Dataset:
    """So many rows of the training set, drawn by a fixed seed: the same rows of images and of their features."""
    at = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(0))[:rows].sort().values
    return replace(data, x=data.x[at], y=data.y[at])


def behaviour(line: str) -> str:
    """What the methods of a line do, as a hash of their fingerprints."""
    held = json.loads(BEHAVIOUR.read_text())
    names = ("fedavg", "label") if line == LABELLED else (line,)
    told = {name: [parts.get("history", parts["labels"] if "labels" in parts else "") for key, parts in held.items()
                   if key.split()[0] == name] for name in names}  # fmt: skip
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- one run


def run(space: Space, place: str, line: str, seed: int, lr: float | None, quick: bool) -> dict[str, Any]:
    """Accuracy on test and validation rows, bytes and processor seconds of one line; or what it said when it failed."""
    where, flags = PLACES[place]
    if quick:
        flags = flags | dict(labels="clients:100" if where == "clients" else "server:50")
    split = space.data.split(clients=4 if quick else CLIENTS, seed=seed, **flags)
    began, bytes_before = time.process_time(), 0
    with one_blas_thread(), tempfile.TemporaryDirectory() as folder:
        try:
            if line == LABELLED:
                split, bytes_before = label(split, space.features, seed, Path(folder) / "labels")
            name = "fedavg" if line == LABELLED else line
            how = dict(seed=seed, workers=1, latent=0, evaluate_every=5)
            found = gv.train(made(name, where, lr), split, **how, **network(space, name))
        except Mistake as mistake:
            return dict(error=str(mistake))
    sent = found.result["bytes_up"] + found.result["bytes_down"] + bytes_before
    best = max(line.get("validation_accuracy") or 0.0 for line in found.history)
    return dict(accuracy=found.result["accuracy"], validation=best, bytes=sent, seconds=time.process_time() - began, lr=lr)


def rate(space: Space, place: str, line: str, quick: bool) -> float | None:
    """The learning rate of the trial that is best on validation; of equal ones the first."""
    cls = methods.find("fedavg" if line == LABELLED else line)
    usual = next((f.default for f in parameters(cls) if f.name == "lr"), None)
    if usual is None or quick:
        return usual
    short, rates = replace(space, rounds=space.rounds // SHARE_OF_ROUNDS), [float(f"{usual * times:.2g}") for times in TIMES]
    return max(rates, key=lambda lr: run(short, place, line, TRIAL_SEED, lr, quick).get("validation", 0.0))


def made(name: str, where: str, lr: float | None) -> Any:
    """The method with the common budget; passes at the server only where it has labels."""
    cls = methods.find(name)
    known = {f.name for f in parameters(cls) if where == "server" or f.name in ("epochs", "batch")}
    fields = {field: value for field, value in BUDGET.items() if field in known} | IN_THE_CLEAR.get(name, {})
    return cls(**fields, **(dict(lr=lr) if lr else {}))


def peak(space: Space) -> dict[str, dict[str, float]]:
    """Accuracy of `fed3r` with the server's labels around the number of features, by penalty and number; the first seed."""
    found: dict[str, dict[str, float]] = {}
    for ridge, labels in itertools.product(PEAK["ridges"], PEAK["labels"]):
        split = space.data.split(clients=CLIENTS, seed=0, labels=f"server:{labels}", partition="iid")
        made = gv.train(methods.find("fed3r")(ridge=ridge), split, seed=0, workers=1, latent=0, **network(space, "fed3r"))
        found.setdefault(str(ridge), {})[str(labels)] = made.result["accuracy"]
    return found


def network(space: Space, name: str) -> dict[str, Any]:
    if issubclass(methods.find(name), MomentHead):
        return dict(model="linear", rounds=1, per_round=CLIENTS)
    return dict(model=space.model, norm=space.norm, rounds=space.rounds, per_round=PER_ROUND)


def label(split: Split, features: Dataset, seed: int, folder: Path) -> tuple[Split, int]:
    """The split with the labels of the label job, in which a server with labels is one more party; and the bytes of that job."""
    holders = [*zip(split.names, split.parts), *([("server", split.server)] if split.server else [])]
    parties = []
    for _, part in holders:
        rows = torch.cat([part.labelled, part.unlabelled])
        names = [split.dataset.classes[c] for c in part.labels.tolist()] + [None] * len(part.unlabelled)
        parties.append((features.x[rows].flatten(1).double().numpy(), np.array(names, dtype=object)))
    made = gv.label(parties, names=[name for name, _ in holders], secure="plain", seed=seed, out=folder)
    return with_labels(split, folder), made.bytes_up + made.bytes_down


# ---------------------------------------------------------------- tables


def score(runs: list[dict[str, Any]]) -> str:
    found = [100 * one["accuracy"] for one in runs if "accuracy" in one]
    if not found:
        return "failed" if runs else ""
    return f"{mean(found):.1f} ± {stdev(found):.1f}" if len(found) > 1 else f"{found[0]:.1f}"


def cost(cells: dict[str, list[dict[str, Any]]]) -> tuple[str, str]:
    """MB and processor seconds of a run: of a setting the least, since a busy machine only adds; over settings the mean."""
    each = [runs for cell in cells.values() if (runs := [one for one in cell if "accuracy" in one])]
    if not each:
        return "", ""
    least = [mean(min(one[kind] for one in runs) for runs in each) for kind in ("bytes", "seconds")]
    return f"{least[0] / 1e6:.3g}", f"{least[1]:.3g}"


def tables(result: dict[str, Any]) -> str:
    texts = []
    for space, lines in result["spaces"].items():
        rows = []
        for line, cells in lines.items():
            name = f"**{line}**" if line == LABELLED else f"`{line}`"
            rows.append((name, *(score(cells.get(place, [])) for place in PLACES), *cost(cells)))
        with_ = result["settings"].get(space, {})
        norm = f" with norm `{with_['norm']}`" if with_.get("norm") else ""
        told = f"Network `{with_['model']}`{norm}, {with_['rounds']} rounds.\n\n" if with_ else ""
        after = f"\n\n{nearly_singular(result['peak'])}" if space == "features" and "peak" in result else ""
        texts.append(f"## {space.capitalize()}\n\n{told}" + markdown(("method", *PLACES, "MB", "CPU s"), rows) + after)
    return "\n\n".join(texts)


def nearly_singular(found: dict[str, dict[str, float]]) -> str:
    """Why `fed3r` and `fedcgs` fall at 250 labels."""
    rows = {f"`ridge` {float(ridge):g}": ", ".join(f"{100 * right:.1f}" for right in by.values()) for ridge, by in found.items()}
    told = [f"{row} with {ridge}" for ridge, row in rows.items()]
    numbers = ", ".join(next(iter(found.values())))
    return f"""With 250 labels and 256 features the matrix that `fed3r` and `fedcgs` invert is nearly singular, the peak of
double descent: for {numbers} labels `fed3r` has {"; ".join(told)} (one seed)."""


def standing(result: dict[str, Any]) -> str:
    """In each setting, what label, then train is below, level with and above, among lines without the true labels of all rows."""
    rows = []
    for space, lines in result["spaces"].items():
        for place in PLACES:
            scores = {
                line: [100 * one["accuracy"] for one in cells.get(place, []) if "accuracy" in one]
                for line, cells in lines.items()
            }
            mine = scores.get(LABELLED, [])
            others = {line: each for line, each in scores.items() if line not in (LABELLED, "supervised") and len(each) > 1}
            if len(mine) > 1 and others:
                rows.append((f"{space}; {place}", f"{mean(mine):.1f}", *beside(mine, others)))
    head = ("setting", LABELLED, "above it", "level with it", "below it")
    return (
        f"""This is where **{LABELLED}** stands among the methods that do not know the true labels. *Level* are those that
Student's t of the paired differences (one-sided, 5 %) cannot distinguish from it.

{markdown(head, rows)}

"""
        if rows
        else ""
    )


def beside(mine: list[float], others: dict[str, list[float]]) -> tuple[str, ...]:
    """Which lines are above, and which are level, the best three by name; how many are below. Pairs are those that both have."""
    pairs = {line: list(zip(mine, each)) for line, each in others.items()}
    outcomes = {line: beats(*zip(*both))["outcome"] for line, both in pairs.items()}
    said = []
    for outcome in ("no", "open"):
        found = sorted((line for line in others if outcomes[line] == outcome), key=lambda line: -mean(others[line]))
        named = ", ".join(f"`{line}` {mean(others[line]):.1f}" for line in found[:3])
        said.append(f"{named}{f' and {len(found) - 3} more' if len(found) > 3 else ''}" if found else "none")
    return *said, f"{sum(outcome == 'yes' for outcome in outcomes.values())} of {len(others)}"


def words(result: dict[str, Any]) -> str:
    m = result["machine"]
    counts = {len(runs) for lines in result["spaces"].values() for cells in lines.values() for runs in cells.values() if runs}
    seeds = f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else many(max(counts), "seed")
    budget = ", ".join(f"`{name}` {value}" for name, value in BUDGET.items())
    return f"""{standing(result)}**On images it labels by the features of a pretrained network, which no other line there has.**
One-shot heads need features, so they have no line on images.

{ROWS:,} images of CIFAR-10 at {CLIENTS} clients, {PER_ROUND} a round; 500 labels at the clients, or 50 or 250 at the server.
Test accuracy in per cent, of the round that was best on validation; mean and standard deviation over {seeds}.
MB up and down and processor seconds are those of a run with its evaluations: the least of the seeds', the mean over the columns.
All methods have these fields, as far as they have them at all: {budget}.
A method's learning rate is the best on validation of four, from a third of its default to ten times it, each tried once in each
setting for a third of the rounds; other fields are the defaults. Label, then train uses the label job with its defaults, in which
a server with labels is one more party. Only the protocols differ: distances are in the clear there and in `xclp`, whose labels
also spread the paper's way. That changes no label and costs less than the defaults.

{missing(result)}Measured by `python benchmarks/state_of_the_art.py` on {m["cpu"]}, {m["cores"]} cores, {m["date"]}."""


def missing(result: dict[str, Any]) -> str:
    """Methods that the tables still lack, if any."""
    told = []
    for name, lines in result["spaces"].items():
        space = Space(name, *[None] * 5)  # type: ignore[arg-type]
        wanted = {line: place for place, (where, _) in PLACES.items() for group in space.lines(where) for line in group}
        if lacking := [f"`{line}`" for line in wanted if line not in lines]:
            told.append(f"**Not run yet on {name}:** {', '.join(lacking)}. ")
    if "images" not in result["spaces"]:
        told.append("**Images from scratch have not been run yet.** ")
    return "".join(told)


def document(result: dict[str, Any], root: Path = ROOT) -> None:
    text = f"{words(result)}\n\n{tables(result)}" if result["spaces"] else NOT_YET
    fill(root / "docs" / "state-of-the-art.md", "state_of_the_art.py", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test on digits: four lines a setting, two rounds; writes nothing"
    )
    parser.add_argument("--only", choices=("features", "images"), help="one of the two tables")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pages", action="store_true", help="only the page, from the JSON that is there")
    flags = parser.parse_args()
    if flags.pages:
        return document(before())
    seeds = 1 if flags.quick else flags.seeds
    result: dict[str, Any] = dict(spaces={}, settings={}) if flags.quick else before()
    result |= dict(machine=about())
    for space in spaces(flags.quick):
        if flags.only in (None, space.name):
            measure(space, result, seeds, flags.quick)
            if space.name == "features" and "peak" not in result and not flags.quick:
                result["peak"] = peak(space)
                write(__file__, result)
                document(result)
    print(tables(result))


def before() -> dict[str, Any]:
    """What has been measured."""
    return json.loads(FILE.read_text()) if FILE.exists() else dict(spaces={}, settings={})


def current(line: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those runs of a line that its methods would make today."""
    return [one for one in runs if one["does"] == behaviour(line)]


def measure(space: Space, result: dict[str, Any], seeds: int, quick: bool) -> None:
    if result["settings"].get(space.name) != space.settings():
        result["settings"][space.name], result["spaces"][space.name] = space.settings(), {}
    cells = result["spaces"][space.name]
    for group, seed, place in itertools.product(range(4), range(seeds), PLACES):
        lines = space.lines(PLACES[place][0])[group]
        for line in lines[:1] if quick else lines:
            cells.setdefault(line, {})[place] = runs = current(line, cells.get(line, {}).get(place, []))
            if len(runs) <= seed:
                lr = runs[0].get("lr") if runs else rate(space, place, line, quick)
                runs.append(run(space, place, line, seed, lr, quick) | dict(does=behaviour(line)))
                print(f"{space.name}; {place}; {line}; seed {seed}: {runs[-1].get('error') or score(runs[-1:])}", flush=True)
                if not quick:
                    write(__file__, result)
        if not quick and lines:
            document(result)


if __name__ == "__main__":
    main()
