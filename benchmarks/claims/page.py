"""docs/claims.md, and the numbers on the methods' pages, from the claims' JSON: `python benchmarks/claims/page.py`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from grapevine import methods
from grapevine.parties.federation import read_toml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from machine import fill, markdown  # noqa: E402

PAGE = HERE.parent.parent / "docs" / "claims.md"
METHODS = PAGE.parent / "methods"
PARTS_FILE = HERE.parent / "xclp_parts.json"
PARTS_PAGES = {"fedavg-xclp": PARTS_FILE, "fedanchor": HERE.parent / "anchor_parts.json"}  # a method's page, what it shows
# What a method's page asks for: claims, and of them the numbers of the named methods alone, or all.
NUMBERS = re.compile(
    r"(?<=<!-- numbers: )(?P<claims>[A-Z0-9 ]+?)(?: of (?P<methods>[^>]+?))? -->\n.*?(?=<!-- end of numbers -->)", re.S
)
COMPARED = {  # claims that compare methods by training: where the labels are, and the rows of settings that do not name them
    "X5": ("at the clients", "CIFAR-10 features"),
    "P1": ("at the clients", "Fashion-MNIST, 5000 labels"),
    "A1": ("at the server", "CIFAR-10 features"),
}
NAMED = ("CIFAR-10", "Fashion-MNIST")
MOST = 40  # numbers in a line of a method's page
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

Each claim of the four papers, checked on real data at a size that two cores can do. Every number here was written by the script
that is named beside it; `make claims` runs them all and makes this page, `make data` what they read ([costs](costs.md)).

"Above" and "below" mean that Student's t of the paired differences over seeds is beyond its one-sided 5 % bound, which for three
seeds is 2.9 standard errors; "not told apart" that it is not, whether for want of a difference or of seeds. With so many
comparisons a few come out by chance. A claim holds if all its comparisons come out, in part if some do. Where methods are
compared by training, the fields of each were chosen on validation accuracy with the same budget: 4 trials, one seed, a third of
the rounds (M1 to M3: one learning rate for a data set, chosen so for FedAvg on true labels). Fields that let one of the three
runs diverge or end at chance are passed over for the next best, and the claim says so. The commit is that of the script when it
wrote the numbers; runs that it found made were not repeated, and may be some commits older. Networks and rounds are far
smaller than the papers': what does not hold here may hold there, and the other way round.

"""


def results() -> dict[str, dict[str, Any]]:
    return {name: json.loads(file.read_text()) for name in CLAIMS if (file := HERE / f"{name}.json").exists()}


def main(path: Path = PAGE) -> None:
    found = results()
    lines = ["| | claim | verdict |", "|---|---|---|"]
    for name, claim in CLAIMS.items():
        told = f"**{found[name]['verdict']}**" if name in found else "not run yet"
        lines.append(f"| {f'[{name}](#{name.lower()})' if name in found else name} | {claim} | {told} |")
    text = HEAD + "\n".join(lines) + "\n"
    for name, result in found.items():
        text += "\n" + section(name, result)
    path.write_text(text, encoding="utf-8")
    print(f"Wrote {path.name}: {len(found)} of {len(CLAIMS)} claims.")


def section(name: str, result: dict[str, Any]) -> str:
    parts = [
        f"## {name}: {result['verdict']} {{#{name.lower()}}}",
        f"**Claim.** {result['claim']}",
        f"**Here.** {result['why']}",
        f"**Setting.** `{result['setting']}`, {result['seeds']} seeds.",
        *chosen(result["numbers"]),
        "**Numbers.**\n\n" + table(result["numbers"]),
        f"**The paper's.** {spoken(result['paper_numbers'])}",
        f"`{result['command']}`, commit {result['commit']}, {result['date']}, {result['cores']} cores.",
    ]
    return "\n\n".join(parts) + "\n"


def chosen(numbers: dict[str, Any]) -> list[str]:
    """The fields that trials chose, where they are not the method's defaults: what `--set` would say."""
    lines = []
    for where, each in numbers.items():
        told = []
        for method, settings in each.get("settings chosen", {}).items() if isinstance(each, dict) else ():
            usual = methods.find(method)().settings()
            fields = [f"{name}={_text(value)}" for name, value in settings.items() if value != usual.get(name)]
            told.append(f"`{method}:{','.join(fields)}`" if fields else f"`{method}`")
        lines += [f"- {where}: {', '.join(told)}"] if told else []
    return ["**Fields chosen**, where they are not the defaults:\n\n" + "\n".join(lines)] if lines else []


def _text(value: Any) -> str:
    return str(value["kind"] if isinstance(value, dict) else value).lower() if isinstance(value, (dict, bool)) else f"{value}"


def table(numbers: dict[str, Any]) -> str:
    """Rows of mean ± standard deviation, and below them what else there is."""
    rows = [(" · ".join(path), f"{value['mean']:g} ± {value['std']:g}") for path, value in leaves(numbers) if "mean" in value]
    return "\n".join(["| | mean ± std over seeds |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], dict]]:
    if not isinstance(value, dict) or path and path[-1] == "settings chosen":
        return []
    if "mean" in value or not any(isinstance(each, dict) for each in value.values()):
        return [(path, value)]
    return [leaf for name, each in value.items() for leaf in leaves(each, (*path, name))]


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
    known = {name: rounded(one["numbers"]) for name, one in results().items()}
    known["parts"] = rounded(json.loads(PARTS_FILE.read_text()))
    head = ("labels", "use", "because", "bounds")
    rows = [tuple(row[name].format_map(known) for name in head) for row in read_toml(HERE / "advice.toml")["row"]]
    fill(path, "claims/advice.toml", markdown(head, rows))


def rounded(value: Any) -> Any:
    """Nested numbers with every spread as its mean, to a tenth."""
    if not isinstance(value, dict):
        return value
    if "mean" in value:
        return f"{value['mean']:.1f}" if value["mean"] is not None else "none"
    return {name: rounded(each) for name, each in value.items()}


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
    """The marker and, for each claim, its verdict, our numbers and the paper's."""
    claims, of = asked["claims"].split(), (asked["methods"] or "").split()
    lines = []
    for name in claims:
        if name not in found:
            lines.append(f"- {name}, {CLAIMS[name]}: not run yet.")
            continue
        result = found[name]
        ours = means(only(result["numbers"], of))
        if ours.count("±") > MOST:
            ours = f"{ours.count('±')} numbers, on the page of claims"
        here = f"    - Here, mean ± std over {result['seeds']} seeds, {result['cores']} cores: {ours}." if ours else None
        theirs = spoken(only(result["paper_numbers"], of)) or "no number of it"
        lines += [f"- [{name}](../claims.md#{name.lower()}), {CLAIMS[name]}: **{result['verdict']}**.",
                  *([here] if here else []), f"    - The paper: {theirs}."]  # fmt: skip
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
    text += "mean ± std"
    if source == PARTS_FILE and not any(name.startswith("preset ") for name in found["parts"]):
        text += "; the other preset diverged with at least one of the seeds, and has no line"
    tables = [f"{text}):"]
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
