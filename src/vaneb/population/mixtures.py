"""A draw of the population given sums over clients: the model, and its conditional distributions.

    theta_k ~ sum_j w_j N(mu_j, S_j)             a Dirichlet process mixture, concentration alpha
    mu_j    ~ t(m, Omega)     m ~ N(0, MIDDLE^2), Omega ~ inverse Wishart(d + 1, BETWEEN I)
    S_j     ~ inverse Wishart(nu + d - 1, 2 nu c_j diag(b))    c_j uniform: groups may be tight
    b_i     ~ Gamma(1/2, rate 1 / REACH^2)       shared by the components, as is nu, one of FIRMNESS

in units in which the population has a standard deviation of about one.  With one component and c = 1 this is
the prior of Huang and Wand (2013): standard deviations are half-t with scale REACH, nearly flat where the
population can be.  nu says how much coordinates have to do with each other: with nu = 2 every correlation is
uniform, with a large nu all are near zero.  Clients decide.  In many dimensions nu = 2 alone would promise
that a coordinate can be told from the others, and intervals would be too short.  Centres have heavy tails, as
N(m, Omega / l_j) with l_j gamma: a client that is nothing like the others gets a component far out, and says
nothing of where groups are.  Everything is drawn from sums: counts, and first and second moments of theta by
component (``sweep.Sums``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from vaneb.likelihood.seam import Array

#: Scale of the half-t prior of standard deviations, in those of a first guess: large, so that data decide.
REACH = 7.0
#: Prior standard deviation of the middle of the groups: they lie about the usual client, not an odd one.
MIDDLE = 3.0
#: Scale of the prior of the covariance of centres, in squared units of the population.
BETWEEN = 2.0
#: Degrees of freedom of the t distribution of centres.
TAIL = 2.0
#: Values of nu; before clients are seen, each is half as likely as the one before it.
FIRMNESS = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
#: Logarithm of the most that a component is stretched at once.
MOST_STRETCH = 10.0
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
    ties: Array
    """l_j, (J,): how firmly a centre is held near the middle."""
    clients: Array
    """How many clients a component has, (J,)."""
    occupied: int
    """Components that have clients; the others are offers, and together stand for groups not yet seen."""
    middle: Array
    """m, (r,)"""
    between: Array
    """A root of Omega, (r, r)."""
    shape: Array
    """2 nu b, (r,)"""
    firmness: float
    """nu"""
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
def _cholesky(matrix):
    """The lower triangular root, whatever the units; rounding may leave a matrix slightly indefinite."""
    d = len(matrix)
    scale = np.empty(d)
    for i in range(d):
        scale[i] = math.sqrt(max(matrix[i, i], 1e-300))
    unit = np.empty((d, d))
    for i in range(d):
        for a in range(d):
            unit[i, a] = 0.5 * (matrix[i, a] + matrix[a, i]) / (scale[i] * scale[a])
        unit[i, i] = 1 + 1e-10
    root = np.linalg.cholesky(unit)
    for i in range(d):
        for a in range(i + 1):
            root[i, a] *= scale[i]
    return root


@njit(cache=True)
def _inverse_wishart_root(rng, scale, freedom):
    """R with R R' ~ inverse Wishart(freedom, scale)."""
    return _cholesky(scale) @ np.ascontiguousarray(np.linalg.inv(_bartlett(rng, len(scale), freedom)).T)


@njit(cache=True)
def _lower(root):
    """The lower triangular root of R R', with a positive diagonal."""
    _, upper = np.linalg.qr(np.ascontiguousarray(root.T))
    lower = np.ascontiguousarray(upper.T)
    for a in range(len(lower)):
        if lower[a, a] < 0:
            lower[:, a] *= -1
    return lower


@njit(cache=True)
def _scale(rng, shape, rate, least):
    """A draw from the gamma distribution, between ``least`` and 1; ``shape`` is above 1."""
    end = 1.0 if shape - 1 > rate else least
    slope = (shape - 1) / end - rate
    outside = slope > 0 if end == 1 else slope < 0
    while True:
        c = rng.gamma(shape, 1 / rate)
        if least <= c <= 1:
            return c
        if outside:  # The density's logarithm is concave: its tangent at the nearer end lies above it.
            c = end - rng.exponential() / slope
            if least <= c <= 1 and rng.exponential() > (shape - 1) * (c / end - 1 - math.log(c / end)):
                return c


@njit(cache=True)
def _log_density(t, power, own, beside, force, information):
    s = math.exp(t)
    return power * t - (0.5 * own / s + beside) / s + (force - 0.5 * information * s) * s


@njit(cache=True)
def _stretch(rng, power, own, beside, force, information, low, high):
    """The next t, between ``low`` and ``high``; the last one was 0.  Its log density is

        power t - own e^{-2t} / 2 - beside e^{-t} + force e^t - information e^{2t} / 2.

    By slice sampling (Neal 2003), from the whole slice around the last one: two chains with the same random
    numbers then draw near each other, and rounding stays rounding.
    """
    about = (power, own, beside, force, information)
    height = _log_density(0.0, *about) - rng.exponential()
    ends = np.array([low, high])
    for side in range(2):
        inside, outside = 0.0, math.copysign(0.01, ends[side])
        while abs(outside) < abs(ends[side]) and _log_density(outside, *about) >= height:
            inside, outside = outside, 2 * outside
        if abs(outside) >= abs(ends[side]):
            if _log_density(ends[side], *about) >= height:
                continue
            outside = ends[side]
        for _ in range(44):
            middle = 0.5 * (inside + outside)
            if _log_density(middle, *about) >= height:
                inside = middle
            else:
                outside = middle
        ends[side] = inside
    return rng.uniform(ends[0], ends[1])


@njit(cache=True)
def _concentration(rng, old, used, n_clients):
    """Of the Dirichlet process, given that ``n_clients`` occupy ``used`` components (Escobar, West 1995)."""
    shape, rate = CONCENTRATION
    rate -= math.log(rng.beta(old + 1, n_clients))
    odds = (shape + used - 1) / (n_clients * rate)
    more = 1.0 if rng.random() * (1 + odds) < odds else 0.0
    return max(rng.gamma(shape + used - 1 + more, 1 / rate), 1e-3)


@njit(cache=True)
def _firmness(rng, used, log_volume, information):
    """nu given the covariances of ``used`` components, whatever b.

    ``log_volume``: sum of log |S_j| - d log c_j; ``information``: the diagonal of the sum of c_j S_j^{-1}.
    """
    d = len(information)
    if d == 1:  # no correlations
        return FIRMNESS[0]
    log_p = np.empty(len(FIRMNESS))
    for a in range(len(FIRMNESS)):
        nu = FIRMNESS[a]
        freedom = nu + d - 1
        log_p[a] = 0.5 * freedom * (used * d * math.log(nu) - log_volume) - math.log(nu)
        for i in range(d):
            shape = 0.5 + 0.5 * freedom * used
            log_p[a] -= used * math.lgamma(0.5 * (freedom - i))
            log_p[a] += math.lgamma(shape) - shape * math.log(1 / REACH**2 + nu * information[i])
    left = rng.random() * np.exp(log_p - log_p.max()).sum()
    for a in range(len(FIRMNESS)):
        left -= math.exp(log_p[a] - log_p.max())
        if left < 0:
            break
    return FIRMNESS[a]


@njit(cache=True)
def _add_outer(out, factor, left, right):
    """Plain loops: they compile in a fifth of the time that ``np.outer`` takes."""
    for i in range(len(left)):
        for a in range(len(right)):
            out[i, a] += factor * (left[i] * right[a])


@njit(cache=True)
def draw_population(
    rng, order, count, first, second, centres, roots, scales, middle, between, concentration, least, spare,
    most,
):  # fmt: skip
    """The next population, given sums over clients and the last one: the fields of ``Mixture`` in order.

    ``order``: the components that have clients, those with the most first.
    ``least``: the smallest scale of a component; the prior is flat between it and 1.
    ``spare``, ``most``: components without clients, and components in all.
    """
    d = centres.shape[1]
    n_clients = count.sum()
    used = len(order)
    total = min(used + spare, most)
    concentration = _concentration(rng, concentration, used, n_clients)
    # weights ~ Dirichlet(counts, concentration); the last part is broken into sticks for the spare ones
    weights, clients = np.empty(total), np.zeros(total)
    for j in range(used):
        clients[j] = count[order[j]]
        weights[j] = rng.gamma(clients[j], 1.0)
    rest = rng.gamma(concentration, 1.0)
    for j in range(used, total):
        share = rng.beta(1.0, concentration) if j < total - 1 else 1.0
        weights[j] = rest * share
        rest *= 1 - share
    weights /= weights.sum()
    # what components have in common: their shape, and where centres lie
    inverse, information, log_volume = np.empty((used, d, d)), np.zeros(d), 0.0
    for j in range(used):
        back = np.linalg.inv(roots[order[j]])
        inverse[j] = back.T @ back
        for i in range(d):
            information[i] += scales[order[j]] * inverse[j, i, i]
            log_volume -= 2 * math.log(abs(back[i, i])) + math.log(scales[order[j]])
    nu = _firmness(rng, used, log_volume, information)
    freedom, shape = nu + d - 1, np.empty(d)
    for i in range(d):
        b = rng.gamma(0.5 + 0.5 * freedom * used, 1 / (1 / REACH**2 + nu * information[i]))
        shape[i] = 2 * nu * b
    scatter, back, ties = BETWEEN * np.eye(d), np.linalg.inv(between), np.empty(total)
    middle_sum = np.zeros(d)
    for j in range(used):
        away = centres[order[j]] - middle
        ties[j] = rng.gamma(0.5 * (TAIL + d), 2 / (TAIL + ((back @ away) ** 2).sum()))
        _add_outer(scatter, ties[j], away, away)
        middle_sum += ties[j] * centres[order[j]]
    between = _inverse_wishart_root(rng, scatter, d + 1.0 + used)
    pull = np.linalg.inv(between @ between.T)
    known = np.linalg.inv(ties[:used].sum() * pull + np.eye(d) / MIDDLE**2)
    middle = known @ (pull @ middle_sum) + _cholesky(known) @ _gaussian(rng, d)
    new_centres, new_roots, new_scales = np.empty((total, d)), np.empty((total, d, d)), np.empty(total)
    for j in range(total):
        if j >= used:
            ties[j] = rng.gamma(0.5 * TAIL, 2 / TAIL)
            new_centres[j] = middle + between @ _gaussian(rng, d) / math.sqrt(ties[j])
            new_scales[j] = rng.uniform(least, 1.0)
            new_roots[j] = _lower(_inverse_wishart_root(rng, new_scales[j] * np.diag(shape), freedom))
            continue
        i = order[j]
        n, s = count[i], first[i] + count[i] * centres[i]
        covariance = np.linalg.inv(ties[j] * pull + n * inverse[j])
        centre = covariance @ (ties[j] * (pull @ middle) + inverse[j] @ s)
        centre = centre + _cholesky(covariance) @ _gaussian(rng, d)
        trace = 0.0
        for a in range(d):
            trace += shape[a] * inverse[j, a, a]
        c = _scale(rng, 0.5 * freedom * d + 1, 0.5 * trace, least)
        # about the new centre, from moments about the old one
        moved = centre - centres[i]
        scatter = second[i].copy()
        _add_outer(scatter, -1.0, moved, first[i])
        _add_outer(scatter, -1.0, first[i], moved)
        _add_outer(scatter, n, moved, moved)
        for a in range(d):
            scatter[a, a] += c * shape[a]
        new_centres[j], new_scales[j] = centre, c
        new_roots[j] = _lower(_inverse_wishart_root(rng, scatter, freedom + n))
    return (
        weights, new_centres, new_roots, new_scales, ties, clients, used, middle, between, shape, nu,
        concentration,
    )  # fmt: skip


@njit(cache=True)
def draw_moves(
    rng, precision, product, square, pull, cross, shift, centres, roots, scales, ties, shape, nu, middle,
    between, least, basis, common,
):  # fmt: skip
    """Linear maps of components and moves of centres (J', r), given how clients stand to their centres.

    With u = theta - mu given, the estimates are theta_hat = mu + move + s_j D_j D u + noise.  D = diag(delta)
    is common to all components, and drawn if ``common``.  It stretches components and shape together, so the
    prior of delta is that of the shape, N(0, REACH^2 / 2b).  s_j stretches a component and its scale c_j
    together; as the prior of c_j is flat, that of s_j is proportional to s_j.  D_j, diagonal too, stretches
    the component alone, against its prior (Liu and Sabatti 2000).

    All this is in the coordinates of an orthonormal ``basis``, as are the sums (``sweep.Sums``); that of the
    units where ``common``.  ``shift`` (J', r): how far the centres of the J' components with clients are from
    the points about which the sums were taken.  Returns s_j D_j D as matrices (J, r, r), moves, and the new
    roots, scales and shape.
    """
    used, d = shift.shape
    shift, centres, middle = shift @ basis, centres @ basis, middle @ basis
    prior, back = basis.T @ np.diag(shape) @ basis, basis.T @ between
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
    delta = np.ones(d)
    if common:
        for_delta = np.linalg.inv(square.sum(axis=0) + np.diag(shape / (nu * REACH**2)))
        delta = for_delta @ cross.sum(axis=0) + _cholesky(for_delta) @ _gaussian(rng, d)
    attraction = np.linalg.inv(back @ back.T)
    moves, scales, roots = np.empty((used, d)), scales.copy(), np.ascontiguousarray(roots)
    maps, new_roots = np.empty(roots.shape), np.empty(roots.shape)
    for j in range(len(roots)):
        stretch = delta.copy()
        if j >= used:
            maps[j] = (basis * stretch) @ basis.T
            new_roots[j] = _lower(maps[j] @ roots[j])
            continue
        covariance = np.linalg.inv(ties[j] * attraction + precision[j])
        right = ties[j] * (attraction @ (middle - centres[j])) + pull[j] - product[j] @ delta
        move = covariance @ right
        move += _cholesky(covariance) @ _gaussian(rng, d)
        moves[j] = basis @ move
        turned = np.linalg.inv(roots[j]) @ basis
        against = scales[j] * prior * (turned.T @ turned)
        force = cross[j] - product[j].T @ move
        t = _stretch(
            rng, 2.0, 0.0, 0.0, delta @ force, delta @ square[j] @ delta,
            0.5 * math.log(least / scales[j]), -0.5 * math.log(scales[j]),
        )  # fmt: skip
        stretch *= math.exp(t)
        scales[j] *= math.exp(2 * t)
        alone = np.ones(d)
        for i in range(d):
            here, beside, own_force = stretch[i], 0.0, force[i]
            for a in range(d):
                if a != i:
                    beside += against[i, a] / alone[a]
                    own_force -= square[j, i, a] * stretch[a]
            t = _stretch(
                rng, 1.0 - nu - d, against[i, i], beside, own_force * here, square[j, i, i] * here**2,
                -MOST_STRETCH, MOST_STRETCH,
            )  # fmt: skip
            alone[i] = math.exp(t)
            stretch[i] = here * alone[i]
        maps[j] = (basis * stretch) @ basis.T
        new_roots[j] = _lower(maps[j] @ roots[j])
    return maps, moves, new_roots, scales, shape * delta**2
