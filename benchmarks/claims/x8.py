"""X8: what parties that drop out cost, before and after H (XCLP, section 3.3)."""

import numpy as np
from common import SEEDS, arguments, beats, spread, write
from propagation import bits_of, cifar, draw, hamming_graph, right
from propagation import spread as propagate

CLAIM = "The protocol goes on when clients drop out: those who are left lose accuracy slowly."
PAPER = "section 3.3 says that dropouts are possible at any time; no numbers"
SHARES, PARTIES, SLOWLY = (0.1, 0.25, 0.5), 20, 5.0  # points at the loss of a quarter of the parties


def main() -> None:
    quick = arguments(CLAIM).quick
    rows, n = (500, 100) if quick else (10000, 500)
    ways = ("nobody lost", "lost before H", "lost after H")  # all judged on the rows of those who are left
    scores = {way: {f"{share:g}": [] for share in SHARES} for way in ways}
    for seed in range(1 if quick else SEEDS):
        V, y, party, _ = cifar(rows, 10, PARTIES, seed)
        bits, known = bits_of(V, seed=seed), draw(y, y >= 0, n, seed)
        W, order = hamming_graph(bits), np.random.default_rng(seed).permutation(PARTIES)
        whole = propagate(W, known, 10)
        for share in SHARES:
            here = ~np.isin(party, order[: round(share * PARTIES)])
            left, measured = np.flatnonzero(here), here & (known < 0)
            scores["nobody lost"][f"{share:g}"].append(right(whole, y, measured))
            before = propagate(hamming_graph(bits[left]), known[left], 10)
            scores["lost before H"][f"{share:g}"].append(right(before, y[left], measured[left]))
            after = propagate(W, np.where(here, known, -1), 10)  # their points stay in the graph, their labels do not come
            scores["lost after H"][f"{share:g}"].append(right(after, y, measured))
    lost = {way: {share: beats(scores["nobody lost"][share], each) for share, each in scores[way].items()} for way in ways[1:]}
    worst = max(each["0.25"]["difference"] for each in lost.values())
    told = {when: [f"{float(share):.0%} of the parties cost {one['difference']:.1f} points" for share, one in each.items()]
            for when, each in lost.items()}  # fmt: skip
    why = "; ".join(f"{when}: {', '.join(each)}" for when, each in told.items())
    write(__file__, claim=CLAIM, setting="10,000 images of CIFAR-10 as features of EfficientNet-lite0 on 20 parties, 500 labels; "
          "accuracy on the unlabelled rows of those who are left",
          numbers={when: {share: spread(values) for share, values in each.items()} for when, each in scores.items()},
          paper_numbers=PAPER, verdict="holds" if worst <= SLOWLY else "does not hold",
          why=why + f". Slowly: up to {SLOWLY:g} points for a quarter of the parties.", quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
