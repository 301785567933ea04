"""Where sampling starts: a mixture fitted by EM, in which groups that are not needed have been merged.

Sampling finds it hard to merge two large groups, and new groups are rarely found where there are many
clients.  So EM begins with more groups than needed, and pairs of them are merged where the likelihood does
not miss them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.base import Array, log_of
from vaneb.population.conditioning import components_of, moments_of
from vaneb.population.lanes import Lanes, in_a_row
from vaneb.population.mixtures import Mixture

#: Steps of EM before the first merger and after the last one, and after each round of them.
STEPS, STEPS_BETWEEN = 15, 4
#: Clients further out than this are taken to be here: the start need not find a group of one client.
FAR = 8.0
#: Standard deviation of a group made for one client.
LONE = 0.3
#: Blocks of lanes that a step of EM looks at together.
BLOCKS = 8
#: Pairs whose merger is tried in a round, for each group.
PAIRS = 2
#: One in so many groups, at most, is merged with another in a round.
MERGED = 8


class Groups(NamedTuple):
    """Components of one population."""

    weights: Array
    """(m,)"""
    centres: Array
    """(m, D)"""
    roots: Array
    """(m, D, r)"""


def first_mixture(
    clients: Lanes, varying: NDArray[np.intp], most: int, pick: Callable[[int], NDArray[np.int64]]
) -> Mixture:
    """A mixture for ``clients``, in units in which their population has a standard deviation of about one.

    ``pick``: a number of clients, drawn at random.
    """
    n, d, r = clients.clients, clients.x.shape[1], len(varying)
    clients = clients._replace(x=np.clip(clients.x, -FAR, FAR))
    # Groups of fewer clients than a quarter of the dimension would say nothing of their covariance.
    most = min(most, max(n // 2, 1), max(4 * n // r, 4)) if r else 1
    many = 1 if most == 1 else int(np.clip(round(3 * n ** (1 / 3)), min(4, most), most))
    x = in_a_row(clients.x, n)
    centres = np.zeros((many, d))
    centres[:, varying] = (0.7 * x[pick(many)] if many > 1 else x.mean(axis=0, keepdims=True))[:, varying]
    roots = np.zeros((many, d, r))
    roots[:, varying, np.arange(r)] = 0.5 if many > 1 else 1.0
    groups = Groups(np.full(many, 1 / many), centres, roots)
    if many > 1:
        groups = _merged(clients, varying, _steps(clients, varying, groups, STEPS))
    weights, centres, roots = groups
    order = np.argsort(-weights, kind="stable")
    many = len(order)
    return Mixture(
        weights[order], centres[order], roots[order], np.ones(many), np.ones(many), n * weights[order], many,
        np.zeros(r), np.eye(r), np.ones(r), 2.0, 0.3,
    )  # fmt: skip


def with_lone_clients(population: Mixture, clients: Lanes, varying: NDArray[np.intp], most: int) -> Mixture:
    """The population with a group for each client that is far from all of its groups, the furthest first.

    Such a client would else be taken for a member of some group, which it would tear apart.
    """
    m, r = len(population.weights), len(varying)
    log_f, *_ = moments_of(clients, population.weights, population.centres, population.roots)
    far = np.flatnonzero(-2 * log_f > 2 * FAR**2 + 10 * r)
    far = far[np.argsort(log_f[far], kind="stable")][: max(most - m, 0)]
    if not len(far):
        return population
    centres = np.tile(population.centres[0], (len(far), 1))
    centres[:, varying] = in_a_row(clients.x, clients.clients)[far][:, varying]
    roots = np.zeros((len(far), *population.roots.shape[1:]))
    roots[:, varying, np.arange(r)] = LONE
    return population._replace(
        weights=np.append(population.weights, np.full(len(far), 1 / clients.clients)),
        centres=np.concatenate([population.centres, centres]),
        roots=np.concatenate([population.roots, roots]),
        scales=np.append(population.scales, np.full(len(far), LONE**2)),
        ties=np.append(population.ties, np.ones(len(far))),
        clients=np.append(population.clients, np.ones(len(far))),
        occupied=m + len(far),
    )


def _steps(clients: Lanes, varying: NDArray[np.intp], groups: Groups, count: int) -> Groups:
    """Steps of EM; a covariance has a weak prior, and groups of less than a client are dropped."""
    r = len(varying)
    for _ in range(count):
        n, first, second = _expected(clients, varying, groups)
        keep = n > 1.0
        keep[np.argmax(n)] = True
        n, first, second, centres, roots = (
            part[keep] for part in (n, first, second, groups.centres, groups.roots)
        )
        shift = first / n[:, None]
        scatter = second - n[:, None, None] * shift[:, :, None] * shift[:, None, :]
        centres[:, varying] += shift
        covariance = (scatter + 0.1 * np.eye(r)) / (n + 1)[:, None, None]
        roots[:, varying] = np.linalg.cholesky(covariance)
        groups = Groups(n / n.sum(), centres, roots)
    return groups


def _expected(clients: Lanes, varying: NDArray[np.intp], groups: Groups) -> tuple[Array, Array, Array]:
    """Expected numbers of clients, and first and second moments of theta - mu, by group."""
    (m, d), sums = groups.centres.shape, None
    for first in range(0, len(clients.x), BLOCKS):
        some = clients.some(slice(first, min(first + BLOCKS, len(clients.x))))
        _, p, mean, covariance = components_of(some, *groups, full=True)
        u = np.ascontiguousarray((mean - groups.centres)[:, :, varying].swapaxes(0, 1))
        weighted = p.T[:, :, None] * u
        inner = np.einsum("kj,kjq->jq", p, covariance).reshape(m, d, d)[:, varying[:, None], varying]
        parts = p.sum(axis=0), weighted.sum(axis=1), inner + weighted.swapaxes(1, 2) @ u
        sums = parts if sums is None else tuple(a + b for a, b in zip(sums, parts, strict=True))
    assert sums is not None
    return sums


class Pairs(NamedTuple):
    """Pairs of groups, and what each would be as one group."""

    one: NDArray[np.intp]
    other: NDArray[np.intp]
    together: Groups


def _merged(clients: Lanes, varying: NDArray[np.intp], groups: Groups) -> Groups:
    """Pairs of groups made one, as long as the log-likelihood falls by less than a group has to earn."""
    r = len(varying)
    # In many dimensions a covariance has more to fit noise with, though its prior holds it together.
    price = 0.5 * (1 + 2 * r + r * max(r - 10, 0) / 20) * math.log(max(clients.clients, 2))
    while (m := len(groups.weights)) > 1:
        pairs = _near_pairs(varying, groups)
        change = _changes(clients, groups, pairs)
        chosen: list[int] = []
        left = np.full(m, True)
        for i in np.argsort(-change, kind="stable"):
            a, b = pairs.one[i], pairs.other[i]
            if change[i] > -price and left[a] and left[b] and len(chosen) < max(1, m // MERGED):
                left[a] = left[b] = False
                chosen.append(i)
        if not chosen:
            break
        both = (np.concatenate([a[left], b[chosen]]) for a, b in zip(groups, pairs.together, strict=True))
        groups = _steps(clients, varying, Groups(*both), STEPS_BETWEEN)
    return _steps(clients, varying, groups, STEPS)


def _near_pairs(varying: NDArray[np.intp], groups: Groups) -> Pairs:
    """Those likeliest to be one group first: by the entropy that a merger adds (Runnalls 2007)."""
    weights, centres, roots = groups
    root = roots[:, varying]
    covariance = root @ np.swapaxes(root, 1, 2)
    one, other = np.triu_indices(len(weights), 1)
    total, away = weights[one] + weights[other], (centres[other] - centres[one])[:, varying]
    share = (weights[other] / total)[:, None]
    both = (1 - share)[:, :, None] * covariance[one] + share[:, :, None] * covariance[other]
    both += (share * (1 - share) * away)[:, :, None] * away[:, None, :]
    noise = 0.25 * np.eye(len(varying))  # groups that are closer than clients can tell are one
    volume = weights * np.linalg.slogdet(covariance + noise)[1]
    cost = total * np.linalg.slogdet(both + noise)[1] - volume[one] - volume[other]
    near = np.argsort(cost, kind="stable")[: PAIRS * len(weights)]
    pair_centres, pair_roots = centres[one[near]], roots[one[near]]
    pair_centres[:, varying] += (share * away)[near]
    pair_roots[:, varying] = np.linalg.cholesky(both[near])
    return Pairs(one[near], other[near], Groups(total[near], pair_centres, pair_roots))


def _changes(clients: Lanes, groups: Groups, pairs: Pairs) -> Array:
    """By how much the log-likelihood rises where one of the pairs becomes one group."""
    log_f, shares, *_ = components_of(clients, *groups)
    change = np.empty(len(pairs.one))
    for i, (a, b) in enumerate(zip(pairs.one, pairs.other, strict=True)):
        together = Groups(*(part[i : i + 1] for part in pairs.together))
        log_pair, *_ = components_of(clients, *together)
        others = shares.sum(axis=1) - shares[:, a] - shares[:, b]
        change[i] = np.logaddexp(log_of(others), log_pair - log_f).sum()
    return change
