"""Compiled information of softmax regressions with shared parameters; see ``_row_sums``."""

from __future__ import annotations

import numpy as np
from numba import njit

from vaneb.covariance._row_sums import AT_ONCE, EXPONENT_LIMIT_LOW, FAST, by_points
from vaneb.vector_math import exp, exponentials

#: Exponentials up to here, and the products of two of them, are far from overflow.
SAFE_EXPONENT = 300.0
#: Rows that a loop takes in one turn: vectors of four, four of them at once.
WHOLE = 16


@njit(cache=True, nogil=True)
def padded(n):
    """``n`` rounded up to whole vectors, so that no loop ends in single rows, which cost as much as a vector.

    The rows that are added are zero, and so is what they add to a sum of products with a row.
    """
    return (n + WHOLE - 1) // WHOLE * WHOLE


@njit(cache=True, nogil=True, fastmath=FAST)
def _project(rows, projections, n, columns):
    """l_c = (B_c - B_0) z of a client's rows at columns[:, c * n : c * n + n], zeros where there is no row.

    Probabilities, and differences between classes, are the same whatever all classes have in common.
    """
    n_classes, d, _ = projections.shape
    columns[:, : n_classes * n] = 0.0
    for c in range(1, n_classes):
        for a in range(d):
            for b in range(d):
                own, factor = columns[a, c * n : c * n + n], projections[c, a, b] - projections[0, a, b]
                for i in range(rows.shape[0]):
                    own[i] += factor * rows[i, b]


@njit(cache=True, nogil=True, fastmath=FAST)
def _shares(columns, point, n_classes, n, inverse, share):
    """Class probabilities times what they sum to; one over that is left in ``inverse`` (n,).

    ``share`` has class c at [c * n : c * n + n], so that most loops run over all classes at once.  The
    columns of the first class are zero and are not looked at: its exponential is one.
    """
    others, count = share[n : n_classes * n], (n_classes - 1) * n
    column, coordinate = columns[0, n : n_classes * n], point[0]
    for i in range(count):
        others[i] = column[i] * coordinate
    for a in range(1, columns.shape[0]):
        column, coordinate = columns[a, n : n_classes * n], point[a]
        for i in range(count):
            others[i] += column[i] * coordinate
    squares = 0.0
    for i in range(count):
        squares += others[i] * others[i]
    if squares < SAFE_EXPONENT**2:
        for i in range(n):
            share[i] = 1.0
        exponentials(others, count, others)
    else:
        for i in range(n):
            share[i] = 0.0
        _subtract_largest(n_classes, n, inverse, share)
        exponentials(share, n_classes * n, share)
    for i in range(n):
        inverse[i] = share[i]
    for c in range(1, n_classes):
        own = share[c * n : c * n + n]
        for i in range(n):
            inverse[i] += own[i]
    for i in range(n):
        inverse[i] = 1.0 / inverse[i]


@njit(cache=True, nogil=True)
def _subtract_largest(n_classes, n, top, share):
    """Scores minus the largest over classes, so that exponentials are at most 1; ``top`` is scratch."""
    for i in range(n):
        top[i] = share[i]
        for c in range(1, n_classes):
            top[i] = max(top[i], share[c * n + i])
        for c in range(n_classes):
            share[c * n + i] = max(share[c * n + i] - top[i], -EXPONENT_LIMIT_LOW)


@njit(cache=True, nogil=True, fastmath=FAST)
def softmax_moments(rows, starts, stops, projections, points, tuples, scatter, out):
    """T = (1/n_k) sum_i sum_c p_ic u_ic (x) ... (x) u_ic with u_ic = B_c z_i - sum_b p_ib B_b z_i.

    Centred before it is multiplied out, so that a nearly certain class leaves a small positive
    semidefinite matrix and not the rounding error of a difference.  Order 3 is the derivative of
    order 2, because the derivative of p_c is p_c u_c and sum_c p_c u_c = 0.
    """
    if starts.size == 0:
        return
    d = rows.shape[1]
    n_classes = projections.shape[0]
    n_tuples, order = tuples.shape
    longest = padded((stops - starts).max())
    columns, centred = np.empty((d, n_classes * longest)), np.empty((d, n_classes * longest))
    share, prefix = np.empty(n_classes * longest), np.empty(n_classes * longest)
    mean, inverse = np.empty(longest), np.empty(longest)
    entries = np.empty(n_tuples)
    for k in range(starts.size):
        start = starts[k]
        n = padded(stops[k] - start)
        everything = n_classes * n
        if k == 0 or start != starts[k - 1]:
            _project(rows[start : stops[k]], projections, n, columns)
        own = points[k if points.shape[0] > 1 else 0]
        for j in range(own.shape[0]):
            _shares(columns, own[j], n_classes, n, inverse, share)
            for c in range(n_classes):
                part = share[c * n : c * n + n]
                for i in range(n):
                    part[i] *= inverse[i]
            for a in range(d):
                mean[:n] = 0.0
                for c in range(n_classes):
                    part, column = share[c * n : c * n + n], columns[a, c * n : c * n + n]
                    for i in range(n):
                        mean[i] += part[i] * column[i]
                for c in range(n_classes):
                    column, moved = columns[a, c * n : c * n + n], centred[a, c * n : c * n + n]
                    for i in range(n):
                        moved[i] = column[i] - mean[i]
            for t in range(n_tuples):
                # the product over all coordinates but the last is shared by consecutive tuples
                first, second, last = tuples[t, 0], tuples[t, order - 2], tuples[t, order - 1]
                if t == 0 or first != tuples[t - 1, 0] or second != tuples[t - 1, order - 2]:
                    for i in range(everything):
                        prefix[i] = share[i] * centred[first, i]
                    if order == 3:
                        for i in range(everything):
                            prefix[i] *= centred[second, i]
                total = 0.0
                for i in range(everything):
                    total += prefix[i] * centred[last, i]
                entries[t] = total / (stops[k] - start)
            for q in range(scatter.size):
                out[k, j, q] = entries[scatter[q]]


@by_points
def softmax_information(rows, starts, stops, projections, points, tuples, scatter, out):
    """Order 2 of ``softmax_moments`` for few classes, by pairs of them:

        sum_c p_c u_c u_c'  =  sum_{b>c} p_b p_c (l_b - l_c)(l_b - l_c)',

    where the matrices are the same at all points.  Nothing is subtracted here either.

    A client's points are taken ``AT_ONCE`` together and loops run over its rows and points at once: a client
    may have fewer rows than a vector has places.  Sums over coordinates and over rows are matrix products.
    """
    m, d = points.shape[1:]
    n_classes = projections.shape[0]
    n_pairs = n_classes * (n_classes - 1) // 2
    longest = (stops - starts).max() if starts.size else 0
    scores_of = np.empty(((n_classes - 1) * longest, d))
    products = np.empty((n_pairs * longest, tuples.shape[0]))
    weight, share = np.empty(n_pairs * longest * AT_ONCE), np.empty(n_classes * longest * AT_ONCE)
    total = np.empty(longest * AT_ONCE)
    # All clients' points, or those that they share, one after the other.
    points_t = np.ascontiguousarray(points.reshape(-1, d).T)
    squares = (points_t * points_t).sum(axis=0)
    flat = out.reshape(-1, scatter.size)
    k = 0
    while k < starts.size:
        # Clients from k to before ``after`` are one and the same, each with points of its own.
        after = k + 1
        while points.shape[0] > 1 and after < starts.size and starts[after] == starts[k]:
            after += 1
        n = stops[k] - starts[k]
        longest_score = _prepare_pairs(rows[starts[k] : stops[k]], projections, tuples, scores_of, products)
        origin = k * m if points.shape[0] > 1 else 0
        for first in range(0, (after - k) * m, AT_ONCE):
            width = min(AT_ONCE, (after - k) * m - first)
            here = slice(origin + first, origin + first + width)
            at, size, others = np.ascontiguousarray(points_t[:, here]), n * width, (n_classes - 1) * n
            own = weight[: n_pairs * size]
            if n_classes == 3 and longest_score * squares[here].max() < SAFE_EXPONENT**2:
                np.dot(scores_of[:others], at, own[: others * width].reshape(others, width))
                _three_classes(own[:size], own[size : 2 * size], own[2 * size :])
            else:
                scores = share[size : n_classes * size].reshape(others, width)
                np.dot(scores_of[:others], at, scores)
                _pair_weights(share[: n_classes * size], n_classes, total[:size], own)
            entries = np.dot(products[: n_pairs * n].T, own.reshape(n_pairs * n, width))
            for j in range(width):
                target = flat[k * m + first + j]
                for q in range(scatter.size):
                    target[q] = entries[scatter[q], j]
        k = after


@by_points
def _prepare_pairs(rows, projections, tuples, scores_of, products):
    """l_b - l_0 of each class and row, and the entries of (l_b - l_c)(l_b - l_c)' / n of each pair and row.

    Returns the largest squared length of an l_b - l_0.
    """
    n, d = rows.shape
    n_classes = projections.shape[0]
    largest, difference = 0.0, np.empty(d)
    for i in range(n):
        pair = 0
        for b in range(1, n_classes):
            own, squares = scores_of[(b - 1) * n + i], 0.0
            for a in range(d):
                own[a] = 0.0
                for e in range(d):
                    own[a] += (projections[b, a, e] - projections[0, a, e]) * rows[i, e]
                squares += own[a] * own[a]
            largest = max(largest, squares)
            for c in range(b):
                for a in range(d):
                    difference[a] = own[a] - (scores_of[(c - 1) * n + i, a] if c > 0 else 0.0)
                for t in range(tuples.shape[0]):
                    products[pair * n + i, t] = difference[tuples[t, 0]] * difference[tuples[t, 1]] / n
                pair += 1
    return largest


@by_points
def _three_classes(one, two, both):
    """``_pair_weights`` of three classes, written over the scores of the last two: exponentials are safe."""
    for j in range(one.size):
        e, f = exp(one[j]), exp(two[j])
        inverse = 1.0 / (1.0 + e + f)
        p, q = e * inverse, f * inverse
        one[j] = p * inverse
        two[j] = q * inverse
        both[j] = p * q


@by_points
def _pair_weights(share, n_classes, total, weight):
    """p_b p_c for pairs b > c, one after the other, from the scores of all classes but the first.

    ``share`` has class c at [c * size : (c + 1) * size] and is overwritten, ``total`` (size,) is scratch.
    The largest score is taken off first, so that exponentials are at most 1.
    """
    size = total.size
    share[:size] = 0.0
    total[:] = 0.0
    for b in range(1, n_classes):
        own = share[b * size : (b + 1) * size]
        for j in range(size):
            total[j] = max(total[j], own[j])
    for b in range(n_classes):
        own = share[b * size : (b + 1) * size]
        for j in range(size):
            own[j] -= total[j]
    total[:] = 0.0
    for b in range(n_classes):
        own = share[b * size : (b + 1) * size]
        for j in range(size):
            own[j] = exp(own[j])
        for j in range(size):
            total[j] += own[j]
    for j in range(size):
        inverse = 1.0 / total[j]
        total[j] = inverse * inverse
    pair = 0
    for b in range(1, n_classes):
        one = share[b * size : (b + 1) * size]
        for c in range(b):
            other, both = share[c * size : (c + 1) * size], weight[pair * size : (pair + 1) * size]
            for j in range(size):
                both[j] = one[j] * other[j] * total[j]
            pair += 1


@by_points
def three_class_derivative(rows, starts, stops, projections, points, tuples, scatter, out):
    """Order 3 of ``softmax_moments`` for three classes, laid out as ``softmax_information``.

    With l_1 and l_2 relative to the first class, the third cumulant of the loadings is

        k_111 l_1^3 + k_112 (l_1 l_1 l_2 + ...) + k_122 (l_1 l_2 l_2 + ...) + k_222 l_2^3,

    k_aaa = p_a (1 - p_a)(1 - 2 p_a), k_aab = -p_a p_b (1 - 2 p_a); the tensors are the same at all points.
    """
    m, d = points.shape[1:]
    longest = (stops - starts).max() if starts.size else 0
    scores_of, products = np.empty((2 * longest, d)), np.empty((4 * longest, tuples.shape[0]))
    weight = np.empty(4 * longest * AT_ONCE)
    points_t = np.ascontiguousarray(points.reshape(-1, d).T)
    flat = out.reshape(-1, scatter.size)
    k = 0
    while k < starts.size:
        after = k + 1
        while points.shape[0] > 1 and after < starts.size and starts[after] == starts[k]:
            after += 1
        n = stops[k] - starts[k]
        _prepare_triples(rows[starts[k] : stops[k]], projections, tuples, scores_of, products)
        origin = k * m if points.shape[0] > 1 else 0
        for first in range(0, (after - k) * m, AT_ONCE):
            width = min(AT_ONCE, (after - k) * m - first)
            at = np.ascontiguousarray(points_t[:, origin + first : origin + first + width])
            size = n * width
            own = weight[: 4 * size]
            np.dot(scores_of[: 2 * n], at, own[: 2 * size].reshape(2 * n, width))
            _cumulants(own[:size], own[size : 2 * size], own[2 * size : 3 * size], own[3 * size :])
            entries = np.dot(products[: 4 * n].T, own.reshape(4 * n, width))
            for j in range(width):
                target = flat[k * m + first + j]
                for q in range(scatter.size):
                    target[q] = entries[scatter[q], j]
        k = after


@by_points
def _prepare_triples(rows, projections, tuples, scores_of, products):
    """l_1 and l_2 of each row, and the entries of its tensors over n, in the order of ``_cumulants``."""
    n, d = rows.shape
    for i in range(n):
        for b in range(1, 3):
            own = scores_of[(b - 1) * n + i]
            for a in range(d):
                own[a] = 0.0
                for e in range(d):
                    own[a] += (projections[b, a, e] - projections[0, a, e]) * rows[i, e]
        one, two = scores_of[i], scores_of[n + i]
        for t in range(tuples.shape[0]):
            a, b, c = tuples[t]
            products[i, t] = one[a] * one[b] * one[c] / n
            mixed = one[a] * one[b] * two[c] + one[a] * two[b] * one[c] + two[a] * one[b] * one[c]
            products[n + i, t] = mixed / n
            mixed = one[a] * two[b] * two[c] + two[a] * one[b] * two[c] + two[a] * two[b] * one[c]
            products[2 * n + i, t] = mixed / n
            products[3 * n + i, t] = two[a] * two[b] * two[c] / n


@by_points
def _cumulants(first, second, third, fourth):
    """k_111, k_112, k_122, k_222, written over the scores of classes 1 and 2 in the first two."""
    for j in range(first.size):
        top = max(0.0, first[j], second[j])
        none, e, f = exp(-top), exp(first[j] - top), exp(second[j] - top)
        inverse = 1.0 / (none + e + f)
        p, q, rest = e * inverse, f * inverse, none * inverse
        # 1 - p is the sum of the others, which keeps its digits where p is nearly one.
        one, two = rest + q - p, rest + p - q
        first[j] = p * (rest + q) * one
        second[j] = -p * q * one
        third[j] = -p * q * two
        fourth[j] = q * (rest + p) * two
