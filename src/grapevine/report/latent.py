"""The latent space of a run: test rows in the plane, by t-SNE of the features that the run kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from grapevine.core.errors import Mistake
from grapevine.core.words import many
from grapevine.report.charts.kinds import scatter
from grapevine.report.files import Files
from grapevine.report.parts import Chart


def charts(files: Files) -> list[Chart]:
    """Test rows in the plane by their place in the latent space: at the end, and at the rounds kept before."""
    paths = sorted((files.folder / "latent").glob("round-*.safetensors")) + [files.folder / "latent" / "kept.safetensors"]
    kept = [_tensors(path) for path in paths if path.is_file()]
    classes, flat = [*map(str, files.data["classes"]), "unknown"], None  # −1, the last, is unknown
    drawn = []
    for number, (round, tensors) in enumerate(kept):
        if len(tensors["z"]) < 8 or not all(map(math.isfinite, tensors["z"].sum(1))):
            continue
        flat = plane(tensors["z"], flat)
        last = number == len(kept) - 1
        rows = zip(flat[:, 0], flat[:, 1], tensors["y"], tensors["guess"])
        placed = [(float(x), float(y), classes[true], classes[taken]) for x, y, true, taken in rows]
        note = f"{many(len(placed), 'test row')} by t-SNE, coloured by their true class; large dots are the classes' centroids. "
        note += "Choose a class to see it alone, or to see what is taken for it."
        title = f"Latent space, round {round}{' (kept)' if last and files.result else ''}"
        about: dict[str, Any] = dict(note=note if last else "", wide=len(kept) == 1)
        drawn.append(scatter(title, placed, classes, "Taken for", centroids=True, menus=last, **about))
    return drawn


def _tensors(path: Path) -> tuple[str, dict[str, Any]]:
    """Round and arrays of a kept latent space."""
    try:
        with safe_open(path, "np") as file:
            return file.metadata()["round"], {name: file.get_tensor(name) for name in ("z", "y", "guess")}
    except (SafetensorError, TypeError) as error:
        raise Mistake(f"{path} is not readable ({error}); delete the folder latent, or repeat the run.") from None


def plane(z: Any, before: Any) -> Any:
    """t-SNE that starts from the picture before, so that one can be compared with the next. Repeats on one machine."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    start = "pca" if before is None else (before / before.std(0).max() * 1e-4).astype("float32")
    with threadpool_limits(limits=1):
        return TSNE(2, perplexity=min(30.0, len(z) / 4), init=start, random_state=0).fit_transform(z)
