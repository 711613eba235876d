"""M1: FedAvg on MP-SSFL's labels comes close to FedAvg on true labels (MP-SSFL, tables 2 and 3)."""

import itertools
from dataclasses import replace
from pathlib import Path

import torch
from common import FEW, accuracies, arguments, beats, spread, verdict, write
from cut import FEDAVG, ROUNDS, SETS, WORDS, cut, kept, rate, remembered, train, with_server

from grapevine.data.split import Part, Split
from grapevine.methods.mp_ssfl import EXCLUDED

CLAIM = "FedAvg on the labels that MP-SSFL gives to unlabelled clients is within about a point of FedAvg on true labels."
PAPER = {"10 clients of 500, true labels": 70.04, "10 clients of 500, MP-SSFL": 70.99, "largest loss of table 2": 1.38,
         "note": "the server's size is not given; tables 2 and 3 are the same, both headed MNIST"}  # fmt: skip
SERVERS, EPOCHS, WITHIN = (240, 1000), 30, 1.5  # rows; of the classifier; points
TRUE = "true labels"
SIZES = ((10, 200), (10, 500))  # clients, rows of each; with all servers for the first only


def joined(split: Split) -> Split:
    """The server's rows as one more client's: what true labels are given, since equation 4 gives them to MP-SSFL."""
    return replace(split, parts=(*split.parts, split.server))


def truly(split: Split, out: Path) -> Split:
    """The rows that MP-SSFL labelled in this run, with their true labels, and the server's."""
    rows = [index[found["action"] != EXCLUDED] for index, found in remembered(out, split, "decided")]
    parts = tuple(Part(each, split.truth[each], torch.empty(0, dtype=torch.int64)) for each in rows)
    return replace(
        split, parts=(*parts, split.server), settings=dict(split.settings, labels=f"{split.settings['labels']},clients:all")
    )


def main() -> None:
    quick = arguments(CLAIM).quick
    seeds, rounds, sizes = (range(1), 2, [(10, 20)]) if quick else (range(FEW), ROUNDS, SIZES)
    numbers, outcomes, told = {}, [], []
    with kept(quick) as where:
        for (name, title), (clients, each) in itertools.product(SETS.items(), sizes):
            lr, first_size = rate(where, name, quick), (clients, each) == sizes[0]
            splits = {seed: cut(name, each, max(SERVERS), seed, clients=clients) for seed in seeds}
            start = where / f"m1-2-{name}-{clients}x{each}"
            place = f"{title}, {clients} clients of {each}"
            mine = numbers[place] = {"learning rate": lr}
            for server in SERVERS[-1:] if quick or not first_size else SERVERS:
                fewer = {s: with_server(splits[s], server) for s in seeds}
                out = {s: Path(f"{start}-{server}-{s}") for s in seeds}
                true = [train(Path(f"{start}-{server}-true-{s}"), "supervised", joined(fewer[s]), s, rounds, lr=lr, **FEDAVG)
                        for s in seeds]  # fmt: skip
                how = dict(lr=lr, server_epochs=2 if quick else EPOCHS, **FEDAVG)
                runs = [train(out[s], "mp-ssfl", fewer[s], s, rounds, **how) for s in seeds]
                begun = [train(Path(f"{start}-{server}-begun-{s}"), "mp-ssfl", fewer[s], s, rounds, start="classifier", **how)
                         for s in seeds]  # fmt: skip
                first = [run["history"][0] for run in runs]
                found, from_classifier = (beats(accuracies(true), accuracies(each)) for each in (runs, begun))
                cell = mine[f"MP-SSFL, server with {server}"] = {
                    "accuracy": spread(accuracies(runs)),
                    "accuracy, started from the classifier": spread(accuracies(begun)),
                    TRUE: spread(accuracies(true)),
                    "labels right, of those given": spread(accuracies(first, "pseudo_label_accuracy")),
                    "rows that get a label": spread(
                        [round(100 * line["pseudo_labels_used"] / line["pseudo_labels_of"], 2) for line in first]
                    ),
                    "lost to true labels": found,
                    "lost to true labels, started from the classifier": from_classifier,
                }
                outcomes += ["yes" if each["difference"] <= WITHIN else "no" for each in (found, from_classifier)]
                text = f"{place}, server with {server}: {found['difference']:.1f} ± {found['standard_error']:.1f} points lost"
                text += f", {from_classifier['difference']:.1f} when started from the classifier"
                if found["difference"] > WITHIN and first_size:  # is it the wrong labels, or the rows without one?
                    same = [train(Path(f"{start}-{server}-control-{s}"), "fedavg", truly(fewer[s], out[s]), s, rounds, lr=lr,
                                  **FEDAVG) for s in seeds]  # fmt: skip
                    cell["true labels of the same rows"] = spread(accuracies(same))
                    by_rows, by_labels = beats(accuracies(true), accuracies(same)), beats(accuracies(same), accuracies(runs))
                    text += f" ({by_rows['difference']:.1f} as rows are set aside, {by_labels['difference']:.1f} by wrong labels)"
                given, right = cell["rows that get a label"]["mean"], cell["labels right, of those given"]["mean"]
                told.append(f"{text}; {given:.0f} % of the rows get a label, {right:.1f} % of these are right")
    told.append(f"Within: {WITHIN:g} points. Rows are set aside where the server's classifier is less than 95 % sure")
    setting = f"{WORDS}; no client's row is labelled; the server's classifier learns its rows for {EPOCHS} epochs; tau 0.95; the "
    setting += "server trains on its rows as one more client, and so it does with true labels"
    write(__file__, claim=CLAIM, setting=setting, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why=". ".join(told) + ".", seeds=len(seeds), quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
