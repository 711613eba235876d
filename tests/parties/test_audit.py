"""The host's audit log: a chain of hashes that several processes lengthen, and what it tells to whom."""

from __future__ import annotations

import hashlib
import json
import multiprocessing

import pytest
from click.testing import CliRunner

from grapevine.cli.main import main
from grapevine.core.errors import Mistake
from grapevine.parties.audit import FIRST, Audit, holds, without_names


@pytest.fixture
def log(tmp_path):
    log = Audit(tmp_path)
    log.write("made", parties=["east", "north", "south"])
    log.write("joined", party="north", fingerprint="ABCD")
    log.write("refused", address="192.0.2.7", status=403, sentence="no invitation of 'x'")
    log.note(dict(time=1.0, step="train", round=0, asked=["east", "north", "south"]))
    log.note(dict(sentence="south answered step train with numbers that are not finite: it is left out."))
    log.note(dict(step="train", round=0, answered=["east", "north"], missing=["south"], seconds=1.5))
    log.write("left", party="south", sentence="not me, north-east")
    return log


def command(*words: str):
    return CliRunner().invoke(main, ["audit", *words])


def test_the_hash_is_the_one_that_the_page_describes(log):
    """By hand: whoever has the log can check it without this program."""
    before = FIRST
    for n, text in enumerate(log.path.read_text().splitlines(), 1):
        line = json.loads(text)
        assert line["n"] == n and line["before"] == before
        before = line.pop("hash")
        assert before == hashlib.sha256(b"grapevine audit 1\n" + json.dumps(line, sort_keys=True).encode()).hexdigest()
    assert log.last() == before and log.path.stat().st_mode & 0o777 == 0o600


def spoiled(how: str, lines: list[bytes]) -> list[bytes]:
    changed = dict(
        word=[*lines[:1], lines[1].replace(b"north", b"south"), *lines[2:]],
        gone=[*lines[:2], *lines[3:]],
        first_gone=lines[1:],
        twice=[*lines[:2], lines[1], *lines[2:]],
        swapped=[lines[0], lines[2], lines[1], *lines[3:]],
        said_twice=[lines[0].replace(b"{", b'{"event": "nothing", ', 1), *lines[1:]],
        not_json=[*lines[:3], b"yes", *lines[4:]],
        a_list=[*lines[:3], b"[1]", *lines[4:]],
        blank=[*lines[:3], b"", *lines[3:]],
        bytes=[*lines[:3], b"\xff\xfe", *lines[4:]],
    )
    return changed[how]


@pytest.mark.parametrize(
    "how", ["word", "gone", "first_gone", "twice", "swapped", "said_twice", "not_json", "a_list", "blank", "bytes"]
)
def test_what_was_changed_is_found(log, how):
    lines = log.path.read_bytes().splitlines()
    log.path.write_bytes(b"\n".join(spoiled(how, lines)) + b"\n")
    with pytest.raises(Mistake, match=r"line \d: this is not the line that was written"):
        log.lines()
    told = command(str(log.path.parent))
    assert told.exception and isinstance(told.exception, (Mistake, SystemExit))


def test_an_end_that_was_cut_off_is_found_by_whoever_kept_the_last_hash(log):
    last = log.last()
    assert holds(log.lines(), last) and holds(log.lines(), last[:12].upper())
    log.path.write_bytes(b"".join(log.path.read_bytes().splitlines(keepends=True)[:-1]))
    assert not holds(log.lines(), last) and not holds(log.lines(), "") and not holds(log.lines(), last[:4])


def test_what_a_crash_left_is_cut_off_and_said(log):
    n = len(log.lines())
    with open(log.path, "ab") as file:
        file.write(b'{"n": 8, "ti')
    assert len(log.lines()) == n  # it was never written whole, and nothing is called forged
    log.write("started")
    assert [line["event"] for line in log.lines()[n:]] == ["recovered", "started"]


def test_a_log_with_a_foreign_end_is_not_written_on(log):
    with open(log.path, "ab") as file:
        file.write(b"hello\n")
    with pytest.raises(Mistake, match="does not end with a line of an audit log"):
        log.write("started")


def _write(folder, who):
    for i in range(20):
        Audit(folder).write("came", party=who, count=i, sentence="x" * 5000)


def test_several_processes_make_one_chain(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, name)) for name in ("east", "north", "south")]
    for each in writers:
        each.start()
    for each in writers:
        each.join(120)
    lines = Audit(tmp_path).lines()
    for name in ("east", "north", "south"):
        assert [line["count"] for line in lines if line["party"] == name] == list(range(20))


def test_a_view_for_others_has_no_names_and_can_be_compared_with_the_log(log):
    lines = log.lines()
    view = without_names(lines)
    text = json.dumps(view)
    for secret in ("north", "south", "east", "192.0.2", "ABCD", "finite", *(line["salt"] for line in lines)):
        assert secret not in text
    assert [line["hash"] for line in view] == [line["hash"] for line in lines]
    assert len(set(view[0]["parties"])) == 3 and view[5]["missing"] == view[4]["about"] == [view[6]["party"]]
    assert view[2] == {name: lines[2][name] for name in ("n", "time", "event", "status", "hash")}
    assert without_names(lines) == view  # the same numbers every time
    assert without_names([]) == []


def test_numbers_do_not_follow_the_alphabet(tmp_path):
    """Whoever knows the names would know who is who."""
    orders = set()
    for i in range(20):
        log = Audit(tmp_path / str(i))
        log.path.parent.mkdir()
        log.write("made", parties=["a", "b", "c"])
        for name in "abc":
            log.write("came", party=name)
        orders.add(tuple(line["party"] for line in without_names(log.lines())[1:]))
    assert len(orders) > 1


def test_the_command(log):
    folder = str(log.path.parent)
    told = command(folder)
    assert told.exit_code == 0 and "7 lines" in told.output and log.last() in told.output and "not me" in told.output
    assert len(json.loads(command(folder, "--anonymous", "--json").output)) == 7
    assert "north" not in command(folder, "--anonymous").output
    held = command(folder, "--holds", log.last())
    assert held.exit_code == 0 and f"The line with the hash {log.last()} is in it." in held.output
    for bad in ("--holds=" + "0" * 64, "--holds=", "--holds=zz"):
        assert isinstance(command(folder, bad).exception, (Mistake, SystemExit))
    (log.path.parent / "file").write_text("")
    (log.path.parent / "odd" / "audit.jsonl").mkdir(parents=True)
    for bad in ("nothing", "file", "odd"):
        done = command(f"{folder}/{bad}")
        assert done.exit_code == 2 and "cannot be opened" in done.output
    log.path.write_text("")
    assert "they were deleted" in command(folder).output and log.last() == FIRST


def test_words_of_others_cannot_write_to_the_screen(log):
    log.write("left", party="north", sentence="a\x1b[2Jb\n99 joined\u202e")
    assert "\x1b" not in command(str(log.path.parent)).output and "\n99 joined" not in command(str(log.path.parent)).output
