"""The leaderboard over comparisons: mean ranks, and all that share the best."""

from __future__ import annotations

import json

import pytest
from comparisons import LEVEL, grapevine, made_up, noisy, tabled

from grapevine.core.errors import Mistake
from grapevine.jobs import ranking
from grapevine.report import leaderboard


def test_the_leaderboard_ranks_over_all_settings(tmp_path, grid):
    other = tabled(made_up(tmp_path / "other", ["fedsem", "fedprox"], lambda label, values, seed: LEVEL[label], clients=5))
    ranks = {one["method"]: one for one in ranking.ranking(ranking.places([grid, other]))}
    # fedsem is first in 3 of 6 cells of the grid and in the other one, fedprox in the 3 that are left.
    assert ranks["fedsem"]["mean_rank"] == pytest.approx((4 * 1 + 3 * 2) / 7) and ranks["fedsem"]["wins"] == 4
    assert ranks["fedprox"]["mean_rank"] == pytest.approx((3 * 1 + 4 * 2) / 7)
    assert ranks["supervised"]["mean_rank"] is None and ranks["alone"]["settings"] == 1
    done = grapevine("leaderboard", tmp_path / "grid", tmp_path / "other", "--out", tmp_path / "l.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "l.html").read_text()
    assert 'href="grid/report.html"' in page and "fedsem has the best mean rank, 1.43, over 7 of 7 settings" in page
    listed = grapevine("leaderboard", tmp_path / "grid", "--out", tmp_path / "l.html", "--json")
    assert json.loads(listed.stdout)[0]["method"] in ("fedsem", "fedprox")
    assert grapevine("leaderboard", tmp_path / "grid", "--out", tmp_path).exit_code == 2


def test_a_comparison_that_is_given_twice_is_refused(tmp_path):
    """It was two settings, and its methods were ranked twice."""
    made = tabled(made_up(tmp_path / "c", ["fedsem", "fedprox"], noisy))
    with pytest.raises(Mistake, match="c is given twice: name each comparison once"):
        ranking.places([made, made])


def test_a_leaderboard_names_all_that_share_the_best_mean_rank(tmp_path):
    """Only the first in the alphabet was named."""
    pairs = [["fedprox", "fedsem"], ["fedprox", "fixmatch"], ["fedsem", "fixmatch"]]
    level = dict(LEVEL, fixmatch=0.75)
    loaded = [
        tabled(made_up(tmp_path / "-".join(pair), pair, lambda label, values, seed: level[label], seeds=1)) for pair in pairs
    ]
    leaderboard.write([loaded[0], loaded[1]], tmp_path / "l.html")
    assert "fedsem and fixmatch have the best mean rank, 1.00, over 1 of 2 settings." in (tmp_path / "l.html").read_text()
    leaderboard.write(loaded, tmp_path / "l.html")
    assert "fedsem has the best mean rank, 1.00, over 2 of 3 settings." in (tmp_path / "l.html").read_text()
    single = tabled(made_up(tmp_path / "single", ["fedsem"], noisy))
    leaderboard.write([single], tmp_path / "l.html")
    assert "No setting has two methods, one of them better than every lower bound." in (tmp_path / "l.html").read_text()
