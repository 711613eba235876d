"""P5: noise on shared prototypes does no harm up to σ = 5, and does at 10 (ProtoFSSL, table 9)."""

from statistics import mean

import torch
from common import arguments, beats, compared, sentence, verdict, write
from ladder import ladder, spreads
from safetensors import safe_open
from settings import PROTO_WIDE

CLAIM = "Noise on shared prototypes is harmless up to σ = 5, and harmful at σ = 10."
PAPER = {"CIFAR-10, i.i.d., with BN": {"0": 73.9, "0.5": 73.2, "5": 74.1, "10": 47.5}}
HARMLESS = 1.0  # points


def gap(folder: str) -> float:
    """How far the classes' prototypes are from their mean in a run: the root mean square over classes and dimensions."""
    with safe_open(f"{folder}/model.safetensors", "pt") as file:
        sets = torch.stack([file.get_tensor(name) for name in file.keys() if name.endswith("/means")])
    means = sets.mean(0)
    return float((means - means.mean(0)).square().mean().sqrt())


def main() -> None:
    quick = arguments(CLAIM).quick
    found = ladder({"i.i.d.": PROTO_WIDE}, "protofssl", "noise", (0.0, 0.5, 5.0, 10.0), quick)
    scores = found["i.i.d."]
    lost = {value: beats(scores["0.0"], scores[value]) for value in ("0.5", "5.0", "10.0")}
    outcomes = ["yes" if lost[value]["difference"] <= HARMLESS else "no" for value in ("0.5", "5.0")]
    if "yes" in outcomes:  # that 10 is harmful says something only where less is not
        outcomes.append(beats(scores["0.0"], scores["10.0"], HARMLESS)["outcome"])
    runs = compared(PROTO_WIDE, ["protofssl"], quick)["protofssl"]
    apart = [round(gap(one["folder"]), 4) for one in runs if not quick]
    why = "; ".join(sentence("without noise it", f"σ = {value}", each) for value, each in lost.items())
    why += (
        f". Harmless is a loss of up to {HARMLESS:g} point. σ is the paper's, since distances are means over the dimensions. Its "
    )
    why += f"effect depends on the size of the features: without noise a class's prototype is {mean(apart or [0]):.3f} from the "
    why += "mean of all in a dimension (root mean square); the paper does not say how far its own are."
    numbers = dict(spreads(found), lost=lost, apart=apart)
    write(__file__, claim=CLAIM, setting=PROTO_WIDE.words(), numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
