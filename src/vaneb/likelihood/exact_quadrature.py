"""Compiled adaptive Gauss-Hermite quadrature of a client's likelihood over one Gaussian population.

With theta = mu + R u, u ~ N(0, I) and h(u) = l_k(mu + R u) - |u|^2 / 2, let u* maximise h, H = -l_k''
there and R' H R = V diag(lambda) V'.  Nodes x_q with weights w_q for the standard Gaussian, put at

    u_q = u* + V diag(1 + lambda)^{-1/2} x_q,

give the marginal likelihood and its gradient (Fisher's identity: posterior expectations of the score s):

    log f_k  = log sum_q w_q exp(h(u_q) + |x_q|^2 / 2) - 1/2 sum_i log(1 + lambda_i)
    d log f_k / d mu = E[s],      d log f_k / d R = E[s u'].

Nothing is inverted, so R may be singular: the best population often is.  One node is Laplace's approximation,
which is too low for clients with a few binary rows, and makes the population too narrow.

Only the ``MOST_DIRECTIONS`` directions with the largest lambda get more than one node.  Where lambda = 0 (a
client with fewer rows than parameters) one node is exact; in others with a small lambda nearly so.  Along
those u has variance 1 / (1 + lambda) given the client, and E[s u'] gains -E[H] R times that covariance.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from vaneb.likelihood.exact_kernels import new_tile, sum_terms, unpack
from vaneb.likelihood.exact_laplace import TILE, find_modes, first_gain, new_modes

#: Nodes in each direction, by the number of directions; at most ``TILE`` in all.
NODES = {0: 1, 1: 11, 2: 7, 3: 5, 4: 4, 5: 3}
MOST_DIRECTIONS = 5
#: Directions with less information about u than this, in units of the population's, need one node only.
LEAST_INFORMATION = 1e-6


class Rule(NamedTuple):
    """Product rules for 0, 1, ... directions, one after the other."""

    nodes: Any
    """(all nodes, MOST_DIRECTIONS)"""
    log_weights: Any
    """(all nodes,)"""
    starts: Any
    """The rule for r directions is rows starts[r] to starts[r + 1] - 1."""


def product_rule() -> Rule:
    """The Gauss-Hermite rules of ``NODES``."""
    nodes, log_weights, starts = [], [], [0]
    for directions, count in NODES.items():
        x, w = np.polynomial.hermite_e.hermegauss(count)
        grid = np.zeros((count**directions, MOST_DIRECTIONS))
        grid[:, :directions] = list(product(x, repeat=directions))
        nodes.append(grid)
        weights = np.log(w / w.sum())
        log_weights.append(np.array([sum(c) for c in product(weights, repeat=directions)]))
        starts.append(starts[-1] + len(grid))
    return Rule(np.concatenate(nodes), np.concatenate(log_weights), np.array(starts))


@njit(cache=True, nogil=True)
def _place_nodes(rule, first, count, directions, axes, mode, u):
    """u_q = u* + axes x_q: ``u`` (T, q) is overwritten."""
    q = mode.shape[0]
    for i in range(count):
        for e in range(q):
            t = mode[e]
            for r in range(directions):
                t += axes[e, r] * rule.nodes[first + i, r]
            u[i, e] = t


@njit(cache=True, nogil=True)
def marginal(data, constant, atom_t, search, rule, log_density, slope, root_slope):
    """log f_k (K,), overwritten, and the sums over clients of its gradients in mu (d,) and R (d, q)."""
    root = search.root
    d, q = root.shape
    tile = new_tile(data.n_index, TILE)
    modes = new_modes(d, q)
    gain = np.empty((q, d))
    points = np.empty((d, TILE))
    loss = np.empty(TILE)
    first = np.empty((d, TILE))
    second = np.empty((d * (d + 1) // 2, TILE))
    u = np.empty((TILE, q))
    axes = np.empty((q, MOST_DIRECTIONS))
    score = np.empty(d)
    information = np.empty((d, d))
    expected = np.empty((d, d))
    slope[:] = 0.0
    root_slope[:] = 0.0
    for k in range(constant.shape[0]):
        first_gain(root, search.information[k], gain)
        find_modes(data, k, atom_t, 0, 1, root, search.guess[k], gain, tile, modes)
        projected = np.ascontiguousarray(root.T) @ modes.information[0] @ root
        values, vectors = np.linalg.eigh((projected + projected.T) / 2)
        directions = 0
        log_scale = 0.0
        for e in range(q - 1, -1, -1):
            log_scale -= 0.5 * math.log1p(max(values[e], 0.0))
            if directions < MOST_DIRECTIONS and values[e] > LEAST_INFORMATION:
                for b in range(q):
                    axes[b, directions] = vectors[b, e] / math.sqrt(1.0 + values[e])
                directions += 1
        start = rule.starts[directions]
        count = rule.starts[directions + 1] - start
        _place_nodes(rule, start, count, directions, axes, modes.u[0], u)
        for i in range(count):
            for c in range(d):
                t = atom_t[c, 0]
                for e in range(q):
                    t += root[c, e] * u[i, e]
                points[c, i] = t
        sum_terms(data, k, points, count, tile, loss, first, second)
        top = -np.inf
        for i in range(count):
            t = rule.log_weights[start + i] - loss[i] / data.dispersion
            for e in range(q):
                t -= 0.5 * u[i, e] ** 2
            for r in range(directions):
                t += 0.5 * rule.nodes[start + i, r] ** 2
            loss[i] = t
            if t > top:
                top = t
        total = 0.0
        for i in range(count):
            # A node beyond the range of numbers has no share.
            loss[i] = math.exp(loss[i] - top) if loss[i] > top - 700.0 else 0.0
            total += loss[i]
        log_density[k] = constant[k] + top + math.log(total) + log_scale
        expected[:] = 0.0
        for i in range(count):
            share = loss[i] / total
            if share < 1e-14:
                continue
            unpack(first, second, i, score, information)
            for c in range(d):
                t = -share * score[c] / data.dispersion
                slope[c] += t
                for e in range(q):
                    root_slope[c, e] += t * u[i, e]
                for b in range(d):
                    expected[c, b] += share * information[c, b] / data.dispersion
        if directions < q:
            bent = expected @ root @ vectors[:, : q - directions].copy()
            for e in range(q - directions):
                within = 1.0 + max(values[e], 0.0)
                for c in range(d):
                    for b in range(q):
                        root_slope[c, b] -= bent[c, e] * vectors[b, e] / within
