"""A4: what FedAnchor's anchors add to a broadcast (FedAnchor, table 4)."""

from statistics import mean

import torch
from common import SEEDS, arguments, spread, verdict, write

from grapevine.core import ModelSource, Server, wire
from grapevine.core.rows import Rows
from grapevine.learn import networks as models
from grapevine.methods.fedanchor import FedAnchor, without_anchor_head

CLAIM = "The anchors add 0.29, 0.57 and 5.73 per cent to the model's broadcast at 250, 500 and 5000 anchors."
PAPER = {
    "250": 0.29,
    "500": 0.57,
    "5000": 5.73,
    "note": "CIFAR-10; the network is not named, ResNet-18 and Wide ResNet 28x2 are used",
}
NETWORKS, ANCHORS, CLASSES = ("resnet18", "wrn28x2", "cnn"), (250, 500, 5000), 10  # the third is ours, not the paper's
ROUNDED = 0.01  # per cent: what two printed digits and the messages' names and shapes leave open


def broadcast(method: FedAnchor, n: int, seed: int) -> int:
    """Bytes of the anchors of n rows. Their width is the anchor head's, whatever the network: a linear one is fastest."""
    source = ModelSource(lambda: method.network(models.build("linear", (4,), CLASSES, seed=seed)), torch.zeros(1, 4))
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    rows = Rows(x, torch.arange(n), torch.arange(n) % CLASSES)
    server = Server(method, range(1), None, source, tuple(map(str, range(CLASSES))), seed, data=rows)
    return wire.size(method.anchors(server, server.model().state(), {}))


def model(name: str, seed: int) -> tuple[int, int, int]:
    """Bytes of the weights that FedAvg would send and of the anchor head, and how many parameters FedAvg's are."""
    net = FedAnchor().network(models.build(name, (3, 32, 32), CLASSES, seed=seed))
    weights = without_anchor_head(net.state())
    head = sum(p.numel() for name, p in net.named_parameters() if name.startswith("anchor."))
    size = wire.size(weights)
    return size, wire.size(net.state()) - size, sum(p.numel() for p in net.parameters()) - head


def main() -> None:
    quick = arguments(CLAIM).quick
    seeds = range(1 if quick else SEEDS)
    numbers, matches = {}, {}
    for name in NETWORKS:
        sizes = [model(name, seed) for seed in seeds]
        added = [round(100 * head / size, 3) for size, head, _ in sizes]
        mine = numbers[name] = {"parameters": sizes[0][2], "anchor head": dict(spread(added), mean=round(mean(added), 3))}
        for compact in (False, True):
            for n in ANCHORS:
                added = [
                    round(100 * broadcast(FedAnchor(compact=compact), n, s) / size, 3) for s, (size, *_) in zip(seeds, sizes)
                ]
                mine[f"{n} anchors{', compact' if compact else ''}"] = dict(spread(added), mean=round(mean(added), 3))
        matches[name] = all(abs(mine[f"{n} anchors"]["mean"] - PAPER[str(n)]) <= ROUNDED + 0.01 * PAPER[str(n)] for n in ANCHORS)
    told = [f"{name} ({numbers[name]['parameters'] / 1e6:.2f} million parameters): "
            + ", ".join(f"{numbers[name][f'{n} anchors']['mean']:.2f} %" for n in ANCHORS)
            + f"; compact {numbers[name]['250 anchors, compact']['mean']:.2g} %" for name in NETWORKS]  # fmt: skip
    fits = [name for name in NETWORKS if matches[name]]
    why = ". ".join(told) + f". The paper's percentages are those of {' and '.join(fits) or 'none of these networks'} alone. "
    why += "The anchor head goes down with the model, too, which the paper does not count: "
    why += ", ".join(f"{numbers[name]['anchor head']['mean']:.2f} % of {name}" for name in NETWORKS) + ". "
    why += "Compact, a mean direction per class, does not grow with the anchors and gives the same pseudo-labels up to rounding."
    setting = (
        "128 float32 numbers and a label of 2 bytes an anchor, networks for 3x32x32 images and 10 classes; bytes on the wire"
    )
    outcomes = ["yes" if each else "no" for each in (matches["resnet18"], matches["wrn28x2"])]
    write(__file__, claim=CLAIM, setting=setting, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes), why=why,
          seeds=len(seeds), quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
