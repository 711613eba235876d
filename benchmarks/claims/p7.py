"""P7: more local steps help ProtoFSSL (ProtoFSSL, table 8)."""

from common import arguments, beats, sentence, verdict, write
from ladder import ladder, spreads
from settings import PROTO

CLAIM = "ProtoFSSL gets better with more local steps, from 1 to 10."
PAPER = {"CIFAR-10, i.i.d., 5 clients a round": {"1": 30.2, "2": 41.4, "5": 63.9, "10": 66.1}}
STEPS = (1, 2, 5, 10)


def main() -> None:
    quick = arguments(CLAIM).quick
    found = ladder({"i.i.d.": PROTO["i.i.d."]}, "protofssl", "steps_per_round", STEPS, quick)
    scores = found["i.i.d."]
    parts = {f"{b} against {a}": beats(scores[str(b)], scores[str(a)]) for a, b in zip(STEPS, STEPS[1:])}
    why = "; ".join(sentence(*[f"E = {word}" for word in name.split(" against ")], each) for name, each in parts.items()) + "."
    write(__file__, claim=CLAIM, setting=PROTO["i.i.d."].words(), numbers=dict(spreads(found), parts=parts), paper_numbers=PAPER,
          verdict=verdict([each["outcome"] for each in parts.values()]), why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
