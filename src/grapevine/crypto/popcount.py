"""The inner loop of `bits.py`, compiled by numba at first use and cached on disk. It releases the interpreter's lock."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def popcount(typingctx: Any, word: Any) -> Any:
    return types.uint64(types.uint64), lambda ctx, builder, signature, args: builder.ctpop(args[0])


@njit(nogil=True, cache=True)
def hamming(A: np.ndarray, B: np.ndarray, out: np.ndarray) -> None:
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            h = np.uint64(0)
            for w in range(A.shape[1]):
                h += popcount(A[i, w] ^ B[j, w])  # type: ignore[call-arg]
            out[i, j] = np.int32(h)
