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
component (``sweep.ComponentSums``).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.base import Array
from vaneb.population.draws import (
    bartlett,
    compiled,
    gaussian,
    gram,
    inverse_square,
    log_stretch,
    lower_inverse,
    make_lower,
    scale_of_group,
    wishart_root,
)
from vaneb.population.sweep import ComponentSums

#: Scale of the half-t prior of standard deviations, in those of a first guess: large, so that data decide.
REACH = 7.0
WIDEST = REACH**-2
#: Prior standard deviation of the middle of the groups: they lie about the usual client, not an odd one.
MIDDLE = 3.0
NEAR_MIDDLE = MIDDLE**-2
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


@lru_cache(1024)
def _firmness_constants(used: int, d: int) -> Array:
    """What the log probability of each nu holds apart from the covariances of ``used`` components."""
    out = np.empty(len(FIRMNESS))
    for a, nu in enumerate(FIRMNESS):
        freedom = nu + d - 1
        out[a] = (0.5 * freedom * used * d - 1) * math.log(nu) + d * math.lgamma(0.5 + 0.5 * freedom * used)
        out[a] -= used * sum(math.lgamma(0.5 * (freedom - i)) for i in range(d))
    return out


@compiled
def _firmness(uniform, used, constants, log_volume, information):
    """nu given the covariances of ``used`` components, whatever b.

    ``log_volume``: sum of log |S_j| - d log c_j; ``information``: the diagonal of the sum of c_j S_j^{-1}.
    """
    d, most, left = len(information), -np.inf, 0.0
    p = np.empty(len(FIRMNESS))
    for a in range(len(FIRMNESS)):
        freedom = FIRMNESS[a] + d - 1
        p[a] = constants[a] - 0.5 * freedom * log_volume
        for i in range(d):
            p[a] -= (0.5 + 0.5 * freedom * used) * math.log(WIDEST + FIRMNESS[a] * information[i])
        most = max(most, p[a])
    for a in range(len(FIRMNESS)):
        p[a] = math.exp(p[a] - most)
        left += p[a]
    left *= uniform
    for a in range(len(FIRMNESS)):
        left -= p[a]
        if left < 0:
            break
    return FIRMNESS[a]


@compiled
def _draw_components(
    rng, total, order, count, first, second, centres, roots, scales, middle, between, least, constants
):  # fmt: skip
    used, d = len(order), centres.shape[1]
    z, normal, away, right = np.empty((d, d)), np.empty(d), np.empty(d), np.empty(d)
    back, scatter, information = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    # what components have in common: their shape, and where centres lie
    inverse, diagonal, log_volume = np.empty((used, d, d)), np.empty(d), 0.0
    for i in range(d):
        diagonal[i] = right[i] = 0.0
        for a in range(d):
            z[i, a] = 0.0
            scatter[i, a] = BETWEEN if a == i else 0.0
    for j in range(used):
        lower_inverse(roots[order[j]], back)
        gram(back, inverse[j])
        for i in range(d):
            diagonal[i] += scales[order[j]] * inverse[j, i, i]
            log_volume -= 2 * math.log(abs(back[i, i])) + math.log(scales[order[j]])
    nu = FIRMNESS[0]
    if d > 1:  # else there are no correlations
        nu = _firmness(rng.random(), used, constants, log_volume, diagonal)
    freedom, shape = nu + d - 1, np.empty(d)
    for i in range(d):
        scale = 1 / (WIDEST + nu * diagonal[i])
        shape[i] = 2 * nu * scale * rng.standard_gamma(0.5 + 0.5 * freedom * used)
    pull, ties, sum_ties = np.empty((d, d)), np.empty(total), 0.0
    new_middle, new_between = np.empty(d), np.empty((d, d))
    inverse_square(between, pull)
    for j in range(used):
        distance = TAIL
        for i in range(d):
            away[i] = centres[order[j], i] - middle[i]
        for i in range(d):
            for a in range(d):
                distance += away[i] * pull[i, a] * away[a]
        ties[j] = 2 / distance * rng.standard_gamma(0.5 * (TAIL + d))
        sum_ties += ties[j]
        for i in range(d):
            right[i] += ties[j] * centres[order[j], i]
            for a in range(d):
                scatter[i, a] += ties[j] * (away[i] * away[a])
    bartlett(rng, d + 1.0 + used, z)
    wishart_root(z, scatter, new_between)
    inverse_square(new_between, pull)
    for i in range(d):
        away[i] = 0.0
        for a in range(d):
            away[i] += pull[i, a] * right[a]
            information[i, a] = sum_ties * pull[i, a] + (NEAR_MIDDLE if a == i else 0.0)
    for i in range(d):
        normal[i] = rng.standard_normal()
    gaussian(normal, information, away, new_middle)
    new_centres, new_roots, new_scales = np.empty((total, d)), np.empty((total, d, d)), np.empty(total)
    for j in range(total):
        c, n = 0.0, 0.0
        if j < used:
            c, n = scales[order[j]], count[order[j]]
        else:
            ties[j] = 2 / TAIL * rng.standard_gamma(0.5 * TAIL)
        for i in range(d):
            normal[i] = rng.standard_normal()
        if j >= used:
            for i in range(d):
                new_centres[j, i] = new_middle[i]
                for a in range(d):
                    new_centres[j, i] += new_between[i, a] * normal[a] / math.sqrt(ties[j])
                    scatter[i, a] = 0.0
            c = least + (1.0 - least) * rng.random()
        else:
            o, trace = order[j], 0.0
            for i in range(d):
                right[i] = 0.0
                for a in range(d):
                    information[i, a] = ties[j] * pull[i, a] + n * inverse[j, i, a]
                    right[i] += ties[j] * pull[i, a] * new_middle[a]
                    right[i] += inverse[j, i, a] * (first[o, a] + n * centres[o, a])
                trace += shape[i] * inverse[j, i, i]
            gaussian(normal, information, right, new_centres[j])
            c = scale_of_group(rng, 0.5 * freedom * d + 1, 0.5 * trace, least)
            # about the new centre, from moments about the old one
            for i in range(d):
                away[i] = new_centres[j, i] - centres[o, i]
            for i in range(d):
                for a in range(d):
                    scatter[i, a] = second[o, i, a] - away[i] * first[o, a] - first[o, i] * away[a]
                    scatter[i, a] += n * (away[i] * away[a])
        for i in range(d):
            scatter[i, i] += c * shape[i]
        new_scales[j] = c
        bartlett(rng, freedom + n, z)
        wishart_root(z, scatter, new_roots[j])
        make_lower(new_roots[j])
    return new_centres, new_roots, new_scales, ties, new_middle, new_between, shape, nu


@compiled
def _draw_moves(
    rng, precision, product, square, pull, cross, shift, centres, roots, scales, ties, shape, prior, nu,
    middle, between, least, basis, common,
):  # fmt: skip
    used, d = shift.shape
    information, right, normal = np.empty((d, d)), np.empty(d), np.empty(d)
    delta, back, against = np.empty(d), np.empty((d, d)), np.empty((d, d))
    for i in range(d):
        delta[i], right[i] = 1.0, 0.0
        for a in range(d):
            information[i, a] = 0.0
    # sums about the new centres
    for j in range(used):
        for i in range(d):
            for a in range(d):
                square[j, i, a] += shift[j, i] * shift[j, a] * precision[j, i, a]
                square[j, i, a] -= shift[j, i] * product[j, i, a] + shift[j, a] * product[j, a, i]
                cross[j, i] -= shift[j, a] * product[j, a, i]
                information[i, a] += square[j, i, a]
            cross[j, i] -= shift[j, i] * pull[j, i]
        for i in range(d):
            away = 0.0
            for a in range(d):
                away += precision[j, i, a] * shift[j, a]
                product[j, i, a] -= precision[j, i, a] * shift[j, a]
            pull[j, i] -= away
            cross[j, i] += shift[j, i] * away
            right[i] += cross[j, i]
    if common:
        for i in range(d):
            information[i, i] += WIDEST * shape[i] / nu
            normal[i] = rng.standard_normal()
        gaussian(normal, information, right, delta)
    attraction, move, force = np.empty((d, d)), np.empty(d), np.empty(d)
    stretch, alone, inner = np.empty(d), np.empty(d), np.empty((d, d))
    inverse_square(between, attraction)
    moves, maps, new_roots = np.empty((used, d)), np.empty(roots.shape), np.empty(roots.shape)
    new_scales = np.empty(len(roots))
    for j in range(len(roots)):
        new_scales[j] = scales[j]
        for i in range(d):
            stretch[i] = delta[i]
        if j < used:
            for i in range(d):
                right[i] = pull[j, i]
                for a in range(d):
                    information[i, a] = ties[j] * attraction[i, a] + precision[j, i, a]
                    right[i] += ties[j] * attraction[i, a] * (middle[a] - centres[j, a])
                    right[i] -= product[j, i, a] * delta[a]
                normal[i] = rng.standard_normal()
            gaussian(normal, information, right, move)
            lower_inverse(roots[j], back)
            for i in range(d):
                moves[j, i] = 0.0
                for a in range(d):
                    moves[j, i] += basis[i, a] * move[a]
                    inner[i, a] = 0.0
                    for c in range(d):
                        inner[i, a] += back[i, c] * basis[c, a]
            gram(inner, against)
            along, curved = 0.0, 0.0
            for i in range(d):
                force[i] = cross[j, i]
                for a in range(d):
                    against[i, a] *= scales[j] * prior[i, a]
                    force[i] -= product[j, a, i] * move[a]
                    curved += delta[i] * square[j, i, a] * delta[a]
                along += delta[i] * force[i]
            t = log_stretch(
                rng.standard_exponential(), rng.random(), 2.0, 0.0, 0.0, along, curved,
                0.5 * math.log(least / scales[j]), -0.5 * math.log(scales[j]),
            )  # fmt: skip
            new_scales[j] *= math.exp(2 * t)
            for i in range(d):
                stretch[i] *= math.exp(t)
                alone[i] = 1.0
            for i in range(d):
                here, coupling, own_force = stretch[i], 0.0, force[i]
                for a in range(d):
                    if a != i:
                        coupling += against[i, a] / alone[a]
                        own_force -= square[j, i, a] * stretch[a]
                t = log_stretch(
                    rng.standard_exponential(), rng.random(), 1.0 - nu - d, against[i, i], coupling,
                    own_force * here, square[j, i, i] * here * here, -MOST_STRETCH, MOST_STRETCH,
                )  # fmt: skip
                alone[i] = math.exp(t)
                stretch[i] = here * alone[i]
        for i in range(d):
            for a in range(d):
                maps[j, i, a] = 0.0
                for c in range(d):
                    maps[j, i, a] += basis[i, c] * stretch[c] * basis[a, c]
            for a in range(d):
                new_roots[j, i, a] = 0.0
                for c in range(a, d):
                    new_roots[j, i, a] += maps[j, i, c] * roots[j, c, a]
        make_lower(new_roots[j])
    return maps, moves, new_roots, new_scales, delta


def draw_population(
    rng: np.random.Generator, order: NDArray[np.intp], sums: ComponentSums, last: Mixture, least: float,
    spare: int, most: int,
) -> Mixture:  # fmt: skip
    """The next population, given sums over clients and the last one, in the varying coordinates.

    ``order``: the components that have clients, those with the most first.
    ``least``: the smallest scale of a component; the prior is flat between it and 1.
    ``spare``, ``most``: components without clients, and components in all.
    """
    clients, used = sums.clients[order], len(order)
    total = min(used + spare, most)
    concentration = _concentration(rng, last.concentration, used, sums.clients.sum())
    # weights ~ Dirichlet(counts, concentration); the last part is broken into sticks for the spare ones
    weights, rest = rng.standard_gamma(clients), rng.standard_gamma(concentration)
    if total > used:
        sticks = np.append(rng.beta(1.0, concentration, total - used - 1), 1.0)
        weights = np.append(weights, rest * sticks * np.append(1.0, np.cumprod(1 - sticks[:-1])))
    centres, roots, scales, ties, middle, between, shape, firmness = _draw_components(
        rng, total, order, sums.clients, sums.first, sums.second, last.centres, last.roots, last.scales,
        last.middle, last.between, least, _firmness_constants(used, sums.first.shape[1]),
    )  # fmt: skip
    clients = np.append(clients, np.zeros(total - used))
    return Mixture(
        weights / weights.sum(), centres, roots, scales, ties, clients, used, middle, between, shape,
        firmness, concentration,
    )  # fmt: skip


def _concentration(rng: np.random.Generator, old: float, used: int, n_clients: float) -> float:
    """Of the Dirichlet process, given that ``n_clients`` occupy ``used`` components (Escobar, West 1995)."""
    shape, rate = CONCENTRATION
    rate -= math.log(rng.beta(old + 1, n_clients))
    odds = (shape + used - 1) / (n_clients * rate)
    more = 1.0 if rng.random() * (1 + odds) < odds else 0.0
    return max(rng.standard_gamma(shape + used - 1 + more) / rate, 1e-3)


def draw_moves(
    rng: np.random.Generator, order: NDArray[np.intp], sums: ComponentSums, about: Array, population: Mixture,
    least: float, basis: Array, common: bool,
) -> tuple[Array, Mixture]:  # fmt: skip
    """Linear maps of components, and the population moved, given how clients stand to their centres.

    With u = theta - mu given, the estimates are theta_hat = mu + move + s_j D_j D u + noise.  D = diag(delta)
    is common to all components, and drawn if ``common``.  It stretches components and shape together, so the
    prior of delta is that of the shape, N(0, REACH^2 / 2b).  s_j stretches a component and its scale c_j
    together; as the prior of c_j is flat, that of s_j is proportional to s_j.  D_j, diagonal too, stretches
    the component alone, against its prior (Liu and Sabatti 2000).

    All this is in the coordinates of an orthonormal ``basis``, as are the sums (``ComponentSums``); that
    of the units where ``common``.  ``about`` (J, r): the points about which the sums were taken.  The maps
    are s_j D_j D as matrices (J', r, r).
    """
    used = population.occupied
    centres, middle, between = population.centres[:used], population.middle, population.between
    shift, prior = centres - about[order], np.diag(population.shape)
    if not common:
        shift, centres, middle, between = shift @ basis, centres @ basis, middle @ basis, basis.T @ between
        prior = basis.T @ prior @ basis
    maps, moves, roots, scales, delta = _draw_moves(
        rng, sums.precision[order], sums.product[order], sums.square[order], sums.pull[order],
        sums.cross[order], shift, centres, population.roots, population.scales, population.ties,
        population.shape, prior, population.firmness, middle, between, least, basis, common,
    )  # fmt: skip
    centres = np.concatenate([population.centres[:used] + moves, population.centres[used:]])
    shape = population.shape * delta**2
    return maps, population._replace(centres=centres, roots=roots, scales=scales, shape=shape)
