"""A second opinion on a party's labels: cleanlab, on its own rows alone. Used where it is installed (extra `cleanlab`)."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from grapevine.jobs.reading import Party

FOLDS = 5
LEAST = 5  # labels of a class: one in every fold
MOST_NUMBERS = 20_000_000  # rows × features: beyond it the regression would take longer than the job


def flagged(party: Party) -> np.ndarray | None:
    """Which rows have a label that cleanlab takes for wrong; None where it is not installed, the labels are
    too few, or the rows too many.

    Its probabilities are those of a logistic regression on the party's own labelled rows, each row left out of its own model
    (5 folds), as cleanlab's own guide does it.
    """
    if find_spec("cleanlab") is None or party.x.size > MOST_NUMBERS:
        return None
    known = np.array([i for i, label in enumerate(party.labels) if label is not None], np.int64)
    names, y = np.unique([party.labels[i] for i in known], return_inverse=True) if len(known) else (known, known)
    if len(names) < 2 or np.bincount(y).min() < LEAST:
        return None
    from cleanlab.filter import find_label_issues  # here, because both take a second to load
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = party.x.reshape(len(party.x), -1)[known].astype(np.float64)
    model = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler(), LogisticRegression(max_iter=1000))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    out = np.zeros(len(party.labels), bool)
    out[known[find_label_issues(y, cross_val_predict(model, x, y, cv=folds, method="predict_proba"), n_jobs=1)]] = True
    return out
