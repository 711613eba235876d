"""Which parts of FedAvg+XCLP matter: the small CNN on Fashion-MNIST, 100 clients, 1000 labels, 3 seeds.

    python benchmarks/xclp_parts.py [--quick]

From the fields that trials chose as the claims' do, one part is changed at a time: clients in the graph, the preset (class
weights, cubed similarities, labels divided by their class's count), augmentation, two streams of batches; and beside them the
methods of section 4.2 that differ in their pseudo-labels alone. Then XCLP and some of these where a client's labels are of 5 of
the 10 classes, and where all labels are at 20 of the clients, with the fields that were chosen without either. What has run is
kept with the claims' runs.
Writes xclp_parts.json beside itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "claims"))

from common import FEW, measured, show, tuned  # noqa: E402
from machine import about, fingerprint, need, write  # noqa: E402
from settings import FASHION_METHODS, XCLP_FASHION, XCLP_SOME  # noqa: E402

OTHERS = FASHION_METHODS[1:]
FASHION, SKEW = XCLP_FASHION.values()
UNDER_SKEW = ("xclp", "fedavg", "perclient-lp")
AT_SOME = ("xclp", "fedavg", "network", "fedsem")


def variants(chosen: str) -> dict[str, str]:
    """What is changed, and the METHOD of compare that has it."""
    fields = chosen.partition(":")[2]
    return {
        "as chosen": chosen,
        "nobody in the graph who does not train": f"{chosen},graph_clients=5",
        "whole guests": f"{chosen},guests=all",
        "labels not balanced": f"{chosen},preset=paper,alpha=0.9",
        "preset code": f"{chosen},preset=code,alpha=0.9",
        "no augmentation": f"{chosen},augment=false",
        "one stream of batches": f"{HERE / 'one_stream.py'}:OneStream:{fields}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits, one seed, two rounds; writes nothing")
    quick = parser.parse_args().quick
    if not quick:
        need("fashion-mnist")
    others = () if quick else OTHERS
    chosen = {method: specs[0] for method, specs in tuned(FASHION, ["xclp", *others], quick).items()}
    parts = measured(FASHION, variants(chosen["xclp"]) | {method: chosen[method] for method in others}, quick)
    skew = {} if quick else measured(SKEW, {method: chosen[method] for method in UNDER_SKEW}, quick)
    some = {} if quick else measured(XCLP_SOME, {method: chosen[method] for method in AT_SOME}, quick)
    show("labels i.i.d.", parts)
    show("5 of 10 classes a client", skew)
    show("all labels at 20 clients", some)
    if not quick:
        setting = f"{FASHION.words()}"
        write(
            __file__,
            dict(
                machine=about(), script=fingerprint(Path(__file__)), setting=setting, seeds=FEW, parts=parts, skew=skew, some=some
            ),
        )


if __name__ == "__main__":
    main()
