"""The accountant: what releases cost together, as (ε, δ), and how much noise a budget asks for.

An event says what was released and with how much noise; it is a plain table in a party's ledger, so what was spent can be
counted again later. Every event hides one unit: "row" (one row of one party is present or blank) or "label" (one row's label is
this or another). Costs of different units are never added.

Gaussian noise without sampling has a closed form (Balle, Wang: "Improving the Gaussian Mechanism for Differential Privacy", ICML
2018). With Poisson sampling, Google's dp-accounting composes the distributions of the privacy loss; its discretisation only ever
overstates ε. Neighbours differ by one row that is there or blank ("zero-out"), so how many rows a party has is not hidden.

The noise we draw is discrete, in steps far smaller than its width. `slack` bounds how far it is from a Gaussian rounded to those
steps, which costs exactly what the Gaussian does (rounding is post-processing), and for a sum of several parties' noise how far
that is from one discrete Gaussian (Kairouz, Liu, Steinke: "The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation", ICML 2021). A total variation of η adds (1 + e^ε) η to δ; a hundredth of δ is kept for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from grapevine.core.errors import Mistake
from grapevine.crypto.fixed import FRACTION_BITS

LEAST_PARTIES, LEAST_ROWS = 3, 10  # the fewest in a sum that is opened
MOST_VALUES = 2**24  # the most values in a sum of several parties
SHARE_OF_SLACK = 0.01  # the share of δ that is kept for slack
LEAST_MULTIPLIER = 0.3  # below it ε is so large that nothing is promised
INTERVAL = 1e-3  # the grid of the privacy loss, for distributions with sampling: the error is on the safe side


@dataclass(frozen=True)
class Gaussian:
    """`count` sums with Gaussian noise of `multiplier` times what one row can add (L2), each over a random share `rate` of the
    rows.

    `slack` is the total variation between the noise that is drawn and the Gaussian, for all of them together.
    """

    kind: ClassVar[str] = "gaussian"
    unit: ClassVar[str] = "row"

    multiplier: float
    count: int = 1
    rate: float = 1.0
    slack: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.multiplier < math.inf and self.count >= 0 and 0 < self.rate <= 1 and 0 <= self.slack < math.inf):
            raise ValueError(f"not an event: {self}")


@dataclass(frozen=True)
class Response:
    """Labels by randomised response; `count` times with fresh coins for the same rows."""

    kind: ClassVar[str] = "response"
    unit: ClassVar[str] = "label"

    epsilon: float
    classes: int
    count: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and self.classes >= 2 and self.count >= 0):
            raise ValueError(f"not an event: {self}")


Event = Gaussian | Response


def to_table(event: Event) -> dict[str, Any]:
    """An event as the ledger keeps it."""
    return dict(kind=event.kind, unit=event.unit, **asdict(event))


def from_table(table: Mapping[str, Any]) -> Event:
    """An event out of the ledger."""
    kinds: dict[str, type[Gaussian] | type[Response]] = {"gaussian": Gaussian, "response": Response}
    values = {name: value for name, value in table.items() if name not in ("kind", "unit")}
    try:
        event = kinds[table["kind"]](**values)
    except (KeyError, TypeError, ValueError):
        raise Mistake(f"a release names a mechanism that the accountant does not know: {dict(table)}.") from None
    return event


# ---------------------------------------------------------------- what was spent


def spent(events: Sequence[Event], delta: float) -> dict[str, tuple[float, float]]:
    """(ε, δ) for each unit that the events have: randomised labels add up and need no δ."""
    out: dict[str, tuple[float, float]] = {}
    labels = [e for e in events if isinstance(e, Response)]
    sums = [e for e in events if isinstance(e, Gaussian)]
    if labels:
        out["label"] = (math.fsum(e.epsilon * e.count for e in labels), 0.0)
    if sums:
        out["row"] = (epsilon(sums, delta), delta)
    return out


def epsilon(events: Sequence[Gaussian], delta: float) -> float:
    """The ε that these sums cost together at δ."""
    check_budget(1.0, delta)
    events, slack = [e for e in events if e.count], math.fsum(e.slack for e in events)
    if not events:
        return 0.0
    counts: Counter[tuple[float, float]] = Counter()
    for e in events:
        counts[e.multiplier, e.rate] += e.count
    found = _epsilon(tuple(sorted((*key, count) for key, count in counts.items())), delta * (1 - SHARE_OF_SLACK))
    if (1 + math.exp(min(found, 700))) * slack > SHARE_OF_SLACK * delta:
        return math.inf
    return found


def require(events: Sequence[Event], budget: float, delta: float, whose: str) -> None:
    """Refuse a plan that would cost more than its budget."""
    for unit, (cost, _) in spent(events, delta).items():
        if cost > budget * (1 + 1e-9):
            raise Mistake(
                f"{whose} would spend ε = {cost:.3g} per {unit} at δ = {delta:g}, but its budget is ε = {budget:g}: use fewer "
                "rounds, more noise or a larger budget."
            )


def check_budget(budget: float, delta: float) -> None:
    if not 0 < budget < math.inf:
        raise Mistake(f"dp is {budget:g}, which must be above 0, as in 3.")
    if not 0 < delta < 0.1:
        raise Mistake(f"delta is {delta:g}, which must be above 0 and below 0.1, as in 1e-6.")


@lru_cache(maxsize=1024)
def _epsilon(sums: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """ε of (multiplier, rate, count): in closed form without sampling, else by distributions of the privacy loss."""
    dp = _library()
    if all(rate == 1 for _, rate, _ in sums):  # together they are one Gaussian: 1/z² adds up
        return float(dp.get_epsilon_gaussian(math.fsum(count / z**2 for z, _, count in sums) ** -0.5, delta))
    accountant = dp.pld.PLDAccountant(value_discretization_interval=INTERVAL)
    for z, rate, count in sums:
        one = dp.GaussianDpEvent(z)
        accountant.compose(one if rate == 1 else dp.PoissonSampledDpEvent(rate, one), count)
    return float(accountant.get_epsilon(delta))


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise Mistake("differential privacy needs the `dp` extra: pip install 'grapevine-fl[dp]'.") from None
    return dp_accounting


# ---------------------------------------------------------------- how much noise


def calibrate(budget: float, delta: float, events: Sequence[Gaussian]) -> float:
    """The least z, to a thousandth, so that the events with z times their multipliers cost at most the budget.

    With multipliers of 1, z is the noise multiplier of them all.
    """
    check_budget(budget, delta)
    if not any(e.count for e in events):
        return LEAST_MULTIPLIER
    return _calibrate(budget, delta, tuple(events))


@lru_cache(maxsize=1024)
def _calibrate(budget: float, delta: float, events: tuple[Gaussian, ...]) -> float:
    def over(log_z: float) -> float:
        z = math.exp(log_z)
        return math.log(max(epsilon([replace(e, multiplier=e.multiplier * z) for e in events], delta), 1e-9) / budget)

    low = high = math.log(LEAST_MULTIPLIER / min(e.multiplier for e in events))
    if over(low) <= 0:
        return math.exp(low)
    while over(high) > 0:
        low, high = high, high + math.log(2)
        if high > 40:
            raise Mistake(f"no amount of noise gives ε = {budget:g} at δ = {delta:g}: use a larger budget or fewer releases.")
    from scipy.optimize import brentq  # here, because it takes 30 MB, and few jobs spend a budget

    root = brentq(over, low, high, xtol=2e-4)
    while over(root) > 0:
        root += 2e-4
    return math.exp(root)


def share(multiplier: float, sensitivity: float, parties: int, colluding: int) -> float:
    """The standard deviation of the noise that each party adds, so that a sum over `parties` of them has enough.

    Colluding parties can subtract their own noise, so the noise of the others must be enough: `parties` is the least number whose
    noise is in the sum (the quorum, not the number invited), `colluding` how many of them may work together, with the server or
    without. `colluding = parties - 1` is local differential privacy.
    """
    if not 0 <= colluding < parties:
        raise Mistake(f"{colluding} of {parties} parties cannot collude: at least one must be honest.")
    return multiplier * sensitivity / math.sqrt(parties - colluding)


def slack(sigma: float, values: int, count: int = 1, honest: int = 1) -> float:
    """Total variation between `count` vectors of noise, each the sum of `honest` parties' discrete Gaussians, and rounded
    Gaussians.

    `sigma` is a party's own, in real units. A discrete Gaussian of s steps and a rounded Gaussian differ by χ² ≤ 2 / (12 s²)² a
    value (twice the leading term of the difference), which add up, and total variation is at most √(χ² / 2). A sum of m discrete
    Gaussians differs from one by a factor of e^±τ a value, τ = 10 Σ_{k<m} exp(−2π² s² k / (k + 1)) (Kairouz, Liu, Steinke).
    """
    s = math.ldexp(sigma, FRACTION_BITS)
    if s < 16:
        raise Mistake(f"noise of {s:.2g} steps is too narrow for the accountant: it needs at least 16.")
    tau = 10 * math.fsum(math.exp(-2 * math.pi**2 * s**2 * k / (k + 1)) for k in range(1, honest))
    return math.sqrt(values * count) / (12 * honest * s**2) + values * count * tau


# ---------------------------------------------------------------- sums of several parties


@dataclass(frozen=True)
class Sum:
    """A planned sum: its noise relative to that of the other sums, and what one row can add to it (L2)."""

    weight: float
    sensitivity: float = 1.0


@dataclass(frozen=True)
class Noise:
    """What a party adds to its part of a sum: noise of width `sigma`. The noise of `least` honest parties together is the
    event's."""

    event: Gaussian
    sigma: float
    least: int


def plan(budget: float, delta: float, parties: int, sums: Mapping[str, Sum]) -> dict[str, Noise]:
    """Noise for every sum of a job among these parties, within the budget as long as more than half of them are honest and stay.
    Colluding parties can subtract their own noise, and lost ones add none."""
    require_cell(parties, LEAST_ROWS, "every sum with noise")
    honest, z = parties // 2 + 1, calibrate(budget, delta, [Gaussian(s.weight) for s in sums.values()])
    out = {}
    for name, s in sums.items():
        sigma = share(z * s.weight, s.sensitivity, parties, parties - honest)
        event = Gaussian(z * s.weight, slack=slack(sigma, MOST_VALUES, honest=honest))
        out[name] = Noise(event, sigma, max(honest, LEAST_PARTIES))
    require([noise.event for noise in out.values()], budget, delta, "each party")
    return out


# ---------------------------------------------------------------- what may be opened at all


def require_cell(parties: int, rows: int, what: str, least_parties: int = LEAST_PARTIES) -> None:
    """Refuse to open a sum over fewer than three parties or ten rows. A federation that agreed on two parties may sum over
    two."""
    if parties < least_parties:
        over = "1 party" if parties == 1 else f"{parties} parties"
        raise Mistake(
            f"{what} would be summed over {over}, but a sum is opened only over {least_parties} or more: wait for them."
        )
    if rows < LEAST_ROWS:
        raise Mistake(
            f"{what} would be summed over {rows} rows, but a sum is opened only over {LEAST_ROWS} or more: leave it out."
        )
