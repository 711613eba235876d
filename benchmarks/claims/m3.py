"""M3: mending flipped labels is above removing them (MP-SSFL, section 4.2.2)."""

from pathlib import Path

import torch
from common import FEW, accuracies, arguments, beats, sentence, spread, verdict, write
from cut import FEDAVG, ROUNDS, SETS, WORDS, cut, kept, rate, remembered, train

from grapevine.data.split import Split
from grapevine.methods.mp_ssfl import EXCLUDED

CLAIM = "FedAvg after MP-SSFL has mended flipped labels is better than after removing them, and than on the flipped labels."
PAPER = "section 4.2.2 says that removing lowers accuracy, most where flips are many; table 4, which it names, shows other things"
WHY = """A row that the classifier is sure of ends with the classifier's label however many were flipped, so mended labels are the
same at all rates. Against few flips that is no gain: random flips cost FedAvg less than the rows that are set aside and the
classifier's own mistakes; the more flips, the more rows are lost by removing."""
FLIPS = (0.2, 0.5, "0.5:pair")
USED = "{} {:.0f} % of the rows with {:.1f} % of their labels right"
WAYS = {"mended": ("mp-ssfl", {}), "removed": ("mp-ssfl", dict(mend=False)), "as they are": ("fedavg", {})}


def main() -> None:
    quick = arguments(CLAIM).quick
    seeds, rounds, each, server, epochs = (range(1), 2, 20, 100, 2) if quick else (range(FEW), ROUNDS, 200, 500, 30)
    numbers, outcomes, told = {}, [], []
    with kept(quick) as where:
        for name, title in SETS.items():
            lr = rate(where, name, quick)
            for flip in FLIPS[:1] if quick else FLIPS:
                scores: dict[str, list[float]] = {}
                rows: dict[str, dict[str, list[float]]] = {}
                for way, (method, fields) in WAYS.items():
                    own = dict(fields, server_epochs=epochs) if method == "mp-ssfl" else fields
                    runs = []
                    for seed in seeds:
                        split = cut(name, each, server, seed, "clients:all", flip=flip)
                        out = where / f"m3-2-{name}-{flip}-{way.replace(' ', '-')}-{seed}"
                        runs.append(train(out, method, split, seed, rounds, lr=lr, **FEDAVG, **own))
                        if method == "mp-ssfl":
                            used, right = labels_used(out, split)
                            mine = rows.setdefault(way, {"rows used": [], "labels right": []})
                            mine["rows used"].append(used)
                            mine["labels right"].append(right)
                    scores[way] = accuracies(runs)
                found = {way: beats(scores["mended"], scores[way]) for way in ("removed", "as they are")}
                cell = {way: {kind: spread(values) for kind, values in each.items()} for way, each in rows.items()}
                for way, values in scores.items():
                    cell.setdefault(way, {})["accuracy"] = spread(values)
                place = f"{title}, {shown(flip)}"
                numbers[place] = dict(cell, **{"mended against": found})
                outcomes += [one["outcome"] for one in found.values()]
                against = "; ".join(sentence("mended", way, one) for way, one in found.items())
                about = ", ".join(USED.format(way, *(cell[way][kind]["mean"] for kind in each)) for way, each in rows.items())
                told.append(f"{place}: {against}; {about}")
    write(__file__, claim=CLAIM, setting=f"{WORDS}; 10 clients of 200 rows, all labelled; server with 500, whose classifier "
          "learns them for 30 epochs; tau 0.95, upsilon 0.5; removed: mend=false", numbers=numbers, paper_numbers=PAPER,
          verdict=verdict(outcomes),
          why=". ".join(told) + f". {' '.join(WHY.split())}", seeds=len(seeds), quick=quick)  # fmt: skip


def shown(flip: float | str) -> str:
    """A rate in words; pairs are what an attacker flips: each class to the next one."""
    share, _, pair = str(flip).partition(":")
    return f"{float(share):.0%} flipped{' to the next class' if pair else ''}"


def labels_used(out: Path, split: Split) -> tuple[float, float]:
    """Per cent of the rows that are trained on, and of their labels those that are right."""
    found = list(remembered(out, split, "decided"))
    used = torch.cat([each["action"] != EXCLUDED for _, each in found])
    right = torch.cat([each["label"] == split.truth[rows] for rows, each in found])[used]
    return round(100 * float(used.float().mean()), 2), round(100 * int(right.sum()) / max(len(right), 1), 2)


if __name__ == "__main__":
    main()
