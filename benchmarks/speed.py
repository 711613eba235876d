"""docs/speed.md from the benchmarks' JSON, every number of it: `python benchmarks/speed.py`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from machine import markdown
from machine import text as number
from matplotlib.figure import Figure

from grapevine.report.charts.marks import LIGHT

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGE = DOCS / "speed.md"
HEAD = """# How fast

`python benchmarks/speed.py` makes this page from the JSON files in `benchmarks/`, and `make bench` writes those. Compare ratios
within one run: seconds depend on the machine and on its load, which stands below every table.

In short:

"""
POWERS = "CPU-seconds grow with the size to the power of this exponent (in brackets: between the two largest sizes)."
COLOURED = ("plain", "psm", "mlwe", "paillier", "ot", "propagation alone", "cryptography")  # the same colour in every plot
INK, SOFT, EDGE = (LIGHT[name] for name in ("ink", "soft", "edge"))
MARKERS = "os^DP"
Panels = dict[str, dict[str, dict[int, float]]]  # by what is varied, by who is measured: seconds at each size


def read(name: str) -> dict[str, Any] | None:
    path = HERE / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def ran(name: str, found: dict) -> str:
    """The command that made a file, and what the file says of when it ran and beside what."""
    machine = found["machine"]
    words = dict(commit="commit {}", date="{}", cores="{} cores", load="load {}")
    return ", ".join(
        [f"`python benchmarks/{name}.py`", *(word.format(machine[key]) for key, word in words.items() if key in machine)]
    )


# ---------------------------------------------------------------- one screen


def conclusions() -> str:
    """What the files say, a sentence or two each."""
    tell = dict(simulator=_simulator, streaming=_streaming, large_graph=_large, label_scale=_jobs, label_spreading=_spreading,
                xclp_round=_xclp, against=_against)  # fmt: skip
    return "".join(f"- {each(found)}\n" for name, each in tell.items() if (found := read(name)))


def _simulator(found: dict) -> str:
    against = found.get("against_two_workers", {})
    fastest = min(against, key=lambda name: against[name]["steady"])
    return (f"**Simulation.** One worker takes {found['one_worker_against_bare_loop']:.2f} times as long as a bare PyTorch loop. "
            f"The fastest other simulator, {fastest}, takes {against[fastest]['steady']:.2f} times as long as our two workers "
            f"for a round, and {against[fastest]['whole_process']:.2f} times with start-up.")  # fmt: skip


def _streaming(found: dict) -> str:
    few, many, population = found["round"][0], found["round"][-1], found["population"]
    return (f"**Memory.** A round of {many['per_round']:,} clients needs {found['times_the_memory']:.2f} times the memory of a "
            f"round of {few['per_round']}. A population of {population['clients']:,} clients starts and runs its first round in "
            f"{population['cpu_seconds']:.1f} CPU-seconds and {population['peak_mb'] / 1000:.2f} GB.")  # fmt: skip


def _large(found: dict) -> str:
    largest = max((each for each in found["rows"] if each["way"] == "approximate"), key=lambda each: each["n"])
    return (f"**Propagation.** Labels spread over {largest['n']:,} points in {largest['cpu_seconds']:.0f} CPU-seconds and "
            f"{largest['added_mb'] / 1000:.1f} GB, with {largest['recall']:.0%} of the true neighbours.")  # fmt: skip


def _jobs(found: dict) -> str:
    largest = max(found["rows"], key=lambda each: each["parties"] * each["rows"])
    return (f"**Label job.** {largest['parties']:,} parties with {largest['rows']:,} rows each take {largest['cpu_seconds']:.0f} "
            f"CPU-seconds and {(largest['added_mb'] + largest['base_mb']) / 1000:.1f} GB in one process with "
            f"`{largest['secure']}`.")  # fmt: skip


def _spreading(found: dict) -> str:
    times = [each["times_as_fast"] for each in found["compared"]]
    return f"**scikit-learn.** Exact propagation is {min(times):.1f} to {max(times):.1f} times as fast as its `LabelSpreading`."


def _xclp(found: dict) -> str:
    plain = [each for each in found["whole"] if not each["expected_accuracy"]]
    seconds = ", ".join(f"`{each['protocol']}` {each['cpu_seconds']:.1f}" for each in plain)
    return f"**Cryptography.** A whole round of XCLP with 5 parties × 500 rows costs all parties together: {seconds} CPU-seconds."


def _against(found: dict) -> str:
    ratios = "; ".join(f"{each['what']}: {each['ratio']:.2f}" for each in found["rows"])
    return f"`mlwe` takes this share of the CPU time it took at commit {found['commit']}: {ratios}."


# ---------------------------------------------------------------- the simulator


def simulator(found: dict) -> str:
    seconds, against = found["seconds_per_round"], found.get("against_two_workers", {})
    rows = []
    for name, each in seconds.items():
        if not name.endswith("whole process"):
            ratios = [f"{against[name][key]:.2f}" if name in against else "" for key in ("steady", "whole_process")]
            rows.append((name, f"{each['best']:.2f}", *ratios))
    head = ("", "seconds a round", "a round, against our two workers", "whole process, against ours")
    text = [found["setting"] + ".", markdown(head, rows)]
    text.append(f"Two workers are {found['two_workers_speedup']:.2f} times as fast as one. Two bare loops at once, with nothing "
                f"between them, are {found['two_bare_loops_speedup']:.2f} times as fast as one, so that is what the second core "
                "gives.")  # fmt: skip
    if "where_time_goes" in found:
        text.append("![The shares of a round's time](round-time.svg)")
        text.append("Most of a round is torch's convolutions, which run at the speed of large matrix products. "
                    "[Decisions](decisions.md#the-core) says what we tried.")  # fmt: skip
    return "\n\n".join(text)


def round_picture(found: dict) -> Figure:
    figure = Figure(figsize=(8.4, 1.9), layout="constrained")
    ax, at = figure.subplots(), 0.0
    for i, (kind, share) in enumerate(found["where_time_goes"].items()):
        ax.barh(0, share, left=at, color=LIGHT[f"s{i}"], label=f"{kind} {share:.0%}", edgecolor="white")
        at += share
    ax.set(xlim=(0, 1), yticks=[], xticks=[])
    ax.spines[:].set_visible(False)
    ax.legend(fontsize=8, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 0))
    return figure


# ---------------------------------------------------------------- the label job and its cryptography


def hamming(found: dict) -> str:
    rows = [
        (f"`{each['protocol']}`", f"{each['cpu_seconds']:.3g}", f"{sum(each['bytes'].values()) / 1e6:.1f}")
        for each in found["pair"]
    ]
    text = ["One pair of clients with 500 rows of 4096 bits each:", markdown(("protocol", "CPU-seconds, all sides", "MB"), rows)]
    hours = "; ".join(f"{each['protocol']} {number(each['cpu_hours'])}" for each in found["as_written_extrapolated"])
    text.append(f"The paper's protocols as written would take these CPU-hours, extrapolated from single operations: {hours}.")
    text.append(f"![Log–log plots of CPU-seconds against rows and bits](growth-hamming.svg)\n\n{POWERS}")
    return "\n\n".join([*text, exponents("protocol", hamming_panels(found))])


def hamming_panels(found: dict) -> Panels:
    """Seconds of a pair against rows (at 4096 bits) and bits (at 500 rows), by protocol."""
    panels: Panels = {"rows a side": {}, "bits": {}}
    for each in found["scaling"] + found["pair"]:
        for panel, varied, fixed, value in (("rows a side", "rows", "bits", 4096), ("bits", "bits", "rows", 500)):
            if each[fixed] == value:
                panels[panel].setdefault(each["protocol"], {})[each[varied]] = each["cpu_seconds"]
    return panels


def growth(found: dict) -> str:
    base = found["base"]
    around = f"{base['clients']} clients, {base['points']} points in all, {base['bits']} bits and {base['classes']} classes"
    text = [f"We vary one size at a time around {around}. More clients then means smaller clients. {POWERS}"]
    text.append("![Log–log plots of CPU-seconds against clients, points, bits and classes](growth.svg)")
    return "\n\n".join([*text, exponents("label job", growth_panels(found))])


def growth_panels(found: dict) -> Panels:
    panels: Panels = {name: {} for name in found["base"]}
    for each in found["measured"]:
        panels[each["varied"]].setdefault(each["way"], {})[each[each["varied"]]] = each["cpu_seconds"]
    return panels


def exponents(what: str, panels: Panels) -> str:
    names = dict.fromkeys(name for series in panels.values() for name in series)
    return markdown((what, *panels), [(name, *(powers(series.get(name)) for series in panels.values())) for name in names])


def powers(points: dict[int, float] | None) -> str:
    """Over all sizes, and between the two largest: a cost with a fixed part grows faster at the end than on the whole."""
    if points is None:
        return "–"
    last = dict(sorted(points.items())[-2:])
    return f"{fit(points)[0]:.2f} ({fit(last)[0]:.2f})"


def fit(points: dict[int, float]) -> tuple[float, float]:
    """The exponent b and the factor a of the a·xᵇ nearest to the points, in logarithms."""
    xs, ys = [math.log(x) for x in points], [math.log(y) for y in points.values()]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - x0) * (y - y0) for x, y in zip(xs, ys)) / sum((x - x0) ** 2 for x in xs)
    return slope, math.exp(y0 - slope * x0)


def few(ax: Any) -> bool:
    """Whether an axis has so few powers of ten that numbers between them help."""
    low, high = ax.get_ylim()
    return high < 300 * low


def draw(panels: Panels) -> Figure:
    """A log–log plot of each panel, two beside each other: points as measured, fitted lines, exponents in the legend."""
    lines, wide = math.ceil(len(panels) / 2), min(len(panels), 2)
    figure = Figure(figsize=(4.2 * wide, 3.6 * lines), layout="constrained")
    for ax, (title, series) in zip(figure.subplots(lines, wide, sharey=True, squeeze=False).flat, panels.items()):
        for name, points in series.items():
            slope, factor = fit(points)
            i, xs = COLOURED.index(name), sorted(points)
            look = dict(color=LIGHT[f"s{i}"], marker=MARKERS[i % len(MARKERS)])
            ax.plot(xs, [points[x] for x in xs], linestyle="", markersize=5, label=f"{name}: {slope:.2f}", **look)
            ax.plot(xs, [factor * x**slope for x in xs], linewidth=1.2, color=look["color"])
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:.0f}")
        ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        ax.yaxis.set_minor_formatter(lambda y, _, ax=ax: f"{y:g}" if f"{y:e}"[0] in "25" and few(ax) else "")
        ax.tick_params(which="both", labelsize=8, color=EDGE, labelcolor=SOFT, labelleft=True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(EDGE)
        ax.grid(color=EDGE, linewidth=0.7)
        ax.set_xlabel(title, fontsize=9, color=INK)
        ax.set_ylabel("CPU-seconds", fontsize=9, color=SOFT)
        ax.legend(title="exponent", title_fontsize=8, fontsize=8, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def save(figure: Figure, path: Path) -> None:
    """The same numbers give the same file."""
    with matplotlib.rc_context({"svg.hashsalt": "grapevine", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})


def label_scale(found: dict) -> str:
    head = ("parties × rows", "groups", "protocol", "CPU-seconds", "GB", "MB up", "estimated seconds, GB, MB", "right, %")
    rows = []
    for each in found["rows"]:
        told = each["estimate"]
        said = f"{told['seconds']:.0f}, {told['mb'] / 1000:.1f}, {told['bytes_up'] / 1e6:.0f}"
        memory = f"{(each['added_mb'] + each['base_mb']) / 1000:.1f}"
        rows.append((f"{each['parties']:,} × {each['rows']:,}", each["groups"], f"`{each['secure']}`",
                     f"{each['cpu_seconds']:.0f}", memory, f"{each['bytes_up'] / 1e6:.0f}", said, each["accuracy"]))  # fmt: skip
    text = ["Chorus with its default landmarks, 64 features, all parties in one process with two workers. `--dry-run` gives the "
            "estimate, in seconds of two free cores.", markdown(head, rows)]  # fmt: skip
    if label_panels(found):
        text.append("![Log–log plot of CPU-seconds against rows of a party](label-scale.svg)")
        text.append("A hundredth of the rows is labelled, at most 50 a party. The cryptography grows with the labels, up to "
                    "10,000 rows, and not with the rows.")  # fmt: skip
    return "\n\n".join(text)


SECRET = ("share", "xclp.hamming.", "receive")  # steps with cryptography


def label_panels(found: dict) -> Panels:
    """The whole job against the rows of a party, and its cryptography: what steps that have any take more than in the clear."""
    jobs = {(each["secure"], each["rows"]): each for each in found["rows"] if each["case"] == "rows"}
    both = [rows for way, rows in jobs if way == "mlwe" and ("plain", rows) in jobs]
    if len(both) < 2:
        return {}

    def secret(each: dict) -> float:
        return sum(spent for step, spent in each["steps"].items() if step.startswith(SECRET))

    whole = {rows: jobs["mlwe", rows]["cpu_seconds"] for rows in both}
    more = {rows: secret(jobs["mlwe", rows]) - secret(jobs["plain", rows]) for rows in both}
    return {"rows of a party": {"mlwe": whole, "cryptography": more}}


def xclp_round(found: dict) -> str:
    rows = [(f"`{each['protocol']}`", f"{each['cpu_seconds']:.2f}") for each in found["whole"] if not each["expected_accuracy"]]
    rows.append(("the same without a protocol, in one place", f"{found['plain_part']['cpu_seconds']:.2f}"))
    rows.append(("only the dense inverse that the paper writes", f"{found['dense_inverse_cpu_seconds']:.2f}"))
    return markdown(("5 clients × 500 rows, 4096 bits", "CPU-seconds, all parties"), rows)


def against(found: dict) -> str:
    rows = [(each["what"], each["before"], each["now"], f"{each['ratio']:.2f}") for each in found["rows"]]
    head = ("`mlwe`", f"{found['commit']}, CPU-seconds", "now", "ratio")
    return f"Both commits run in turn, each with its own source.\n\n{markdown(head, rows)}"


# ---------------------------------------------------------------- propagation, memory, training


def large_graph(found: dict) -> str:
    head = ("points", "", "CPU-seconds", "seconds", "GB", "recall", "right, %")
    rows = []
    for each in found["rows"]:
        recall = f"{each['recall']:.3f}" if "recall" in each else "–"
        rows.append((f"{each['n']:,}", each["way"], f"{each['cpu_seconds']:.0f}",
                     f"{each['seconds']:.0f} (load {each['load']:.0f})", f"{each['added_mb'] / 1000:.2f}", recall,
                     each["accuracy"]))  # fmt: skip
    words = "One fit on mixtures of CIFAR-10's features with 64 columns and 500 labels. Recall is the share of true neighbours "
    words += "in the graph. A busy machine makes CPU-seconds longer, too."
    return f"{words}\n\n{markdown(head, rows)}"


def spreading(found: dict) -> str:
    rows = []
    for data, n in dict.fromkeys((each["data"], each["n"]) for each in found["compared"]):
        some = [each for each in found["compared"] if (each["data"], each["n"]) == (data, n)]
        times, better = ([each[key] for each in some] for key in ("times_as_fast", "points_better"))
        rows.append(
            (data, f"{n:,}", len(some), f"{min(times):.1f} to {max(times):.1f}", f"{min(better):.1f} to {max(better):.1f}")
        )
    return markdown(("data", "points", "graphs of scikit-learn's", "times as fast", "points more right"), rows)


def streaming(found: dict) -> str:
    rows = []
    for each in [*found["round"], found["population"]]:
        rows.append((f"{each['clients']:,}", f"{each['per_round']:,}", f"{each['cpu_seconds']:.1f}", f"{each['peak_mb']:.0f}"))
    text = "A whole process that runs one round of FedAvg, imports included. Each client holds four rows of a memory-mapped file."
    return f"{text}\n\n" + markdown(("clients", "in the round", "CPU-seconds", "MB at most"), rows)


def train_round(found: dict) -> str:
    rows = []
    for each in found["rounds"]:
        network = each["best"]["network"]["cpu_seconds"]
        seconds = {name: one["cpu_seconds"] for name, one in each["best"].items()}
        rows += [(each["model"], name, f"{value:.2f}", f"{value / network:.2f}") for name, value in seconds.items()]
    return markdown(("model", "pseudo-labels by", "CPU-seconds a round", "against network"), rows)


def augment(found: dict) -> str:
    least = " and ".join(f"{times:.1f} times for {view} views" for view, times in found["least_times_pillow"].items())
    return f"Over all data sets and batch sizes we are at least this much faster than Pillow image by image: {least}."


PARTS: dict[str, tuple[str, Callable[[dict], str]]] = {
    "simulator": ("The simulator beside others", simulator),
    "streaming": ("Memory against clients", streaming),
    "large_graph": ("Propagation over many points", large_graph),
    "label_spreading": ("Propagation beside scikit-learn's", spreading),
    "label_scale": ("The label job at scale", label_scale),
    "growth": ("How the label job's cost grows", growth),
    "secure_hamming": ("Secure Hamming distances", hamming),
    "xclp_round": ("A whole round of XCLP", xclp_round),
    "against": ("The cryptography beside an older commit", against),
    "xclp_train_round": ("A round of FedAvg+XCLP", train_round),
    "augment": ("Augmentation", augment),
}
PICTURES = {
    "secure_hamming": ("growth-hamming.svg", lambda found: draw(hamming_panels(found))),
    "growth": ("growth.svg", lambda found: draw(growth_panels(found))),
    "simulator": ("round-time.svg", lambda found: round_picture(found) if "where_time_goes" in found else None),
    "label_scale": ("label-scale.svg", lambda found: draw(label_panels(found)) if label_panels(found) else None),
}


def page() -> str:
    text = HEAD + conclusions()
    for name, (title, tell) in PARTS.items():
        if found := read(name):
            text += f"\n## {title}\n\n{tell(found)}\n\n{ran(name, found)}.\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="print the page, keep nothing")
    quick = parser.parse_args().quick
    text = page()
    for name, (file, make) in PICTURES.items():
        figure = make(found) if (found := read(name)) else None
        if figure and not quick:
            save(figure, DOCS / file)
    if quick:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
        print(f"Wrote {PAGE.name}.")


if __name__ == "__main__":
    main()
