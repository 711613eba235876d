"""P3: more helpers and fresher prototypes help ProtoFSSL (ProtoFSSL, figures 4 and 5)."""

from common import arguments, beats, sentence, verdict, write
from ladder import ladder, spreads
from settings import PROTO

CLAIM = "ProtoFSSL gets better with more helpers, and with helpers that are renewed more often."
PAPER = "figures 4 and 5 are curves without printed numbers: accuracy rises with the helpers and falls with the interval"


def main() -> None:
    quick = arguments(CLAIM).quick
    settings = {"i.i.d.": PROTO["i.i.d."]}
    helpers = ladder(settings, "protofssl", "helpers", (1, 5), quick)
    intervals = ladder(settings, "protofssl", "interval", (1, 10), quick)
    more = beats(helpers["i.i.d."]["5"], helpers["i.i.d."]["1"])
    fresh = beats(intervals["i.i.d."]["1"], intervals["i.i.d."]["10"])
    numbers = dict(helpers=spreads(helpers), interval=spreads(intervals), more=more, fresher=fresh)
    why = f"{sentence('with 5 helpers it', '1 helper', more)}; {sentence('renewed every round it', 'every 10', fresh)}."
    write(__file__, claim=CLAIM, setting=PROTO["i.i.d."].words(), numbers=numbers, paper_numbers=PAPER,
          verdict=verdict([more["outcome"], fresh["outcome"]]), why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
