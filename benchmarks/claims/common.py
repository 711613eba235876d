"""What the claims share: the paper settings at our size, runs that are made once for all claims, verdicts, and the JSON.

A setting is a folder of `grapevine compare` under `.runs/`; claims that name the same setting share its runs, and a run that is
there is not repeated. Before a setting is run, the fields of each method are chosen on validation accuracy, with the same rule
for all: 4 trials, one seed that is not used again, a third of the rounds; and while the best learning rate is the least or the
largest, one more, three times as far out. XCLP's settings have the four alone, and so have images, where a trial has a tenth of
the rounds: in so few the largest rate is the best, and over all rounds it is not (X5).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scipy.stats import t as student

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from machine import data_of  # noqa: E402

RUNS = Path(os.environ.get("GRAPEVINE_CLAIMS", HERE / ".runs"))
DATA = data_of(sys.argv[0])  # stops here if a file is missing
SEEDS = 5  # where a run takes under two minutes
FEW = 3  # elsewhere
TRIAL_SEED = 100
SHARE_OF_ROUNDS = 3  # a trial has one in so many
FURTHER, MOST_FURTHER = 3.0, 3  # from a learning rate at an edge to the next, and how often


@dataclass(frozen=True)
class Setting:
    """Flags of `grapevine compare`, and for each method, or a method with fields of its own, the candidates of its trials."""

    name: str
    flags: dict[str, Any]
    trials: dict[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    tuned_as: Setting | None = None
    """Another setting whose trials choose the fields for this one, too."""
    seeds: int = SEEDS
    share: int = SHARE_OF_ROUNDS
    """A trial has one in so many of the rounds."""
    further: bool = True
    """Whether a rate beyond the best is tried, if that is at an edge."""

    def words(self) -> str:
        """The flags as one would type them; a file by its name."""
        return " ".join(f"--{name.replace('_', '-')} {_word(value)}" for name, value in self.flags.items())


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={_word(each)}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else Path(value).name if isinstance(value, Path) else str(value)


def lrs(*rates: float) -> list[dict[str, Any]]:
    return [dict(lr=rate) for rate in rates]


# ---------------------------------------------------------------- runs


def some(settings: dict[str, Setting], quick: bool) -> list[tuple[str, Setting]]:
    """All of them, or the first in a quick run: a setting starts processes of its own."""
    return list(settings.items())[: 1 if quick else None]


def arguments(claim: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("--quick", action="store_true", help="a smoke test: one seed, a few rounds; nothing is kept")
    return parser.parse_args()


def tuned(setting: Setting, methods: Sequence[str], quick: bool = False) -> dict[str, list[str]]:
    """Each method with its candidates' fields, as METHODs of compare, the best on validation first."""
    setting = setting.tuned_as or setting
    found: dict[str, list[dict[str, Any]]] = {}
    for method in methods:
        name, _, own = method.partition(":")
        tried = method if method in setting.trials else name  # a variant has its method's fields, if it has no trials of its own
        if tried not in found:
            candidates = list(setting.trials.get(tried, ({},)))
            found[tried] = candidates if quick else ordered(setting, name, candidates, own if tried == method else "")
        found[method] = found[tried]
    return {method: [spell(*method.partition(":")[::2], fields) for fields in found[method]] for method in methods}


def ordered(setting: Setting, name: str, candidates: list[dict[str, Any]], own: str) -> list[dict[str, Any]]:
    """The candidates by their trials, the best first; of equal ones the first. One that diverged has no run, and is the last."""
    if len(candidates) == 1:
        return candidates
    flags, scores = dict(rounds=max(1, setting.flags["rounds"] // setting.share)), list[float]()
    for _ in range(MOST_FURTHER + 1):
        specs = [spell(name, own, fields) for fields in candidates]
        runs = run(setting, specs, f"{setting.name}-trials", [TRIAL_SEED], flags)
        scores = [max(map(best_validation, runs[spec]), default=-1.0) for spec in specs]
        more = further(candidates, candidates[scores.index(max(scores))]) if setting.further else None
        if more is None:
            break
        candidates = [*candidates, more]
    return [fields for _, fields in sorted(zip(scores, candidates), key=lambda pair: -pair[0])]


def further(candidates: list[dict[str, Any]], best: dict[str, Any]) -> dict[str, Any] | None:
    """The next learning rate beyond the best, if that is at an edge of those tried with the same other fields."""
    rates = [fields["lr"] for fields in candidates if dict(fields, lr=0) == dict(best, lr=0)]
    if best["lr"] == max(rates):
        return dict(best, lr=float(f"{best['lr'] * FURTHER:.1g}"))
    return dict(best, lr=float(f"{best['lr'] / FURTHER:.1g}")) if best["lr"] == min(rates) else None


def spell(name: str, own: str, fields: dict[str, Any]) -> str:
    texts = [*(f"{key}={value}" for key, value in fields.items()), *([own] if own else [])]
    return f"{name}:{','.join(texts)}" if texts else name


def best_validation(found: dict[str, Any]) -> float:
    return max(line.get("validation_accuracy") or 0.0 for line in found["history"])


def compared(setting: Setting, methods: Sequence[str], quick: bool = False) -> dict[str, list[dict]]:
    """For each method as it was named, its runs by seed: result.json with the history, after its trials.

    If the fields that were best on validation let training diverge with one of the seeds, or end at chance, the next best are
    taken, and each run's `passed_over` says so. Not where the method was named with fields of its own, which may be why.
    """
    specs, seeds = tuned(setting, methods, quick), setting.seeds
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            small = dict(setting.flags, rounds=2, per_round=min(5, setting.flags["per_round"]))  # ProtoFSSL has five helpers
            small["data"] = "digits" if isinstance(small["data"], Path) else small["data"]  # a file that a long run would make
            found = run(Setting(setting.name, small), [each[0] for each in specs.values()], "quick", [0], {}, Path(folder))
            return {method: found[each[0]] for method, each in specs.items()}
    done: dict[str, list[dict]] = {}
    passed_over: dict[str, list[str]] = {method: [] for method in methods}
    while len(done) < len(specs):
        wanted = {method: each[0] for method, each in specs.items() if method not in done}
        found = run(setting, list(wanted.values()), setting.name, list(range(seeds)), {})
        for method, spec in wanted.items():
            may_end_at_chance = ":" in method
            if len(found[spec]) == seeds and (may_end_at_chance or not any(map(at_chance, found[spec]))):
                done[method] = [dict(one, passed_over=passed_over[method]) for one in found[spec]]
                continue
            if not specs[method][1:]:
                raise SystemExit(f"{setting.name}: every candidate of {method} diverged, failed or ended at chance.")
            passed_over[method].append(spec)
            specs[method] = specs[method][1:]
    return {method: done[method] for method in methods}


def at_chance(run: dict) -> bool:
    """Whether the last round says one class of everything, or might as well: below one and a half times chance."""
    return run["accuracy_last"] < 1.5 / len(run["confusion"])


def run(
    setting: Setting, specs: Sequence[str], folder: str, seeds: list[int], flags: dict, where: Path | None = None
) -> dict[str, list[dict]]:
    """The finished runs of these methods: made, or read if they are there. One folder of `compare` holds them all."""
    from grapevine.jobs.compare import compare
    from grapevine.jobs.compare_plan import entry
    from grapevine.jobs.settings import CompareSettings

    out = (where or RUNS) / folder
    print(f"{folder}: {', '.join(specs)}", flush=True)
    usual = dict(data_dir=DATA, seeds=seeds, bounds=False)
    made = compare(specs, CompareSettings.from_dict({**usual, **setting.flags, **flags}), out, resume=True)  # without pages
    for one in made.failed:
        print(f"  {one['folder']}: {one['error']}", flush=True)
        if "diverged" not in one["error"]:  # a choice among those that happened to run would be another choice
            raise SystemExit(f"{out / one['folder']} failed: remove that folder, or mend what is wrong, and run again.")
    finished = [one for one in made.runs if one["state"] == "finished"]
    labels = {spec: entry(spec).label for spec in specs}
    return {spec: [read(out / one["folder"]) for one in finished if one["method"] == labels[spec]] for spec in specs}


def read(folder: Path) -> dict[str, Any]:
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return dict(json.loads((folder / "result.json").read_text()), history=history, folder=str(folder))


# ---------------------------------------------------------------- numbers


def accuracies(runs: Sequence[dict], key: str = "accuracy") -> list[float]:
    """Per cent, by seed; a run without the number, as without pseudo-labels in its last round, has no place in the list."""
    return [round(100 * one[key], 2) for one in runs if one[key] is not None]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation and the values themselves; no mean of none."""
    if not values:
        return dict(mean=None, std=None, seeds=[])
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return dict(mean=round(statistics.mean(values), 2), std=round(std, 2), seeds=list(values))


def beats(a: Sequence[float], b: Sequence[float], margin: float = 0.0) -> dict[str, Any]:
    """Whether a is above b by more than `margin`: Student's t of the paired differences, one-sided at 5 %.

    With three seeds that asks for 2.9 standard errors. "no" is the same the other way round, "open" neither.
    """
    differences = [x - y - margin for x, y in zip(a, b, strict=True)]
    mean, n = statistics.mean(differences), len(differences)
    error = statistics.stdev(differences) / math.sqrt(n) if n > 1 else 0.0
    needed = error * float(student.ppf(0.95, n - 1)) if n > 1 else 0.0
    outcome = "yes" if mean > needed else "no" if mean < -needed else "open"
    return dict(difference=round(mean + margin, 2), standard_error=round(error, 2), outcome=outcome)


def verdict(outcomes: Sequence[str]) -> str:
    """All yes: holds; some: in part. None: it does not if one is a no, and is undecided if all are open."""
    yes = sum(outcome == "yes" for outcome in outcomes)
    if yes:
        return "holds" if yes == len(outcomes) else "holds in part"
    return "does not hold" if "no" in outcomes else "undecided"


def sentence(name: str, against: str, found: dict[str, Any]) -> str:
    words = dict(yes="above", no="below", open="not told apart from")[found["outcome"]]
    return f"{name} is {words} {against} ({found['difference']:+.1f} ± {found['standard_error']:.1f} points)"


# ---------------------------------------------------------------- what parts of a method are worth

SMALL = dict(data="digits", clients=25, rounds=2)  # what --quick runs


def measured(setting: Setting, specs: dict[str, str], quick: bool) -> dict[str, Any]:
    """Accuracy and pseudo-labels of each spec by its title; `against_first` compares it with the first of them."""
    with tempfile.TemporaryDirectory() as folder:
        small = (setting.name, [0], dict(SMALL, labels=f"{setting.flags['labels'].partition(':')[0]}:100"), Path(folder))
        runs = run(setting, list(specs.values()), *(small if quick else (setting.name, list(range(setting.seeds)), {})))
    whole = {
        what: runs[spec] for what, spec in specs.items() if len(runs[spec]) == (1 if quick else setting.seeds)
    }  # others diverged
    first = accuracies(next(iter(whole.values()), []))
    return {
        what: dict(
            accuracy=spread(accuracies(each)),
            against_first=beats(accuracies(each), first),
            accuracy_last_round=spread(accuracies(each, "accuracy_last")),
            pseudo_labels_right=spread(accuracies(each, "pseudo_label_accuracy")),
        )
        for what, each in whole.items()
    }


def show(title: str, found: dict[str, Any]) -> None:
    from machine import table

    keys = ("accuracy", "accuracy_last_round", "pseudo_labels_right")
    rows = [(what, *(one[key]["mean"] for key in keys)) for what, one in found.items()]
    print(table((title, "accuracy", "in the last round", "pseudo-labels right"), rows))


# ---------------------------------------------------------------- results


def write(script: str, *, claim: str, setting: str, numbers: Any, paper_numbers: Any, verdict: str, why: str,
          seeds: int | None = None, quick: bool = False) -> None:  # fmt: skip
    """`<ID>.json` beside the script, by the script alone; a quick run prints and keeps nothing."""
    from machine import about, fingerprint, seed_counts

    identity = Path(script).stem.upper()
    result = dict(id=identity, claim=claim, command=f"python benchmarks/claims/{Path(script).name}", setting=setting,
                  seeds=seeds or max(seed_counts(numbers)),
                  numbers=numbers, paper_numbers=paper_numbers, verdict=verdict, why=why, commit=about()["commit"],
                  date=about()["date"], script=fingerprint(Path(script)), cores=os.cpu_count())  # fmt: skip
    print(json.dumps({key: result[key] for key in ("id", "numbers", "verdict", "why")}, indent=1))
    if not quick:
        (HERE / f"{identity}.json").write_text(json.dumps(result, indent=1) + "\n")
