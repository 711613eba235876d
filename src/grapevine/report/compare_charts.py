"""Charts of a comparison: curves with spread over seeds, cost against accuracy, and small multiples of a grid.

They stand on `charts`: the same plane, figures and tips. What belongs to a method has `data-of` with its number, so that the
page's check boxes can hide it everywhere at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grapevine.core.words import percent
from grapevine.report.charts import Format, _number, _Plane, _text, figure, plot, svg, table, ticks
from grapevine.report.page import COLOURS, text

MOST_HITS = 60  # columns of a chart that tell their values
LETTER = 12  # pixels from one line of names to the next


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    std: float | None = None


@dataclass(frozen=True)
class Series:
    """A method in a chart. `number` is its colour and its check box, the same all over the page."""

    name: str
    number: int
    bound: bool
    points: Sequence[Point]

    @property
    def look(self) -> str:
        return f"s{self.number % COLOURS}{' bound' if self.bound else ''}"


def told(point: Point) -> str:
    return percent(point.y) + (f" ± {100 * point.std:.1f}" if point.std is not None else "")


def key(series: Sequence[Series]) -> str:
    """What colour is whose; bounds are dashed."""
    marks = "".join(
        f'<span data-of="{s.number}"><svg width="22" height="10" aria-hidden="true"><line class="stroke {s.look}" x1="0" x2="22" '
        f'y1="5" y2="5"/></svg>{text(s.name)}</span>'
        for s in series
    )
    return f'<div class="key">{marks}</div>'


def y_ticks(series: Sequence[Series]) -> list[float]:
    low = min(p.y - (p.std or 0) for s in series for p in s.points)
    high = max(p.y + (p.std or 0) for s in series for p in s.points)
    return ticks(max(low, 0.0), min(high, 1.0), 4)


# ---------------------------------------------------------------- curves


@plot
def curves(
    title: str,
    series: Sequence[Series],
    x_name: str,
    x_format: Format,
    note: str = "",
    y: Sequence[float] | None = None,
    log: bool = False,
    height: int = 300,
    mark: tuple[float, str] | None = None,
    wide: bool = True,
    named: bool = True,
) -> str:
    """One line per method with a band of one standard deviation on both sides; `mark` is a height and what it is."""
    series = [s for s in series if s.points]
    place: Callable[[float], float] = math.log10 if log else float
    xs = sorted({p.x for s in series for p in s.points})
    ends = [place(xs[0]), place(xs[-1])] if len(xs) > 1 else [place(xs[0]) - 1, place(xs[0]) + 1]
    plane = _Plane(ends, y or y_ticks(series), height)
    labels = xs if log or len(xs) <= 6 else [t for t in ticks(xs[0], xs[-1]) if xs[0] <= t <= xs[-1]]
    drawn = [plane.grid(percent), _x_labels(plane, labels, place, x_format, x_name)]
    if mark and plane.y[0] <= mark[0] <= plane.y[-1]:
        at = plane.down(mark[0])
        drawn.append(f'<line class="mark" x1="{plane.left}%" x2="100%" y1="{at:.1f}" y2="{at:.1f}"/>')
        drawn.append(_text(f"{plane.left}%", at - 5, mark[1], "start", ' class="axis"'))  # where curves are still low
    drawn += [_band(plane, s, place) for s in series]
    drawn += [_line(plane, s, place) for s in series]
    drawn.append(_hits(plane, xs, series, place, x_name, x_format))
    rows = [[x_format(x), *(_at(s, x, exact=True) for s in series)] for x in xs]
    numbers = table([x_name, *(s.name for s in series)], rows, "compare.json")
    legend = key(series) if named else ""
    return figure(title, svg(title, plane.full_height, "".join(drawn)), numbers, note, legend, wide)


def _x_labels(plane: _Plane, values: Sequence[float], place: Callable, x_format: Format, x_name: str, room: float = 9) -> str:
    """Labels under the axis, those left out that would touch their neighbour: `room` is in percent of the width."""
    kept: list[float] = []
    for value in values:
        if not kept or plane.across(place(value)) - plane.across(place(kept[-1])) > room:
            kept.append(value)
    shown = {place(value): x_format(value).replace(".0 ", " ") for value in kept}
    return plane.x_labels(list(shown), lambda at: shown[at], x_name)


def _inside(plane: _Plane) -> str:
    return (
        f'x="{plane.left}%" y="0" width="{plane.wide}%" height="{plane.height}" viewBox="0 0 1000 {plane.height}" '
        'preserveAspectRatio="none" overflow="visible"'
    )


def _xy(plane: _Plane, x: float, y: float) -> str:
    return f"{10 * (plane.across(x) - plane.left) / plane.wide * 100:.1f},{plane.down(min(max(y, plane.y[0]), plane.y[-1])):.1f}"


def _band(plane: _Plane, s: Series, place: Callable) -> str:
    points = [p for p in s.points if p.std is not None]
    if len(points) < 2:
        return ""
    above = [_xy(plane, place(p.x), p.y + p.std) for p in points]
    below = [_xy(plane, place(p.x), p.y - p.std) for p in reversed(points)]
    shape = f'<polygon points="{" ".join(above + below)}"/>'
    return f'<svg class="band {s.look}" data-of="{s.number}" {_inside(plane)}>{shape}</svg>'


def _line(plane: _Plane, s: Series, place: Callable) -> str:
    """A method's line, stretched with the chart but not its stroke, and dots where there is room."""
    line = " ".join(_xy(plane, place(p.x), p.y) for p in s.points)
    drawn = f'<svg class="line {s.look}" {_inside(plane)}><polyline points="{line}"/></svg>'
    if len(s.points) <= MOST_HITS:
        dots = (f'<circle cx="{_number(plane.across(place(p.x)))}%" cy="{plane.down(p.y):.1f}" r="2.5"/>' for p in s.points)
        drawn += f'<g class="fill {s.look}">{"".join(dots)}</g>'
    return f'<g data-of="{s.number}">{drawn}</g>'


def _at(s: Series, x: float, exact: bool = False) -> str | None:
    """A method's value at x: the newest at or before it."""
    i = bisect_right([p.x for p in s.points], x) - 1
    if i < 0 or (exact and s.points[i].x != x) or x > s.points[-1].x:
        return None
    return told(s.points[i])


def _hits(plane: _Plane, xs: Sequence[float], series: Sequence[Series], place: Callable, x_name: str, x_format: Format) -> str:
    """Unseen columns that show a guide and tell every method's value there."""
    if len(xs) > MOST_HITS:
        xs = [xs[i * (len(xs) - 1) // (MOST_HITS - 1)] for i in range(MOST_HITS)]
    places = [plane.across(place(x)) for x in xs]
    edges = [plane.left - 1.5, *((a + b) / 2 for a, b in zip(places, places[1:])), 100.0]
    out = []
    for i, x in enumerate(xs):
        values = {s.name: _at(s, x) for s in series}
        words = [f"{x_name}: {x_format(x)}", *(f"{name}: {value}" for name, value in values.items() if value)]
        at, begin, across = _number(places[i]), _number(edges[i]), _number(max(edges[i + 1] - edges[i], 0.01))
        out.append(
            f'<g class="hit" data-tip="{text(chr(10).join(words))}">'
            f'<rect x="{begin}%" y="0" width="{across}%" height="{plane.height}"/>'
            f'<line x1="{at}%" x2="{at}%" y1="{plane.top}" y2="{plane.height}"/></g>'
        )
    return "".join(out)


# ---------------------------------------------------------------- cost against accuracy


@plot
def costs(title: str, series: Sequence[Series], x_name: str, x_format: Format, note: str = "") -> str:
    """A point per method with its name beside it: cost across, on a logarithmic axis, accuracy upwards. The best is top left."""
    series = [s for s in series if s.points]
    known = [s.points[0].x for s in series if s.points[0].x > 0]
    least = min(known, default=1.0) / 3  # a method that costs nothing stands left of all others
    place = lambda x: math.log10(x or least)  # noqa: E731
    low, high = math.floor(min(place(s.points[0].x) for s in series)), math.ceil(max(place(s.points[0].x) for s in series))
    plane = _Plane([low - 0.3, max(high, low + 1) + 0.3], y_ticks(series), 320)
    powers = [10.0**k for k in range(low, max(high, low + 1) + 1)]
    drawn = [plane.grid(percent), _x_labels(plane, powers, math.log10, x_format, x_name, room=16)]
    taken: list[tuple[float, float]] = []
    for s in sorted(series, key=lambda s: -s.points[0].y):
        drawn.append(_cost(plane, s, place, taken, f"{x_name}: {x_format(s.points[0].x)}"))
    rows = [[s.name, x_format(s.points[0].x), told(s.points[0])] for s in series]
    numbers = table(["method", x_name, "accuracy"], rows, "compare.json")
    return figure(title, svg(title, plane.full_height, "".join(drawn)), numbers, note, "", wide=True)


def _cost(plane: _Plane, s: Series, place: Callable, taken: list[tuple[float, float]], cost: str) -> str:
    point = s.points[0]
    x, y = plane.across(place(point.x)), plane.down(point.y)
    line = y + 4  # the name goes down until it touches no other
    while any(abs(x - other) < 24 and abs(line - at) < LETTER for other, at in taken):
        line += 2
    taken.append((x, line))
    late = x > 70
    name = _text(f"{_number(x)}%", line, s.name, "end" if late else "start", f' dx="{-9 if late else 9}"')
    words = text(f"{s.name}\n{cost}\naccuracy: {told(point)}")
    return f'<g data-of="{s.number}">{_whisker(plane, point, x, s)}{_dot(x, y, s, words)}{name}</g>'


def _whisker(plane: _Plane, point: Point, x: float, s: Series) -> str:
    if not point.std:
        return ""
    top, bottom = (plane.down(min(max(point.y + side * point.std, plane.y[0]), plane.y[-1])) for side in (1, -1))
    return f'<line class="stroke {s.look}" x1="{_number(x)}%" x2="{_number(x)}%" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def _dot(x: float, y: float, s: Series, words: str) -> str:
    """Methods are full, bounds are rings."""
    kind = "ring" if s.bound else "fill"
    return f'<circle class="{kind} {s.look}" cx="{_number(x)}%" cy="{y:.1f}" r="5" data-tip="{words}"/>'


# ---------------------------------------------------------------- grouped dots


@plot
def groups(
    title: str,
    names: Sequence[str],
    series: Sequence[Series],
    x_name: str,
    note: str = "",
    y: Sequence[float] | None = None,
    height: int = 240,
    wide: bool = False,
    named: bool = True,
) -> str:
    """For flags that are words: a group per value, in it a dot per method. `x` of a point is the number of its group."""
    series = [s for s in series if s.points]
    plane = _Plane([0, len(names)], y or y_ticks(series), height)
    drawn = [plane.grid(percent)]
    for g in range(1, len(names)):
        x = _number(plane.across(g))
        drawn.append(f'<line class="grid" x1="{x}%" x2="{x}%" y1="{plane.top}" y2="{plane.height}"/>')
    for i, s in enumerate(series):
        dots = []
        for p in s.points:
            x = plane.across(p.x + (i + 1) / (len(series) + 1))
            words = text(f"{x_name}: {names[int(p.x)]}\n{s.name}: {told(p)}")
            dots.append(_whisker(plane, p, x, s) + _dot(x, plane.down(p.y), s, words))
        drawn.append(f'<g data-of="{s.number}">{"".join(dots)}</g>')
    drawn.append(plane.x_labels([g + 0.5 for g in range(len(names))], lambda at: str(names[int(at)]), x_name))
    by = {s.name: {int(p.x): told(p) for p in s.points} for s in series}
    numbers = table([x_name, *by], [[name, *(values.get(g) for values in by.values())] for g, name in enumerate(names)])
    legend = key(series) if named else ""
    return figure(title, svg(title, plane.full_height, "".join(drawn)), numbers, note, legend, wide)
