"""X7: 4096 bits are as good as exact cosines (XCLP, section 3)."""

from common import SEEDS, arguments, beats, sentence, spread, write
from propagation import bits_of, cifar, cosine_graph, draw, hamming_graph, right
from propagation import spread as propagate

CLAIM = "With L = 4096 bits, labels are as good as with exact cosines; the curve in L."
PAPER = "L = 4096 was chosen; no table of other lengths"
LENGTHS, AS_GOOD = (64, 256, 1024, 4096), 0.5  # points


def main() -> None:
    quick = arguments(CLAIM).quick
    rows, n = (500, 100) if quick else (10000, 500)
    scores = {name: [] for name in ("exact", *map(str, LENGTHS))}
    for seed in range(1 if quick else SEEDS):
        V, y, _, _ = cifar(rows, 10, 10, seed)
        known = draw(y, y >= 0, n, seed)
        scores["exact"].append(right(propagate(cosine_graph(V), known, 10), y, known < 0))
        for L in LENGTHS:
            scores[str(L)].append(right(propagate(hamming_graph(bits_of(V, L, seed), L), known, 10), y, known < 0))
    lost = {str(L): beats(scores["exact"], scores[str(L)]) for L in LENGTHS}
    holds = lost["4096"]["difference"] <= AS_GOOD
    why = "; ".join(sentence("exact", f"{L} bits", each) for L, each in lost.items()) + f". As good: within {AS_GOOD:g} points."
    setting = "10,000 images of CIFAR-10 as features of EfficientNet-lite0, 500 labels, k 10, alpha 0.99, preset code"
    write(__file__, claim=CLAIM, setting=setting, numbers={name: spread(values) for name, values in scores.items()},
          paper_numbers=PAPER, verdict="holds" if holds else "does not hold", why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
