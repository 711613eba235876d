"""docs/speed.md from the benchmarks' JSON, every number of it: `python benchmarks/speed.py`."""

from __future__ import annotations

import argparse
import json
import math
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

Made by `python benchmarks/speed.py` from the JSON files in `benchmarks/`, which `make bench` writes. Ratios within one run
compare; seconds depend on the machine and on what else ran on it: below each table stand the command, when and at which commit
it ran, and the load that it noted, which is how many processes ran or waited.
"""
POWERS = "CPU-seconds ~ size to the power of the exponent, fitted over the sizes in the file; in brackets from the two largest."
COLOURED = ("plain", "psm", "mlwe", "paillier", "ot", "propagation alone")  # a protocol looks the same in every plot
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


def simulator(found: dict) -> str:
    rows = [(name, f"{each['best']:.2f}", f"{each['median']:.2f}") for name, each in found["seconds_per_round"].items()]
    text = [found["setting"] + ".", markdown(("", "seconds a round, best", "median"), rows)]
    text.append(f"One worker takes {found['one_worker_against_bare_loop']:.2f} times the bare loop, two workers are "
                f"{found['two_workers_speedup']:.2f} times as fast as one; two bare loops at once, with nothing between them, "
                f"{found['two_bare_loops_speedup']:.2f} times as fast as one, which is what the second core gives.")  # fmt: skip
    for name, each in found.get("against_two_workers", {}).items():
        times = {key: f"{value:.1f} times" for key, value in each.items()}
        text.append(f"Against two workers, {name}: {times['steady']} the seconds a round, "
                    f"{times['with_start']} with its start-up; as whole processes {times['whole_process']}.")  # fmt: skip
    memory = ", ".join(f"{n} clients {mb:.0f} MB" for n, mb in found["memory_mb"].items())
    return "\n\n".join([*text, f"Memory: {memory}; the data is {found['data_mb']:.0f} MB."])


def hamming(found: dict) -> str:
    rows = [
        (each["protocol"], f"{each['cpu_seconds']:.3g}", f"{sum(each['bytes'].values()) / 1e6:.2f}") for each in found["pair"]
    ]
    written = [
        (each["protocol"], number(each["cpu_hours"]), number(each["bytes"] / 1e6)) for each in found["as_written_extrapolated"]
    ]
    text = [markdown(("protocol, 500 × 500 rows, 4096 bits", "CPU-seconds, all sides", "MB"), rows)]
    text.append("The paper's protocols as written, one operation measured and multiplied by their number:")
    text.append(markdown(("protocol", "CPU-hours", "MB"), written))
    text.append(f"Growth for one pair of clients: {POWERS}")
    text.append("![Log–log plots of CPU-seconds against rows and bits](growth-hamming.svg)")
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
    text = [f"The whole label job by protocol, all parties and the server, and the propagation alone, on rows in one place, "
            f"around {around}, one of them varied at a time; when it is clients, the points stay and are cut into smaller parts. "
            f"Growth: {POWERS}"]  # fmt: skip
    text.append("![Log–log plots of CPU-seconds against clients, points, bits and classes](growth.svg)")
    text.append(exponents("label job", growth_panels(found)))
    return "\n\n".join(text)


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


def draw(panels: Panels) -> Figure:
    """A log–log plot of each panel, two beside each other: points as measured, fitted lines, exponents in the legend."""
    lines = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(8.4, 3.6 * lines), layout="constrained")
    for ax, (title, series) in zip(figure.subplots(lines, 2, sharey=True).flat, panels.items()):
        for name, points in series.items():
            slope, factor = fit(points)
            i, xs = COLOURED.index(name), sorted(points)
            look = dict(color=LIGHT[f"s{i}"], marker=MARKERS[i % len(MARKERS)])
            ax.plot(xs, [points[x] for x in xs], linestyle="", markersize=5, label=f"{name}: {slope:.2f}", **look)
            ax.plot(xs, [factor * x**slope for x in xs], linewidth=1.2, color=look["color"])
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:.0f}")
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


def xclp_round(found: dict) -> str:
    rows = []
    for each in found["whole"]:
        more = ", with the expected accuracy" if each["expected_accuracy"] else ""
        rows.append((f"whole protocol, {each['protocol']}{more}", f"{each['cpu_seconds']:.2f}"))
    rows.append(("the plain part", f"{found['plain_part']['cpu_seconds']:.2f}"))
    rows.append(("the dense inverse that the paper writes, alone", f"{found['dense_inverse_cpu_seconds']:.2f}"))
    return markdown(("5 clients × 500 rows, 4096 bits", "CPU-seconds, all parties"), rows)


def augment(found: dict) -> str:
    least = ", ".join(f"{view} views {times:.1f}" for view, times in found["least_times_pillow"].items())
    return f"At least so many times as fast as Pillow image by image, over data sets and batch sizes: {least}."


def spreading(found: dict) -> str:
    rows = [(each["data"], each["n"], each["theirs"], each["times_as_fast"], each["points_better"]) for each in found["compared"]]
    words = "knn and rbf are its two graphs with their defaults; unit: on rows of length 1; same: with our neighbours and alpha. "
    words += "Times as fast in CPU-seconds; points better in per cent of the new labels right."
    return f"{words}\n\n" + markdown(("data", "points", "scikit-learn's", "times as fast", "points better"), rows)


def cleanlab(found: dict) -> str:
    keys = ("precision", "recall", "f1")
    measured = [each for each in found["results"] if all(key in each for key in keys)]
    rows = [
        (each["data"], f"{each['flipped']:.0%}", each["way"], *(f"{each[key]['mean']:.3f}" for key in keys)) for each in measured
    ]
    return markdown(("data", "flipped", "wrong labels found by", *keys), rows)


def large_graph(found: dict) -> str:
    head = ("points", "", "CPU-seconds", "GB", "recall", "right, %")
    rows = []
    for each in found["rows"]:
        recall = f"{each['recall']:.3f}" if "recall" in each else "–"
        gigabytes = f"{each['added_mb'] / 1000:.2f}"
        rows.append((f"{each['n']:,}", each["way"], f"{each['cpu_seconds']:.0f}", gigabytes, recall, each["accuracy"]))
    words = "One fit on mixtures of CIFAR-10's features, 64 columns, 500 labels; recall is the share of true neighbours in the "
    words += "graph. Other work on the machine makes CPU-seconds longer, too: each row has its own load in the file."
    return f"{words}\n\n{markdown(head, rows)}"


def streaming(found: dict) -> str:
    rows = []
    for each in [*found["round"], found["population"]]:
        rows.append((f"{each['clients']:,}", f"{each['per_round']:,}", f"{each['cpu_seconds']:.1f}", f"{each['peak_mb']:.0f}"))
    text = "A whole process that runs one round of FedAvg, imports included; clients hold four rows each in a memory-mapped file."
    return f"{text}\n\n" + markdown(("clients", "in the round", "CPU-seconds", "MB at most"), rows)


def conclusions() -> str:
    """One screen: what the files say, a sentence or two each."""
    tell = dict(simulator=_simulator, streaming=_streaming, large_graph=_large, label_spreading=_spreading, xclp_round=_xclp)
    lines = [each(found) for name, each in tell.items() if (found := read(name))]
    return "\n".join(f"- {line}" for line in lines if line) + "\n"


def _simulator(found: dict) -> str:
    peers = "; ".join(f"{name} {each['steady']:.1f}" for name, each in found.get("against_two_workers", {}).items())
    alone = found["one_worker_against_bare_loop"]
    return (f"One worker takes {alone:.2f} times a bare PyTorch loop. A round elsewhere takes so many of our rounds with two "
            f"workers: {peers}.")  # fmt: skip


def _streaming(found: dict) -> str:
    few, many, all_of_them = found["round"][0], found["round"][-1], found["population"]
    return (f"A round of {many['per_round']:,} clients takes {found['times_the_memory']:.2f} times the memory of one of "
            f"{few['per_round']}. A population of {all_of_them['clients']:,} starts and runs its first round in "
            f"{all_of_them['cpu_seconds']:.1f} CPU-seconds and {all_of_them['peak_mb'] / 1000:.2f} GB.")  # fmt: skip


def _large(found: dict) -> str:
    largest = max((each for each in found["rows"] if each["way"] == "approximate"), key=lambda each: each["n"])
    return (f"Labels spread over {largest['n']:,} points in {largest['cpu_seconds']:.0f} CPU-seconds and "
            f"{largest['added_mb'] / 1000:.1f} GB, with {largest['recall']:.0%} of the true neighbours.")  # fmt: skip


def _spreading(found: dict) -> str:
    times = [each["times_as_fast"] for each in found["compared"]]
    return f"Exact propagation is {min(times):.1f} to {max(times):.1f} times as fast as scikit-learn's, in CPU-seconds."


def _xclp(found: dict) -> str:
    plain = [each for each in found["whole"] if not each["expected_accuracy"]]
    seconds = ", ".join(f"{each['protocol']} {each['cpu_seconds']:.1f}" for each in plain)
    return f"A whole round of XCLP, 5 parties × 500 rows, takes these CPU-seconds of all parties together: {seconds}."


def train_round(found: dict) -> str:
    rows = []
    for each in found["rounds"]:
        network = each["best"]["network"]["cpu_seconds"]
        seconds = {name: one["cpu_seconds"] for name, one in each["best"].items()}
        rows += [(each["model"], name, f"{value:.2f}", f"{value / network:.2f}") for name, value in seconds.items()]
    return markdown(("model", "pseudo-labels by", "CPU-seconds a round", "against network"), rows)


PARTS = {
    "simulator": ("The simulator against a bare loop and other simulators", simulator),
    "secure_hamming": ("Secure Hamming distances against the paper's protocols as written", hamming),
    "xclp_round": ("A whole round of XCLP", xclp_round),
    "growth": ("How the label job's cost grows", growth),
    "large_graph": ("Propagation over many points", large_graph),
    "streaming": ("Memory against clients", streaming),
    "label_spreading": ("Propagation against scikit-learn", spreading),
    "xclp_train_round": ("A round of FedAvg+XCLP against one with the network's labels", train_round),
    "augment": ("Augmentation against an image library", augment),
    "clean_cleanlab": ("Wrong labels against cleanlab", cleanlab),
}
PICTURES = {"secure_hamming": ("growth-hamming.svg", hamming_panels), "growth": ("growth.svg", growth_panels)}
OTHERS = ("femnist_graph", "cost_account")


def page() -> str:
    text = f"{HEAD}\n{conclusions()}"
    for name, (title, tell) in PARTS.items():
        if found := read(name):
            text += f"\n## {title}\n\n{tell(found)}\n\n{ran(name, found)}.\n"
    there = [f"- {ran(name, found)}: `benchmarks/{name}.json`\n" for name in OTHERS if (found := read(name))]
    return text + "\n## More\n\n" + "".join(there)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="print the page, keep nothing")
    quick = parser.parse_args().quick
    text = page()
    for name, (file, panels) in PICTURES.items():
        if found := read(name):
            figure = draw(panels(found))
            if not quick:
                save(figure, DOCS / file)
    if quick:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
        print(f"Wrote {PAGE.name}.")


if __name__ == "__main__":
    main()
