"""A party's policy (`policy.toml`): what it agrees to without being asked. What lies outside is asked of a person, or refused.

    hosts     = ["host.example.org:8443"]     addresses of hosts, with the port or without
    jobs      = ["label", "train", "clean"]
    methods   = ["chorus", "fedavg"]          of all jobs; clean's is mp-ssfl
    protocols = ["mlwe"]                      for distances; labels that spread as in the paper need "paper" besides
    quorum    = 3                             no federation that continues with fewer
    epsilon   = 3.0                           only jobs with differential privacy, of at most this ε each
    otherwise = "ask"                         or "refuse": what becomes of the rest

A missing line allows everything, but at least one line is needed. `--yes` answers for what the policy allows, and for nothing
else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.crypto.hamming import PROTOCOLS
from grapevine.crypto.spread import Columns
from grapevine.parties.agreement import Agreement
from grapevine.parties.files import read_toml
from grapevine.parties.settings import JOBS
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
        """The reasons why the policy does not allow a proposal; none if it does."""
        hosts = self.hosts and tuple(host if ":" in host else f"{host}:{place.rpartition(':')[2]}" for host in self.hosts)
        method = agreed.method or dict(label=agreed.settings.get("method", "chorus"), clean="mp-ssfl").get(agreed.job, "")
        found = [_not_in("host", place, hosts), _not_in("job", agreed.job, self.jobs), _not_in("method", method, self.methods)]
        found += [_not_in("protocol", name, self.protocols) for name in protocols(agreed)]
        if agreed.quorum < self.quorum:
            found.append(f"quorum {agreed.quorum}, but the policy asks for {self.quorum} or more")
        spent = [agreed.settings[name] for name in ("dp_labels", "dp") if agreed.settings.get(name) is not None]
        if self.epsilon is not None and (not spent or not sum(spent) <= self.epsilon):  # what is no number is not allowed either
            told = f"ε {sum(spent):g}" if spent else "no differential privacy"
            found.append(f"{told}, but the policy allows at most ε {self.epsilon:g}")
        return [reason for reason in found if reason]


def protocols(agreed: Agreement) -> list[str]:
    """A job's protocol for distances, if it has one, and "paper" where labels spread in a way that lets parties read them."""
    method = agreed.made
    hamming = agreed.settings.get("secure") if agreed.job == "label" else getattr(getattr(method, "hamming", None), "name", None)
    open_labels = agreed.settings.get("spread") == "paper" or isinstance(getattr(method, "spread", None), Columns)
    return [*([hamming] if hamming else []), *(["paper"] if open_labels else [])]


def _not_in(what: str, value: str, allowed: tuple[str, ...] | None) -> str:
    known = allowed is None or value.lower() in [one.lower() for one in allowed]
    return "" if known or allowed is None else f"{what} {value}, but the policy allows {', '.join(allowed) or 'none'}"


def policy_file(said: str | None) -> Path | None:
    """The file that was named, else the party's own if there is one."""
    said = said or os.environ.get("GRAPEVINE_POLICY")
    if said:  # a named file that does not exist is a mistake, not permission for everything
        return Path(said).expanduser()
    usual = Path.home() / ".grapevine" / "policy.toml"
    return usual if os.path.lexists(usual) else None


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
    if not path.is_file():
        raise Mistake(f"there is no policy {path}: check --policy and $GRAPEVINE_POLICY.")
    if path.stat().st_mode & 0o022:
        raise Mistake(f"{path} can be changed by other users, who could agree in your place: chmod go-w {path}.")
    table, known = read_toml(path), {f.name for f in fields(Policy)}
    for name, value in table.items():
        if name not in known:
            raise Mistake(f"{path}: a policy has no line '{name}'; it may have {', '.join(sorted(known))}.")
        if not _fits(name, value):
            raise Mistake(f"{path}: {name} is {value!r}; use {_WANTED[name]}.")
    if not table.keys() - {"otherwise"}:
        raise Mistake(f"{path} has no line that limits anything, so it would agree to everything: write one, or delete it.")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    return Policy(**values)


_KNOWN = dict(jobs=tuple(JOBS), protocols=(*PROTOCOLS, "paper"))
_WANTED = dict.fromkeys(("hosts", "methods"), "a list of names") | dict(
    **{name: f"a list of {', '.join(words)}" for name, words in _KNOWN.items()},
    quorum="a whole number from 2 on",
    epsilon="a number above 0",
    otherwise='"ask" or "refuse"',
)


def _fits(name: str, value: Any) -> bool:
    if name == "quorum":
        return type(value) is int and value >= 2
    if name == "epsilon":
        return type(value) in (int, float) and value > 0
    if name == "otherwise":
        return value in ("ask", "refuse")
    return isinstance(value, list) and all(isinstance(one, str) and one in _KNOWN.get(name, (one,)) for one in value)
