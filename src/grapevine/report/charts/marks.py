"""What a drawing is made of: boxes, lines, paths, dots and words, each with a look and perhaps a series' colour.

A drawing without a width takes the one it is given: its places across are percent of the width, its places down are pixels, so
that its letters stay as large as the text around them, on a desk and on a phone. With a width, both are pixels. The template
svg.html writes the marks as SVG and `files` draws them as a picture; what a mark looks like is in `LOOKS` for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SERIES = 10  # series have the colours s0 … s9, then s0 again

# Every pair that is used together has the contrast that WCAG's level AA asks for.
LIGHT = dict(
    page="#f6f4f9", panel="#ffffff", ink="#1d1a23", soft="#5c5766", edge="#e0dbe8", accent="#5b2d8e", heat="#4f2a80",
    over="#ffffff", warn="#8a4b00", warned="#fff4e0",
    s0="#6a3d9a", s1="#00796b", s2="#c2410c", s3="#1d5fb4", s4="#a16207", s5="#be185d", s6="#4d7c0f", s7="#57534e", s8="#0e7490",
    s9="#9f1239",
)  # fmt: skip
DARK = dict(
    page="#121016", panel="#1c1a21", ink="#efecf5", soft="#b0a9bd", edge="#37323f", accent="#cdb4ff", heat="#cdb4ff",
    over="#17141c", warn="#ffcf8a", warned="#33270f",
    s0="#c4a5ff", s1="#4fd1c0", s2="#ff9f6b", s3="#7db5ff", s4="#e6c15a", s5="#ff8fc0", s6="#b5d96b", s7="#bdb8b2", s8="#6fd6ee",
    s9="#ff8b9c",
)  # fmt: skip
OWN = "own"  # the colour of the mark's series


@dataclass(frozen=True)
class Look:
    """How a mark is painted: the names of two colours, and of words whether they are bold or italic."""

    fill: str = ""
    stroke: str = ""
    width: float = 1.0
    opacity: float = 1.0
    dash: Sequence[int] = ()
    bold: bool = False
    italic: bool = False


LOOKS = dict(
    fill=Look(OWN), band=Look(OWN, opacity=0.13), cell=Look("heat"), none=Look("edge", opacity=0.4),
    point=Look(OWN, "panel", 0.6), quiet=Look("soft", opacity=0.35), ring=Look("panel", OWN, 2), centre=Look(OWN, "ink", 1.6),
    grid=Look(stroke="edge"), lead=Look(stroke=OWN), mark=Look(stroke="soft", dash=(3, 3)),
    cut=Look(stroke="warn", width=2, dash=(6, 4)), halo=Look(stroke="panel", width=5),  # below a cut, to see it on a bar
    line=Look(stroke=OWN, width=2.2), dashed=Look(stroke=OWN, width=2.2, dash=(7, 4)),
    over1=Look(stroke=OWN, width=2.2, dash=(8, 8)), over2=Look(stroke=OWN, width=2.2, dash=(4, 12)),  # on one, on two lines
    area=Look("ink", opacity=0), guide=Look(stroke="ink", opacity=0),  # seen while the pointer is there
    words=Look("soft"), axis=Look("soft", italic=True), region=Look("warn", bold=True), title=Look("ink", bold=True),
    under=Look("ink"), over=Look("over"),  # words on a light or a dark cell
)  # fmt: skip


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    look: str = "fill"
    colour: int | None = None
    opacity: float = 1.0


@dataclass(frozen=True)
class Line:
    x: float
    y: float
    x2: float
    y2: float
    look: str = "grid"
    colour: int | None = None


@dataclass(frozen=True)
class Path:
    """A line through points or, as a band, the area inside them; only where places across are percent."""

    points: Sequence[tuple[float, float]]
    look: str = "line"
    colour: int | None = None


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    r: float
    look: str = "fill"
    colour: int | None = None


@dataclass(frozen=True)
class Words:
    """Words on a line that begins, has its middle or ends at x; `dx` moves them by pixels, `turned` lets them run upwards."""

    x: float
    y: float
    words: str
    anchor: str = "start"
    dx: float = 0
    look: str = "words"
    turned: bool = False


@dataclass(frozen=True)
class Group:
    """Marks that belong together: `tip` tells what they are, `of` is the number of the series they are hidden with."""

    marks: Sequence[Mark]
    tip: str = ""
    of: int | None = None
    role: str = ""
    data: Mapping[str, str] = field(default_factory=dict)


Mark = Box | Line | Path | Dot | Words | Group


@dataclass(frozen=True)
class Drawing:
    marks: Sequence[Mark]
    height: float
    width: float | None = None
    letters: int = 12  # pixels
