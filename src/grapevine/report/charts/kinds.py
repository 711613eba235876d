"""The kinds of charts: each function takes the numbers and gives a `Chart`, its marks laid out once for page and files."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grapevine.core.words import count, many, percent, short
from grapevine.report.charts.marks import SERIES, Box, Dot, Drawing, Group, Line, Mark, Path, Words
from grapevine.report.charts.names import BESIDE, Named, place
from grapevine.report.parts import Chart, Key, Table

Format = Callable[[Any], str]
Names = tuple[str, Sequence[str]]  # what the lines of a heat map are, and their names

LONGEST, LONGEST_ABOVE = 14, 36  # letters of a name beside a bar or a cell, and above a bar: both fit on a phone
LONGEST_BESIDE = 22  # and beside a dot
NUMBERS = 19  # percent of the width for the numbers behind bars
LINE = 15  # pixels from one line of small text to the next
MOST_DOTS = 60  # of a line; with more there is no room for them
MOST_HITS = 120  # places along a chart that tell their values


@dataclass(frozen=True)
class Axis:
    name: str
    format: Format = count
    log: bool = False

    def place(self, value: float) -> float:
        return math.log10(value) if self.log else value


@dataclass(frozen=True)
class Point:
    """A value, which NaN leaves out, and its standard deviation."""

    x: float
    y: float
    std: float | None = None

    @property
    def there(self) -> bool:
        return not math.isnan(self.y)

    def around(self) -> tuple[float, float]:
        return self.y - (self.std or 0), self.y + (self.std or 0)

    def told(self, form: Format) -> str:
        return form(self.y) + (f" ± {100 * self.std:.1f}" if self.std is not None else "")


@dataclass(frozen=True)
class Series:
    """A line or dots of one colour. `number` is the colour, and the series is hidden by it."""

    name: str
    points: Sequence[Point]
    number: int = 0
    dashed: bool = False

    @property
    def look(self) -> str:
        return "dashed" if self.dashed else "line"

    @property
    def key(self) -> Key:
        return Key(self.name, self.number, Line(-9, 0, 9, 0, self.look, self.number))


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def heights(points: Sequence[Point], y: Axis) -> list[float]:
    """The grid lines for these points; shares are never below 0 or above 1."""
    low, high = (pick(edge for p in points if p.there for edge in p.around()) for pick in (min, max))
    return ticks(max(low, 0.0), min(high, 1.0), 4) if y.format is percent else ticks(low, high)


class Plane:
    """The area of a chart with two axes. The labels of the grid lines sit on them, at the left."""

    top, left, wide = 20, 9.0, 89.5

    def __init__(self, x: Sequence[float], y: Sequence[float], height: int = 230):
        self.x, self.y, self.height = x, y, height

    def across(self, value: float) -> float:
        return self.left + self.wide * (value - self.x[0]) / ((self.x[-1] - self.x[0]) or 1)

    def down(self, value: float) -> float:
        share = (value - self.y[0]) / ((self.y[-1] - self.y[0]) or 1)
        return self.top + (self.height - self.top) * (1 - min(max(share, 0.0), 1.0))

    def upright(self, x: float, look: str) -> Line:
        return Line(x, self.top, x, self.height, look)

    def grid(self, form: Format) -> list[Mark]:
        marks: list[Mark] = []
        for value in self.y:
            y = self.down(value)
            marks += [Line(0, y, 100, y), Words(0, y - 4, re.sub(r"\.0(?=%| |$)", "", form(value)))]
        return marks

    def x_labels(self, labels: Sequence[tuple[float, str]], name: str, room: float = 0) -> list[Mark]:
        """Words below their places, without those nearer than `room` percent to the one before; then the axis's name."""
        kept: list[tuple[float, str]] = []
        for value, words in labels:
            if not kept or self.across(value) - kept[-1][0] > room:
                kept.append((self.across(value), words))
        marks = [Words(x, self.height + LINE, words, "end" if x > 96 else "middle") for x, words in kept]
        return [*marks, Words(50, self.height + 2 * LINE + 2, name, "middle", look="axis")]

    def drawing(self, *marks: Sequence[Mark]) -> Drawing:
        return Drawing([mark for some in marks for mark in some], self.height + 2 * LINE + 8)

    def hits(self, places: Sequence[float], tips: Sequence[str]) -> list[Mark]:
        """An unseen column around each place, which shows a guide and tells the values there."""
        edges = [self.left - 1.5, *((a + b) / 2 for a, b in zip(places, places[1:])), 100.0]
        return [
            Group([Box(start, 0, max(end - start, 0.01), self.height, "area"), self.upright(x, "guide")], tip, role="hit")
            for x, start, end, tip in zip(places, edges, edges[1:], tips)
        ]


# ---------------------------------------------------------------- lines


def curves(x: Sequence[float], values: Mapping[str, Sequence[float | None]]) -> list[Series]:
    """Series over the same places. The second is dashed, to be told from the first without colours."""
    return [
        Series(name, [Point(a, math.nan if v is None else v) for a, v in zip(x, line)], i, i == 1)
        for i, (name, line) in enumerate(values.items())
    ]


def lines(
    title: str, series: Sequence[Series], x: Axis, y: Axis, *, mark: tuple[float, str] | None = None,
    level: tuple[float, str] | None = None, grid: Sequence[float] | None = None, height: int = 230, **about: Any,
) -> Chart:  # fmt: skip
    """One line per series, with a band of one standard deviation where there is one.

    `mark` is a place on x and what happened there, `level` a height and what it is; `grid` are the heights of the grid lines.
    """
    series = [s for s in series if any(p.there for p in s.points)]
    xs = sorted({p.x for s in series for p in s.points})
    ends = [x.place(xs[0]), x.place(xs[-1])] if len(xs) > 1 else [x.place(xs[0]) - 1, x.place(xs[0]) + 1]
    plane = Plane(ends, grid or heights([p for s in series for p in s.points], y), height)
    labels = xs if x.log or len(xs) <= 6 and x.format is count else [t for t in ticks(xs[0], xs[-1]) if xs[0] <= t <= xs[-1]]
    words = [(x.place(value), x.format(value).replace(".0 ", " ")) for value in labels]
    marks: list[Mark] = []
    if mark:
        at = plane.across(x.place(mark[0]))
        side = ("end", -6) if at > 60 else ("start", 6)
        marks += [plane.upright(at, "mark"), Words(at, plane.height - 8, mark[1], *side, look="axis")]
    if level and plane.y[0] <= level[0] <= plane.y[-1]:
        at = plane.down(level[0])
        marks += [Line(plane.left, at, 100, at, "mark"), Words(plane.left, at - 5, level[1], look="axis")]  # where lines are low
    hiding = [_hidden(s, series[:i], (plane.y[-1] - plane.y[0]) / 200) for i, s in enumerate(series)]
    marks += [Group(_line(plane, s, x, covers), of=s.number, role="series") for s, covers in zip(series, hiding)]
    if any(hiding):
        about["note"] = f"{about.get('note', '')} A dotted line lies on another of the same values.".strip()
    told = [xs[i * (len(xs) - 1) // (MOST_HITS - 1)] for i in range(MOST_HITS)] if len(xs) > MOST_HITS else xs
    tips = ["\n".join([f"{x.name}: {x.format(a)}", *(f"{s.name}: {v}" for s in series if (v := _at(s, a, y)))]) for a in told]
    hits = plane.hits([plane.across(x.place(a)) for a in told], tips)
    rows = [[x.format(a), *(_at(s, a, y, exact=True) for s in series)] for a in xs]
    about.setdefault("numbers", [Table([x.name, *(s.name for s in series)], rows, about.pop("more", ""))])
    drawing = plane.drawing(plane.grid(y.format), plane.x_labels(words, x.name, 9 if x.format is count else 13), marks, hits)
    return Chart(title, drawing, key=[s.key for s in series], **about)


def _hidden(s: Series, before: Sequence[Series], near: float) -> int:
    """How many of the lines drawn before this one would be hidden by it: nearly all their values are the same, and it has no gaps
    to show them in."""
    here = {p.x: p.y for p in s.points if p.there}
    covered = 0
    for other in before:
        apart = [abs(p.y - here[p.x]) for p in other.points if p.there and p.x in here]
        same = len(apart) > 1 and sum(d <= near for d in apart) >= 0.9 * len(apart)
        covered += same and (other.dashed or not s.dashed)
    return min(covered, 2)


def _line(plane: Plane, s: Series, x: Axis, covers: int = 0) -> list[Mark]:
    """A band, pieces of line between the gaps, and dots where there is room; with larger gaps and smaller dots where it covers
    other lines."""
    marks: list[Mark] = []
    wide = [(plane.across(x.place(p.x)), *map(plane.down, p.around())) for p in s.points if p.std is not None and p.there]
    if len(wide) > 1:
        outline = [(a, high) for a, _, high in wide] + [(a, low) for a, low, _ in reversed(wide)]
        marks.append(Path(outline, "band", s.number))
    pieces: list[list[tuple[float, float]]] = [[]]
    for p in s.points:
        if p.there:
            pieces[-1].append((plane.across(x.place(p.x)), plane.down(p.y)))
        else:
            pieces.append([])
    marks += [Path(piece, f"over{covers}" if covers else s.look, s.number) for piece in pieces if len(piece) > 1]
    if len(s.points) <= MOST_DOTS:
        marks += [Dot(a, b, 2.5 - 0.7 * covers, "fill", s.number) for piece in pieces for a, b in piece]
    return marks


def _at(s: Series, x: float, y: Axis, exact: bool = False) -> str | None:
    """A series' value at x: the newest at or before it."""
    i = bisect_right([p.x for p in s.points], x) - 1
    if i < 0 or (exact and s.points[i].x != x) or x > s.points[-1].x or not s.points[i].there:
        return None
    return s.points[i].told(y.format)


# ---------------------------------------------------------------- dots with whiskers


def costs(title: str, series: Sequence[Series], x: Axis, y: Axis, **about: Any) -> Chart:
    """A point per series with its name beside it: cost across, on a logarithmic axis. Dashed series are rings."""
    series = [s for s in series if s.points]
    least = min((s.points[0].x for s in series if s.points[0].x > 0), default=1.0) / 3  # what costs nothing stands left of all
    places = {s.name: math.log10(s.points[0].x or least) for s in series}
    low = math.floor(min(places.values()))
    high = max(math.ceil(max(places.values())), low + 1)
    plane = Plane([low - 0.3, high + 0.3], heights([s.points[0] for s in series], y), 320)
    labels = [(float(k), x.format(10.0**k).replace(".0 ", " ")) for k in range(low, high + 1)]
    best_first = sorted(series, key=lambda s: -s.points[0].y)
    dots = [Named(plane.across(places[s.name]), plane.down(s.points[0].y), short(s.name, LONGEST_BESIDE),
                  *map(plane.down, reversed(s.points[0].around()))) for s in best_first]  # fmt: skip
    marks: list[Mark] = []
    for s, dot, spot in zip(best_first, dots, place(dots, plane.left, plane.top - LINE, plane.height)):
        tip = f"{s.name}\n{x.name}: {x.format(s.points[0].x)}\n{y.name}: {s.points[0].told(y.format)}"
        lead = [Line(dot.x, dot.y, spot.x, spot.y, "lead", s.number)] if spot.away else []
        whisker = Line(dot.x, dot.top, dot.x, dot.bottom, s.look, s.number)
        ring = Dot(dot.x, dot.y, 5, "ring" if s.dashed else "fill", s.number)
        name = Words(spot.x, spot.y + 4, dot.name, spot.anchor, BESIDE if spot.anchor == "start" else -BESIDE)
        marks.append(Group([*lead, Group([whisker, ring], tip, role="dot"), name], of=s.number))
    rows = [[s.name, x.format(s.points[0].x), s.points[0].told(y.format)] for s in series]
    drawing = plane.drawing(plane.grid(y.format), plane.x_labels(labels, x.name, 16), marks)
    return Chart(title, drawing, [Table(["method", x.name, y.name], rows)], **about)


# ---------------------------------------------------------------- columns and bars


def columns(
    title: str, names: Sequence[str], values: Sequence[float], x_name: str, y: Axis, labels: Sequence[tuple[float, str]], *,
    top: float | None = None, height: int = 200, marked: Sequence[tuple[float | None, str]] = (), **about: Any,
) -> Chart:  # fmt: skip
    """Upright bars side by side, those below zero hanging. `labels` are (place in bars, word); `marked` are for each bar a height
    to compare it with, as a dashed line, and a word above it."""
    n = len(values)
    low, high = min([0.0, *values]), top or max([0.0, *values])
    plane = Plane([0, n], ticks(low, high or (0 if low else 1)), height)
    gap = 0.16 if n <= 60 else 0.0
    width = plane.wide * (1 - gap if gap else 1.02) / max(n, 1)  # without a gap they overlap a little, or seams would be seen
    marks: list[Mark] = []
    for i, value in enumerate(values):
        x, up, zero = plane.across(i + gap / 2), plane.down(max(value, 0)), plane.down(min(value, 0))
        bar = Box(x, up, width, zero - up, "fill", 0 if value >= 0 else 2)
        tip = f"{names[i]}\n{y.name}: {y.format(value)}"
        level, word = marked[i] if marked else (None, "")
        more: list[Mark] = [Words(x + width / 2, plane.top - 4, word, "middle")] if word else []
        if level is not None:
            more += [Line(x, plane.down(level), x + width, plane.down(level), look) for look in ("halo", "cut")]
        marks.append(Group([Box(x, 0, width, plane.height, "area"), bar, *more], tip, role="hit"))
    about.setdefault("numbers", [Table([x_name, y.name], [[a, y.format(v)] for a, v in zip(names, values)], "result.json")])
    return Chart(title, plane.drawing(plane.grid(y.format), marks, plane.x_labels(labels, x_name)), **about)


def histogram(title: str, counts: Sequence[int], x_name: str, y_name: str, **about: Any) -> Chart:
    """Counts of equal bins from 0 to 1."""
    n = len(counts)
    names = [f"{i / n:.0%} to {(i + 1) / n:.0%}" for i in range(n)]
    labels = [(n * share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)]
    return columns(title, names, counts, x_name, Axis(y_name), labels, **about)


def bars(
    title: str, names: Sequence[str], parts: Mapping[str, Sequence[float | None]], head: str, form: Format, *,
    beside: bool = False, most: float | None = None, **about: Any,
) -> Chart:  # fmt: skip
    """Horizontal bars, one row per name: the parts stacked with their sum at the end, or `beside` each other. Names are to the
    left of the bars, or above them if one is too long for that."""
    thick, above = 14 if beside else 16, LINE if any(len(str(name)) > LONGEST for name in names) else 0
    row = above + (thick * len(parts) + 12 if beside else thick + 8)
    sums = [sum(v[i] or 0 for v in parts.values()) for i in range(len(names))]
    seen = [v for values in parts.values() for v in values if v is not None] if beside else sums
    start = 0.0 if above else 2.0 + 2.2 * max((len(str(name)) for name in names), default=0)
    scale = (100 - NUMBERS - start) / (most or max(seen, default=0) or 1)
    marks: list[Mark] = []
    for i, name in enumerate(names):
        top, at, middle = i * row, start, i * row + (row + above) / 2
        inside: list[Mark] = [Box(0, top, 100, row, "area")]
        inside.append(Words(0, top + above if above else middle + 4, short(name, LONGEST_ABOVE)))
        for j, value in enumerate(v[i] for v in parts.values()):
            if value is None:
                continue
            y, width = (top + above + 6 + j * thick if beside else middle - thick / 2), max(scale * value, 0)
            bar: list[Mark] = [Box(at, y, width, thick - beside, "fill", j)]
            if beside:
                bar.append(Words(at + width, y + thick - 3, form(value), dx=6))
            else:
                at += width
            inside.append(Group(bar, of=j))
        if not beside:
            inside.append(Words(at, middle + 4, form(sums[i]), dx=6))
        told = [f"{part}: {form(v[i])}" for part, v in parts.items() if v[i] is not None]
        marks.append(Group(inside, "\n".join([str(name), *told]), role="hit"))
    rows = [[name, *(None if v[i] is None else form(v[i]) for v in parts.values())] for i, name in enumerate(names)]
    about.setdefault("numbers", [Table([head, *parts], rows, "result.json")])
    key = [Key(part, j, Box(-5, -5, 10, 10, "fill", j)) for j, part in enumerate(parts)]
    return Chart(title, Drawing(marks, row * len(names) + 4), key=key if len(key) > 1 else (), **about)


def gained(title: str, names: Sequence[str], values: Sequence[float], form: Format, **about: Any) -> Chart:
    """A horizontal bar for each name, to the right of zero or, in another colour, to its left, with its number at the end."""
    row, wide, low, high = LINE + 24, NUMBERS - 4, min(0.0, *values), max(0.0, *values)
    left, right = (wide if low < 0 else 0), (wide if high > 0 else 0)
    scale = (100 - left - right) / ((high - low) or 1)
    zero = left - scale * low
    marks: list[Mark] = [Line(zero, 0, zero, row * len(names))]
    for i, (name, value) in enumerate(zip(names, values)):
        top, length = i * row + LINE + 4, scale * abs(value)
        bar = Box(zero - (length if value < 0 else 0), top, length, 16, "fill", 2 if value < 0 else 0)
        end, anchor, dx = (bar.x, "end", -6) if value < 0 else (zero + length, "start", 6)
        told = [Words(0, top - 5, short(name, LONGEST_ABOVE)), Words(end, top + 12, form(value), anchor, dx)]
        marks.append(Group([Box(0, i * row, 100, row, "area"), bar, *told], f"{name}\n{form(value)}", role="hit"))
    about.setdefault("numbers", [Table(["client", "points"], [[name, form(value)] for name, value in zip(names, values)])])
    return Chart(title, Drawing(marks, row * len(names) + 4), **about)


# ---------------------------------------------------------------- heat maps and points


def shade(share: float) -> float:
    """How opaque a cell of a heat map is. The middle is left out: on it neither dark nor light letters could be read."""
    return 0 if share <= 0 else 0.05 + 0.78 * share if share < 0.5 else 0.7 + 0.6 * (share - 0.5)


def heat(
    title: str, rows: Names, cols: Names, values: Sequence[Sequence[float]], share_of: str = "",
    shares: Sequence[Sequence[float]] | None = None, **about: Any,
) -> Chart:  # fmt: skip
    """Numbers as colours. Cells tell their `values`, also as shares of the row if `share_of` names its sum; `shares` are the
    colours."""
    shares = shares or [[value / (sum(line) or 1) for value in line] for line in values]
    (down, names), (across, heads) = rows, cols
    cell = 30 if max(len(names), len(heads)) <= 16 else 18 if len(heads) <= 30 else 11
    letters = 12 if cell > 12 else 9
    longest, widest = (max((len(short(name, LONGEST)) for name in some), default=1) for some in (names, heads))
    left, upright = 16 + letters * 0.6 * longest, cell >= letters * 0.62 * widest
    top = 34 if upright else 24 + letters * 0.58 * widest
    marks: list[Mark] = [Words(0, 12, f"{down} ↓   {across} →", look="axis")]
    marks.append(Box(left, top, cell * len(heads) - 1, cell * len(names) - 1, "none"))
    for j, head in enumerate(heads):
        x = left + (j + 0.5) * cell + (0 if upright else 4)
        marks.append(Words(x, top - 6, short(head, LONGEST), "middle" if upright else "start", turned=not upright))
    for i, name in enumerate(names):
        marks.append(Words(left - 6, top + (i + 0.5) * cell + 4, short(name, LONGEST), "end"))
        for j, value in enumerate(values[i]):
            if value:
                tip = f"{down}: {name}\n{across}: {heads[j]}\n{count(value)}"
                tip += f" ({value / sum(values[i]):.0%} of {share_of})" if share_of else ""
                told = _brief(value) if cell >= 30 else ""
                marks.append(Group(_cell(left + j * cell, top + i * cell, cell - 1, shade(shares[i][j]), told), tip, role="cell"))
    table = Table([f"{down} \\ {across}", *heads], [[name, *line] for name, line in zip(names, values)])
    drawing = Drawing(marks, top + cell * len(names), left + cell * len(heads), letters)
    return Chart(title, drawing, [table], **dict(about, wide=len(heads) > 16))


def _cell(x: float, y: float, side: float, dark: float, words: str) -> list[Mark]:
    box = Box(x, y, side, side, "cell", opacity=dark)
    if not words:
        return [box]
    return [box, Words(x + side / 2, y + side / 2 + 4.5, words, "middle", look="over" if dark >= 0.7 else "under")]


def _brief(value: float) -> str:
    """At most four letters, to fit a cell."""
    return count(value).replace(",", "") if value < 1e4 else f"{value / 1e3:.0f}k" if value < 1e6 else f"{value / 1e6:.0f}M"


def scatter(
    title: str, points: Sequence[tuple[float, float, str, str]], order: Sequence[str], groups: str = "Party", *,
    centroids: bool = False, menus: bool = True, quiet: str = "", **about: Any,
) -> Chart:  # fmt: skip
    """Points (x, y, kind, group). The colour tells the kind, by its place in `order`; two menus choose a kind and a group.

    `centroids` marks the mean of every kind with a large dot; without `menus` the chart has only the key. The `quiet` kind is
    small and grey, below the others.
    """
    number = {kind: i for i, kind in enumerate(order)}
    across, down, kinds, others = zip(*points)
    marks: list[Mark] = []
    places: dict[str, list[tuple[float, float]]] = {kind: [] for kind in order if kind in kinds}
    for x, y, kind, group in zip(_within(across, 2, 98), _within(down, 388, 12), kinds, others):
        places[kind].append((x, y))
        dot = Dot(x, y, 2.4, "quiet") if kind == quiet else _symbol(number[kind], x, y)
        marks.append(Group([dot], f"{kind}\n{group}", data=dict(kind=kind, group=group)))
    marks.sort(key=lambda mark: isinstance(mark, Group) and mark.data["kind"] != quiet)
    for kind, some in places.items() if centroids else ():
        x, y = (sum(values) / len(some) for values in zip(*some))
        dot, tip = Dot(x, y, 7, "centre", number[kind]), f"{kind}\ncentre of {many(len(some), 'row')}"
        marks.append(Group([dot], tip, data=dict(kind=kind)))
    chosen = dict(kind=("Class", list(places)), group=(groups, sorted(set(others)))) if menus else None
    table = Table(["class", "points drawn"], [[kind, len(some)] for kind, some in places.items()])
    key = [Key(short(kind, 20), number[kind], Dot(0, 0, 2.4, "quiet") if kind == quiet else _symbol(number[kind]))
           for kind in places]  # fmt: skip
    return Chart(title, Drawing(marks, 400), [table], key=key, legend="key", menus=chosen, **about)


def _symbol(number: int, x: float = 0, y: float = 0) -> Dot:
    """The mark of a kind: every second ten are rings."""
    return Dot(x, y, 3.2, "ring" if number // SERIES % 2 else "point", number)


def _within(values: Sequence[float], first: float, last: float) -> list[float]:
    """Values moved and stretched to lie between two places."""
    low, high = min(values), max(values)
    return [first + (last - first) * (v - low) / ((high - low) or 1) for v in values]
