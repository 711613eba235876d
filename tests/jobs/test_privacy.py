"""`grapevine privacy`: ledgers of runs, jobs and parties in plain words."""

import json

import pytest
import torch
from click.testing import CliRunner

from grapevine.cli.main import main
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.rows import ClientData, Rows
from grapevine.crypto import accountant
from grapevine.crypto.accountant import Gaussian, Response
from grapevine.jobs import privacy
from grapevine.parties.files import write_toml

pytest.importorskip("dp_accounting")
ALL = ["east", "north", "south"]


def release(ledger: Ledger, event=None, parties=ALL, what="class sums", rows="b" * 64, **mechanism) -> None:
    table = accountant.to_table(event) if event else mechanism or None
    ledger.release(job="a" * 64, what=what, rows=rows, parties=parties, mechanism=table)


def rows_of(at: range) -> ClientData:
    x = torch.arange(300.0)[:, None]
    some, none = torch.tensor(list(at)), torch.arange(0)
    return ClientData(Rows(x, some, torch.zeros(len(some))), Rows(x, none, none), Rows(x, none, none), ("a",))


def ask(*words) -> str:
    done = CliRunner().invoke(main, ["privacy", *map(str, words)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_a_partys_folder_is_summed_up_by_unit_and_says_what_is_outside(tmp_path):
    ledger = Ledger(tmp_path)
    for _ in range(4):
        release(ledger, Gaussian(5.0))
    release(ledger, Response(2.0, 10), what="labels")
    release(ledger, what="moments")
    release(ledger, what="spread", kind="sealed")
    (found,) = privacy.read(tmp_path)
    assert found.spent == {"label": (2.0, 0.0), "row": (accountant.epsilon([Gaussian(2.5)], 1e-6), 1e-6)}
    assert [(line.what, line.times) for line in found.releases] == [
        ("class sums", 4),
        ("labels", 1),
        ("moments", 1),
        ("spread", 1),
    ]
    text = ask(tmp_path)
    assert f"ε = {found.spent['row'][0]:.3g} at δ = 1e-06 so far for one row of this party" in text
    assert "ε = 2 at δ = 0 so far for the label of one row" in text
    assert "rows of this party were in 1 exact sum over east, north, south" in text and "no ε covers it" in text
    assert "ε for labels does not cover which rows have a label" in text
    told = json.loads(CliRunner().invoke(main, ["privacy", str(tmp_path), "--json"]).output)
    assert told[0]["spent"]["label"] == dict(epsilon=2.0, delta=0.0, hides=privacy.UNITS["label"])


def test_delta_is_asked_for_or_that_of_the_run(tmp_path):
    release(Ledger(tmp_path), Gaussian(5.0))
    (tmp_path / "settings.json").write_text(json.dumps(dict(job="train", delta=1e-4)))
    assert privacy.read(tmp_path)[0].spent["row"] == (accountant.epsilon([Gaussian(5.0)], 1e-4), 1e-4)
    assert privacy.read(tmp_path, 1e-8)[0].spent["row"][1] == 1e-8
    with pytest.raises(Mistake, match="delta is 0.5"):
        privacy.read(tmp_path, 0.5)


def test_a_label_jobs_folder_has_a_ledger_in_each_partys(tmp_path):
    for name in ALL:
        (tmp_path / name).mkdir()
        ledger = Ledger()  # as a job in one process keeps it
        release(ledger, Response(3.0, 10), what="labels")
        ledger.save(tmp_path / name)
    found = privacy.read(tmp_path)
    assert [(party.name, party.spent) for party in found] == [(name, {"label": (3.0, 0.0)}) for name in ALL]


def test_clients_of_a_simulation_share_a_ledger_and_are_counted_apart(tmp_path):
    ledger = Ledger(tmp_path)
    for client, times in (("000000", 3), ("000001", 1)):
        for _ in range(times):
            release(ledger, Gaussian(4.0, 10, 0.2), [client], rows=client * 10)
    one, other = privacy.read(tmp_path)
    assert (one.name, other.name) == ("000000", "000001")
    assert one.spent["row"][0] == accountant.epsilon([Gaussian(4.0, 30, 0.2)], 1e-6) > other.spent["row"][0]


def test_parties_of_one_machine_are_told_apart_by_their_rows_and_grown_tables_count_on(tmp_path):
    ledger = Ledger(tmp_path)
    tables = [ledger.rows(rows_of(at)) for at in (range(0, 100), range(200, 300), range(0, 120))]
    for rows in tables:
        release(ledger, Gaussian(4.0), rows=rows)
    north, south = sorted(privacy.read(tmp_path), key=lambda party: party.spent["row"])
    assert north.name == f"rows {tables[1][:8]}" and south.name == f"rows {tables[0][:8]}"
    assert north.spent["row"][0] == accountant.epsilon([Gaussian(4.0)], 1e-6)
    assert south.spent["row"][0] == accountant.epsilon([Gaussian(4.0, 2)], 1e-6)  # the same rows, and twenty more


def test_a_partys_folder_names_where_its_ledger_is(tmp_path):
    (tmp_path / "party").mkdir()
    (tmp_path / "ledger").mkdir()
    write_toml(tmp_path / "party" / "party.toml", dict(name="north", ledger=str(tmp_path / "ledger")))
    release(Ledger(tmp_path / "ledger"), Response(2.0, 10))
    assert "ε = 2 at δ = 0 so far for the label of one row" in ask(tmp_path / "party")


def test_many_clients_are_one_table(tmp_path):
    ledger = Ledger(tmp_path)
    for i in range(12):
        release(ledger, Gaussian(4.0), [f"{i:06d}"], rows=f"{i:06d}" * 10)
    text = ask(tmp_path)
    assert "Privacy spent" in text and "000011" in text and "Releases of" not in text and text.count("Outside:") == 1


def test_folders_without_a_ledger_say_so(tmp_path):
    with pytest.raises(Mistake, match="nothing has been released"):
        privacy.read(tmp_path)
    with pytest.raises(Mistake, match="is not a folder"):
        privacy.read(tmp_path / "none")
    (tmp_path / "settings.json").write_text(json.dumps(dict(job="train")))
    assert "every client's update was sent without noise, so no ε covers it" in ask(tmp_path)


def test_a_ledger_that_was_changed_or_has_lost_its_key_is_not_believed(tmp_path):
    release(Ledger(tmp_path), Gaussian(5.0))
    path = tmp_path / "privacy.jsonl"
    path.write_text(path.read_text().replace('"multiplier": 5.0', '"multiplier": 9.0'))
    with pytest.raises(Mistake, match="was changed"):
        privacy.read(tmp_path)
    (tmp_path / "privacy.key").unlink()
    with pytest.raises(Mistake, match="privacy.key is missing"):
        privacy.read(tmp_path)
