"""How `join` speaks with the person at the party: what it says, shows and asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grapevine.jobs.reading import Party
from grapevine.parties.agreement import Agreement


@dataclass
class Talk:
    say: Callable[[str], None]
    ask: Callable[[str], bool]  # a question that is answered yes or no
    insist: Callable[[str], bool]  # one that only a person can answer, now
    show: Callable[[Agreement, Party], None]  # what will leave the machine: agreement, own rows
    line: Callable[[str], None]  # one line about what is going on now
