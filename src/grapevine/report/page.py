"""A page: one file, light and dark, for a desk and a phone, that needs no network and asks for none.

Its parts are values; the templates make HTML of them and escape every word. Its policy lets no browser load or run anything but
what is in it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.core.words import count, printable
from grapevine.report import parts
from grapevine.report.charts.marks import DARK, LIGHT, LOOKS, OWN, SERIES
from grapevine.report.parts import Chart, Part

REFRESH_SECONDS = 15  # until the page of something that continues reloads itself
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Page:
    """All that a page says. Sections without parts are left out."""

    title: str
    kind: str
    heading: str
    sections: Sequence[tuple[str, Sequence[Part]]]
    foot: str
    about: str = ""
    tiles: Mapping[str, str] = field(default_factory=dict)
    notices: Sequence[str] = ()
    refresh: int = 0
    live: str = ""  # the version of what it was made of: it asks its server for the newest, and reloads itself

    @property
    def shown(self) -> list[tuple[str, Sequence[Part]]]:
        return [(name, inside) for name, inside in self.sections if any(inside)]

    @property
    def charts(self) -> list[Chart]:
        return [chart for _, inside in self.sections for chart in parts.charts(inside)]

    def html(self) -> str:
        script = (HERE / "assets" / "page.js").read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        css = Markup((HERE / "assets" / "page.css").read_text(encoding="utf-8"))
        variable = lambda name: "currentColor" if name == OWN else f"var(--{name})" if name else "none"  # noqa: E731
        page = _templates().get_template("page.html")
        return page.render(page=self, script=Markup(script), css=css, digest=digest, variable=variable)

    def write(self, path: Path) -> Path:
        write_atomically(path, self.html().encode())
        return path


def svg(sheet: Any) -> str:
    """A sheet of drawings as the text of an SVG file, in light colours."""
    macro: Any = _templates().get_template("svg.html").module
    return str(macro.sheet(sheet, lambda name: "currentColor" if name == OWN else LIGHT.get(name, "none"))).strip() + "\n"


@functools.cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, finalize=_words,
    )  # fmt: skip
    made.globals.update(LIGHT=LIGHT, DARK=DARK, LOOKS=LOOKS, SERIES=SERIES, MOST_LINES=parts.MOST_LINES)
    made.filters.update(
        num=_number, shown=_shown, count=count, flat=parts.flat, kind=lambda it: type(it).__name__,
        points=lambda places: " ".join(f"{_number(x)},{_number(y)}" for x, y in places),
        anchor=lambda name: "".join(c if c.isalnum() else "-" for c in name.lower()),
    )  # fmt: skip
    return made


def _words(value: Any) -> Any:
    """Names that others chose are printable here, too; Markup is ours."""
    return "\n".join(printable(line, len(line)) for line in value.split("\n")) if type(value) is str else value


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _shown(value: Any) -> str:
    if value is None:
        return "—"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


@contextmanager
def files_of(folder: Any, maker: str) -> Iterator[None]:
    """Errors in reading files that other programs or versions wrote become a `Mistake` with a sentence."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise Mistake(
            f"{folder} holds files that {maker} does not write ({type(error).__name__}: {error}); "
            "repeat it, or use the version that wrote it."
        ) from error
