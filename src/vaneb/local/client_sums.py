"""Sums over a client's rows, each client at a parameter of its own: loss, gradient, Hessian.

    L_k(theta_k) = sum_i w_i loss(eta_i, y_i),   eta_i = z_i' beta_k + offset_i,   beta_k = B theta_k

with B the family's index map (the identity where the index has one entry).  Rows are taken in tiles, so
that their losses are evaluated by vector instructions and a client of any size needs the same memory.

Shapes: K clients in ``clients`` (positions in ``starts``), theta (K, d).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from vaneb.local.small_matrices import copy_vector

TILE = 64


@njit(cache=True, nogil=True)
def index_coefficients(index_map, theta, beta):
    """beta = B theta, or theta where B is the identity (an empty array)."""
    if index_map.shape[0] == 0:
        copy_vector(theta, beta)
        return
    for u in range(index_map.shape[0]):
        t = 0.0
        for i in range(index_map.shape[1]):
            t += index_map[u, i] * theta[i]
        beta[u] = t


@njit(cache=True, nogil=True)
def to_parameters(index_map, gradient, hessian, gradient_out, hessian_out):
    """Gradient B' g and Hessian B' H B in theta, from those in the coefficients (H: lower triangle)."""
    n_coefficients = gradient.shape[0]
    for u in range(n_coefficients):
        for v in range(u):
            hessian[v, u] = hessian[u, v]
    if index_map.shape[0] == 0:
        copy_vector(gradient, gradient_out)
        for u in range(n_coefficients):
            copy_vector(hessian[u], hessian_out[u])
        return
    d = index_map.shape[1]
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
def _add_tile(z, row, size, n_index, first, second, gradient, hessian):
    """Add a tile's sum of first kron z to ``gradient`` and of second kron z z' to ``hessian`` (lower)."""
    p = z.shape[1]
    at = 0
    for b in range(n_index):
        for i in range(size):
            f = first[b, i]
            for q in range(p):
                gradient[b * p + q] += f * z[row + i, q]
        for c in range(b + 1):
            for i in range(size):
                w = second[at, i]
                for q in range(p):
                    wz = w * z[row + i, q]
                    # The block of (b, c) is symmetric: on the diagonal its lower triangle is enough.
                    for r in range(q + 1 if c == b else p):
                        hessian[b * p + q, c * p + r] += wz * z[row + i, r]
            at += 1


@njit(cache=True, nogil=True)
def sums(derivatives, a, z, y, offset, weight, starts, n_index, index_map, clients, theta):
    """L_k (K,), its gradient (K, d) and Hessian (K, d, d) at ``theta`` (K, d).

    ``derivatives`` is a family's (``vaneb.local.family.losses``), ``a`` its parameter.
    """
    n_clients, d = theta.shape
    p = z.shape[1]
    value = np.zeros(n_clients)
    gradient = np.empty((n_clients, d))
    hessian = np.empty((n_clients, d, d))
    beta = np.empty(n_index * p)
    own_gradient = np.empty(n_index * p)
    own_hessian = np.empty((n_index * p, n_index * p))
    eta = np.empty((n_index, TILE))
    work = np.empty((n_index + 2, TILE))
    first = np.empty((n_index, TILE))
    second = np.empty((n_index * (n_index + 1) // 2, TILE))
    loss = np.empty(TILE)
    response = np.empty(TILE)
    for k in range(n_clients):
        index_coefficients(index_map, theta[k], beta)
        own_gradient[:] = 0.0
        own_hessian[:] = 0.0
        end = starts[clients[k] + 1]
        for row in range(starts[clients[k]], end, TILE):
            size = min(TILE, end - row)
            for i in range(size):
                response[i] = y[row + i]
                for c in range(n_index):
                    t = offset[row + i]
                    for q in range(p):
                        t += z[row + i, q] * beta[c * p + q]
                    eta[c, i] = t
            derivatives(a, size, response, eta, loss, first, second, work)
            for i in range(size):
                value[k] += weight[row + i] * loss[i]
            for c in range(n_index):
                for i in range(size):
                    first[c, i] *= weight[row + i]
            for c in range(second.shape[0]):
                for i in range(size):
                    second[c, i] *= weight[row + i]
            _add_tile(z, row, size, n_index, first, second, own_gradient, own_hessian)
        to_parameters(index_map, own_gradient, own_hessian, gradient[k], hessian[k])
    return value, gradient, hessian


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
