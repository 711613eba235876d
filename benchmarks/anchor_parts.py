"""Why FedAnchor is below or level with SemiFL at our size: from one to the other, the server's part first.

    python benchmarks/anchor_parts.py [--quick]

Fashion-MNIST, the small CNN, 100 clients, 250 labels at the server, 3 seeds, with the fields that trials chose for claim A1. The
two methods differ in how clients get their labels, and in how much and on what the server trains: FedAnchor's does one epoch a
round on strong views, SemiFL's five on weak ones. So FedAnchor is run with SemiFL's server, and SemiFL with FedAnchor's. What
has run is kept with the claims' runs. Writes anchor_parts.json beside itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "claims"))

from common import FEW, measured, show, tuned  # noqa: E402
from machine import about, fingerprint, need, write  # noqa: E402
from settings import ANCHOR_FASHION as FASHION  # noqa: E402

WEAK, FIVE, SMALL_BATCHES = "server_strong=false", "server_epochs=5", "contrastive_batch=10"


def variants(anchor: str, semifl: str) -> dict[str, str]:
    """What is changed, and the METHOD of compare that has it."""
    return {
        "fedanchor, as chosen": anchor,
        "five epochs at the server": f"{anchor},{FIVE}",
        "weak views at the server": f"{anchor},{WEAK}",
        "both": f"{anchor},{FIVE},{WEAK}",
        "both, and contrastive batches of 10": f"{anchor},{FIVE},{WEAK},{SMALL_BATCHES}",
        "semifl, as chosen": semifl,
        "semifl, one epoch at the server": f"{semifl},server_epochs=1",
        "semifl, no global momentum": f"{semifl},global_momentum=0",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits, one seed, two rounds; writes nothing")
    quick = parser.parse_args().quick
    if not quick:
        need("fashion-mnist")
    chosen = tuned(FASHION, ["fedanchor", "semifl"], quick)
    parts = measured(FASHION, variants(chosen["fedanchor"][0], chosen["semifl"][0]), quick)
    show("250 labels at the server, i.i.d.", parts)
    if not quick:
        write(
            __file__,
            dict(machine=about(), script=fingerprint(Path(__file__)), setting=f"{FASHION.words()}", seeds=FEW, parts=parts),
        )


if __name__ == "__main__":
    main()
