"""Downloads, against a real HTTP server on this machine that breaks off, ignores ranges, redirects and lies."""

import gzip
import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from grapevine.core.errors import Mistake
from grapevine.data import catalogue, download
from grapevine.data.download import BY_HAND, SOURCES, File, fetch, get

CONTENT = np.random.default_rng(0).bytes(1_000_000)


class Handler(BaseHTTPRequestHandler):
    """Serves `server.files`. `server.cut`: how many bytes each next answer may send before the connection breaks."""

    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.requests.append((self.path, asked))
        if self.path in server.redirects:
            self.send_response(302)
            self.send_header("Location", server.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        body = server.files[self.path]
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.ranges else 0
        if start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        cut = server.cut.pop(0) if server.cut else None
        self.wfile.write(body[start:] if cut is None else body[start : start + cut])
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.redirects, server.cut, server.ranges, server.requests = {"/data.bin": CONTENT}, {}, [], True, []
        server.base = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.02))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def official(server, content=CONTENT, kind="sha256", path="/data.bin"):
    return File(server.base + path, f"{kind}:{hashlib.new(kind, content).hexdigest()}")


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_download_with_progress(server, tmp_path, kind):
    seen = []
    target = tmp_path / "new" / "data.bin"
    assert fetch(official(server, kind=kind), target, lambda *step: seen.append(step)) == target
    assert target.read_bytes() == CONTENT and list(target.parent.iterdir()) == [target]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}) and len(seen) > 1


def test_already_there(server, tmp_path):
    fetch(official(server), tmp_path / "data.bin")
    fetch(official(server), tmp_path / "data.bin")
    assert len(server.requests) == 1


def test_a_wrong_file_in_place_is_replaced(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"older version")
    fetch(official(server), tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_broken_connection_is_resumed_at_once(server, tmp_path):
    server.cut = [300_000, 300_000]
    fetch(official(server), tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=300000-", "bytes=600000-"]


def test_an_interrupted_download_goes_on_in_the_next_call(server, tmp_path):
    server.cut = [100_000, 100_000, 100_000]
    with pytest.raises(Mistake, match="stopped sending .300000 of 1000000 bytes came.: run the command again"):
        fetch(official(server), tmp_path / "data.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin.part"]
    fetch(official(server), tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT and server.requests[-1][1] == "bytes=300000-"
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_ctrl_c_leaves_the_part_for_later(server, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(official(server), tmp_path / "data.bin", stop)
    part = tmp_path / "data.bin.part"
    size = part.stat().st_size
    assert not (tmp_path / "data.bin").exists() and part.read_bytes() == CONTENT[:size] and size > 0
    fetch(official(server), tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT and server.requests[-1][1] == f"bytes={size}-"


def test_a_server_that_ignores_ranges(server, tmp_path):
    server.ranges, server.cut = False, [400_000]
    fetch(official(server), tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=400000-"]


def test_a_whole_part_is_only_checked_and_renamed(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    fetch(official(server), tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"x" * 1000, CONTENT + b"more", b"x" * len(CONTENT)])
def test_a_part_of_another_version_is_thrown_away(server, tmp_path, left):
    (tmp_path / "data.bin.part").write_bytes(left)
    fetch(official(server), tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_in_place(server, tmp_path):
    with pytest.raises(Mistake, match="has the checksum sha256:.* instead of sha256:.*nothing was kept"):
        fetch(official(server, b"what the authors published"), tmp_path / "data.bin")
    assert list(tmp_path.iterdir()) == []


def test_server_errors(server, tmp_path):
    with pytest.raises(Mistake, match="/none.bin answered 404"):
        fetch(official(server, path="/none.bin"), tmp_path / "none.bin")
    assert len(server.requests) == 1 and list(tmp_path.iterdir()) == []


def test_nobody_answers(server, tmp_path):
    file = official(server)
    server.shutdown()
    server.server_close()
    with pytest.raises(Mistake, match="stopped sending"):
        fetch(file, tmp_path / "data.bin", timeout=1)


def test_redirects_are_followed_only_to_safe_addresses(server, tmp_path):
    server.redirects = {
        "/moved.bin": "/data.bin",
        "/evil.bin": "http://example.org/data.bin",
        "/file.bin": "ftp://127.0.0.1/data.bin",
    }
    fetch(official(server, path="/moved.bin"), tmp_path / "moved.bin")
    assert (tmp_path / "moved.bin").read_bytes() == CONTENT
    for path, words in [("/evil.bin", "http://example.org/data.bin is not an https"), ("/file.bin", "is not an https")]:
        with pytest.raises(Mistake, match=words):
            fetch(official(server, path=path), tmp_path / "evil.bin")


@pytest.mark.parametrize(
    "url", ["http://example.org/a", "ftp://example.org/a", "file:///etc/passwd", "http://127.0.0.1.evil.org/a"]
)
def test_only_https(tmp_path, url):
    with pytest.raises(Mistake, match="is not an https address"):
        fetch(File(url, "md5:0"), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Mistake, match="cannot be written"):
        fetch(official(server), tmp_path / "file" / "data.bin")


def test_get_then_load(server, tmp_path, monkeypatch):
    """From the official files on a server to a data set, with real IDX files."""
    files = []
    for stem, array in [
        ("train-images-idx3-ubyte", np.arange(5 * 784).reshape(5, 28, 28)),
        ("train-labels-idx1-ubyte", np.arange(5)),
        ("t10k-images-idx3-ubyte", np.ones((2, 28, 28))),
        ("t10k-labels-idx1-ubyte", np.arange(2)),
    ]:
        header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
        content = gzip.compress(header + array.astype(np.uint8).tobytes())
        server.files[f"/{stem}.gz"] = content
        files.append(official(server, content, path=f"/{stem}.gz"))
    monkeypatch.setitem(SOURCES, "fashion-mnist", tuple(files))
    made = get("fashion-mnist", tmp_path)
    assert [path.parent for path in made] == [tmp_path / "fashion-mnist"] * 4
    data = catalogue.load("fashion-mnist", tmp_path)
    assert data.y.tolist() == [0, 1, 2, 3, 4] and len(data.x_test) == 2
    monkeypatch.setenv("GRAPEVINE_DATA", str(tmp_path / "environment"))
    assert get("fashion-mnist")[0].is_relative_to(tmp_path / "environment")
    monkeypatch.delenv("GRAPEVINE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path / "cache")
    assert get("fashion-mnist")[0].is_relative_to(tmp_path / "cache")


def test_every_set_can_be_got_or_says_how(tmp_path):
    assert get("digits", tmp_path) == [] and list(tmp_path.iterdir()) == []
    assert set(SOURCES) | set(BY_HAND) | {"digits"} == set(catalogue.NAMES) and not set(SOURCES) & set(BY_HAND)
    for name in BY_HAND:
        with pytest.raises(Mistake, match=re.escape(str(tmp_path / name))) as error:
            get(name, tmp_path)
        message = str(error.value)
        assert message.startswith(f"{name} cannot be downloaded automatically") and message.endswith(".") and ". " not in message
    with pytest.raises(Mistake, match="did you mean 'cifar10'"):
        get("cifar-10", tmp_path)


def test_what_is_fetched_is_what_is_read(tmp_path):
    """The files of each source, laid where `get` lays them, make a layout that `load` finds."""
    for name, files in SOURCES.items():
        for file in files:
            assert file.url.startswith("https://") and re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", file.check)
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file.name).touch()
        assert catalogue.find(name, tmp_path)[0] == tmp_path / name


def test_the_limit_of_attempts_is_per_call(server, tmp_path):
    server.cut = [10] * (download.ATTEMPTS + 1)
    with pytest.raises(Mistake, match="stopped sending"):
        fetch(official(server), tmp_path / "data.bin")
    assert len(server.requests) == download.ATTEMPTS
