"""The papers' settings at a size for two cores. Methods of a claim have the same data, rounds, clients a round, model, budget.

A budget (`--budget`) makes epochs, the server's epochs, pre-training, weight decay, schedule and augmentation alike for all that
have them; learning rates are chosen for each method on validation, by as many trials. A setting's name is that of its folder of
runs: a setting that changes gets another name.

XCLP is compared where a round's graph can hold all labels (digits, 20 clients of MNIST) and on features of CIFAR-10 (256 numbers
of EfficientNet-lite0 an image), ProtoFSSL and FedAnchor on these features. The papers train networks of millions of parameters
on CIFAR-10 for 500 to 3000 rounds. Fashion-MNIST is for xclp_parts.py and anchor_parts.py.
"""

from __future__ import annotations

import numpy as np
import torch
from common import DATA, FEW, RUNS, Setting, lrs

RATES = lrs(0.03, 0.1, 0.3, 0.6)
PLAIN = "plain"  # hands the server the same distances as the other protocols, bit for bit, and costs least

STAGE_1 = dict(weight_decay=0.0002, schedule="cosine", augment=True)  # XCLP's first stage, for labelled-only too
XCLP_TRIALS = {
    "fedavg": RATES,
    "network": RATES,
    "fedsem": RATES,
    "perclient-lp": RATES,
    "fedsiam": lrs(0.003, 0.01, 0.03, 0.1),
    "fedmatch": lrs(0.001, 0.01, 0.03, 0.1),
    "xclp": [dict(hamming=PLAIN, lr=lr) for lr in (0.03, 0.1, 0.3, 0.6)],
}
_XCLP = dict(data="cifar10-lite0", clients=100, labels="clients:1000", model="mlp", rounds=30, per_round=5, evaluate_every=3,
             budget=STAGE_1)  # fmt: skip
# Where a round's graph holds every client's labels: digits with all clients in a round, and 20 clients of 540 rows of MNIST,
# all of them guests. Their 15,000 rows are a table, of which 3000 are for testing and 1200 for validation.
MNIST_PART = RUNS / "mnist-15000.npz"
_DIGITS = dict(_XCLP, data="digits", clients=10, per_round=10, labels="clients:50", rounds=60)
_MNIST = dict(_XCLP, data=MNIST_PART, clients=20, labels="clients:200", budget=dict(STAGE_1, epochs=2))
_FEATURES = Setting("xclp3-iid", _XCLP, XCLP_TRIALS, seeds=FEW, further=False)
_SOME = {
    method: XCLP_TRIALS[method] for method in ("xclp", "fedavg", "perclient-lp", "network", "fedsem")
}  # the others cost most
_MNIST_IID = Setting("xclp3-mnist", _MNIST, _SOME, seeds=FEW, further=False)
XCLP = {
    "digits, 10 clients, 50 labels": Setting("xclp3-digits", _DIGITS, XCLP_TRIALS, further=False),
    "digits, 10 clients, 50 labels, label skew": Setting(
        "xclp3-digits-skew", dict(_DIGITS, labels="clients:50~5"), XCLP_TRIALS, further=False
    ),
    "MNIST, 20 clients, 200 labels, label skew": Setting(
        "xclp3-mnist-skew", dict(_MNIST, labels="clients:200~5"), _SOME, _MNIST_IID, FEW
    ),
    "CIFAR-10 features, 1000 labels": _FEATURES,
    "CIFAR-10 features, 1000 labels, label skew": Setting(
        "xclp3-skew", dict(_XCLP, labels="clients:1000~5"), XCLP_TRIALS, _FEATURES, FEW
    ),
}
# One local epoch instead of five, and without FedMatch and FedSiam, which cost most: dozens of runs take hours on two cores.
FASHION_METHODS = tuple(_SOME)
_FASHION = dict(data="fashion-mnist", clients=100, labels="clients:1000", model="cnn", rounds=60, per_round=5, evaluate_every=5,
                budget=dict(STAGE_1, epochs=1))  # fmt: skip
_FASHION_IID = Setting("xclp2-fashion-iid", _FASHION, _SOME, seeds=FEW, further=False)
_FASHION_SKEW = Setting("xclp2-fashion-skew", dict(_FASHION, labels="clients:1000~5"), tuned_as=_FASHION_IID, seeds=FEW)
XCLP_SOME = Setting(  # at 20 of the clients
    "xclp2-fashion-some", dict(_FASHION, labels="clients:1000/20"), tuned_as=_FASHION_IID, seeds=FEW
)
XCLP_FASHION = {"Fashion-MNIST, i.i.d., 1000 labels": _FASHION_IID, "Fashion-MNIST, label skew, 1000 labels": _FASHION_SKEW}


def make_mnist_part() -> None:
    """15,000 rows of MNIST as a table, by a fixed seed."""
    from grapevine import data

    if MNIST_PART.exists():
        return
    whole = data.load("mnist", data_dir=DATA)
    at = torch.randperm(len(whole.x), generator=torch.Generator().manual_seed(0))[:15000]
    MNIST_PART.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(MNIST_PART, X=whole.x[at].flatten(1).numpy().astype(np.float32) / 255, y=whole.y[at].numpy())


# Labelled-only FedAvg as in the paper, two steps of RMSprop on all labels a round; by SGD; and with the ten steps of ProtoFSSL.
AS_PAPER = "fedavg:optimiser=rmsprop,epochs=2,batch=1000"
PAPERS_RATE = ("protofssl:lr=0.001", f"{AS_PAPER},lr=0.001")  # of both in the paper's table 5
LABELLED_ONLY = (AS_PAPER, "fedavg:epochs=2,batch=1000", "fedavg:epochs=10,batch=1000")
PROTO_TRIALS = {
    "protofssl": lrs(0.0003, 0.001, 0.003, 0.01),
    AS_PAPER: lrs(0.0003, 0.001, 0.003, 0.01),
    **{method: ({},) for method in PAPERS_RATE},
    "fedavg": RATES,
    "fixmatch": RATES,
    "fedmatch": lrs(0.001, 0.01, 0.03, 0.1),
}
# The MLP's 64 numbers are learnt features for all methods; flat maps of the small CNN classify well before any training.
_PROTO = dict(data="cifar10-lite0", clients=100, labels="clients:5000", model="mlp", rounds=60, per_round=5, evaluate_every=4)
_PROTO_IID = Setting("proto4-iid", _PROTO, PROTO_TRIALS)
# What a noise does depends on the length of a prototype: 512 numbers, as those of the paper's network.
PROTO_WIDE = Setting("proto4-wide", dict(_PROTO, model="mlp:8", rounds=20), PROTO_TRIALS)
PROTO = {
    "i.i.d.": _PROTO_IID,
    "non-i.i.d.": Setting("proto4-noniid", dict(_PROTO, partition="fedmatch"), PROTO_TRIALS, _PROTO_IID),
}

ANCHOR_TRIALS = {
    "fedanchor": [dict(temperature=t, lr=lr) for t in (0.1, 0.5) for lr in (0.03, 0.1)],
    "semifl": [dict(lr=lr, threshold=t) for t in (0.8, 0.95) for lr in (0.03, 0.1)],
    "fixmatch": lrs(0.003, 0.01, 0.03, 0.1),
    "fedcon": lrs(0.01, 0.03, 0.1, 0.3),
    "server-only": RATES,
}
# Fewer clients, epochs and rounds than the papers' 10, 5 and 500, alike for all: a run takes seconds.
_ANCHOR = dict(data="cifar10-lite0", clients=100, model="mlp", rounds=20, per_round=5, evaluate_every=2)


def _anchor(labels: int, epochs: int, partition: str = "iid", as_in: Setting | None = None) -> Setting:
    """The same server for all methods: passes over the anchors a round, and five before the first."""
    budget = dict(epochs=2, server_epochs=epochs, pretrain=5)
    flags = dict(_ANCHOR, labels=f"server:{labels}", partition=partition, budget=budget)
    return Setting(f"anchor3-{labels}-{epochs}-{partition.partition(':')[0]}", flags, ANCHOR_TRIALS, as_in)


_FIRST = _anchor(50, 1)
ANCHOR = {
    "i.i.d., 50 anchors, 1 server epoch": _FIRST,
    "i.i.d., 50 anchors, 5 server epochs": _anchor(50, 5, as_in=_FIRST),
    "Dirichlet 0.1, 50 anchors, 1 server epoch": _anchor(50, 1, "dirichlet:0.1", as_in=_FIRST),
    "i.i.d., 250 anchors, 1 server epoch": _anchor(250, 1, as_in=_FIRST),
}
ANCHOR_WORDS = f"{_FIRST.words()}, also with server:250, with server_epochs=5 and with --partition dirichlet:0.1 (same fields)"
# One local epoch instead of five: batches of 10 in three views are slow on two cores.
_IMAGES = dict(data="fashion-mnist", clients=100, labels="server:250", model="cnn", rounds=20, per_round=5, evaluate_every=2,
               budget=dict(epochs=1, server_epochs=5, pretrain=5))  # fmt: skip
ANCHOR_FASHION = Setting("anchor2-fashion-iid", _IMAGES, ANCHOR_TRIALS, seeds=FEW, further=False)  # for anchor_parts.py
