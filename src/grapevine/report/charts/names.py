"""Names of dots, placed so that they cover neither dots nor each other: on a phone, in a file and on a desk.

Places across are percent of the drawing's width and places down are pixels, so what overlaps depends on the width: a place is
free if it is free at all of `WIDTHS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

WIDTHS = (320, 720, 1200)  # pixels
LETTER, UP, DOWN = 7.0, 10, 4  # of words, in pixels: a letter's width, and the height above and below their middle
BESIDE, AROUND = 9, 6  # pixels from a dot's centre to its name, and to the dot's edge
ACROSS, DOWNWARDS = 5.0, 7  # steps by which names are moved: percent and pixels
MOST = (12, 40)  # such steps, to a side and up or down
OVER_WHISKER, CROSSING = 30.0, 60.0  # pixels that a name is moved before it stands on a whisker, or its line crosses something
PIECES = 8  # of a line, each taken as a box

Rect = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


@dataclass(frozen=True)
class Named:
    """A dot, its name, and the ends of its whisker."""

    x: float
    y: float
    name: str
    top: float
    bottom: float


@dataclass(frozen=True)
class Spot:
    """Where a name stands: `y` is the middle of its letters. If it is `away`, a line leads to it from its dot."""

    x: float
    y: float
    anchor: str
    away: bool
    moved: float = 0.0


def place(dots: Sequence[Named], left: float, top: float, bottom: float) -> list[Spot]:
    """A place for each name between these edges, as near to its dot as can be. The first have the choice."""
    rooms = [_Room(width, left * width / 100, top, bottom, dots) for width in WIDTHS]
    spots = []
    for dot in dots:
        spot = _best(dot, rooms)
        spots.append(spot)
        for room in rooms:
            room.names.append(room.words(dot, spot))
            room.leads += room.lead(dot, spot)
    return spots


def _best(dot: Named, rooms: Sequence[_Room]) -> Spot:
    best, least = Spot(dot.x, dot.y, "start" if dot.x < 60 else "end", False), math.inf
    for spot in _spots(dot):
        if spot.moved >= least:
            break
        cost = spot.moved
        for room in rooms:
            cost = max(cost, spot.moved + room.cost(dot, spot)) if cost < least else math.inf
        if cost < least:
            best, least = spot, cost
    return best


def _spots(dot: Named) -> Iterator[Spot]:
    """Places around a dot, the nearest first."""
    sides, heights = (range(-most, most + 1) for most in MOST)
    moves = sorted((math.hypot(6 * ACROSS * i, DOWNWARDS * j), ACROSS * i, DOWNWARDS * j) for i in sides for j in heights)
    for moved, across, down in moves:
        for anchor in ("start", "end"):
            if across == 0 or (across > 0) == (anchor == "start"):
                yield Spot(dot.x + across, dot.y + down, anchor, across != 0 or abs(down) > DOWNWARDS, moved)


@dataclass
class _Room:
    """A drawing of one width, and what is in it."""

    width: int
    left: float
    top: float
    bottom: float
    dots: Sequence[Named]
    names: list[Rect] = field(default_factory=list)
    leads: list[Rect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = [(dot.x * self.width / 100, dot.y) for dot in self.dots]
        self.around = [(x - AROUND, y - AROUND, x + AROUND, y + AROUND) for x, y in self.places]
        self.whiskers = [(x - 1, dot.top, x + 1, dot.bottom) for dot, (x, _) in zip(self.dots, self.places)]

    def words(self, dot: Named, spot: Spot) -> Rect:
        """Where the name is."""
        at, long = spot.x * self.width / 100, BESIDE + LETTER * len(dot.name)
        start, end = (at + BESIDE - 2, at + long) if spot.anchor == "start" else (at - long, at - BESIDE + 2)
        return start, spot.y - UP, end, spot.y + DOWN

    def lead(self, dot: Named, spot: Spot) -> list[Rect]:
        """The line from a dot to its name."""
        if not spot.away:
            return []
        xs = [(dot.x + (spot.x - dot.x) * i / PIECES) * self.width / 100 for i in range(PIECES + 1)]
        ys = [dot.y + (spot.y - dot.y) * i / PIECES for i in range(PIECES + 1)]
        return [(min(x, x2), min(y, y2), max(x, x2), max(y, y2)) for x, x2, y, y2 in zip(xs, xs[1:], ys, ys[1:])]

    def cost(self, dot: Named, spot: Spot) -> float:
        """Infinite where the name covers a dot or a name, or is cut off; else by what it or the line to it crosses."""
        words = self.words(dot, spot)
        if words[0] < self.left or words[2] > self.width or words[1] < self.top or words[3] > self.bottom:
            return math.inf
        if _touched(words, self.around) or _touched(words, self.names):
            return math.inf
        here = (dot.x * self.width / 100, dot.y)
        others = [box for box, there in zip(self.around, self.places) if math.dist(here, there) > 2 * AROUND]
        crossed = sum(_touched(piece, others) + _touched(piece, self.names) for piece in self.lead(dot, spot))
        return OVER_WHISKER * _touched(words, self.whiskers) + CROSSING * (crossed + _touched(words, self.leads))


def _touched(box: Rect, others: Sequence[Rect]) -> int:
    """How many of the others a box touches."""
    left, top, right, bottom = box
    return sum(left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in others)
