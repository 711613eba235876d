"""What a command does for the shell it lives in: completion, JSON for machines, colours where they are wanted, exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from grapevine.cli.main import main
from grapevine.report import write
from grapevine.run.folder import running

COMMAND = Path(sys.executable).with_name("grapevine")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|38;[\d;]+|48;[\d;]+)m")
BAR = """
from grapevine.cli.bars import Bar
with Bar("a run") as bar:
    bar(1, 2, dict(accuracy=0.5))
"""


def grapevine(*words: str):
    return CliRunner().invoke(main, list(words))


# ---------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell):
    said = grapevine("completion", shell)
    assert said.exit_code == 0 and f"_GRAPEVINE_COMPLETE={shell}_complete" in said.output
    if shell == "bash" and shutil.which("bash"):
        subprocess.run(["bash", "-n"], input=said.output, text=True, check=True)
    assert grapevine("completion", "tcsh").exit_code == 2


def test_the_shell_is_told_commands_flags_and_choices():
    def told(words: str, at: int) -> set[str]:
        env = os.environ | dict(_GRAPEVINE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(at))
        done = subprocess.run([COMMAND], env=env, capture_output=True, text=True, timeout=60, check=True)
        return {line.split(",", 1)[1] for line in done.stdout.splitlines()}

    assert told("grapevine me", 1) == {"methods"}
    assert {"--rounds", "--resume"} <= told("grapevine train fedavg --r", 3)
    assert told("grapevine train fedavg --norm ", 4) == {"none", "bn", "gn", "sbn"}


# ---------------------------------------------------------------- machines


def test_every_listing_is_json_on_request(tmp_path):
    listings = [["methods"], ["methods", "fedavg"], ["data", "list"],
                ["data", "show", "--data", "digits", "--clients", "3", "--labels", "clients:30"]]  # fmt: skip
    for words in listings:
        said = grapevine(*words, "--json")
        assert said.exit_code == 0 and json.loads(said.stdout), words
    wrong = grapevine("doctor", "--data", str(tmp_path / "missing.csv"), "--label", "kind", "--json")
    assert wrong.exit_code == 2 and [line["what"] for line in json.loads(wrong.stdout) if line["good"] is False][-1] == "data"


# ---------------------------------------------------------------- colours


def shown(terminal: bool, **environment: str) -> str:
    """What a progress bar writes to a terminal, or to a pipe."""
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")}
    env |= dict(TERM="xterm-256color", COLUMNS="100") | environment
    if not terminal:
        return subprocess.run([sys.executable, "-c", BAR], env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", BAR], env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(ours, 1 << 16):
            pieces.append(piece)
    except OSError:
        pass  # a terminal whose other end is closed
    assert process.wait(60) == 0
    os.close(ours)
    return b"".join(pieces).decode()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")
def test_colours_are_for_terminals_that_want_them():
    assert COLOUR.search(shown(True))
    assert not COLOUR.search(shown(True, NO_COLOR="1"))
    piped = shown(False)
    assert "a run: round 1 of 2 accuracy 50.0%" in piped and "\x1b" not in piped


# ---------------------------------------------------------------- exit codes


def test_exit_codes_are_those_of_the_reference(tmp_path):
    reference = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", reference, re.M)}
    assert documented == {0, 1, 2, 75, 130}
    assert grapevine("methods").exit_code == 0
    for words in (
        ["report", str(tmp_path)],
        ["nonsense"],
        ["train", "fedavg"],
        ["train", "fedavg", "--data", "nowhere", "--out", "x"],
    ):
        said = grapevine(*words)
        assert said.exit_code == 2 and "Traceback" not in said.output, words


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent otherwise there")
def test_ctrl_c_exits_130_and_the_page_says_that_the_run_was_stopped(tmp_path):
    words = "train fedavg --data digits --clients 4 --labels clients:80 --rounds 100000 --model linear --workers 1 --out run"
    process = subprocess.Popen([COMMAND, *words.split()], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not (tmp_path / "run" / "checkpoint" / "manifest.json").exists():
        time.sleep(0.02)
    alive = running(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    said = next(line for line in process.stderr if b"Stopped" in line)
    process.send_signal(signal.SIGINT)  # a second one met Python and torch as they took themselves apart
    said = (said + process.communicate(timeout=100)[1]).decode()
    assert process.returncode == 130 and said.strip().endswith("--out run --resume"), said
    assert alive and not running(tmp_path / "run")
    page = write(tmp_path / "run").read_text(encoding="utf-8")
    assert "The run was stopped before its end" in page and 'http-equiv="refresh"' not in page
