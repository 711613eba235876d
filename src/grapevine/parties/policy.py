"""A party's policy (`policy.toml`): what it agrees to without being asked. What lies outside is asked of a person, or refused.

    hosts     = ["host.example.org:8443"]     addresses of hosts
    jobs      = ["label", "train", "clean"]
    methods   = ["fedavg", "xclp"]            of training jobs
    protocols = ["mlwe"]                      of secure Hamming distances, in label jobs
    quorum    = 3                             no federation that goes on with fewer
    epsilon   = 3.0                           only jobs with differential privacy, of at most this ε
    otherwise = "ask"                         or "refuse": what becomes of the rest

A line that is not there allows everything. `--yes` answers for what the policy allows, and for nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.parties.agreement import Agreement
from grapevine.parties.files import read_toml
from grapevine.parties.talk import Talk


@dataclass(frozen=True)
class Policy:
    hosts: tuple[str, ...] | None = None
    jobs: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    protocols: tuple[str, ...] | None = None
    quorum: int = 2
    epsilon: float | None = None
    otherwise: str = "ask"

    def outside(self, agreed: Agreement, place: str) -> list[str]:
        """What of a proposal the policy does not allow, a reason each; nothing if it lies within."""
        settings = agreed.settings
        found = [_not_in("host", place, self.hosts), _not_in("job", agreed.job, self.jobs)]
        if agreed.job == "train":
            found.append(_not_in("method", agreed.method, self.methods))
        if agreed.job == "label":
            found.append(_not_in("protocol", settings.get("secure", ""), self.protocols))
        if agreed.quorum < self.quorum:
            found.append(f"quorum {agreed.quorum}, but the policy asks for {self.quorum} or more")
        spent = [settings[name] for name in ("dp_labels", "dp") if settings.get(name) is not None]
        if self.epsilon is not None and (not spent or max(spent) > self.epsilon):
            told = f"ε {max(spent):g}" if spent else "no differential privacy"
            found.append(f"{told}, but the policy allows at most ε {self.epsilon:g}")
        return [reason for reason in found if reason]


def _not_in(what: str, value: str, allowed: tuple[str, ...] | None) -> str:
    return "" if allowed is None or value in allowed else f"{what} {value}, but the policy allows {', '.join(allowed) or 'none'}"


def policy_file(said: str | None) -> Path | None:
    """The file that was named, else the party's own if there is one."""
    if said is not None:
        return Path(said).expanduser()
    usual = Path(os.environ.get("GRAPEVINE_POLICY") or Path.home() / ".grapevine" / "policy.toml").expanduser()
    return usual if usual.exists() else None


def willing(path: Path | None, agreed: Agreement, place: str, name: str, talk: Talk) -> bool:
    """Whether the party agrees: by its policy; without one, by `--yes` or a person; outside it, by a person alone."""
    question = f"Join federation {agreed.name} at {place} as {name}?"
    if path is None:
        return talk.ask(question)
    policy = read_policy(path)
    reasons = policy.outside(agreed, place)
    if not reasons:
        talk.say(f"This is within the policy {path}.")
        return True
    if policy.otherwise == "refuse":
        raise Mistake(f"nothing was sent: this federation has {reasons[0]} ({path}).")
    for reason in reasons:
        talk.say(f"Outside your policy: {reason}.")
    return talk.insist(question)


def read_policy(path: Path) -> Policy:
    table, known = read_toml(path), {f.name for f in fields(Policy)}
    for name, value in table.items():
        if name not in known:
            raise Mistake(f"{path}: a policy has no line '{name}'; it may have {', '.join(sorted(known))}.")
        if not _fits(name, value):
            raise Mistake(f"{path}: {name} is {value!r}; use {_WANTED[name]}.")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    return Policy(**values)


_WANTED = dict.fromkeys(("hosts", "jobs", "methods", "protocols"), "a list of names") | dict(
    quorum="a whole number from 2 on", epsilon="a number above 0", otherwise='"ask" or "refuse"'
)


def _fits(name: str, value: Any) -> bool:
    if name == "quorum":
        return type(value) is int and value >= 2
    if name == "epsilon":
        return type(value) in (int, float) and value > 0
    if name == "otherwise":
        return value in ("ask", "refuse")
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
