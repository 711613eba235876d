"""TensorBoard and MLflow: what they read back is what the run's files hold. MLflow is tested where it is installed."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from click.testing import CliRunner

import grapevine as gv
from grapevine.cli.main import main
from grapevine.core.errors import Mistake
from grapevine.report import writers
from grapevine.report.train import read


@pytest.fixture(scope="module")
def run(tmp_path_factory, digits):
    out = tmp_path_factory.mktemp("writers") / "run"
    split = digits.split(clients=3, labels="clients:60", seed=1)
    gv.train(gv.methods.FedAvg(epochs=1), split, rounds=2, per_round=2, model="linear", seed=1, device="cpu", latent=0, out=out)
    return out


def wanted(run) -> dict[str, list[tuple[int, float]]]:
    files = read(run)
    curves: dict[str, list[tuple[int, float]]] = {}
    for name in ("accuracy", "validation_accuracy", "bytes_up", "bytes_down", "flops", "gradient_diversity"):
        curves[name] = [(line["round"], line[name]) for line in files.history if name in line]  # no client has moved in round 0
    curves["seconds"] = [(line["round"], line["seconds"]) for line in files.times]
    for name in ("accuracy", "balanced_accuracy"):
        curves[f"result/{name}"] = [(files.result["best_round"], files.result[name])]
    return curves


def test_tensorboard_reads_what_the_run_holds(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # a second time replaces the first
        place = writers.write_tensorboard(run, tmp_path)
    assert place == tmp_path / "run" and len(list(place.iterdir())) == 1
    read_back = EventAccumulator(str(place)).Reload()
    found = {name: [(e.step, e.value) for e in read_back.Scalars(name)] for name in read_back.Tags()["scalars"]}
    assert found.keys() == wanted(run).keys()
    for name, curve in wanted(run).items():
        assert [step for step, _ in found[name]] == [step for step, _ in curve]
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in curve], rel=1e-6)
    told = read_back.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| method | fedavg |" in told and "| data.labels | clients:60 |" in told


@pytest.mark.filterwarnings("ignore")  # of MLflow about its own database
def test_mlflow_reads_what_the_run_holds(run, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    for _ in range(2):
        place = writers.write_mlflow(run, tmp_path)
    assert place == tmp_path / "mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{place}")
    (found,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert found.info.run_name == "run" and found.info.status == "FINISHED"
    assert found.data.params["method"] == "fedavg" and found.data.params["data.labels"] == "clients:60"
    for name, curve in wanted(run).items():
        history = client.get_metric_history(found.info.run_id, name)
        assert sorted((metric.step, metric.value) for metric in history) == curve


def test_a_running_run_is_written_as_far_as_it_is(run, tmp_path):
    part = shutil.copytree(run, tmp_path / "part")
    (part / "result.json").unlink()
    assert {name for _, name, _ in writers.scalars(read(part))} == {name for name in wanted(run) if "/" not in name}


def test_the_command_writes_and_says_what_is_missing(run, tmp_path, monkeypatch):
    said = CliRunner().invoke(main, ["report", str(run), "--tensorboard", str(tmp_path / "tb"), "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout) == dict(report=str(run / "report.html"), tensorboard=str(tmp_path / "tb" / "run"))
    (run / "report.html").unlink()
    for name in ("tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
        said = CliRunner().invoke(main, ["report", str(run), f"--{name}", str(tmp_path / "x")])
        assert said.exit_code == 2
        assert said.stderr == (
            f"grapevine: --{name} needs a package that is not installed: pip install 'grapevine-fl[{name}]'.\n"
        )
    assert not (tmp_path / "x").exists() and not (run / "report.html").exists()


def test_other_jobs_have_no_curves(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(dict(job="label")))
    for writer in (writers.write_tensorboard, writers.write_mlflow):
        with pytest.raises(Mistake, match=r"is not a training run \(label\) and has no curves"):
            writer(tmp_path, tmp_path / "x")
