"""The settings of `grapevine host` besides those of the job, and of `join` and `doctor`. Nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from typing import ClassVar

from grapevine.core.param import Settings, param, same
from grapevine.jobs.settings import CleanSettings, LabelSettings, TrainSettings

JOBS: dict[str, type[Settings]] = dict(label=LabelSettings, train=TrainSettings, clean=CleanSettings)


@dataclass(frozen=True)
class HostSettings(Settings):
    """`grapevine host`: what a federation is told besides the settings of its job."""

    job: ClassVar[str] = "host"

    name: str | None = param(None, "", "Name of the federation [the folder's].", metavar="NAME")
    parties: tuple[str, ...] = param((), "", "The parties expected.", metavar="NAME,...")
    quorum: int | None = param(None, "", "So many parties are enough [two thirds, at least 3; 2 of 2].", kind=int, metavar="N")
    address: str | None = param(
        None, "", "Name or number under which the parties reach this machine [its own name].", metavar="HOST"
    )
    port: int = param(8443, "", "The one port to open in the firewall.", least=1, most=65535)
    bind: str = param("0.0.0.0", "", "Which of this machine's addresses to listen on.", metavar="ADDRESS")
    wait: float = param(3600.0, "", "For the parties to come.", above=0, metavar="SECONDS")
    step_timeout: float = param(600.0, "", "For one exchange; who is later is left out.", above=0, metavar="SECONDS")
    method: str | None = param(
        None, "", "The method: of train (`grapevine methods`) [fedavg], of label chorus or xclp [chorus].", metavar="NAME"
    )
    server: str | None = param(None, "", "The host's own labelled rows, which stay here.", metavar="FILE|FOLDER")
    schema: str | None = param(None, "", "A table or a folder of images like the parties'.", metavar="FILE|FOLDER")
    features: tuple[str, ...] = param((), "", "The feature columns, by name.", metavar="COL,...")
    shape: str | None = param(None, "", "Of images: channels, height and width.", metavar="3x32x32")
    label: str | None = param(None, "", "The label column of --schema and --server.", metavar="COL")
    id: str | None = param(None, "", "Their id column.", metavar="COL")
    categories: tuple[str, ...] = same(LabelSettings, "categories")
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    classes: tuple[str, ...] = param((), "", "train: the classes [those of --server].", metavar="NAME,...")
    embed: str | None = same(LabelSettings, "embed")
    scale: str | None = param(
        None, "", "label, clean: standard or none [standard]; train: own or none [own].", choices=("standard", "own", "none")
    )
    seed: int | None = param(None, "", "Only with --reproducible.", kind=int, least=-(2**63), most=2**63 - 1)
    reproducible: bool = param(False, "", "Repeats exactly; hyperplanes are then not secret.")


@dataclass(frozen=True)
class Source(Settings):
    """`grapevine doctor`: where a party's rows are, and its folder."""

    job: ClassVar[str] = "doctor"

    data: str | None = param(None, "", "This party's table, or its folder of images.", metavar="FILE|FOLDER")
    label: str | None = same(LabelSettings, "label")
    id: str | None = same(LabelSettings, "id")
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    embed: str | None = param(None, "", "Your copy of the run whose features were agreed on.", metavar="RUN")
    policy: str | None = param(
        None, "", "What this party agrees to without asking [$GRAPEVINE_POLICY or ~/.grapevine/policy.toml, if there].",
        metavar="FILE",
    )  # fmt: skip
    home: str | None = param(None, "", "Where this party's keys and memory are [~/.grapevine/FEDERATION/NAME].", metavar="DIR")


@dataclass(frozen=True)
class JoinSettings(Source):
    """`grapevine join`."""

    job: ClassVar[str] = "join"

    out: str | None = param(None, "", "A new folder for the results [out in the home].", metavar="DIR")
    abstain: float = same(LabelSettings, "abstain", text="label: below this probability a row gets no label.")
    target: float | None = same(LabelSettings, "target", text="label: abstain so that labels are right this often.")
    ledger: str | None = param(
        None, "", "Where this party writes down what its rows were summed for [$GRAPEVINE_LEDGER or ~/.grapevine/ledger].",
        metavar="DIR",
    )  # fmt: skip
    pin: str | None = param(None, "", "Fingerprints confirmed before: the pinned.toml of an earlier job.", metavar="FILE")


def agreed_fields(job: str) -> list[Field]:
    """The settings of a job that its parties agree on, but for those that a federation has for all jobs."""
    apart = {f.name for f in fields(HostSettings)}
    return [f for f in fields(JOBS[job]) if not f.metadata.get("local") and f.name not in apart]
