"""Pictures of a report's charts: the same numbers as on the page, as PNG and SVG, whatever the names are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from grapevine.core.errors import Mistake
from grapevine.core.words import percent
from grapevine.report import charts, compare_charts, plots
from grapevine.report import train as report
from grapevine.report.compare_charts import Point, Series

HOSTILE = ["<b>&", "a $x$ b", "100 % ~ _^{}\\", "日本", "x" * 200]


def drawn() -> list[charts.Plot]:
    with charts.remembered() as kept:
        mark = (2.0, "kept: round 2")
        charts.line("Curves $", [0, 1, 2], {HOSTILE[0]: [0.1, None, 0.5], HOSTILE[1]: [0.2, 0.3, 0.4]}, "x_1", percent, mark=mark)
        charts.line("One point", [3], {"a": [0.5]}, "round", percent)
        charts.columns("Gains", HOSTILE[:3], [-1.0, 0.0, 2.0], charts.count, "client", "points", [(0, "worst $"), (3, "best")])
        charts.bars("Stacked", HOSTILE, {"a": [1, 2, 3, 4, 5], "b": [5, 4, 3, 2, None]}, charts.count, "who")
        charts.bars("Beside", ["a", "b"], {"x": [0.5, 0.6], "y": [None, 0.4]}, percent, "who", beside=True, most=1.0)
        charts.heat("Matrix", HOSTILE, HOSTILE[:2], [[1, 2]] * 5, [[0.1, 0.9]] * 5, "true", "taken for")
        points = np.random.default_rng(0).random((30, 2))
        kinds = [f"k{i % 15}" for i in range(30)]
        order = [f"k{i}" for i in range(15)]
        points_of = lambda up: [Point(1, 0.5 + up, 0.1), Point(10, 0.6 + up, None), Point(100, 0.7 + up, 0.0)]  # noqa: E731
        series = [
            Series(HOSTILE[1], 0, False, points_of(0)),
            Series("bound", 1, True, points_of(0.1)),
            Series("none", 2, False, []),
        ]
        compare_charts.curves("Compared", series, "bytes", charts.count, log=True, mark=(0.65, "target $"))
        free = Series("free", 3, False, [Point(0, 0.5, 0.1)])
        compare_charts.costs("Costs", [*series, free], "bytes", charts.count)
        cells = [replace(s, points=[replace(p, x=i) for i, p in enumerate(s.points)]) for s in series]
        compare_charts.groups("Groups", HOSTILE[:3], cells, "labels")
        charts.scatter("Plane", points[:, 0], points[:, 1], kinds, kinds, order, "", centroids=True)
    return kept


def test_only_what_is_drawn_inside_is_remembered():
    with charts.remembered() as outer:
        charts.line("one", [0, 1], {"a": [0.0, 1.0]}, "x", percent)
        with charts.remembered() as inner:
            charts.line("two", [0, 1], {"a": [0.0, 1.0]}, "x", percent)
    charts.line("three", [0, 1], {"a": [0.0, 1.0]}, "x", percent)
    assert [plot.about["title"] for plot in outer] == ["one"] and [plot.about["title"] for plot in inner] == ["two"]
    assert outer[0].kind == "line" and outer[0].about["wide"] is False  # defaults too


def test_every_kind_is_written_as_png_and_svg(tmp_path):
    kept = drawn()
    assert {plot.kind for plot in kept} == set(plots.KINDS)
    paths = plots.save([*kept, kept[1]], tmp_path / "new" / "figures")
    assert len(paths) == 2 * (len(kept) + 1) == len(set(paths))
    assert {path.name for path in paths} >= {"curves.svg", "one-point.png", "one-point-2.png", "matrix.svg"}
    for path in paths:
        if path.suffix == ".png":
            image = Image.open(path)
            assert image.width > 300 and len(image.convert("RGB").getcolors(1 << 24)) > 5
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
    words = "".join(ElementTree.parse(tmp_path / "new" / "figures" / "curves.svg").getroot().itertext())
    assert all(word in words for word in ("Curves $", HOSTILE[0], HOSTILE[1], "kept: round 2", "x_1", "50.0%"))


def test_the_same_plots_give_the_same_svg(tmp_path):
    first, second = (plots.save(drawn(), tmp_path / name) for name in ("a", "b"))
    for a, b in zip(first, second):
        assert a.suffix != ".svg" or a.read_bytes() == b.read_bytes()


def test_a_picture_shows_the_numbers():
    kept = {plot.about["title"]: plots.draw(plot).axes[0] for plot in drawn()}
    (with_gap, whole) = (line for line in kept["Curves $"].lines if len(line.get_xdata()) == 3)
    np.testing.assert_array_equal(with_gap.get_ydata(), [0.1, np.nan, 0.5])
    np.testing.assert_array_equal(whole.get_ydata(), [0.2, 0.3, 0.4])
    assert [bar.get_height() for bar in kept["Gains"].patches] == [-1, 0, 2]
    lengths = [bar.get_width() for bar in kept["Stacked"].patches]
    starts = [bar.get_x() for bar in kept["Stacked"].patches]
    assert lengths == [1, 2, 3, 4, 5, 5, 4, 3, 2, 0] and starts[5:] == lengths[:5]
    np.testing.assert_allclose(kept["Compared"].lines[1].get_xydata(), [[1, 0.6], [10, 0.7], [100, 0.8]])
    assert kept["Compared"].get_xscale() == kept["Costs"].get_xscale() == "log"
    np.testing.assert_array_equal(kept["Matrix"].images[0].get_array(), [[0.1, 0.9]] * 5)


def test_a_place_that_cannot_be_written_is_a_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Mistake, match=r"nothing can be written to .*file.* name another folder for the plots\.$"):
        plots.save(drawn()[:1], tmp_path / "file" / "inside")


def test_a_run_without_rows_still_draws(tmp_path):
    settings = dict(method="fedavg", rounds=3, per_round=2, seed=0, model="mlp", version="0.1.0", command="x", settings={},
                    data=dict(name="d", classes=["a", "b"], clients=2, partition="iid", split="0"))  # fmt: skip
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    with charts.remembered() as kept:
        page = report.write(tmp_path, full=True)
    assert kept == [] and re.search("Nothing has been evaluated yet", Path(page).read_text())
