"""`grapevine doctor`, and `grapevine host` as far as it goes without processes; what a party is shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from trials import COLUMNS, LABEL, TRAIN, blobs, clean_agreement, label_agreement, train_agreement, write_table

from grapevine.cli.main import main
from grapevine.cli.parties import how_to_continue, show_agreement
from grapevine.core.errors import Mistake
from grapevine.parties import files, keys
from grapevine.parties import join as joining
from grapevine.parties.doctor import examine
from grapevine.parties.federation import load_host
from grapevine.parties.host import _Progress
from grapevine.parties.policy import policy_file, read_policy, willing
from grapevine.parties.processes import free_port
from grapevine.parties.settings import JOBS, JoinSettings, Source, agreed_fields
from grapevine.run.folder import lock


def findings(token: str | None, source: Source = Source()) -> dict:  # noqa: B008
    return {finding.what: finding for finding in examine(token, source)}


def test_the_doctor_finds_all_in_order(host, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    path = write_table(tmp_path / "n.csv", blobs("north"))
    found = findings(host.registry.invite("north").text(), Source(str(path), "kind", home=str(tmp_path)))
    wrong = {what: finding.sentence for what, finding in found.items() if finding.good is not True}
    assert list(wrong) == ["policy"] and "there is none" in wrong["policy"]
    assert list(found) == ["Python", "Flower", "memory", "disk", "invitation", "host", "settings", "clock", "version",
                           "data", "policy"]  # fmt: skip
    assert "30 rows with 4 features" in found["data"].sentence
    assert host.registry.roster() == {}


def test_the_doctor_names_what_is_wrong_and_goes_on_where_it_can(host, tmp_path):
    token = host.registry.invite("north")
    path = write_table(tmp_path / "n.csv", blobs("north"), ("a", "b"))
    assert "no column 'c'" in findings(token.text(), Source(str(path), "kind"))["data"].sentence
    found = findings(replace(token, address="no-such-host.invalid").text())
    assert "DNS" in found["host"].sentence and found["settings"].good is None and found["clock"].good is None
    found = findings(replace(token, ca="00" * 32).text())
    assert found["invitation"].good and "intercepting" in found["host"].sentence
    found = findings(replace(token, secret=bytes(16)).text())
    assert found["host"].good and "not a valid invitation" in found["settings"].sentence
    assert findings("nonsense")["invitation"].good is False


def test_the_doctor_says_that_all_labels_are_of_one_class(tmp_path):
    (tmp_path / "n.csv").write_text("\n".join(["a,b,kind", *(f"{i},{i * i},{'yes' if i % 3 else ''}" for i in range(30))]))
    told = findings(None, Source(str(tmp_path / "n.csv"), "kind"))["data"].sentence
    assert told.startswith("30 rows with 2 features, 20 labelled, all of them 'yes': check that other parties have another class")


def run(*words: str):
    return CliRunner().invoke(main, list(words))


def test_the_doctor_command_exits_2_when_something_is_wrong(tmp_path):
    assert run("doctor", "--data", str(tmp_path / "missing.csv"), "--label", "kind").exit_code == 2
    done = run("doctor")
    assert done.exit_code == 0 and done.output.count("ok ") == 5


HOST = ["--parties", "north,south,east", "--features", "a,b,c,d", "--address", "127.0.0.1"]


def test_the_host_command_makes_a_folder_and_prints_invitations(tmp_path):
    folder = str(tmp_path / "trial")
    done = run("host", folder, *HOST, "--secure", "psm", "--port", "4711", "--invite", "north", "--invite", "east")
    assert done.exit_code == 0, done.output
    tokens = [keys.read_token(line) for line in done.output.splitlines() if line.startswith("grapevine-")]
    assert [token.name for token in tokens] == ["north", "east"]
    ca = keys.ca_fingerprint((tmp_path / "trial" / "ca.crt").read_bytes())
    assert {(t.address, t.port, t.federation, t.ca) for t in tokens} == {("127.0.0.1", 4711, "trial", ca)}
    made = files.read_toml(tmp_path / "trial" / "federation.toml")["agreed"]
    assert (made["settings"]["secure"], made["quorum"], made["job"]) == ("psm", 3, "label")
    assert run("host", folder, "--invite", "south").exit_code == 0


def test_an_invitation_is_complete(tmp_path):
    """The command that is printed works as it is, but for the name of the party's own file."""
    path, folder = write_table(tmp_path / "n.csv", blobs("north"), label="the kind"), str(tmp_path / "in here" / "trial")
    words = ("--parties", "north,south,east", "--schema", str(path), "--label", "the kind", "--id", "id", "--port", "4711")
    done = run("host", folder, *words, "--address", "host.example.org", "--invite", "north")
    assert "grapevine join --token-file north.token --data FILE --label 'the kind' --id id\n" in done.output
    assert f"reach this host at host.example.org:4711. Start it with: grapevine host '{folder}'" in done.output
    assert "--label 'the kind' --id id\n" in run("host", folder, "--invite", "south").output  # another day
    done = run("host", str(tmp_path / "b"), *words, "--address", "localhost", "--invite", "north")
    assert "localhost means this machine only" in done.output
    words = (*words, "--address", "127.0.0.1", "--bind", "127.0.0.1", "--invite", "north")
    assert "means this machine only" not in run("host", str(tmp_path / "c"), *words).output


def test_a_party_is_excluded_by_name(host, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("grapevine.cli.parties.run_host", ran.append)
    for name in ("north", "south", "east"):
        host.enrol(name, tmp_path / name)
    folder = str(host.folder)
    for name, why in (("west", "has not joined"), ("north", "and the quorum is 3")):
        done = run("host", folder, "--exclude", name)
        assert done.exit_code == 2 and why in done.output and not ran
    files.write_toml(host.folder / "federation.toml", dict(files.read_toml(host.folder / "federation.toml"),
                     agreed=label_agreement(quorum=3, parties=("east", "north", "south", "west")).to_dict()))  # fmt: skip
    host.enrol("west", tmp_path / "west")
    assert run("host", folder, "--exclude", "north").exit_code == 0 and ran == [host.folder]
    assert load_host(host.folder).keys.keys() == {"east", "south", "west"}
    assert host.registry.audit.lines()[-1]["event"] == "excluded"
    with lock(host.folder / "lock"):  # a host at work sees it in the books
        done = run("host", folder, "--exclude", "north")
    assert "The host that is running continues" in done.output and len(ran) == 1


def test_the_host_takes_its_columns_from_a_table(tmp_path):
    path = write_table(tmp_path / "n.csv", blobs("north"))
    words = ["--parties", "north,south", "--schema", str(path), "--label", "kind", "--address", "127.0.0.1", "--invite", "north"]
    assert run("host", str(tmp_path / "t"), *words).exit_code == 0
    assert tuple(files.read_toml(tmp_path / "t" / "federation.toml")["agreed"]["features"]) == COLUMNS


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "holds no federation"),
        ([*HOST, "--seed", "3"], "add --reproducible"),
        ([*HOST, "--rounds", "3"], "--rounds does not apply to --job label"),
        ([*HOST, "--job", "train", "--bits", "64"], "--bits does not apply to --job train"),
        ([*HOST, "--scale", "own"], "--scale own does not apply to --job label"),
        ([*HOST, "--parties", "north,north"], "two parties are called"),
        (["--parties", "north,south"], "--schema with a table"),
        (
            [*HOST, "--invite", "nobody"],
            "'nobody' is not one of the --parties (north, south, east): add it there, or correct it.",
        ),
        ([*HOST, "--address", "https://host.example.org"], "is not the name or IP address of a machine: write host.example.org"),
        ([*HOST, "--address", "host.example.org:8443"], "and the port with --port."),
        ([*HOST, "--port", "80x"], "port is 80x, which is not a whole number, as in 8443."),
        ([*HOST, "--quorum", "9"], "quorum is 9, but there are 3 parties: use 3."),
        ([*HOST, "--job", "train", "--classes", "0,1", "--quorum", "1"], "use 2 or 3."),
    ],
)
def test_the_host_refuses_what_cannot_work(tmp_path, words, sentence):
    done = run("host", str(tmp_path / "t"), *words)
    assert done.exit_code == 2 and sentence in done.output and "Usage" not in done.output
    assert not (tmp_path / "t").exists()


def test_steps_that_are_asked_many_times_in_a_row_are_told_once(tmp_path):
    asked = [("begin", []), ("go_on", []), ("go_on", []), ("go_on", ["south"]), ("go_on", []), ("share", []), ("go_on", [])]
    lines = [dict(round=0, step=step, answered=["north"], missing=lost, seconds=0.4) for step, lost in asked]
    path, said, told = tmp_path / "progress.jsonl", [], []
    progress = _Progress(path, said.append, told.append)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert progress.read() == "round 1, step go_on: 1 answered"
    assert [sentence.split(":")[0].split()[-1] for sentence in said] == ["begin", "go_on", "share", "go_on"]
    assert told == ["round 1, step go_on: 1 answered in 0.4 s, no answer from south."]


def test_a_party_that_is_stopped_before_it_joins_can_use_its_invitation_again(tmp_path):
    """SIGTERM also ends a command that was started in the background, where Ctrl-C is ignored."""
    token = keys.Token("127.0.0.1", free_port(), "trial", "north", "ab" * 32, bytes(range(16)))
    words = ["join", "--data", "n.csv", "--label", "kind", "--home", str(tmp_path / "home")]
    env = {**os.environ, "GRAPEVINE_TOKEN": token.text()}
    started = subprocess.Popen([sys.executable, "-c", "from grapevine.cli.main import main; main()", *words], text=True,
                               env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))  # fmt: skip
    assert "Waiting for the host" in started.stdout.readline()
    started.send_signal(signal.SIGTERM)
    said = started.communicate(timeout=300)[0]
    assert started.returncode == 130 and "Stopped before you joined. The invitation can still be used" in said
    (tmp_path / "home" / "party.toml").touch()
    s = JoinSettings("my rows.csv", "kind", "id", home=str(tmp_path / "home"))
    assert how_to_continue(tmp_path / "home", s).endswith(
        f"join --home {tmp_path / 'home'} --data 'my rows.csv' --label kind --id id"
    )


def test_an_existing_federation_is_not_made_again(tmp_path):
    assert run("host", str(tmp_path / "t"), *HOST, "--invite", "north").exit_code == 0
    before = (tmp_path / "t" / "federation.toml").read_bytes()
    assert run("host", str(tmp_path / "t"), *HOST, "--bits", "64").exit_code == 2
    assert (tmp_path / "t" / "federation.toml").read_bytes() == before


def test_a_job_and_all_of_its_settings_come_from_the_flags(tmp_path):
    words = ["--job", "train", "--method", "fedprox", "--classes", "0,1,2", "--set", "mu=0.5", "--rounds", "7",
             "--per-round", "2", "--model", "linear", "--patience", "3", "--invite", "north"]  # fmt: skip
    done = run("host", str(tmp_path / "t"), *HOST, *words)
    assert done.exit_code == 0, done.output
    agreed = load_host(tmp_path / "t").agreed
    assert (agreed.made.name, agreed.made.mu, agreed.seed) == ("fedprox", 0.5, None)
    told = agreed.run_settings(1)
    assert (told.rounds, told.per_round, told.model, told.patience) == (7, 2, "linear", 3)


def test_the_help_of_host_names_every_setting_that_parties_agree_on():
    text = run("host", "--help").output
    for job in JOBS:
        assert all(f"--{f.name.replace('_', '-')} " in text for f in agreed_fields(job))
    words = " ".join(text.split())
    assert "label: Bits per hash [1024; xclp: 4096]." in words and "train: Total number of rounds. [default: 100" in words


def test_a_party_is_shown_what_every_field_of_every_step_reveals(capsys):
    who = blobs("north")
    for agreed in (train_agreement(), clean_agreement(settings=dict(clean_agreement().settings, counts=True))):
        show_agreement(agreed, who)
        shown = " ".join(capsys.readouterr().out.split())
        for step, bound in agreed.made.steps().items():
            assert bound.reveals, f"{step} says nothing"
            for field in bound.reveals:
                assert agreed.made.reveals(step, field).split()[0] in shown
    show_agreement(label_agreement(), who)
    assert "What would leave" in capsys.readouterr().out


@pytest.mark.parametrize("agreed, promised", [
    (label_agreement(settings=dict(LABEL, dp=3.0, delta=1e-5)), "ε = 3 at δ = 1e-05 for one row of a party, there or blank"),
    (label_agreement(settings=dict(LABEL, method="chorus", dp=2.0)), "ε = 2 at δ = 1e-06 for one row of a party, there or blank"),
    (label_agreement(settings=dict(LABEL, method="chorus", dp_labels=2.5)), "private with ε = 2.5, δ = 0, whoever colludes"),
    (train_agreement(settings=dict(TRAIN, dp=3.0, delta=1e-5, clip=1.0)), "ε = 3 at δ = 1e-05 for one labelled row of a client"),
], ids=["xclp", "chorus", "labels", "train"])  # fmt: skip
def test_a_party_is_shown_unit_epsilon_delta_and_what_is_outside(capsys, agreed, promised):
    pytest.importorskip("dp_accounting")
    show_agreement(agreed, blobs("north"))
    shown = " ".join(capsys.readouterr().out.split())
    assert promised in shown and ("utside of it: " in shown or "are outside it" in shown)


def test_an_invitation_is_not_taken_from_the_arguments(tmp_path, monkeypatch):
    """Everybody on a machine can read the arguments of a process."""
    token = keys.Token("127.0.0.1", free_port(), "trial", "north", "ab" * 32, bytes(16)).text()
    for command in ("join", "doctor"):
        done = run(command, token)
        assert done.exit_code == 2 and "--token-file FILE" in done.output and token not in done.output
    done = run("join", "--token-file", str(tmp_path / "none"))
    assert done.exit_code == 2 and "there is no file" in done.output
    (tmp_path / "token").write_text(token + "\n")
    monkeypatch.setattr(joining, "PATIENCE_SECONDS", 0)
    words = ("--home", str(tmp_path / "home"), "--data", "x.csv", "--label", "kind")
    for given, stdin, env in ((("--token-file", str(tmp_path / "token")), "", {}), (("--token-file", "-"), token, {}),
                              ((), "", dict(GRAPEVINE_TOKEN=token))):  # fmt: skip
        done = CliRunner().invoke(main, ["join", *given, *words], input=stdin, env=env)
        assert done.exit_code == 75 and "is `grapevine host` running there" in done.output  # it was read, and may do later
    assert "GRAPEVINE_TOKEN" not in os.environ


def test_a_token_file_is_read_with_care(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "PATIENCE_SECONDS", 0)
    token = keys.Token("127.0.0.1", free_port(), "trial", "north", "ab" * 32, bytes(16)).text()
    path = tmp_path / "north.token"
    path.write_text(f"{token[:30]}\n{token[30:]}\n")  # mail programs break lines
    path.chmod(0o644)
    words = ("--home", str(tmp_path / "home"), "--data", "x.csv", "--label", "kind")
    assert "chmod 600" in run("join", "--token-file", str(path), *words).output
    path.chmod(0o600)
    done = run("join", "--token-file", str(path), *words)
    assert "chmod 600" not in done.output and done.exit_code == 75
    assert CliRunner().invoke(main, ["join", "--token-file", "-", *words], input=path.read_text()).exit_code == 75
    for bad in (b"", b"\xff\xfe", b"a" * 100_000, b"grapevine-", b"\x1b[2J" + token.encode()):
        path.write_bytes(bad)
        done = run("join", "--token-file", str(path), *words)
        assert done.exit_code == 2 and "\x1b" not in done.output and "Traceback" not in done.output
    for bad in (tmp_path, Path("/dev/zero")):
        done = run("join", "--token-file", str(bad), *words)
        assert done.exit_code == 2 and "Traceback" not in done.output


# ---------------------------------------------------------------- the policy


POLICY = """\
hosts = ["host.example.org:8443"]
jobs = ["label", "train"]
methods = ["chorus", "fedavg", "xclp", "mp-ssfl"]
protocols = ["mlwe", "psm"]
quorum = 3
"""
PLACE = "host.example.org:8443"


def xclp(**set):
    return train_agreement(quorum=3, method="xclp", settings=dict(TRAIN, set=set))


def policy(folder, text: str = POLICY) -> Path:
    path = folder / "policy.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("agreed", "place", "reason"),
    [
        (label_agreement(), PLACE, None),
        (train_agreement(quorum=3), PLACE, None),
        (label_agreement(), "evil.example.org:8443", "host evil.example.org:8443, but the policy allows host.example.org"),
        (clean_agreement(quorum=3), PLACE, "job clean, but the policy allows label, train"),
        (train_agreement(quorum=3, method="fedprox"), PLACE, "method fedprox, but the policy allows chorus, fedavg"),
        (train_agreement(quorum=3, method="xclp"), PLACE, None),
        (xclp(hamming="plain"), PLACE, "protocol plain, but the policy allows mlwe, psm"),
        (xclp(spread="paper"), PLACE, "protocol paper, but the policy allows mlwe, psm"),
        (label_agreement(settings=dict(LABEL, method="xclp", spread="paper")), PLACE, "protocol paper, but the policy"),
        (label_agreement(), "HOST.example.org:8443", None),
        (label_agreement(), "host.example.org:9999", "host host.example.org:9999, but"),
        (label_agreement(settings=dict(LABEL, secure="plain")), PLACE, "protocol plain, but the policy allows mlwe, psm"),
        (train_agreement(), PLACE, "quorum 2, but the policy asks for 3 or more"),
    ],
)
def test_a_policy_allows_what_it_names_and_nothing_else(tmp_path, agreed, place, reason):
    found = read_policy(policy(tmp_path)).outside(agreed, place)
    assert found == [] if reason is None else len(found) == 1 and reason in found[0]


def test_a_policy_with_an_epsilon_wants_differential_privacy(tmp_path):
    made = read_policy(policy(tmp_path, "epsilon = 3.0"))
    assert made.outside(label_agreement(), PLACE) == ["no differential privacy, but the policy allows at most ε 3"]
    for make, settings in ((train_agreement, TRAIN), (label_agreement, LABEL)):
        spends = [make(settings=dict(settings, dp=e)) for e in (2.0, 3.0, 8.0)]
        assert [made.outside(agreed, PLACE) for agreed in spends] == [[], [], ["ε 8, but the policy allows at most ε 3"]]
    both = SimpleNamespace(job="label", method="", quorum=3, made=None, settings=dict(LABEL, dp=2.0, dp_labels=2.0))
    none = SimpleNamespace(job="label", method="", quorum=3, made=None, settings=dict(LABEL, dp=float("nan")))
    assert [made.outside(agreed, PLACE)[0][:5] for agreed in (both, none)] == ["ε 4, ", "ε nan"]


def test_a_host_without_a_port_is_allowed_on_every_port(tmp_path):
    made = read_policy(policy(tmp_path, 'hosts = ["host.example.org"]'))
    assert [bool(made.outside(label_agreement(), f"{name}:9999")) for name in ("host.example.org", "evil.example.org")] == [0, 1]


def test_a_policy_that_is_named_and_not_there_is_a_mistake(tmp_path, monkeypatch):
    """A slip in the variable meant that everything was allowed."""
    monkeypatch.setenv("GRAPEVINE_POLICY", str(tmp_path / "none.toml"))
    with pytest.raises(Mistake, match="there is no policy .*none.toml"):
        read_policy(policy_file(None))
    monkeypatch.delenv("GRAPEVINE_POLICY")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert policy_file(None) is None
    (tmp_path / ".grapevine").mkdir()
    (tmp_path / ".grapevine" / "policy.toml").symlink_to(tmp_path / "gone.toml")
    with pytest.raises(Mistake, match="there is no policy"):
        read_policy(policy_file(None))


def test_a_policy_that_others_can_change_is_refused(tmp_path):
    path = policy(tmp_path)
    path.chmod(0o666)
    with pytest.raises(Mistake, match="chmod go-w"):
        read_policy(path)


@pytest.mark.parametrize(
    "text",
    [
        "host = []",
        "hosts = 3",
        "quorum = 1",
        "quorum = true",
        "epsilon = 0",
        'otherwise = "maybe"',
        "jobs = [1]",
        "= =",
        "epsilon = nan",
        "",
        'otherwise = "ask"',
        'jobs = ["lable"]',
        'protocols = ["rot13"]',
    ],
)
def test_a_policy_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(Mistake, match="policy.toml"):
        read_policy(policy(tmp_path, text))


def test_yes_answers_only_what_the_policy_allows(tmp_path):
    asked = []

    def says(kind, answer):
        return lambda question: asked.append(kind) or answer

    yes = joining.Talk(asked.append, says("ask", True), says("insist", False), lambda *shown: None, asked.append)
    path = policy(tmp_path)
    assert willing(None, label_agreement(), PLACE, "north", yes) and asked == ["ask"]  # without a policy, as before
    asked.clear()
    assert willing(path, label_agreement(), PLACE, "north", yes) and "ask" not in asked
    assert not willing(path, clean_agreement(), PLACE, "north", yes) and asked[-1] == "insist"
    path = policy(tmp_path, POLICY + 'otherwise = "refuse"')
    with pytest.raises(Mistake, match="nothing was sent: this federation has job clean"):
        willing(path, clean_agreement(), PLACE, "north", yes)


def test_the_doctor_looks_at_the_policy(host, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    token, path = host.registry.invite("north"), policy(tmp_path)
    table = write_table(tmp_path / "n.csv", blobs("north"))
    source = Source(str(table), "kind", home=str(tmp_path), policy=str(path))
    found = findings(token.text(), source)["policy"]
    assert found.good is False and found.sentence.startswith("this federation has host 127.0.0.1") and "asked" in found.sentence
    path.write_text(f'hosts = ["127.0.0.1:{host.port}"]')
    assert findings(token.text(), source)["policy"].good and findings(None, source)["policy"].good
    assert findings(None, Source(home=str(tmp_path)))["policy"].good is None  # there is none, and that is said
    path.write_text("quorum = 1")
    assert "quorum is 1" in findings(None, source)["policy"].sentence
