"""Drawings as picture files: `sheet` puts them on one, which is drawn as PNG or PDF by Pillow, or written as SVG."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from PIL import Image, ImageDraw, ImageFont

from grapevine.core.places import make_folder
from grapevine.core.store import write_atomically
from grapevine.report import page
from grapevine.report.charts.marks import LIGHT, LOOKS, OWN, SERIES, Box, Dot, Drawing, Group, Line, Mark, Path, Words
from grapevine.report.parts import Chart

WIDTH, NARROW, EDGE = 720, 320, 16  # pixels of a drawing without a width of its own, of any at least, and of white around it
SCALE, FINER = 2, 2  # pixels of the file for each of the drawing; each is the mean of FINER × FINER
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf", "arial.ttf")
# Pillow's own font, taken where there is none of these, has little more than ASCII.
PLAIN = str.maketrans({"—": "-", "−": "-", "×": "x", "↑": "up:", "↓": "down:", "→": ">", "∞": "inf", "τ": "tau", "Υ": "Upsilon"})


@dataclass(frozen=True)
class Sheet:
    """Drawings with their places: (x, y, width, drawing)."""

    width: float
    height: float
    layers: Sequence[tuple[float, float, float, Drawing]]


def sheet(charts: Sequence[Chart], head: Sequence[str] = (), beside: bool = False) -> Sheet:
    """Charts one below the other or `beside` each other, each with its title and what its colours mean; `head` is above all."""
    layers: list[tuple[float, float, float, Drawing]] = []
    layers += [(EDGE, EDGE + 20.0 * i, WIDTH, Drawing([Words(0, 16, line)], 20, 1, 13)) for i, line in enumerate(head)]
    left, top, right, low = float(EDGE), EDGE + 20.0 * len(head), 0.0, 0.0
    for chart in charts:
        width, y = max(chart.drawing.width or WIDTH // (1 + beside), NARROW), top
        for drawing in (Drawing([Words(0, 16, chart.title, look="title")], 26, 1, 14), chart.drawing):
            layers.append((left, y, width, drawing))
            y += drawing.height + 6
        x = start = left + 9
        for one in chart.key[: 0 if len(chart.key) == 1 else None]:
            room = 40 + 7.0 * len(one.name)
            x, y = (start, y + 20) if x > start and x + room > left + width else (x, y)
            layers.append((x, y + 12, width, Drawing([one.mark, Words(15, 4, one.name)], 0, 1)))
            x += room
        y += 32 if x > start else 0
        right, low = max(right, left + width), max(low, y)
        left, top = (left + width + 2 * EDGE, top) if beside else (left, y)
    return Sheet(right + EDGE, low + EDGE, layers)


def save_all(charts: Iterable[Chart], folder: str | FilePath) -> list[FilePath]:
    """Write every chart as PNG and SVG, named by its title, and return the paths. The same charts give the same files."""
    folder = FilePath(folder)
    make_folder(folder, "name another folder for the plots")
    paths: list[FilePath] = []
    for chart in charts:
        base = re.sub(r"[^\w]+", "-", chart.title.lower(), flags=re.ASCII).strip("-")[:80] or "plot"
        name, number = base, 2
        while folder / f"{name}.png" in paths:
            name, number = f"{base}-{number}", number + 1
        paths += [save(sheet([chart]), folder / f"{name}.{kind}") for kind in ("png", "svg")]
    return paths


def save(it: Sheet, path: FilePath) -> FilePath:
    """Write a sheet as SVG, PNG or PDF, by the file's ending."""
    if path.suffix.lower() == ".svg":
        write_atomically(path, page.svg(it).encode())
    else:
        picture(it).save(path, resolution=72 * SCALE)
    return path


def picture(it: Sheet) -> Image.Image:
    fine = SCALE * FINER
    image = Image.new("RGB", (round(it.width * fine), round(it.height * fine)), LIGHT["panel"])
    for x, y, width, drawing in it.layers:
        _Pen(image, x, y, width, drawing).draw(drawing.marks)
    return image.reduce(FINER)


@functools.cache
def font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    for name in FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def plain(words: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Words in letters that the font has: Pillow's own gets the nearest ones."""
    if isinstance(font, ImageFont.FreeTypeFont) and font.getname()[0] != "Aileron":
        return words
    return unicodedata.normalize("NFKD", words.translate(PLAIN)).encode("latin-1", "ignore").decode("latin-1")


class _Pen:
    """Draws marks on an image, at a place of it."""

    def __init__(self, image: Image.Image, x: float, y: float, width: float, drawing: Drawing):
        self.image, self.ink = image, ImageDraw.Draw(image, "RGBA")
        self.fine, self.left, self.top = SCALE * FINER, x, y
        self.unit = 1.0 if drawing.width else width / 100
        self.font = font(drawing.letters * self.fine)

    def at(self, x: float, y: float, dx: float = 0) -> tuple[float, float]:
        return (self.left + x * self.unit + dx) * self.fine, (self.top + y) * self.fine

    def draw(self, marks: Iterable[Mark]) -> None:
        for mark in marks:
            if isinstance(mark, Group):
                self.draw(mark.marks)
            elif isinstance(mark, Words):
                self.words(mark)
            elif LOOKS[mark.look].opacity:
                self.shape(mark)

    def colour(self, name: str, mark: Box | Line | Path | Dot) -> tuple[int, ...] | None:
        if not name:
            return None
        value = LIGHT[f"s{(mark.colour or 0) % SERIES}" if name == OWN else name]
        opacity = LOOKS[mark.look].opacity * getattr(mark, "opacity", 1.0)
        return (*bytes.fromhex(value[1:]), round(255 * opacity))

    def shape(self, mark: Box | Line | Path | Dot) -> None:
        look = LOOKS[mark.look]
        fill, stroke, wide = self.colour(look.fill, mark), self.colour(look.stroke, mark), look.width * self.fine
        if isinstance(mark, Box):
            (x, y), (x2, y2) = self.at(mark.x, mark.y), self.at(mark.x + mark.width, mark.y + mark.height)
            if x2 - x >= 1 and y2 - y >= 1:
                self.ink.rectangle((x, y, x2 - 1, y2 - 1), fill)
        elif isinstance(mark, Dot):
            (x, y), r = self.at(mark.x, mark.y), (mark.r + (look.width / 2 if stroke else 0)) * self.fine
            self.ink.ellipse((x - r, y - r, x + r, y + r), fill, stroke, round(wide) if stroke else 0)
        elif isinstance(mark, Path) and fill:
            self.ink.polygon([self.at(*point) for point in mark.points], fill)
        else:
            points = mark.points if isinstance(mark, Path) else [(mark.x, mark.y), (mark.x2, mark.y2)]
            for piece in _dashed([self.at(*point) for point in points], [step * self.fine for step in look.dash]):
                self.ink.line(piece, stroke, max(round(wide), 1), "curve")

    def words(self, mark: Words) -> None:
        look, words = LOOKS[mark.look], plain(mark.words, self.font)
        ink, anchor = LIGHT[look.fill], dict(start="ls", middle="ms", end="rs")[mark.anchor]
        x, y = self.at(mark.x, mark.y, mark.dx)
        bold = self.fine * 0.2 if look.bold else 0
        if not mark.turned:
            self.ink.text((x, y), words, ink, self.font, anchor, stroke_width=bold)
            return
        left, top, right, bottom = map(round, self.font.getbbox(words, anchor="ls"))
        upright = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
        ImageDraw.Draw(upright).text((-left, -top), words, 255, self.font, "ls")
        self.image.paste(ink, (round(x + top), round(y - right)), upright.rotate(90, expand=True))


def _dashed(points: list[tuple[float, float]], dash: list[float]) -> list[list[tuple[float, float]]]:
    """A line through the points in pieces: `dash` is how long a piece is and how long the gap behind it."""
    if not dash:
        return [points]
    pieces, done, period = [], 0.0, sum(dash)
    for (x, y), (x2, y2) in zip(points, points[1:]):
        long = math.hypot(x2 - x, y2 - y)
        for k in range(int(done // period), int((done + long) // period) + 1):
            first, last = max(k * period - done, 0.0), min(k * period + dash[0] - done, long)
            if first < last:
                pieces.append([(x + (x2 - x) * at / long, y + (y2 - y) * at / long) for at in (first, last)])
        done += long
    return pieces
