"""Sums over a client's rows, each client at a parameter of its own: loss, gradient, Hessian.

    L_k(theta_k) = sum_i w_i loss(eta_i, y_i),   eta_i = z_i' beta_k + offset_i,   beta_k = B theta_k

with B the family's index map (the identity where the index has one entry).  Rows are taken in tiles, so
that all loops over them become vector instructions and a client of any size needs the same memory.

Shapes: K clients in ``clients`` (positions in ``starts``), theta (K, d).
"""

from __future__ import annotations

import numpy as np
from numba import njit

TILE = 64
#: Rows that a loop takes in one turn: vectors of four, four of them at once.
WHOLE = 16
#: Sums may be taken in any order (several at a time); nothing else about arithmetic is loosened.
REORDER = {"reassoc", "contract"}


@njit(cache=True, nogil=True)
def index_coefficients(index_map, theta, beta):
    """beta = B theta, or theta where B is the identity (an empty array)."""
    if index_map.shape[0] == 0:
        for i in range(len(beta)):
            beta[i] = theta[i]
        return
    for u in range(index_map.shape[0]):
        t = 0.0
        for i in range(index_map.shape[1]):
            t += index_map[u, i] * theta[i]
        beta[u] = t


@njit(cache=True, nogil=True)
def to_parameters(index_map, gradient, hessian, gradient_out, hessian_out):
    """Gradient B' g and Hessian B' H B in theta, from those in the coefficients."""
    n_coefficients, d = index_map.shape
    half = np.zeros((n_coefficients, d))
    for u in range(n_coefficients):
        for v in range(n_coefficients):
            h = hessian[u, v]
            for i in range(d):
                half[u, i] += h * index_map[v, i]
    gradient_out[:] = 0.0
    hessian_out[:] = 0.0
    for u in range(n_coefficients):
        for i in range(d):
            b = index_map[u, i]
            if b != 0.0:
                gradient_out[i] += b * gradient[u]
                for j in range(d):
                    hessian_out[i, j] += b * half[u, j]


@njit(cache=True, nogil=True)
def _load(z, y, offset, weight, row, size, columns, tile):
    """Rows from ``row`` on: covariates (p, T); response, offset and weight as the rows of ``tile``.

    Filled up with rows of weight zero to whole vectors: loops that end in single rows take longer.
    """
    width = (size + WHOLE - 1) // WHOLE * WHOLE
    tile[:, size:width] = 0.0
    columns[:, size:width] = 0.0
    for i in range(size):
        tile[0, i], tile[1, i], tile[2, i] = y[row + i], offset[row + i], weight[row + i]
        for q in range(z.shape[1]):
            columns[q, i] = z[row + i, q]
    return width


@njit(cache=True, nogil=True, fastmath=REORDER)
def _set_index(columns, offset, beta, size, eta):
    """Linear index (C, T) of a tile."""
    p = columns.shape[0]
    for c in range(eta.shape[0]):
        own = eta[c]
        for i in range(size):
            own[i] = offset[i]
        for q in range(p):
            b = beta[c * p + q]
            for i in range(size):
                own[i] += columns[q, i] * b


@njit(cache=True, nogil=True, fastmath=REORDER)
def _add_tile(columns, weight, size, first, second, scaled, gradient, hessian):
    """Add a tile's sum of w first kron z to ``gradient`` and of w second kron z z' to ``hessian`` (lower)."""
    p = columns.shape[0]
    at = 0
    for b in range(first.shape[0]):
        for i in range(size):
            scaled[i] = weight[i] * first[b, i]
        for q in range(p):
            total = 0.0
            for i in range(size):
                total += scaled[i] * columns[q, i]
            gradient[b * p + q] += total
        for c in range(b + 1):
            for q in range(p):
                for i in range(size):
                    scaled[i] = weight[i] * second[at, i] * columns[q, i]
                # The block of (b, c) is symmetric: on the diagonal its lower triangle is enough.
                for r in range(q + 1 if c == b else p):
                    total = 0.0
                    for i in range(size):
                        total += scaled[i] * columns[r, i]
                    hessian[b * p + q, c * p + r] += total
            at += 1


@njit(cache=True, nogil=True)
def losses(values, a, z, y, offset, weight, starts, n_index, index_map, clients, theta, value):
    """L_k (K,) alone, added to ``value``; as ``sums``, with the ``values`` of a family."""
    beta, columns, tile = np.empty(n_index * z.shape[1]), np.empty((z.shape[1], TILE)), np.empty((3, TILE))
    eta, work, loss = np.empty((n_index, TILE)), np.empty((n_index + 2, TILE)), np.empty(TILE)
    loaded, size = -1, 0
    for k in range(len(clients)):
        index_coefficients(index_map, theta[k], beta)
        end = starts[clients[k] + 1]
        for row in range(starts[clients[k]], end, TILE):
            if row != loaded:  # a client that follows itself, at another theta, is there already
                size = _load(z, y, offset, weight, row, min(TILE, end - row), columns, tile)
                loaded = row
            _set_index(columns, tile[1], beta, size, eta)
            values(a, size, tile[0], eta, loss, work)
            for i in range(size):
                value[k] += tile[2, i] * loss[i]


@njit(cache=True, nogil=True)
def sums(
    derivatives, a, z, y, offset, weight, starts, n_index, index_map, clients, theta, value, gradient, hessian
):
    """Add L_k (K,), its gradient (K, d) and Hessian (K, d, d) at ``theta`` (K, d) to zeros.

    ``derivatives`` is a family's (``vaneb.local.family.losses``), ``a`` its parameter.
    """
    p = z.shape[1]
    beta, columns, tile = np.empty(n_index * p), np.empty((p, TILE)), np.empty((3, TILE))
    # Where the parameters are the coefficients, sums are made in place.
    n_own = len(index_map)
    own_gradient, own_hessian = np.empty(n_own), np.empty((n_own, n_own))
    eta, work = np.empty((n_index, TILE)), np.empty((n_index + 2, TILE))
    first, second = np.empty((n_index, TILE)), np.empty((n_index * (n_index + 1) // 2, TILE))
    loss, scaled = np.empty(TILE), np.empty(TILE)
    loaded, size = -1, 0
    for k in range(len(clients)):
        index_coefficients(index_map, theta[k], beta)
        if n_own > 0:
            own_gradient[:] = 0.0
            own_hessian[:] = 0.0
        else:
            own_gradient, own_hessian = gradient[k], hessian[k]
        end = starts[clients[k] + 1]
        for row in range(starts[clients[k]], end, TILE):
            if row != loaded:
                size = _load(z, y, offset, weight, row, min(TILE, end - row), columns, tile)
                loaded = row
            _set_index(columns, tile[1], beta, size, eta)
            derivatives(a, size, tile[0], eta, loss, first, second, work)
            for i in range(size):
                value[k] += tile[2, i] * loss[i]
            _add_tile(columns, tile[2], size, first, second, scaled, own_gradient, own_hessian)
        for u in range(n_index * p):
            for v in range(u):
                own_hessian[v, u] = own_hessian[u, v]
        if n_own > 0:
            to_parameters(index_map, own_gradient, own_hessian, gradient[k], hessian[k])


@njit(cache=True, nogil=True)
def outer_sums(scores, starts):
    """sum_i s_i s_i' over each client's rows, from scores (N, d): shape (K, d, d)."""
    n_clients, d = starts.shape[0] - 1, scores.shape[1]
    out = np.zeros((n_clients, d, d))
    for k in range(n_clients):
        for i in range(starts[k], starts[k + 1]):
            for u in range(d):
                for v in range(d):
                    out[k, u, v] += scores[i, u] * scores[i, v]
    return out
