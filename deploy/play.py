"""What compose.yaml's `setup` does: tables of handwritten digits for each party, a federation for the host, invitations by mail.

python deploy/play.py --host FOLDER --parties FOLDER,FOLDER,FOLDER --address HOST [--port 8443] [--owner UID]
"""

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from grapevine.cli.demo import digits_parties
from grapevine.core.store import write_atomically
from grapevine.data.tables import write_csv

POLICY = 'hosts = ["{place}"]\njobs = ["label"]\nmethods = ["chorus"]\nprotocols = ["mlwe"]\nquorum = 3\notherwise = "refuse"\n'


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--host", type=Path, required=True)
    words.add_argument("--parties", type=lambda text: [Path(word) for word in text.split(",")], required=True)
    words.add_argument("--address", required=True)
    words.add_argument("--bind", default="0.0.0.0")
    words.add_argument("--port", type=int, default=8443)
    words.add_argument("--owner", type=int)
    said = words.parse_args()
    trial, names = said.host / "trial", [folder.name for folder in said.parties]
    if (trial / "federation.toml").exists():
        print(f"{trial} is there: nothing to do.")
        return
    for folder, dealt in zip(said.parties, digits_parties(len(names))):
        party = replace(dealt, name=folder.name)
        columns = {f"pixel{j:02d}": party.x[:, j].tolist() for j in range(party.x.shape[1])}
        write_csv(folder / "patients.csv", {"id": party.ids, "digit": party.labels, **columns})
        write_atomically(folder / "policy.toml", POLICY.format(place=f"{said.address}:{said.port}").encode(), 0o600)
    made = subprocess.run(
        [Path(sys.executable).with_name("grapevine"), "host", trial, "--parties", ",".join(names), "--address", said.address,
         "--bind", said.bind, "--port", str(said.port), "--schema", said.parties[0] / "patients.csv", "--label", "digit",
         "--id", "id", *(word for name in names for word in ("--invite", name))],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    tokens = [line for line in made.stdout.splitlines() if line.startswith("grapevine-")]
    for folder, token in zip(said.parties, tokens, strict=True):
        write_atomically(folder / "invitation", token.encode(), 0o600)
    if said.owner is not None:
        for top in (said.host, *said.parties):
            for path in (top, *top.rglob("*")):
                os.chown(path, said.owner, said.owner)
    print(f"{', '.join(names)} have their tables and invitations.")


if __name__ == "__main__":
    main()
