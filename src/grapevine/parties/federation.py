"""A federation on disk: the host's folder, a party's folder, and what all of them agreed on.

Nothing here knows about Flower, sockets or processes. `flower.py` reads a party with `load_party` and a host with `load_host`,
and hands `run_job` a `core.Server`.

    host's folder   federation.toml    the settings; `AGREED` are those that every party agrees to
                    roster.toml        everybody's public keys
                    invitations.toml   hashes of the tokens
                    ca.crt, ca.key, server.pem, server.key, seed.txt
                    checkpoint/, progress.jsonl, results/
    party's folder  party.toml         name, host, columns, the agreed settings and their hash
                    identity.pem, node.key, node.pub, ca.crt
                    pinned.toml        whom it trusts to be who
                    rows.npy, rows.json its data, as read when it joined
                    memory/, memory.json, disclosure.jsonl, out/
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.version import __version__
from grapevine.jobs.settings import LabelSettings

if TYPE_CHECKING:
    from grapevine.core import Method, ModelSource, Server
    from grapevine.core.rows import ClientData, Scale
    from grapevine.core.store import FileStore
    from grapevine.crypto.agreement import Identity
    from grapevine.jobs.reading import Party

# What every party agrees to when it joins. Addresses, timeouts and who is invited may change later; these may not.
AGREED = ("name", "version", "job", "method", "settings", "classes", "features", "scale", "quorum", "rounds", "per_round",
          "model", "norm", "reproducible", "seed")  # fmt: skip
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
HELD_OUT = 0.2  # of a party's labelled rows, for `evaluate` in a training job


# ---------------------------------------------------------------- TOML


def read_toml(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10: Flower brings the same reader
        import tomli as tomllib
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Mistake(f"there is no {path}: name the folder that `grapevine host` or `grapevine join` made.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Mistake(f"{path} is not valid TOML ({error}): mend it.") from None


def write_toml(path: Path, table: Mapping[str, Any], secret: bool = False) -> None:
    """The whole file or nothing. A value of None is left out, as TOML has none."""
    from grapevine.core.store import write_atomically

    text = toml_text(table).encode()
    write_atomically(path, text)
    if secret:
        os.chmod(path, 0o600)


def toml_text(table: Mapping[str, Any]) -> str:
    try:
        import tomli_w
    except ModuleNotFoundError:
        raise Mistake("real parties need Flower: pip install 'grapevine-fl[flower]'.") from None
    return tomli_w.dumps({name: value for name, value in table.items() if value is not None})


def check_name(name: str, what: str = "party") -> str:
    if not NAME.fullmatch(name):
        raise Mistake(f"'{name}' cannot be the name of a {what}: take up to 40 letters, digits, - and _, as in north-clinic.")
    return name


# ---------------------------------------------------------------- what all agree on


def agreed(table: Mapping[str, Any]) -> dict[str, Any]:
    """The part of federation.toml that every party agrees to."""
    return {name: table[name] for name in AGREED if table.get(name) is not None}


def settings_hash(table: Mapping[str, Any]) -> str:
    """The hash of the agreed settings. It is in every request; a party answers none with another hash than its own."""
    text = json.dumps(agreed(table), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(b"grapevine agreed settings 1\n" + text.encode()).hexdigest()


def agreed_method(table: Mapping[str, Any]) -> Method:
    """The method as the agreed tables describe it, the same object at the host and at every party."""
    if table.get("version") != __version__:
        raise Mistake(
            f"federation {table.get('name')} runs Grapevine {table.get('version')}, and here is {__version__}: install the same."
        )
    if table["job"] == "label":
        from grapevine.jobs.label import make_method

        return make_method(LabelSettings.from_dict(dict(table["settings"], seed=table.get("seed"))))
    if table["job"] != "train":
        raise Mistake(f"job '{table['job']}' is not known: take label or train.")
    from grapevine import methods
    from grapevine.core import with_settings

    if ":" in table["method"]:  # a file of the party's disk, chosen by the host
        raise Mistake(f"method '{table['method']}' is a file: between parties a method is named, install it as an entry point.")
    method = with_settings(methods.find(table["method"]), {name: str(value) for name, value in table["settings"].items()})
    if "clients" not in method.takes or method.reveal:
        raise Mistake(f"{method.name} cannot use labels at the parties, take one of those that can (`grapevine methods`).")
    return method


def check_settings(table: Mapping[str, Any]) -> None:
    """Refuse what cannot work when the host writes it down, not when everybody is there."""
    check_name(table["name"], "federation")
    for party in table["parties"]:
        check_name(party)
    twice = [party for party in table["parties"] if table["parties"].count(party) > 1]
    if twice:
        raise Mistake(f"two parties are called '{twice[0]}': every party needs its own name.")
    if len(table["parties"]) < 2:
        raise Mistake(f"{len(table['parties'])} party is named: a federation has at least two, as in --parties north,south,east.")
    if not 2 <= table["quorum"] <= len(table["parties"]):
        raise Mistake(f"quorum is {table['quorum']}: of {len(table['parties'])} parties take 2 to {len(table['parties'])}.")
    if not table["features"]:
        raise Mistake("which columns are the features? Say --features COL,... or --schema FILE, a table with the same columns.")
    if table.get("seed") is not None and not table.get("reproducible"):
        raise Mistake(f"seed {table['seed']} would make hyperplanes predictable: leave --seed out, or say --reproducible too.")
    if table.get("reproducible") and table.get("seed") is None:
        raise Mistake("--reproducible needs a seed: say --seed N too.")
    method = agreed_method(table)
    if table["job"] == "label":
        if not 1 <= method.groups <= len(table["parties"]) // 2:
            raise Mistake(f"groups is {method.groups}: {len(table['parties'])} parties make 1 to {len(table['parties']) // 2}.")
    else:
        if len(table["classes"]) < 2:
            raise Mistake("a model needs its classes beforehand: say --classes NAME,NAME,...")
        if table["rounds"] < 1 or table["per_round"] < 2:
            raise Mistake(f"rounds is {table['rounds']} and per-round {table['per_round']}: take at least 1 and at least 2.")
        model_source(table, method, 0).new(None, _meter())


def _meter() -> Any:
    from grapevine.core import Meter

    return Meter()


def model_source(table: Mapping[str, Any], method: Method, seed: int) -> ModelSource | None:
    """Networks for the agreed columns and classes; None for the label job, which trains nothing."""
    if table["job"] == "label":
        return None
    import torch

    from grapevine.core import ModelSource
    from grapevine.learn import networks as models

    shape, classes = (len(table["features"]),), len(table["classes"])

    def build() -> models.Network:
        return method.network(models.build(table["model"], shape, classes, table.get("norm"), seed))

    return ModelSource(build, torch.zeros(1, *shape))


# ---------------------------------------------------------------- the host's folder


@dataclass(frozen=True)
class HostSetup:
    """A federation as the host's program sees it."""

    folder: Path
    table: dict[str, Any]
    hash: str
    seed: int

    @cached_property
    def method(self) -> Method:
        return agreed_method(self.table)

    @cached_property
    def models(self) -> ModelSource | None:
        return model_source(self.table, self.method, self.seed)

    @property
    def parties(self) -> list[str]:
        return sorted(self.table["parties"])

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.table["classes"])

    @property
    def quorum(self) -> int:
        return self.table["quorum"]

    @property
    def rounds(self) -> int:
        return self.table.get("rounds", 1)  # the label job has one, and says nothing of it

    @property
    def per_round(self) -> int:
        return self.table.get("per_round", len(self.table["parties"]))

    @property
    def timeout(self) -> float:
        """Seconds for one exchange."""
        return float(self.table["timeouts"]["step"])

    @property
    def wait(self) -> float:
        """Seconds for the nodes to come online once everybody has confirmed."""
        return float(self.table["timeouts"]["online"])

    @property
    def keys(self) -> dict[str, str]:
        """The node keys of those who take part: of the closed roster if there is one."""
        return {name: entry["node_key"] for name, entry in self.roster().items() if entry.get("in", True)}

    def roster(self) -> dict[str, dict[str, Any]]:
        """name → node_key (OpenSSH), identity (hex), fingerprint, and `in`: whether it takes part."""
        path = self.folder / "roster.toml"
        return read_toml(path) if path.exists() else {}


def make_federation(folder: Path, table: dict[str, Any]) -> HostSetup:
    """Write a new federation.toml. The folder must not hold one."""
    folder = Path(folder)
    if (folder / "federation.toml").exists():
        raise Mistake(f"{folder} holds a federation already: leave the settings out to run it, or take another folder.")
    check_settings(table)
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    write_toml(folder / "federation.toml", table)
    return load_host(folder)


def load_host(folder: str | Path) -> HostSetup:
    """The host's folder. Without an agreed seed, one is drawn and kept, so that a host that is started again goes on alike."""
    folder = Path(folder)
    table = read_toml(folder / "federation.toml")
    seed = table.get("seed")
    if seed is None:
        path = folder / "seed.txt"
        if not path.exists():
            path.write_text(f"{secrets.randbits(62)}\n")
            os.chmod(path, 0o600)
        seed = int(path.read_text())
    return HostSetup(folder, table, settings_hash(table), seed)


# ---------------------------------------------------------------- a party's folder


@dataclass(frozen=True)
class PartySetup:
    """What a step needs of the party it runs at."""

    name: str
    method: Method
    data: ClientData
    models: ModelSource | None
    identity: Identity
    pinned: dict[str, bytes]
    store: FileStore
    seed: int
    common_seed: bool
    folder: Path
    hash: str


def read_rows(path: str | Path, label: str | None, id: str | None, table: Mapping[str, Any], name: str) -> Party:
    """A party's file, checked against the federation: columns by name and in the agreed order, classes by name."""
    from grapevine.data.tables import read_table
    from grapevine.jobs.reading import Party

    if label is None:
        raise Mistake("which column holds the labels? Say --label COL; an empty cell is an unlabelled row.")
    impute = table["job"] == "label" and bool(table["settings"].get("impute"))
    read = read_table(path, label, id, table["features"], impute=impute)
    order = [read.columns.index(column) for column in table["features"]]
    party = Party(name, read.x[:, order], read.labels, read.ids)
    if table["classes"]:
        strange = [name for name in party.classes if name not in table["classes"]]
        if strange:
            known = ", ".join(table["classes"])
            raise Mistake(f"{path} has the class {strange[0]!r}, and the federation knows {known}: rename it, or ask the host.")
    if table["job"] == "train" and sum(name is not None for name in party.labels) < 2:
        raise Mistake(f"{path} has fewer than two labelled rows: one is needed for training and one for measuring.")
    return party


def save_rows(folder: Path, party: Party) -> None:
    """The rows as they were read once, in a form that a process reads in milliseconds."""
    np.save(folder / "rows.npy", party.x)
    (folder / "rows.json").write_text(json.dumps(dict(name=party.name, labels=party.labels, ids=party.ids)))
    for file in ("rows.npy", "rows.json"):
        os.chmod(folder / file, 0o600)


def load_rows(folder: Path) -> Party:
    from grapevine.jobs.reading import Party

    about = json.loads((folder / "rows.json").read_text())
    return Party(about["name"], np.load(folder / "rows.npy", allow_pickle=False), about["labels"], about["ids"])


def load_party(folder: str | Path) -> PartySetup:
    """All of a party's folder. Called in a fresh process for every message."""
    from grapevine.core.store import FileStore
    from grapevine.crypto.agreement import Identity

    folder = Path(folder)
    about = read_toml(folder / "party.toml")
    table = about["agreed"]
    if settings_hash(table) != about["hash"]:
        raise Mistake(f"{folder / 'party.toml'} was changed after joining: its settings no longer have the hash that was agreed.")
    method = agreed_method(table)
    data = client_data(load_rows(folder), table)
    pinned = {name: bytes.fromhex(entry["identity"]) for name, entry in read_toml(folder / "pinned.toml").items()}
    identity = Identity.load(folder / "identity.pem")
    store = FileStore(folder / "memory")
    models, seed = model_source(table, method, about["seed"]), about["seed"]
    common = table.get("seed") is not None
    return PartySetup(about["name"], method, data, models, identity, pinned, store, seed, common, folder, about["hash"])


def client_data(party: Party, table: Mapping[str, Any]) -> ClientData:
    """A party's rows as steps see them. In a training job a fifth of the labelled ones is held out for `evaluate`."""
    if table["job"] == "label":
        return party.data()
    import torch

    from grapevine.core.rows import ClientData, Rows
    from grapevine.data.datasets import hold_out

    number = {name: i for i, name in enumerate(table["classes"])}
    y = np.array([-1 if name is None else number[name] for name in party.labels], np.int64)
    known = np.flatnonzero(y >= 0)
    out = hold_out(y[known], HELD_OUT)
    x, scale = torch.from_numpy(np.ascontiguousarray(party.x)), own_scale(party.x, table)

    def rows(index: np.ndarray) -> Rows:
        return Rows(x, torch.from_numpy(index), torch.from_numpy(y[index]), scale)

    return ClientData(rows(known[~out]), rows(np.flatnonzero(y < 0)), rows(known[out]), tuple(table["classes"]))


def own_scale(x: np.ndarray, table: Mapping[str, Any]) -> Scale:
    """A training job's scaling: each party by its own means and deviations, which it tells nobody; or none."""
    import torch

    from grapevine.core.rows import Scale
    from grapevine.data.datasets import table_scale

    width = x.shape[1]
    return table_scale(torch.from_numpy(x)) if table.get("scale") == "own" else Scale(1.0, torch.zeros(width), torch.ones(width))


def run_job(server: Server, setup: HostSetup, folder: str | Path) -> dict[str, Any]:
    """The host's program once everybody is there: see `hosted.run`."""
    from grapevine.parties.hosted import run

    return run(server, setup, Path(folder))
