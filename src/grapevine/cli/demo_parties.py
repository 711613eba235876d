"""`grapevine demo --parties N`: a host and N parties as separate processes on this machine, as on N + 1 machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from grapevine.cli.demo import digits_parties
from grapevine.cli.terminal import show_table
from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.core.words import percent
from grapevine.data.sheets import read_text_columns
from grapevine.data.tables import write_csv
from grapevine.jobs.reading import Party
from grapevine.parties.processes import free_port, last_line, start, stop

DEMO_SECONDS = 900
RUN = [sys.executable, "-c", "from grapevine.cli.main import main; main()"]


def demo_parties(count: int, out: str | None) -> None:
    """Run a host and parties as separate processes on this machine, with TLS and node authentication, to the end."""
    if not 2 <= count <= 10:
        raise Mistake(f"--parties {count}: use 2 to 10.")
    folder = Path(out) if out else Path(tempfile.mkdtemp(prefix="grapevine-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    parties = digits_parties(count)
    for party in parties:
        columns = {f"pixel{j:02d}": party.x[:, j].tolist() for j in range(party.x.shape[1])}
        write_csv(folder / f"{party.name}.csv", {"id": party.ids, "digit": party.labels, **columns})
    names = [party.name for party in parties]
    rows = sum(len(party.ids) for party in parties)
    click.echo(
        f"{count} parties hold {rows:,} handwritten digits, of which a tenth are labelled. Each party is a separate process."
    )
    made = subprocess.run(
        [*RUN, "host", str(folder / "host"), "--parties", ",".join(names), "--address", "127.0.0.1", "--bind", "127.0.0.1",
         "--port", str(free_port()), "--schema", str(folder / f"{names[0]}.csv"), "--label", "digit", "--id", "id", "--bits",
         "1024", "--wait", "300", *(word for name in names for word in ("--invite", name))],
        capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        raise Mistake(f"the demo's host could not be created: {made.stderr.strip()}")
    tokens = [line.strip() for line in made.stdout.splitlines() if line.startswith("grapevine-")]
    words = {"host": ["host", str(folder / "host")]}
    for name, token in zip(names, tokens):
        write_atomically(folder / f"{name}.token", token.encode(), 0o600)
        words[name] = [
            "join", "--token-file", str(folder / f"{name}.token"), "--data", str(folder / f"{name}.csv"), "--label", "digit",
            "--id", "id", "--home", str(folder / name), "--ledger", str(folder / "ledger"), "--yes",
        ]  # fmt: skip
    started = {name: start([*RUN, *each], dict(os.environ), folder / f"{name}.txt") for name, each in words.items()}
    try:
        _follow(started, folder)
    finally:
        for process in started.values():
            stop(process)
    _show_demo(folder, parties)


def _follow(started: dict[str, subprocess.Popen], folder: Path) -> None:
    """Show what the host prints until every process has ended."""
    until, at = time.monotonic() + DEMO_SECONDS, 0
    while True:
        codes = {name: process.poll() for name, process in started.items()}
        text = (folder / "host.txt").read_text()
        click.echo(text[at:], nl=False)
        at = len(text)
        failed = next((name for name, code in codes.items() if code), None)
        if failed:
            last = last_line(folder / f"{failed}.txt").removeprefix("grapevine: ")
            raise Mistake(f"{failed} ended with {codes[failed]}: {last}")
        if None not in codes.values():
            return
        if time.monotonic() > until:
            raise Mistake(f"the demo took longer than {DEMO_SECONDS} s: see the log files in {folder}.")
        time.sleep(0.5)


def _show_demo(folder: Path, parties: list[Party]) -> None:
    rows = []
    for party in parties:
        labels = read_text_columns(folder / party.name / "out" / "labels.csv", ["label"])["label"]
        new = [(label, truth) for label, truth, given in zip(labels, party.truth or [], party.labels) if given is None]
        sent = [json.loads(line)["bytes"] for line in (folder / party.name / "out" / "disclosure.jsonl").read_text().splitlines()]
        rows.append(dict(party=party.name, rows=len(labels), new=len(new), right=percent(sum(a == b for a, b in new) / len(new)),
                         sent=f"{sum(sent) / 1e6:.1f} MB"))  # fmt: skip
    show_table("Labels, with one process per party", rows)
    click.echo(f"Everything is in {folder}: each party's labels.csv in its own folder, the host's files in host.")
