"""docs/images: a picture of each job's report, as headless Chromium shows it. The jobs are run anew, at a small size.

python benchmarks/pictures.py [label|train|clean|compare ...]
"""

from __future__ import annotations

import argparse
import base64
import csv
import io
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_breast_cancer

import grapevine as gv
from grapevine.cli.demo import digits_parties

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from chromium import Browser  # noqa: E402

WIDE, HIGH, COLOURS = 1100, 1000, 128


def label(out: Path) -> None:
    """Ten parties with handwritten digits, and a protocol that takes seconds."""
    read = digits_parties(10)
    parties, truth = [(p.x, p.labels) for p in read], [p.truth for p in read]
    gv.label(parties, names=[p.name for p in read], truth=truth, secure="psm", out=out)


def train(out: Path) -> None:
    settings = dict(clients=10, partition="dirichlet:1", labels="clients:200", rounds=20, model="cnn")
    gv.train("network", "digits", out=out, **settings)


def clean(out: Path) -> None:
    """As on the page of the job: a fifth of the parties' labels are flipped."""
    data, draw = load_breast_cancer(), np.random.default_rng(0)
    order = draw.permutation(len(data.data))
    for name, rows in (("experts", order[:100]), ("north", order[100:330]), ("south", order[330:])):
        with open(out.parent / f"{name}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*data.feature_names, "diagnosis", "truth"])
            for row in rows:
                true = data.target[row]
                given = 1 - true if name != "experts" and draw.random() < 0.2 else true
                table.writerow([*data.data[row], data.target_names[given], data.target_names[true]])
    north, south, experts = (str(out.parent / f"{name}.csv") for name in ("north", "south", "experts"))
    gv.clean([north, south], experts, label="diagnosis", truth="truth", out=out, command="grapevine clean north.csv south.csv …")


def compare(out: Path) -> None:
    settings = dict(clients=10, labels="clients:60~3", rounds=8, model="mlp", seeds=3)
    gv.compare(
        ["network", "perclient-lp", "fedsem"],
        "digits",
        out,
        command="grapevine compare network perclient-lp fedsem …",
        **settings,
    )


JOBS = dict(label=label, train=train, clean=clean, compare=compare)


def picture(page: Path, to: Path, browser: Browser) -> None:
    """The top of a page, with few colours, so that the file is small."""
    browser.visit(page, WIDE, dark=False)
    clip = dict(x=0, y=0, width=WIDE, height=HIGH, scale=1)
    shot = base64.b64decode(browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"])
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(to, optimize=True)
    print(f"Wrote {to.relative_to(ROOT)}, {to.stat().st_size // 1000} kB.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], help="which [all]")
    parser.add_argument("--quick", action="store_true", help="the label and clean jobs without a browser; writes nothing")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pages = {name: Path(folder) / name / "out" for name in (("label", "clean") if flags.quick else flags.jobs or JOBS)}
        for name, out in pages.items():
            out.parent.mkdir()
            JOBS[name](out)
            print(f"{name}: a page of {(out / 'report.html').stat().st_size:,} bytes")
        if flags.quick:
            print("No picture was taken.")
            return
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if program is None:
            sys.exit("No Chromium was found: install it, then run this again.")
        browser = Browser(program, Path(folder) / "chromium")
        for name, out in pages.items():
            picture(out / "report.html", ROOT / "docs" / "images" / f"{name}.png", browser)
        browser.close()


if __name__ == "__main__":
    main()
