"""Images: folders with one sub-folder per class or a `labels.csv`, and arrays of pixels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from grapevine.core.errors import Mistake
from grapevine.core.tensors import is_tensor, torch
from grapevine.data.sheets import read_text_columns
from grapevine.data.tables import label_name

if TYPE_CHECKING:
    from torch import Tensor

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")

Source = tuple[str, Callable[[], IO[bytes]]]  # an image's name for people, and what opens its file


@dataclass(frozen=True)
class Images:
    """Images of one size, with their paths inside the folder as ids. `other` as in `Table`."""

    ids: list[str]
    x: Tensor  # (n, c, h, w) uint8
    labels: list[str | None]
    other: dict[str, list[str | None]]

    def __len__(self) -> int:
        return len(self.ids)


def read_images(folder: str | Path, size: int | None = None, other: Sequence[str] = ()) -> Images:
    """Read a folder of images: one sub-folder per class, or a `labels.csv` with the columns `file` and `label`.

    Images beside the sub-folders, or in one named `unlabelled`, have no label. Ids are paths inside the folder. With `size` the
    shorter side is brought to it and a centred square cut out; without it all images must be of one size. `other` names more
    columns of `labels.csv`.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise Mistake(f"there is no folder {folder}: check the path.")
    inside = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    paths = sorted((p.relative_to(folder) for p in inside if p.suffix.lower() in PICTURES), key=lambda p: p.as_posix())
    if not paths:
        raise Mistake(f"there are no images in {folder}: it should hold {', '.join(PICTURES)} files.")
    ids = [p.as_posix() for p in paths]
    if (folder / "labels.csv").exists():
        labels, more = read_image_labels(folder / "labels.csv", ids, other)
    elif other:
        raise Mistake(
            f"{folder} has no labels.csv for the column {other[0]!r}: add one with the columns file, label, {other[0]}."
        )
    else:
        labels = [None if len(p.parts) == 1 or p.parts[0] == "unlabelled" else label_name(p.parts[0]) for p in paths]
        more = {}
    x = stack_images([image_file(folder / p) for p in paths], size)
    return Images(ids, x, labels, more)


def read_image_labels(path: Path, ids: list[str], other: Sequence[str]) -> tuple[list[str | None], dict[str, list[str | None]]]:
    rows = read_text_columns(path, ("file", "label", *other))
    at = {name: row for row, name in enumerate(rows["file"])}
    if len(at) < len(rows["file"]):
        twice = next(name for name in at if rows["file"].count(name) > 1)
        raise Mistake(f"{path} has two lines for file {twice!r}: remove one.")
    extra = set(at) - set(ids)
    if extra:
        raise Mistake(f"{path} names {min(extra)!r}, which is not an image in {path.parent}: give its path inside the folder.")
    pick = [at.get(name) for name in ids]
    column = {name: [None if row is None else label_name(rows[name][row]) for row in pick] for name in ("label", *other)}
    return column["label"], {name: column[name] for name in other}


def image_file(path: Path) -> Source:
    return str(path), lambda: path.open("rb")


def stack_images(sources: Sequence[Source], size: int | None = None) -> Tensor:
    """Decode images into one uint8 tensor (n, c, h, w), grey if all are grey, else RGB."""
    x: Tensor | None = None
    for i, (name, opened) in enumerate(sources):
        pixels = np.asarray(decode(name, opened, size))
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        if x is None:  # laid out (n, h, w, c): the order in which networks read colour images fastest
            x, first = torch.empty(len(sources), *pixels.shape, dtype=torch.uint8), name
        if pixels.shape[:2] != tuple(x.shape[1:3]):
            h, w = x.shape[1:3]
            own = f"{pixels.shape[1]}×{pixels.shape[0]}"
            raise Mistake(f"{name} is {own} pixels and {first} is {w}×{h}: resize all images to one size; to "
                          f"train or compare, --size {min(w, h)} does it.")  # fmt: skip
        if pixels.shape[2] > x.shape[3]:  # the first colour image after grey ones
            x = x.repeat(1, 1, 1, 3)
        x[i] = torch.from_numpy(pixels.copy()).expand(-1, -1, x.shape[3])
    if x is None:
        raise ValueError("no images")
    return x.permute(0, 3, 1, 2)


def decode(name: str, opened: Callable[[], IO[bytes]], size: int | None) -> Image.Image:
    try:
        with opened() as file, Image.open(file) as picture:
            if picture.mode.startswith(("I", "F")):
                raise Mistake(f"{name} has more than 8 bits per channel: convert it to 8 bits.")
            if size:
                picture.draft("RGB", (size, size))  # a JPEG then decodes straight to a smaller image
            turned = ImageOps.exif_transpose(picture)
            plain = turned.convert("L" if turned.mode in ("1", "L") else "RGB")
            return ImageOps.fit(plain, (size, size), Image.Resampling.BILINEAR) if size else plain
    except Mistake:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        why = "it is in no known format" if isinstance(error, UnidentifiedImageError) else error
        raise Mistake(f"{name} cannot be read as an image ({why}): repair it or remove it.") from None


def images(x: np.ndarray) -> Tensor:
    """(n, h, w) or (n, h, w, c) as a view (n, c, h, w), uint8: the order in memory stays, networks read it fastest."""
    made = torch.from_numpy(np.ascontiguousarray(x, dtype=np.uint8))
    return made[:, None] if made.dim() == 3 else made.permute(0, 3, 1, 2)


def as_images(x: Any, where: str, top: int = 255) -> Tensor | None:
    """(n, h, w), (n, h, w, c) or (n, c, h, w) as uint8 images (n, c, h, w); None if the shape is no image's.

    Whole numbers from 0 to 255 are pixels, fractions from 0 to 1 are shares of `top`. Any other range is refused: nobody
    could tell what it means.
    """
    x = x.numpy() if is_tensor(x) else np.asarray(x)
    if x.ndim not in (3, 4) or 0 in x.shape or x.dtype.kind not in "biuf":
        return None
    if x.ndim == 4 and x.shape[3] not in (1, 3):
        if x.shape[1] not in (1, 3):
            return None
        x = x.transpose(0, 2, 3, 1)
    if x.dtype == np.uint8:
        return images(x)
    low, high = x.min(), x.max()
    if x.dtype.kind in "bf" and 0 <= low and high <= 1:
        return images(np.rint(x.astype(np.float64) * top))
    if 0 <= low and high <= 255 and not (x % 1).any():
        return images(x)
    raise Mistake(f"{where}: X has the shape of images and values from {low:g} to {high:g}: give pixels as whole numbers from 0 "
                  "to 255 or as fractions from 0 to 1, or reshape a table to (rows, features).")  # fmt: skip
