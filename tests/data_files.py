"""What the tests of data sets share: small official files, pictures, and what holds for every data set."""

import gzip

import numpy as np
import torch
from PIL import Image

from grapevine.core.rows import Scale
from grapevine.data.datasets import Dataset

RNG = np.random.default_rng(0)


def check(data):
    """What holds for every data set."""
    for x, y in [(data.x, data.y), (data.x_test, data.y_test), (data.x_val, data.y_val)]:
        if x is not None:
            assert len(x) == len(y) and y.dtype == torch.int64 and int(y.max()) < len(data.classes) and int(y.min()) >= -1
            assert (x.dim(), x.dtype) == ((4, torch.uint8) if data.kind == "image" else (2, torch.float32))
    assert int(data.y_test.min()) >= 0
    if data.group is not None:
        assert len(data.group) == len(data.x) and len(data.group_test) == len(data.x_test)
        assert max(int(data.group.max()), int(data.group_test.max())) < len(data.group_names)
    scaled = data.scale(data.x)
    over = (0, 2, 3) if data.kind == "image" else 0
    assert torch.allclose(scaled.double().mean(over), torch.zeros(1, dtype=torch.float64), atol=1e-4)
    return data


def idx(array, kind=8):
    return b"\0\0" + bytes([kind, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


TWELVE_AND_FIVE = (np.arange(12) % 10, np.arange(5))


def write_idx(folder, labels=TWELVE_AND_FIVE):
    folder.mkdir(parents=True)
    made = []
    for part, y in zip(("train", "t10k"), labels):
        x = RNG.integers(0, 256, (len(y), 28, 28)).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(y.astype(np.uint8)))  # unpacked is fine too
        made += [x, y]
    return made


def picture(path, value, size=(90, 100)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 255 - value)).save(path, quality=100, subsampling=0)


def toy(n=1000, classes=10, unknown=0, groups=0, name="toy", y=None):
    """A table whose one feature is the row's number, with classes in turn and `unknown` rows of no class behind."""
    y = torch.cat([torch.arange(n) % classes if y is None else torch.tensor(y), torch.full((unknown,), -1)])
    x = torch.arange(len(y)).float()[:, None]
    rows = dict(group=torch.arange(len(y)) // (len(y) // groups)) if groups else {}
    names = tuple(f"site {g}" for g in range(groups))
    return Dataset(
        name, "table", x, y, x[:60], torch.arange(60) % classes, tuple(f"c{c}" for c in range(classes)),
        Scale(1.0, torch.zeros(1), torch.ones(1)), group_names=names, **rows,
    )  # fmt: skip


def images(n, shape, name="pictures", factor=1 / 255, value=None):
    x = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))
    x = x if value is None else torch.full_like(x, value)
    y = torch.arange(n) % 2
    return Dataset(name, "image", x, y, x[:4], y[:4], ("a", "b"), Scale(factor, torch.zeros(1, 1, 1), torch.ones(1, 1, 1)))


def sentence(error):
    """The message, which must be one sentence: one full stop at the end, one line."""
    message = str(error.value)
    assert message.endswith(".") and "\n" not in message and ". " not in message
    return message
