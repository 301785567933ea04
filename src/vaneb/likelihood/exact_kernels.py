"""Compiled sums over clients' rows at many atoms: log-likelihoods, and what moves an atom uphill.

For client k and atom a,

    l_k(a) = constant_k - 1/phi sum_i w_i loss(eta_i, y_i),    eta_ic = x_ic' a + offset_i,

with an index of C entries.  Where all entries share theta, x_ic are the features (B_c - B_0) z_i and are
stored.  Otherwise entry c has its own p parameters and x_ic is z_i in block c and zero elsewhere, which
is never formed; with C = 1 that is an ordinary regression.

They pay where a client is seen at many atoms; sums at one parameter for each client are those of
``vaneb.local.client_sums``.  Atoms are taken in tiles, and the innermost loop runs over the atoms of a tile:
it becomes vector instructions, and nothing larger than a tile is ever stored.

Second-order arrays are packed lower triangles, entry (u, v <= u) at u (u + 1) / 2 + v.

Shapes: constant (K,), atoms_t (d, m); p columns, C entries of the index, d parameters.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

TILE = 128
#: (row, atom) pairs evaluated at once: enough to hide the cost of a call, few enough to stay in the cache.
STRIP = 512


class FamilyRows(NamedTuple):
    """Rows of K clients and their family."""

    values: Any
    derivatives: Any
    """Compiled losses (``vaneb.local.family.losses``)."""
    parameter: Any
    dispersion: Any
    design: Any
    """z, shape (N, p)."""
    response: Any
    """Shape (N,)."""
    offset: Any
    """Shape (N,)."""
    weight: Any
    """w, shape (N,)."""
    starts: Any
    """Client k owns rows starts[k]:starts[k + 1]; shape (K + 1,)."""
    n_index: Any
    """C."""
    features: Any
    """x, shape (N, C, d), where the entries of the index share theta; else empty."""


class Tile(NamedTuple):
    """Working memory for a strip: as many rows as fit, each at all atoms of a tile."""

    eta: Any
    first: Any
    second: Any
    loss: Any
    response: Any
    work: Any


@njit(cache=True, nogil=True)
def new_tile(n_index, width):
    """A strip that holds one row at ``width`` atoms, or more rows at fewer atoms."""
    width = max(width, STRIP)
    n_pairs = n_index * (n_index + 1) // 2
    return Tile(
        np.empty((n_index, width)),
        np.empty((n_index, width)),
        np.empty((n_pairs, width)),
        np.empty(width),
        np.empty(width),
        np.empty((n_index + 2, width)),
    )


@njit(cache=True, nogil=True)
def gather(atoms_t, columns, size, chosen):
    """chosen[:, i] = the atom in column ``columns[i]`` of ``atoms_t``."""
    for c in range(atoms_t.shape[0]):
        for i in range(size):
            chosen[c, i] = atoms_t[c, columns[i]]


@njit(cache=True, nogil=True)
def _set_strip(data, row, count, atoms_t, size, tile):
    """Linear index and response of ``count`` rows from ``row`` on; row r, atom i at r * size + i."""
    shared = data.features.shape[0] > 0
    width = atoms_t.shape[0] if shared else data.design.shape[1]
    for r in range(count):
        base = r * size
        for c in range(data.n_index):
            eta = tile.eta[c]
            offset = data.offset[row + r]
            for i in range(size):
                eta[base + i] = offset
            x = data.features[row + r, c] if shared else data.design[row + r]
            first = 0 if shared else c * width
            for q in range(width):
                xq = x[q]
                atom = atoms_t[first + q]
                for i in range(size):
                    eta[base + i] += xq * atom[i]
        y = data.response[row + r]
        for i in range(size):
            tile.response[base + i] = y


@njit(cache=True, nogil=True)
def sum_losses(data, k, atoms_t, size, tile, value):
    """Losses of client k's rows summed at the atoms of a tile: ``value`` (T,) is overwritten."""
    for i in range(size):
        value[i] = 0.0
    end = data.starts[k + 1]
    strip = tile.loss.shape[0] // size
    for row in range(data.starts[k], end, strip):
        count = min(strip, end - row)
        _set_strip(data, row, count, atoms_t, size, tile)
        data.values(data.parameter, count * size, tile.response, tile.eta, tile.loss, tile.work)
        for r in range(count):
            w = data.weight[row + r]
            for i in range(size):
                value[i] += w * tile.loss[r * size + i]


@njit(cache=True, nogil=True)
def sum_terms(data, k, atoms_t, size, tile, value, gradient, hessian):
    """As ``sum_losses``, with gradient (d, T) and packed Hessian in the parameter."""
    _clear(size, gradient)
    _clear(size, hessian)
    for i in range(size):
        value[i] = 0.0
    end = data.starts[k + 1]
    strip = tile.loss.shape[0] // size
    for row in range(data.starts[k], end, strip):
        count = min(strip, end - row)
        _set_strip(data, row, count, atoms_t, size, tile)
        total = count * size
        given = data.parameter, total, tile.response, tile.eta
        data.derivatives(*given, tile.loss, tile.first, tile.second, tile.work)
        for r in range(count):
            w = data.weight[row + r]
            for i in range(size):
                value[i] += w * tile.loss[r * size + i]
        _add_first(data, row, count, size, tile.first, gradient)
        if data.features.shape[0] > 0:
            _add_second_shared(data, row, count, size, tile.second, hessian)
        else:
            _add_second(data, row, count, size, tile.second, hessian)


@njit(cache=True, nogil=True)
def _clear(size, sums):
    for u in range(sums.shape[0]):
        for i in range(size):
            sums[u, i] = 0.0


@njit(cache=True, nogil=True)
def _add_first(data, row, count, size, first, sums):
    """sums (d, T) += sum over rows and entries of first_c x_c."""
    shared = data.features.shape[0] > 0
    width = sums.shape[0] if shared else data.design.shape[1]
    for c in range(data.n_index):
        slope = first[c]
        start = 0 if shared else c * width
        for q in range(width):
            own = sums[start + q]
            for r in range(count):
                x = data.features[row + r, c, q] if shared else data.design[row + r, q]
                x *= data.weight[row + r]
                base = r * size
                for i in range(size):
                    own[i] += x * slope[base + i]


@njit(cache=True, nogil=True)
def _add_second(data, row, count, size, second, sums):
    """sums (packed, T) += sum over rows of second kron z z'."""
    z, p = data.design, data.design.shape[1]
    at = 0
    for b in range(data.n_index):
        for c in range(b + 1):
            weight = second[at]
            at += 1
            for q in range(p):
                u = b * p + q
                # On the diagonal the lower triangle of a block is enough.
                for e in range(q + 1 if c == b else p):
                    own = sums[u * (u + 1) // 2 + c * p + e]
                    for r in range(count):
                        zz = data.weight[row + r] * z[row + r, q] * z[row + r, e]
                        base = r * size
                        for i in range(size):
                            own[i] += zz * weight[base + i]


@njit(cache=True, nogil=True)
def _add_second_shared(data, row, count, size, second, sums):
    """sums (packed, T) += sum over rows and pairs of entries of second_bc x_b x_c'."""
    d = data.features.shape[2]
    entry = 0
    for q in range(d):
        for e in range(q + 1):
            own = sums[entry]
            entry += 1
            for r in range(count):
                x, w = data.features[row + r], data.weight[row + r]
                base = r * size
                at = 0
                for b in range(data.n_index):
                    for c in range(b):
                        xx = w * (x[b, q] * x[c, e] + x[c, q] * x[b, e])
                        weight = second[at]
                        at += 1
                        for i in range(size):
                            own[i] += xx * weight[base + i]
                    xx = w * x[b, q] * x[b, e]
                    weight = second[at]
                    at += 1
                    for i in range(size):
                        own[i] += xx * weight[base + i]


@njit(cache=True, nogil=True)
def unpack(gradient, hessian, i, vector, matrix):
    """Gradient (d,) and Hessian (d, d) of the tile's atom ``i``."""
    at = 0
    for u in range(vector.shape[0]):
        vector[u] = gradient[u, i]
        for v in range(u + 1):
            matrix[u, v] = hessian[at, i]
            matrix[v, u] = hessian[at, i]
            at += 1


@njit(cache=True, nogil=True)
def log_likelihood(data, constant, atoms_t, out):
    """l_k(a_j) of all clients and atoms: ``out`` (K, m) is overwritten."""
    d, m = atoms_t.shape
    tile = new_tile(data.n_index, TILE)
    chosen = np.empty((d, TILE))
    columns = np.empty(TILE, dtype=np.intp)
    value = np.empty(TILE)
    for start in range(0, m, TILE):
        size = min(TILE, m - start)
        for i in range(size):
            columns[i] = start + i
        gather(atoms_t, columns, size, chosen)
        for k in range(constant.shape[0]):
            sum_losses(data, k, chosen, size, tile, value)
            for i in range(size):
                out[k, start + i] = constant[k] - value[i] / data.dispersion


@njit(cache=True, nogil=True)
def ascent(data, constant, atoms_t, floor, curvature):
    """The four sums over clients at each atom, as in ``vaneb.likelihood.base.AtomSums``.

    ``constant`` includes the logarithm of the client's weight.  Pairs below ``floor`` are skipped: they
    cost their log-likelihood only.
    """
    d, m = atoms_t.shape
    value, gradient, information = np.zeros(m), np.zeros((m, d)), np.zeros((m, d, d))
    outer = np.zeros((m if curvature else 0, d, d))
    tile = new_tile(data.n_index, m)
    log_share = np.empty(m)
    few = new_tile(data.n_index, TILE)
    columns = np.empty(TILE, dtype=np.intp)
    chosen = np.empty((d, TILE))
    loss = np.empty(TILE)
    first = np.empty((d, TILE))
    second = np.empty((d * (d + 1) // 2, TILE))
    score = np.empty(d)
    matrix = np.empty((d, d))
    for k in range(constant.shape[0]):
        sum_losses(data, k, atoms_t, m, tile, log_share)
        for j in range(m):
            log_share[j] = constant[k] - log_share[j] / data.dispersion
        j = 0
        while j < m:
            size = 0
            while j < m and size < TILE:
                if log_share[j] > floor:
                    columns[size] = j
                    size += 1
                j += 1
            if size == 0:
                continue
            gather(atoms_t, columns, size, chosen)
            sum_terms(data, k, chosen, size, few, loss, first, second)
            for i in range(size):
                at, share = columns[i], math.exp(log_share[columns[i]])
                unpack(first, second, i, score, matrix)
                score /= -data.dispersion
                matrix /= data.dispersion
                value[at] += share
                for c in range(d):
                    gradient[at, c] += share * score[c]
                    for e in range(d):
                        information[at, c, e] += share * matrix[c, e]
                        if curvature:
                            outer[at, c, e] += share * score[c] * score[e]
    return value, gradient, outer, information
