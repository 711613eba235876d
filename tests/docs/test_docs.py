"""The papers tell the truth: every code block of the README and the docs is run, in order, in a new folder for each page.

```python blocks run in this process and share their names, page by page; ```console blocks are run line by line where a line
starts with `$ ` (what follows is output), ```bash blocks line by line. A comment on the line before a block says otherwise:
`<!-- file: NAME -->` saves it, `<!-- not run: REASON -->` leaves it out.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from federation import Federation, close, double, gradient, hot

from grapevine.cli.main import main
from grapevine.methods import TABLE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>file|not run): (?P<word>.+?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
BIN = Path(sys.executable).parent
SECONDS = 120  # for one command on a busy machine
HERE = ("compare", "data", "leaderboard", "methods", "predict", "report", "train")  # run in this process: torch is loaded once
MADE = re.compile(
    r"<!-- (?:made by|numbers:).*?<!-- end(?: of numbers)? -->|<!--.*?-->|^```.*?^```$|^:::.*\n(?:    .*\n)*", re.M | re.S
)
REFERENCE = {"docs/settings.md", "docs/disclosures.md"}  # made from the code
MOST_WORDS = 30_000
FIELDS = re.compile(r"^<!-- fields: (?P<names>.+?) -->\n\n(?P<table>(?:\|.*\n)+)", re.M)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    mark: str | None
    word: str | None


def blocks(page: Path) -> list[Block]:
    return [Block(m["kind"], m["text"], m["mark"], m["word"]) for m in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def commands(block: Block) -> list[str]:
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.kind == "console":
        return [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def environment(**more: str) -> dict[str, str]:
    """Ours, with the environment's own commands first, and no folder of data that happens to be here."""
    kept = {name: value for name, value in os.environ.items() if name != "GRAPEVINE_DATA"}
    return kept | dict(PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}") | more


def run(command: list[str], folder: Path, **more: str) -> str:
    env = environment(**more)
    program = shutil.which(command[0], path=env["PATH"])
    assert program, f"there is no command '{command[0]}'"
    done = subprocess.run([program, *command[1:]], cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_line(command: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a page, in the folder that is the current one."""
    if command[0] != "grapevine" or command[1] not in HERE:
        run(command, folder)
        return
    monkeypatch.setattr(sys, "argv", command)
    said = CliRunner().invoke(main, command[1:])
    assert said.exit_code == 0, f"{shlex.join(command)}\n{said.output}"


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("GRAPEVINE_DATA", raising=False)
    modules = set(sys.modules)
    names: dict = {}
    for number, block in enumerate(blocks(page)):
        if block.mark == "file":
            (tmp_path / block.word).write_text(block.text, encoding="utf-8")
        elif block.mark is None and block.kind == "python":
            script = tmp_path / f"block_{number}.py"
            script.write_text(block.text, encoding="utf-8")
            names = {k: v for k, v in runpy.run_path(str(script), names).items() if not k.startswith("__")}
        elif block.mark is None and block.kind in ("console", "bash"):
            for command in commands(block):
                run_line(shlex.split(command), tmp_path, monkeypatch)
    for name in set(sys.modules) - modules:  # a page's own modules must not be found by the next page
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == tmp_path:
            del sys.modules[name]


def words(page: Path) -> int:
    """Words that people wrote: without code, addresses, and what scripts make (numbers, tables of fields, the API)."""
    text = MADE.sub("", FIELDS.sub("", page.read_text(encoding="utf-8")))
    text = re.sub(r"`[^`\n]*`", "", re.sub(r"\]\([^)]*\)", "]", text))
    return len(re.findall(r"[^\W\d_][\w'’-]*", text))


def test_the_pages_can_be_read_in_an_afternoon():
    counted = {page_name(page): words(page) for page in PAGES if page_name(page) not in REFERENCE}
    assert sum(counted.values()) <= MOST_WORDS, sorted(counted.items(), key=lambda each: -each[1])[:10]


@pytest.mark.parametrize("page", ["README.md", "docs/train.md"])
def test_the_number_of_methods_is_right(page):
    told = re.findall(r"(\d+)(?: training)? methods", (ROOT / page).read_text(encoding="utf-8"))
    assert told == [str(len(TABLE))]


def test_every_block_says_what_it_is():
    """A fence without a language would be left out without a word; output and layouts are `text`."""
    known = {"python", "console", "bash", "toml", "text", "json", "bibtex"}
    unknown = [(page_name(page), b.kind, b.text[:40]) for page in PAGES for b in blocks(page) if b.kind not in known]
    assert not unknown
    for page in PAGES:
        fences = len(re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.M))
        assert fences == 2 * len(blocks(page)), f"{page_name(page)}: a block that this file does not see"


# ---------------------------------------------------------------- methods


def fields_table(name: str) -> str:
    """The table of a method's fields, from what `grapevine methods NAME --json` prints."""
    about = json.loads(CliRunner().invoke(main, ["methods", name, "--json"]).output)
    lines = ["| field | symbol | default | meaning |", "|---|---|---|---|"]
    for field in about["fields"]:
        default = field["default"]
        shown = "" if default == "" else f"`{default}`" if isinstance(default, str) else json.dumps(default)
        cells = (f"`{field['name']}`", field["symbol"], shown, field["text"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def test_tables_of_fields_are_those_of_the_code():
    """A table that has fallen behind is replaced by what this prints."""
    seen = {}
    for page in (ROOT / "docs" / "methods").glob("*.md"):
        for found in FIELDS.finditer(page.read_text(encoding="utf-8")):
            for name in found["names"].split():
                seen[name] = page.name
                assert found["table"] == fields_table(name), f"{page.name}: {name}\n{fields_table(name)}"
    supervised = {"fedavg", "fedprox", "scaffold", "supervised", "alone", "server-only"}  # one table for all of them, by hand
    assert seen.keys() == set(TABLE) - supervised


def test_every_method_has_a_page_with_a_command_and_a_reference():
    for name in TABLE:
        told = [page for page in (ROOT / "docs" / "methods").glob("*.md") if f"`{name}`" in page.read_text(encoding="utf-8")]
        assert told, f"no page has `{name}`"
    for page in (ROOT / "docs" / "methods").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert "grapevine " in text and ("paper" in text.lower()), page.name


@pytest.fixture(scope="module")
def own_package(tmp_path_factory) -> Path:
    """The package of docs/write-a-method.md, installed into a folder of its own."""
    source, site = tmp_path_factory.mktemp("own"), tmp_path_factory.mktemp("site")
    for block in blocks(ROOT / "docs" / "write-a-method.md"):
        if block.mark == "file":
            (source / block.word).write_text(block.text, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run([*pip, "--no-build-isolation", "--target", str(site), str(source)], source)
    return site


def test_an_own_method_takes_less_than_60_lines_and_is_listed(own_package, monkeypatch):
    assert len((own_package / "feddyn.py").read_text(encoding="utf-8").splitlines()) < 60
    monkeypatch.syspath_prepend(own_package)
    said = CliRunner().invoke(main, ["methods", "--json"])
    sys.modules.pop("feddyn", None)
    assert "feddyn" in [method["name"] for method in json.loads(said.output)]


def test_feddyn_follows_its_algorithm_1_for_three_rounds(own_package, digits, monkeypatch):
    """Full-batch softmax regression by formula; the second client is not in every round."""
    monkeypatch.syspath_prepend(own_package)
    from feddyn import FedDyn

    alpha, lr, K = 0.3, 0.2, 4
    f = Federation(digits, FedDyn(alpha=alpha, lr=lr, epochs=K), labelled=(6, 4, 0), unlabelled=(8, 9, 7))
    sys.modules.pop("feddyn", None)
    theta = double(f.state["weights"])
    h = {name: torch.zeros_like(w) for name, w in theta.items()}
    g = [h, h]
    for chosen in ([0, 1, 2], [0, 2], [0, 1]):
        monkeypatch.setattr(f.server, "sample", lambda round, chosen=chosen: chosen)
        moved = []
        for k in {0, 1} & set(chosen):
            w, rows = theta, f.data[k].labelled
            for _ in range(K):
                d = gradient(w, rows.inputs(), hot(rows.y), torch.full((len(rows),), 1 / len(rows)).double())
                w = {n: w[n] - lr * (d[n] - g[k][n] + alpha * (w[n] - theta[n])) for n in w}
            g[k] = {n: g[k][n] - alpha * (w[n] - theta[n]) for n in w}
            moved.append({n: w[n] - theta[n] for n in w})
        h = {n: h[n] - alpha / 3 * sum(m[n] for m in moved) for n in h}
        theta = {n: theta[n] + sum(m[n] for m in moved) / len(moved) - h[n] / alpha for n in theta}
        close(f.round()["weights"], theta)
        close(f.state["h"], h)


def test_an_own_method_passes_the_conformance_suite(own_package):
    suite = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/conformance/test_methods.py", "-k", "feddyn"]
    said = run(suite, ROOT, PYTHONPATH=os.pathsep.join([str(own_package), *filter(None, [os.environ.get("PYTHONPATH")])]))
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) >= 10 and "failed" not in said, said


def test_the_site_builds_without_warnings_and_asks_for_nothing_outside(tmp_path):
    run(["mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(tmp_path)], ROOT)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES) - 1  # the README is not part of the site
    outside = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["'](?:https?:)?//""")
    assert [page.name for page in pages if outside.search(page.read_text(encoding="utf-8"))] == []
    assert [css.name for css in tmp_path.rglob("*.css") if re.search(r"url\(['\"]?(?:https?:)?//", css.read_text())] == []
