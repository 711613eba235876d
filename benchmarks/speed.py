"""docs/speed.md from the benchmarks' JSON, every number of it: `python benchmarks/speed.py`."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "speed.md"
HEAD = """# How fast

Made by `python benchmarks/speed.py` from the JSON files in `benchmarks/`, which `make bench` writes. Ratios within one run
compare; seconds depend on the machine (two cores) and on what else ran on it, which each file says.
"""


def read(name: str) -> dict[str, Any] | None:
    path = HERE / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: tuple[str, ...], rows: list[tuple]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(map(str, row)) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def simulator(found: dict) -> str:
    rows = [(name, f"{each['best']:.2f}", f"{each['median']:.2f}") for name, each in found["seconds_per_round"].items()]
    text = [found["setting"] + ".", table(("", "seconds a round, best", "median"), rows)]
    text.append(f"One worker takes {found['one_worker_against_bare_loop']:.2f} times the bare loop, two workers are "
                f"{found['two_workers_speedup']:.2f} times as fast as one.")  # fmt: skip
    for name, each in found.get("against_two_workers", {}).items():
        times = {key: f"{value:.1f} times" for key, value in each.items()}
        text.append(f"{name[0].upper()}{name[1:]}: {times['steady']} two workers a round, {times['with_start']} with start-up; "
                    f"as whole processes {times['whole_process']}.")  # fmt: skip
    memory = ", ".join(f"{n} clients {mb:.0f} MB" for n, mb in found["memory_mb"].items())
    return "\n\n".join([*text, f"Memory: {memory}; the data is {found['data_mb']:.0f} MB."])


def hamming(found: dict) -> str:
    rows = [
        (each["protocol"], f"{each['cpu_seconds']:.3g}", f"{sum(each['bytes'].values()) / 1e6:.2f}") for each in found["pair"]
    ]
    written = [
        (each["protocol"], f"{each['cpu_hours']:.3g}", f"{each['bytes'] / 1e6:.0f}") for each in found["as_written_extrapolated"]
    ]
    text = [table(("protocol, 500 × 500 rows, 4096 bits", "CPU-seconds, all sides", "MB"), rows)]
    text.append("The paper's protocols as written, one operation measured and multiplied by their number:")
    text.append(table(("protocol", "CPU-hours", "MB"), written))
    text.append("Growth, seconds ~ size to the power of (fitted over the sizes in the file):")
    return "\n\n".join([*text, table(("protocol", "rows a side", "bits"), exponents(found["scaling"] + found["pair"]))])


def exponents(measured: list[dict]) -> list[tuple]:
    """Slopes of log seconds against log rows (at 4096 bits) and log bits (at 500 rows)."""
    out = []
    for protocol in dict.fromkeys(each["protocol"] for each in measured):
        own = [each for each in measured if each["protocol"] == protocol]
        fits = []
        for varied, (fixed, value) in (("rows", ("bits", 4096)), ("bits", ("rows", 500))):
            fits.append(f"{slope({each[varied]: each['cpu_seconds'] for each in own if each[fixed] == value}):.2f}")
        out.append((protocol, *fits))
    return out


def slope(points: dict[int, float]) -> float:
    xs, ys = [math.log(x) for x in points], [math.log(y) for y in points.values()]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys)) / sum((x - x0) ** 2 for x in xs)


def xclp_round(found: dict) -> str:
    rows = [(f"whole protocol, {each['protocol']}", f"{each['cpu_seconds']:.2f}") for each in found["whole"]]
    rows.append(("the plain part", f"{found['plain_part']['cpu_seconds']:.2f}"))
    rows.append(("the dense inverse that the paper writes, alone", f"{found['dense_inverse_cpu_seconds']:.2f}"))
    return table(("5 clients × 500 rows, 4096 bits", "CPU-seconds, all parties"), rows)


def augment(found: dict) -> str:
    least = ", ".join(f"{view} views {times:.1f}" for view, times in found["least_times_pillow"].items())
    return f"At least so many times as fast as Pillow image by image, over data sets and batch sizes: {least}."


def spreading(found: dict) -> str:
    rows = [(each["data"], each["n"], each["theirs"], each["times_as_fast"], each["points_better"]) for each in found["compared"]]
    return table(("data", "points", "scikit-learn's", "times as fast", "points better"), rows)


def cleanlab(found: dict) -> str:
    keys = ("precision", "recall", "f1")
    measured = [each for each in found["results"] if all(key in each for key in keys)]
    rows = [
        (each["data"], f"{each['flipped']:.0%}", each["way"], *(f"{each[key]['mean']:.3f}" for key in keys)) for each in measured
    ]
    return table(("data", "flipped", "wrong labels found by", *keys), rows)


def train_round(found: dict) -> str:
    rows = []
    for each in found["rounds"]:
        network = each["best"]["network"]["cpu_seconds"]
        seconds = {name: one["cpu_seconds"] for name, one in each["best"].items()}
        rows += [(each["model"], name, f"{value:.2f}", f"{value / network:.2f}") for name, value in seconds.items()]
    return table(("model", "pseudo-labels by", "CPU-seconds a round", "against network"), rows)


PARTS = {
    "simulator": ("The simulator against a bare loop and Flower's simulation", simulator),
    "secure_hamming": ("Secure Hamming distances against the paper's protocols as written", hamming),
    "xclp_round": ("A whole round of XCLP", xclp_round),
    "label_spreading": ("Propagation against scikit-learn", spreading),
    "xclp_train_round": ("A round of FedAvg+XCLP against one with the network's labels", train_round),
    "augment": ("Augmentation against an image library", augment),
    "clean_cleanlab": ("Wrong labels against cleanlab", cleanlab),
}
OTHERS = ("femnist_graph", "cost_account", "mlwe_security")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="print the page, keep nothing")
    text = HEAD
    for name, (title, tell) in PARTS.items():
        found = read(name)
        if found:
            text += f"\n## {title}\n\n{tell(found)}\n\n`python benchmarks/{name}.py`\n"
    there = [name for name in OTHERS if read(name)]
    text += (
        "\n## More\n\n" + "\n".join(f"- `python benchmarks/{name}.py` wrote `benchmarks/{name}.json`" for name in there) + "\n"
    )
    if parser.parse_args().quick:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
        print(f"Wrote {PAGE.name}.")


if __name__ == "__main__":
    main()
