"""The papers' settings at a size for two cores. The same data, rounds, clients a round and model for all methods of a claim.

XCLP and FedAnchor are compared on features of CIFAR-10 (EfficientNet-lite0, 256 numbers an image), ProtoFSSL and again FedAnchor
on Fashion-MNIST with the small CNN. The papers train networks of millions of parameters on CIFAR-10 for 500 to 3000 rounds.
"""

from __future__ import annotations

from common import Setting, lrs

RATES = lrs(0.03, 0.1, 0.3, 0.6)
PLAIN = "plain"  # hands the server the same distances as the other protocols, bit for bit, and costs least

XCLP_TRIALS = {
    "fedavg": RATES,
    "network": RATES,
    "fedsem": RATES,
    "perclient-lp": RATES,
    "fedsiam": lrs(0.003, 0.01, 0.03, 0.1),
    "fedmatch": lrs(0.001, 0.01, 0.03, 0.1),
    "xclp": [dict(hamming=PLAIN, lr=lr, preset=preset) for preset in ("paper", "code") for lr in (0.1, 0.3)],
}
_XCLP = dict(data="cifar10-lite0", clients=100, labels="clients:1000", model="mlp", rounds=60, per_round=5, evaluate_every=5)
XCLP = {
    "i.i.d., 1000 labels": Setting("xclp-iid", _XCLP, XCLP_TRIALS),
    "label skew, 1000 labels": Setting("xclp-skew", dict(_XCLP, labels="clients:1000~5"), XCLP_TRIALS),
}
# One local epoch instead of five, and without FedMatch and FedSiam, which cost most: dozens of runs take hours on two cores.
FASHION_METHODS = ("xclp", "fedavg", "perclient-lp", "network", "fedsem")
_FASHION = dict(data="fashion-mnist", clients=100, labels="clients:1000", model="cnn", rounds=24, per_round=5, evaluate_every=2)
FASHION_TRIALS = {method: [dict(each, epochs=1) for each in XCLP_TRIALS[method]] for method in FASHION_METHODS}
_FASHION_IID = Setting("xclp-fashion-iid", _FASHION, FASHION_TRIALS)
_FASHION_SKEW = Setting("xclp-fashion-skew", dict(_FASHION, labels="clients:1000~5"), tuned_as=_FASHION_IID)
XCLP_SOME = Setting("xclp-fashion-some", dict(_FASHION, labels="clients:1000/20"), tuned_as=_FASHION_IID)  # at 20 of the clients
XCLP_FASHION = {"Fashion-MNIST, i.i.d., 1000 labels": _FASHION_IID, "Fashion-MNIST, label skew, 1000 labels": _FASHION_SKEW}
PROTO_TRIALS = {
    "protofssl": lrs(0.0003, 0.001, 0.003, 0.01),
    "fedavg": RATES,
    "fixmatch": RATES,
    "fedmatch": lrs(0.001, 0.01, 0.03, 0.1),
}
_PROTO = dict(data="fashion-mnist", clients=100, labels="clients:5000", model="cnn", rounds=40, per_round=5, evaluate_every=4)
PROTO = {
    "i.i.d.": Setting("proto-iid", _PROTO, PROTO_TRIALS),
    "non-i.i.d.": Setting("proto-noniid", dict(_PROTO, partition="fedmatch"), PROTO_TRIALS),
}
# The same comparison where all methods have learnt layers below what they classify: the MLP's 64 numbers are its last features.
_PROTO_FEATURES = dict(_PROTO, data="cifar10-lite0", model="mlp", rounds=60, evaluate_every=5)
PROTO_FEATURES = {
    "CIFAR-10 features, 5000 labels, i.i.d.": Setting("proto-features-iid", _PROTO_FEATURES, PROTO_TRIALS),
    "CIFAR-10 features, 5000 labels, non-i.i.d.": Setting(
        "proto-features-noniid", dict(_PROTO_FEATURES, partition="fedmatch"), PROTO_TRIALS
    ),
}

ANCHOR_TRIALS = {
    "fedanchor": [dict(temperature=t, lr=lr) for t in (0.1, 0.5) for lr in (0.03, 0.1)],
    "semifl": [dict(lr=lr, threshold=t) for t in (0.8, 0.95) for lr in (0.03, 0.1)],
    "fixmatch": lrs(0.003, 0.01, 0.03, 0.1),
    "fedcon": lrs(0.01, 0.03, 0.1, 0.3),
    "server-only": RATES,
}
_ANCHOR = dict(data="cifar10-lite0", clients=100, labels="server:250", model="mlp", rounds=40, per_round=10, evaluate_every=4)
ANCHOR = {
    "i.i.d., 250 anchors": Setting("anchor-iid", _ANCHOR, ANCHOR_TRIALS),
    "Dirichlet 0.1, 250 anchors": Setting("anchor-dirichlet", dict(_ANCHOR, partition="dirichlet:0.1"), ANCHOR_TRIALS),
}

# One local epoch instead of five: batches of 10 in three views are slow on two cores.
IMAGE_TRIALS = {method: [dict(each, epochs=1) for each in trials] for method, trials in ANCHOR_TRIALS.items()}
_IMAGES = dict(data="fashion-mnist", clients=100, labels="server:250", model="cnn", rounds=20, per_round=5, evaluate_every=2)
ANCHOR_IMAGES = {
    "Fashion-MNIST, i.i.d., 250 anchors": Setting("anchor-fashion-iid", _IMAGES, IMAGE_TRIALS),
    "Fashion-MNIST, Dirichlet 0.1, 250 anchors": Setting(
        "anchor-fashion-dirichlet", dict(_IMAGES, partition="dirichlet:0.1"), IMAGE_TRIALS
    ),
}
ANCHOR_WORDS = " and ".join((
    ANCHOR["i.i.d., 250 anchors"].words(),
    ANCHOR_IMAGES["Fashion-MNIST, i.i.d., 250 anchors"].words() + ", 1 local epoch",
)) + "; both also with --partition dirichlet:0.1"  # fmt: skip
