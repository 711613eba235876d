"""How hard the module-LWE problems of `grapevine.crypto.mlwe` and `product` are, and how large their noise and flood margins.

    python benchmarks/mlwe_security.py [--quick]

The method is that of the public lattice estimator, implemented here in its simplest form: module-LWE of rank 7 over a ring of
degree 512 is counted as plain LWE of dimension 3584; BKZ follows the geometric series assumption; the primal attack wins when
the projected secret is shorter than the last block's first vector ("2016 estimate", Alkim, Ducas, Poeppelmann, Schwabe); small
secrets are rescaled (Bai, Galbraith); a block of size beta costs 2^(0.292 beta) (core-SVP, classical) or the MATZOV gate count.
`KNOWN` holds what the estimator's own documentation prints for other schemes; the script shows that it gives the same.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from grapevine.crypto import mlwe, product
from grapevine.crypto.lattice import SIGMA


@dataclass(frozen=True)
class LWE:
    """n unknowns mod 2^log_q, `samples` equations, standard deviations of secret and error."""

    n: int
    log_q: float
    secret: float
    error: float
    samples: float = math.inf


# name: (instance; block size, dimension, core-SVP bits and MATZOV bits of the primal attack as the lattice estimator prints them)
KNOWN = {
    "Kyber512": (LWE(512, math.log2(3329), math.sqrt(1.5), math.sqrt(1.5), 512), 406, 998, 118.6, 143.8),
    "Kyber768": (LWE(768, math.log2(3329), 1.0, 1.0, 768), 624, 1427, 182.2, 204.9),
}

# the row for 128 bits, ternary secret, of the HomomorphicEncryption.org standard (2018)
HE_STANDARD = LWE(4096, 109, math.sqrt(2 / 3), 3.19)


def log_delta(beta: float) -> float:
    """log2 of the root Hermite factor of BKZ with block size beta."""
    return math.log2((math.pi * beta) ** (1 / beta) * beta / (2 * math.pi * math.e)) / (2 * (beta - 1))


def primal(lwe: LWE) -> tuple[int, int]:
    """Least block size that solves the unique-SVP instance, and the least dimension for it."""
    scale = math.log2(lwe.error / lwe.secret)

    def solved(beta: int, m: int) -> bool:
        d = lwe.n + m + 1
        last_block = (2 * beta - d - 1) * log_delta(beta) + (m * lwe.log_q + lwe.n * scale) / d
        return math.log2(lwe.error) + math.log2(beta) / 2 <= last_block

    beta, m = 60, best_samples(lwe, 60)
    while not solved(beta, m):
        beta += 1
        m = best_samples(lwe, beta)
    while solved(beta, m - 1):
        m -= 1
    return beta, lwe.n + m + 1


def best_samples(lwe: LWE, beta: int) -> int:
    """The number of equations that makes the reduced vectors shortest."""
    scale = math.log2(lwe.error / lwe.secret)
    best = math.sqrt(lwe.n * (lwe.log_q - scale) / log_delta(beta)) - lwe.n
    return int(max(1, min(best, lwe.samples)))


def dual(lwe: LWE) -> tuple[int, int, float]:
    """Block size, dimension and core-SVP bits of the cheapest distinguisher with many short vectors of the dual lattice."""
    scale = math.log2(lwe.error / lwe.secret)
    found = (0, 0, math.inf)
    for beta in range(60, 4 * lwe.n):
        if core_svp(beta) > found[2]:
            return found
        delta = log_delta(beta)
        d = lwe.n + best_samples(lwe, beta)
        # (y, z / scale) with y A = z mod q; a sieve gives 2^(0.2075 beta) vectors, longer than the first by sqrt(4/3)
        length = d * delta + lwe.n * (lwe.log_q - scale) / d + math.log2(4 / 3) / 2
        tau = 2 ** (length + math.log2(lwe.error) - lwe.log_q)
        advantage = -2 * (math.pi * tau) ** 2 / math.log(2)  # log2
        bits = core_svp(beta) + max(0.0, -2 * advantage - 0.2075 * beta)
        if bits < found[2]:
            found = (beta, d, bits)
    return found


def core_svp(beta: float) -> float:
    """Classical sieving, one call, no lower-order terms: log2 of the cost."""
    return 0.292 * beta


def matzov(beta: float, d: int) -> float:
    """log2 of gates: progressive BKZ and progressive sieving with dimensions for free and the MATZOV nearest-neighbour cost."""
    free = beta * math.log(4 / 3) / math.log(beta / (2 * math.pi * math.e))
    progressive = math.log2(5.46)
    return 0.296135 * (beta - free) + 20.387886 + 2 * progressive + math.log2(max(d - beta, 1))


FISHER = 2 * math.sqrt(3) * math.log(2 + math.sqrt(3))  # Fisher information of a sum of three uniforms on [0, 1]


def error_sigma(params: mlwe.Params) -> float:
    """Standard deviation of one coefficient's error before the flood: sum x_l e_l + w e_0 - e_1 s."""
    return SIGMA * math.sqrt(params.bits + params.dimension * (2 / 3 + SIGMA**2))


def flood_distance(params: mlwe.Params, points_j: int, points_k: int) -> float:
    """log2 of the statistical distance between client j's view of the errors of a pair and one that ignores B_k."""
    norm = error_sigma(params) * math.sqrt(points_j * points_k)
    return math.log2(norm * math.sqrt(FISHER) / 2) - params.flood_bits


def margin(params: mlwe.Params) -> float:
    """What the worst flood and the worst veil together take of the noise that still decodes: never wrong below 1. The rounding of
    u adds sqrt(sigma^2 dimension / 12) = 55 units, a thousandth."""
    unit = mlwe.LOG_Q - params.kept
    noise = 1.5 * 2.0 ** (params.flood_bits - unit) + 8.7 * mlwe.VEIL
    return noise / ((2 ** (mlwe.GUARD - 1) - 1) * 2.0 ** (params.kept - params.share_bits))


def hints(params: mlwe.Params, rows: int) -> float:
    """A bound on the largest eigenvalue of the Gram matrix of <d, s>, for so many rows of partners: at each root of x^ring + 1 a
    sum of `rows` outer products of vectors with entries of mean square ring / 12; twice that covers the spread of eigenvalues."""
    return 2 * rows * params.ring / 12


def key(params: mlwe.Params, rows: int = 0) -> LWE:
    """j's key, where the server and partners with so many rows collude: (s, e) given <d, s> + y is still Gaussian, at least as
    wide as two of this standard deviation together (docs/mlwe-parameters.md)."""
    sigma = SIGMA if not rows else SIGMA / math.sqrt(2 * (1 + hints(params, rows) * SIGMA**2 / mlwe.VEIL**2))
    return LWE(params.dimension, mlwe.LOG_Q, sigma, sigma)


def zero(params: mlwe.Params) -> LWE:
    """k's encryptions of zero."""
    return LWE(params.dimension, mlwe.LOG_Q, math.sqrt(2 / 3), SIGMA)


def spread_failure(scale: product.Scale) -> float:
    """log2 of a bound on the chance that one score of the private spread is wrong: Chernoff's, for the rounding of u against a
    ternary secret, with what the flood leaves of the margin."""
    n = product.RING * product.RANK
    room = 2.0 ** (scale.kept - scale.t_bits - 1) - 1.5 * 2.0 ** (scale.flood_bits - product.LOG_Q + scale.kept) - 1
    lambdas = [i / 1000 for i in range(1, 6001)]
    best = min(n * math.log(1 / 3 + 2 / 3 * math.sinh(x / 2) / (x / 2)) - x * room for x in lambdas)
    return 1 + best / math.log(2)


def show_attacks(name: str, lwe: LWE) -> None:
    beta, d = primal(lwe)
    print(f"  {name}")
    bits = f"core-SVP {core_svp(beta):.1f}, quantum {0.265 * beta:.1f}, MATZOV {matzov(beta, d):.1f}"
    print(f"    primal: beta {beta}, d {d}: {bits}")
    beta, d, best = dual(lwe)
    print(f"    dual:   beta {beta}, d {d}: core-SVP {best:.1f}")


def show_spread() -> None:
    n = product.RING * product.RANK
    print(f"\nprivate spread: module-LWE, n = {product.RING} x {product.RANK}, q = 2^{product.LOG_Q}, ternary secret")
    show_attacks("the parties' key, and the server's encryption of zero", LWE(n, product.LOG_Q, math.sqrt(2 / 3), SIGMA))
    print("  largest label, log2 t, room of a row, flood bits, bits kept, log2 distance of 500 x 60 scores, log2 failure of one")
    for most in (1, 2, 255):
        s = product.Scale(most)
        margins = f"{product.flood_distance(500, 60, most):.1f} {spread_failure(s):.1f}"
        print(f"    {most}: {s.t_bits} {s.room} {s.flood_bits} {s.kept} {margins}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="margins of the default L only")
    quick = parser.parse_args().quick
    print("check against published figures (primal attack: block size, dimension, core-SVP bits, MATZOV bits)")
    for name, (lwe, *published) in KNOWN.items():
        beta, d = primal(lwe)
        print(f"  {name}: {beta} {d} {core_svp(beta):.1f} {matzov(beta, d):.1f}; published {published}")

    params = mlwe.Params(4096)
    print(f"\nmodule-LWE, n = {params.ring} x {params.rank}, q = 2^{mlwe.LOG_Q}, errors of sigma = {SIGMA}")
    show_attacks("k's encryption of zero (ternary secret)", zero(params))
    for rows in (0, 2000, 20000):
        lwe = key(params, rows)
        show_attacks(f"j's key, {rows} rows of partners collude with the server: sigma {lwe.secret:.2f}", lwe)
    beta, d = primal(HE_STANDARD)
    print(f"  for comparison, n = 4096, log2 q = 109: beta {beta}: core-SVP {core_svp(beta):.1f}, MATZOV {matzov(beta, d):.1f}")

    print("\nL, log2 t, flood bits, bits kept, error sigma, log2 distance of a 500 x 500 pair, worst noise of what decodes")
    for bits in (4096,) if quick else (1024, 2048, 4096, 8192, 16384, 32768):
        p = mlwe.Params(bits)
        distance = flood_distance(p, 500, 500)
        print(f"  {bits}: {p.log_t} {p.flood_bits} {p.kept} {error_sigma(p):.0f} {distance:.1f} {margin(p):.2f}")
    show_spread()


if __name__ == "__main__":
    main()
