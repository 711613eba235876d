"""The index of a folder of runs, and `grapevine watch`, which serves it to this machine alone."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grapevine import report
from grapevine.core.errors import Mistake
from grapevine.report import index
from grapevine.report.watch import Watch


def leave(folder: Path, **result) -> Path:
    folder.mkdir(parents=True)
    about = dict(job="train", method="fedavg", settings={}, data=dict(name="digits"), seconds=3.0, bytes_up=2000, bytes_down=500,
                 accuracy=0.5, confusion=[[1, 2], [0, 1]], version="0.1.0")  # fmt: skip
    (folder / "result.json").write_text(json.dumps(about | result))
    (folder / "report.html").write_text("<p>a page</p>")
    return folder


@pytest.fixture
def runs(tmp_path) -> Path:
    """Four runs at two depths, one of them broken off and one damaged; and what is none."""
    folder = tmp_path / "runs"
    leave(folder / "b-fast", method="scaffold", accuracy=0.9, seconds=700.0)
    expected = dict(accuracy=0.8, low=0.7, high=0.85, n=1200)
    leave(folder / "later" / "a-labels", job="label", method="chorus", data=dict(classes=["x"]), accuracy=None, expected=expected)
    stopped = leave(folder / "c-stopped")
    os.rename(stopped / "result.json", stopped / "settings.json")
    damaged = leave(folder / "d-damaged")
    (damaged / "result.json").write_text("{")
    (damaged / "messages.jsonl").write_text("")
    leave(folder / "b-fast" / "runs" / "inner")  # a run's own
    (folder / "notes").mkdir()
    (folder / "notes" / "result.json").write_text(json.dumps(dict(somebody="else's")))
    return folder


def test_every_run_has_a_line_with_what_it_came_to(runs):
    (name, (card,)) = index.make(runs).sections[0]
    lines = {row[0].links[0][0]: row[1:] for row in card.parts[0].rows}
    assert list(lines) == ["b-fast", "c-stopped", "d-damaged", "later/a-labels"]
    assert lines["b-fast"][:4] == ["train", "scaffold", "digits", "finished"]
    assert (lines["b-fast"][4].words, lines["b-fast"][4].small, *lines["b-fast"][5:7]) == ("90.0%", "n = 4", "11.7 min", "2.5 kB")
    assert lines["c-stopped"][3] == "stopped" and lines["d-damaged"][3] == "damaged"
    label = lines["later/a-labels"]
    assert label[:4] == ["label", "chorus", "own data", "finished"]
    assert (label[4].words, label[4].small) == ("80.0%", "expected, 70.0% to 85.0%, n = 1,200")


def test_the_command_writes_the_index_beside_the_runs(runs):
    assert report.write(runs) == runs / "index.html"
    text = (runs / "index.html").read_text()
    assert 'href="later/a-labels/report.html"' in text and "4 runs in runs: 2 finished, 1 stopped, 1 damaged." in text
    with pytest.raises(Mistake, match="leave --against out"):
        report.make(runs, against=runs / "b-fast")
    with pytest.raises(Mistake, match="holds no run of Grapevine"):
        report.make(runs / "notes")


# ---------------------------------------------------------------- watching


@pytest.fixture
def watched(runs):
    with Watch(runs) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.05))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: Watch, path: str, host: str = "", method: str = "GET") -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    link.request(method, path, headers=dict(Host=host or f"127.0.0.1:{server.server_port}"))
    answer = link.getresponse()
    return answer.status, answer.read().decode()


def test_only_who_knows_the_word_gets_a_page(watched):
    word = watched.word
    assert watched.server_address[0] == "127.0.0.1" and len(word) >= 32
    status, page = ask(watched, f"/{word}/")
    assert status == 200 and "4 runs in runs" in page and "connect-src 'self'" in page
    assert ask(watched, f"/{word}/", host=f"localhost:{watched.server_port}")[0] == 200
    for path in ("/", "/b-fast/report.html", f"/{word[:-1]}/", f"/{word}x/", "//"):
        assert ask(watched, path) == (403, "")
    assert ask(watched, f"/{word}/", host="evil.example") == (403, "")  # a name that was made to lead here
    assert ask(watched, f"/{word}/", method="POST")[0] == 501


def test_nothing_but_pages_of_runs_below_is_served(watched, runs):
    (runs / "link").symlink_to(runs / "b-fast")
    leave(runs.parent / "outside")
    for path in ("b-fast/result.json", "b-fast/nothing/report.html", "notes/report.html", "../outside/report.html",
                 "%2e%2e/outside/report.html", "link/report.html", "b-fast/../../outside/report.html"):  # fmt: skip
        assert ask(watched, f"/{watched.word}/{path}") == (404, ""), path


def test_a_page_is_made_anew_when_its_files_change(watched, runs):
    path = f"/{watched.word}/"
    before = ask(watched, f"{path}version")[1]
    assert f'data-live="{before}"' in ask(watched, path)[1] and ask(watched, f"{path}version")[1] == before
    leave(runs / "new")
    after = ask(watched, f"{path}version")[1]
    page = ask(watched, path)[1]
    assert after != before and f'data-live="{after}"' in page and "5 runs in runs" in page


def test_a_folder_that_is_not_there_yet_is_waited_for_and_a_host_is_followed(tmp_path):
    folder = tmp_path / "host"
    with Watch(folder) as server:
        assert b"Nothing to show in host yet" in server.page(folder)[1]
        folder.mkdir()
        lines = [dict(time=1.0, step="keys", round=0, asked=["a", "b"]), dict(time=2.0, sentence="client b is left out."),
                 dict(time=3.0, step="keys", round=0, answered=["a"], missing=["b"], seconds=2.0)]  # fmt: skip
        (folder / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        page = server.page(folder)[1].decode()
        assert "Round 1, step keys: 1 answered, after 1 exchange." in page and "client b is left out." in page
        (folder / "failed.json").write_text(json.dumps(dict(sentence="1 of 2 parties still answer.", later=True)))
        assert "1 of 2 parties still answer." in server.page(folder)[1].decode()


def test_ctrl_c_ends_the_command(runs):
    code = "import sys; from grapevine.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-u", "-c", code, "watch", str(runs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("Open http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "Stopped watching.\n", "")


# ---------------------------------------------------------------- in a browser

NAMES = "[...document.querySelectorAll('tbody tr')].filter(r => r.offsetParent).map(r => r.cells[0].textContent.trim()).join()"


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_index_is_sorted_and_filtered_by_mouse_and_keyboard(browser, runs, width, dark):
    browser.visit(report.write(runs), width, dark)
    assert browser.complaints() == []
    assert browser.ask("document.documentElement.scrollWidth") <= width and browser.cut() == []
    assert browser.ask(NAMES) == "b-fast,c-stopped,d-damaged,later/a-labels"
    unnamed = "[...document.querySelectorAll('input,select,button')].filter(e => !(e.labels?.[0] || e).textContent.trim()).length"
    assert browser.ask(unnamed) == 0
    if width > 600:
        browser.ask("document.querySelectorAll('th button')[5].focus()")
        browser.press("Enter")
        assert browser.ask("document.querySelector('th[aria-sort=descending]').textContent") == "right"
    else:
        browser.ask("{const s = document.querySelector('[data-sort]'); s.value = '5'; s.dispatchEvent(new Event('change'))}")
    assert browser.ask(NAMES).split(",")[:2] == ["b-fast", "later/a-labels"]  # 90 %, 80 %, and then what has none
    browser.ask("document.querySelector('[data-find]').focus()")
    browser.call("Input.insertText", text="SCAFF")
    assert browser.ask(NAMES) == "b-fast"
    assert browser.ask("document.querySelector('[role=status][data-count]').textContent") == "1 of 4 shown"
    browser.ask("{const f = document.querySelector('[data-find]'); f.value = ''; f.dispatchEvent(new Event('input'))}")
    browser.ask(
        "{const s = document.querySelectorAll('[data-filter]')[3]; s.value = 'stopped'; s.dispatchEvent(new Event('change'))}"
    )
    assert browser.ask(NAMES) == "c-stopped"
    browser.load()
    assert browser.ask(NAMES) == "c-stopped"  # what was chosen stays
