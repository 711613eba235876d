"""Masked averages: equal to plain ones within the fixed-point step, uniform to the server, and never over fewer than three."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federation import Federation, each_reply
from uniformity import looks_uniform

from grapevine import methods
from grapevine.core import Meter, run_step, wire
from grapevine.core.errors import Mistake
from grapevine.core.server import StepError
from grapevine.crypto import sums
from grapevine.crypto.spread import protocol as spread
from grapevine.learn.averages import COUNTS, MASKED, Means, averaged_steps, individual, secured
from grapevine.run import simulate
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault

LABELS = dict(clients="clients:150", server="server:60", both="server:60,clients:60")
# What keeps a method short, and changes nothing in how it works; every one has clients that train.
SMALL: dict[str, dict] = {
    "xclp": dict(bits=128, epochs=1, spread=spread("paper")), "fixmatch": dict(epochs=1, threshold=0.2),
    "mixmatch": dict(epochs=1),
    "fedsiam": dict(epochs=1), "fedanchor": dict(epochs=1, batch=50, pretrain=1, threshold=-1.0),
    "semifl": dict(epochs=1, batch=50, server_epochs=1, threshold=0.2), "fedcon": dict(epochs=1, hidden=8, server_epochs=1),
    "mp-ssfl": dict(server_epochs=3, tau=0.5),
}  # fmt: skip
MASKABLE = ["fedavg", "fedprox", "scaffold", "supervised", "xclp", "mp-ssfl", "fedanchor", "semifl", "fedcon", "perclient-lp",
            "network", "fedsem", "fixmatch", "mixmatch", "fedsiam", "sage", "fedlabel"]  # fmt: skip
HEADS = ["fedncm", "fed3r", "fedcgs", "gh-ofl"]  # train nothing: tests/methods/test_moment_heads.py
VARIANTS = [(name, {}) for name in MASKABLE] + [
    ("xclp", dict(base="scaffold")), ("xclp", dict(init="contrastive")), ("network", dict(base="fedprox")),
    ("fixmatch", dict(base="scaffold", momentum=0.0)), ("fedsiam", dict(preset="code")),
]  # fmt: skip


def run(method, digits, rounds=1, clients=5, **settings):
    where = next(place for place in LABELS if place in method.takes)
    split = digits.split(clients=clients, labels=LABELS[where], seed=3, validation=0)  # the newest state is kept
    experiment = Experiment(method, split, **dict(dict(model="linear", per_round=None, seed=5, rounds=rounds), **settings))
    done = experiment.run()
    done.first = dict(weights=experiment.models().new(None, Meter()).state())
    return done


def made(name, more=()):
    return methods.find(name)(**SMALL.get(name, {}), **dict(more))


def tensors(value, at=""):
    if isinstance(value, dict):
        return {name: tensor for key, inner in value.items() for name, tensor in tensors(inner, f"{at}.{key}").items()}
    return {at: value.double()} if isinstance(value, torch.Tensor) else {}


def test_the_list_of_methods_is_that_of_the_code():
    assert [name for name in methods.TABLE if not individual(methods.find(name)())] == MASKABLE + HEADS
    for name in set(methods.TABLE) - set(MASKABLE + HEADS):
        with pytest.raises(Mistake, match=f"^{name} cannot use --secure-average: .*(each client|server|loss|groups|no model)"):
            secured(methods.find(name)())


def test_every_field_of_an_averaged_step_is_averaged_or_is_n():
    """Else a field would be lost under the masks, and the method would miss it."""
    for name, more in VARIANTS:
        method = made(name, more)
        for step, by in averaged_steps(method).items():
            own = set(method.steps()[step].reveals) - {"n"}
            if {"weights", "dy"} <= own:  # one or the other, by the field `base`
                own -= {"weights"} if "dy" in by else {"dy", "dc"}
            assert set(by) == own - ({"apart"} if name == "fedsiam" else set()), (name, step)


@pytest.mark.parametrize("name, more", VARIANTS, ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)))
def test_equals_the_plain_average_within_the_fixed_point_step(digits, name, more):
    """One round. 2^-33 is the step's half; the rest is the rounding of float32, where the plain average has it too, and what a
    server that trains on its own rows afterwards makes of a difference that small."""
    model = "mlp" if more.get("init") == "contrastive" else "linear"
    rounds = 2 if name in ("xclp", "network", "perclient-lp", "fedsem") else 1  # a round of either stage
    plain, masked = (run(made(name, more), digits, rounds, model=model, secure_average=way) for way in (False, True))
    a, b = tensors(plain.shared), tensors(masked.shared)
    assert a.keys() == b.keys()
    factor = 1 if name in ("fedavg", "fedprox", "supervised", "mp-ssfl", "mixmatch") else 64
    for key in a:
        assert ((a[key] - b[key]).abs() <= factor * (2.0**-33 + 2.0**-23 * a[key].abs().clamp(min=2.0**-9))).all(), key
    assert trained(masked) == trained(plain) > 0


def trained(run):
    """How many entries of the model are not what they began as."""
    first = tensors(run.first)
    return sum(int((w != first[key]).sum()) for key, w in tensors(run.shared).items() if key in first)


def test_a_mean_by_hand(digits):
    """Three clients with 6, 4 and 2 labels, and one with none: Σ n w / Σ n over those who trained."""
    plain = Federation(digits, methods.FedAvg(lr=0.5), labelled=(6, 4, 2, 0), unlabelled=(1, 1, 1, 1))
    replies = each_reply(plain.server, plain.method.train, weights=plain.state["weights"], round=0)
    masked = Federation(digits, secured(methods.FedAvg(lr=0.5)), labelled=(6, 4, 2, 0), unlabelled=(1, 1, 1, 1))
    mean = masked.round()["method"]["weights"]
    for name, found in mean.items():
        by_hand = sum(n * replies[i]["weights"][name].double() for i, n in enumerate((6, 4, 2))) / 12
        assert ((found.double() - by_hand).abs() <= 2.0**-33 + 2.0**-24 * by_hand.abs()).all()


def test_scaffold_counts_every_client_in_n(digits):
    """Nobody tells that it has nothing to train on, so c moves by Σ Δc_i over all clients, as Algorithm 1 is printed."""
    plain = Federation(digits, methods.Scaffold(), labelled=(6, 4, 2, 0), unlabelled=(1, 1, 1, 1))
    each = {i: dict(control=dict(c=plain.state["c"], heard=-1)) for i in range(4)}
    replies = each_reply(plain.server, plain.method.train, each=each, weights=plain.state["weights"], round=0)
    masked = Federation(digits, secured(methods.Scaffold()), labelled=(6, 4, 2, 0), unlabelled=(1, 1, 1, 1))
    c = masked.round()["method"]["c"]
    for name in c:
        by_hand = sum(replies[i]["dc"][name].double() for i in range(3)) / 4
        assert ((c[name].double() - by_hand).abs() <= 2.0**-32 + 2.0**-22 * by_hand.abs()).all()


# ---------------------------------------------------------------- bits, bytes, words


def test_repeats_bit_for_bit_in_every_mode(digits, tmp_path):
    runs = [run(made("fedavg"), digits, 2, per_round=4, secure_average=True, **how)
            for how in ({}, {}, dict(mode="strict"), dict(workers=2))]  # fmt: skip
    assert len({wire.encode(one.shared) for one in runs}) == 1
    assert all(one.history == runs[0].history for one in runs)


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(digits, tmp_path, monkeypatch):
    monkeypatch.setattr("grapevine.run.driver.CHECKPOINT_SECONDS", -1.0)
    split = digits.split(clients=5, labels="clients:150", seed=3)
    settings = dict(model="linear", rounds=3, per_round=4, secure_average=True)
    whole = Experiment(made("fedavg"), split, **settings).run()

    def stop(done, rounds, line):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Experiment(made("fedavg"), split, out=tmp_path / "cut", **settings).run(progress=stop)
    again = Experiment(made("fedavg"), split, out=tmp_path / "cut", **settings).run(resume=True)
    assert wire.encode(again.shared) == wire.encode(whole.shared)


def test_eight_bytes_a_number_leave_a_client(digits):
    """650 weights, n and whether it trained, of five clients in one round; and their keys before it."""
    federation = Federation(digits, secured(methods.FedAvg()), labelled=(4,) * 5, unlabelled=(0,) * 5)
    before = federation.server.account.totals["up"]
    federation.round()
    lines = {line["step"]: line for line in federation.server.account.drain() if line["direction"] == "up"}
    assert set(lines) == {"average_keys", "average_meet", "train"} and before > 0
    field = lines["train"]["fields"]["masked"]
    assert list(lines["train"]["fields"]) == ["masked"] and field["shape"] == [650 + COUNTS]
    assert 0 <= field["bytes"] / 5 - 8 * (650 + COUNTS) < 40


def test_its_words_say_that_it_is_masked():
    method = secured(methods.FedAvg())
    assert method.reveals("train", "masked") == MASKED and method.reveals("train", "weights") is None
    assert "opened" in MASKED and method.settings() == methods.FedAvg().settings() and method.name == "fedavg"


# ---------------------------------------------------------------- what the server sees


def seen(digits, monkeypatch=None):
    """The shares of five clients in three rounds, as words."""
    if monkeypatch:
        zero = lambda me, secrets, occasion, shape, *more, **words: np.zeros(shape, np.uint64)  # noqa: E731
        monkeypatch.setattr(sums, "mask", zero)
    sent = []

    def tap(direction, step, client, data):
        if direction == "up" and step == "train":
            sent.append(wire.decode(data)["masked"])

    federation = Federation(digits, secured(methods.FedAvg()), labelled=(6,) * 5, unlabelled=(0,) * 5, tap=tap)
    for _ in range(3):
        federation.server.now = federation.round()["method"]["round"]
    return np.concatenate(sent)


def test_what_the_server_sees_is_uniform(digits):
    assert looks_uniform(seen(digits))


def test_without_masks_it_is_not(digits, monkeypatch):
    """The mutant that the test above is there for."""
    assert not looks_uniform(seen(digits, monkeypatch))


def test_a_share_is_new_in_every_round_and_attempt(digits):
    words = seen(digits).reshape(3, 5, -1)
    assert len(np.unique(words)) == words.size


def test_a_client_is_summed_with_the_same_others_in_every_round(digits):
    """Eleven clients, four or more a round: two groups, whose turns come equally often."""
    federation = Federation(digits, secured(methods.FedAvg(epochs=1)), labelled=(2,) * 11, unlabelled=(0,) * 11)
    federation.server.per_round = 4
    means = Means(federation.method, federation.server, set(range(11)))
    chosen = [tuple(means.sample(t)) for t in range(20)]
    assert len(set(chosen)) == 2 and sorted(i for group in set(chosen) for i in group) == list(range(11))
    assert {chosen.count(group) for group in set(chosen)} == {10} and {len(group) for group in chosen} == {5, 6}
    assert len({chosen[2 * t] for t in range(10)}) == 2  # the order changes
    means.agreed -= {3}
    assert {tuple(means.sample(t)) for t in range(20)} == {tuple(i for i in group if i != 3) for group in chosen}  # groups stay


def test_a_method_that_chooses_by_labels_takes_everybody(digits):
    with pytest.raises(Mistake, match="could compare the sums: with --secure-average use --per-round 5, which is all of them"):
        run(made("network"), digits, 2, per_round=4, secure_average=True)


# ---------------------------------------------------------------- lost clients


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_a_lost_client_costs_an_attempt_and_the_mean_is_the_others(digits, when):
    faults = (Fault(1, "train", when=when, round=0),)
    plain, masked = (run(made("fedavg"), digits, faults=faults, secure_average=way) for way in (False, True))
    a, b = tensors(plain.shared), tensors(masked.shared)
    assert all(((a[key] - b[key]).abs() <= 2.0**-33 + 2.0**-24 * a[key].abs()).all() for key in a)


def test_a_client_lost_between_two_attempts_costs_another(digits):
    faults = (Fault(1, "train", round=0), Fault(3, "average_again", round=0))
    masked = run(made("fedavg"), digits, faults=faults, secure_average=True)
    plain = run(made("fedavg"), digits, faults=(Fault(1, "train", round=0), Fault(3, "train", round=0)))
    a, b = tensors(plain.shared), tensors(masked.shared)
    assert all(((a[key] - b[key]).abs() <= 2.0**-33 + 2.0**-24 * a[key].abs()).all() for key in a)


def test_a_round_with_fewer_than_three_left_changes_nothing(digits, caplog):
    faults = tuple(Fault(i, "train", round=0) for i in range(3))
    first = run(made("fedavg"), digits, faults=faults, secure_average=True)
    assert "2 clients are left, and a masked average is over 3 or more" in caplog.text
    assert first.history[0]["accuracy"] == first.history[1]["accuracy"]


def test_the_round_after_goes_on(digits):
    """Client 1 is there again in the second round; client 2 was lost while keys were agreed on, and stays out."""
    faults = (Fault(1, "train", round=0), Fault(2, "average_meet"))
    done = run(made("fedavg"), digits, 3, faults=faults, secure_average=True)
    assert done.history[-1]["accuracy"] > done.history[0]["accuracy"] + 0.1


def test_a_share_of_another_length_is_a_lost_client(digits, monkeypatch, caplog):
    def short(method, name, client, payload):
        reply = run_step(method, name, client, payload)
        return dict(masked=reply["masked"][:-1]) if name == "train" and client.id == 1 else reply

    monkeypatch.setattr(simulate, "run_step", short)
    run(made("fedavg"), digits, secure_average=True)
    assert "client 1 is left out of step train in round 0" in caplog.text


# ---------------------------------------------------------------- what a client refuses


@pytest.fixture
def federation(digits):
    return Federation(digits, secured(methods.FedAvg()), labelled=(6,) * 4, unlabelled=(0,) * 4)


def names(*ids):
    return {f"{i:06d}": at for at, i in enumerate(ids)}


def asked(federation, to, parties, round=0, **more):
    weights = federation.state["method"]["weights"]
    told = dict(round=round, length=650 + COUNTS, parties=parties, **more)
    return federation.server.ask(federation.method.train, to=to, weights=weights, round=round, average=told)


def test_a_client_does_not_sum_with_one_other(federation):
    with pytest.raises(StepError, match="a masked average over 2 clients reveals too much about each: it needs 3 or more"):
        asked(federation, [0, 1], names(0, 1))


def test_attempts_are_of_ever_fewer_clients_and_of_three_at_least(federation):
    asked(federation, [0], names(0, 1, 2))
    again = federation.method.average_again
    for parties in (names(0, 1, 2), names(0, 1, 3), names(0, 1, 2, 3)):
        with pytest.raises(StepError, match="must be among clients of the previous attempt"):
            federation.server.ask(again, to=[0], attempt=1, parties=parties)
    with pytest.raises(StepError, match="it needs 3 or more"):
        federation.server.ask(again, to=[0], attempt=1, parties=names(0, 1))


def test_masks_are_used_once(federation):
    asked(federation, [0], names(0, 1, 2, 3))
    with pytest.raises(StepError, match="closed"):
        asked(federation, [0], names(0, 1, 2, 3))
    with pytest.raises(StepError, match="closed"):
        federation.server.ask(federation.method.average_again, to=[0], attempt=0, parties=names(0, 1, 2))
    asked(federation, [0], names(0, 1, 2, 3), round=1)
    with pytest.raises(StepError, match="closed"):
        asked(federation, [0], names(0, 1, 2, 3), round=0)


def test_the_plain_step_cannot_be_asked_for(federation):
    with pytest.raises(StepError, match="average"):
        federation.server.ask(federation.method.train, to=[0], weights=federation.state["method"]["weights"], round=0)


def test_numbers_that_would_wrap_are_refused_before_they_are_sent(digits):
    with pytest.raises(StepError, match="training diverged|could come to"):
        run(methods.FedAvg(lr=1e9), digits, secure_average=True)


def test_fewer_than_three_a_round_are_refused_before_the_run(digits):
    with pytest.raises(Mistake, match="needs 3 clients in every round, but there are 2: use --per-round 3 or more"):
        run(made("fedavg"), digits, per_round=2, secure_average=True)
