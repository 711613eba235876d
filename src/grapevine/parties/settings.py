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

    name: str | None = param(None, "", "Name of the federation [the name of the folder].", metavar="NAME")
    parties: tuple[str, ...] = param((), "", "The names of the parties.", metavar="NAME,...")
    quorum: int | None = param(
        None, "", "How many parties are enough [two thirds, but at least 3; 2 of 2].", kind=int, metavar="N"
    )
    address: str | None = param(
        None, "", "The host name or IP address at which parties reach this machine [its own name].", metavar="HOST"
    )
    port: int = param(8443, "", "The one port to open in the firewall.", least=1, most=65535)
    bind: str = param("0.0.0.0", "", "Which of this machine's addresses to listen on.", metavar="ADDRESS")
    wait: float = param(3600.0, "", "How long to wait for the parties.", above=0, metavar="SECONDS")
    step_timeout: float = param(
        600.0, "", "How long to wait for one reply. A party that takes longer is dropped.", above=0, metavar="SECONDS"
    )
    method: str | None = param(
        None, "", "The method: for train see `grapevine methods` [fedavg]; for label chorus or xclp [chorus].", metavar="NAME"
    )
    server: str | None = param(None, "", "The host's own labelled rows, which stay on this machine.", metavar="FILE|FOLDER")
    schema: str | None = param(None, "", "A table or folder of images in the same form as the parties'.", metavar="FILE|FOLDER")
    features: tuple[str, ...] = param((), "", "The feature columns, by name.", metavar="COL,...")
    shape: str | None = param(None, "", "The shape of images: channels, height and width.", metavar="3x32x32")
    label: str | None = param(None, "", "The label column of --schema and --server.", metavar="COL")
    id: str | None = param(None, "", "The id column of --schema and --server.", metavar="COL")
    categories: tuple[str, ...] = same(LabelSettings, "categories")
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    classes: tuple[str, ...] = param((), "", "train: the class names [those in --server].", metavar="NAME,...")
    embed: str | None = same(LabelSettings, "embed")
    scale: str | None = param(
        None, "", "label, clean: standard or none [standard]; train: own or none [own].", choices=("standard", "own", "none")
    )
    seed: int | None = param(None, "", "Only with --reproducible.", kind=int, least=0, most=2**63 - 1)
    reproducible: bool = param(False, "", "Make the run repeatable. The hyperplanes are then not secret.")


@dataclass(frozen=True)
class Source(Settings):
    """`grapevine doctor`: where a party's rows are, and its folder."""

    job: ClassVar[str] = "doctor"

    data: str | None = param(None, "", "This party's table, or its folder of images.", metavar="FILE|FOLDER")
    label: str | None = same(LabelSettings, "label")
    id: str | None = same(LabelSettings, "id")
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    embed: str | None = param(None, "", "Your copy of the run that computes the agreed features.", metavar="RUN")
    policy: str | None = param(
        None, "", "What this party accepts without asking [$GRAPEVINE_POLICY or ~/.grapevine/policy.toml, if it exists].",
        metavar="FILE",
    )  # fmt: skip
    home: str | None = param(
        None, "", "The folder for this party's keys and memory [~/.grapevine/FEDERATION/NAME].", metavar="DIR"
    )


@dataclass(frozen=True)
class JoinSettings(Source):
    """`grapevine join`."""

    job: ClassVar[str] = "join"

    out: str | None = param(None, "", "A new folder for the results [`out` inside --home].", metavar="DIR")
    abstain: float = same(LabelSettings, "abstain", text="label: give no label to a row whose probability is below this.")
    target: float | None = same(
        LabelSettings, "target", text="label: abstain on enough rows that the given labels are expected to be right this often."
    )
    ledger: str | None = param(
        None, "", "Where this party records what its rows were summed for [$GRAPEVINE_LEDGER or ~/.grapevine/ledger].",
        metavar="DIR",
    )  # fmt: skip
    pin: str | None = param(None, "", "Fingerprints you confirmed before: the pinned.toml of an earlier job.", metavar="FILE")


def agreed_fields(job: str) -> list[Field]:
    """The settings of a job that its parties agree on, except those that a federation has for all jobs."""
    apart = {f.name for f in fields(HostSettings)}
    return [f for f in fields(JOBS[job]) if not f.metadata.get("local") and f.name not in apart]
