"""paillier's packing: many distances in one plaintext, in slots that do not carry."""

import numpy as np
import pytest

from grapevine.core.errors import Mistake
from grapevine.crypto.paillier import Packing

pytest.importorskip("gmpy2")


def test_slots_of_the_two_key_lengths():
    assert [Packing(500, 4096, bits).slots for bits in (2048, 3072)] == [157, 236]
    assert [Packing(500, 4096, bits).packs for bits in (2048, 3072)] == [4, 3]
    # A distance of 4095 fits into 12 bits, 4096 does not.
    assert Packing(1, 4095, 2048).width == 12 and Packing(1, 4096, 2048).width == 13


def test_packing_by_hand():
    packing = Packing(3, 3, 64)
    assert packing.pack([[1, 2, 3], [3, 0, 1]]) == [1 + 2 * 4 + 3 * 16, 3 + 1 * 16]
    assert packing.unpack(57, 3).tolist() == [1, 2, 3]
    with pytest.raises(Mistake, match="overflows"):
        packing.unpack(57, 2)
    with pytest.raises(ValueError, match="slots"):
        packing.pack([[4]])


@pytest.mark.parametrize("length", [1, 7, 8, 4095, 4096])
def test_full_slots_do_not_carry(length):
    packing = Packing(10**6, length, 2048)
    every_one_full = np.full(packing.slots, length)
    (plain,) = packing.pack(every_one_full[None])
    assert plain < 2**2047 and (packing.unpack(plain, packing.slots) == length).all()
    # The sum of L columns of ones is L in every slot, and nothing else.
    ones = packing.pack(np.ones((1, packing.slots)))[0]
    assert ones * length == plain
