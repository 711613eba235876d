"""`grapevine demo --parties N`: a host and N parties as processes of their own on this machine, as on N + 1 machines."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import click

from grapevine.cli.demo import digits_parties
from grapevine.cli.terminal import show_table
from grapevine.core.errors import Mistake
from grapevine.core.words import percent
from grapevine.data.tables import write_csv
from grapevine.jobs.reading import Party
from grapevine.parties.processes import free_port

DEMO_SECONDS = 900


def demo_parties(count: int, out: str | None) -> None:
    """Host and parties as processes of their own on this machine, with TLS and node authentication, to the end."""
    if not 2 <= count <= 10:
        raise Mistake(f"--parties {count}: take 2 to 10.")
    folder = Path(out) if out else Path(tempfile.mkdtemp(prefix="grapevine-demo-"))
    parties = digits_parties(count)
    columns = [f"pixel{j:02d}" for j in range(parties[0].x.shape[1])]
    for party in parties:
        folder.mkdir(parents=True, exist_ok=True)
        table = dict(id=party.ids, digit=party.labels, **{name: party.x[:, j] for j, name in enumerate(columns)})
        write_csv(folder / f"{party.name}.csv", table)
    names = [party.name for party in parties]
    rows = sum(len(party.ids) for party in parties)
    click.echo(f"{count} parties hold {rows} handwritten digits, a tenth labelled. Each is a process of its own.")
    run = [sys.executable, "-c", "from grapevine.cli.main import main; main()"]
    made = _run([
        *run, "host", str(folder / "host"), "--parties", ",".join(names), "--address", "127.0.0.1", "--bind", "127.0.0.1",
        "--port", str(free_port()), "--schema", str(folder / f"{names[0]}.csv"), "--label", "digit", "--id", "id",
        "--bits", "1024", "--wait", "300", *(word for name in names for word in ("--invite", name)),
    ])  # fmt: skip
    tokens = [line.split()[2] for line in made.splitlines() if line.startswith("grapevine join ")]
    started = [("host", _start([*run, "host", str(folder / "host")], folder / "host.txt"))]
    try:
        for name, token in zip(names, tokens):
            words = ["join", token, "--data", str(folder / f"{name}.csv"), "--label", "digit", "--id", "id", "--home",
                     str(folder / name), "--yes"]  # fmt: skip
            started.append((name, _start([*run, *words], folder / f"{name}.txt")))
        _follow(started, folder / "host.txt")
    finally:
        for _, process in started:
            if process.poll() is None:
                process.terminate()
        for _, process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
    _show_demo(folder, parties)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise Mistake(f"the demo's host could not be made: {done.stderr.strip()}")
    return done.stdout


def _start(command: list[str], log: Path) -> subprocess.Popen:
    with open(log, "w") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=dict(os.environ))


def _follow(started: list[tuple[str, subprocess.Popen]], log: Path) -> None:
    """Show what the host says until every process has ended."""
    until, at = time.monotonic() + DEMO_SECONDS, 0
    while any(process.poll() is None for _, process in started):
        text = log.read_text()
        click.echo(text[at:], nl=False)
        at = len(text)
        failed = next((name for name, process in started if process.poll() not in (None, 0)), None)
        if failed or time.monotonic() > until:
            break
        time.sleep(0.5)
    click.echo(log.read_text()[at:], nl=False)
    for name, process in started:
        if process.poll():
            last = (log.parent / f"{name}.txt").read_text().strip().splitlines()[-1:] or ["it said nothing"]
            raise Mistake(f"{name} ended with {process.returncode}: {last[0].removeprefix('grapevine: ')}")
    if any(process.returncode is None for _, process in started):
        raise Mistake(f"the demo took longer than {DEMO_SECONDS} s: look into {log.parent}.")


def _show_demo(folder: Path, parties: list[Party]) -> None:
    rows = []
    for party in parties:
        with open(folder / party.name / "out" / "labels.csv") as file:
            labels = list(csv.DictReader(file))
        new = [(row["label"], truth) for row, truth, given in zip(labels, party.truth, party.labels) if given is None]
        sent = [json.loads(line)["bytes"] for line in (folder / party.name / "out" / "disclosure.jsonl").read_text().splitlines()]
        rows.append(dict(party=party.name, rows=len(labels), new=len(new), right=percent(sum(a == b for a, b in new) / len(new)),
                         sent=f"{sum(sent) / 1e6:.1f} MB"))  # fmt: skip
    show_table("Labels, one process a party", rows)
    click.echo(f"Everything is in {folder}: each party's labels.csv in its own folder, the host's books in host.")
