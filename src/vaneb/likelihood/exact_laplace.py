"""Compiled Laplace approximation of a client's likelihood integrated over a component N(a, Gamma).

With Gamma = L L', theta = a + L u and h(u) = l_k(a + L u) - |u|^2 / 2, the integral of p_k over the
component is approximated at the maximiser u* of h by

    log p_k(a; Gamma) = h(u*) - 1/2 log det(I + L' H L),     H = -l_k''(theta*),

which needs no inverse of Gamma or H, so both may be singular.  With

    M = L (I + L' H L)^{-1} L'        covariance of theta given component and client
    J = I - M H                       derivative of theta* in a
    T = gradient in theta of trace(M H(theta)), M held

the derivatives in the atom are

    gradient     s(theta*) - 1/2 J' T        exactly that of the approximation (s = l_k')
    information  H J = (Gamma + H^{-1})^{-1}  where the inverses exist.

Shapes as in ``exact_kernels``; q is the rank of Gamma.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from vaneb.likelihood.exact_kernels import (
    add_pair,
    gather,
    new_sums,
    new_tile,
    sum_terms,
    sum_third,
    unpack,
)
from vaneb.local.small_matrices import cholesky, cholesky_solve, copy_vector, multiply

TILE = 256
MAX_ITERATIONS = 60
#: Length of the Newton step in u (standard deviations of the component) at which the search ends.
STEP_TOLERANCE = 1e-8
LARGEST = 1e300


class Search(NamedTuple):
    """Where to look for u*."""

    root: Any
    """L, shape (d, q)."""
    guess: Any
    """The clients' own estimates, shape (K, d)."""
    information: Any
    """Their information there, shape (K, d, d)."""


class Modes(NamedTuple):
    """What the search leaves for the T atoms of a tile."""

    u: Any
    """u*, shape (T, q)."""
    theta_t: Any
    """theta*, shape (d, T)."""
    log_density: Any
    """log p_k(a; Gamma) without the client's constant, shape (T,)."""
    score: Any
    """s(theta*), shape (T, d)."""
    information: Any
    """H(theta*), shape (T, d, d)."""
    factor: Any
    """Cholesky factor of I + L' H L, lower triangle, shape (T, q, q)."""


@njit(cache=True, nogil=True)
def new_modes(d, q):
    return Modes(
        np.empty((TILE, q)),
        np.empty((d, TILE)),
        np.empty(TILE),
        np.empty((TILE, d)),
        np.empty((TILE, d, d)),
        np.empty((TILE, q, q)),
    )


@njit(cache=True, nogil=True)
def first_gain(root, guess_information, gain):
    """(I + L' H L)^{-1} L' H, which maps guess - a to the first u; ``gain`` (q, d) is overwritten."""
    d, q = root.shape
    matrix = np.empty((q, q))
    _within(root, guess_information, matrix)
    column = np.empty(q)
    for c in range(d):
        for e in range(q):
            t = 0.0
            for b in range(d):
                t += root[b, e] * guess_information[b, c]
            column[e] = t
        cholesky_solve(matrix, column)
        for e in range(q):
            gain[e, c] = column[e]


@njit(cache=True, nogil=True)
def _within(root, information, factor):
    """Overwrite ``factor`` with the Cholesky factor of I + L' H L and return its log-determinant."""
    d, q = root.shape
    for e in range(q):
        for f in range(e + 1):
            t = 1.0 if e == f else 0.0
            for b in range(d):
                for c in range(d):
                    t += root[b, e] * information[b, c] * root[c, f]
            factor[e, f] = t
    cholesky(factor)
    total = 0.0
    for e in range(q):
        total += 2.0 * math.log(factor[e, e])
    return total


@njit(cache=True, nogil=True)
def find_modes(data, k, atoms_t, start, size, root, guess, gain, tile, modes):
    """Damped Newton in u for ``size`` atoms from column ``start`` on, those not yet settled together."""
    d, q = root.shape
    points = np.empty((d, TILE))
    loss = np.empty(TILE)
    first = np.empty((d, TILE))
    second = np.empty((d * (d + 1) // 2, TILE))
    best = np.full(size, np.inf)
    damping = np.ones(size)
    trial = np.empty((size, q))
    step = np.zeros((size, q))
    running = np.arange(size)
    # Not the whole tile: often one atom is all.
    modes.u[:size] = 0.0
    modes.score[:size] = 0.0
    modes.information[:size] = 0.0
    modes.factor[:size] = 0.0
    modes.log_density[:size] = -np.inf
    score = np.empty(d)
    matrix = np.empty((d, d))
    for i in range(size):
        for e in range(q):
            modes.factor[i, e, e] = 1.0
            t = 0.0
            for c in range(d):
                t += gain[e, c] * (guess[c] - atoms_t[c, start + i])
            trial[i, e] = t
    left = size
    for _ in range(MAX_ITERATIONS):
        for r in range(left):
            i = running[r]
            for c in range(d):
                t = atoms_t[c, start + i]
                for e in range(q):
                    t += root[c, e] * trial[i, e]
                modes.theta_t[c, i] = t
        gather(modes.theta_t, running, left, points)
        sum_terms(data, k, points, left, tile, loss, first, second)
        kept = 0
        for r in range(left):
            i = running[r]
            height = loss[r] / data.dispersion
            for e in range(q):
                height += 0.5 * trial[i, e] ** 2
            if not height <= min(best[i], LARGEST) + 1e-12 * (1.0 + abs(best[i])):
                if damping[i] < 1e-10:
                    # No point can be told from the best; or no point at all has a likelihood.
                    continue
                # Not a descent: try a quarter of the step from the best point so far, or, if the very
                # first guess is beyond all bounds, come back towards the atom itself.
                damping[i] *= 0.25
                for e in range(q):
                    if best[i] < np.inf:
                        trial[i, e] = modes.u[i, e] - damping[i] * step[i, e]
                    else:
                        trial[i, e] *= 0.25
                running[kept] = i
                kept += 1
                continue
            unpack(first, second, r, score, matrix)
            best[i] = height
            damping[i] = 1.0
            for c in range(d):
                modes.score[i, c] = -score[c] / data.dispersion
                for b in range(d):
                    modes.information[i, c, b] = matrix[c, b] / data.dispersion
            log_determinant = _within(root, modes.information[i], modes.factor[i])
            largest = 0.0
            for e in range(q):
                modes.u[i, e] = trial[i, e]
                t = trial[i, e]
                for c in range(d):
                    t -= root[c, e] * modes.score[i, c]
                step[i, e] = t
            cholesky_solve(modes.factor[i], step[i])
            for e in range(q):
                largest = max(largest, abs(step[i, e]))
                trial[i, e] = modes.u[i, e] - step[i, e]
            modes.log_density[i] = -height - 0.5 * log_determinant
            if largest > STEP_TOLERANCE:
                running[kept] = i
                kept += 1
        left = kept
        if left == 0:
            break
    for i in range(size):
        # A rejected last trial must not stand for the mode.
        for c in range(d):
            t = atoms_t[c, start + i]
            for e in range(q):
                t += root[c, e] * modes.u[i, e]
            modes.theta_t[c, i] = t


@njit(cache=True, nogil=True)
def posterior_covariance(root, factor, out):
    """M = L (I + L' H L)^{-1} L': ``out`` (d, d) is overwritten."""
    d, q = root.shape
    half = np.empty((q, d))
    for c in range(d):
        # Forward substitution only: M = X' X with X = factor^{-1} L'.
        for e in range(q):
            t = root[c, e]
            for f in range(e):
                t -= factor[e, f] * half[f, c]
            half[e, c] = t / factor[e, e]
    for b in range(d):
        for c in range(d):
            t = 0.0
            for e in range(q):
                t += half[e, b] * half[e, c]
            out[b, c] = t


@njit(cache=True, nogil=True)
def atom_derivatives(data, k, chosen, size, root, tile, modes, gradients, informations, covariances):
    """Gradient, information and posterior covariance of the tile's atoms ``chosen[:size]``.

    Results for atom ``chosen[i]`` are in row i of ``gradients`` (T, d), ``informations`` and
    ``covariances`` (T, d, d).
    """
    d = root.shape[0]
    points = np.empty((d, TILE))
    against = np.empty((d * (d + 1) // 2, TILE))
    third = np.empty((d, TILE))
    for i in range(size):
        covariance = covariances[i]
        posterior_covariance(root, modes.factor[chosen[i]], covariance)
        at = 0
        for u in range(d):
            for v in range(u + 1):
                against[at, i] = covariance[u, v] if u == v else 2.0 * covariance[u, v]
                at += 1
    gather(modes.theta_t, chosen, size, points)
    sum_third(data, k, points, size, tile, against, third)
    shift, smoothed = np.empty(d), np.empty((d, d))
    for i in range(size):
        for c in range(d):
            shift[c] = 0.5 * third[c, i] / data.dispersion
        information = modes.information[chosen[i]]
        multiply(covariances[i], information, smoothed)
        for c in range(d):
            t = modes.score[chosen[i], c] - shift[c]
            for b in range(d):
                t += smoothed[b, c] * shift[b]
            gradients[i, c] = t
        multiply(information, smoothed, informations[i])
        for c in range(d):
            for b in range(d):
                informations[i, c, b] = information[c, b] - informations[i, c, b]


@njit(cache=True, nogil=True)
def log_likelihood(data, constant, atoms_t, search, out):
    """log p_k(a_j; Gamma) of all clients and atoms: ``out`` (K, m) is overwritten."""
    d, m = atoms_t.shape
    root = search.root
    tile = new_tile(data.n_index, TILE)
    modes = new_modes(d, root.shape[1])
    gain = np.empty((root.shape[1], d))
    for k in range(constant.shape[0]):
        first_gain(root, search.information[k], gain)
        for start in range(0, m, TILE):
            size = min(TILE, m - start)
            find_modes(data, k, atoms_t, start, size, root, search.guess[k], gain, tile, modes)
            for i in range(size):
                out[k, start + i] = constant[k] + modes.log_density[i]


@njit(cache=True, nogil=True)
def ascent(data, constant, atoms_t, search, floor, curvature):
    """As ``exact_kernels.ascent``, for the smoothed likelihood."""
    d, m = atoms_t.shape
    root = search.root
    sums = new_sums(m, d, curvature)
    tile = new_tile(data.n_index, TILE)
    modes = new_modes(d, root.shape[1])
    gain = np.empty((root.shape[1], d))
    chosen = np.empty(TILE, dtype=np.intp)
    gradients = np.empty((TILE, d))
    informations = np.empty((TILE, d, d))
    covariances = np.empty((TILE, d, d))
    for k in range(constant.shape[0]):
        first_gain(root, search.information[k], gain)
        for start in range(0, m, TILE):
            size = min(TILE, m - start)
            find_modes(data, k, atoms_t, start, size, root, search.guess[k], gain, tile, modes)
            kept = 0
            for i in range(size):
                if constant[k] + modes.log_density[i] > floor:
                    chosen[kept] = i
                    kept += 1
            if kept == 0:
                continue
            atom_derivatives(data, k, chosen, kept, root, tile, modes, gradients, informations, covariances)
            for i in range(kept):
                share = math.exp(constant[k] + modes.log_density[chosen[i]])
                add_pair(share, gradients[i], informations[i], curvature, start + chosen[i], sums)
    return sums


@njit(cache=True, nogil=True)
def population_slopes(data, constant, atoms_t, search):
    """Sum over clients of log p_k(a; L L') at one atom, with its gradients in a, (d,), and in L, (d, q).

    With gamma the gradient in the atom, and A = I + L' H L, that in L is

        gamma u*' - s (s - gamma)' L - H L A^{-1}:

    directly through theta* = a + L u* and the determinant, and through where theta* goes.
    """
    d, q = search.root.shape
    root = search.root
    tile = new_tile(data.n_index, 1)
    modes = new_modes(d, q)
    gain, column = np.empty((q, d)), np.empty(q)
    chosen = np.zeros(1, dtype=np.intp)
    gradients, informations, covariances = np.empty((1, d)), np.empty((1, d, d)), np.empty((1, d, d))
    value, of_atom, of_root = 0.0, np.zeros(d), np.zeros((d, q))
    for k in range(constant.shape[0]):
        first_gain(root, search.information[k], gain)
        find_modes(data, k, atoms_t, 0, 1, root, search.guess[k], gain, tile, modes)
        atom_derivatives(data, k, chosen, 1, root, tile, modes, gradients, informations, covariances)
        value += constant[k] + modes.log_density[0]
        score, gradient = modes.score[0], gradients[0]
        for e in range(q):
            along = 0.0
            for c in range(d):
                along += root[c, e] * (score[c] - gradient[c])
            for c in range(d):
                of_root[c, e] += gradient[c] * modes.u[0, e] - score[c] * along
        for c in range(d):
            of_atom[c] += gradient[c]
            for e in range(q):
                t = 0.0
                for b in range(d):
                    t += root[b, e] * modes.information[0, b, c]
                column[e] = t
            cholesky_solve(modes.factor[0], column)
            for e in range(q):
                of_root[c, e] -= column[e]
    return value, of_atom, of_root


@njit(cache=True, nogil=True)
def components(data, atoms_t, search, mean, covariance):
    """Posterior mean a + Gamma grad log p_k(a; Gamma) (K, m, d) and covariance M (K, m, d, d)."""
    d, m = atoms_t.shape
    root = search.root
    spread = np.empty((d, d))
    multiply(root, root.T, spread)
    tile = new_tile(data.n_index, TILE)
    modes = new_modes(d, root.shape[1])
    gain = np.empty((root.shape[1], d))
    chosen = np.arange(TILE)
    gradients = np.empty((TILE, d))
    informations = np.empty((TILE, d, d))
    covariances = np.empty((TILE, d, d))
    for k in range(data.starts.shape[0] - 1):
        first_gain(root, search.information[k], gain)
        for start in range(0, m, TILE):
            size = min(TILE, m - start)
            find_modes(data, k, atoms_t, start, size, root, search.guess[k], gain, tile, modes)
            atom_derivatives(data, k, chosen, size, root, tile, modes, gradients, informations, covariances)
            for i in range(size):
                for c in range(d):
                    copy_vector(covariances[i, c], covariance[k, start + i, c])
                    t = atoms_t[c, start + i]
                    for b in range(d):
                        t += spread[c, b] * gradients[i, b]
                    mean[k, start + i, c] = t
