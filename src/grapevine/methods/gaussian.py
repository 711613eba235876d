"""Gaussian heads from securely summed moments: the one-shot rival of XCLP for the label job (GH-OFL, ICLR 2026). Beside them,
from the same sums, the heads of FedNCM, Fed3R and FedCGS, and FedCOF's from what it sends in the clear, all with the defaults of
these methods (`moment_heads`, which trains them).

Every class is a Gaussian in feature space. Its share, mean and covariance follow from counts, sums and sums of products of the
labelled rows, and these add up over parties, so one masked sum gives the same classifier as all labelled rows in one place.

    exchange       what leaves a client
    1  keys        a signed public key; number of features; names of its classes
    2  meet        sealed seed
    3  pool        padded: labelled rows per class, their sums per class, their second moments
    +1 sums.again  the same under fresh masks, only after a party was lost
    4  means       in the clear, for FedCOF: labelled rows per class, their sums per class
    5  predict     nothing: every party opens the sums, makes the heads from them and labels its own rows

All classes have one covariance (linear discriminant analysis), so second moments are summed over all of them together. Above
`learn.moments.MOST_FEATURES` it is diagonal: a full one would be millions of numbers. Fed3R and FedCGS need a full one.

Security. The parties open the sums themselves (`crypto.together`, which states the assumptions): the server learns nothing of
them and cannot change them. All clients learn the classes' label counts and pooled moments, but no party's own. That is not
little: the mean of a class with one labelled row is that row, and of a class that only one party labels, that party's. With two
parties, the sum minus a party's own part is the other's. FedCOF compares the parties' means: for its sake the server learns every
party's label counts and class sums, so this is for one machine.

Numbers. The covariance is shrunk, (1 − γ)S + γ tr(S)/d · I, as scikit-learn does it, which makes it invertible for d > n too; if
no class has a spread, it is I (the nearest mean wins). Variances under 1e-9 of the largest are raised to that. A class without
a labelled row has probability 0. Second moments are taken about 0, so a feature whose deviation is 1e-4 of its mean has its
variance to about eight digits. The default of γ suits few labels: on one split of digits among 10 parties, 0.3 was near the best
with 150 labels, 0.1 with 500, 0.6 or more with 50.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np

from grapevine import graph
from grapevine.core import Client, Id, Method, Mistake, Server, param, party_name, step
from grapevine.core.reply import Array, Form
from grapevine.crypto import session, together
from grapevine.crypto.together import Together
from grapevine.learn import moments
from grapevine.learn.moments import SUMS_TELL, Head
from grapevine.methods import one_shot
from grapevine.methods.one_shot import features, labels

MOMENTS = "to the server nothing: padded; the parties open each class's label count, mean and covariance"


@dataclass(frozen=True)
class Gaussian(Method):
    """Every party's rows labelled by heads on all parties' labelled rows. Results stay at each party: "result" is the Gaussian
    head's, and "others" are labels by the name of another head's method."""

    name = "gaussian"
    title = "One-shot heads from securely summed class counts and moments (baselines of the label job)"
    personal = True

    shrinkage: float = param(0.3, "γ", "share of a multiple of the identity in the covariance", least=0, most=1)
    sums: Together = field(default_factory=Together)

    # ------------------------------------------------------------ client

    @step(reveals=one_shot.REVEALS, like=one_shot.HELLO)
    def keys(self, client: Client, session_id: str) -> dict:
        """Exchange 1."""
        return one_shot.hello(client, session_id)

    @step(reveals=dict(letters=session.LETTERS))
    def meet(self, client: Client, offers: dict, classes: dict) -> dict:
        """Exchange 2: check the keys, and seal the seed."""
        letters = session.meet(client, offers)
        client.memory["classes"] = classes
        return dict(letters=letters)

    @step(reveals=dict(together.REVEALS, share=MOMENTS), like=together.FORM)
    def pool(self, client: Client, letters: dict, parties: dict) -> dict:
        """Exchange 3: counts, sums and second moments of the labelled rows."""
        session.learn_seed(client, letters)
        n = len(client.data.labelled)
        values = moments.class_moments(features(client)[:n], labels(client)[:n], len(client.memory["classes"]))
        return together.share(client, 0, 0, parties, values, wide=True)

    @step(reveals=dict(sums=SUMS_TELL))
    def means(self, client: Client) -> dict:
        """Exchange 4: counts and sums of the labelled rows."""
        n = len(client.data.labelled)
        return dict(sums=moments.class_sums(features(client)[:n], labels(client)[:n], len(client.memory["classes"])))

    @step
    def predict(self, client: Client, pooled: dict, fedcof: dict) -> dict:
        """Exchange 5: labels, confidences and probabilities of all rows, in the order labelled, unlabelled. Nothing goes back."""
        V, total, C = features(client), together.opened(client, **pooled), len(client.memory["classes"])
        proba = self.probabilities(V, total, C)
        found, confidence = graph.labels_and_confidence(proba, floor=0.0)
        client.memory["result"] = dict(label=found, confidence=confidence, proba=proba)
        heads = of_total(total, C, V.shape[1]) | dict(fedcof=fedcof)
        client.memory["others"] = {name: moments.scores(V, head).argmax(1) for name, head in heads.items()}
        return {}

    def probabilities(self, V: np.ndarray, total: np.ndarray, C: int) -> np.ndarray:
        """P(class | row) for rows V, by Bayes' rule from the pooled moments."""
        return moments.shared_gaussian(V, total, C, self.shrinkage)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        return dict(round=0)

    def shared(self, state: dict) -> dict:
        return {}

    def round(self, server: Server, state: dict) -> dict:
        """One shot. The state says what the server knows: who was there."""
        ids, what = {party_name(id): id for id in server.clients}, "a secure sum"
        said = session.named(server.ask(self.keys, session_id=secrets.token_hex(16)), what)
        told = one_shot.agreed(said)
        d, C = next(iter(said.values()))["features"], len(told["classes"])
        met = session.named(server.ask(self.meet, to=[ids[name] for name in said], **told,
                                       form=lambda id: dict(letters=session.letters_form(said, id))), what)  # fmt: skip
        form: dict[str, Form] = dict(share=Array("uint64", (moments.numbers(d, C), 4)), tag=bytes)
        asked = server.ask(self.pool, each=session.relayed(met, ids), parties=session.numbered(met), form=lambda id: form)
        pooled = self.sums.once(server, ids, session.named(asked, what), met, 0)
        there = [ids[name] for name in pooled["parties"]]
        fedcof = self._fedcof(server, there, C, d)
        done = server.ask(self.predict, to=there, pooled=pooled, fedcof=fedcof)
        return dict(round=1, classes=told["classes"], got_labels=dict(enumerate(sorted(party_name(id) for id in done))))

    def _fedcof(self, server: Server, there: list[Id], C: int, d: int) -> Head:
        """FedCOF's head, which the server makes from every party's class sums."""
        form: dict[str, Form] = dict(sums=Array("float64", (C + C * d,)))
        said = session.named(server.ask(self.means, to=there, form=lambda id: form), "a comparison of means")
        sums = np.stack([said[name]["sums"] for name in sorted(said)])
        if not sums[:, :C].any():
            raise Mistake("no party has a labelled row: label a few rows at any party, then run again.")
        return moments.between_clients(sums, C, d, added=1.0)


def of_total(total: np.ndarray, C: int, d: int) -> dict[str, Head]:
    """The other heads that need only the moments of all parties, by the names of their methods."""
    heads = dict(fedncm=moments.nearest_mean(total, C, d, cosine=True))
    if d > moments.MOST_FEATURES:
        return heads
    return heads | dict(fed3r=moments.ridge(total, C, d, strength=0.01), fedcgs=moments.total_gaussian(total, C, d, added=0.0))
