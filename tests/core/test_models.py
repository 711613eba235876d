"""A folder without a model says why it has none; a damaged file is one sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from grapevine.core.errors import Mistake
from grapevine.core.models import MODEL, model_file, read_tensors
from grapevine.jobs import predict

FOLDERS = [
    ({}, "it is not the folder of a finished `grapevine train` run"),
    ({"settings.json": {}, "compare.json": {}, "runs/a-seed0/model.safetensors": {}}, "name one of its runs, as in .*a-seed0"),
    ({"settings.json": dict(method="fedavg")}, "the run has not finished: .* --resume"),
    ({"result.json": dict(job="label", method="xclp")}, "labels by xclp leave no model for later rows"),
    ({"result.json": dict(job="label", method="chorus", settings=dict(groups=2))}, "labels in groups leave no model"),
    ({"result.json": dict(job="label", method="chorus"), "heads.safetensors": {}}, "its models only label later rows"),
    ({"result.json": dict(job="label", method="chorus")}, "name a party's own folder, or label again"),
    ({"result.json": dict(job="clean", method="mp-ssfl")}, "a clean job leaves none: train on"),
    ({"result.json": dict(job="train", method="alone"), "settings.json": {}}, "alone leaves its models at the clients"),
]


@pytest.mark.parametrize(("files", "why"), FOLDERS, ids=[why for _, why in FOLDERS])
def test_a_folder_without_a_model_says_why(tmp_path, files, why):
    for name, held in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(held or dict(x=1)))
    with pytest.raises(Mistake, match=f"holds no model.safetensors, because .*{why}"):
        model_file(tmp_path)


def test_a_folder_that_is_not_there_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    for name, why in (("nowhere", "there is no such folder"), ("file", "there is no folder of that name but a file")):
        with pytest.raises(Mistake, match=why):
            model_file(tmp_path / name)


@pytest.mark.parametrize("name", [MODEL, predict.HEADS])
@pytest.mark.parametrize("left", [0, 4, 100, -3])
def test_a_truncated_model_is_one_sentence(tmp_path, name, left):
    """Safetensors' own error reached the user."""
    save_file(dict(a=np.zeros(100)), tmp_path / name, {"grapevine": "{}"})
    whole = (tmp_path / name).read_bytes()
    assert read_tensors(tmp_path / name, "np")[1]["a"].shape == (100,)
    (tmp_path / name).write_bytes(whole[:left])
    with pytest.raises(Mistake, match=f"{name} is damaged or was not written by Grapevine: copy it again, or repeat the job"):
        predict.load(str(tmp_path))
