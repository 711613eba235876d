"""What people see in a terminal at the end of a job or a dry run: tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from grapevine.cli.bars import console
from grapevine.core.param import shown
from grapevine.core.words import many, percent, printable, sentence, size, some

MOST = 30  # rows of a table with a row for each party or client


def say(*sentences: str) -> None:
    for each in sentences:
        console.print(printable(each, 5000), soft_wrap=True)


def say_notes(notes: Sequence[str]) -> None:
    say(*(f"Note: {note}" for note in notes))


def show_grid(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]], of: str = "rows") -> None:
    """A table of right-aligned numbers whose first column is words. Only the first rows are shown."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(names):
        table.add_column(printable(name), justify="right" if i else "left")
    for row in rows[:MOST]:
        table.add_row(*(printable(str(cell)) for cell in row))
    _show(table, title)
    if len(rows) > MOST:
        say(f"… and {len(rows) - MOST} more {of}.")


def show_table(title: str, rows: Sequence[dict]) -> None:
    """Dicts with the same keys, as a table."""
    table = Table()
    for name in rows[0] if rows else ():
        table.add_column(printable(name.replace("_", " ")), overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else printable(shown(value), 5000) for value in row.values()))
    _show(table, title)


def _show(table: Table, title: str) -> None:
    """A table under its title, which stands on a line of its own where it is wider than the table: inside, it would be broken."""
    title = printable(title)
    if len(title) > console.measure(table).maximum:
        say(title)
    else:
        table.title = title
    console.print(table)


def show_place(folder: Path) -> None:
    say(f"Everything is in {folder} (open {folder / 'report.html'}).")


def show_cost(result: Any) -> None:
    say(f"{result.seconds:.1f} s, {size(result.bytes_up)} up, {size(result.bytes_down)} down.")


def minutes(plan: dict) -> str:
    return "under a minute" if plan["minutes"] < 1 else f"about {plan['minutes']:.0f} minutes"


# ---------------------------------------------------------------- train, methods, data


def show_result(result: dict, history: list[dict], folder: Path) -> None:
    from grapevine.jobs.train_words import clients_of, few_chose, few_tested, job_labels, kept_for, rests_on

    own = [row["accuracy"] for row in result["per_client"] if row["accuracy"] is not None]
    rests, mb = rests_on(result), result["peak_memory_mb"]
    memory = f"{mb:,.1f} MB of memory" if mb else "memory unknown"
    rows = {
        "test accuracy": f"{percent(result['accuracy'])} ({kept_for(result, history)}, round {result['best_round']})",
        "95 % interval": f"{rests.between}, from {many(rests.n, 'test row')}" if rests else "",
        "last round": percent(result["accuracy_last"]),
        "balanced accuracy": percent(result["balanced_accuracy"]),
        "clients": f"worst {percent(min(own))}, best {percent(max(own))}" if own else "",
        "pseudo-labels right": percent(result["pseudo_label_accuracy"]) if result["pseudo_label_accuracy"] is not None else "",
        "sent": f"{size(result['bytes_up'])} up, {size(result['bytes_down'])} down",
        "time": f"{result['seconds']:.1f} s, {many(result['rounds'], 'round')}, {memory}",
    }
    table = Table(show_header=False)
    for row in rows.items():
        if row[1]:
            table.add_row(*row)
    _show(table, f"{result['method']} on {result['data']['name']}, seed {result['seed']}")
    say(
        *([f"Clients' accuracies: {(told := clients_of(result))[0].lower()}{told[1:]}"] if own else []),
        *job_labels(result["data"]),
    )
    say_notes([*few_tested(rests), *few_chose(result.get("validation_rows"))])
    show_place(folder)


def show_methods(rows: list[dict]) -> None:
    show_table("Methods", [dict(name=r["name"], what=r["title"], labels_at=", ".join(r["labels"])) for r in rows])
    say("One method's fields: grapevine methods NAME")


def show_method(row: dict) -> None:
    say(f"{row['name']}: {row['title']}", *row["text"].splitlines(), f"Labels at: {', '.join(row['labels'])}")
    show_table(
        "Fields", [dict(field=f["name"], symbol=f["symbol"], default=f["default"], meaning=f["text"]) for f in row["fields"]]
    )


def show_split(split: Any) -> None:
    """The first clients of a split, what each holds, and the sums."""
    rows, classes = split.table(), split.dataset.classes
    few = len(classes) <= 10 and sum(len(name) + 3 for name in classes) <= console.width - 45
    cells = [[row[name] for name in ("client", "rows", "labelled", "unlabelled")]
             + (list(row["classes"]) if few else [sum(n > 0 for n in row["classes"])]) for row in rows]  # fmt: skip
    names = ["client", "rows", "labelled", "unlabelled", *(classes if few else ["classes"])]
    held, holders = (" and the server", "holders") if split.server else ("", "clients")
    show_grid(f"{split.dataset.name}: {many(len(split), 'client')}{held}, split {split.hash[:12]}", names, cells, holders)
    sums = {name: sum(row[name] for row in rows) for name in ("rows", "labelled", "unlabelled", "flipped", "irrelevant")}
    sums |= dict(server=len(split.server.labelled) if split.server else 0, validation=len(split.validation))
    say(", ".join(f"{name} {n}" for name, n in sums.items()) + ".")


# ---------------------------------------------------------------- label


def show_plan(plan: dict, most: int = 4) -> None:
    """`grapevine label --dry-run`: what would leave each party, what it reveals, and what it costs."""
    parties = plan["parties"]
    kinds = dict.fromkeys((f"{e['step']}: {e['field']}", e["reveals"]) for entries in parties.values() for e in entries)
    sent = [{f"{e['step']}: {e['field']}": e["bytes"] for e in entries} for entries in parties.values()]
    rows = [(what, [lines.get(what, 0) for lines in sent]) for what, _ in kinds]
    rows.append(("in all", [sum(lines.values()) for lines in sent]))
    few = len(parties) <= most
    show_grid("What would leave each party (nothing has been sent)", ["step: field", *(parties if few else ("least", "most"))],
              [[what, *map(size, counts if few else (min(counts), max(counts)))] for what, counts in rows])  # fmt: skip
    say("What that reveals:", *(f"  {what} — {told}" for what, told in kinds), *plan["learns"])
    say(f"If the server and one party collude, they learn {plan['collusion']}.")
    memory = f" on this machine, about {plan['memory_mb']:.0f} MB of memory" if plan["memory_mb"] else " of computing"
    say(f"With --secure {plan['protocol']}: {minutes(plan)}{memory}.")
    say_notes([*plan["warnings"], *([plan["advice"]] if plan["advice"] else [])])


def show_labels(result: Any, folder: Path) -> None:
    """The end of a label job: in words first, then party by party."""
    from grapevine.jobs.expected import BY

    s, measured = result.settings, result.accuracy is not None
    say_notes(result.warnings)
    say(*map(sentence, result.remarks))
    some_abstain = any(p.counts["abstained"] for p in result)
    say(_expected(result.expected, result.classes, sum(p.counts["given"] for p in result), some_abstain))
    others = [name for name in result.other_accuracy if name in ("alone", "model") and measured]
    if measured:
        compared = [f"{BY[name]}: {percent(result.other_accuracy[name])}" for name in others]
        say("; ".join([f"Measured against the truth, together: {percent(result.accuracy)}", *compared]) + ".")
    rows = [[p.name, *p.counts.values(), *([percent(p.accuracy)] if measured else []),
             *(percent(p.other_accuracy.get(name)) for name in others)] for p in result]  # fmt: skip
    chosen = ", ".join(f"{name} {value:g}" for name, value in result.about.items() if isinstance(value, (int, float)))
    show_grid(f"Labels by {s.method} with {s.secure} ({chosen})",
              ["party", *result[0].counts, *(["right"] if measured else []), *others], rows, "parties")  # fmt: skip
    _show_baselines(result)
    _show_trust(result)
    show_cost(result)
    show_place(folder)


def _show_baselines(result: Any) -> None:
    """The job beside its baselines."""
    from grapevine.jobs.expected import beaten_by, beside

    parties = [dict(together=p.accuracy, **p.other_accuracy) for p in result]
    lines = beside(dict(together=result.accuracy, **result.other_accuracy), parties)
    if lines:
        rows = [[name, *map(percent, shares)] for name, shares in lines]
        show_grid("Baselines on the same rows", ["labelled by", "right", "worst party", "best party"], rows)
        say(*beaten_by(dict(together=result.accuracy, **result.other_accuracy), result.differ))


def show_own_labels(result: dict, folder: Path) -> None:
    """The end of a label job for one party of several machines, from its result.json."""
    own = result["per_client"][0]
    new = own["n"] - own["labelled"] - own["abstained"]
    say_notes(result["warnings"])
    say(f"{new} of your {own['n']} rows got a label; {own['labelled']} had one, and {own['abstained']} were left without.")
    say(*map(sentence, result.get("remarks", [])))
    if result["method"] == "chorus":  # with xclp only the host is told how good they are
        say(_expected(result["expected"], result["classes"], abstained=own["abstained"] > 0), own["words"])
    show_place(folder)


def _expected(e: dict | None, classes: Sequence[str], known: int = 0, abstained: bool = False) -> str:
    """What is expected of the labels given, and of all if no row had `abstained`; `known` is how many labels could be hidden."""
    from grapevine.jobs.expected import counted, why_unknown

    if not e:
        return f"Expected accuracy: unknown, {why_unknown(classes)}."
    given, hid = e.get("given"), f"{e['n']} of {known}" if e["n"] < known else e["n"]
    told = "Expected accuracy, if no row abstained" if abstained else "Expected accuracy"
    if given:
        told = f"Expected accuracy of the labels given: {_between(given)}, {counted(given)}. If no row abstained"
    return (f"{told}: {_between(e)}: we hid {hid} known labels and recovered that share of them. Each party alone recovers "
            f"{percent(e['alone'])}.")  # fmt: skip


def _between(e: dict) -> str:
    return f"{percent(e['accuracy'])} ({percent(e['low'])} to {percent(e['high'])})"


def _show_trust(result: Any) -> None:
    """How far to trust a label: by probability, by class, and party by party."""
    from grapevine.jobs.expected import sensitivity, verdict_lines, verdict_of_all

    e = result.expected
    if e:
        trust = [{"probability" if "sure" in b else "confidence": f"{b['from']:.2f} to {b['to']:.2f}", "hidden labels": b["n"],
                  "right": percent(b["right"] / b["n"])} for b in e["calibration"] if b["n"]]  # fmt: skip
        show_table("How far to trust a label", trust)
    two = sensitivity(result.recall)
    if two:
        say(f"For '{two['positive']}': sensitivity {percent(two['sensitivity'])}, specificity {percent(two['specificity'])}, by "
            "hidden labels.")  # fmt: skip
    elif result.recall:
        rows = [[name, round(line["n"]), percent(line["recall"]), round(line["given"])] for name, line in result.recall.items()]
        show_grid("By class", ["class", "hidden labels", "recovered", "new labels"], rows, "classes")
    if result.settings.method != "chorus":
        say(*verdict_of_all(e))
    elif len(result.classes) > 1:
        say(*verdict_lines([(p.name, p.verdict) for p in result]))


# ---------------------------------------------------------------- clean


def show_clean_plan(plan: dict) -> None:
    """`grapevine clean --dry-run`."""
    up = next(iter(plan["parties"].values()))
    show_table("What would be sent (nothing has been sent yet)", [
        dict(to=to, what=line["field"] or "—", bytes=size(line["bytes"]), reveals=line["reveals"])
        for to, lines in (("each party", plan["server"]), ("the server", up)) for line in lines
    ])  # fmt: skip
    parties = list(plan["parties"])
    say(f"Parties: {some(parties, MOST)}.", *plan["learns"])
    weights = f"{plan['parameters']:,} weights, {many(plan['epochs'], 'epoch')} on {many(plan['rows'], 'row')}"
    say(f"Model {plan['model']}, {weights}: {minutes(plan)} here.")
    say_notes(plan["warnings"])


def show_cleaned(result: Any, folder: Path) -> None:
    """The end of a clean job."""
    from grapevine.jobs.clean_result import AFTER, BEFORE, findings

    title = f"Labels cleaned by {result.model}, τ {result.method.tau:g}, Υ {result.method.upsilon:g}"
    show_grid(title, ["party", *result[0].table], [[p.name, *p.table.values()] for p in result], "parties")
    say_notes(result.warnings)
    if result.measured:
        lines, none = findings(result.measured)
        rows = [[name, m["found"], m["right"], m["of"], percent(m["precision"]), percent(m["recall"])]
                for name, m in lines.items()]  # fmt: skip
        show_grid("Measured against the truth", ["what", "found", "right", "there were", "precision", "recall"], rows)
        say(*none)
        before, after = (percent(result.measured[name]["precision"]) for name in (BEFORE, AFTER))
        say(f"Labels that are the true class: {before} of those given, {after} of those on rows not excluded.")
    e = result.expected
    if e["n"]:
        right = f", and right about {percent(e['sure_right'] / e['sure'])} of these" if e["sure"] else ""
        say(f"Of {e['n']} held-out rows of the server the classifier was sure of {e['sure']}{right}.")
    show_cost(result)
    show_place(folder)
