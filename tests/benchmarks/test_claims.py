"""The claims' scripts, their results, and the page that is made from them."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks" / "claims"
FIELDS = {"claim", "command", "setting", "seeds", "numbers", "paper_numbers", "verdict", "why", "commit"}
VERDICTS = {"holds", "holds in part", "does not hold", "undecided"}
RESULTS = sorted(FOLDER.glob("[XPAM][0-9].json"))
MADE = re.compile(r"<!-- made by benchmarks/(?P<script>\w+)\.py -->\n(?P<text>.*?)<!-- end -->", re.S)


@pytest.fixture
def claims(monkeypatch):
    """The folder's modules, by name, as its scripts import them; gone again after the test."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), str(FOLDER.parent), *sys.path])
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER.parent) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def identities(claims) -> list[str]:
    return list(claims("page").CLAIMS)


def test_every_claim_has_a_script_that_says_what_it_claims(claims):
    for identity in identities(claims):
        script = claims(identity.lower())
        assert script.__doc__.startswith(f"{identity}: ") and callable(script.main)
        assert script.CLAIM.endswith(".") and script.PAPER


def test_what_m2_counts(claims):
    m2 = claims("m2")
    split = SimpleNamespace(truth=torch.tensor([0, 1, 2, m2.IRRELEVANT, m2.IRRELEVANT]))
    rows, used = torch.tensor([4, 3, 2, 1, 0]), torch.tensor([False, True, True, True, False])
    found = m2.shares(split, [(rows[:2], used[:2]), (rows[2:], used[2:])])
    assert found == {"right": 60.0, "own kept": 66.67, "foreign set aside": 50.0, "own among kept": 66.67}
    assert m2.shares(split, [(rows, torch.zeros(5, dtype=torch.bool))])["own among kept"] == 0


def test_what_table_4_of_mp_ssfl_can_be(claims):
    """With the same shares kept in each line: of all rows it needs more than all own rows in five of its six blocks, and own rows
    among those kept, own / (own + foreign·c/a), have about one c/a in the same five."""
    m2 = claims("m2")
    for title, blocks in m2.TABLE.items():
        for clients, block in blocks.items():
            odd = (title, clients) == ("MNIST", 50)
            assert (m2.own_needed(block) > 100) != odd
            ratios = [(100 / line[0] - 1) * 200 / foreign for foreign, line in zip(m2.FOREIGN, block)]
            assert (max(ratios) < 1.15 * min(ratios)) != odd


def test_a_trial_whose_best_rate_is_at_an_edge_is_followed_by_one_further_out(claims, monkeypatch):
    common = claims("common")
    setting, rate = (
        common.Setting("x", dict(rounds=30), {"a": common.lrs(0.1, 0.3), "a:b=1": common.lrs(1.0, 2.0)}),
        re.compile("lr=([0-9.]+)"),
    )

    def run(setting, specs, folder, seeds, flags):
        """Best at a rate of 0.02; what is above 1 diverges."""
        assert (folder, seeds, flags) == ("x-trials", [common.TRIAL_SEED], dict(rounds=10))
        found = {spec: float(rate.search(spec)[1]) for spec in specs}
        return {
            spec: [] if lr > 1 else [dict(history=[dict(validation_accuracy=1 - abs(lr - 0.02))])] for spec, lr in found.items()
        }

    monkeypatch.setattr(common, "run", run)
    tried = ["a:lr=0.03", "a:lr=0.01", "a:lr=0.1", "a:lr=0.3"]
    found = common.tuned(setting, ["a", "a:c=2", "a:b=1", "d"])
    assert found["a"] == tried and found["a:c=2"] == [f"{spec},c=2" for spec in tried] and found["d"] == ["d"]
    assert found["a:b=1"] == [f"a:lr={lr},b=1" for lr in (0.03, 0.1, 0.3, 1.0, 2.0)]  # at most three further
    assert common.further([dict(lr=0.1, t=1), dict(lr=0.3, t=1), dict(lr=0.9, t=2)], dict(lr=0.3, t=1)) == dict(lr=0.9, t=1)


def test_every_result_belongs_to_a_claim(claims):
    assert {path.stem for path in RESULTS} <= set(identities(claims))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_has_all_fields(path):
    result = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{path.name}: {word} is not JSON"))
    assert FIELDS <= result.keys()
    assert result["id"] == path.stem
    assert result["command"] == f"python benchmarks/claims/{path.stem.lower()}.py"
    assert result["seeds"] >= 3 and result["verdict"] in VERDICTS
    assert all(result[name] for name in FIELDS)
    # A claim whose runs are long in some of its settings has fewer seeds there, never fewer than three.
    assert all(each["seeds"] == [] or 3 <= len(each["seeds"]) <= result["seeds"] for each in spreads(result["numbers"]))


def spreads(value) -> list[dict]:
    """All {mean, std, seeds} within."""
    if not isinstance(value, dict):
        return []
    return [value] if "mean" in value else [found for each in value.values() for found in spreads(each)]


def test_page_shows_every_claim_with_its_numbers_in_6000_words(claims, tmp_path):
    page = claims("page")
    page.main(tmp_path / "claims.md")
    text = (tmp_path / "claims.md").read_text(encoding="utf-8")
    lines = text.split("\n## CIFAR-10 images")[0].splitlines()  # whose table has lines of the claims, too
    for identity in page.CLAIMS:
        assert sum(line.startswith((f"| {identity} |", f"| [{identity}](")) for line in lines) == 1
    for path in RESULTS:
        result = json.loads(path.read_text())
        part = text.split(f"\n## {path.stem}: {page.results()[path.stem]['verdict']} ")[1].split("\n## ")[0]
        assert result["claim"] in part and result["command"] in part
    assert "{" not in text.replace("{#", "") and len(re.sub("<!--.*?-->", "", text).split()) <= 6000


def test_a_result_that_is_older_than_its_script_says_so(claims, tmp_path):
    page, result = claims("page"), dict(id="X4", numbers={}, verdict="holds", claim="More helps.", command="x", seeds=3,
                                        commit="0", date="today")  # fmt: skip
    assert page.OLD in page.section("X4", result, "")
    result["script"] = page.fingerprint(FOLDER / "x4.py")
    assert page.OLD not in page.section("X4", result, "")
    longer = tmp_path / "x4.py"
    longer.write_text("# a remark\n" + (FOLDER / "x4.py").read_text(encoding="utf-8"), encoding="utf-8")
    assert page.fingerprint(longer) == result["script"]
    longer.write_text((FOLDER / "x4.py").read_text(encoding="utf-8") + "\nLABELS = (100,)\n", encoding="utf-8")
    assert page.fingerprint(longer) != result["script"]


def test_curves_on_images_are_shown_as_far_as_they_have_run(claims, tmp_path):
    page, file = claims("page"), tmp_path / "images.json"
    assert "not been run yet" in page.images(file)
    curve = [[round, float(round)] for round in range(1, 9)]
    one = dict(setting="--rounds 8", fields="fedavg", accuracy=dict(mean=7.5, std=0.0, seeds=[7.5]), curves=[curve])
    file.write_text(json.dumps(dict(runs=dict(x5=dict(fedavg=one)))))
    assert "| X5 | `fedavg` | 1 | 4.0 | 7.5 |" in page.images(file)
    assert "- X5: one seed tells nothing apart." in page.images(file)


def test_comparisons_on_images_say_what_can_be_told_apart(claims, tmp_path):
    """Differences of 5, 6 and 7 are more than 2.9 standard errors above nothing; 5, 6 and −5 are not."""
    page, file = claims("page"), tmp_path / "images.json"

    def ran(*right):
        return dict(setting="--rounds 2", accuracy=dict(mean=right[0], std=0.0, seeds=list(right)),
                    curves=[[[1, 0.0], [2, value]] for value in right])  # fmt: skip

    best = page.CLAIMED["x5"]
    methods = dict({best: ran(45.0, 46.0, 47.0)}, fedavg=ran(40.0, 40.0, 40.0), network=ran(40.0, 40.0, 52.0), fedsem=ran(1.0))
    norms = {"p6, norm gn": dict(protofssl=ran(30.0, 31.0)), "p1": dict(protofssl=ran(20.0, 20.0, 20.0))}
    file.write_text(json.dumps(dict(runs=dict(x5=methods, **norms))))
    text = page.images(file)
    assert f"- X5: `{best}` is above `fedavg` (+6.0 ± 0.6); not told apart from `network` (+2.0 ± 3.5)." in text
    assert "- P6: `bn` is below `gn` (-10.5 ± 0.5)." in text  # over the two seeds that both have
    assert "| P6 | `bn` | 3 | 0.0 | 20.0 ± 0.0 |" in text
    assert page.in_words(methods) == "one to three seeds" and page.in_words(norms["p1"]) == "three seeds"


def test_comparisons_on_images_count_in_the_verdict(claims):
    page = claims("page")

    def ran(*right):
        return dict(accuracy=dict(seeds=list(right)))

    best, below, same = dict(xclp=ran(45.0, 46.0, 47.0)), dict(fedavg=ran(40.0, 40.0, 40.0)), dict(network=ran(45.0, 47.0, 46.0))
    assert page.with_images("does not hold", "xclp", best | below) == "holds in part"
    assert page.with_images("holds", "xclp", best | below) == "holds"
    assert page.with_images("holds", "xclp", best | below | same) == "holds in part"
    assert page.with_images("does not hold", "xclp", best | same) == "does not hold"
    one_seed, own = dict(fedsem=ran(1.0)), {"xclp:guests=all": ran(40.0, 40.0, 40.0)}
    assert page.with_images("undecided", "xclp", best | below) == "holds in part"
    assert page.with_images("undecided", "xclp", best | same) == "undecided"
    assert page.with_images("does not hold", "xclp", best | one_seed | own) == "does not hold"
    variant = {"xclp:guests=all": ran(45.0, 46.0, 47.0), "xclp": ran(40.0, 40.0, 40.0)}
    assert page.with_images("does not hold", "xclp:guests=all", variant) == "does not hold"  # better than itself is not better


def test_docs_hold_what_the_results_say(claims, tmp_path):
    page = claims("page")
    page.main(tmp_path / "claims.md")
    assert (tmp_path / "claims.md").read_text(encoding="utf-8") == page.PAGE.read_text(encoding="utf-8")
    shutil.copytree(page.METHODS, tmp_path / "methods")
    page.method_pages(tmp_path / "methods")
    page.ablations(tmp_path / "methods")
    without = {path.stem for path in page.METHODS.glob("*.md") if not page.NUMBERS.search(path.read_text(encoding="utf-8"))}
    assert without == {
        "chorus",
        "fedrgd",
        "sage",
        "fedlabel",
        "proxyfl",
        "feddb",
        "cbafed",
        "fl2",
        "moment-heads",
    }  # no claim names them
    which = page.PAGE.parent / "which-method.md"
    page.standings(Path(shutil.copy(which, tmp_path)))
    page.advice(tmp_path / which.name)
    assert (tmp_path / which.name).read_text(encoding="utf-8") == which.read_text(encoding="utf-8")
    for path in page.METHODS.glob("*.md"):
        assert (tmp_path / "methods" / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_marked_places_in_the_docs_are_those_of_their_files(claims, tmp_path):
    root = FOLDER.parent.parent
    shutil.copytree(root / "docs", tmp_path / "docs")
    shutil.copy(root / "README.md", tmp_path)
    pages = [path.relative_to(root) for path in [root / "README.md", *(root / "docs").rglob("*.md")]]
    places = [place for page in pages for place in MADE.finditer((root / page).read_text(encoding="utf-8"))]
    scripts = {place["script"] for place in places}
    by_page = {"anchor_parts", "xclp_parts"}  # page.py writes these, as the test above sees
    own = {
        "clean_cleanlab",
        "cost_account",
        "docs_numbers",
        "label",
        "privacy",
        "secure_hamming",
        "state_of_the_art",
        "supervised",
    }
    assert scripts == own | by_page
    assert all(place["text"].strip() for place in places)
    for name in scripts - by_page:
        claims(name).document(json.loads((FOLDER.parent / f"{name}.json").read_text()), tmp_path)
    for page in pages:
        assert (tmp_path / page).read_text(encoding="utf-8") == (root / page).read_text(encoding="utf-8"), page


def test_a_place_is_filled_and_one_that_is_not_there_is_said(claims, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n\n<!-- made by benchmarks/x.py -->\nstale\n<!-- end -->\n\nb\n", encoding="utf-8")
    fill = claims("machine").fill
    fill(page, "x.py", "new")
    assert page.read_text(encoding="utf-8") == "a\n\n<!-- made by benchmarks/x.py -->\n\nnew\n\n<!-- end -->\n\nb\n"
    with pytest.raises(SystemExit, match="page.md has 0 places for y.py, not one"):
        fill(page, "y.py", "new")


def test_the_page_of_speeds_is_that_of_its_files(claims):
    speed = claims("speed")
    assert speed.page() == speed.PAGE.read_text(encoding="utf-8")
    for name, (title, _) in speed.PARTS.items():
        found = speed.read(name)
        assert (found is not None) == (f"## {title}\n" in speed.page())
        if found:
            assert f"`python benchmarks/{name}.py`" in speed.page() and f"load {found['machine']['load']}" in speed.ran(
                name, found
            )


def test_a_page_asks_for_numbers(claims, tmp_path):
    (tmp_path / "one.md").write_text("before\n\n<!-- numbers: X1 Z9 of alone -->\nstale\n<!-- end of numbers -->\nafter\n")
    page = claims("page")
    page.CLAIMS = {"X1": "more", "Z9": "never"}
    numbers = dict(few=dict(alone=dict(mean=1.5, std=0.25), both=dict(mean=2, std=0)))
    theirs = dict(few=dict(alone=3, both=4))
    page.results = lambda: dict(X1=dict(id="X1", verdict="holds", seeds=3, cores=2, numbers=numbers, paper_numbers=theirs))
    page.method_pages(tmp_path)
    text = (tmp_path / "one.md").read_text()
    assert "- [X1](../claims.md#x1), more: **holds (old run)**.\n" in text
    assert "    - Here, mean ± std over 3 seeds, 2 cores: *few* alone: 1.5 ± 0.25.\n" in text
    assert "    - The paper: few: alone 3.\n- Z9, never: not run yet.\n" in text
    assert "stale" not in text and text.endswith("<!-- end of numbers -->\nafter\n")


def test_a_claim_is_undecided_only_if_all_its_comparisons_are_open(claims):
    common = claims("common")
    assert common.verdict(["yes", "yes"]) == "holds"
    assert common.verdict(["yes", "open"]) == "holds in part"
    assert common.verdict(["open", "no"]) == "does not hold"
    assert common.verdict(["open", "open"]) == "undecided"
    # Differences 1, 2, 3: mean 2, standard error 1 / √3, and 2 > 2.92 / √3 (Student's t, 2 degrees, 95 %).
    found = common.beats([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found["difference"], found["standard_error"], found["outcome"]) == (2.0, 0.58, "yes")
    assert common.beats([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])["outcome"] == "no"
    assert common.beats([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], margin=0.2)["outcome"] == "yes"  # 1.8 > 1.69
    assert common.beats([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], margin=0.4)["outcome"] == "open"  # 1.6 < 1.69
    assert common.beats([1.0, 5.0, 0.0], [2.0, 1.0, 2.0])["outcome"] == "open"
    assert common.beats([1.0, 1.0], [1.0, 1.0])["outcome"] == "open"


def test_the_next_best_fields_are_taken_where_a_run_ends_at_chance(claims, monkeypatch):
    common = claims("common")
    last = {"m:lr=1": (0.7, 0.1, 0.7), "m:lr=2": (0.6, 0.6, 0.6)}
    run = lambda setting, specs, *rest: {  # noqa: E731
        spec: [dict(accuracy_last=x, confusion=[[]] * 10) for x in last[spec]] for spec in specs
    }
    monkeypatch.setattr(common, "run", run)
    monkeypatch.setattr(common, "tuned", lambda setting, methods, quick: {method: list(last) for method in methods})
    setting = common.Setting("s", {}, seeds=3)
    (found,) = common.compared(setting, ["m"]).values()
    assert [one["accuracy_last"] for one in found] == [0.6] * 3 and found[0]["passed_over"] == ["m:lr=1"]
    (found,) = common.compared(setting, ["m:noise=5"]).values()  # what is changed may be why
    assert [one["accuracy_last"] for one in found] == [0.7, 0.1, 0.7] and not found[0]["passed_over"]


def quick(identity: str, folder: Path) -> None:
    """A quick run ends well, prints its verdict, and keeps nothing: neither where it was started nor beside the script."""
    result = FOLDER / f"{identity}.json"
    before = result.read_bytes() if result.exists() else None
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    runs = folder / "runs"
    command = [sys.executable, "-W", "error", str(FOLDER / f"{identity.lower()}.py"), "--quick"]
    environment = dict(os.environ, GRAPEVINE_CLAIMS=str(runs), **threads)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=280)
    if "benchmarks/prepare.py" in done.stderr:
        pytest.skip(done.stderr)  # the data is not here
    assert done.returncode == 0, done.stderr
    assert any(f'"verdict": "{verdict}"' in done.stdout for verdict in VERDICTS)
    assert list(folder.iterdir()) == []
    assert (result.read_bytes() if result.exists() else None) == before


def test_quick_run_of_one_claim_that_needs_no_data(tmp_path):
    quick("A4", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(FOLDER.glob("[xpam][0-9].py")), ids=lambda path: path.stem)
def test_quick_run(script, tmp_path):
    quick(script.stem.upper(), tmp_path)
