"""A split as a picture: clients across, classes down, labelled and unlabelled rows apart, sizes above."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from grapevine.core.errors import Mistake
from grapevine.data.split import IRRELEVANT, Split

LABELLED, UNLABELLED, FOREIGN, FLIPPED = "#08519c", "#a6c8e4", "#e08214", "#b2182b"
MOST_BUBBLES = 40  # clients; more are drawn as heat maps


@dataclass(frozen=True)
class _Columns:
    """What is drawn: one column per client, and one for a server, set apart."""

    at: np.ndarray  # middle of each column
    wide: np.ndarray
    names: list[str]
    labelled: np.ndarray  # (columns, classes)
    unlabelled: np.ndarray
    foreign: np.ndarray  # rows in the column
    flipped: np.ndarray
    unknown: np.ndarray


def draw(split: Split, path: str | Path) -> None:
    """Write the picture as PNG, SVG or PDF, by the file's ending: bubbles, or heat maps for more than 40 clients."""
    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise Mistake(f"{path} is not the name of a picture: take one that ends in .png, .svg or .pdf.")
    if not Path(path).absolute().parent.is_dir():
        raise Mistake(f"there is no folder {Path(path).parent} for {Path(path).name}: make it, or take another place.")
    columns = _columns(split)
    few = len(split) <= MOST_BUBBLES
    both = not few and columns.labelled.any() and columns.unlabelled.any()
    panels = 2 if both else 1
    classes = len(split.dataset.classes)
    cell = float(np.clip(6.0 / classes, 0.13, 0.42)) if few else float(np.clip(3.6 / classes, 0.055, 0.3))
    edge = columns.at[-1] + columns.wide[-1] / 2
    width = float(np.clip(edge * 0.5, 4.5, 15)) if few else 13.0
    heights = [1.3] + [classes * cell] * panels
    figure = Figure(figsize=(width + 2.0, sum(heights) + 1.2 + 0.3 * panels), dpi=120, layout="constrained")
    axes = figure.subplots(panels + 1, 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    _sizes(axes[0], columns)
    if few:
        scale = min(cell, width / edge)
        _bubbles(axes[1], columns, scale)
    elif both:
        _heat(figure, axes[1], columns.labelled, columns, LABELLED, "labelled rows")
        _heat(figure, axes[2], columns.unlabelled, columns, "#54278f", "unlabelled rows")
    else:
        kind, counts = ("labelled", columns.labelled) if columns.labelled.any() else ("unlabelled", columns.unlabelled)
        _heat(figure, axes[1], counts, columns, LABELLED, f"{kind} rows")
    for ax in axes[1:]:
        _name_classes(ax, split.dataset.classes, cell)
    _name_clients(axes[-1], columns, few, split.groups is not None)
    figure.suptitle(_title(split, columns), fontsize=9)
    with matplotlib.rc_context({"svg.hashsalt": "grapevine"}):  # the same split gives the same file
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)


def _columns(split: Split) -> _Columns:
    parts = [*split.parts] + ([split.server] if split.server else [])
    classes = len(split.dataset.classes)
    truths = [(split.truth[part.labelled].numpy(), split.truth[part.unlabelled].numpy()) for part in parts]

    def per_class(which: int) -> np.ndarray:
        return np.stack([np.bincount(truth[which][truth[which] >= 0], minlength=classes) for truth in truths])

    def number(of: int) -> np.ndarray:
        return np.array([sum(int((t == of).sum()) for t in truth) for truth in truths])

    flipped = [int(((t >= 0) & (t != part.labels.numpy())).sum()) for (t, _), part in zip(truths, parts)]
    m = len(split)
    at, wide, names = np.arange(m, dtype=float), np.ones(m), list(split.names)
    if split.server:
        broad = max(1.0, m / 50)
        at, wide, names = np.append(at, m + broad / 2), np.append(wide, broad), [*names, "server"]
    return _Columns(at, wide, names, per_class(0), per_class(1), number(IRRELEVANT), np.array(flipped), number(-1))


def _sizes(ax: Axes, columns: _Columns) -> None:
    """Rows per column, stacked: labelled, of these flipped, unlabelled, of unknown class, foreign."""
    labelled = columns.labelled.sum(1)
    stack = [
        ("labelled", labelled - columns.flipped, LABELLED),
        ("wrong label", columns.flipped, FLIPPED),
        ("unlabelled", columns.unlabelled.sum(1), UNLABELLED),
        ("unlabelled, class unknown", columns.unknown, "#d9d9d9"),
        ("irrelevant", columns.foreign, FOREIGN),
    ]
    bottom, shown = np.zeros(len(columns.at)), []
    gap = 0.8 if len(columns.at) <= MOST_BUBBLES + 1 else 1.0
    for name, counts, colour in stack:
        if counts.any():
            ax.bar(columns.at, counts, columns.wide * gap, bottom, color=colour, linewidth=0)
            bottom = bottom + counts
            shown.append(Patch(color=colour, label=name))
    ax.set_ylabel("rows", fontsize=8)
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.tick_params(labelsize=7)
    ax.tick_params(axis="x", length=0, labelbottom=False)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(handles=shown, fontsize=7, ncols=len(shown), loc="lower right", bbox_to_anchor=(1, 1), frameon=False, borderpad=0)


def _bubbles(ax: Axes, columns: _Columns, cell: float) -> None:
    """A circle per client and class, its area the number of rows; the dark inner circle is the labelled ones."""
    rows = columns.labelled + columns.unlabelled
    widest = (0.92 * cell * 72) ** 2 / max(1, rows.max())  # points² per row
    y, x = np.meshgrid(np.arange(rows.shape[1]), columns.at)
    for counts, colour in ((rows, UNLABELLED), (columns.labelled, LABELLED)):
        some = counts > 0
        area = np.maximum(counts[some] * widest, 2.0)
        ax.scatter(x[some], y[some], area, color=colour, linewidths=0)
    ax.set_ylim(rows.shape[1] - 0.4, -0.6)
    ax.grid(color="#eeeeee", linewidth=0.5)
    ax.set_axisbelow(True)
    ax.spines[:].set_color("#cccccc")
    ax.set_title(f"area: number of rows, at most {rows.max()}; the dark part is labelled", fontsize=7, loc="right", pad=3)


def _heat(figure: Figure, ax: Axes, counts: np.ndarray, columns: _Columns, colour: str, name: str) -> None:
    """Counts as colours; square-root scale, since a few cells are often far larger than the rest. White is none."""
    shades = LinearSegmentedColormap.from_list(name, ["#eef1f8", colour, "#14142b"])
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, counts.max()))
    clients = columns.at == np.arange(len(columns.at))
    shown = np.ma.masked_equal(counts.T, 0)
    edges = np.arange(counts.shape[1] + 1) - 0.5
    mesh = ax.pcolormesh(np.arange(clients.sum() + 1) - 0.5, edges, shown[:, clients], cmap=shades, norm=norm, rasterized=True)
    if not clients.all():
        side = columns.at[-1] + np.array([-0.5, 0.5]) * columns.wide[-1]
        ax.pcolormesh(side, edges, shown[:, -1:], cmap=shades, norm=norm, rasterized=True)
    ax.set_ylim(counts.shape[1] - 0.5, -0.5)
    bar = figure.colorbar(mesh, ax=ax, pad=0.01, aspect=25)
    bar.ax.tick_params(labelsize=7)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    bar.set_label(name, fontsize=8)


def _name_classes(ax: Axes, classes: tuple[str, ...], cell: float) -> None:
    step = max(1, int(np.ceil(0.1 / cell)))
    shown = range(0, len(classes), step)
    ax.set_yticks(list(shown), [_short(classes[c]) for c in shown], fontsize=float(np.clip(cell * step * 55, 5, 8)))
    ax.set_ylabel("class", fontsize=8)


def _name_clients(ax: Axes, columns: _Columns, few: bool, natural: bool) -> None:
    m = sum(name != "server" for name in columns.names)
    server = [m] if len(columns.names) > m else []
    shown = [*range(m)] if few else [*range(0, m, max(1, 10 * round(m / 150)))]
    turned = few and max(len(_short(columns.names[i])) for i in shown) * m > 80
    names = [_short(columns.names[i]) if few or not natural else str(i) for i in shown]
    places = list(columns.at[shown]) + list(columns.at[server])
    ax.set_xticks(places, names + ["server"] * len(server), fontsize=7, rotation=90 if turned else 0)
    ax.set_xlim(-0.6, columns.at[-1] + columns.wide[-1] / 2 + 0.1)
    ax.set_xlabel("client", fontsize=8)


def _title(split: Split, columns: _Columns) -> str:
    """The settings, and below them the numbers that are too small to see."""
    told, m = split.settings, len(split)
    words = [f"{split.dataset.name}: {m} clients", told["partition"], f"labels {told['labels']}"]
    words += [f"flip {told['flip']:g}"] if told["flip"] else []
    words += [f"irrelevant {told['irrelevant']}"] if told["irrelevant"] else []
    wrong, foreign = columns.flipped[:m].sum(), columns.foreign[:m].sum()
    unlabelled = columns.unlabelled[:m].sum() + columns.unknown[:m].sum()
    numbers = [f"clients {columns.labelled[:m].sum():,} labelled" + (f" ({wrong:,} wrong)" if wrong else "")]
    numbers += [f"{unlabelled:,} unlabelled"] + ([f"{foreign:,} irrelevant"] if foreign else [])
    numbers += [f"server {len(split.server):,} labelled"] if split.server else []
    return " · ".join(words) + "\n" + ", ".join([*numbers, f"validation {len(split.validation_rows()):,}"])


def _short(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"
