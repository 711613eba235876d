"""Comparisons as tests have them: the command with its usual flags, and comparisons whose runs are written instead of run."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from click.testing import CliRunner

from grapevine.cli.main import main
from grapevine.jobs import compare as comparison
from grapevine.jobs import compare_plan
from grapevine.jobs.settings import CompareSettings
from grapevine.report import compare as compare_page

FLAGS = "--clients 4 --per-round 2 --labels clients:40 --rounds 2 --model linear".split()


def grapevine(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def flat(text):
    return " ".join(text.split())


def made_up(out: Path, methods, accuracy, vary=None, seeds=3, leave_out=(), **flags):
    """A comparison whose runs are written here instead of run: `accuracy(label, cell values, seed)`."""
    going = begun(out, methods, vary=vary, seeds=seeds, **flags)
    for job in going.jobs:
        if (job.label, job.seed) in leave_out:
            continue
        run, final = out / job.folder, accuracy(job.label, going.data["cells"][job.cell]["values"], job.seed)
        run.mkdir(parents=True)
        lines = [dict(round=r, accuracy=final * r / 4, bytes_up=100 * r, bytes_down=300 * r) for r in range(5)]
        (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = dict(
            rounds=4, accuracy=final, accuracy_last=final, balanced_accuracy=final / 2, best_round=4, bytes_up=400,
            bytes_down=1200, flops=10**9, seconds=2.0, pseudo_label_accuracy=None, peak_memory_mb=1,
            test_rows=359, validation_rows=0 if job.label == "alone" else 144,
        )  # fmt: skip
        (run / "result.json").write_text(json.dumps(result))
    return going


def begun(out, methods, **settings):
    """A comparison before its first run."""
    s = CompareSettings(**dict(data="digits", clients=4, labels="clients:40", rounds=4, per_round=2, workers=1) | settings)
    out.mkdir()
    pages = comparison.Pages(compare_page.write)
    return comparison.Going(compare_plan.Plan.make(methods, s, out), "grapevine compare …", pages)


def tabled(going):
    """Its table, without a run."""
    for job in going.jobs:
        job.state = "finished" if (going.out / job.folder / "result.json").exists() else "waiting"
    going.write("finished")
    return comparison.load(going.out)


LEVEL = {"alone": 0.4, "fedavg": 0.6, "fedprox": 0.7, "fedsem": 0.8, "supervised": 0.9}


def noisy(label, values, seed):
    return LEVEL[label] + random.Random(f"{label}{seed}").uniform(-0.05, 0.05)


def headline(made):
    return re.search(r"<h1[^>]*>(.*?)</h1>", (made.out / "report.html").read_text(), re.S)[1]
