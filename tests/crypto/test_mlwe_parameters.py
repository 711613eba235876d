"""Parameters of mlwe: noise, flood and failure are as derived in docs/mlwe-parameters.md, and the lattices are hard enough."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from mlwe_exchange import Q, centred, drop, error_after, fixed, random_bits, stream
from scipy import stats

from grapevine.crypto import lattice, mlwe
from grapevine.crypto.mlwe import Params

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def security():
    path = Path(__file__).parents[2] / "benchmarks" / "mlwe_security.py"
    spec = importlib.util.spec_from_file_location("mlwe_security", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up there
        spec.loader.exec_module(module)
    return module


# ---- noise, flood and failure ----


def test_error_before_the_flood_is_as_derived(security):
    """sum x_l e_l + w e_0 - e_1 s, measured on unrounded sums, against sigma sqrt(L + dimension (2/3 + sigma^2))."""
    params = Params(200, ring=64, rank=7)
    B_j, B_k = random_bits(64, 200, 1), random_bits(60, 200, 2)
    secret, message, _, _ = fixed(params, B_j, B_k)
    sums = np.zeros((2, 60, params.dimension + 64), np.int64)
    mlwe._add_columns(params, [message], B_k, sums)
    mlwe._add_zero(params, [message], sums, stream("zero"))
    u = [sums[limb, :, : params.dimension] for limb in (0, 1)]
    carry = u[1] + (u[0] >> 40) & mlwe.MASK, u[0] & mlwe.MASK
    parts = [mlwe.convolve(x.reshape(60, 7, 64), secret.s[0][:, None])[:, 0].astype(object) for x in carry]
    v = sums[0, :, params.dimension :].astype(object) + sums[1, :, params.dimension :].astype(object) * (1 << 40)
    wanted = ((1 - 2.0 * B_k) @ B_j.T).astype(int).astype(object) * (Q // params.t)
    error = centred(v - parts[1] - parts[0] * (1 << 40) - wanted).astype(float)
    assert abs(error.mean()) < 15
    assert error.std() == pytest.approx(security.error_sigma(params), rel=0.1)


def test_noise_after_flood_veil_and_rounding_stays_inside_its_bound(monkeypatch):
    """Flood of 2^63 and the rounding of u, sqrt(sigma^2 dimension / 12) units, add in squares; the margin is 2^18 units."""
    drop(monkeypatch, "mask")
    params = Params(4096, ring=64, rank=7)
    secret, _, reply, _ = fixed(params, random_bits(64, 4096, 1), random_bits(60, 4096, 2))
    error = error_after(params, secret, reply)
    assert error.std() == pytest.approx(math.hypot(2**15, math.sqrt((params.dimension * 3.2**2 + 1) / 12)), rel=0.03)
    assert np.abs(error).max() < 1.5 * 2**16 + 500
    veil = mlwe._veil(stream("veil"), (400, 500)).reshape(-1)
    assert stats.kstest(veil / mlwe.VEIL, "norm").pvalue > 1e-4 and np.abs(veil).max() < 8.7 * mlwe.VEIL
    for L in (1, 1023, 4096, 8191, 8192, 32768):  # the worst flood and the worst veil at once, and both shares cut
        p = Params(L)
        worst = 1.5 * 2.0 ** (p.flood_bits - 80 + p.kept) + 8.7 * mlwe.VEIL + 20 * math.sqrt(3584 * 3.2**2 / 12)
        assert worst < (2 ** (mlwe.GUARD - 1) - 1) * 2.0 ** (p.kept - p.share_bits)


def test_flood_distance_by_hand(security):
    """Worked out in docs/mlwe-parameters.md."""
    params = Params(4096)
    sigma_e = 3.2 * math.sqrt(4096 + 3584 * (2 / 3 + 3.2**2))
    assert security.error_sigma(params) == pytest.approx(sigma_e) == pytest.approx(665.0, abs=0.1)
    # ||E|| sqrt(4.562) / (2 * 2^64)
    by_hand = math.log2(sigma_e * 500 * math.sqrt(4.5621) / 2) - 64
    assert security.flood_distance(params, 500, 500) == pytest.approx(by_hand, abs=1e-3) == pytest.approx(-45.6, abs=0.06)
    for L in (1, 1024, 4096, 8192, 32768):
        assert security.flood_distance(Params(L), 500, 500) < -42


def three_uniforms(width):
    one = np.full(width, 1 / width)
    return np.convolve(np.convolve(one, one), one)


def test_the_distance_bound_holds_for_integer_floods(security):
    """TV(F, F + E) <= E sqrt(I) / (2 W): exact sums for small W, where integers are farthest from the continuous case."""
    integral = 2 * math.sqrt(3) * math.log(2 + math.sqrt(3))
    x = (np.arange(200_000) + 0.5) / 200_000 / 2
    middle = 2 * np.mean(4 * x**2 / (0.75 - x**2)) * 0.5
    assert 4 + middle == pytest.approx(integral, rel=1e-6) == pytest.approx(security.FISHER)
    for width in (64, 256, 1024):
        p = three_uniforms(width)
        roots = np.sqrt(np.concatenate([[0], p, [0]]))
        discrete = 4 * (np.diff(roots) ** 2).sum() * width**2
        assert integral < discrete < integral * (1 + 2 / width)
        for shift in (1, 3, 10):
            moved = np.concatenate([np.zeros(shift), p])
            distance = np.abs(moved - np.concatenate([p, np.zeros(shift)])).sum() / 2
            assert distance <= shift * math.sqrt(discrete) / (2 * width)


def test_flood_is_an_integer_of_the_right_size_with_random_low_bits():
    for L in (4096, 32768):
        params = Params(L)
        low, high = mlwe._flood(params, stream("flood"), (200, 200))
        value = low.astype(object) + high.astype(object) * (1 << 40)
        width = params.flood_bits
        scaled = (value.reshape(-1) / 2**width).astype(float)
        assert np.abs(scaled).max() <= 1.5
        assert stats.kstest(scaled, cubic).pvalue > 1e-4
        assert scaled.std() == pytest.approx(0.5, rel=0.02)
        for byte in range(5):
            counts = np.bincount((low.reshape(-1) >> 8 * byte) & 255, minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-4


def cubic(x):
    """Distribution function of the sum of three uniforms, centred."""
    y = np.asarray(x) + 1.5
    return sum(sign * np.clip(y - k, 0, None) ** 3 for k, sign in enumerate([1, -3, 3, -1])) / 6


# ---- hardness ----


def test_hardness_estimate_agrees_with_the_lattice_estimators_published_figures(security):
    for lwe, beta, d, core, gates in security.KNOWN.values():
        ours = security.primal(lwe)
        assert ours[0] == beta and ours[1] == pytest.approx(d, abs=1)
        assert security.core_svp(ours[0]) == pytest.approx(core, abs=0.1)
        assert security.matzov(*ours) == pytest.approx(gates, abs=0.1)


def test_our_parameters_are_hard_enough(security):
    """Harder than Kyber512 (NIST level 1) in core-SVP bits, and above 145 bits of gates, for both secrets in use; the key with
    what 2,000 rows of partners that collude with the server tell about it."""
    params = Params(4096)
    kyber = security.core_svp(security.primal(security.KNOWN["Kyber512"][0])[0])
    for lwe in (security.key(params, 2000), security.zero(params)):
        beta, d = security.primal(lwe)
        assert security.core_svp(beta) > kyber and security.matzov(beta, d) > 145
        assert security.dual(lwe)[2] > kyber


def test_the_hints_weigh_as_little_as_derived(security):
    """The largest eigenvalue of the hints' Gram matrix, root by root, for 200 rows of random rounding errors: below the bound."""
    params, rows = Params(4096), 200
    rounding = np.random.default_rng(0).uniform(-0.5, 0.5, (rows, params.rank, params.ring))
    spectrum = lattice._spectrum(rounding).transpose(2, 0, 1)
    largest = np.linalg.norm(spectrum, 2, axis=(1, 2)).max() ** 2
    assert 0.5 * security.hints(params, rows) < largest < security.hints(params, rows)
    assert security.key(params, 2000).secret == pytest.approx(2.23, abs=0.01)
