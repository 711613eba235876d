"""Charts: their marks lie where the numbers say, whatever the names are, and SVG and PNG draw the same marks."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFont

from grapevine import report
from grapevine.core.errors import Mistake
from grapevine.core.rows import Scale
from grapevine.core.words import count, percent, points
from grapevine.data.datasets import Dataset
from grapevine.report import page, picture
from grapevine.report.charts import files, kinds
from grapevine.report.charts.kinds import Axis, Point, Series
from grapevine.report.charts.marks import LIGHT, LOOKS, Box, Dot, Drawing, Group, Line, Path, Words
from grapevine.report.parts import Chart, Table

HOSTILE = ["<b>&", "a $x$ b", "100 % ~ _^{}\\", "日本 é", "x" * 200]
ACCURACY = Axis("accuracy", percent)


def flat(marks, kind=None, look=None):
    """The marks inside all groups, of a kind and a look."""
    inside = [mark for group in marks if isinstance(group, Group) for mark in flat(group.marks)]
    here = [mark for mark in marks if not isinstance(mark, Group)] + inside
    return [mark for mark in here if isinstance(mark, kind or object) and look in (None, mark.look)]


def drawn() -> list[Chart]:
    """A chart of every kind."""
    curves = kinds.curves([0, 1, 2], {HOSTILE[0]: [0.1, None, 0.5], HOSTILE[1]: [0.2, 0.3, 0.4]})
    points_of = lambda up: [Point(1, 0.5 + up, 0.1), Point(10, 0.6 + up, None), Point(100, 0.7 + up, 0.0)]  # noqa: E731
    series = [Series(HOSTILE[1], points_of(0)), Series("bound", points_of(0.1), 1, True), Series("none", [], 2)]
    free = Series("free", [Point(0, 0.5, 0.1)], 3)
    places = np.random.default_rng(0).random((30, 2)).tolist()
    names = [f"k{i}" for i in range(15)]
    return [
        kinds.lines("Curves $", curves, Axis("x_1"), ACCURACY, mark=(2.0, "kept: round 2")),
        kinds.lines("One point", kinds.curves([3], {"a": [0.5]}), Axis("round"), ACCURACY),
        kinds.lines("Compared", series, Axis("bytes", count, log=True), ACCURACY, level=(0.65, "target $")),
        kinds.costs("Costs", [*series, free], Axis("bytes"), ACCURACY),
        kinds.columns("Gains", HOSTILE[:3], [-1.0, 0.0, 2.0], "client", Axis("points"), [(0, "worst $"), (3, "best")]),
        kinds.gained("Gains by name", HOSTILE[:3], [-1.0, 0.0, 2.0], points),
        kinds.histogram("Bins", [1, 2, 3], "share", "rows"),
        kinds.bars("Stacked", HOSTILE, {"a": [1, 2, 3, 4, 5], "b": [5, 4, 3, 2, None]}, "who", count),
        kinds.bars("Beside", ["a", "b"], {"x": [0.5, 0.6], "y": [None, 0.4]}, "who", percent, beside=True, most=1.0),
        kinds.heat("Matrix", ("true", HOSTILE), ("taken for", HOSTILE[:2]), [[1, 9]] * 5, "the class"),
        kinds.scatter("Plane", [(x, y, f"k{i % 15}", "p") for i, (x, y) in enumerate(places)], names, centroids=True),
    ]  # fmt: skip


# Marks


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_ticks_are_round_and_hold_the_values(a, b):
    low, high = sorted((a, b))
    if high - low < 1e-6 * max(abs(low), abs(high)) or high - low < 1e-9:
        return  # closer together than the labels could tell
    marks = kinds.ticks(low, high)
    step = marks[1] - marks[0]
    assert marks[0] <= low + step * 1e-6 and marks[-1] >= high - step * 1e-6
    assert 2 <= len(marks) <= 8
    lead = step / 10 ** math.floor(math.log10(step * 1.0000001))
    assert min(abs(lead - m) for m in (1, 2, 5)) < 1e-3


def test_bars_are_as_long_as_their_values():
    chart = kinds.bars("t", ["a", "b"], {"x": [10, 40], "y": [30, None]}, "who", count)
    one, two, three = flat(chart.drawing.marks, Box, "fill")
    assert two.width == pytest.approx(3 * one.width) and three.width == pytest.approx(4 * one.width)
    assert two.x == pytest.approx(one.x + one.width) and three.x == one.x and three.x + three.width <= 100
    assert [box.colour for box in (one, two, three)] == [0, 1, 0]
    beside = kinds.bars("t", ["a"], {"x": [10], "y": [30]}, "who", count, beside=True, most=60)
    first, second = flat(beside.drawing.marks, Box, "fill")
    assert first.x == second.x and second.width == pytest.approx(3 * first.width) and second.y >= first.y + first.height
    assert second.width == pytest.approx((100 - kinds.NUMBERS - second.x) / 2)  # 30 of 60


def test_a_long_name_stands_whole_above_its_bar():
    """Regression: a host's page cut the names of steps after 14 letters."""
    names = ["↑ xclp.hamming.answer", "↓ keys"]
    for beside in (False, True):
        drawing = kinds.bars("t", names, {"x": [10, 40]}, "step", count, beside=beside).drawing
        told = [words for words in flat(drawing.marks, Words) if words.words in names]
        boxes = flat(drawing.marks, Box, "fill")
        assert [words.words for words in told] == names and all(box.x == 0 for box in boxes)
        assert told[0].y < boxes[0].y < boxes[0].y + boxes[0].height < told[1].y < boxes[1].y
        assert boxes[1].y + boxes[1].height <= drawing.height


def test_columns_below_zero_hang():
    chart = kinds.columns("t", ["a", "b", "c"], [-0.5, 0.0, 1.0], "x", Axis("y"), [])
    red, none, blue = flat(chart.drawing.marks, Box, "fill")
    assert (red.colour, blue.colour) == (2, 0) and none.height == 0
    assert red.y == none.y == pytest.approx(blue.y + blue.height) and blue.height == pytest.approx(2 * red.height)


def test_a_line_goes_through_its_values_and_stops_at_gaps():
    chart = kinds.lines("t", kinds.curves([0, 1, 2, 3, 4], {"v": [0.0, 1.0, None, 0.5, 0.5]}), Axis("x"), Axis("y"))
    pieces = [path.points for path in flat(chart.drawing.marks, Path)]
    left, wide = kinds.Plane.left, kinds.Plane.wide
    assert [[x for x, _ in piece] for piece in pieces] == [[left, left + wide / 4], [left + wide * 3 / 4, left + wide]]
    (bottom, top), (middle, same) = ([y for _, y in piece] for piece in pieces)
    assert bottom > top and middle == same == (bottom + top) / 2
    assert chart.numbers[0].rows == [["0", "0"], ["1", "1"], ["2", None], ["3", "0.5"], ["4", "0.5"]]


def test_a_line_that_covers_another_leaves_gaps_to_see_it_by():
    """Two methods with the same curve were one line: the first lay hidden under the second."""
    same = dict(a=[0.1, 0.2, 0.3], b=[0.1, 0.2, 0.3], c=[0.1, 0.2, 0.3], d=[0.3, 0.2, 0.1])
    series = [Series(name, [Point(x, y) for x, y in enumerate(values)], i) for i, (name, values) in enumerate(same.items())]
    chart = kinds.lines("t", series, Axis("x"), ACCURACY, note="n.")
    assert [path.look for path in flat(chart.drawing.marks, Path)] == ["line", "over1", "over2", "line"]
    assert chart.note == "n. A dotted line lies on another of the same values."
    two = kinds.lines("t", kinds.curves([0, 1], dict(a=[0.1, 0.2], b=[0.1, 0.2])), Axis("x"), ACCURACY)
    assert [path.look for path in flat(two.drawing.marks, Path)] == ["line", "dashed"] and not two.note  # it has gaps as it is


def test_gains_are_bars_with_names_on_both_sides_of_zero():
    """A gain of three clients was one huge bar without a name."""
    chart = kinds.gained("t", ["a", "b", "c"], [-0.1, 0.0, 0.2], points)
    red, none, blue = flat(chart.drawing.marks, Box, "fill")
    zero = flat(chart.drawing.marks, Line)[0].x
    assert red.x + red.width == pytest.approx(zero) == blue.x and none.width == 0 and blue.width == pytest.approx(2 * red.width)
    assert 0 < red.x and blue.x + blue.width < 100 and (red.colour, blue.colour) == (2, 0)
    assert [w.words for w in flat(chart.drawing.marks, Words)] == ["a", "−10.0", "b", "+0.0", "c", "+20.0"]


def test_bands_are_as_wide_as_the_spread_and_log_axes_even():
    series = Series("a", [Point(1, 0.5, 0.1), Point(10, 0.5, 0.2), Point(100, 0.5, 0.3)])
    chart = kinds.lines("t", [series], Axis("x", count, log=True), ACCURACY)
    (band,) = flat(chart.drawing.marks, Path, "band")
    upper, lower = band.points[:3], band.points[:2:-1]
    assert [x for x, _ in upper] == [x for x, _ in lower]
    (a, b, c) = (x for x, _ in upper)
    assert b - a == pytest.approx(c - b)
    widths = [low - high for (_, high), (_, low) in zip(upper, lower)]
    assert widths[1] == pytest.approx(2 * widths[0]) and widths[2] == pytest.approx(3 * widths[0])


def test_a_point_that_costs_nothing_stands_left_of_all():
    points = dict(free=0, cheap=10, dear=1000)
    series = [Series(name, [Point(x, 0.5)], i, dashed=name == "dear") for i, (name, x) in enumerate(points.items())]
    dots = flat(kinds.costs("t", series, Axis("bytes"), ACCURACY).drawing.marks, Dot)
    free, cheap, dear = sorted(dots, key=lambda dot: dot.colour)
    assert free.x < cheap.x < dear.x and (cheap.look, dear.look) == ("fill", "ring")
    assert (dear.x - cheap.x) / (cheap.x - free.x) == pytest.approx(2 / math.log10(3))


TABLE = dict(alone=(612, 0.9), fedavg=(894600, 0.917), network=(895100, 0.92), sage=(894600, 0.94), proxyfl=(820000, 0.938),
             xclp=(1.2e6, 0.95), supervised=(1.6e6, 0.97))  # fmt: skip
ALIKE = {f"method {i}": (1e6, 0.9) for i in range(8)}
CROWD = {f"method {i}": (10**x, y) for i, (x, y) in enumerate(np.random.default_rng(1).uniform((6, 0.85), (6.4, 0.95), (20, 2)))}


@pytest.mark.parametrize("values", [TABLE, ALIKE, CROWD])
@pytest.mark.parametrize("width", [320, 720, 1200])
def test_names_cover_neither_dots_nor_names(values, width):
    """`proxyfl` stood on the dot of `sage`."""
    series = [Series(name, [Point(x, y, 0.02)], i) for i, (name, (x, y)) in enumerate(values.items())]
    marks = kinds.costs("t", series, Axis("bytes"), ACCURACY).drawing.marks
    names = [mark for mark in flat(marks, Words) if mark.words in values]
    boxes = [(x - 5, y - 5, x + 5, y + 5) for x, y in ((dot.x * width / 100, dot.y) for dot in flat(marks, Dot))]
    for name in names:
        left, top, right, bottom = files.font(12).getbbox(name.words, anchor=dict(start="ls", end="rs")[name.anchor])
        at = name.x * width / 100 + name.dx
        box = (at + left, name.y + top, at + right, name.y + bottom)
        assert (
            0 <= box[0]
            and box[2] <= width
            and all(box[2] <= b[0] or b[2] <= box[0] or box[3] <= b[1] or b[3] <= box[1] for b in boxes)
        ), name.words
        boxes.append(box)
    assert len(names) == len(values)


def test_a_name_away_from_its_dot_has_a_line_to_it():
    series = [Series(name, [Point(*values)], i) for i, (name, values) in enumerate(CROWD.items())]
    groups = [mark for mark in kinds.costs("t", series, Axis("bytes"), ACCURACY).drawing.marks if isinstance(mark, Group)]
    leads = 0
    for group in groups:
        (dot,), (name,), lines = (flat(group.marks, kind) for kind in (Dot, Words, Line))
        lead = [(line.x, line.y, line.x2, line.y2) for line in lines if line.look == "lead"]
        far = name.x != dot.x or abs(name.y - 4 - dot.y) > 10
        assert lead == ([(dot.x, dot.y, name.x, name.y - 4)] if far else [])
        leads += far
    assert leads > 5


def test_a_level_is_seen_on_its_bar():
    """The dashed line of the mean probability was dark orange on purple."""
    chart = kinds.columns("t", ["a"], [1.0], "x", Axis("y"), [], top=1.0, marked=[(0.5, "3")])
    bar, halo, cut = (flat(chart.drawing.marks, kind, look)[0] for kind, look in ((Box, "fill"), (Line, "halo"), (Line, "cut")))
    order = flat(chart.drawing.marks)
    assert order.index(bar) < order.index(halo) < order.index(cut) and (halo.x, halo.y, halo.x2) == (cut.x, cut.y, cut.x2)
    assert LOOKS["halo"].stroke == "panel" and LOOKS["halo"].width >= 2 * LOOKS["cut"].width and not LOOKS["halo"].dash


def test_many_places_are_told_at_some_of_them_and_the_ends():
    chart = kinds.lines("t", kinds.curves(list(range(1000)), {"v": [0.5] * 1000}), Axis("x"), ACCURACY)
    tips = [mark.tip for mark in chart.drawing.marks if isinstance(mark, Group) and mark.role == "hit"]
    assert len(tips) == kinds.MOST_HITS and tips[0].startswith("x: 0\n") and tips[-1].startswith("x: 999\n")
    assert not flat(chart.drawing.marks, Dot) and len(chart.numbers[0].rows) == 1000


def test_points_fill_the_plane_and_the_centre_is_their_mean():
    points = [(0, 0, "a", "p"), (10, 0, "a", "q"), (20, 4, "b", "p")]
    chart = kinds.scatter("t", points, ["a", "b", "c"], centroids=True)
    dots, centres = (flat(chart.drawing.marks, Dot, look) for look in ("point", "centre"))
    assert [(dot.x, dot.y) for dot in dots] == [(2, 388), (50, 388), (98, 12)]
    assert [(dot.x, dot.y, dot.colour) for dot in centres] == [(26, 388, 0), (98, 12, 1)]
    assert chart.menus == dict(kind=("Class", ["a", "b"]), group=("Party", ["p", "q"]))
    assert chart.numbers[0].rows == [["a", 2], ["b", 1]]


# Files


def test_every_kind_is_written_as_png_and_svg(tmp_path):
    charts = drawn()
    paths = files.save_all([*charts, charts[1]], tmp_path / "new" / "figures")
    assert len(paths) == 2 * (len(charts) + 1) == len(set(paths))
    assert {path.name for path in paths} >= {"curves.svg", "one-point.png", "one-point-2.png", "matrix.svg"}
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width > 300 and len(image.convert("RGB").getcolors(1 << 24)) > 5
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg") and "var(" not in path.read_text()
    words = "".join(ElementTree.parse(tmp_path / "new" / "figures" / "curves.svg").getroot().itertext())
    assert all(word in words for word in ("Curves $", HOSTILE[0], HOSTILE[1], "kept: round 2", "x_1", "50%"))


def test_the_same_charts_give_the_same_files(tmp_path):
    first, second = (files.save_all(drawn(), tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_picture_has_the_colours_where_the_marks_are():
    """Boxes, dots, lines and bands at known places of a sheet, by their pixels."""
    marks = [
        Box(0, 0, 50, 40, "fill", 0), Dot(75, 20, 10, "fill", 1), Line(0, 60, 100, 60, "line", 2),
        Path([(0, 80), (100, 80), (100, 100), (0, 100)], "band", 3), Line(0, 120, 100, 120, "dashed", 4),
        Box(0, 0, 100, 9, "area"),
    ]  # fmt: skip
    chart = Chart("", Drawing(marks, 140), [])
    image = files.picture(files.sheet([chart]))
    x0, y0, width, _ = files.sheet([chart]).layers[1]

    def at(share, y):
        return image.getpixel((round((x0 + share * width) * files.SCALE), round((y0 + y) * files.SCALE)))

    def rgb(name):
        return tuple(bytes.fromhex(LIGHT[name][1:]))

    assert at(0.25, 4) == at(0.25, 20) == rgb("s0") and at(0.6, 20) == at(0.6, 4) == rgb("panel")  # what is unseen stays so
    assert at(0.75, 20) == rgb("s1") and at(0.75, 35) == rgb("panel")
    assert at(0.5, 60) == rgb("s2") and at(0.5, 64) == rgb("panel")
    share = LOOKS["band"].opacity
    assert at(0.5, 90) == pytest.approx([255 * (1 - share) + c * share for c in rgb("s3")], abs=2)
    row = [at(i / 720, 120) == rgb("s4") for i in range(200)]
    dash, gap = LOOKS["dashed"].dash
    assert sum(row) / len(row) == pytest.approx(dash / (dash + gap), abs=0.05)


def test_words_stand_upright_or_turned():
    marks = [Words(10, 150, "words", turned=True), Words(60, 150, "words")]
    chart = Chart("", Drawing(marks, 200, 300), [])
    pixels = np.asarray(files.picture(files.sheet([chart])).convert("L"), float) < 128
    x0, y0, *_ = files.sheet([chart]).layers[1]
    left = pixels[:, : round((x0 + 40) * files.SCALE)].nonzero()
    right = pixels[:, round((x0 + 40) * files.SCALE) :].nonzero()
    tall, wide = (
        (lambda found: (np.ptp(found[0]), np.ptp(found[1])))(left),
        (lambda found: (np.ptp(found[0]), np.ptp(found[1])))(right),
    )
    assert tall[0] > 2 * tall[1] and wide[1] > 2 * wide[0]
    assert tall[0] == pytest.approx(wide[1], abs=4) and left[0].max() <= (y0 + 152) * files.SCALE


def test_without_a_font_of_the_system_letters_become_the_nearest(monkeypatch):
    monkeypatch.setattr(files, "FONTS", ("nowhere.ttf",))
    files.font.cache_clear()
    try:
        own = files.font(24)
        assert own.getname() == ImageFont.load_default(24).getname()
        assert files.plain("τ — é ↑ ± …", own) == "tau - e up: ± ..."
        assert len(files.picture(files.sheet(drawn()[:1])).getcolors(1 << 24)) > 5
    finally:
        files.font.cache_clear()


def test_a_place_that_cannot_be_written_is_a_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Mistake, match=r"file.* cannot be a folder.* name another folder for the plots\.$"):
        files.save_all(drawn()[:1], tmp_path / "file" / "inside")


def test_a_run_without_rows_still_has_a_page(tmp_path):
    settings = dict(method="fedavg", rounds=3, per_round=2, seed=0, model="mlp", version="0.1.0", command="x", settings={},
                    data=dict(name="d", classes=["a", "b"], clients=2, partition="iid", split="0"))  # fmt: skip
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    made = report.make(tmp_path, full=True)
    assert made.charts == [] and "Nothing has been evaluated yet" in made.html()


def test_a_table_leaves_out_what_is_too_long_and_says_where_it_is():
    shown = page.Page("t", "k", "h", [("s", [Table(["a", "b"], [[i, f"{i} %"] for i in range(600)], "x.json")])], "f").html()
    assert shown.count("<tr>") == 501 and "… and 100 more lines, in x.json." in shown
    assert Table(["class", "n", "%"], [["1", 2, "3.0%"]]).numeric == [False, True, True]


# The picture of a split


def toy(n=3000, name="toy", classes=10):
    x, y = torch.arange(n).float()[:, None], torch.arange(n) % classes
    scale = Scale(1.0, torch.zeros(1), torch.ones(1))
    return Dataset(name, "table", x, y, x[:10], y[:10], tuple(f"a class called {c}" for c in range(classes)), scale)


def listed(split):
    parts = [dict(labelled=p.labelled.tolist(), labels=p.labels.tolist(), unlabelled=p.unlabelled.tolist()) for p in split.parts]
    server = dict(labelled=split.server.labelled.tolist(), labels=split.server.labels.tolist(), unlabelled=[])
    return dict(clients=parts, server=server, table=split.table(), foreign=None)


def test_the_charts_hold_the_splits_numbers():
    split = toy().split(clients=5, partition="dirichlet:0.3", labels="server:40,clients:100", flip=0.1)
    rows, truth, given = picture.charts(listed(split), split.dataset.classes, lambda i: f"c{i}")
    table = split.table()
    assert [line[0] for line in rows.numbers[0].rows] == ["c0", "c1", "c2", "c3", "c4", "server"]
    for line, told in zip(rows.numbers[0].rows, table):
        assert line[1:] == [str(told["labelled"] - told["flipped"]), str(told["unlabelled"]), str(told["flipped"])]
    assert [line[1:] for line in truth.numbers[0].rows] == [told["classes"] for told in table]
    assert [line[1:] for line in given.numbers[0].rows][:5] == [
        [part.labels.tolist().count(c) for c in range(10)] for part in split.parts
    ]
    assert sum(line["flipped"] for line in table) == 10


@pytest.mark.parametrize("clients", [3, 80])
def test_only_what_is_there_is_drawn(tmp_path, clients):
    noisy = toy().split(clients=clients, labels="clients:1500", flip=0.5, irrelevant="other:0.5", foreign=toy(name="other"))
    plain = toy().split(clients=clients, labels="server:500")
    picture.draw(noisy, tmp_path / "noisy.png")
    picture.draw(plain, tmp_path / "plain.png")

    def share_of(name, series):
        pixels = np.asarray(Image.open(tmp_path / name).convert("RGB"))
        return (pixels == list(bytes.fromhex(LIGHT[f"s{series}"][1:]))).all(-1).mean()

    assert all(share_of("noisy.png", series) > 1e-3 for series in range(4))  # labelled, wrong, unlabelled, irrelevant
    assert share_of("plain.png", 0) > 1e-4 and share_of("plain.png", 1) > 1e-3  # the server's labels; the clients' rows
    assert share_of("plain.png", 2) == share_of("plain.png", 3) == 0


def test_a_picture_is_written_by_the_ending_of_its_name(tmp_path):
    split = toy(300).split(clients=4)
    for name in ("a.svg", "b.svg", "a.png", "a.pdf"):
        picture.draw(split, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text() and "toy: clients 4" in text
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > 700
    with pytest.raises(Mistake, match=r"a.txt is not the name of a picture: use one that ends in .png, .svg or .pdf"):
        picture.draw(split, tmp_path / "a.txt")
    with pytest.raises(Mistake, match=r"there is no folder .*nowhere"):
        picture.draw(split, tmp_path / "nowhere" / "a.png")
