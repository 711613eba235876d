"""The latent space on a run's page: its rows, its centroids, and what cannot be drawn."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pages import Page, check_structure, result_of
from safetensors.torch import load_file

from grapevine import report
from grapevine.core.errors import Mistake
from grapevine.report import latent


def test_the_latent_space_is_drawn_with_its_centroids(pictured, tmp_path):
    full = report.write(pictured, full=True).read_bytes()
    seen = Page(full.decode())
    check_structure(seen)
    kept = result_of(pictured)["best_round"]
    titles = [heading for heading, _ in seen.charts if heading.startswith("Latent")]
    assert titles == ["Latent space, round 1", f"Latent space, round {kept} (kept)"]
    rows = seen.tables[titles[-1]][0][1:]
    true = load_file(pictured / "latent" / "kept.safetensors")["y"].tolist()
    assert [[name, int(n)] for name, n in rows] == [[str(c), true.count(c)] for c in range(10)]
    pairs = zip(seen.tags, seen.tags[1:])  # a group with its data, and the dot in it
    dots = [(group["data-kind"], dot) for (_, group), (tag, dot) in pairs if "data-kind" in group and tag == "circle"]
    centres = [(kind, dot) for kind, dot in dots if "centre" in dot["class"].split()]
    points = [(kind, dot) for kind, dot in dots if "point" in dot["class"].split()]
    assert len(centres) == 20 and len(points) == 2 * len(true) == 240
    across = [float(dot["cx"].rstrip("%")) for kind, dot in points[len(true) :] if kind == "7"]
    centre = next(float(dot["cx"].rstrip("%")) for kind, dot in centres[10:] if kind == "7")
    assert centre == pytest.approx(sum(across) / len(across), abs=0.02)
    moved = Path(shutil.copytree(pictured, tmp_path / "run"))
    assert report.write(moved, full=True).read_bytes() == full  # repeats, and needs nothing but the folder
    assert "Latent space" not in report.write(pictured).read_text(encoding="utf-8")


def test_rows_of_a_class_lie_together_and_what_cannot_be_drawn_is_left_out(tmp_path, run):
    import numpy as np
    import torch
    from safetensors.torch import save_file

    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 30)
    z = (8 * np.eye(3)[y] + draw.standard_normal((90, 3))).astype("float32")
    flat = latent.plane(z, None)
    again = latent.plane(z, flat)
    for place in (flat, again):
        near = np.linalg.norm(place[:, None] - place[None], axis=2) + 1e9 * np.eye(90)
        assert (y[near.argmin(1)] == y).mean() > 0.95
    shutil.rmtree(run / "latent", ignore_errors=True)
    (run / "latent").mkdir()
    broken = dict(z=torch.full((20, 3), float("nan")), y=torch.zeros(20).long(), guess=torch.zeros(20).long())
    save_file(broken, run / "latent" / "kept.safetensors", dict(round="3"))
    assert "Latent space" not in report.write(run, full=True).read_text(encoding="utf-8")
    (run / "latent" / "kept.safetensors").write_bytes(b"nonsense")
    with pytest.raises(Mistake, match=r"kept.safetensors is not readable"):
        report.write(run, full=True)


@pytest.mark.browser
def test_a_latent_space_is_read_by_mouse_and_keyboard(browser, pictured):
    browser.visit(report.write(pictured, full=True), 1200, False)
    tip = "(() => { const t = document.getElementById('tip'); return t.hidden ? null : t.textContent; })()"
    browser.ask("document.querySelector('[data-choose=kind]').scrollIntoView()")
    browser.ask("document.querySelector('[data-choose=kind]').focus()")
    browser.press("ArrowDown")  # the first class
    last = "[...document.querySelector('[data-choose=kind]').closest('figure').querySelectorAll('[data-kind]')]"
    shown = browser.ask(f"{last}.filter(p => !p.classList.contains('dim')).map(p => p.dataset.kind)")
    assert set(shown) == {"0"}
    centre = "document.querySelector('[data-choose=kind]').closest('figure').querySelector('.centre')"
    box = browser.ask(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({centre}.getBoundingClientRect())")
    browser.move(*box)
    assert re.fullmatch(r"0\ncentre of \d+ rows|0\n\d", browser.ask(tip))
    chosen = "document.getElementById('over0')"
    browser.ask(f"{chosen}.focus()")
    browser.press("ArrowRight")
    assert browser.ask("document.getElementById('over1').checked")
    assert browser.complaints() == []
