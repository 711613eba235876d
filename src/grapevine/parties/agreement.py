"""What all parties of a federation agree on: the job, its method and settings, and what a row is. Nothing of it can change later.

The hash of an agreement is in every request, and a party answers only requests with its own hash. Method and networks
are made from the agreement alone, the same at the host and at every party.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from grapevine.core import Method
from grapevine.core.errors import Mistake
from grapevine.core.version import __version__
from grapevine.data.columns import Layout, numbers
from grapevine.jobs import label
from grapevine.jobs.settings import LabelSettings
from grapevine.parties.files import check_name
from grapevine.parties.settings import JOBS
from grapevine.run.settings import RunSettings

if TYPE_CHECKING:
    from grapevine.core import ModelSource


@dataclass(frozen=True)
class Agreement:
    """A row has this `shape` for the method; it comes from a table with these `features`, from images, or from `embed`.

    `embed` is a pretrained network's name, or the SHA-256 of a finished run's model. `server`: the host has labelled rows of its
    own; which ones is not said. Without an agreed `seed` all draw their own. A job continues as long as `quorum` of the
    `parties` answer.
    """

    name: str
    job: str
    quorum: int
    settings: dict[str, Any]  # of the job, as `Settings.agreed` gives them
    shape: tuple[int, ...]
    method: str = ""
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    embed: str = ""
    scale: str = "own"  # train: each party standardises by its own means and deviations, which it tells nobody; or none
    server: bool = False
    seed: int | None = None
    parties: tuple[str, ...] = ()  # who may take part, by name
    version: str = __version__
    layout: dict[str, Any] = field(default_factory=dict)  # kinds of the features and values of categories, unless all are numbers

    def to_dict(self) -> dict[str, Any]:
        """The fields as values of TOML and JSON, without those that are None."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in plain.items() if value is not None and (value or name != "layout")}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Agreement:
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
        return cls(**values)

    @property
    def row_layout(self) -> Layout:
        """What a table's columns are, and what they become."""
        return Layout.from_dict(self.layout) if self.layout else Layout(numbers(self.features))

    @property
    def hash(self) -> str:
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(b"grapevine agreement 3\n" + text.encode()).hexdigest()

    @property
    def rounds(self) -> int:
        """How many rounds a party answers: no more were agreed on."""
        return self.settings["rounds"] if self.job == "train" else 1

    @property
    def least(self) -> int:
        """The fewest parties of a sum that is opened: the quorum, and three unless two parties are all there are."""
        fewest = min(3, len(self.parties))
        return max(fewest, self.quorum) if self.settings.get("groups", 1) == 1 else fewest

    # ------------------------------------------------------------ what is made from it

    @cached_property
    def made(self) -> Method:
        """The method."""
        if self.version != __version__:
            raise Mistake(
                f"federation {self.name} runs Grapevine {self.version}, but this is {__version__}: install the same version."
            )
        if self.job not in JOBS:
            raise Mistake(f"job '{self.job}' is not known: use {', '.join(JOBS)}.")
        if self.job != "label":
            from grapevine.parties import networks  # here, so that a party of a label job does not load torch

            return networks.method(self)
        return label.make_method(LabelSettings.from_dict({**self.settings, "seed": self.seed}))

    def run_settings(self, seed: int) -> RunSettings:
        """The settings of a training job's run."""
        known = {f.name for f in fields(RunSettings)}
        said = {name: value for name, value in self.settings.items() if name in known}
        return RunSettings(**said | dict(seed=seed, device="cpu", workers=1, latent=0))

    def models(self, seed: int) -> ModelSource | None:
        """Networks for the agreed rows and classes; None for the label job, which trains nothing."""
        if self.job == "label":
            return None
        from grapevine.parties import networks

        return networks.models(self, seed)

    # ------------------------------------------------------------ refusals

    def _check_parties(self) -> None:
        n = len(self.parties)
        for party in self.parties:
            check_name(party)
            if self.parties.count(party) > 1:
                raise Mistake(f"two parties are called '{party}': every party needs its own name.")
        if n < 2:
            raise Mistake(f"only {n} party is named: a federation has at least two, as in --parties north,south,east.")
        fewest = (
            min(3, n) if self.job == "label" else 2
        )  # the label job opens sums, and of two parties each knows the other's part
        if not fewest <= self.quorum <= n:
            use = f"{n}" if n == fewest else f"{fewest} {'or' if n == fewest + 1 else 'to'} {n}"
            raise Mistake(f"quorum is {self.quorum}, but there are {n} parties: use {use}.")
        groups = self.settings.get("groups", 1) if self.job == "label" else 1
        if n // groups < fewest:
            raise Mistake(
                f"groups is {groups}: with {n} parties the smallest would have {n // groups}, but a group needs {fewest}."
            )

    def check(self) -> None:
        """Refuse what cannot work when the host writes it down, not after everybody has joined."""
        check_name(self.name, "federation")
        self._check_parties()
        if not self.shape or not all(isinstance(n, int) and n > 0 for n in self.shape):
            raise Mistake("what is a row? Use --features COL,..., --shape 3x32x32, or --schema with a table or folder of images "
                          "like those of the parties.")  # fmt: skip
        if self.scale not in ("own", "none"):
            raise Mistake(f"scale '{self.scale}' is not known: use own or none.")
        method = self.made
        if self.job == "label":
            if len(self.shape) > 1:
                raise Mistake("the label job compares features: for images, use --embed efficientnet-lite0 or --embed RUN.")
            return
        if self.job == "clean" and not self.server:
            raise Mistake("clean checks the parties' labels against the host's: give the host labelled rows with --server FILE.")
        if len(self.classes) < 2:
            raise Mistake("a model must know its classes in advance: use --classes NAME,NAME,... or --server FILE.")
        if self.settings.get("secure_average") and self.settings["per_round"] < len(self.parties):
            raise Mistake("the host could compare masked averages over changing parties: use --per-round "
                          f"{len(self.parties)}, so that all take part in every round.")  # fmt: skip
        from grapevine.parties import networks

        networks.check(self, method)
