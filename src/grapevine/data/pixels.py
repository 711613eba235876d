"""The inner loops of `augment.py`, compiled by numba at first use and cached on disk; that module is their only caller.

Images are uint8 (n, height, width, channels). The arithmetic is Pillow's, pixel for pixel. Batches are small and every sample
has operations of its own, so one compiled loop is several times faster than whole-batch tensor operations; it also releases
the interpreter's lock. A module of its own, because numba takes half a second to load.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

# In the order of augment.RANGES.
IDENTITY, AUTO_CONTRAST, EQUALIZE, CONTRAST, BRIGHTNESS, SOLARIZE, POSTERIZE = range(7)
COLOR, SHARPNESS, ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = range(7, 14)


@njit(nogil=True, cache=True)
def shift(x, down, along, mirror, out):
    """Translate by whole pixels with reflection (the outermost pixel is not repeated), then mirror."""
    n, h, w, c = x.shape
    source = np.empty(w * c, np.int64)
    for i in range(n):
        for q in range(w):
            p = abs((w - 1 - q if mirror[i] else q) + along[i])
            p = w - 1 - abs(w - 1 - p)
            for k in range(c):
                source[q * c + k] = p * c + k
        for row in range(h):
            r = abs(row + down[i])
            line = x[i, h - 1 - abs(h - 1 - r)].reshape(w * c)
            to = out[i, row].reshape(w * c)
            for q in range(w * c):
                to[q] = line[source[q]]


@njit(nogil=True, cache=True)
def cover(x, top, left, height, width, value):
    """A rectangle of one colour in each image, cut off at the edges, in place."""
    n, h, w, c = x.shape
    for i in range(n):
        for row in range(max(top[i], 0), min(top[i] + height, h)):
            for column in range(max(left[i], 0), min(left[i] + width, w)):
                for k in range(c):
                    x[i, row, column, k] = value


@njit(nogil=True, cache=True)
def rand_augment(x, codes, sizes):
    """To image i the operations codes[:, i] with magnitudes sizes[:, i], one after the other, in place."""
    n, h, w, c = x.shape
    table = np.empty((c, 256), np.uint8)
    other = np.empty((h, w, c), np.uint8)
    for i in range(n):
        image = x[i]
        for line in range(codes.shape[0]):
            code, size = codes[line, i], sizes[line, i]
            if code == IDENTITY:
                continue
            if code >= ROTATE:
                move(image, other, code, size)
                image[:] = other
            elif code == COLOR:
                if c == 3:
                    desaturate(image, np.float32(size))
            elif code == SHARPNESS:
                smooth(image, other)
                blend(other, image, np.float32(size))
            else:
                fill_table(image, table, code, size)
                look_up(image, table)


@njit(nogil=True, cache=True)
def mix(first, second, factor):
    """first + factor · (second − first) in float32, cut to a whole number."""
    value = np.float32(first) + factor * (np.float32(second) - np.float32(first))
    return np.uint8(min(max(value, np.float32(0)), np.float32(255)))


@njit(nogil=True, cache=True)
def luma(image, row, column):
    """Grey of ITU-R 601-2 in 16-bit fixed point, rounded."""
    if image.shape[2] == 1:
        return np.int64(image[row, column, 0])
    red, green, blue = np.int64(image[row, column, 0]), np.int64(image[row, column, 1]), np.int64(image[row, column, 2])
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


# ---------------------------------------------------------------- operations on single values


@njit(nogil=True, cache=True)
def fill_table(image, table, code, size):
    for k in range(image.shape[2]):
        if code == AUTO_CONTRAST:
            auto_contrast(image, k, table[k])
        elif code == EQUALIZE:
            equalize(image, k, table[k])
        elif code == SOLARIZE:
            for v in range(256):
                table[k, v] = v if v < size else 255 - v
        elif code == POSTERIZE:
            dropped = 8 - int(math.floor(size + 0.5))
            for v in range(256):
                table[k, v] = v >> dropped << dropped
        else:
            towards = mean_grey(image) if code == CONTRAST else 0
            for v in range(256):
                table[k, v] = mix(towards, v, np.float32(size))


@njit(nogil=True, cache=True)
def auto_contrast(image, k, table):
    low, high = 255, 0
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            low = min(low, image[row, column, k])
            high = max(high, image[row, column, k])
    scale = 255.0 / (high - low) if high > low else 1.0
    offset = -low * scale if high > low else 0.0
    for v in range(256):
        table[v] = int(min(max(v * scale + offset, 0.0), 255.0))


@njit(nogil=True, cache=True)
def equalize(image, k, table):
    h, w, _ = image.shape
    counts = np.zeros(256, np.int64)
    last = 0
    for row in range(h):
        for column in range(w):
            v = image[row, column, k]
            counts[v] += 1
            last = max(last, v)
    step = (h * w - counts[last]) // 255  # the lightest value's pixels do not count
    before = step // 2
    for v in range(256):
        table[v] = min(before // step, 255) if step else v
        before += counts[v]


@njit(nogil=True, cache=True)
def mean_grey(image):
    total = 0
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            total += luma(image, row, column)
    return int(total / (image.shape[0] * image.shape[1]) + 0.5)


@njit(nogil=True, cache=True)
def look_up(image, table):
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            for k in range(image.shape[2]):
                image[row, column, k] = table[k, image[row, column, k]]


# ---------------------------------------------------------------- blends with a duller image


@njit(nogil=True, cache=True)
def desaturate(image, factor):
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            grey = luma(image, row, column)
            for k in range(3):
                image[row, column, k] = mix(grey, image[row, column, k], factor)


@njit(nogil=True, cache=True)
def smooth(image, out):
    """The 3 × 3 kernel of ones with 5 in the middle, over 13, rounded; the outermost pixels stay."""
    h, w, c = image.shape
    lines, to = image.reshape(h, w * c), out.reshape(h, w * c)
    for row in range(h):
        for q in range(w * c):
            if 0 < row < h - 1 and c <= q < (w - 1) * c:
                total = 4 * np.int64(lines[row, q])
                for r in range(row - 1, row + 2):
                    total += np.int64(lines[r, q - c]) + np.int64(lines[r, q]) + np.int64(lines[r, q + c])
                to[row, q] = (2 * total + 13) // 26
            else:
                to[row, q] = lines[row, q]


@njit(nogil=True, cache=True)
def blend(dull, image, factor):
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            for k in range(image.shape[2]):
                image[row, column, k] = mix(dull[row, column, k], image[row, column, k], factor)


# ---------------------------------------------------------------- operations that move pixels


@njit(nogil=True, cache=True)
def move(image, out, code, size):
    """Output pixel (x, y) is the one at (a x + b y + left, d x + e y + top), nearest, in 16.16 fixed point; black outside."""
    h, w, c = image.shape
    a, b, left, d, e, top = 1.0, 0.0, 0.0, 0.0, 1.0, 0.0
    if code == ROTATE:
        angle = -size * math.pi / 180
        a, b, d, e = math.cos(angle), math.sin(angle), -math.sin(angle), math.cos(angle)
        left, top = w / 2 - a * (w / 2) - b * (h / 2), h / 2 - d * (w / 2) - e * (h / 2)
    elif code == SHEAR_X:
        b = size
    elif code == SHEAR_Y:
        d = size
    elif code == TRANSLATE_X:
        left = size * w
    else:
        top = size * h
    start_x, start_y = fixed(left + (a + b) / 2), fixed(top + (d + e) / 2)  # a pixel is looked up at its centre
    ax, bx, dy, ey = fixed(a), fixed(b), fixed(d), fixed(e)
    for row in range(h):
        for column in range(w):
            p = (start_x + bx * row + ax * column) >> 16
            r = (start_y + ey * row + dy * column) >> 16
            inside = 0 <= p < w and 0 <= r < h
            for k in range(c):
                out[row, column, k] = image[r, p, k] if inside else 0


@njit(nogil=True, cache=True)
def fixed(v):
    return int(math.floor(v * 65536 + 0.5))
