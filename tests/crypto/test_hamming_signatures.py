"""SecureHamming refuses what a server in between has changed: ciphertexts, answers, transfers and blocks."""

from itertools import combinations

import numpy as np
import pytest
from distances import MLWE, OT, random_bits, run, slow

from grapevine.core.errors import Mistake
from grapevine.crypto import mlwe
from grapevine.run.simulate import StepError


def flip(value):
    """The same message with one bit of its first array or bytes changed."""
    if isinstance(value, np.ndarray):
        out = value.copy()
        out.reshape(-1).view(np.uint8)[0] ^= 1
        return out
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:]
    name = next(n for n, item in value.items() if isinstance(item, (np.ndarray, bytes)))
    return dict(value, **{name: flip(value[name])})


def tampered(place):
    """A server that changes one bit of every parcel under `place` of a request."""

    def change(requests):
        for payload in requests.values():
            payload[place] = {who: dict(sent, message=flip(sent["message"])) for who, sent in payload[place].items()}
        return requests

    return change


@pytest.mark.parametrize("step_name,place,kind", [("evaluate", "ciphers", "ciphertext"), ("open", "answers", "answer"),
                                                  ("open", "common", "common answer")])  # fmt: skip
def test_changed_ciphertexts_and_answers_are_refused(step_name, place, kind, toy_lattice):
    with pytest.raises(StepError, match=f"the {kind} in the name of .* is not signed"):
        run(MLWE, random_bits((3, 2, 2), 8), change={f"hamming.{step_name}": tampered(place)})


def test_an_answer_to_another_is_refused(toy_lattice):
    """Signed by the right party, but for somebody else."""

    def swap(requests):
        given = [payload["answers"] for payload in requests.values()]
        x, y, k = next((x, y, k) for x, y in combinations(given, 2) for k in set(x) & set(y))
        x[k], y[k] = y[k], x[k]
        return requests

    with pytest.raises(StepError, match="the answer in the name of .* is not signed"):
        run(MLWE, random_bits((2,) * 6, 8), change={"hamming.open": swap})


def test_a_parcel_without_signature_is_refused(toy_lattice):
    def strip(requests):
        for payload in requests.values():
            payload["ciphers"] = {j: dict(message=sent["message"]) for j, sent in payload["ciphers"].items()}
        return requests

    with pytest.raises(StepError, match="the ciphertext in the name of .* is not signed"):
        run(MLWE, random_bits((3, 2), 8), change={"hamming.evaluate": strip})


@slow
@pytest.mark.parametrize(
    "step_name,place,kind",
    [("meet", "preludes", "base offer"), ("hamming.transfer", "requests", "request"), ("hamming.receive", "chunks", "chunk")],
)
def test_changed_transfers_are_refused(step_name, place, kind):
    """A server that offers base transfers of its own, or changes choices, would choose in the receiver's place."""
    with pytest.raises(StepError, match=f"the {kind} in the name of .* is not signed"):
        run(OT, random_bits((3, 2), 8), change={step_name: tampered(place)})


@slow
def test_a_changed_base_choice_is_refused():
    def change(requests):
        for payload in requests.values():
            payload["preludes"] = {
                j: {k: dict(sent, message=flip(sent["message"])) for k, sent in replies.items()}
                for j, replies in payload["preludes"].items()
            }
        return requests

    with pytest.raises(StepError, match="the base choice in the name of .* is not signed"):
        run(OT, random_bits((3, 2), 8), change=dict(share=change))


def test_a_block_of_another_shape_is_said(toy_lattice):
    with pytest.raises(Mistake, match="distances arrived where"):
        MLWE.combine(*([mlwe._share(mlwe.Params(8), np.zeros((2, 2), np.uint16))] * 2), (2, 3), 8)
