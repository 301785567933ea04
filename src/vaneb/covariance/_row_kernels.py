"""Compiled information of regressions, and its derivative, from clients' rows.

For client k and point theta both are a symmetric tensor

    T = (1/n_k) sum_i sum_t w_it V_it,

in which the tensors V_it of order 2 (information) or 3 (derivative) come from row i alone, and the numbers
w_it from its linear index at theta.

regression    V = z (x) z or z (x) z (x) z, and w a function of eta = z'theta or its derivative.
softmax       With l_c = B_c z and probabilities p_c: for each two classes V = (l_b - l_c) (x) (l_b - l_c) and
              w = p_b p_c.  Of the derivative: V = (l_b - l_c) (x) (l_b - l_c) (x) (l_b - l_c) and
              w = p_b p_c (p_c - p_b); and for each three classes, with x = l_b - l_c and y = l_c - l_e,
              V = 2 xxx + (xxy + xyx + yxx) - (xyy + yxy + yyx) - 2 yyy and w = p_b p_c p_e.

No two large numbers are subtracted: a nearly certain class leaves a small positive semidefinite matrix.

Client k holds rows[starts[k]:stops[k]].  A client that follows itself (a solver asks for pairs of client and
point, sorted by client) has its points taken together.  Loops run over rows and points at once, since a
client may have fewer rows than a vector has places; sums over coordinates and rows are matrix products.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.vector_math import exp

POISSON, LOGISTIC, NEGATIVE_BINOMIAL, POISSON_SCORE, LOGISTIC_SCORE, GAUSSIAN_SCORE, SOFTMAX = range(7)
#: By the names of the models; a score is the outer product of a row's gradients.
KINDS = {
    "poisson": POISSON,
    "logistic": LOGISTIC,
    "negative-binomial": NEGATIVE_BINOMIAL,
    "poisson score": POISSON_SCORE,
    "logistic score": LOGISTIC_SCORE,
    "gaussian score": GAUSSIAN_SCORE,
    "softmax": SOFTMAX,
}
#: Linear predictors are clipped here before they are exponentiated: e^200 is 7e86, so that a precision, its
#: square and its determinant stay finite.
EXPONENT_LIMIT = 200.0
#: Exponentials up to here, and the products of two of them, are far from overflow.
SAFE_EXPONENT = 300.0
#: Points of a client that are taken together; pairs of row and point, and entries of tensors, in one step.
AT_ONCE, PAIRS, ENTRIES = 64, 4096, 1 << 20

#: A zero divided by makes no error, whose test would keep a loop scalar.
compiled = njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")


@compiled
def row_moments(rows, starts, stops, response, projections, points, kind, parameter, tuples, scatter, out):
    """Fill ``out`` (K, m, d**order) at points (1 or K, m, d).

    ``tuples`` (T, order) lists the coordinates of the distinct entries of a tensor, and ``scatter``
    (d**order,) says which of them stands at each place.  Only scores read ``response`` (N,), and only the
    softmax model ``projections`` (C, d, d).
    """
    m, d = points.shape[1:]
    n_tuples, order = tuples.shape
    n_classes = projections.shape[0] if kind == SOFTMAX else 1
    n_index, n_terms = max(n_classes - 1, 1), 1
    if kind == SOFTMAX:
        n_terms = n_classes * (n_classes - 1) // 2 * (n_classes + 1 if order == 3 else 3) // 3
    most = max(1, min(PAIRS, ENTRIES // (n_terms * n_tuples)))
    loadings, products = np.empty((n_classes * most, d)), np.empty((n_terms * most, n_tuples))
    index, weight, observed = np.empty(n_index * PAIRS), np.empty(n_terms * PAIRS), np.empty(PAIRS)
    # All clients' points, or those that they share, one after the other.
    points_t = np.ascontiguousarray(points.reshape(-1, d).T)
    flat = out.reshape(-1, scatter.size)
    k = 0
    while k < starts.size:
        # Clients from k to before ``after`` are one and the same, each with points of its own.
        after = k + 1
        while points.shape[0] > 1 and after < starts.size and starts[after] == starts[k]:
            after += 1
        origin = k * m if points.shape[0] > 1 else 0
        for first in range(0, (after - k) * m, AT_ONCE):
            width = min(AT_ONCE, (after - k) * m - first)
            at = np.ascontiguousarray(points_t[:, origin + first : origin + first + width])
            entries = np.zeros((n_tuples, width))
            farthest = (at * at).sum(axis=0).max() if kind == SOFTMAX else 0.0
            step = min(most, PAIRS // width)
            for row in range(starts[k], stops[k], step):
                n = min(step, stops[k] - row)
                largest = _set_loadings(rows[row : row + n], projections, kind, loadings)
                _set_products(loadings[: n_classes * n], n, kind, tuples, stops[k] - starts[k], products)
                own = loadings[(n_classes - n_index) * n : n_classes * n]
                eta, w = index[: n_index * n * width], weight[: n_terms * n * width]
                np.dot(own, at, eta.reshape(n_index * n, width))
                if kind == SOFTMAX:
                    _class_weights(eta, n * width, order == 3, largest * farthest < SAFE_EXPONENT**2, w)
                else:
                    if response.size > 0:
                        for i in range(n):
                            observed[i * width : (i + 1) * width] = response[row + i]
                    _regression_weights(kind, parameter, order == 3, eta, observed, w)
                entries += np.dot(products[: n_terms * n].T, w.reshape(n_terms * n, width))
            for j in range(width):
                target = flat[k * m + first + j]
                for q in range(scatter.size):
                    target[q] = entries[scatter[q], j]
        k = after


@compiled
def _set_loadings(rows, projections, kind, loadings):
    """z of a regression; l_c - l_0 of the classes, one after the other, and the largest of their squares."""
    n, d = rows.shape
    largest = 0.0
    if kind != SOFTMAX:
        for i in range(n):
            for a in range(d):
                loadings[i, a] = rows[i, a]
        return largest
    for c in range(len(projections)):
        for i in range(n):
            square = 0.0
            for a in range(d):
                total = 0.0
                for q in range(d):
                    total += (projections[c, a, q] - projections[0, a, q]) * rows[i, q]
                loadings[c * n + i, a] = total
                square += total * total
            largest = max(largest, square)
    return largest


@compiled
def _set_products(loadings, n, kind, tuples, n_rows, products):
    """Entries of the tensors V / n_k of n rows, one term after the other."""
    if kind != SOFTMAX:
        _set_powers(loadings, tuples, n_rows, products)
        return
    n_classes, order, at = len(loadings) // n, tuples.shape[1], 0
    for b in range(1, n_classes):
        for c in range(b):
            x = loadings[b * n : (b + 1) * n] - loadings[c * n : (c + 1) * n]
            _set_powers(x, tuples, n_rows, products[at : at + n])
            at += n
            for e in range(c if order == 3 else 0):
                y = loadings[c * n : (c + 1) * n] - loadings[e * n : (e + 1) * n]
                _set_mixed(x, y, tuples, n_rows, products[at : at + n])
                at += n


@compiled
def _set_powers(v, tuples, n_rows, products):
    """Entries of v (x) v or v (x) v (x) v, over n_rows, for each of the vectors."""
    for i in range(len(v)):
        for t in range(len(tuples)):
            product = v[i, tuples[t, 0]] * v[i, tuples[t, 1]]
            product = product * v[i, tuples[t, 2]] if tuples.shape[1] == 3 else product
            products[i, t] = product / n_rows


@compiled
def _set_mixed(x, y, tuples, n_rows, products):
    """Entries of 2 xxx + (xxy + xyx + yxx) - (xyy + yxy + yyx) - 2 yyy, over n_rows."""
    for i in range(len(x)):
        for t in range(len(tuples)):
            a, b, c = tuples[t]
            once = x[i, a] * x[i, b] * y[i, c] + x[i, a] * y[i, b] * x[i, c] + y[i, a] * x[i, b] * x[i, c]
            twice = x[i, a] * y[i, b] * y[i, c] + y[i, a] * x[i, b] * y[i, c] + y[i, a] * y[i, b] * x[i, c]
            cubes = x[i, a] * x[i, b] * x[i, c] - y[i, a] * y[i, b] * y[i, c]
            products[i, t] = (2.0 * cubes + once - twice) / n_rows


@compiled
def _regression_weights(kind, parameter, derivative, eta, y, w):
    """w(eta), or its derivative; of scores the squared residual (y - mean)^2."""
    if kind in (POISSON, POISSON_SCORE):
        for i in range(eta.size):
            mean = exp(min(eta[i], EXPONENT_LIMIT))
            slope = mean if eta[i] < EXPONENT_LIMIT else 0.0
            residual = y[i] - mean
            if kind == POISSON:
                w[i] = slope if derivative else mean
            else:
                w[i] = -2.0 * residual * slope if derivative else residual * residual
    elif kind == GAUSSIAN_SCORE:
        for i in range(eta.size):
            residual = (y[i] - eta[i]) / parameter
            w[i] = -2.0 * residual / parameter if derivative else residual * residual
    else:
        shift = math.log(parameter) if kind == NEGATIVE_BINOMIAL else 0.0
        for i in range(eta.size):
            x = eta[i] - shift
            e = exp(-abs(x))
            u = 1.0 / (1.0 + e)
            share = u if x >= 0.0 else e * u
            residual = y[i] - share
            if kind == LOGISTIC:
                slope = (e - 1.0) * u if x >= 0.0 else (1.0 - e) * u
                w[i] = e * u * u * (slope if derivative else 1.0)
            elif kind == NEGATIVE_BINOMIAL:
                w[i] = parameter * (e * u * u if derivative else share)
            else:
                w[i] = -2.0 * residual * e * u * u if derivative else residual * residual


@compiled
def _class_weights(scores, size, derivative, safe, weight):
    """w of each term, one after the other, from the scores of all classes relative to the first.

    Unless all exponentials are ``safe``, the largest score is taken off first.
    """
    n_classes = len(scores) // size + 1
    share, total, top = np.ones(n_classes * size), np.ones(size), np.zeros(size)
    if not safe:
        for c in range(1, n_classes):
            own = scores[(c - 1) * size : c * size]
            for j in range(size):
                top[j] = max(top[j], own[j])
        for j in range(size):
            total[j] = exp(-top[j])
        share[:size] = total
    for c in range(1, n_classes):
        own, score = share[c * size : (c + 1) * size], scores[(c - 1) * size : c * size]
        for j in range(size):
            own[j] = exp(score[j] - top[j])
        for j in range(size):
            total[j] += own[j]
    for j in range(size):
        total[j] = 1.0 / total[j]
    for c in range(n_classes):
        own = share[c * size : (c + 1) * size]
        for j in range(size):
            own[j] *= total[j]
    at = 0
    for b in range(1, n_classes):
        one = share[b * size : (b + 1) * size]
        for c in range(b):
            other, w = share[c * size : (c + 1) * size], weight[at : at + size]
            at += size
            for j in range(size):
                w[j] = one[j] * other[j]
            for e in range(c if derivative else 0):
                third, all_three = share[e * size : (e + 1) * size], weight[at : at + size]
                at += size
                for j in range(size):
                    all_three[j] = w[j] * third[j]
            if derivative:
                for j in range(size):
                    w[j] *= other[j] - one[j]
