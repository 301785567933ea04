"""Loops of a convolution that is followed by 2 x 2 max pooling and a ReLU.

Behind the pooling at most one of four scores of a channel has a gradient, and behind the ReLU often none.
A convolution's usual backward pass multiplies all those zeros; these loops go from one gradient that is not
zero to the next.

Arrays are (B, height, width, channels): a window of k x k pixels is k runs of ``k * channels`` consecutive
numbers, over which the inner loops go.  ``place`` says which of its four scores a pooled one is, row by
row: 0 to 3, or ``CUT_OFF`` where the ReLU made it zero.
"""

from __future__ import annotations

import numpy as np
from numba import njit

CUT_OFF = 4

# Sums keep their order; only a product and a sum may become one instruction.
_compiled = njit(cache=True, nogil=True, fastmath={"contract"})


@_compiled
def pool_and_rectify(scores, pooled, place):
    """pooled = max(0, largest of 2 x 2), with the first of equal scores; what is not a number stays so."""
    zero = scores.dtype.type(0)
    for b in range(pooled.shape[0]):
        for i in range(pooled.shape[1]):
            for j in range(pooled.shape[2]):
                first, second = scores[b, 2 * i, 2 * j], scores[b, 2 * i, 2 * j + 1]
                third, fourth = scores[b, 2 * i + 1, 2 * j], scores[b, 2 * i + 1, 2 * j + 1]
                values, places = pooled[b, i, j], place[b, i, j]
                for c in range(pooled.shape[3]):
                    largest, index = first[c], np.uint8(0)
                    if second[c] > largest or second[c] != second[c]:
                        largest, index = second[c], np.uint8(1)
                    if third[c] > largest or third[c] != third[c]:
                        largest, index = third[c], np.uint8(2)
                    if fourth[c] > largest or fourth[c] != fourth[c]:
                        largest, index = fourth[c], np.uint8(3)
                    if largest <= zero:
                        largest, index = zero, np.uint8(CUT_OFF)
                    values[c], places[c] = largest, index


@_compiled
def unpool(gradient, place, scores_gradient):
    """The gradient in all scores: that of a pooled one in its place, zero elsewhere."""
    zero = gradient.dtype.type(0)
    rows, columns = gradient.shape[1], gradient.shape[2]
    for b in range(gradient.shape[0]):
        # A row or column that pooling leaves over.
        scores_gradient[b, 2 * rows :] = zero
        scores_gradient[b, :, 2 * columns :] = zero
        for i in range(rows):
            for j in range(columns):
                values, places = gradient[b, i, j], place[b, i, j]
                for q in range(4):
                    target = scores_gradient[b, 2 * i + q // 2, 2 * j + q % 2]
                    for c in range(gradient.shape[3]):
                        target[c] = values[c] if places[c] == q else zero


@_compiled
def bias_gradient(gradient, place, result):
    """result[o] = sum of gradient[b, i, j, o]."""
    zero = gradient.dtype.type(0)
    result[:] = zero
    for b in range(gradient.shape[0]):
        for i in range(gradient.shape[1]):
            for j in range(gradient.shape[2]):
                values, places = gradient[b, i, j], place[b, i, j]
                for o in range(len(result)):
                    result[o] += values[o] if places[o] != CUT_OFF else zero


@_compiled
def _start(b, i, j, q, height, width, channels):
    """Where the window of a pooled score at place ``q`` begins among all pixels, one after the other."""
    return ((b * height + 2 * i + q // 2) * width + 2 * j + q % 2) * channels


@_compiled
def weight_gradient(images, gradient, place, result):
    """result[o] = sum of gradient[b, i, j, o] times the window of ``images`` that it belongs to.

    ``result`` is (channels out, k, k, channels in).  Per channel out: list the gradients that are not zero,
    then add windows, four at a time, so that a sum is loaded and stored once for four products.
    """
    zero = gradient.dtype.type(0)
    n, rows, columns, outputs = gradient.shape
    height, width, inputs = images.shape[1:]
    size = result.shape[1]
    run = size * inputs
    pixels, sums = images.reshape(-1), result.reshape(outputs, size, run)
    # Room for three zeros that fill up the last four.
    values, starts = (
        np.zeros(n * rows * columns + 3, gradient.dtype),
        np.zeros(n * rows * columns + 3, np.int64),
    )
    for o in range(outputs):
        count = 0
        for b in range(n):
            for i in range(rows):
                for j in range(columns):
                    q = np.int64(place[b, i, j, o])
                    if q != CUT_OFF:
                        values[count] = gradient[b, i, j, o]
                        starts[count] = _start(b, i, j, q, height, width, inputs)
                        count += 1
        for spare in range(count, min(count + 3, len(values))):
            values[spare], starts[spare] = zero, 0
        for r in range(size):
            total, row = sums[o, r], r * width * inputs
            total[:] = zero
            for e in range(0, count, 4):
                value0, value1, value2, value3 = values[e], values[e + 1], values[e + 2], values[e + 3]
                start0, start1 = starts[e] + row, starts[e + 1] + row
                start2, start3 = starts[e + 2] + row, starts[e + 3] + row
                run0, run1 = pixels[start0 : start0 + run], pixels[start1 : start1 + run]
                run2, run3 = pixels[start2 : start2 + run], pixels[start3 : start3 + run]
                for t in range(run):
                    total[t] += value0 * run0[t] + value1 * run1[t] + value2 * run2[t] + value3 * run3[t]


@_compiled
def image_gradient(gradient, place, weight, result):
    """result = sum of gradient[b, i, j, o] weight[o], each in the window that it belongs to.

    ``weight`` is (channels out, k, k, channels in), ``result`` has the shape of the images.  Per image: list
    the channels whose gradient belongs to a window, then add their weights to it, four at a time.
    """
    zero = gradient.dtype.type(0)
    n, rows, columns, outputs = gradient.shape
    height, width, inputs = result.shape[1:]
    size = weight.shape[1]
    run = size * inputs
    pixels, weights = result.reshape(-1), weight.reshape(outputs, size, run)
    pixels[:] = zero
    # Room for three zeros that fill up the last four.
    values = np.zeros((rows, columns, 4, outputs + 3), gradient.dtype)
    channel = np.zeros((rows, columns, 4, outputs + 3), np.int64)
    counts = np.zeros((rows, columns, 4), np.int64)
    for b in range(n):
        counts[:] = 0
        for i in range(rows):
            for j in range(columns):
                for o in range(outputs):
                    q = np.int64(place[b, i, j, o])
                    if q != CUT_OFF:
                        e = counts[i, j, q]
                        values[i, j, q, e], channel[i, j, q, e] = gradient[b, i, j, o], o
                        counts[i, j, q] += 1
                for at in range(4):
                    end = counts[i, j, at]
                    values[i, j, at, end : end + 3] = zero
        for r in range(size):
            for i in range(rows):
                for j in range(columns):
                    for at in range(4):
                        first = _start(b, i, j, at, height, width, inputs) + r * width * inputs
                        target = pixels[first : first + run]
                        value, o = values[i, j, at], channel[i, j, at]
                        for e in range(0, counts[i, j, at], 4):
                            value0, value1 = value[e], value[e + 1]
                            value2, value3 = value[e + 2], value[e + 3]
                            run0, run1 = weights[o[e], r], weights[o[e + 1], r]
                            run2, run3 = weights[o[e + 2], r], weights[o[e + 3], r]
                            for t in range(run):
                                target[t] += (
                                    value0 * run0[t] + value1 * run1[t] + value2 * run2[t] + value3 * run3[t]
                                )
