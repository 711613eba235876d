"""The files for administrators: units, image, compose and lock. What needs a tool that is not here is skipped, and says so."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import yaml
from net import until

from grapevine.core.errors import Later, Mistake
from grapevine.data.sheets import read_text_columns
from grapevine.parties.processes import free_port, start, stop

TOP = Path(__file__).parent.parent
UNITS = sorted((TOP / "deploy" / "systemd").glob("*.service"))
COMMAND = Path(sys.executable).with_name("grapevine")
OURS = ["Dockerfile", ".dockerignore", "compose.yaml", "requirements.lock", *(f"deploy/systemd/{unit.name}" for unit in UNITS)]


@pytest.mark.parametrize("name", OURS)
def test_no_address_of_a_registry_is_in_it(name):
    text = (TOP / name).read_text()
    assert not re.search(r"https?://|index-url\s|pypi|--extra-index|--find-links", text, re.I)


# ---------------------------------------------------------------- units


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine: the unit was not checked")
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit, tmp_path):
    """`verify` wants the command to be there, so it is this one."""
    analyze, copy = tool("systemd-analyze"), tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/grapevine/bin/grapevine", str(COMMAND)))
    for words in (["verify", copy], ["security", "--offline=true", "--threshold=20", copy]):  # 20: an exposure of 2.0 of 10
        done = subprocess.run([analyze, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    copy.write_text(copy.read_text().replace("NoNewPrivileges=yes", "NoNewPrivilege=yes"))  # it does find things
    assert "NoNewPrivilege" in subprocess.run([analyze, "verify", copy], capture_output=True, text=True, timeout=60).stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_knows_the_exit_codes_and_a_command_that_exists(unit):
    lines = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#"))
    assert int(lines["RestartPreventExitStatus"]) == Mistake.code and int(lines["RestartForceExitStatus"]) == Later.code
    words = lines["ExecStart"].split()
    known = subprocess.run([COMMAND, words[1], "--help"], capture_output=True, text=True, timeout=120).stdout
    assert all(f"{word} " in known for word in words if word.startswith("--"))


# ---------------------------------------------------------------- the lock


def locked() -> dict[str, list[str]]:
    """Names with versions, and their hashes."""
    text = re.sub(r"\\\n\s*", " ", (TOP / "requirements.lock").read_text())
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {words[0]: words[1:] for words in lines}


def test_every_locked_package_has_hashes_and_the_version_of_the_constraints():
    known = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (TOP / "constraints.txt").read_text(), re.M))
    known = {name.lower().replace("_", "-"): version for name, version in known.items()}
    lock = locked()
    assert len(lock) > 50
    for package, hashes in lock.items():
        name, version = package.split("==")
        assert hashes and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), package
        assert known.get(name, version) == version.partition("+")[0], f"{package}: make lock"


def test_the_lock_has_everything_that_the_image_needs():
    about = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"--extra (\w+)", (TOP / "Makefile").read_text())
    assert set(extras) == {"flower", "paillier", "dp"}
    wanted = [*about["dependencies"], *(each for name in extras for each in about["optional-dependencies"][name])]
    names = {package.split("==")[0] for package in locked()}
    old = {"tomli"}  # of Pythons before the image's
    assert {re.match(r"[\w-]+", each)[0].lower() for each in wanted} - old <= names


# ---------------------------------------------------------------- the image and compose


def test_the_image_ends_as_an_ordinary_user_and_installs_by_hash():
    text = (TOP / "Dockerfile").read_text()
    last = text.rpartition("FROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.M) and last.index("USER") > last.index("RUN")
    assert "--require-hashes" in text and re.findall(r"^FROM (\S+)", text, re.M) == ["python:3.11-slim"] * 2
    for line in re.findall(r"^COPY (?!--from)(.*)", text, re.M):
        assert all((TOP / source).exists() for source in line.split()[:-1])


def services() -> dict:
    return yaml.safe_load((TOP / "compose.yaml").read_text())["services"]


def test_compose_keeps_the_hospitals_apart_and_every_container_small():
    made = services()
    for name, service in made.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["mem_limit"] and service["pids_limit"], name
    networks = {name: set(made[name]["networks"]) for name in ("north", "south", "east")}
    assert not set.intersection(*networks.values()) and set.union(*networks.values()) == set(made["host"]["networks"])
    volumes = [volume.split(":")[0] for name in ("host", "north", "south", "east") for volume in made[name]["volumes"]]
    assert len(set(volumes)) == 4
    assert not any("grapevine-" in str(service) for service in made.values())  # no invitation in it


def test_compose_reads_the_file():
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not on this machine: compose.yaml was not checked against its schema")
    done = subprocess.run([docker, "compose", "-f", TOP / "compose.yaml", "config", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parties
@pytest.mark.timeout(3600)
def test_the_commands_of_compose_play_three_hospitals(tmp_path):
    """As they stand, without containers: volumes are folders, and the host's name is this machine."""
    made, names, port = services(), ("north", "south", "east"), str(free_port())
    for name in ("host", *names):
        (tmp_path / name).mkdir()

    def here(words: list[str], home: str = "") -> list[str]:
        words = [re.sub(r"(^|,)/(?=host|north|south|east)", rf"\1{tmp_path}/", word) for word in words]
        return [word.replace("/home/grapevine", str(tmp_path / home)) for word in words]

    setup = here(made["setup"]["command"])
    setup[setup.index("--address") + 1] = "127.0.0.1"
    words = [*setup[: setup.index("--owner")], "--bind", "127.0.0.1", "--port", port]
    subprocess.run([sys.executable, TOP / "deploy" / "play.py", *words], check=True, timeout=300)
    started = {}
    try:
        for name in ("host", *names):
            env = dict(HOME=str(tmp_path / name), PATH="/usr/bin:/bin")
            started[name] = start([str(COMMAND), *here(made[name]["command"], name)], env, tmp_path / f"{name}.txt")
        logs = lambda: "\n".join((tmp_path / f"{name}.txt").read_text()[-2000:] for name in started)  # noqa: E731
        until(lambda: all(each.poll() is not None for each in started.values()), "everybody to end", logs)
    finally:
        for each in started.values():
            stop(each)
    assert {name: each.returncode for name, each in started.items()} == dict.fromkeys(started, 0), logs()
    for name in names:
        out = tmp_path / name / "party" / "out"
        assert (out / "labels.csv").stat().st_mode & 0o777 == (out / "review.csv").stat().st_mode & 0o777 == 0o600
        assert sum(map(bool, read_text_columns(out / "labels.csv", ["label"])["label"])) > 400
    done = subprocess.run([COMMAND, "audit", tmp_path / "host" / "trial", "--json"], capture_output=True, text=True, timeout=120)
    told = yaml.safe_load(done.stdout)
    assert {line["party"] for line in told if line["event"] == "joined"} == set(names)
    assert [line["event"] for line in told][-1] in ("left", "done") and any(line["event"] == "answered" for line in told)
