"""One-shot heads on frozen features, from counts, sums and second moments of the clients' labelled rows. No gradient is taken.

    fedncm   Legate, Bernier, Caccia, Oyallon, Belilovsky: "Guiding the Last Layer in Federated Learning with Pre-Trained Models",
             NeurIPS 2023: class means
    fed3r    Fanì, Camoriano, Caputo, Ciccone: "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers", ICML
             2024: ridge regression with an intercept, which is penalised like the weights
    fedcgs   Guan, Zhou, Gu: "Capture Global Feature Statistics for One-Shot Federated Learning", AAAI 2025: Gaussians with the
             covariance of all rows
    fedcof   Goswami, Magistri, Wang, Twardowski, van de Weijer: "Covariances for Free: Exploiting Mean Distributions for
             Training-free Federated Learning", NeurIPS 2025: ridge regression whose covariances come from the clients' means
    gh-ofl   Turazza, Picone, Mamei: "The Gaussian-Head OFL Family: One-Shot Federated Learning from Client Global Statistics",
             ICLR 2026: naive Bayes, linear or quadratic discriminant

Every client is asked once, `--per-round` of them a round, until all have answered; the head is made again after every round. A
server with labels adds its own. Features are those of the network before its last layer, as it was initialised: a linear network
has the rows themselves. The formulas are in `learn.moments`.

Under `--secure-average` every client of a round counts as having sent the mean of their sums, which add up to the same total. The
mean of a few rows is nearly a row. So the labels of each class are counted first, and a class of which the clients of a round
have fewer than ten is left out of their sums.

Departures: Fed3R without random features, and without the training that may follow it. GH-OFL's closed forms alone: its FisherMix
and Proto-Hyper heads are trained on drawn rows; covariances are divided by the number of rows and shrunk, as scikit-learn does
it. Inverses are pseudo-inverses, so that fewer labels than features are no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from grapevine.core import Client, Id, Method, Network, Predict, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT, Array
from grapevine.core.rows import Rows
from grapevine.crypto.together import CELL
from grapevine.learn import bases, moments
from grapevine.learn.moments import Head
from grapevine.learn.training import outputs

PRODUCTS_TELL = f"{moments.SUMS_TELL}; and the sums of products of two features"


@dataclass(frozen=True)
class MomentHead(Method):
    """What the five have in common: a client's moments, their sum, a head from it."""

    takes = frozenset({"clients", "server", "both"})
    logits = False
    extra = "one message a client, nothing trained"
    square: ClassVar[bool] = True  # whether it needs a matrix of features by features

    def moments(self, V: np.ndarray, y: np.ndarray, C: int) -> np.ndarray:
        """What a party adds."""
        return moments.class_moments(V, y, C)

    def head(self, pooled: np.ndarray, C: int, d: int) -> Head:
        """The head from all parties' moments, one row each, in the order of their names."""
        raise TypeError(f"{type(self).__name__} has no head")

    def check(self, server: Server) -> None:
        bases.check_features_dim(self, server)
        d = server.model().features_dim or 0
        if self.square and d > moments.MOST_FEATURES:
            raise Mistake(f"{self.name} needs a matrix of {d} × {d} features, but {moments.MOST_FEATURES} is the limit: "
                          "use fedncm, or a network with fewer features.")  # fmt: skip

    # ------------------------------------------------------------ client

    @step(reveals=dict(sums=lambda method: PRODUCTS_TELL if method.square else moments.SUMS_TELL, n=bases.USED),
          like=dict(n=COUNT), averaged=dict(sums="all"))  # fmt: skip
    def summarise(self, client: Client, weights: dict, classes: np.ndarray) -> dict:
        """The moments of labelled rows of these classes."""
        rows = client.data.labelled
        rows = rows.take(torch.nonzero(torch.from_numpy(classes)[rows.y]).flatten())
        if not len(rows):
            return dict(n=0)
        return dict(sums=self._of(client.model(weights), rows, len(client.data.classes)), n=len(rows))

    @step(reveals=dict(counts="how many labelled rows of each class this party has", n=bases.USED), like=dict(n=COUNT),
          averaged=dict(counts="all"))  # fmt: skip
    def count(self, client: Client) -> dict:
        y = client.data.labelled.y
        counts = np.bincount(y.numpy(), minlength=len(client.data.classes)).astype(np.float64)
        return dict(counts=counts, n=len(y)) if len(y) else dict(n=0)

    def _of(self, model: Network, rows: Rows, C: int) -> np.ndarray:
        V = outputs(model.eval().features, rows, model.features_dim or 0)
        return self.moments(V.double().numpy(), rows.y.numpy(), C)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        model, C = server.model(), len(server.classes)
        own = {"server": self._of(model, server.data, C)} if server.data is not None and len(server.data) else {}
        return dict(weights=model.state(), sums=own, heard={}, head=self._head(server, own), round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, heard = state["round"], state["heard"]
        d, C = server.model().features_dim or 0, len(server.classes)
        form = dict(sums=Array("float64", (len(self.moments(np.zeros((0, d)), np.zeros(0, np.int64), C)),)))
        chosen = server.sample(t, among=[id for id in server.clients if id not in heard])
        classes = self._classes(server, chosen)
        if not classes.any():
            server.transport.say(f"no class has {CELL} labels among the clients of round {t}: their masked sums are not opened.")
            return dict(state, heard=heard | dict.fromkeys(chosen, True), round=t + 1)
        replies = server.ask(self.summarise, to=chosen, form=lambda id: form, weights=state["weights"], classes=classes)
        sums = state["sums"] | {id: reply["sums"] for id, reply in replies.items() if reply["n"]}
        return dict(weights=state["weights"], sums=sums, heard=heard | bases.answered(server, chosen, replies),
                    head=self._head(server, sums), round=t + 1)  # fmt: skip

    def _classes(self, server: Server, chosen: list[Id]) -> np.ndarray:
        """The classes whose rows are summed: all; under masks those of which these clients have enough labels."""
        C = len(server.classes)
        if not server.masked:
            return np.ones(C, bool)
        replies = server.ask(self.count, to=chosen, form=lambda id: dict(counts=Array("float64", (C,))))
        counts = sum((reply["counts"].numpy() for reply in replies.values()), np.zeros(C))
        return np.rint(counts) >= CELL

    def _head(self, server: Server, sums: dict) -> Head:
        d, C = server.model().features_dim or 0, len(server.classes)
        if not sums:  # nobody has answered yet: all classes alike
            return dict(weight=np.zeros((C, d)), bias=np.zeros(C))
        return self.head(np.stack([sums[id] for id in sorted(sums, key=str)]), C, d)

    # ------------------------------------------------------------ prediction

    def shared(self, state: dict) -> dict:
        return dict(weights=state["weights"], head=state["head"])

    def predictor(self, model: Network, shared: dict) -> Predict:
        model.load(shared["weights"]).eval()
        head = {name: np.asarray(value) for name, value in shared["head"].items()}  # a model from disk holds tensors

        def predict(x: Tensor) -> Tensor:
            V = model.features(x).double().cpu().numpy()
            return torch.from_numpy(moments.probabilities(V, head)).float().to(x.device)

        return predict


@dataclass(frozen=True)
class FedNCM(MomentHead):
    """The class whose mean points the same way, or is nearest."""

    name = "fedncm"
    title = "FedNCM: class means as a head on frozen features (Legate et al. 2023)"
    square = False

    distance: str = param("cosine", "", "which mean is nearest", choices=("cosine", "euclidean"))

    def moments(self, V: np.ndarray, y: np.ndarray, C: int) -> np.ndarray:
        return moments.class_sums(V, y, C)

    def head(self, pooled: np.ndarray, C: int, d: int) -> Head:
        return moments.nearest_mean(pooled.sum(0), C, d, self.distance == "cosine")


@dataclass(frozen=True)
class Fed3R(MomentHead):
    """Ridge regression on one-hot labels."""

    name = "fed3r"
    title = "Fed3R: ridge regression as a head on frozen features (Fanì et al. 2024)"

    ridge: float = param(0.01, "λ", "strength of the ridge penalty", above=0)

    def head(self, pooled: np.ndarray, C: int, d: int) -> Head:
        return moments.ridge(pooled.sum(0), C, d, self.ridge)


@dataclass(frozen=True)
class FedCGS(MomentHead):
    """Gaussians around the class means that share the covariance of all rows."""

    name = "fedcgs"
    title = "FedCGS: Gaussians with the covariance of all rows, on frozen features (Guan et al. 2025)"

    added: float = param(0.0, "γ", "multiple of the identity added to the covariance", least=0)

    def head(self, pooled: np.ndarray, C: int, d: int) -> Head:
        return moments.total_gaussian(pooled.sum(0), C, d, self.added)


@dataclass(frozen=True)
class FedCOF(MomentHead):
    """Ridge regression with covariances that the spread of the clients' class means gives away."""

    name = "fedcof"
    title = "FedCOF: covariances from the clients' class means, on frozen features (Goswami et al. 2025)"
    square = False

    added: float = param(1.0, "γ", "multiple of the identity added to each covariance", least=0)

    def individual(self) -> str:
        return "the server compares the means of each client"

    def moments(self, V: np.ndarray, y: np.ndarray, C: int) -> np.ndarray:
        return moments.class_sums(V, y, C)

    def head(self, pooled: np.ndarray, C: int, d: int) -> Head:
        return moments.between_clients(pooled, C, d, self.added)


@dataclass(frozen=True)
class GHOFL(MomentHead):
    """Gaussian classes: naive Bayes, or discriminants with one covariance or with one for each class."""

    name = "gh-ofl"
    title = "GH-OFL: Gaussian heads in closed form on frozen features (ICLR 2026)"

    covariance: str = param("lda", "", "one for all classes, one each, or one diagonal each", choices=("lda", "qda", "nb"))
    shrinkage: float = param(0.3, "γ", "share of a multiple of the identity in a covariance", least=0, most=1)

    def moments(self, V: np.ndarray, y: np.ndarray, C: int) -> np.ndarray:
        if self.covariance == "lda":
            return moments.class_moments(V, y, C)
        return moments.own_moments(V, y, C, self.covariance == "nb")

    def head(self, pooled: np.ndarray, C: int, d: int) -> Head:
        if self.covariance == "lda":
            return moments.within_gaussian(pooled.sum(0), C, d, self.shrinkage)
        return moments.own_gaussians(pooled.sum(0), C, d, self.covariance == "nb", self.shrinkage)
