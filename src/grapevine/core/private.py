"""What a party may spend of its rows' privacy on one job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Private:
    """(ε, δ) for each labelled row of this party, over all `rounds` that it takes part in; a row's gradient is cut at `clip`.

    `job` names the releases of this job in the party's ledger.
    """

    job: str
    epsilon: float
    delta: float
    clip: float
    rounds: int
