"""P6: normalisation helps ProtoFSSL, batch normalisation most (ProtoFSSL, table 4).

Features go through an MLP, which has batch normalisation or none; all four ways on images are in images.py.
"""

from dataclasses import replace

from common import accuracies, arguments, beats, compared, sentence, spread, verdict, write
from settings import PROTO

CLAIM = "Normalisation helps ProtoFSSL, BN most."
PAPER = {"i.i.d.": dict(none=66.1, bn=73.9, gn=68.3, sbn=73.6), "non-i.i.d.": dict(none=65.6, bn=73.4, gn=69.2, sbn=68.9)}


def main() -> None:
    quick, base, scores = arguments(CLAIM).quick, PROTO["i.i.d."], {}
    for norm in ("none", "bn"):
        setting = base if norm == "none" else replace(base, name=f"{base.name}-{norm}", flags=dict(base.flags, norm=norm))
        scores[norm] = accuracies(compared(setting, ["protofssl"], quick)["protofssl"])
    gain = beats(scores["bn"], scores["none"])
    why = sentence("bn", "none", gain) + "; an MLP has no other normalisation, so that whether BN helps most is not seen here."
    numbers = dict({norm: spread(values) for norm, values in scores.items()}, gain=gain)
    write(__file__, claim=CLAIM, setting=base.words() + " --norm none, bn", numbers=numbers, paper_numbers=PAPER,
          verdict="holds in part" if gain["outcome"] == "yes" else verdict([gain["outcome"]]), why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
