"""Compiled sums over clients' rows at many atoms: log-likelihoods, and what moves an atom uphill.

For client k and atom a, with coefficients beta = B a (B the family's index map),

    l_k(a) = constant_k - 1/phi sum_i loss(z_i' beta + offset_i, y_i).

Atoms are taken in tiles, and the innermost loop runs over the atoms of a tile: it becomes vector
instructions, and nothing larger than a tile is ever stored.  Sums in the coefficients (C p of them) are
turned into sums in the parameter (d) once for each pair, not for each row.

Second-order arrays are packed lower triangles, entry (u, v <= u) at u (u + 1) / 2 + v.

Shapes: constant (K,), atoms_t (d, m); p columns, C entries of the index, d parameters.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from vaneb.local.losses import derivatives, third_derivatives, values

TILE = 128


class Rows(NamedTuple):
    """Rows of K clients and their family."""

    code: Any
    """Which of ``vaneb.local.losses``."""
    parameter: Any
    dispersion: Any
    design: Any
    """z, shape (N, p)."""
    response: Any
    """Shape (N,)."""
    offset: Any
    """Shape (N,)."""
    starts: Any
    """Client k owns rows starts[k]:starts[k + 1]; shape (K + 1,)."""
    n_index: Any
    """C."""
    index_map: Any
    """B, shape (C p, d), or empty for the identity."""


class Tile(NamedTuple):
    """Working memory for one row and the atoms of a tile."""

    eta: Any
    first: Any
    second: Any
    loss: Any
    response: Any
    work: Any


@njit(cache=True, nogil=True)
def new_tile(n_index, width):
    """A tile for ``width`` atoms."""
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
def set_coefficients(index_map, atoms_t, columns, size, coefficients):
    """coefficients[:, i] = B a for the atom in column ``columns[i]`` of ``atoms_t``."""
    if index_map.shape[0] == 0:
        for c in range(atoms_t.shape[0]):
            for i in range(size):
                coefficients[c, i] = atoms_t[c, columns[i]]
        return
    for u in range(index_map.shape[0]):
        for i in range(size):
            coefficients[u, i] = 0.0
        for c in range(index_map.shape[1]):
            b = index_map[u, c]
            if b != 0.0:
                for i in range(size):
                    coefficients[u, i] += b * atoms_t[c, columns[i]]


@njit(cache=True, nogil=True)
def _set_row(z, offset, y, coefficients, size, tile):
    """Linear index and response of one row at the atoms of a tile."""
    p = z.shape[0]
    for c in range(tile.eta.shape[0]):
        eta = tile.eta[c]
        for i in range(size):
            eta[i] = offset
        for q in range(p):
            zq = z[q]
            beta = coefficients[c * p + q]
            for i in range(size):
                eta[i] += zq * beta[i]
    for i in range(size):
        tile.response[i] = y


@njit(cache=True, nogil=True)
def sum_losses(data, k, coefficients, size, tile, value):
    """Losses of client k's rows summed at the atoms of a tile: ``value`` (T,) is overwritten."""
    for i in range(size):
        value[i] = 0.0
    z = data.design
    for row in range(data.starts[k], data.starts[k + 1]):
        _set_row(z[row], data.offset[row], data.response[row], coefficients, size, tile)
        values(data.code, data.parameter, size, tile.response, tile.eta, tile.loss, tile.work)
        for i in range(size):
            value[i] += tile.loss[i]


@njit(cache=True, nogil=True)
def sum_terms(data, k, coefficients, size, tile, value, gradient, hessian):
    """As ``sum_losses``, with gradient (C p, T) and packed Hessian in the coefficients."""
    n_index, p = data.n_index, data.design.shape[1]
    for i in range(size):
        value[i] = 0.0
    for u in range(gradient.shape[0]):
        for i in range(size):
            gradient[u, i] = 0.0
    for u in range(hessian.shape[0]):
        for i in range(size):
            hessian[u, i] = 0.0
    z = data.design
    for row in range(data.starts[k], data.starts[k + 1]):
        _set_row(z[row], data.offset[row], data.response[row], coefficients, size, tile)
        derivatives(
            data.code,
            data.parameter,
            size,
            tile.response,
            tile.eta,
            tile.loss,
            tile.first,
            tile.second,
            tile.work,
        )
        for i in range(size):
            value[i] += tile.loss[i]
        at = 0
        for b in range(n_index):
            slope = tile.first[b]
            for q in range(p):
                zq = z[row, q]
                sums = gradient[b * p + q]
                for i in range(size):
                    sums[i] += zq * slope[i]
            for c in range(b + 1):
                curvature = tile.second[at]
                for q in range(p):
                    u = b * p + q
                    for r in range(q + 1 if c == b else p):
                        zz = z[row, q] * z[row, r]
                        entries = hessian[u * (u + 1) // 2 + c * p + r]
                        for i in range(size):
                            entries[i] += zz * curvature[i]
                at += 1


@njit(cache=True, nogil=True)
def sum_third(data, k, coefficients, size, tile, against, third):
    """Derivative in the coefficients, (C p, T), of trace(H N): H the Hessian and N = ``against`` packed.

    Off-diagonal entries of N must come doubled, so that the trace is a sum over the packed entries.
    """
    n_index, p = data.n_index, data.design.shape[1]
    for u in range(third.shape[0]):
        for i in range(size):
            third[u, i] = 0.0
    z = data.design
    for row in range(data.starts[k], data.starts[k + 1]):
        _set_row(z[row], data.offset[row], data.response[row], coefficients, size, tile)
        at = 0
        for b in range(n_index):
            for c in range(b + 1):
                weight = tile.second[at]
                for i in range(size):
                    weight[i] = 0.0
                for q in range(p):
                    u = b * p + q
                    for r in range(q + 1 if c == b else p):
                        zz = z[row, q] * z[row, r]
                        entries = against[u * (u + 1) // 2 + c * p + r]
                        for i in range(size):
                            weight[i] += zz * entries[i]
                if c < b:
                    # The trace doubled the pair (b, c); what follows counts it twice by itself.
                    for i in range(size):
                        weight[i] *= 0.5
                at += 1
        third_derivatives(
            data.code, data.parameter, size, tile.response, tile.eta, tile.second, tile.first, tile.work
        )
        for b in range(n_index):
            slope = tile.first[b]
            for q in range(p):
                zq = z[row, q]
                sums = third[b * p + q]
                for i in range(size):
                    sums[i] += zq * slope[i]


@njit(cache=True, nogil=True)
def unpack(index_map, gradient, hessian, i, d, vector, matrix):
    """B' g and B' H B of the tile's atom ``i``, from sums in the coefficients: (d,) and (d, d)."""
    n_coefficients = gradient.shape[0]
    if index_map.shape[0] == 0:
        at = 0
        for u in range(d):
            vector[u] = gradient[u, i]
            for v in range(u + 1):
                matrix[u, v] = hessian[at, i]
                matrix[v, u] = hessian[at, i]
                at += 1
        return
    vector[:] = 0.0
    matrix[:] = 0.0
    at = 0
    for u in range(n_coefficients):
        for c in range(d):
            vector[c] += index_map[u, c] * gradient[u, i]
        for v in range(u + 1):
            h = hessian[at, i]
            at += 1
            for c in range(d):
                left = index_map[u, c] * h
                right = index_map[v, c] * h
                if left != 0.0:
                    for e in range(d):
                        matrix[c, e] += left * index_map[v, e]
                if v < u and right != 0.0:
                    for e in range(d):
                        matrix[c, e] += right * index_map[u, e]


@njit(cache=True, nogil=True)
def log_likelihood(data, constant, atoms_t, out):
    """l_k(a_j) of all clients and atoms: ``out`` (K, m) is overwritten."""
    m = atoms_t.shape[1]
    tile = new_tile(data.n_index, TILE)
    coefficients = np.empty((data.n_index * data.design.shape[1], TILE))
    columns = np.empty(TILE, dtype=np.intp)
    value = np.empty(TILE)
    for start in range(0, m, TILE):
        size = min(TILE, m - start)
        for i in range(size):
            columns[i] = start + i
        set_coefficients(data.index_map, atoms_t, columns, size, coefficients)
        for k in range(constant.shape[0]):
            sum_losses(data, k, coefficients, size, tile, value)
            for i in range(size):
                out[k, start + i] = constant[k] - value[i] / data.dispersion


class Sums(NamedTuple):
    """Sums over clients at each of m atoms, as in ``vaneb.likelihood.seam.Ascent``."""

    value: Any
    gradient: Any
    outer: Any
    information: Any


@njit(cache=True, nogil=True)
def new_sums(m, d, curvature):
    """Sums of nothing; without ``curvature`` no room for the outer products."""
    return Sums(np.zeros(m), np.zeros((m, d)), np.zeros((m if curvature else 0, d, d)), np.zeros((m, d, d)))


@njit(cache=True, nogil=True)
def add_pair(share, score, information, curvature, j, sums):
    """Add one pair's share r, r s, r s s' (if ``curvature``) and r I to the sums of atom ``j``."""
    d = score.shape[0]
    sums.value[j] += share
    for c in range(d):
        sums.gradient[j, c] += share * score[c]
        for e in range(d):
            sums.information[j, c, e] += share * information[c, e]
            if curvature:
                sums.outer[j, c, e] += share * score[c] * score[e]


@njit(cache=True, nogil=True)
def ascent(data, constant, atoms_t, floor, curvature):
    """Sums over clients at each atom.

    ``constant`` includes the logarithm of the client's weight.  Pairs below ``floor`` are skipped: they
    cost their log-likelihood only.
    """
    d, m = atoms_t.shape
    n_coefficients = data.n_index * data.design.shape[1]
    sums = new_sums(m, d, curvature)
    everything = np.empty((n_coefficients, m))
    set_coefficients(data.index_map, atoms_t, np.arange(m), m, everything)
    tile = new_tile(data.n_index, m)
    log_share = np.empty(m)
    few = new_tile(data.n_index, TILE)
    columns = np.empty(TILE, dtype=np.intp)
    coefficients = np.empty((n_coefficients, TILE))
    loss = np.empty(TILE)
    first = np.empty((n_coefficients, TILE))
    second = np.empty((n_coefficients * (n_coefficients + 1) // 2, TILE))
    score = np.empty(d)
    matrix = np.empty((d, d))
    for k in range(constant.shape[0]):
        sum_losses(data, k, everything, m, tile, log_share)
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
            set_coefficients(data.index_map, atoms_t, columns, size, coefficients)
            sum_terms(data, k, coefficients, size, few, loss, first, second)
            for i in range(size):
                unpack(data.index_map, first, second, i, d, score, matrix)
                score /= -data.dispersion
                matrix /= data.dispersion
                share = math.exp(log_share[columns[i]])
                add_pair(share, score, matrix, curvature, columns[i], sums)
    return sums
