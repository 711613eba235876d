"""A chi-square test of uniformity, for what each side of a protocol sees.

The tests draw from fixed secrets, so they give the same answer every time; the level says how unlikely a sound protocol was to
fail when they were written.
"""

import numpy as np
from scipy import stats

LEVEL = 1e-6


def p_value(words: np.ndarray) -> float:
    """How likely uniform words are to look this uneven: each byte's histogram, the worst byte, times the number of bytes."""
    data = np.ascontiguousarray(words).view(np.uint8).reshape(words.size, words.dtype.itemsize)
    assert len(data) >= 256 * 10, "too few values for a chi-square test with 256 bins"
    worst = min(stats.chisquare(np.bincount(data[:, at], minlength=256)).pvalue for at in range(data.shape[1]))
    return min(1.0, worst * data.shape[1])


def looks_uniform(words: np.ndarray) -> bool:
    return p_value(words) > LEVEL


def same_distribution(left: np.ndarray, right: np.ndarray) -> bool:
    """Two samples of words, byte by byte: could they come from one distribution?"""
    for at in range(left.dtype.itemsize):
        table = [np.bincount(x.ravel().view(np.uint8)[at :: x.dtype.itemsize], minlength=256) for x in (left, right)]
        counts = np.array(table)[:, np.sum(table, axis=0) > 0]
        if counts.shape[1] > 1 and stats.chi2_contingency(counts).pvalue * left.dtype.itemsize < LEVEL:
            return False
    return True
