"""Heads beside a network's own: FedAnchor's anchor head, FedCon's projector, ProxyFL's two.

Their first weights come from a given generator, or from one that depends on the network they stand on, never from torch's global
one: both sides build the same.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from grapevine.core import Network
from grapevine.core.errors import Mistake
from grapevine.learn.layers import linear
from grapevine.learn.normalisation import BatchNorm1d


class TwoHeads(Network):
    """The network, and `anchor`: a linear layer from the features to the latent space (FedAnchor, section 4.1)."""

    def __init__(self, base: Network, width: int):
        super().__init__(base.features, base.head, base.features_dim)
        self.anchor = linear(_features(base), width, _rng_of(base))

    def latent(self, x: Tensor) -> Tensor:
        return self.anchor(self.features(x))


class Projected(Network):
    """The network, and `projector`: an MLP from the features to a prediction of another view's (FedCon's clients)."""

    def __init__(self, base: Network, hidden: int):
        super().__init__(base.features, base.head, base.features_dim)
        rng, d = _rng_of(base), _features(base)
        self.projector = nn.Sequential(linear(d, hidden, rng), BatchNorm1d(hidden), nn.ReLU(), linear(hidden, d, rng))


class Proxied(Network):
    """The network, whose head is one linear layer, and linear layers from its features, and from the rows of its head's weights
    (its proxies), to where the two are compared (ProxyFL's code), in at most so many dimensions."""

    def __init__(self, base: Network, most: int):
        super().__init__(base.features, base.head, base.features_dim)
        rng, d = _rng_of(base), _features(base)
        self.feature_projection, self.proxy_projection = linear(d, min(d, most), rng), linear(d, min(d, most), rng, bias=False)

    def project(self, features: Tensor) -> Tensor:
        return self.feature_projection(features)

    def proxies(self) -> Tensor:
        return self.proxy_projection(self.head.weight)


def _features(base: Network) -> int:
    if base.features_dim is None:
        raise Mistake("a second head needs the length of the network's feature vectors: give the module a `features_dim`.")
    return base.features_dim


def _rng_of(base: Network) -> torch.Generator:
    """A generator that depends on the last layer's weights, and through them on the experiment's seed."""
    digest = hashlib.sha256()
    for weight in base.head.state_dict().values():
        digest.update(weight.cpu().contiguous().numpy().tobytes())
    return torch.Generator().manual_seed(int.from_bytes(digest.digest()[:8], "big") >> 1)
