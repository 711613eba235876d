"""Which column has which role, and columns that look like the truth."""

import pandas as pd
import pytest

import grapevine as gv
from grapevine.core.errors import Mistake
from grapevine.data.tables import Columns
from grapevine.data.together import read_together, same_as_label

TABLE = pd.DataFrame(dict(a=range(30), b=[i % 7 / 2 for i in range(30)], y=["k", "m", None] * 10, site=["n", "s", "n"] * 10))


@pytest.mark.parametrize(
    "roles, told",
    [
        (dict(label="y", truth="y"), "'y' is named by --label and by --truth, but a column has one role: .*or leave --truth out"),
        (dict(label="y", id="y"), "'y' is named by --label and by --id, but a column has one role: .*or leave --id out"),
        (dict(label="y", truth="a", id="a"), "'a' is named by --truth and by --id"),
        (dict(label="y", features="a,y"), "'y' already has another purpose: remove it from --features"),
        (dict(label="y", truth="a", features="a,b"), "'a' already has another purpose: remove it from --features"),
    ],
)
def test_a_column_has_one_role(roles, told, tmp_path):
    """The label as truth ran and measured nothing; the label as id complained of empty ids."""
    for name in ("p.csv", "q.csv"):
        TABLE.to_csv(tmp_path / name, index=False)
    paths = [tmp_path / "p.csv", tmp_path / "q.csv"]
    for job in (lambda: gv.label(paths, dry_run=True, **roles), lambda: gv.clean(paths, server=paths[0], dry_run=True, **roles)):
        with pytest.raises(Mistake, match=told):
            job()


def test_a_column_has_one_role_in_training():
    for more, told in ((dict(id="y"), "--label and by --id"), (dict(party="y"), "--label and by --party")):
        with pytest.raises(Mistake, match=f"'y' is named by {told}"):
            gv.train("fedavg", TABLE.dropna(), label="y", rounds=1, **more)
    with pytest.raises(Mistake, match="'y' is named by --label and by --truth"):
        Columns(label="y", truth="y")


def told(y, **columns):
    frame = pd.DataFrame(dict(columns, a=[i / 2 for i in range(len(y))], y=y))
    return list(same_as_label(read_together([frame[:6], frame[6:]], [Columns(label="y", impute=True)] * 2, ["p", "q"])))


def test_the_truth_is_noticed_where_labels_are_few():
    """With 12 or 5 labels it became a feature, and nothing was said: the rule needs 20."""
    truth = ["Adelie", "Gentoo", "Adelie", "Chinstrap", "Gentoo", "Adelie"] * 2
    few = [name if i < 5 else None for i, name in enumerate(truth)]
    for y, n in ((truth, 12), (few, 5)):
        (said,) = told(y, kind=truth)
        assert said.startswith(f"column 'kind' is the same as the label in all {n} rows that have both: if it is the truth, it")
    assert told(few, kind=["Adelie", None, *truth[2:]])[0].startswith("column 'kind' is the same as the label in all 4 rows")
    assert told(few, kind=["Gentoo", *truth[1:]]) == [] and told(few[:1] + [None] * 11, kind=truth) == []


def test_common_words_and_numbers_are_no_truth_where_labels_are_few():
    """Whether it rains today and tomorrow is the same on five days out of five often enough."""
    rain = ["yes", "no", "no"] * 4
    assert told(rain, today=rain) == [] and told([1, 0, 2] * 4, code=[1, 0, 2] * 4) == []
    assert len(told(rain, true_label=rain)) == 1 and len(told([1, 0, 2] * 4, truth=[1, 0, 2] * 4)) == 1
    assert told([1, 0, 2] * 4, code=[3, 5, 4] * 4) == []
