"""Forgetting a job: what `grapevine forget` deletes, what remains, and folders that it leaves alone."""

from __future__ import annotations

import hashlib
import json

import pytest
from click.testing import CliRunner
from net import TOKEN, Net, ask_party, bytes_left
from trials import NAMES, blobs, label_agreement

from grapevine.cli.main import main
from grapevine.parties import files
from grapevine.parties.federation import load_party
from grapevine.parties.rows import save_rows


def test_forget_deletes_what_a_killed_job_left_and_lists_what_remains(tmp_path):
    net = Net(tmp_path / "net", [blobs(name, i) for i, name in enumerate(NAMES)], label_agreement(seed=3))
    home = net.folder / "east"
    request = dict(hash=load_party(home).agreed.hash, round=0, step="keys", payload=dict(session_id="s"))
    assert ask_party(home, request)
    about = dict(files.read_toml(home / "party.toml"), token=TOKEN.text(), used="00")
    files.write_toml(home / "party.toml", about)
    (home / "out").mkdir()
    (home / "out" / "labels.csv").write_text("id,label\n")
    secrets = [TOKEN.secret, TOKEN.text().encode(), net.parties["east"].x[3].tobytes(), b"PRIVATE KEY"]
    assert all(secret in bytes_left(home) for secret in secrets[1:])
    done = CliRunner().invoke(main, ["forget", str(home), "--json"])
    assert done.exit_code == 0, done.output
    left = {row["path"]: row for row in json.loads(done.output)}
    assert set(left) >= {"party.toml", "pinned.toml", "disclosure.jsonl", "out/labels.csv"}
    assert left["out/labels.csv"]["sha256"] == hashlib.sha256(b"id,label\n").hexdigest()
    assert not any(secret in bytes_left(home) for secret in secrets)
    assert (home / "ledger" / "privacy.jsonl").exists() is ("ledger/privacy.jsonl" in left)
    again = CliRunner().invoke(main, ["forget", str(home)])  # there is nothing more to forget
    assert again.exit_code == 0, again.output
    assert CliRunner().invoke(main, ["forget", str(tmp_path)]).exit_code == 2


def test_forget_names_a_file_that_still_holds_a_secret(tmp_path):
    net = Net(tmp_path / "net", [blobs(name, i) for i, name in enumerate(NAMES)], label_agreement(seed=3))
    home = net.folder / "east"
    (home / "copy.pem").write_bytes((home / "identity.pem").read_bytes())
    done = CliRunner().invoke(main, ["forget", str(home)])
    assert done.exit_code == 2 and "copy.pem still holds a secret" in done.output


def test_forget_takes_what_an_interrupted_join_left_and_says_what_it_cannot_delete(tmp_path):
    """Killed before the host had answered: rows and keys, and no party.toml yet."""
    home = tmp_path / "early"
    home.mkdir()
    save_rows(home, blobs("north"))
    (home / "identity.pem").write_bytes(b"cut off")
    (home / ".writing-7-out").mkdir()
    (home / ".writing-7-out" / "labels.csv").write_text("id,label\n1,ill\n")
    (home / ".writing-7-party.toml").write_text("token = 'x'")
    done = CliRunner().invoke(main, ["forget", str(home)])
    assert done.exit_code == 0 and "Nothing remains" in done.output and {path.name for path in home.iterdir()} == {"lock"}
    save_rows(home, blobs("north"))
    (home / "memory").symlink_to(tmp_path)  # nothing behind a link is touched, and the link is named
    done = CliRunner().invoke(main, ["forget", str(home)])
    assert done.exit_code == 2 and "memory could not be deleted" in done.output and tmp_path.is_dir()


@pytest.mark.parametrize("what", ["", "federation.toml", "party.toml federation.toml", "ca.crt log.txt"])
def test_forget_leaves_folders_alone_that_are_no_partys(tmp_path, what):
    for name in what.split():
        (tmp_path / name).write_text("")
    assert CliRunner().invoke(main, ["forget", str(tmp_path)]).exit_code == 2
    assert {path.name for path in tmp_path.iterdir()} == set(what.split())
    assert CliRunner().invoke(main, ["forget", str(tmp_path / "nowhere")]).exit_code == 2
