"""P6: normalisation helps ProtoFSSL, batch normalisation most (ProtoFSSL, table 4)."""

from dataclasses import replace

from common import accuracies, arguments, beats, compared, sentence, spread, verdict, write
from settings import PROTO

CLAIM = "Normalisation helps ProtoFSSL, BN most."
PAPER = {"i.i.d.": dict(none=66.1, bn=73.9, gn=68.3, sbn=73.6), "non-i.i.d.": dict(none=65.6, bn=73.4, gn=69.2, sbn=68.9)}


def main() -> None:
    quick = arguments(CLAIM).quick
    scores = {}
    for norm in ("none", "bn", "gn", "sbn"):
        base = PROTO["i.i.d."]
        setting = base if norm == "none" else replace(base, name=f"{base.name}-{norm}", flags=dict(base.flags, norm=norm))
        scores[norm] = accuracies(compared(setting, ["protofssl"], quick)["protofssl"])
    parts = {norm: beats(scores[norm], scores["none"]) for norm in ("bn", "gn", "sbn")}
    most = {norm: beats(scores["bn"], scores[norm]) for norm in ("gn", "sbn")}
    why = "; ".join(sentence(norm, "none", each) for norm, each in parts.items()) + "; "
    why += "; ".join(sentence("bn", norm, each) for norm, each in most.items()) + "."
    outcomes = [each["outcome"] for each in (*parts.values(), *most.values())]
    numbers = dict({norm: spread(values) for norm, values in scores.items()}, against_none=parts, bn_against=most)
    write(__file__, claim=CLAIM, setting=PROTO["i.i.d."].words() + " --norm none, bn, gn, sbn", numbers=numbers,
          paper_numbers=PAPER, verdict=verdict(outcomes), why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
