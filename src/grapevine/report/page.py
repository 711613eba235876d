"""The page around a report's charts: one file, light and dark, for a desk and a phone, that needs no network and asks for none.

Colours are CSS variables, one set for light and one for dark; every pair that is used together has the contrast that WCAG's level
AA asks for.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from typing import Any

COLOURS = 10  # series have the classes s0 … s9


def text(value: Any) -> str:
    """Anything as HTML text or as the value of an attribute."""
    return html.escape(str(value), quote=True)


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


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


STYLE = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    + "".join(f".s{i}{{--c:var(--s{i})}}.off{i} .of{i}{{display:none}}" for i in range(COLOURS))
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
header,main,footer{max-width:70rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.5rem}
.kind{color:var(--accent);font-weight:600;font-size:.85rem;letter-spacing:.04em;margin:0}
h1{font-size:clamp(1.45rem,1.05rem + 1.9vw,2.15rem);line-height:1.22;margin:.3rem 0 .6rem;text-wrap:balance;max-width:34ch;
  overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:2.6rem 0 .8rem;scroll-margin-top:1rem}
h3{font-size:1rem;margin:0}
p{margin:.35rem 0;max-width:72ch;overflow-wrap:anywhere}
a{color:var(--accent)}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;margin:1.1rem 0 0;font-size:.9rem}
nav a{padding:.15rem 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(7.7rem,1fr));gap:.6rem;margin:1.4rem 0 0;padding:0}
.tiles div,.card{background:var(--panel);border:1px solid var(--edge);border-radius:.7rem}
.tiles div{padding:.65rem .7rem;display:flex;flex-direction:column-reverse;justify-content:flex-end}
.tiles dt{font-size:.82rem;color:var(--soft);line-height:1.3}
.tiles dd{margin:0;font-size:1.2rem;font-weight:650;font-variant-numeric:tabular-nums;white-space:nowrap}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;align-items:start}
.grid3{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,17.5rem),1fr));gap:1rem;align-items:start}
.wide{grid-column:1/-1}
.card{margin:0;padding:1rem 1.1rem;min-width:0}
.card>h3{margin-bottom:.4rem}
figcaption{margin-bottom:.7rem}
figcaption p,.aside{font-size:.88rem;color:var(--soft)}
.notice{background:var(--warned);color:var(--warn);border-radius:.6rem;padding:.6rem .9rem;margin:1rem 0 0;max-width:none}
svg{display:block;overflow:visible;font-size:12px;font-variant-numeric:tabular-nums}
svg text{fill:var(--soft)}
svg .grid{stroke:var(--edge)}
svg .axis{font-style:italic}
svg .mark{stroke:var(--soft);stroke-dasharray:3 3}
.line{fill:none;stroke:var(--c);stroke-width:2.2px;stroke-linejoin:round}
.line polyline{vector-effect:non-scaling-stroke}
.line.s1{stroke-dasharray:7 4}
.fill,.bar,.point{fill:var(--c)}
.hit>rect:first-child{fill:var(--ink);fill-opacity:0}
.hit>line{stroke:var(--ink);opacity:0}
.hit.on>line{opacity:.5}
.hit.on>rect:first-child{fill-opacity:.06}
.cell rect{fill:var(--heat)}
rect.none{fill:var(--edge);fill-opacity:.4}
.cell.on rect{stroke:var(--ink);stroke-width:2px}
.cell text.under{fill:var(--ink)}
.cell text.over{fill:var(--over)}
.point{stroke:var(--panel);stroke-width:.6px}
.point.on{stroke:var(--ink);stroke-width:1.5px}
.point.dim{opacity:.07}
.point.centre{stroke:var(--ink);stroke-width:1.2px}
.scroll{overflow-x:auto;max-width:100%}
.scroll svg{margin:0 .2rem .3rem 0}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:3px}
.legend,.menus,.key{display:flex;flex-wrap:wrap;gap:.35rem .5rem;margin:0 0 .6rem;font-size:.85rem}
.key{gap:.2rem .8rem;color:var(--soft);font-size:.8rem}
.key span{display:inline-flex;align-items:center;gap:.3rem}
.legend button{font:inherit;color:var(--ink);background:none;border:1px solid var(--edge);border-radius:1rem;
  padding:.15rem .7rem;cursor:pointer}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:.2rem;background:var(--c);margin-right:.4rem;
  vertical-align:-.05rem}
.legend button[aria-pressed=false]{color:var(--soft);text-decoration:line-through}
.legend button[aria-pressed=false] i{background:none;box-shadow:inset 0 0 0 1.5px var(--c)}
select{font:inherit;color:var(--ink);background:var(--panel);border:1px solid var(--edge);border-radius:.4rem;
  padding:.15rem .4rem;max-width:12rem}
.views{font-size:.9rem}
.views>[data-view]{display:none;margin-top:.4rem;font-size:1rem}
.views>label{margin:0 1.1rem 0 .35rem}
.views>input{accent-color:var(--accent)}
details{margin-top:.7rem;font-size:.88rem}
summary{cursor:pointer;color:var(--accent);width:fit-content;padding:.1rem 0}
details .scroll{max-height:22rem;overflow:auto;margin-top:.5rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.88rem}
th,td{text-align:left;padding:.3rem 1rem .3rem 0;border-bottom:1px solid var(--edge);vertical-align:top}
td{overflow-wrap:break-word}
th{font-weight:600;color:var(--soft);white-space:nowrap}
.n{text-align:right}
td.n{white-space:nowrap}
.long{min-width:12rem}
td:first-child:not(.long){white-space:nowrap}
.many{columns:19rem;column-gap:1rem;margin-top:1rem}
.many .card{break-inside:avoid;margin-bottom:1rem}
.below{margin-top:1rem}
.settings{width:100%;table-layout:fixed}
.settings th{white-space:normal;width:46%;overflow-wrap:anywhere;font-weight:400}
.settings td{overflow-wrap:anywhere;padding-right:0}
pre{background:var(--page);border:1px solid var(--edge);border-radius:.5rem;padding:.7rem .9rem;white-space:pre-wrap;
  overflow-wrap:anywhere;user-select:all;font-size:.88rem;margin:.5rem 0}
#tip{position:fixed;z-index:9;pointer-events:none;background:var(--ink);color:var(--panel);border-radius:.4rem;
  padding:.35rem .6rem;font-size:.82rem;line-height:1.35;white-space:pre-line;max-width:min(22rem,80vw);
  overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
#tip[hidden]{display:none}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
footer{padding:2.5rem 1.25rem 3rem;color:var(--soft);font-size:.85rem}
@media (max-width:36rem){header{padding-top:1.4rem}header,main,footer{padding-left:.8rem;padding-right:.8rem}
  .card{padding:.8rem}.tiles dd{font-size:1.15rem}th,td{padding-right:.6rem}}
@media print{body{background:none}nav,.legend,.menus{display:none}.card{break-inside:avoid}}
"""
)

SCRIPT = """(() => {
  const tip = document.getElementById("tip");
  let on = null;
  function tell(mark, x, y) {
    if (on) on.classList.remove("on");
    on = mark;
    tip.hidden = !mark;
    if (!mark) return;
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16) + "px";
  }
  const under = e => e.target.closest ? e.target.closest("[data-tip]") : null;
  for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, e => tell(under(e), e.clientX, e.clientY));
  document.addEventListener("scroll", () => tell(null), true);
  document.addEventListener("focusout", () => tell(null));
  document.addEventListener("keydown", e => {
    if (e.key === "Escape") return tell(null);
    const chart = document.activeElement;
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity}[e.key];
    if (!step || !chart || chart.tagName !== "svg") return;
    const marks = [...chart.querySelectorAll("[data-tip]:not(.dim)")];
    if (!marks.length) return;
    e.preventDefault();
    const at = marks.indexOf(on);
    const mark = marks[Math.max(0, Math.min(marks.length - 1, at < 0 && step === 1 ? 0 : at + step))];
    const box = mark.getBoundingClientRect();
    tell(mark, box.x + box.width / 2, box.y + Math.min(box.height / 2, 40));
  });
  for (const button of document.querySelectorAll("[data-series]")) button.addEventListener("click", () => {
    const hidden = button.closest("figure").classList.toggle("off" + button.dataset.series);
    button.setAttribute("aria-pressed", String(!hidden));
  });
  for (const menu of document.querySelectorAll("[data-choose]")) menu.addEventListener("change", () => {
    const figure = menu.closest("figure");
    const wanted = [...figure.querySelectorAll("[data-choose]")].filter(m => m.value);
    for (const point of figure.querySelectorAll("[data-kind]"))
      point.classList.toggle("dim", wanted.some(m => point.dataset[m.dataset.choose] !== m.value));
  });
})();
"""


def views(name: str, choices: dict[str, str]) -> str:
    """The same thing seen in several ways: radio buttons choose which is shown, without a script."""
    if len(choices) < 2:
        return "".join(choices.values())
    rules = "".join(f"#{name}{i}:checked~[data-view='{i}']{{display:block}}" for i in range(len(choices)))
    radios = "".join(
        f'<input type="radio" name="{name}" id="{name}{i}"{" checked" if i == 0 else ""}>'
        f'<label for="{name}{i}">{text(choice)}</label>'
        for i, choice in enumerate(choices)
    )
    shown = "".join(f'<div data-view="{i}">{drawing}</div>' for i, drawing in enumerate(choices.values()))
    return f'<style>{rules}</style><div class="views wide" role="group" aria-label="Over what">{radios}{shown}</div>'


def page(title: str, head: str, sections: Sequence[tuple[str, str]], foot: str, refresh: int = 0) -> str:
    """The whole file. Its policy lets no browser load or run anything but what is in it."""
    kept = [(name, body) for name, body in sections if body]
    links = "".join(f'<a href="#{_anchor(name)}">{text(name)}</a>' for name, _ in kept)
    body = "".join(f'<section id="{_anchor(name)}"><h2>{text(name)}</h2>{inner}</section>' for name, inner in kept)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    renew = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">{renew}'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body>"
        f'<header>{head}<nav aria-label="Sections">{links}</nav></header><main>{body}</main><footer>{foot}</footer>'
        f'<div id="tip" role="status" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )


def _anchor(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())
