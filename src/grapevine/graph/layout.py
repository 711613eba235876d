"""A graph as a picture: rows in the plane, neighbours together.

Two parts, because they run in two places. The server, which has the graph, finds a few smooth coordinates for a sample of its
rows (`smooth`: no labels, no features). Whoever draws lays these out in the plane (`plane`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from grapevine.core.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST = 800  # rows in a picture
DIMENSIONS = 10
SWEEPS = 30  # passes of the smoothing: enough for a picture, and it bounds the time
NEIGHBOURS = 12
STEPS = 100  # of the layout; the first quarter pulls neighbours together four times as hard (t-SNE's early exaggeration)


def smooth(W: sp.csr_array, seed: int = 0) -> dict[str, np.ndarray]:
    """About the leading eigenvectors of a normalised graph, for a sample of its rows: `rows` and `coordinates`."""
    n, draw = W.shape[0], np.random.default_rng(seed)
    Q = draw.standard_normal((n, min(DIMENSIONS, n)))
    for _ in range(SWEEPS):
        Q, _ = np.linalg.qr(Q + W @ Q)
    _, U = np.linalg.eigh(Q.T @ (W @ Q))
    E = (Q @ U)[:, ::-1]
    rows = np.sort(draw.permutation(n)[:MOST])
    return dict(rows=rows, coordinates=E[rows].astype(np.float32))


def plane(coordinates: np.ndarray, seed: int = 0) -> np.ndarray:
    """m × 2: t-SNE (van der Maaten and Hinton 2008) with equal weights on nearest neighbours in place of Gaussian ones.

    Exact, in time steps · m², which is why the sample is small.
    """
    E = np.asarray(coordinates, np.float32)
    E = E / np.maximum(np.linalg.norm(E, axis=1, keepdims=True), 1e-12)
    m = len(E)
    if m < 3:
        return np.arange(2.0 * m, dtype=np.float32).reshape(m, 2)
    near = E @ E.T
    np.fill_diagonal(near, -np.inf)
    k = min(NEIGHBOURS, m - 1)
    index = np.argpartition(-near, k - 1, axis=1)[:, :k]
    P = sp.csr_array((np.ones(m * k, np.float32), (np.repeat(np.arange(m), k), index.ravel())), shape=(m, m))
    P = (P + P.T) / np.float32(2 * m * k)
    Z = np.random.default_rng(seed).standard_normal((m, 2)).astype(np.float32) * 1e-2
    Z[:, : min(2, E.shape[1] - 1)] += E[:, 1:3]
    Z *= 1e-2 / max(float(Z.std()), 1e-12)
    i = np.repeat(np.arange(m), np.diff(P.indptr))
    speed, gain = np.zeros_like(Z), np.ones_like(Z)
    for at in range(STEPS):
        early = at < STEPS // 4
        square = (Z * Z).sum(1)
        Q = 1.0 / (1.0 + np.maximum(square[:, None] + square - 2.0 * (Z @ Z.T), 0.0))
        np.fill_diagonal(Q, 0.0)
        total = Q.sum()
        pull = sp.csr_array((P.data * Q[i, P.indices], P.indices, P.indptr), shape=P.shape)
        Q *= Q
        force = (4.0 if early else 1.0) * (np.asarray(pull.sum(1)).reshape(-1, 1) * Z - pull @ Z)
        force -= (Q.sum(1, keepdims=True) * Z - Q @ Z) / total
        gain = np.where(force * speed > 0, gain * 0.8, gain + 0.2).clip(0.01)
        speed = (0.5 if early else 0.8) * speed - (m / 4.0) * gain * force
        Z = Z + speed
    return Z - Z.mean(0)


def leading(z: Tensor, width: int) -> Tensor:
    """Rows in their leading principal components, at most `width`, centred: float32, the distances nearly kept."""
    z = z.double() - z.double().mean(0)
    if z.shape[1] <= width:
        return z.float()
    if z.shape[1] <= len(z):
        return (z @ torch.linalg.eigh(z.T @ z)[1].flip(1)[:, :width]).float().contiguous()
    values, vectors = torch.linalg.eigh(z @ z.T)  # from the smaller of the two: z = U √λ Vᵀ
    return (vectors.flip(1)[:, :width] * values.flip(0)[:width].clamp(min=0).sqrt()).float().contiguous()
