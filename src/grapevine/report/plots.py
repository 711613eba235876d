"""The charts of a report as picture files: PNG and SVG, drawn by matplotlib from the same descriptions as the page's own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from grapevine.core.errors import Mistake
from grapevine.core.words import percent
from grapevine.report.charts import Plot, short
from grapevine.report.page import COLOURS, LIGHT

MARKERS = "os^DP"  # another one after every ten colours, as on the page
WIDTH = 7.2  # inches
INK, SOFT, EDGE, ACCENT = (LIGHT[name] for name in ("ink", "soft", "edge", "heat"))


def save(plots: Sequence[Plot], folder: str | Path) -> list[Path]:
    """Write every plot as PNG and SVG, named by its title, and return the paths. The same plots give the same SVG files."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"nothing can be written to {folder} ({error.strerror}): name another folder for the plots.") from None
    paths, taken = [], set()
    for plot in plots:
        name = _file_name(plot.about["title"], taken)
        figure = draw(plot)
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "grapevine", "svg.fonttype": "none"}):
                warnings.filterwarnings("ignore", "Glyph .* missing")  # a PNG then has a box; the SVG keeps the letter
                figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            paths.append(path)
    return paths


def _file_name(title: str, taken: set[str]) -> str:
    base = re.sub(r"[^\w]+", "-", title.lower(), flags=re.ASCII).strip("-")[:80] or "plot"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    taken.add(name)
    return name


def draw(plot: Plot) -> Figure:
    """One plot on a figure of its own."""
    figure = KINDS[plot.kind](plot.about)
    figure.suptitle(_plain(plot.about["title"]), fontsize=11, color=INK)
    return figure


def _plain(words: Any) -> str:
    """Words as they are: a dollar sign would begin a formula."""
    return str(words).replace("$", r"\$")


def _colour(i: int) -> str:
    return LIGHT[f"s{i % COLOURS}"]


def _axes(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(EDGE)
    ax.tick_params(labelsize=8, color=EDGE, labelcolor=SOFT)
    return figure, ax


def _formatted(format: Callable[[Any], str]) -> FuncFormatter:
    return FuncFormatter(lambda value, _: _plain(format(value)))


def _name(ax: Axes, x: str, y: str = "") -> None:
    ax.set_xlabel(_plain(x), fontsize=9, color=SOFT)
    ax.set_ylabel(_plain(y), fontsize=9, color=SOFT)


def _line(about: dict) -> Figure:
    figure, ax = _axes(3.6)
    x = np.asarray(about["x"], float)
    for i, (name, values) in enumerate(about["series"].items()):
        y = np.array([np.nan if v is None else v for v in values], float)
        few = len(x) <= 60
        ax.plot(x, y, color=_colour(i), label=_plain(name), marker="o" if few else None, markersize=3, linewidth=1.6)
    if about["mark"]:
        ax.axvline(about["mark"][0], color=SOFT, linewidth=1, linestyle=":")
        late = about["mark"][0] > x.mean()
        ax.annotate(
            _plain(about["mark"][1]), (about["mark"][0], 0.02), xycoords=("data", "axes fraction"), textcoords="offset points",
            xytext=(-4 if late else 4, 0), ha="right" if late else "left", fontsize=8, color=SOFT,
        )  # fmt: skip
    ax.yaxis.set_major_formatter(_formatted(about["y_format"]))
    ax.xaxis.set_major_formatter(_formatted(about["x_format"]))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=bool((x == x.round()).all())))
    ax.grid(axis="y", color=EDGE, linewidth=0.7)
    _name(ax, about["x_name"])
    _legend(figure, ax, len(about["series"]))
    return figure


def _legend(figure: Figure, ax: Axes, series: int) -> None:
    """Below the axes, where it covers nothing."""
    if series > 1:
        figure.legend(*ax.get_legend_handles_labels(), fontsize=8, frameon=False, ncols=3, loc="outside lower center")


def _columns(about: dict) -> Figure:
    figure, ax = _axes(3.2)
    values = np.asarray(about["values"], float)
    n = len(values)
    colours = [_colour(0 if value >= 0 else 2) for value in values]
    ax.bar(np.arange(n) + 0.5, values, 0.84 if n <= 60 else 1.0, color=colours, linewidth=0)
    ax.set_xticks([place for place, _ in about["x_labels"]], [_plain(word) for _, word in about["x_labels"]])
    ax.set_xlim(0, n or 1)
    if about["top"]:
        ax.set_ylim(top=about["top"])
    ax.yaxis.set_major_formatter(_formatted(about["y_format"]))
    ax.grid(axis="y", color=EDGE, linewidth=0.7)
    ax.set_axisbelow(True)
    _name(ax, about["x_name"], about["y_name"])
    return figure


def _bars(about: dict) -> Figure:
    names, parts, beside = about["names"], about["parts"], about["beside"]
    figure, ax = _axes(1.0 + 0.2 * len(parts) + len(names) * (0.16 * len(parts) + 0.14 if beside else 0.26))
    at, start = np.arange(len(names), dtype=float), np.zeros(len(names))
    thick = 0.8 / max(len(parts), 1) if beside else 0.7
    for j, (part, values) in enumerate(parts.items()):
        known = np.array([0.0 if v is None else v for v in values])
        y = at + (j - (len(parts) - 1) / 2) * thick if beside else at
        boxes = ax.barh(y, known, thick * 0.95, None if beside else start, color=_colour(j), label=_plain(part))
        start = start + known
        if beside or j == len(parts) - 1:
            told = known if beside else start
            missing = [beside and v is None for v in values]
            words = ["" if gone else _plain(about["value_format"](v)) for v, gone in zip(told, missing)]
            ax.bar_label(boxes, words, padding=3, fontsize=7, color=SOFT)
    ax.set_yticks(at, [_plain(short(name, 30)) for name in names])
    ax.invert_yaxis()
    ax.margins(x=0.12)
    if about["most"]:
        ax.set_xlim(0, about["most"] * 1.12)
    ax.xaxis.set_major_formatter(_formatted(about["value_format"]))
    ax.xaxis.set_major_locator(MaxNLocator(5))
    _legend(figure, ax, len(parts))
    return figure


def _heat(about: dict) -> Figure:
    rows, cols = about["rows"], about["cols"]
    cell = min(0.42, 6.0 / max(len(cols), 1))
    figure, ax = _axes(max(2.4, 1.4 + cell * len(rows)), max(4.0, 1.8 + cell * len(cols)))
    shares = np.asarray(about["shares"], float)
    colours = LinearSegmentedColormap.from_list("heat", ["#ffffff", ACCENT])
    ax.imshow(shares, cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set_xticks(range(len(cols)), [_plain(short(name, 14)) for name in cols], rotation=0 if len(cols) <= 12 else 90)
    ax.set_yticks(range(len(rows)), [_plain(short(name, 14)) for name in rows])
    if max(map(len, map(str, cols)), default=0) > 4:
        ax.tick_params(axis="x", rotation=90)
    if cell >= 0.3 and len(rows) <= 30:
        for i, line in enumerate(about["values"]):
            for j, value in enumerate(line):
                if value:
                    ink = "#ffffff" if shares[i][j] > 0.5 else INK
                    ax.text(j, i, f"{value:g}", ha="center", va="center", fontsize=6.5, color=ink)
    ax.tick_params(labelsize=8 if cell >= 0.25 else 5)
    _name(ax, about["col_name"], about["row_name"])
    return figure


def _scatter(about: dict) -> Figure:
    figure, ax = _axes(5.2)
    x, y, kinds = np.asarray(about["x"], float), np.asarray(about["y"], float), np.asarray(about["kinds"], str)
    for i, kind in enumerate(map(str, about["order"])):
        here = kinds == kind
        if here.any():
            marker = MARKERS[i // COLOURS % len(MARKERS)]
            ax.scatter(x[here], y[here], 12, color=_colour(i), marker=marker, linewidths=0, label=_plain(short(kind, 20)))
            if about["centroids"]:
                ax.scatter(
                    x[here].mean(), y[here].mean(), 150, color=_colour(i), marker="*", edgecolors=INK, linewidths=0.8, zorder=3
                )
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    if len(about["order"]) <= 20:
        figure.legend(*ax.get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside right center")
    return figure


# Of a comparison -----------------------------------------------------------------------------------------------------


def _curves(about: dict) -> Figure:
    figure, ax = _axes(3.8)
    series = [s for s in about["series"] if s.points]
    for s in series:
        x, y, spread = (np.array(column, float) for column in zip(*((p.x, p.y, p.std or 0) for p in s.points)))
        ax.plot(x, y, color=_colour(s.number), label=_plain(s.name), linewidth=1.6, linestyle="--" if s.bound else "-")
        ax.fill_between(x, y - spread, y + spread, color=_colour(s.number), alpha=0.15, linewidth=0)
    if about["log"]:
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
    elif all(float(p.x).is_integer() for s in series for p in s.points):
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if about["mark"]:
        ax.axhline(about["mark"][0], color=SOFT, linewidth=1, linestyle=":", label=_plain(about["mark"][1]))
    _accuracies(ax, about)
    _legend(figure, ax, len(series))
    return figure


def _accuracies(ax: Axes, about: dict) -> None:
    ax.yaxis.set_major_formatter(_formatted(percent))
    if about.get("x_format"):
        ax.xaxis.set_major_formatter(_formatted(about["x_format"]))
    ax.grid(axis="y", color=EDGE, linewidth=0.7)
    _name(ax, about["x_name"], "accuracy")


def _costs(about: dict) -> Figure:
    figure, ax = _axes(3.8)
    series = [s for s in about["series"] if s.points]
    least = min((s.points[0].x for s in series if s.points[0].x > 0), default=1.0) / 3  # what costs nothing stands left of all
    for s in series:
        p = s.points[0]
        fill = "none" if s.bound else _colour(s.number)
        look = dict(fmt="o", color=_colour(s.number), markerfacecolor=fill, markersize=6)
        ax.errorbar(p.x or least, p.y, p.std or 0, label=_plain(s.name), **look)
    ax.set_xscale("log")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.margins(x=0.15)
    _accuracies(ax, about)
    _legend(figure, ax, len(series))
    return figure


def _groups(about: dict) -> Figure:
    figure, ax = _axes(3.6)
    names, series = about["names"], [s for s in about["series"] if s.points]
    for i, s in enumerate(series):
        x = [p.x + (i + 1) / (len(series) + 1) for p in s.points]
        fill = "none" if s.bound else _colour(s.number)
        spread = [p.std or 0 for p in s.points]
        ax.errorbar(
            x, [p.y for p in s.points], spread, fmt="o", color=_colour(s.number), markerfacecolor=fill, label=_plain(s.name)
        )
    ax.set_xticks(np.arange(len(names)) + 0.5, [_plain(name) for name in names])
    ax.set_xlim(0, len(names))
    _accuracies(ax, about)
    _legend(figure, ax, len(series))
    return figure


KINDS: dict[str, Callable[[dict], Figure]] = dict(
    line=_line, columns=_columns, bars=_bars, heat=_heat, scatter=_scatter, curves=_curves, costs=_costs, groups=_groups
)
