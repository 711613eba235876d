"""The Dockerfile's steps without Docker: an empty folder, a fresh environment, and the command at the end, not as root.

    python deploy/check_image.py [--keep FOLDER]

COPY and RUN of the first stage are carried out as they stand, with /opt/grapevine and /build inside the folder, from the files
that .dockerignore lets through. The base image, `useradd` and the layers themselves are not looked at: that takes Docker.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent.parent


def steps(stage: int) -> list[tuple[str, str]]:
    """The instructions of a stage, with lines that go on joined."""
    text = re.sub(r"\\\n\s*", " ", (HERE / "Dockerfile").read_text())
    lines = [line.partition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    starts = [i for i, (word, _, _) in enumerate(lines) if word == "FROM"] + [len(lines)]
    return [(word, rest) for word, _, rest in lines[starts[stage] + 1 : starts[stage + 1]]]


def allowed(path: str) -> bool:
    """Whether .dockerignore, which ignores all but what it names, lets a path through."""
    names = [line[1:] for line in (HERE / ".dockerignore").read_text().split() if line.startswith("!")]
    return any(path == name or path.startswith(f"{name}/") for name in names)


def copy(words: list[str], to: Path) -> None:
    *sources, _ = words
    for source in sources:
        if not allowed(source):
            raise SystemExit(f"Dockerfile copies {source}, which .dockerignore leaves out.")
        if (HERE / source).is_dir():
            shutil.copytree(HERE / source, to / source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(HERE / source, to / source)


def build(folder: Path) -> Path:
    places = {"/opt/grapevine": str(folder / "opt"), "/build": str(folder / "build")}
    (folder / "build").mkdir(parents=True)
    for word, rest in steps(0):
        if word == "COPY":
            copy(shlex.split(rest), folder / "build")
        elif word == "RUN":
            for place, here in places.items():
                rest = rest.replace(place, here)
            print(f"RUN {rest}", flush=True)
            rest = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", rest)
            subprocess.run(rest, shell=True, check=True, cwd=folder / "build", env=dict(os.environ, PIP_NO_CACHE_DIR="1"))
    return folder / "opt"


def try_out(root: Path, folder: Path) -> None:
    """The command as an ordinary user, with nothing to write to but a home and a temporary folder."""
    home = folder / "home"
    home.mkdir()
    words = [str(root / "bin" / "grapevine")]
    if os.getuid() == 0:
        os.chown(home, 10001, 10001)
        folder.chmod(0o711)
        words = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs", *words]
    env = dict(HOME=str(home), TMPDIR=str(home), NUMBA_CACHE_DIR=str(home / "numba"), PATH=os.environ["PATH"])
    subprocess.run([*words, "doctor"], check=True, env=env, cwd=home)
    subprocess.run([*words, "demo", "--out", str(home / "demo")], check=True, env=env, cwd=home)
    if (root / "bin" / "pip").exists():
        raise SystemExit("pip is left in the image.")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--keep", type=Path, help="A new folder that is not deleted afterwards.")
    said = words.parse_args()
    folder = said.keep.resolve() if said.keep else Path(tempfile.mkdtemp(prefix="grapevine-image-"))
    try:
        root = build(folder)
        try_out(root, folder)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        print(f"The steps work. /opt/grapevine takes {size / 1e6:.0f} MB; not looked at: the base image and Docker's own part.")
    finally:
        if not said.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
