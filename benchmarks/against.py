"""The cryptography beside an older commit of this repository: CPU-seconds of both, in turn, in one run.

    python benchmarks/against.py [COMMIT] [--quick]

COMMIT is checked out into a work tree that is removed at the end. Each of the two trees runs its own benchmark scripts on its own
source, in processes of their own, in turn: a `mlwe` pair of 500 × 500 rows (`secure_hamming.pair`) and XCLP's round with `mlwe`
(`xclp_round.whole`). The best of the turns counts. Results: against.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import ROOT, about, one_blas_thread, table, write

BEFORE = "e01eb36"  # the last commit before mlwe's ring products were transformed
TURNS = 3


def child(rows: int, bits: tuple[int, ...]) -> dict[str, float]:
    """What this process's tree takes, by name."""
    import secure_hamming
    import xclp_round

    size = dict(clients=5, rows=rows, features=128, bits=bits[-1], neighbours=10)
    toy = dict(size, rows=15)
    with one_blas_thread():
        secure_hamming.pair("mlwe", 8, 64, 1)  # compiles and loads what there is to load
        xclp_round.whole("mlwe", toy, *xclp_round.rows(5, 15, 128))
        spent = {f"pair, {rows} x {rows} x {L}": secure_hamming.pair("mlwe", rows, L, 1)["cpu_seconds"] for L in bits}
        run = xclp_round.whole("mlwe", size, *xclp_round.rows(5, rows, 128))
    return {**spent, f"round, 5 x {rows} x {bits[-1]}": run["cpu_seconds"]}


def measured(tree: Path, quick: bool) -> dict[str, float]:
    # -P: this script's own folder does not come before the tree's.
    path = os.pathsep.join(str(tree / part) for part in ("src", "benchmarks"))
    command = [sys.executable, "-P", __file__, "--child", *(["--quick"] if quick else [])]
    done = subprocess.run(command, env=dict(os.environ, PYTHONPATH=path), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", default=BEFORE, help="the older commit (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="few rows, one turn, this commit beside itself, and nothing is kept")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        print(json.dumps(child(20, (64,)) if flags.quick else child(500, (1024, 4096))))
        return
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "before")
        commit = "HEAD" if flags.quick else flags.commit
        subprocess.run([*git, "worktree", "add", "-q", "--detach", str(tree), commit], check=True)
        try:
            turns = [(measured(tree, flags.quick), measured(ROOT, flags.quick)) for _ in range(1 if flags.quick else TURNS)]
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)
    rows = []
    for name in turns[0][0]:
        before, now = (min(turn[i][name] for turn in turns) for i in (0, 1))
        rows.append(dict(what=name, before=round(before, 3), now=round(now, 3), ratio=round(now / before, 2)))
    print(table(("CPU-seconds", commit, "now", "ratio"), [tuple(row.values()) for row in rows]))
    if not flags.quick:
        write(__file__, dict(machine=about(), commit=flags.commit, turns=TURNS, rows=rows))


if __name__ == "__main__":
    main()
