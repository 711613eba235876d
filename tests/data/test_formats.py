"""Every official format on tiny files written here in that format, and the prepared sets if present."""

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import RNG, check, idx, picture, write_idx
from scipy.io import savemat
from sklearn.datasets import load_digits

from grapevine.core.errors import Mistake
from grapevine.data import catalogue, formats
from grapevine.data.catalogue import load
from grapevine.data.datasets import hold_out


def test_digits_are_scikit_learns_in_order():
    data, bunch = check(load("digits")), load_digits()
    held = hold_out(bunch.target)
    np.testing.assert_array_equal(data.x[:, 0].numpy(), bunch.images[~held])
    np.testing.assert_array_equal(data.y_test.numpy(), bunch.target[held])
    assert data.scale.factor == 1 / 16 and len(data.x) == 1438 and data.classes == tuple("0123456789")
    counts = np.bincount(bunch.target)
    np.testing.assert_array_equal(torch.bincount(data.y_test).numpy(), (0.2 * counts + 0.5).astype(int))


@pytest.mark.parametrize(
    "name, folder", [("fashion-mnist", "fashion-mnist"), ("fashion-mnist", "FashionMNIST/raw"), ("mnist", "mnist")]
)
def test_idx(tmp_path, name, folder):
    x, y, x_test, y_test = write_idx(tmp_path / folder)
    data = check(load(name, tmp_path))
    np.testing.assert_array_equal(data.x[:, 0], x)
    np.testing.assert_array_equal(data.y, y)
    np.testing.assert_array_equal(data.x_test[:, 0], x_test)
    np.testing.assert_array_equal(data.y_test, y_test)
    assert data.group is None and data.name == name
    other = "mnist" if name == "fashion-mnist" else "fashion-mnist"
    with pytest.raises(Mistake, match="no files"):
        load(other, tmp_path)


def test_mnist_with_the_writers_of_qmnist(tmp_path):
    _, y, _, y_test = write_idx(tmp_path / "mnist")
    for part, labels, writers in [("train", y, [30, 40, 40]), ("test", np.append(y_test, 7), [50, 50, 60])]:
        rows = np.zeros((len(labels), 8), ">i4")
        rows[:, 0], rows[:, 2] = labels, np.resize(writers, len(labels))
        (tmp_path / "mnist" / f"qmnist-{part}-labels-idx2-int.gz").write_bytes(gzip.compress(idx(rows, 12)))
    data = check(load("mnist", tmp_path))
    assert data.group_names == ("writer 30", "writer 40", "writer 50", "writer 60")
    assert data.group.tolist() == [0, 1, 1] * 4 and data.group_test.tolist() == [2, 2, 3, 2, 2]
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(y[::-1].astype(np.uint8).copy()))
    with pytest.raises(Mistake, match="does not belong"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    "damage", [b"", b"\0\0\x08\x03", idx(np.zeros((3, 28, 28), np.uint8))[:-1], idx(np.zeros((2, 2), np.uint8))]
)
def test_damaged_idx(tmp_path, damage):
    write_idx(tmp_path / "mnist")
    for content in (gzip.compress(damage), damage):
        (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(content)
        with pytest.raises(Mistake, match="train-images-idx3-ubyte.gz is damaged"):
            load("mnist", tmp_path)


def tar(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def cifar(n, labels):
    x = RNG.integers(0, 256, (n, 3, 32, 32)).astype(np.uint8)
    y = RNG.integers(0, 10, (n, labels)).astype(np.uint8)
    return x, y, np.concatenate([y, x.reshape(n, -1)], axis=1).tobytes()


def unpack(path, folder):
    """As a user does by hand."""
    with tarfile.open(path) as archive:
        for member in archive:
            target = folder / member.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(archive.extractfile(member).read())
    path.unlink()


@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar10_binary(tmp_path, unpacked):
    batches = [cifar(4, 1) for _ in range(6)]
    file_names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    files = {f"cifar-10-batches-bin/{name}": batch[2] for name, batch in zip(file_names, batches)}
    tar(tmp_path / "cifar-10-binary.tar.gz", dict(reversed(files.items())))
    if unpacked:
        unpack(tmp_path / "cifar-10-binary.tar.gz", tmp_path)
    data = check(load("cifar10", tmp_path))
    np.testing.assert_array_equal(data.x, np.concatenate([x for x, _, _ in batches[:5]]))
    np.testing.assert_array_equal(data.y, np.concatenate([y[:, 0] for _, y, _ in batches[:5]]))
    np.testing.assert_array_equal(data.x_test, batches[5][0])
    assert data.classes[3] == "cat" and data.x.is_contiguous(memory_format=torch.channels_last)


def test_cifar100_binary_has_fine_labels(tmp_path):
    (x, y, train), (_, y_test, test) = cifar(7, 2), cifar(3, 2)
    fine = "".join(f"class{i}\n" for i in range(10)).encode()
    (tmp_path / "cifar100").mkdir()
    files = {"cifar-100-binary/train.bin": train, "x/test.bin": test, "cifar-100-binary/fine_label_names.txt": fine}
    tar(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", files)
    data = check(load("cifar100", tmp_path))
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y[:, 1])
    np.testing.assert_array_equal(data.y_test, y_test[:, 1])
    assert data.classes == tuple(f"class{i}" for i in range(10))


def test_archives_are_read_in_memory(tmp_path):
    """Paths that climb out, links in place of files, missing members, cut-off archives: nothing is written, one sentence said."""
    data = tmp_path / "data"
    data.mkdir()
    path = data / "cifar-100-binary.tar.gz"
    tar(path, {"../../train.bin": cifar(2, 2)[2], "/abs/test.bin": cifar(2, 2)[2], "fine_label_names.txt": b"a\n" * 10})
    before = sorted(tmp_path.rglob("*"))
    check(load("cifar100", data))
    assert sorted(tmp_path.rglob("*")) == before
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("train.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(Mistake, match="lacks fine_label_names.txt, test.bin, train.bin"):
        load("cifar100", data)
    tar(path, {"train.bin": cifar(2, 2)[2][:-1], "test.bin": cifar(2, 2)[2], "fine_label_names.txt": b"a\n" * 10})
    with pytest.raises(Mistake, match="damaged"):
        load("cifar100", data)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(Mistake, match="damaged"):
        load("cifar100", data)


def test_the_pickled_cifar_is_not_read(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"pickles")
    with pytest.raises(Mistake, match="cifar-10-python.tar.gz there holds pickles.*grapevine data get cifar10"):
        load("cifar10", tmp_path)


def test_svhn(tmp_path):
    made = {}
    for part, n in (("train", 6), ("test", 3)):
        x = RNG.integers(0, 256, (32, 32, 3, n)).astype(np.uint8)
        made[part] = x
        savemat(tmp_path / f"{part}_32x32.mat", {"X": x, "y": np.array([[10, 1, 9, 2, 10, 3][:n]], np.uint8).T})
    data = check(load("svhn", tmp_path))
    assert data.y.tolist() == [0, 1, 9, 2, 0, 3] and data.y_test.tolist() == [0, 1, 9]
    np.testing.assert_array_equal(data.x[4, 2], made["train"][:, :, 2, 4])
    for bad in ({"X": made["test"]}, {"X": made["test"], "y": np.zeros((3, 1))}, {"X": np.ones((2, 2)), "y": np.ones((2, 1))}):
        savemat(tmp_path / "test_32x32.mat", bad)
        with pytest.raises(Mistake, match="test_32x32.mat is damaged"):
            load("svhn", tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(b"no matlab")
    with pytest.raises(Mistake, match="test_32x32.mat is damaged"):
        load("svhn", tmp_path)


def stl10(n):
    """Images, and their bytes as STL-10 stores them: channel by channel, in each column by column."""
    x = RNG.integers(0, 256, (n, 3, 96, 96)).astype(np.uint8)
    return x, x.transpose(0, 1, 3, 2).tobytes()


@pytest.mark.parametrize("unpacked", [False, True])
def test_stl10_with_its_unlabelled_part(tmp_path, unpacked):
    (x, train), (x_test, test), (x_free, free) = stl10(3), stl10(2), stl10(4)
    files = {"test_X.bin": test, "test_y.bin": b"\x01\x02", "train_X.bin": train, "train_y.bin": b"\x0a\x01\x03"}
    files |= {"unlabeled_X.bin": free, "class_names.txt": b"airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n"}
    tar(tmp_path / "stl10_binary.tar.gz", {f"stl10_binary/{name}": data for name, data in files.items()})
    if unpacked:
        unpack(tmp_path / "stl10_binary.tar.gz", tmp_path)
    data = check(load("stl10", tmp_path))
    assert data.y.tolist() == [9, 0, 2, -1, -1, -1, -1] and data.y_test.tolist() == [0, 1] and data.classes[9] == "truck"
    np.testing.assert_array_equal(data.x, np.concatenate([x, x_free]))
    np.testing.assert_array_equal(data.x_test, x_test)


def test_stl10_is_joined_from_parts_in_order():
    parts = [torch.full((n, 2, 2, 3), n, dtype=torch.uint8) for n in (1, 2, 3)]
    assert formats.join(parts)[:, 0, 0, 0].tolist() == [1, 2, 2, 3, 3, 3]


def mini_imagenet(folder, parts):
    for part, rows in parts.items():
        (folder / f"{part}.csv").write_text("filename,label\n" + "".join(f"{file},{label}\n" for file, label in rows))
        for i, (file, _) in enumerate(rows):
            picture(folder / "images" / file, 10 * i)


def test_mini_imagenet_few_shot_split_is_joined(tmp_path):
    """The classes of the three lists differ, so a sixth of each class is held out from all."""
    parts = {p: [(f"{c}{i:08}.jpg", c) for c in cs for i in range(12)] for p, cs in dict(train="ab", val="c", test="d").items()}
    mini_imagenet(tmp_path, parts)
    data = check(load("mini-imagenet", tmp_path))
    assert data.x.shape == (40, 3, 84, 84) and data.classes == ("a", "b", "c", "d")
    assert torch.bincount(data.y).tolist() == [10] * 4 and torch.bincount(data.y_test).tolist() == [2] * 4
    red = torch.cat([data.x, data.x_test])[:, 0].float().mean((1, 2))
    assert sorted((red / 10).round().int().tolist()) == sorted([*range(24), *range(12), *range(12)])


def test_mini_imagenet_split_with_common_classes_is_taken_as_it_is(tmp_path):
    parts = {"train": [("a1.jpg", "a"), ("b1.jpg", "b")], "val": [("a2.jpg", "a")], "test": [("b2.jpg", "b")]}
    mini_imagenet(tmp_path, parts)
    (tmp_path / "images" / "b").mkdir()
    (tmp_path / "images" / "b2.jpg").rename(tmp_path / "images" / "b" / "b2.jpg")  # a folder per class is fine too
    data = check(load("mini-imagenet", tmp_path, size=8))
    assert data.y.tolist() == [0, 1] and data.y_val.tolist() == [0] and data.y_test.tolist() == [1] and data.x.shape[2:] == (8, 8)
    (tmp_path / "images" / "a2.jpg").unlink()
    with pytest.raises(Mistake, match="lacks the image 'a2.jpg'"):
        load("mini-imagenet", tmp_path)


def test_a_list_of_images_cannot_point_outside(tmp_path):
    picture(tmp_path / "secret.jpg", 1)
    (tmp_path / "images").mkdir()
    with pytest.raises(Mistake, match="lacks the image"):
        formats.image_path(tmp_path / "images", "../secret.jpg", "a")


@pytest.mark.parametrize("packed", [False, True])
def test_fed_isic2019(tmp_path, packed):
    onehot = "MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"
    lines = {"ISIC_1": "0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0", "ISIC_2": "0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,0.0"}
    lines |= {"ISIC_3": "1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0", "ISIC_no_center": "1.0" + ",0.0" * 8}
    folder = tmp_path / "fed-isic2019"
    folder.mkdir()
    truth = f"image,{onehot}\n" + "".join(f"{name},{row}\n" for name, row in lines.items())
    (folder / "ISIC_2019_Training_GroundTruth.csv").write_text(truth)
    split = [("ISIC_2", 7, 4, "train"), ("ISIC_3", 0, 0, "test"), ("ISIC_1", 1, 5, "train")]
    rows = "".join(f"{name},{lines[name]},{target},{center},{fold},{fold}_{center}\n" for name, target, center, fold in split)
    (folder / "train_test_split").write_text(f"image,{onehot},target,center,fold,fold2\n{rows}")
    for i, name in enumerate(["ISIC_1", "ISIC_2", "ISIC_3"], 1):
        picture(folder / "ISIC_2019_Training_Input" / f"{name}.jpg", 50 * i, (600 + 10 * i, 450))
    if packed:
        with zipfile.ZipFile(folder / "ISIC_2019_Training_Input.zip", "w") as archive:
            for path in sorted((folder / "ISIC_2019_Training_Input").iterdir()):
                archive.write(path, f"ISIC_2019_Training_Input/{path.name}")
                path.unlink()
        (folder / "ISIC_2019_Training_Input").rmdir()
    data = check(load("fed-isic2019", tmp_path, size=16))
    assert data.y.tolist() == [7, 1] and data.y_test.tolist() == [0] and data.x.shape == (2, 3, 16, 16)
    assert data.group.tolist() == [4, 5] and data.group_test.tolist() == [0] and data.group_names[4] == "MSK"
    np.testing.assert_allclose(data.x[:, 0].float().mean((1, 2)), [100, 50], atol=2)
    (folder / "ISIC_2019_Training_GroundTruth.csv").write_text(truth.replace("ISIC_3,", "ISIC_4,"))
    with pytest.raises(Mistake, match="no line for image 'ISIC_3'"):
        load("fed-isic2019", tmp_path)


# The prepared files, where present

SHARED = Path(os.environ.get("GRAPEVINE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
SIZES = {
    "fashion-mnist": ((60000, 1, 28, 28), 10000, 10, 0),
    "mnist": ((60000, 1, 28, 28), 10000, 10, 539 + 297),
    "cifar10": ((20000, 3, 32, 32), 5000, 10, 0),
    "cifar10-lite0": ((20000, 256), 5000, 10, 0),
    "femnist": ((38289, 1, 28, 28), 9570, 62, 279),
    "derma": ((8208, 3, 28, 28), 1232, 7, 4),
}


@pytest.mark.parametrize("name", SIZES)
def test_prepared_sets(name):
    if catalogue.find(name, SHARED) is None:
        pytest.skip(f"no files of {name} in {SHARED}")
    data = load(name, SHARED)
    shape, tests, classes, groups = SIZES[name]
    if name == "cifar10" and len(data.x) == 50000:
        shape, tests = (50000, 3, 32, 32), 10000
    assert tuple(data.x.shape) == shape and len(data.x_test) == tests and len(data.classes) == classes
    assert len(data.group_names) == groups and set(data.y.tolist()) == set(range(classes))
    if name == "femnist":  # a fifth of each writer
        whole = torch.bincount(data.group) + torch.bincount(data.group_test)
        assert (torch.bincount(data.group_test) == (0.2 * whole + 0.5).long()).all() and int(whole.min()) >= 80
    if name == "derma":
        assert len(data.x_val) == 10015 - 8208 - 1232
    if name == "mnist":
        assert not set(data.group.tolist()) & set(data.group_test.tolist())
