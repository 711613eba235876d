"""Official files of the data sets, fetched over HTTPS: resumed when interrupted, checked, and put in place only when whole.

Checksums are those the authors publish, or SHA-256 sums that several public projects agree on for the same files.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grapevine.core.errors import Mistake
from grapevine.core.words import hint

Progress = Callable[[int, "int | None"], None]  # bytes of the present file so far, and in all if known

ATTEMPTS = 3  # connections tried for one file before giving up
CHUNK = 1 << 18


@dataclass(frozen=True)
class File:
    """One official file. `check` is `sha256:` or `md5:` and the sum."""

    url: str
    check: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def files(base: str, *sums: str) -> tuple[File, ...]:
    """Files of one place, each given as its name and its checksum."""
    return tuple(File(f"{base}/{name}", check) for name, check in map(str.split, sums))


GITHUB = "https://raw.githubusercontent.com"
SOURCES = {
    "fashion-mnist": files(
        f"{GITHUB}/zalandoresearch/fashion-mnist/master/data/fashion",
        "train-images-idx3-ubyte.gz sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "mnist": files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",  # the mirror torchvision uses; the original site has no HTTPS
        "train-images-idx3-ubyte.gz sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    )
    + files(
        f"{GITHUB}/facebookresearch/qmnist/master",
        "qmnist-train-labels-idx2-int.gz md5:0058f8dd561b90ffdd0f734c6a30e5e4",
        "qmnist-test-labels-idx2-int.gz md5:5b5b05890a5e13444e108efe57b788aa",
    ),
    "cifar10": files(
        "https://www.cs.toronto.edu/~kriz",
        "cifar-10-binary.tar.gz sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "cifar100": files(
        "https://www.cs.toronto.edu/~kriz",
        "cifar-100-binary.tar.gz sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    "svhn": files(
        "https://ufldl.stanford.edu/housenumbers",
        "train_32x32.mat sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test_32x32.mat sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
    "stl10": files("https://ai.stanford.edu/~acoates/stl10", "stl10_binary.tar.gz md5:91f7769df0f17e558f3565bffb0c7dfb"),
}

# Sets that nobody may fetch for you, or that are made from others: what to do by hand. {folder} is filled in.
BY_HAND = {
    "mini-imagenet": "accept the terms at image-net.org, then put the images into {folder}/images and the lists train.csv,"
    " val.csv and test.csv (github.com/twitter-research/meta-learning-lstm, data/miniImagenet) into {folder}",
    "fed-isic2019": "accept the terms at challenge.isic-archive.com/data (2019), then put ISIC_2019_Training_Input.zip,"
    " ISIC_2019_Training_GroundTruth.csv and the file train_test_split of FLamby (github.com/owkin/FLamby,"
    " flamby/datasets/fed_isic2019/dataset_creation_scripts) into {folder}",
    "derma": "accept the terms of HAM10000 at doi.org/10.7910/DVN/DBW86T, then put its images as dermamnist28.npz (arrays x,"
    " uint8 (n, 28, 28, 3), y, site (the metadata's column dataset as a number), split_corrected (0 train, 1 val, 2 test: no"
    " lesion in two of them), class_names, site_names) into {folder}",
    "femnist": "run LEAF's femnist script (github.com/TalwalkarLab/leaf), then put its images as femnist_leaf.npz (arrays x,"
    " uint8 (n, 28, 28) with ink 255, y (0 to 61: digits, A–Z, a–z), writer (0, 1, …), writer_names) into {folder}",
    "cifar10-lite0": "run `python benchmarks/prepare.py` in a checkout of Grapevine, which makes cifar10_lite0_256.npz, then put"
    " it into {folder}",
}


def cache_dir() -> Path:
    """Where downloads go when nobody says otherwise: the platform's cache folder of this user."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "grapevine"


def places(data_dir: str | Path | None = None) -> list[Path]:
    """The folders in which data files are looked for, in order."""
    given = [data_dir, os.environ.get("GRAPEVINE_DATA")]
    return [Path(folder).expanduser() for folder in given if folder] + [cache_dir()]


def get(name: str, folder: str | Path | None = None, progress: Progress | None = None, timeout: float = 30) -> list[Path]:
    """Fetch the official files of a data set into `folder`/`name` and return them.

    Without `folder` they go where files are looked for first: $GRAPEVINE_DATA, else the user's cache.
    Files that are there and right are not fetched again. A second call continues what an interrupted one began.
    """
    if name in BY_HAND:
        raise Mistake(f"{name} cannot be downloaded automatically: {way(name, folder)}.")
    known = ("digits", *SOURCES)  # digits needs no file
    if name not in known:
        raise Mistake(f"there is no data set {name!r}{hint(name, known)}: choose one of {', '.join(known)}.")
    target = places(folder)[0] / name
    return [fetch(file, target / file.name, progress, timeout) for file in SOURCES.get(name, ())]


def way(name: str, folder: str | Path | None = None) -> str:
    """How to get a data set: the command that fetches it, or what to do by hand."""
    return BY_HAND[name].format(folder=places(folder)[0] / name) if name in BY_HAND else f"run `grapevine data get {name}`"


def fetch(file: File, target: Path, progress: Progress | None = None, timeout: float = 30) -> Path:
    """One file: into `target`.part, continued where it stopped, checked, then renamed."""
    if target.is_file() and checksum(target, file.check) == file.check:
        return target
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        resumed = part.exists()
        download(file, part, progress, timeout)
        if checksum(part, file.check) != file.check and resumed:  # perhaps the older half was of another version
            part.unlink()
            download(file, part, progress, timeout)
        found = checksum(part, file.check)
        if found != file.check:
            part.unlink()
            raise Mistake(f"{file.url} has the checksum {found} instead of {file.check}: nothing was kept, so try again later.")
        os.replace(part, target)
    except OSError as error:
        raise Mistake(
            f"{target} cannot be written ({error.strerror or error}): choose another folder or free some space."
        ) from None
    return target


def checksum(path: Path, kind: str) -> str:
    """The file's checksum, of the same kind as `kind`."""
    name = kind.partition(":")[0]
    digest = hashlib.new(name, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"{name}:{digest.hexdigest()}"


def download(file: File, part: Path, progress: Progress | None, timeout: float) -> None:
    """Fill `part` up to the end of the file, with a few connections if need be; what came stays for the next call."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return receive(file, part, progress, timeout)
        except urllib.error.HTTPError as error:
            error.close()
            answer = f"{error.code} {error.reason}"
            raise Mistake(f"{file.url} answered {answer}: try again later, or download it by hand into {part.parent}.") from None
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, ConnectionError, TimeoutError) as error:
            if attempt == ATTEMPTS:
                reason = getattr(error, "reason", error)
                raise Mistake(f"{file.url} stopped sending ({reason}): run the command again to continue the download.") from None


def receive(file: File, part: Path, progress: Progress | None, timeout: float) -> None:
    """One connection, from where `part` ends."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(file.url, headers={"User-Agent": "grapevine", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = open_url(request, timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # it was whole already
        part.unlink()
        return receive(file, part, progress, timeout)
    with response:
        goes_on = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not goes_on:
            have = 0  # the server sends the whole file again
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with part.open("ab" if goes_on else "wb") as out:
            while block := response.read(CHUNK):
                out.write(block)
                have += len(block)
                if progress:
                    progress(have, total)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and have < total:
        raise ConnectionError(f"{have} of {total} bytes came")


def open_url(request: urllib.request.Request, timeout: float) -> http.client.HTTPResponse:
    check_url(request.full_url)
    handlers: list[urllib.request.BaseHandler] = [OnlySafeRedirects()]
    if is_loopback(request.full_url):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout)


class OnlySafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to where a first request could go too."""

    def redirect_request(self, request, file, code, message, headers, url):
        check_url(url)
        return super().redirect_request(request, file, code, message, headers, url)


def check_url(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme != "https" and not is_loopback(url):
        raise Mistake(f"{url} is not an https address, so it was not fetched: download the file by hand if you trust it.")


def is_loopback(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
