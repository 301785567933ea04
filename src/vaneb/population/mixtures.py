"""A draw of the population given sums over clients: the model, and its conditional distributions.

    theta_k ~ sum_j w_j N(mu_j, S_j)             a Dirichlet process mixture, concentration alpha
    mu_j    ~ N(m, Omega)                        m flat, Omega ~ inverse Wishart(d + 1, I + 2 diag(b))
    S_j     ~ inverse Wishart(d + 1, 4 c_j diag(b))    c_j uniform: groups may be tight
    b_i     ~ Gamma(1/2, rate 1 / REACH^2)       shared by the components

in units in which the population has a standard deviation of about one.  With one component and c = 1 this is
the prior of Huang and Wand (2013): standard deviations are half-t with scale REACH, nearly flat where the
population can be, and every correlation is uniform.  Everything is drawn from sums: counts,
and first and second moments of theta by component (``sweep.Sums``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from vaneb.likelihood.seam import Array

#: Scale of the half-t prior of standard deviations, in those of a first guess: large, so that data decide.
REACH = 7.0
#: Gamma prior of the concentration: shape and rate.
CONCENTRATION = (0.5, 6.0)


class Mixture(NamedTuple):
    """Components, those with clients first, and what they have in common.

    Coordinates in which clients differ are ``varying`` ones, r of D; the others have the same value in all
    centres, and roots are zero there.
    """

    weights: Array
    """(J,)"""
    centres: Array
    """(J, D)"""
    roots: Array
    """(J, D, r), S_j = R_j R_j'; lower triangular in the varying coordinates."""
    scales: Array
    """c_j, (J,)"""
    occupied: int
    """Components that have clients; the others are offers, and together stand for groups not yet seen."""
    middle: Array
    """m, (r,)"""
    between: Array
    """A root of Omega, (r, r)."""
    shape: Array
    """4 b, (r,)"""
    concentration: float


@njit(cache=True)
def _gaussian(rng, d):
    out = np.empty(d)
    for i in range(d):
        out[i] = rng.standard_normal()
    return out


@njit(cache=True)
def _bartlett(rng, d, freedom):
    """Lower triangular Z with Z Z' ~ Wishart(freedom, I)."""
    z = np.zeros((d, d))
    for i in range(d):
        for a in range(i):
            z[i, a] = rng.standard_normal()
        z[i, i] = math.sqrt(rng.chisquare(freedom - i))
    return z


@njit(cache=True)
def _inverse_wishart_root(rng, scale, freedom):
    """R with R R' ~ inverse Wishart(freedom, scale)."""
    root = np.linalg.cholesky(scale)
    return root @ np.ascontiguousarray(np.linalg.inv(_bartlett(rng, len(scale), freedom)).T)


@njit(cache=True)
def _lower(root):
    """The lower triangular root of R R'."""
    return np.linalg.cholesky(root @ np.ascontiguousarray(root.T))


@njit(cache=True)
def _scale(rng, shape, rate, least):
    """A draw from the gamma distribution, between ``least`` and 1."""
    for _ in range(50):
        c = rng.gamma(shape, 1 / rate)
        if least <= c <= 1:
            return c
    # Far out on one side: the density is exponential near the end of the range.
    end = 1.0 if shape / rate > 1 else least
    slope = (shape - 1) / end - rate
    return min(max(end - rng.exponential() / slope, least), 1.0)


@njit(cache=True)
def _symmetric(matrix):
    return (matrix + matrix.T) / 2


@njit(cache=True)
def _concentration(rng, old, used, n_clients):
    """Of the Dirichlet process, given that ``n_clients`` occupy ``used`` components (Escobar, West 1995)."""
    shape, rate = CONCENTRATION
    rate -= math.log(rng.beta(old + 1, n_clients))
    odds = (shape + used - 1) / (n_clients * rate)
    more = 1.0 if rng.random() * (1 + odds) < odds else 0.0
    return max(rng.gamma(shape + used - 1 + more, 1 / rate), 1e-3)


@njit(cache=True)
def draw_population(
    rng, count, first, second, centres, roots, scales, middle, concentration, least, spare, most
):
    """The next population, given sums over clients and the last one: the fields of ``Mixture`` in order.

    ``least``: the smallest scale of a component; the prior is flat between it and 1.
    ``spare``, ``most``: components without clients, and components in all.
    """
    d = centres.shape[1]
    freedom = d + 1.0
    n_clients = count.sum()
    used = int((count > 0).sum())
    order = np.argsort(-count, kind="mergesort")[:used]
    total = min(used + spare, most)
    concentration = _concentration(rng, concentration, used, n_clients)
    # weights ~ Dirichlet(counts, concentration); the last part is broken into sticks for the spare ones
    weights = np.empty(total)
    for j in range(used):
        weights[j] = rng.gamma(count[order[j]], 1.0)
    rest = rng.gamma(concentration, 1.0)
    for j in range(used, total):
        share = rng.beta(1.0, concentration) if j < total - 1 else 1.0
        weights[j] = rest * share
        rest *= 1 - share
    weights /= weights.sum()
    # what components have in common: their shape, and where centres lie
    inverse, information, centre_sum = np.empty((used, d, d)), np.zeros(d), np.zeros(d)
    for j in range(used):
        back = np.linalg.inv(roots[order[j]])
        inverse[j] = back.T @ back
        centre_sum += centres[order[j]]
        for i in range(d):
            information[i] += scales[order[j]] * inverse[j, i, i]
    shape = np.empty(d)
    for i in range(d):
        shape[i] = 4 * rng.gamma(0.5 + 0.5 * freedom * used, 1 / (1 / REACH**2 + 2 * information[i]))
    scatter = np.diag(1 + 0.5 * shape)
    for j in range(used):
        away = centres[order[j]] - middle
        scatter += np.outer(away, away)
    between = _inverse_wishart_root(rng, scatter, d + 1.0 + used)
    middle = centre_sum / used + between @ _gaussian(rng, d) / math.sqrt(used)
    pull = np.linalg.inv(between @ between.T)
    new_centres, new_roots, new_scales = np.empty((total, d)), np.empty((total, d, d)), np.empty(total)
    for j in range(total):
        if j >= used:
            new_centres[j] = middle + between @ _gaussian(rng, d)
            new_scales[j] = rng.uniform(least, 1.0)
            new_roots[j] = _lower(_inverse_wishart_root(rng, new_scales[j] * np.diag(shape), freedom))
            continue
        i = order[j]
        n, s = count[i], first[i] + count[i] * centres[i]
        covariance = _symmetric(np.linalg.inv(pull + n * inverse[j]))
        centre = covariance @ (pull @ middle + inverse[j] @ s)
        centre = centre + np.linalg.cholesky(covariance) @ _gaussian(rng, d)
        trace = 0.0
        for a in range(d):
            trace += shape[a] * inverse[j, a, a]
        c = _scale(rng, 0.5 * freedom * d + 1, 0.5 * trace, least)
        # about the new centre, from moments about the old one
        moved = centre - centres[i]
        cross = np.outer(moved, first[i])
        scatter = second[i] - cross - cross.T + n * np.outer(moved, moved) + c * np.diag(shape)
        for a in range(d):
            scatter[a, a] *= 1 + 1e-10
        new_centres[j], new_scales[j] = centre, c
        new_roots[j] = _lower(_inverse_wishart_root(rng, _symmetric(scatter), freedom + n))
    return weights, new_centres, new_roots, new_scales, used, middle, between, shape, concentration


@njit(cache=True)
def draw_moves(
    rng, precision, product, square, pull, cross, shift, centres, scales, shape, middle, between, least
):
    """Stretches (J, r) of components and moves of centres (J', r), given how clients stand to their centres.

    With u = theta - mu given, the estimates are theta_hat = mu + move + s_j D u + noise; D = diag(delta) is
    common to all components.  D stretches components and shape together, so the prior of delta is that of the
    shape, N(0, REACH^2 / 2b).  s_j stretches a component and its scale c_j together; as the prior of c_j is
    flat, that of s_j is proportional to s_j.

    ``shift`` (J', r): how far the centres of the J' components with clients are from the points about which
    the sums (``sweep.Sums``) were taken.  Returns s_j delta, moves, and the new scales and shape.
    """
    used, d = shift.shape
    # sums about the new centres
    square, product, pull, cross = square.copy(), product.copy(), pull.copy(), cross.copy()
    for j in range(used):
        for i in range(d):
            for a in range(d):
                square[j, i, a] += shift[j, i] * shift[j, a] * precision[j, i, a]
                square[j, i, a] -= shift[j, i] * product[j, i, a] + shift[j, a] * product[j, a, i]
                cross[j, i] -= shift[j, a] * product[j, a, i]
            cross[j, i] -= shift[j, i] * pull[j, i]
        for i in range(d):
            away = 0.0
            for a in range(d):
                away += precision[j, i, a] * shift[j, a]
                product[j, i, a] -= precision[j, i, a] * shift[j, a]
            pull[j, i] -= away
            cross[j, i] += shift[j, i] * away
    for_delta = _symmetric(np.linalg.inv(square.sum(axis=0) + np.diag(shape / (2 * REACH**2))))
    delta = for_delta @ cross.sum(axis=0) + np.linalg.cholesky(for_delta) @ _gaussian(rng, d)
    attraction = np.linalg.inv(between @ between.T)
    moves, stretch = np.empty((used, d)), np.empty((len(scales), d))
    stretch[:] = delta
    scales = scales.copy()
    for j in range(used):
        covariance = _symmetric(np.linalg.inv(attraction + precision[j]))
        move = covariance @ (attraction @ (middle - centres[j]) + pull[j] - product[j] @ delta)
        move += np.linalg.cholesky(covariance) @ _gaussian(rng, d)
        moves[j] = move
        information, force = 0.0, 0.0
        for i in range(d):
            force += delta[i] * cross[j, i]
            for a in range(d):
                information += delta[i] * square[j, i, a] * delta[a]
                force -= delta[i] * product[j, a, i] * move[a]
        s = force / information + rng.standard_normal() / math.sqrt(information)
        if least <= s * s * scales[j] <= 1 and rng.random() < abs(s):
            stretch[j] *= abs(s)
            scales[j] *= s * s
    return stretch, moves, scales, shape * delta**2
