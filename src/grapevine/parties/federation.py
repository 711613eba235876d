"""A federation on disk: the host's folder and a party's folder, and the job that runs between them.

Nothing here knows about Flower, sockets or processes. `flower.py` reads a party with `load_party` and a host with `load_host`;
`in_process` puts the same parties into one process.

    host's folder   federation.toml    [agreed], and what is the host's own business: address, timeouts
                    roster.toml        everybody's public keys
                    invitations.toml   hashes of the tokens
                    rows.npy, rows.json its own labelled rows, if it has any
                    ca.crt, ca.key, server.pem, server.key, seed.txt
                    progress.jsonl, failed.json, results/ (a run's folder)
    party's folder  party.toml         name, host, columns, [agreed] and its hash
                    identity.pem, node.key, node.pub, ca.crt
                    epoch.txt          which start of the host it works for
                    pinned.toml        the identities that it has confirmed
                    rows.npy, rows.json its data, as read when it joined
                    memory/, memory.json, disclosure.jsonl, out/
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grapevine.core import Client, Method, Server, Transport
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import FileStore, Memory
from grapevine.crypto.agreement import Identity
from grapevine.jobs.reading import Party
from grapevine.parties.agreement import Agreement
from grapevine.parties.audit import Audit
from grapevine.parties.files import read_if_there, read_toml, write_toml
from grapevine.parties.rows import client_data, load_rows, save_rows, server_rows
from grapevine.run.simulate import Simulation

if TYPE_CHECKING:
    from grapevine.core import ModelSource


@dataclass(frozen=True)
class Timeouts:
    """Seconds: for the parties to come, for all to confirm the others, for nodes to come online, for one exchange."""

    join: float = 3600.0
    confirm: float = 3600.0
    online: float = 300.0
    step: float = 600.0


# ---------------------------------------------------------------- the host's folder


@dataclass(frozen=True)
class Host:
    """A federation as the host sees it. Addresses and timeouts may change; `agreed` may not."""

    folder: Path
    agreed: Agreement
    address: str
    port: int
    bind: str = "0.0.0.0"
    timeouts: Timeouts = Timeouts()
    label: str | None = None  # columns as the host's own table calls them, for its invitations
    id: str | None = None

    @property
    def parties(self) -> tuple[str, ...]:
        return self.agreed.parties

    @cached_property
    def method(self) -> Method:
        return self.agreed.made

    @cached_property
    def seed(self) -> int:
        """The agreed one, or one that is drawn and kept, so that a host that is started again continues with it."""
        if self.agreed.seed is not None:
            return self.agreed.seed
        path = self.folder / "seed.txt"
        if not path.exists():
            path.write_text(f"{secrets.randbits(62)}\n")
            os.chmod(path, 0o600)
        return int(path.read_text())

    @cached_property
    def models(self) -> ModelSource | None:
        return self.agreed.models(self.seed)

    @cached_property
    def rows(self) -> Party | None:
        return load_rows(self.folder) if self.agreed.server else None

    @property
    def data(self) -> Rows | None:
        """The host's own labelled rows, as a method sees them."""
        return None if self.rows is None else server_rows(self.rows, self.agreed)

    def roster(self) -> dict[str, dict[str, Any]]:
        """name → node_key (OpenSSH), identity (hex), fingerprint, and `in`: whether it takes part."""
        return read_if_there(self.folder / "roster.toml")

    @property
    def keys(self) -> dict[str, str]:
        """The node keys of those who take part: of the closed roster if there is one."""
        return {name: entry["node_key"] for name, entry in self.roster().items() if entry.get("in", True)}

    @property
    def identities(self) -> dict[str, bytes]:
        """The parties' identities, as all of them have confirmed them."""
        return {name: bytes.fromhex(entry["identity"]) for name, entry in self.roster().items()
                if entry.get("in", True) and "identity" in entry}  # fmt: skip

    def save(self) -> None:
        own = {name: value for name, value in asdict(self).items() if name not in ("folder", "agreed")}
        write_toml(self.folder / "federation.toml", dict(own, agreed=self.agreed.to_dict()))


def make_federation(host: Host, rows: Party | None = None) -> Host:
    """Write a new federation.toml. The folder must not hold one."""
    folder = host.folder
    if (folder / "federation.toml").exists():
        raise Mistake(f"{folder} already holds a federation: leave the settings out to run it, or choose another folder.")
    agreed = host.agreed
    agreed.check()
    own = None if rows is None else server_rows(rows, agreed)
    agreed.made.check(Server(agreed.made, host.parties, Transport(), agreed.models(0), agreed.classes, data=own))
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    if rows is not None:
        save_rows(folder, rows)
    host.save()
    Audit(folder).write("made", federation=agreed.name, job=agreed.job, agreed=agreed.hash, parties=sorted(host.parties))
    return host


def load_host(folder: str | Path) -> Host:
    table = read_toml(Path(folder) / "federation.toml")
    try:
        agreed, timeouts = Agreement.from_dict(table.pop("agreed")), Timeouts(**table.pop("timeouts"))
        return Host(Path(folder), agreed, timeouts=timeouts, **table)
    except (KeyError, TypeError) as error:
        raise Mistake(f"{Path(folder) / 'federation.toml'} is incomplete ({error}): create the federation again.") from None


# ---------------------------------------------------------------- a party's folder


@dataclass(frozen=True)
class Member:
    """What a step needs of the party it runs at."""

    name: str
    agreed: Agreement
    seed: int
    data: ClientData
    identity: Identity
    pinned: Mapping[str, bytes]
    store: FileStore
    ledger: Ledger

    def client(self, memory: Memory) -> Client:
        made = Client(self.name, self.data, memory, self.agreed.models(self.seed), self.seed, self.identity, self.pinned,
                      common_seed=self.agreed.seed is not None, ledger=self.ledger)  # fmt: skip
        made.quorum = self.agreed.least
        self.hand_budget(made)
        return made

    def hand_budget(self, client: Client) -> None:
        """What the party may spend in a training job with noise, and the ledger to write that into."""
        if self.agreed.job == "train" and self.agreed.settings.get("dp"):
            from grapevine.parties import networks

            client.private = networks.budget(self.agreed, self.seed)
            client.ledger = self.ledger


def ledger_folder(said: str | None = None) -> Path:
    """Where a party's ledger is: in one place for all its jobs, so that it outlives each of them."""
    return Path(said or os.environ.get("GRAPEVINE_LEDGER") or Path.home() / ".grapevine" / "ledger").expanduser().resolve()


def load_party(folder: str | Path) -> Member:
    """All of a party's folder. Called in a fresh process for every message."""
    folder = Path(folder)
    about = read_toml(folder / "party.toml")
    agreed = Agreement.from_dict(about["agreed"])
    if agreed.hash != about["hash"]:
        raise Mistake(
            f"{folder / 'party.toml'} was changed after joining: its settings no longer match the agreed hash, so join again."
        )
    pinned = {name: bytes.fromhex(entry["identity"]) for name, entry in read_toml(folder / "pinned.toml").items()}
    return Member(about["name"], agreed, about["seed"], client_data(load_rows(folder), agreed),
                  Identity.load(folder / "identity.pem"), pinned, FileStore(folder / "memory"),
                  Ledger(ledger_folder(about.get("ledger"))))  # fmt: skip


def in_process(parties: Iterable[Member], mode: str = "strict", **more: Any) -> Simulation:
    """The same parties in this process, with the bits that they would have on Flower; `more` is for `Simulation`.

    They must have agreed on a seed.
    """
    all_of_them = list(parties)
    first = all_of_them[0]
    made = Simulation(first.agreed.made, {party.name: party.data for party in all_of_them}, first.agreed.models(first.seed),
                      first.seed, mode, **more)  # fmt: skip
    made.identities = {party.name: party.identity for party in all_of_them}
    made.pinned = dict(first.pinned)
    members = {party.name: party for party in all_of_them}
    made.prepare = lambda client: members[str(client.id)].hand_budget(client)
    return made
