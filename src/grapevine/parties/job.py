"""The host's program once everybody is there, over any transport: what it leaves is results/, a run's folder like any other.

The label and clean jobs have no checkpoints: one that was interrupted begins again. A training job is
`run.driver`'s, and continues from its last checkpoint. If a job cannot continue, failed.json says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grapevine.core import Id, Server, Transport
from grapevine.core.errors import Later, Mistake
from grapevine.core.store import FileStore, write_atomically
from grapevine.core.version import __version__
from grapevine.data.columns import Layout
from grapevine.data.tables import sort_names
from grapevine.jobs.expected import by_class, expected_accuracy, sensitivity
from grapevine.parties.federation import Host
from grapevine.parties.rows import own_scale, plain_scale
from grapevine.run.driver import Task, begun, drive, finished
from grapevine.run.evaluate import AskClients
from grapevine.run.folder import peak_memory_mb
from grapevine.run.model import Inputs


@contextmanager
def saying_why(folder: Path) -> Iterator[None]:
    """What stops the host's program is left in failed.json, for the process that waits for it."""
    try:
        yield
    except Exception as error:
        sentence = str(error) if isinstance(error, Mistake) else f"{type(error).__name__} at the host: {error}"
        write_atomically(folder / "failed.json", json.dumps(dict(sentence=sentence, later=isinstance(error, Later))).encode())
        raise


def gone(folder: Path) -> dict[Id, str]:
    """Who left for good, and how: written by the host's own process (`host`), for the job's."""
    path = folder / "gone.json"
    return json.loads(path.read_text()) if path.exists() else {}


def run(host: Host, parties: Iterable[Id], transport: Transport) -> dict[str, Any]:
    """The whole job: what results/result.json holds."""
    results = host.folder / "results"
    (host.folder / "failed.json").unlink(missing_ok=True)
    with saying_why(host.folder):
        about = about_job(host)
        done = finished(results, about)
        if done:
            return done.result
        server = make_server(host, parties, transport)
        host.method.check(server)
        with begun(results, about, resume=True):
            return (_train if host.agreed.job == "train" else _once)(host, server, about, results)


def make_server(host: Host, parties: Iterable[Id], transport: Transport) -> Server:
    agreed = host.agreed
    per_round, rounds = (agreed.settings.get(name) for name in ("per_round", "rounds"))  # which the other jobs do not have
    return Server(host.method, parties, transport, host.models, agreed.classes, host.seed, per_round, rounds or 1, host.data,
                  agreed.quorum)  # fmt: skip


def about_job(host: Host) -> dict[str, Any]:
    """Everything that the result depends on."""
    agreed = host.agreed
    data = dict(name=agreed.name, kind="image" if len(agreed.shape) == 3 else "table", classes=list(agreed.classes),
                clients=len(host.parties), labels="the parties' own" + (", and the host's" if agreed.server else ""))  # fmt: skip
    about = dict(job=agreed.job, method=host.method.name, settings=agreed.settings, data=data, agreed=agreed.hash,
                 seed=agreed.seed, version=__version__)  # fmt: skip
    if agreed.job == "train":
        about["settings"] = host.method.settings()
        s = agreed.run_settings(host.seed)
        about |= dict(model=s.model, norm=s.norm or "default", rounds=s.rounds, per_round=s.per_round,
                      secure_average=s.secure_average, evaluate_every=s.evaluate_every, patience=s.patience)  # fmt: skip
    return about


def _train(host: Host, server: Server, about: dict[str, Any], results: Path) -> dict[str, Any]:
    """The model takes rows as the networks saw them, or scaled like the host's own; each party adds its own scaling."""
    agreed = host.agreed
    scale = plain_scale(agreed) if host.rows is None else own_scale(host.rows.x, agreed)
    inputs = Inputs(agreed.classes, scale, agreed.shape, agreed.row_layout if not agreed.embed else Layout())
    store = FileStore(results / "checkpoint" / "objects")
    assert host.models is not None
    task = Task(host.method, server, AskClients(host.method, server), agreed.run_settings(host.seed), about, host.models, inputs,
                results, store)  # fmt: skip
    return drive(task).result


def _once(host: Host, server: Server, about: dict[str, Any], results: Path) -> dict[str, Any]:
    """A job without checkpoints. The result is what the host may know."""
    began = time.perf_counter()
    state = host.method.round(server, host.method.setup(server))
    server.transport.close()
    lines = server.account.drain()
    (results / "messages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = dict(about, rounds=1, **(_labelled if host.agreed.job == "label" else _cleaned)(host, state))
    result |= dict(bytes_up=server.account.totals["up"], bytes_down=server.account.totals["down"],
                   seconds=round(time.perf_counter() - began, 3), peak_memory_mb=peak_memory_mb())  # fmt: skip
    write_atomically(results / "result.json", json.dumps(result, indent=1).encode())
    return result


def _labelled(host: Host, state: dict) -> dict[str, Any]:
    groups = list(state["groups"].values())
    got = sorted({name for group in groups for name in group["got_labels"].values()})
    # The names of classes are the parties' own under chorus: here they have numbers.
    names = [[f"class {i + 1}" for i in range(g["classes"])] if isinstance(g["classes"], int) else list(g["classes"].values())
             for g in groups]  # fmt: skip
    recall = by_class(groups, names)
    return dict(data=dict(classes=sort_names({name for of_group in names for name in of_group})), labelled=got,
                expected=expected_accuracy(groups), recall=recall, two=sensitivity(recall),
                lost=sorted(set(host.parties) - set(got)))  # fmt: skip


def _cleaned(host: Host, state: dict) -> dict[str, Any]:
    answered = sorted(state["answered"].values())
    lost = sorted(set(host.parties) - set(answered))
    return dict(expected=state["expected"], told=state["counts"], cleaned=answered, lost=lost, per_client=[], measured=None,
                accuracy=None, accuracy_given=None, warnings=[], command="")  # fmt: skip
