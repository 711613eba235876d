"""docs/claims.md, and the numbers on the methods' pages, from the claims' JSON: `python benchmarks/claims/page.py`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from grapevine.parties.federation import read_toml
from grapevine.report.charts.files import save, sheet
from grapevine.report.charts.kinds import Axis, curves, lines

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from common import beats  # noqa: E402
from common import verdict as judged  # noqa: E402
from machine import fill, fingerprint, markdown, seed_counts  # noqa: E402

PAGE = HERE.parent.parent / "docs" / "claims.md"
IMAGES_FILE, PICTURE = HERE / "images.json", PAGE.parent / "claims-images.svg"
METHODS = PAGE.parent / "methods"
PARTS_FILE, SOTA_FILE = HERE.parent / "xclp_parts.json", HERE.parent / "state_of_the_art.json"
PARTS_PAGES = {"fedavg-xclp": PARTS_FILE, "fedanchor": HERE.parent / "anchor_parts.json"}  # a method's page, what it shows
# What a method's page asks for: claims, and of them the numbers of the named methods alone, or all.
NUMBERS = re.compile(
    r"(?<=<!-- numbers: )(?P<claims>[A-Z0-9 ]+?)(?: of (?P<methods>[^>]+?))? -->\n.*?(?=<!-- end of numbers -->)", re.S
)
COMPARED = {  # claims that compare methods by training: where the labels are, and the rows of settings that do not name them
    "X5": ("at the clients", "CIFAR-10 features"),
    "P1": ("at the clients", "CIFAR-10 features, 5000 labels"),
    "A1": ("at the server", "CIFAR-10 features"),
}
NAMED = ("CIFAR-10", "Fashion-MNIST", "MNIST", "digits")
MOST = 6  # numbers in a line of a method's page
COUNTED = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
CLAIMED = {
    "p1": "protofssl",
    "x5": "xclp",
    "x6": "xclp",
    "a1": "fedanchor",
    "p6": "bn",
}  # what a comparison on images says is best
CLAIMS = {  # in the order of the page
    "X1": "XCLP labels better than each client alone, most where labels are few",
    "X2": "On FedAvg's features XCLP beats the model's own predictions",
    "X3": "Leave one client out: XCLP beats FedAvg on the unseen client",
    "X4": "Unlabelled training points in the graph help",
    "X5": "FedAvg+XCLP beats labelled-only, per-client LP, network, FedMatch, FedSiam, FedSem+",
    "X6": "Label skew breaks per-client LP and not XCLP",
    "X7": "4096 bits are as good as exact cosines",
    "X8": "Dropouts: accuracy against the share of clients lost",
    "P1": "ProtoFSSL beats FedAvg, FixMatch-FedAvg, FedMatch",
    "P2": "ProtoFSSL's loss from non-i.i.d. data is marginal",
    "P3": "More helpers and fresher prototypes help",
    "P4": "About half of FedMatch's bytes, 1.7–3.4 times less compute",
    "P5": "Prototype noise up to σ = 5 is harmless, 10 is not",
    "P6": "Normalisation helps ProtoFSSL, BN most",
    "P7": "More local steps help ProtoFSSL",
    "P8": "More unlabelled queries help ProtoFSSL a little",
    "A1": "FedAnchor beats SemiFL, FedAvg+FixMatch, FedCon",
    "A2": "FedAnchor's pseudo-labels are more accurate and more samples qualify",
    "A3": "FedAnchor needs its contrastive loss",
    "A4": "The anchors' overhead in per cent of the model",
    "A5": "FedAnchor needs fewer rounds to a target than SemiFL",
    "A6": "SemiFL's pseudo-labels degenerate late, FedAnchor's do not",
    "M1": "FedAvg on MP-SSFL's labels is within about a point of true labels",
    "M2": "MP-SSFL sets irrelevant data aside better than both baselines",
    "M3": "Mending flipped labels beats removing them",
}
HEAD = """# Do the claims hold?

Each claim of the four papers, checked on real data at a size that two cores can do. Networks, rows and rounds are far smaller
than the papers': what does not hold here may hold there, and the other way round. Scripts write every number: `make claims` runs
them, `make data` makes what they read, and all numbers are in `benchmarks/claims/*.json`.

"""
RULES = """
## How a verdict is reached

A method is above another if Student's t of the paired differences over the seeds says so, one-sided at 5 %; with three seeds that
takes 2.9 standard errors, with five 2.1. A claim holds if all its comparisons come out, those on [images](#images) too, in part
if some do, and is undecided if chance may explain all of them. A few come out by chance.
Methods that are compared have the same data, rounds, clients and budget. Each chooses its learning rate by four trials on
validation rows, with a seed that is not used again and a third of the rounds; for P and A claims also by rates beyond an edge. On
images trials have a tenth of the rounds. For M1 to M3 the rate is FedAvg's on true labels.
Accuracy is that of the round that is best on validation. Tables show means over the seeds, in per cent where nothing else is
said.
"""
OLD = "**Old run:** the script has changed since."
ROWS, COLUMNS = 18, 8  # of a section's table: more is in the JSON
LEFT_OUT = (
    "other thresholds",
    "200+100",
    "accuracy of the last round",
    "pseudo-labels right",
)  # places of the JSON without a row


def results() -> dict[str, dict[str, Any]]:
    found = {name: json.loads(file.read_text()) for name in CLAIMS if (file := HERE / f"{name}.json").exists()}
    for name, methods in comparisons(IMAGES_FILE).items():
        if result := found.get(name.upper()):
            result["verdict"] = with_images(result["verdict"], CLAIMED[name], methods)
    return found


def with_images(verdict: str, best: str, methods: dict[str, Any]) -> str:
    """A verdict when the comparisons on images count, too; the method's own variants are no rivals."""
    before = {"holds": ["yes"], "holds in part": ["yes", "no"], "does not hold": ["no"], "undecided": ["open"]}[verdict]
    own, _, _ = best.partition(":")
    told = [one["outcome"] for other, one in against(best, methods).items() if other.partition(":")[0] != own]
    return judged(before + told)


def known() -> dict[str, Any]:
    """What a template may name: {X5[setting][method]}."""
    return {name: rounded(one["numbers"]) for name, one in results().items()} | {
        "parts": rounded(json.loads(PARTS_FILE.read_text())),
        "sota": state_of_the_art(),
        "images": on_images(),
    }


def on_images() -> dict[str, dict[str, str]]:
    """On images from scratch, by comparison: each method's mean accuracy, and how many `seeds` the comparison has."""
    found = comparisons(IMAGES_FILE)
    means = {name: {method: rounded(one["accuracy"]) for method, one in methods.items()} for name, methods in found.items()}
    return {name: means[name] | dict(seeds=in_words(methods)) for name, methods in found.items()}


def in_words(methods: dict[str, Any]) -> str:
    """one seed; three seeds; one to three seeds"""
    counts = sorted({len(one["curves"]) for one in methods.values()})
    ends = " to ".join(str(COUNTED.get(n, n)) for n in dict.fromkeys((counts[0], counts[-1])))
    return f"{ends} seed{'s' if counts[-1] > 1 else ''}"


def state_of_the_art() -> dict[str, dict[str, dict[str, str]]]:
    """Mean accuracies by space, setting and line."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for space, measured in json.loads(SOTA_FILE.read_text())["spaces"].items():
        for line, settings in measured.items():
            for setting, runs in settings.items():
                right = [100 * one["accuracy"] for one in runs if "accuracy" in one]
                found.setdefault(space, {}).setdefault(setting, {})[line] = f"{mean(right):.1f}" if right else "none"
    return found


def main(path: Path = PAGE) -> None:
    found, words, numbers = results(), read_toml(HERE / "words.toml"), known()
    rows = []
    for name, claim in CLAIMS.items():
        if name not in found:
            rows.append((name, claim, "not run yet", "", ""))
            continue
        number, why = (words[name][part].format_map(numbers) for part in ("number", "reason"))
        rows.append((f"[{name}](#{name.lower()})", claim, f"**{verdict(found[name])}**", number, why))
    text = HEAD + markdown(("", "claim", "verdict", "decisive numbers", "why"), rows) + "\n" + RULES
    for name, result in found.items():
        text += "\n" + section(name, result, words[name].get("text", "").format_map(numbers))
    text += "\n" + images()
    picture(path=path.parent / PICTURE.name)
    path.write_text(text, encoding="utf-8")
    print(f"Wrote {path.name}: {len(found)} of {len(CLAIMS)} claims, {len(text.split())} words.")


def current(result: dict[str, Any]) -> bool:
    """Whether the script that is there is the one that wrote the result."""
    return result.get("script") == fingerprint(HERE / f"{result['id'].lower()}.py")


def verdict(result: dict[str, Any]) -> str:
    return result["verdict"] + ("" if current(result) else " (old run)")


def seeds(result: dict[str, Any]) -> str:
    """One number, or from the fewest to the most of its settings."""
    counts = seed_counts(result["numbers"]) or {result["seeds"]}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def section(name: str, result: dict[str, Any], text: str) -> str:
    command = f"`{result['command']}`, {seeds(result)} seeds, commit {result['commit']}."
    parts = [
        f"## {name}: {result['verdict']} {{#{name.lower()}}}",
        f"**Claim.** {result['claim']}" + ("" if current(result) else f" {OLD}"),
        text,
        table(result["numbers"], name),
        command,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def images(file: Path = IMAGES_FILE) -> str:
    """What has run of the claims on images from scratch: accuracy along the rounds, and what can be told apart."""
    text = "## CIFAR-10 images from scratch {#images}\n\n`python benchmarks/claims/images.py` runs these claims with thin "
    text += "networks; it takes hours and goes on where it was stopped."
    if not file.exists():
        return f"{text} It has not been run yet.\n"
    found, rows = comparisons(file), []
    for name, methods in found.items():
        for method, one in methods.items():
            curve = mean_curve(one)  # as long as all others
            middle = curve[(len(curve) - 1) // 2]
            best = f"{one['accuracy']['mean']:.1f}" + (f" ± {one['accuracy']['std']:.1f}" if len(one["curves"]) > 1 else "")
            rows.append((name.upper(), f"`{method}`", len(one["curves"]), f"{middle[1]:.1f}", best))
    head = ("claim", "method", "seeds", f"round {middle[0]}", "best on validation")
    apart = "\n".join(f"- {name.upper()}: {told_apart(CLAIMED[name], methods)}." for name, methods in found.items())
    shown = f"![Test accuracy along the rounds]({PICTURE.name})"
    settings = {name: next(iter(methods.values()))["setting"] for name, methods in found.items()}
    settings |= {"p6": settings["p6"].replace("--norm none", "--norm none|gn|sbn|bn")} if "p6" in settings else {}
    alike, own = apart_from_common(settings)
    told = f"All have `{alike}`.\n\n" + "\n".join(f"- {name.upper()}: `{words}`" for name, words in own.items())
    return f"{text}\n\n{markdown(head, rows)}\n\nBy the rule of all verdicts:\n\n{apart}\n\n{shown}\n\n{told}\n"


def apart_from_common(settings: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The flags that all settings have, and of each what it has besides."""
    flags = {name: re.findall(r"--\S+ \S+", words) for name, words in settings.items()}
    alike = [flag for flag in next(iter(flags.values())) if all(flag in each for each in flags.values())]
    return " ".join(alike), {name: " ".join(f for f in each if f not in alike) for name, each in flags.items()}


def comparisons(file: Path) -> dict[str, dict[str, Any]]:
    """The runs of each claim by method; those of P6 by norm, of which batch normalisation is P1's run."""
    found: dict[str, dict[str, Any]] = {}
    for name, methods in json.loads(file.read_text())["runs"].items() if file.exists() else ():
        claim, _, norm = name.partition(", norm ")
        found.setdefault(claim, {}).update({norm or method: one for method, one in methods.items()})
    if "p6" in found and "protofssl" in found.get("p1", {}):
        found["p6"]["bn"] = found["p1"]["protofssl"]
    return found


def told_apart(best: str, methods: dict[str, Any]) -> str:
    """What the claimed method is above, below and level with."""
    told: dict[str, list[str]] = {"yes": [], "no": [], "open": []}
    for other, result in against(best, methods).items():
        told[result["outcome"]].append(f"`{other}` ({result['difference']:+.1f} ± {result['standard_error']:.1f})")
    kinds = dict(yes="above", no="below", open="not told apart from")
    said = [f"{words} {', '.join(told[kind])}" for kind, words in kinds.items() if told[kind]]
    return f"`{best}` is {'; '.join(said)}" if said else "one seed tells nothing apart"


def against(best: str, methods: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Whether the claimed method is above each of the others, over the seeds that both have, if those are two or more."""
    runs = {other: [run["accuracy"]["seeds"] for run in (methods[best], methods[other])] for other in methods if best in methods}
    least = {other: min(map(len, both)) for other, both in runs.items() if other != best}
    return {other: beats(*(seeds[:n] for seeds in runs[other])) for other, n in least.items() if n > 1}


def mean_curve(one: dict[str, Any]) -> list[tuple[int, float]]:
    """Accuracy along the rounds, the mean over the seeds."""
    return [(points[0][0], mean(y for _, y in points)) for points in zip(*one["curves"])]


def picture(file: Path = IMAGES_FILE, path: Path = PICTURE) -> None:
    """The same as curves, a panel for each claim."""
    if not file.exists():
        return
    charts = []
    for claim, methods in comparisons(file).items():
        found = {name: mean_curve(one) for name, one in methods.items()}
        xs = sorted({x for curve in found.values() for x, _ in curve})
        values = {name: [dict(curve).get(x) for x in xs] for name, curve in found.items()}
        title = f"{claim.upper()}: test accuracy on CIFAR-10 images, %"
        charts.append(lines(title, curves(xs, values), Axis("round"), Axis("accuracy")))
    save(sheet(charts), path)


def table(numbers: dict[str, Any], name: str) -> str:
    """The means that stand side by side in the numbers: a line for each place, a column for each method or level."""
    found = [(path, own) for path, own in groups(numbers) if not any(words in path for words in LEFT_OUT)]
    columns = list(dict.fromkeys(column for _, own in found for column in own))
    if not found or len(columns) > COLUMNS:
        return ""
    rows = [(path, *(own.get(column, "") for column in columns)) for path, own in found[:ROWS]]
    more = f"\n\n{len(found) - ROWS} more rows are in `{name}.json`." if len(found) > ROWS else ""
    return f"<!-- made by benchmarks/claims/{name.lower()}.py -->\n\n{markdown(('', *columns), rows)}{more}\n\n<!-- end -->"


def groups(value: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Each place with means, in the order of the JSON: its name and the means; and those within it if it has at most one."""
    own = {name: f"{each['mean']:.1f}" for name, each in value.items() if isinstance(each, dict) and each.get("mean") is not None}
    if len(own) > 1 or own and path:
        yield " · ".join(path).replace("_", " "), own
    for name, each in value.items() if len(own) < 2 else ():
        if isinstance(each, dict) and "mean" not in each and name != "settings chosen":
            yield from groups(each, (*path, name))


def spoken(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(
            f"{name}: {spoken(each)}" if isinstance(each, dict) else f"{name} {each}" for name, each in value.items()
        )
    return str(value)


# ---------------------------------------------------------------- which method


def standings(path: Path = PAGE.parent / "which-method.md") -> None:
    """The methods of each setting in which several were compared by training, the best first."""
    rows, measured = [], results()
    for name, (where, data) in COMPARED.items():
        for setting, scores in measured[name]["numbers"].items() if name in measured else ():
            told = ranking({method: value for method, value in scores.items() if "mean" in value})
            title = setting if setting.startswith(NAMED) else f"{data}, {setting}"
            rows.append((where, title, told, f"[{name}](claims.md#{name.lower()})"))
    fill(path, "claims/page.py", markdown(("labels", "setting", "test accuracy, best first", "claim"), rows))


def advice(path: Path = PAGE.parent / "which-method.md") -> None:
    """What to use for which labels, and the numbers that say so, as {claim[setting][method]} in advice.toml."""
    head, numbers = ("labels", "use", "because", "bounds"), known()
    rows = [tuple(row[name].format_map(numbers) for name in head) for row in read_toml(HERE / "advice.toml")["row"]]
    fill(path, "claims/advice.toml", markdown(head, rows))


def rounded(value: Any) -> Any:
    """Nested numbers with every spread as its mean, to a tenth; small ones to a hundredth."""
    if not isinstance(value, dict):
        return value
    if "mean" in value:
        mean = value["mean"]
        return "none" if mean is None else f"{mean:.1f}" if abs(mean) >= 1 else f"{mean:.2f}"
    # A template's [100] is a number, not a name.
    return {int(name) if name.isdigit() else name: rounded(each) for name, each in value.items()}


def ranking(scores: dict[str, dict[str, float]]) -> str:
    ranked = sorted(scores.items(), key=lambda pair: -pair[1]["mean"])
    return ", ".join(f"`{method}` {value['mean']:.1f} ± {value['std']:.1f}" for method, value in ranked)


# ---------------------------------------------------------------- the methods' pages


def method_pages(folder: Path = METHODS) -> None:
    found = results()
    for path in sorted(folder.glob("*.md")):
        old = path.read_text(encoding="utf-8")
        new = NUMBERS.sub(lambda asked: beside(asked, found), old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(f"Wrote the numbers of {path.name}.")


def beside(asked: re.Match, found: dict[str, dict[str, Any]]) -> str:
    """The marker and, for each claim, its verdict with what decides it; of named methods their numbers and the paper's."""
    claims, of = asked["claims"].split(), (asked["methods"] or "").split()
    words, numbers, lines = read_toml(HERE / "words.toml"), known(), []
    for name in claims:
        if name not in found:
            lines.append(f"- {name}, {CLAIMS[name]}: not run yet.")
            continue
        result = found[name]
        told = f"- [{name}](../claims.md#{name.lower()}), {CLAIMS[name]}: **{verdict(result)}**"
        if not of:
            lines.append(f"{told}. {words[name]['number'].format_map(numbers)}.")
            continue
        lines.append(f"{told}.")
        ours = means(only(result["numbers"], of))
        if ours and ours.count("±") <= MOST:  # longer ones are on the page of claims
            theirs = spoken(only(result["paper_numbers"], of)) or "no number of it"
            lines += [
                f"    - Here, mean ± std over {seeds(result)} seeds, {result['cores']} cores: {ours}.",
                f"    - The paper: {theirs}.",
            ]
    head = asked[0].split("\n", 1)[0]
    return f"{head}\n\n" + "\n".join(lines) + "\n\n"


def ablations(folder: Path = METHODS) -> None:
    """The tables of what parts of a method matter, on the pages of those that have one."""
    for name, source in PARTS_PAGES.items():
        if source.exists():
            fill(folder / f"{name}.md", f"{source.stem}.py", ablation(source))


def ablation(source: Path) -> str:
    """Which parts of a method matter, from the JSON of its script."""
    found = json.loads(source.read_text())
    text = f"What each part is worth (`python benchmarks/{source.stem}.py`: `{found['setting']}`, {found['seeds']} seeds, "
    text += "mean ± std; a variant that diverged with one of the seeds has no line):"
    tables = [text if found.get("script") == fingerprint(source.with_suffix(".py")) else f"{text}\n\n{OLD}"]
    titles = dict(
        parts="labels i.i.d.", skew="each client's labels of 5 of the 10 classes", some="all labels at 20 of the clients"
    )
    for key, title in titles.items():
        rows = []
        for name, one in found.get(key, {}).items():
            cells = [one[kind] for kind in ("accuracy", "accuracy_last_round", "pseudo_labels_right")]
            rows.append((name, *("{mean:.1f} ± {std:.1f}".format(**each) if each["mean"] else "" for each in cells)))
        if rows:
            tables.append(markdown((title, "accuracy", "in the last round", "pseudo-labels right"), rows))
    return "\n\n".join(tables)


def means(value: dict[str, Any]) -> str:
    """Nested numbers in one line: what they are of once, then each mean with its spread."""
    own = [
        f"{name}: {each['mean']:g} ± {each['std']:g}" for name, each in value.items() if isinstance(each, dict) and "mean" in each
    ]
    parts = [", ".join(own)] if own else []
    for name, each in value.items():
        if isinstance(each, dict) and "mean" not in each and name != "settings chosen" and (within := means(each)):
            parts.append(f"*{name.replace('_', ' ')}* {within}")
    return "; ".join(parts)


def only(value: Any, names: list[str]) -> Any:
    """The parts of nested numbers that belong to these methods; everything if no method is named."""
    if not names or not isinstance(value, dict):
        return value
    kept = {
        key: each if key in names else only(each, names) for key, each in value.items() if key in names or isinstance(each, dict)
    }
    return {key: each for key, each in kept.items() if each}


def everything() -> None:
    """All that docs hold of the claims."""
    main()
    method_pages()
    ablations()
    advice()
    standings()


if __name__ == "__main__":
    everything()
