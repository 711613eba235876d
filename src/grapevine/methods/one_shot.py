"""What the one-shot methods share (`label`, `gaussian`): what parties say in exchange 1, their rows and labels, and scaling by
the moments that they open (`crypto.together`)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import MethodType
from typing import Any

import numpy as np

from grapevine.core import Client, Id, Method, Mistake, Server, party_name
from grapevine.core.reply import Form
from grapevine.crypto import session

MOST_ROWS = 2**24  # a party's count beyond it is nonsense, and others would make masks of that size
HELLO: dict[str, Form] = dict(offer=session.OFFER_FORM, features=range(1, 2**24), classes=[str])
ROWS, LABELS = "how many rows this party has", "how many rows are labelled"
REVEALS = dict(
    offer=session.OFFER, features="how many features a row has", classes="the names of the classes this party knows",
)  # fmt: skip


class InGroups(Method):
    """A job of one round in which parties are labelled in `groups`: a method says in `run` what happens in one of them."""

    personal = True
    groups: int
    xclp: Any

    def steps(self, prefix: str = "") -> dict[str, MethodType]:
        """Nothing is evaluated here: no server may ask how well a party's rows are classified."""
        return {name: bound for name, bound in super().steps(prefix).items() if name != f"{prefix}evaluate"}

    def check(self, server: Server) -> None:
        count = len(server.clients)
        if count < 2:
            there = ", ".join(map(party_name, server.clients)) or "nobody"
            raise Mistake(f"only {there} is there, but labels travel between parties: at least two must take part.")
        if self.groups > count // 2:
            raise Mistake(f"groups is {self.groups}, but {count} parties can form 1 to {count // 2}.")

    def setup(self, server: Server) -> dict:
        return dict(round=0)

    def shared(self, state: dict) -> dict:
        return {}

    def round(self, server: Server, state: dict) -> dict:
        """One shot. The state says what the server may know: who was there, and the estimate."""
        groups = {i: server.clients[i :: self.groups] for i in range(self.groups)}
        return dict(round=1, groups={i: self.run(server, ids, i) for i, ids in groups.items()})

    def run(self, server: Server, clients: list[Id], number: int) -> dict:
        """The job among the parties of one group."""
        raise NotImplementedError

    def session_id(self, server: Server, number: int) -> str:
        return f"seed {server.seed} group {number}" if self.xclp.reproducible else secrets.token_hex(16)


def hello(client: Client, session_id: str) -> dict:
    """A client's words in exchange 1: `HELLO` is their form, `REVEALS` what they tell."""
    return dict(offer=session.offer(client, session_id), features=int(features(client).shape[1]),
                classes=dict(enumerate(client.data.classes)))  # fmt: skip


def agreed(said: Mapping[str, dict]) -> dict:
    """Everybody's keys, and the names of all classes, as exchange 2 tells them. Parties must have the same features."""
    widths = {name: reply["features"] for name, reply in said.items()}
    first = next(iter(widths))
    for name, width in widths.items():
        if width != widths[first]:
            raise Mistake(f"{name} has {width} features but {first} has {widths[first]}: give all parties the same columns.")
    classes = sorted({name for reply in said.values() for name in reply["classes"].values()})
    return dict(offers={name: reply["offer"] for name, reply in said.items()}, classes=dict(enumerate(classes)))


def named(replies: Mapping[Id, dict]) -> dict[str, dict]:
    return session.named(replies, "labelling")


def features(client: Client) -> np.ndarray:
    """A party's rows, labelled first, as float64; a missing value is NaN."""
    both = (client.data.labelled, client.data.unlabelled)
    return np.concatenate([rows.flat().astype(np.float64) for rows in both])


def labels(client: Client) -> np.ndarray:
    """A party's labels in the numbering that all share, −1 where there is none."""
    number = {name: i for i, name in client.memory["classes"].items()}
    own = np.array([number[name] for name in client.data.classes], np.int64)
    known = own[np.asarray(client.data.labelled.y)] if len(client.data.labelled) else np.empty(0, np.int64)
    return np.concatenate([known, np.full(len(client.data.unlabelled), -1)])


def scaling(moments: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature from the pooled counts, sums and sums of squares.

    A feature that does not vary is given an infinite deviation: it becomes 0 and plays no part. What float64 cannot tell from
    rounding (a deviation under 1e-7 of the mean) counts as not varying.
    """
    n, total, squares = (moments[i * d : (i + 1) * d] for i in range(3))
    n = np.maximum(n, 1.0)
    mean = total / n
    variance = np.maximum(squares / n - mean**2, 0.0)
    std = np.sqrt(variance)
    return mean, np.where(std > 1e-7 * np.abs(mean), std, np.inf)
