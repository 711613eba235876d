"""Charts for the report: inline SVG, with a title and a table behind each.

Every chart is drawn without a viewBox where it can be: places across are percentages and places down are pixels, so a chart
takes the width it is given and its letters stay as large as the text, on a desk and on a phone. All text is escaped here.
Hovering, arrow keys and legends are the few lines of script in `page`: anything with `data-tip` tells what it is.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from grapevine.report.page import COLOURS, text

MOST_TABLE_ROWS = 500
LONGEST = 14  # letters of a name beside a bar
NUMBERS = 19  # percent of the width for the numbers behind bars
LINE = 15  # pixels between lines of small text

MEASURED = re.compile(r"-?[\d.,]+ ?(%|s|B|kB|MB|GB)")

Format = Callable[[Any], str]


@dataclass(frozen=True)
class Plot:
    """What a chart shows, whoever draws it: the name of its function here, and the arguments."""

    kind: str
    about: dict[str, Any]


_plots: ContextVar[list[Plot] | None] = ContextVar("plots", default=None)


@contextmanager
def remembered() -> Iterator[list[Plot]]:
    """The charts that are drawn inside, for `plots.save`."""
    plots: list[Plot] = []
    before = _plots.set(plots)
    try:
        yield plots
    finally:
        _plots.reset(before)


def plot(draw: Callable[..., str]) -> Callable[..., str]:
    """Mark a function that draws a chart: `plots` draws the same as a picture file."""
    signature = inspect.signature(draw)

    @functools.wraps(draw)
    def drawn(*args: Any, **words: Any) -> str:
        plots = _plots.get()
        if plots is not None:
            bound = signature.bind(*args, **words)
            bound.apply_defaults()
            plots.append(Plot(draw.__name__, dict(bound.arguments)))
        return draw(*args, **words)

    return drawn


def count(n: float) -> str:
    return f"{n:,.0f}" if float(n).is_integer() else f"{n:,.3g}"


def short(name: Any, most: int) -> str:
    name = str(name)
    return name if len(name) <= most else name[: most - 1] + "…"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


# Tables and figures --------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], more: str = "") -> str:
    """Columns of numbers to the right, the rest to the left; `more` says where the lines are that a long table leaves out."""
    right = [any(map(_is_number, column)) for column in zip(*rows)] if rows else [False] * len(heads)
    kind = [" class=n" if r else "" for r in right]
    head = "".join(f'<th scope="col"{k}>{text(name)}</th>' for name, k in zip(heads, kind))
    body = "".join(
        "<tr>" + "".join(_cell(_shown(value), k) for value, k in zip(row, kind)) + "</tr>" for row in rows[:MOST_TABLE_ROWS]
    )
    left = len(rows) - MOST_TABLE_ROWS
    rest = f"<p>… and {count(left)} more lines{text(more and f', in {more}')}.</p>" if left > 0 else ""
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="group" aria-label="Table">{inner}</div>{rest}'


def _cell(shown: str, kind: str) -> str:
    return f"<td{' class=long' if len(shown) > 40 else kind}>{text(shown)}</td>"


def _is_number(value: Any) -> bool:
    """A number, or one with its unit. Class names that look like numbers are words."""
    return isinstance(value, (int, float)) or isinstance(value, str) and MEASURED.fullmatch(value) is not None


def _shown(value: Any) -> str:
    if value is None:
        return "—"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def settings(values: dict[str, Any]) -> str:
    """Nested settings as a list of `name.inner` and value."""
    rows = "".join(
        f"<tr><th scope=row>{text(name).replace('_', '_<wbr>')}</th><td>{text(_shown(value))}</td></tr>"
        for name, value in flat(values)
    )
    return f'<table class="settings"><tbody>{rows}</tbody></table>'


def flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str | None]]:
    out: list[tuple[str, str | None]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            out += flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            out.append((prefix + name, ", ".join(map(str, value))))
        else:
            out.append((prefix + name, value if value is None or isinstance(value, str) else json.dumps(value)))
    return out


def figure(title: str, drawing: str, numbers: str, note: str = "", legend: str = "", wide: bool = False) -> str:
    """A chart with its title, a sentence about it, and the numbers behind it."""
    return (
        f'<figure class="{"card wide" if wide else "card"}"><figcaption><h3>{text(title)}</h3>'
        + (f"<p>{text(note)}</p>" if note else "")
        + f"</figcaption>{legend}{drawing}<details><summary>Numbers<span class=unseen> of {text(title)}</span></summary>"
        f"{numbers}</details></figure>"
    )


def legend(names: Sequence[str]) -> str:
    """A button per series that hides and shows it."""
    if len(names) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" class="s{i % COLOURS}" data-series="{i}" aria-pressed="true"><i></i>{text(name)}</button>'
        for i, name in enumerate(names)
    )
    return f'<div class="legend" role="group" aria-label="Series shown">{buttons}</div>'


def svg(title: str, height: float, inner: str, attributes: str = 'width="100%"') -> str:
    label = text(f"{title}. Arrow keys read the values; a table follows.")
    return f'<svg role="img" tabindex="0" aria-label="{label}" {attributes} height="{height:g}">{inner}</svg>'


def _text(x: str, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x}" y="{y:g}" text-anchor="{anchor}"{more}>{text(words)}</text>'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


class _Plane:
    """The area of a chart with two axes: places across in percent, down in pixels. Its labels sit on the grid lines."""

    def __init__(self, x: Sequence[float], y: Sequence[float], height: int = 230):
        self.x, self.y, self.height = x, y, height
        self.top, self.left, self.wide = 20, 9.0, 89.5  # the left is for the labels of the grid lines

    def across(self, value: float) -> float:
        return self.left + self.wide * (value - self.x[0]) / ((self.x[-1] - self.x[0]) or 1)

    def down(self, value: float) -> float:
        share = (value - self.y[0]) / ((self.y[-1] - self.y[0]) or 1)
        return self.top + (self.height - self.top) * (1 - share)

    def grid(self, y_format: Format) -> str:
        lines = []
        for value in self.y:
            y = self.down(value)
            lines.append(f'<line class="grid" x1="0" x2="100%" y1="{y:g}" y2="{y:g}"/>')
            lines.append(_text("0", y - 4, re.sub(r"\.0(?=%| |$)", "", y_format(value))))
        return "".join(lines)

    def x_labels(self, values: Sequence[float], x_format: Format, x_name: str) -> str:
        labels = []
        for value in values:
            x = self.across(value)
            labels.append(_text(f"{_number(x)}%", self.height + LINE, x_format(value), "end" if x > 96 else "middle"))
        return "".join(labels) + _text("50%", self.height + 2 * LINE + 2, x_name, "middle", ' class="axis"')

    @property
    def full_height(self) -> int:
        return self.height + 2 * LINE + 8


@plot
def line(
    title: str,
    x: Sequence[float],
    series: dict[str, Sequence[float | None]],
    x_name: str,
    y_format: Format,
    x_format: Format = count,
    note: str = "",
    mark: tuple[float, str] | None = None,
    wide: bool = False,
) -> str:
    """One line per series over x; a missing value leaves a gap. `mark` is a place on x and what happened there."""
    seen = [v for values in series.values() for v in values if v is not None]
    tall = ticks(min(seen), max(seen))
    across = [t for t in ticks(x[0], x[-1]) if x[0] <= t <= x[-1]] if len(x) > 1 else list(x)
    plane = _Plane([x[0], x[-1]] if len(x) > 1 else [x[0] - 1, x[0] + 1], tall)
    drawn = [plane.grid(y_format), plane.x_labels(across, x_format, x_name)]
    if mark:
        place = _number(plane.across(mark[0]))
        late = plane.across(mark[0]) > 60
        drawn.append(f'<line class="mark" x1="{place}%" x2="{place}%" y1="{plane.top}" y2="{plane.height}"/>')
        side = f' dx="{-6 if late else 6}" class="axis"'
        drawn.append(_text(f"{place}%", plane.height - 8, mark[1], "end" if late else "start", side))
    for i, values in enumerate(series.values()):
        drawn.append(_path(plane, x, values, i))
    drawn.append(_hits(plane, x, series, x_name, x_format, y_format))
    rows = [[x_format(a), *(None if v[i] is None else y_format(v[i]) for v in series.values())] for i, a in enumerate(x)]
    numbers = table([x_name, *series], rows, "history.jsonl")
    return figure(title, svg(title, plane.full_height, "".join(drawn)), numbers, note, legend(list(series)), wide)


def _path(plane: _Plane, x: Sequence[float], values: Sequence[float | None], i: int) -> str:
    """A series, stretched with the chart but not its stroke: pieces between the gaps, and dots where there is room."""
    pieces: list[list[str]] = [[]]
    for a, v in zip(x, values):
        if v is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{10 * (plane.across(a) - plane.left) / plane.wide * 100:.1f},{plane.down(v):.1f}")
    inside = f'x="{plane.left}%" y="0" width="{plane.wide}%" height="{plane.height}" viewBox="0 0 1000 {plane.height}"'
    lines = "".join(f'<polyline points="{" ".join(piece)}"/>' for piece in pieces if len(piece) > 1)
    out = f'<svg class="line s{i % COLOURS} of{i}" {inside} preserveAspectRatio="none" overflow="visible">{lines}</svg>'
    if len(x) > 60:
        return out
    dots = (
        f'<circle cx="{_number(plane.across(a))}%" cy="{plane.down(v):.1f}" r="2.5"/>' for a, v in zip(x, values) if v is not None
    )
    return out + f'<g class="fill s{i % COLOURS} of{i}">{"".join(dots)}</g>'


def _hits(plane: _Plane, x: Sequence[float], series: dict, x_name: str, x_format: Format, y_format: Format) -> str:
    """An unseen column around each x, which shows a guide and tells the values there."""
    places = [plane.across(a) for a in x]
    edges = [plane.left - 1.5, *((a + b) / 2 for a, b in zip(places, places[1:])), 100.0]
    out = []
    for i, a in enumerate(x):
        told = [f"{x_name}: {x_format(a)}"] + [f"{name}: {y_format(v[i])}" for name, v in series.items() if v[i] is not None]
        at, begin, wide = _number(places[i]), _number(edges[i]), _number(edges[i + 1] - edges[i])
        out.append(
            f'<g class="hit" data-tip="{text(chr(10).join(told))}">'
            f'<rect x="{begin}%" y="0" width="{wide}%" height="{plane.height}"/>'
            f'<line x1="{at}%" x2="{at}%" y1="{plane.top}" y2="{plane.height}"/></g>'
        )
    return "".join(out)


@plot
def columns(
    title: str,
    names: Sequence[str],
    values: Sequence[float],
    y_format: Format,
    x_name: str,
    y_name: str,
    x_labels: Sequence[tuple[float, str]],
    note: str = "",
    top: float | None = None,
    wide: bool = False,
    height: int = 200,
    numbers: str = "",
) -> str:
    """Upright bars side by side, those below zero hanging. `x_labels` are (place in bars, word)."""
    n = len(values)
    low, high = min(0, *values) if n else 0, top or max(0, *values) if n else 0
    plane = _Plane([0, n], ticks(low, high or (0 if low else 1)), height)
    zero = plane.down(0)
    gap = 0.16 if n <= 60 else 0.0
    drawn = [plane.grid(y_format)]
    for i, value in enumerate(values):
        begin, y = plane.across(i + gap / 2), plane.down(value)
        width = plane.wide * (1 - gap if gap else 1.02) / n  # without a gap they overlap a little, or seams would be seen
        box = f'x="{_number(begin)}%" width="{width:.3f}%"'
        told = f"{names[i]}\n{y_name}: {y_format(value)}"
        bar = f'<rect class="s{0 if value >= 0 else 2} bar" {box} y="{min(y, zero):.1f}" height="{abs(zero - y):.1f}"/>'
        hit = f'<rect {box} y="0" height="{plane.height}"/>'
        drawn.append(f'<g class="hit" data-tip="{text(told)}">{hit}{bar}</g>')
    drawn.append(plane.x_labels([place for place, _ in x_labels], lambda place: dict(x_labels)[place], x_name))
    rows = [[name, y_format(value)] for name, value in zip(names, values)]
    behind = numbers or table([x_name, y_name], rows, "result.json")
    return figure(title, svg(title, plane.full_height, "".join(drawn)), behind, note, "", wide)


@plot
def bars(
    title: str,
    names: Sequence[str],
    parts: dict[str, Sequence[float | None]],
    value_format: Format,
    name_head: str,
    note: str = "",
    beside: bool = False,
    most: float | None = None,
    numbers: str = "",
    wide: bool = False,
) -> str:
    """Lying bars, one line per name: the parts stacked and their sum written behind, or `beside` each other."""
    thick = 14 if beside else 16
    row = thick * len(parts) + 12 if beside else thick + 8
    sums = [sum(v[i] or 0 for v in parts.values()) for i in range(len(names))]
    seen = [v for values in parts.values() for v in values if v is not None] if beside else sums
    longest = most or max(seen, default=0) or 1
    start = 2.0 + 2.2 * max((len(short(name, LONGEST)) for name in names), default=0)  # percent: the names fit on a phone
    drawn = []
    for i, name in enumerate(names):
        middle = i * row + row / 2
        told = [f"{part}: {value_format(v[i])}" for part, v in parts.items() if v[i] is not None]
        drawn.append(f'<g class="hit" data-tip="{text(chr(10).join([str(name), *told]))}">')
        drawn.append(f'<rect x="0" y="{i * row:g}" width="100%" height="{row:g}"/>{_text("0", middle + 4, short(name, LONGEST))}')
        at = start
        for j, values in enumerate(parts.values()):
            if values[i] is None:
                continue
            width = (100 - NUMBERS - start) * values[i] / longest
            y = i * row + 6 + j * thick if beside else middle - thick / 2
            box = f'x="{at:.2f}%" y="{y:g}" width="{max(width, 0):.2f}%" height="{thick - beside:g}"'
            drawn.append(f'<rect class="s{j % COLOURS} of{j} bar" {box}/>')
            if beside:
                drawn.append(
                    _text(f"{at + width:.2f}%", y + thick - 3, value_format(values[i]), "start", f' dx="6" class="of{j}"')
                )
            else:
                at += width
        if not beside:
            drawn.append(_text(f"{at:.2f}%", middle + 4, value_format(sums[i]), "start", ' dx="6"'))
        drawn.append("</g>")
    rows = [[name, *(None if v[i] is None else value_format(v[i]) for v in parts.values())] for i, name in enumerate(names)]
    behind = numbers or table([name_head, *parts], rows, "result.json")
    return figure(title, svg(title, row * len(names) + 4, "".join(drawn)), behind, note, legend(list(parts)), wide)


def shade(share: float) -> float:
    """How opaque a cell of a heat map is. The middle is left out: on it neither dark nor light letters could be read."""
    return 0 if share <= 0 else 0.05 + 0.78 * share if share < 0.5 else 0.7 + 0.6 * (share - 0.5)


@plot
def heat(
    title: str,
    rows: Sequence[str],
    cols: Sequence[str],
    values: Sequence[Sequence[float]],
    shares: Sequence[Sequence[float]],
    row_name: str,
    col_name: str,
    note: str = "",
    share_of: str = "",
) -> str:
    """Numbers as colours: `shares` from 0 to 1 are drawn, `values` told, as shares too if `share_of` names what a row sums to."""
    cell = 30 if max(len(rows), len(cols)) <= 16 else 18 if len(cols) <= 30 else 11
    letters = 12 if cell > 12 else 9
    left = 16 + letters * 0.6 * max((len(short(name, 14)) for name in rows), default=1)
    upright = cell >= letters * 0.62 * max((len(short(name, 14)) for name in cols), default=1)
    top = 34 if upright else 24 + letters * 0.58 * max(len(short(name, 14)) for name in cols)
    drawn = [_text("0", 12, f"{row_name} ↓   {col_name} →", "start", ' class="axis"')]
    drawn.append(f'<rect class="none" x="{left:g}" y="{top:g}" width="{cell * len(cols) - 1}" height="{cell * len(rows) - 1}"/>')
    for j, name in enumerate(cols):
        x = left + (j + 0.5) * cell
        turn = "" if upright else f' transform="rotate(-90 {x + 4:g} {top - 6:g})"'
        drawn.append(_text(f"{x if upright else x + 4:g}", top - 6, short(name, 14), "middle" if upright else "start", turn))
    for i, name in enumerate(rows):
        drawn.append(_text(f"{left - 6:g}", top + (i + 0.5) * cell + 4, short(name, 14), "end"))
        for j, value in enumerate(values[i]):
            if not value:
                continue
            x, y, dark = left + j * cell, top + i * cell, shade(shares[i][j])
            told = f"{row_name}: {name}\n{col_name}: {cols[j]}\n{count(value)}"
            told += f" ({value / sum(values[i]):.0%} of {share_of})" if share_of else ""
            box = f'x="{x:g}" y="{y:g}" width="{cell - 1}" height="{cell - 1}"'
            ink = ""
            if cell >= 30:
                side = "over" if dark >= 0.7 else "under"
                ink = _text(f"{x + cell / 2 - 0.5:g}", y + cell / 2 + 4, _brief(value), "middle", f' class="{side}"')
            drawn.append(f'<g class="cell" data-tip="{text(told)}"><rect {box} fill-opacity="{dark:.2f}"/>{ink}</g>')
    width, height = left + cell * len(cols), top + cell * len(rows)
    size = f'width="{width:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" style="font-size:{letters}px"'
    drawing = f'<div class="scroll">{svg(title, height, "".join(drawn), size)}</div>'
    numbers = table([f"{row_name} \\ {col_name}", *cols], [[name, *line] for name, line in zip(rows, values)])
    return figure(title, drawing, numbers, note, "", wide=len(cols) > 16)


def _brief(value: float) -> str:
    """At most four letters, to fit a cell."""
    return count(value).replace(",", "") if value < 1e4 else f"{value / 1e3:.0f}k" if value < 1e6 else f"{value / 1e6:.0f}M"


STAR = "M0-9L2.4-2.9 8.6-2.8 3.8 1.1 5.3 7.3 0 3.8-5.3 7.3-3.8 1.1-8.6-2.8-2.4-2.9Z"
SHAPES = ("M-3-3H3V3H-3Z", "M0-4L4 3H-4Z", "M0-4L4 0 0 4-4 0Z", "M-3.5-1.2H-1.2V-3.5H1.2V-1.2H3.5V1.2H1.2V3.5H-1.2V1.2H-3.5Z")


@plot
def scatter(
    title: str,
    x: Sequence[float],
    y: Sequence[float],
    kinds: Sequence[str],
    groups: Sequence[str],
    order: Sequence[str],
    note: str,
    group_name: str = "Party",
    centroids: bool = False,
    menus: bool = True,
    wide: bool = True,
) -> str:
    """Points in the plane. Colour and shape tell the kind, by its place in `order`; two menus choose a kind and a group.

    `centroids` marks the mean of every kind with a star; without `menus` the chart has only the key.
    """
    look = {kind: (_shape(i), f"s{i % COLOURS} point") for i, kind in enumerate(order)}
    order = [kind for kind in order if kind in set(kinds)]
    across, down = _within(x, 2, 98), _within(y, 388, 12)
    drawn = []
    for a, b, kind, group in zip(across, down, kinds, groups):
        shape, colour = look[kind]
        told = f'data-tip="{text(kind)}&#10;{text(group)}" data-kind="{text(kind)}" data-group="{text(group)}"'
        drawn.append(f'<svg x="{a:.2f}%" y="{b:.1f}" class="{colour}" {told}>{shape}</svg>')
    for kind in order if centroids else ():
        a, b = (sum(v for v, k in zip(values, kinds) if k == kind) / list(kinds).count(kind) for values in (across, down))
        told = f'data-tip="{text(kind)}&#10;centre of {list(kinds).count(kind)} rows" data-kind="{text(kind)}"'
        drawn.append(f'<svg x="{a:.2f}%" y="{b:.1f}" class="{look[kind][1]} centre" {told}><path d="{STAR}"/></svg>')
    choices = _menu("Class", "kind", order) + _menu(group_name, "group", sorted(set(groups)))
    key = "".join(
        f'<span><svg width="10" height="10" viewBox="-5 -5 10 10" class="{look[kind][1]}" aria-hidden="true">'
        f"{look[kind][0]}</svg>"
        f"{text(short(kind, 20))}</span>"
        for kind in order
    )
    counted = [[kind, sum(k == kind for k in kinds)] for kind in order]
    controls = (f'<div class="menus">{choices}</div>' if menus else "") + f'<div class="key">{key}</div>'
    return figure(title, svg(title, 400, "".join(drawn)), table(["class", "points drawn"], counted), note, controls, wide)


def _shape(i: int) -> str:
    """The mark of the i-th kind: another shape after every ten colours."""
    shape = i // COLOURS % (len(SHAPES) + 1)
    return f'<path d="{SHAPES[shape - 1]}"/>' if shape else '<circle r="3.2"/>'


def _within(values: Sequence[float], first: float, last: float) -> list[float]:
    """Values moved and stretched to lie between two places."""
    low, high = min(values), max(values)
    return [first + (last - first) * (v - low) / ((high - low) or 1) for v in values]


def _menu(head: str, key: str, names: Sequence[str]) -> str:
    options = "".join(f"<option>{text(name)}</option>" for name in names)
    return f'<label>{head} <select data-choose="{key}"><option value="">all</option>{options}</select></label>'
