"""P5: noise on shared prototypes does no harm up to σ = 5, and does at 10 (ProtoFSSL, table 9)."""

from common import arguments, beats, sentence, verdict, write
from ladder import ladder, spreads
from settings import PROTO

CLAIM = "Noise on shared prototypes is harmless up to σ = 5, and harmful at σ = 10."
PAPER = {"CIFAR-10, i.i.d., with BN": {"0": 73.9, "0.5": 73.2, "5": 74.1, "10": 47.5}}
HARMLESS = 1.0  # points


def main() -> None:
    quick = arguments(CLAIM).quick
    found = ladder({"i.i.d.": PROTO["i.i.d."]}, "protofssl", "noise", (0.0, 0.5, 5.0, 10.0), quick)
    scores = found["i.i.d."]
    lost = {value: beats(scores["0.0"], scores[value]) for value in ("0.5", "5.0", "10.0")}
    outcomes = ["yes" if lost[value]["difference"] <= HARMLESS else "no" for value in ("0.5", "5.0")]
    outcomes.append(beats(scores["0.0"], scores["10.0"], HARMLESS)["outcome"])
    why = "; ".join(sentence("without noise it", f"σ = {value}", each) for value, each in lost.items())
    why += f". Harmless is a loss of up to {HARMLESS:g} point; how much σ matters depends on the size of the features."
    write(__file__, claim=CLAIM, setting=PROTO["i.i.d."].words(), numbers=dict(spreads(found), lost=lost), paper_numbers=PAPER,
          verdict=verdict(outcomes), why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
