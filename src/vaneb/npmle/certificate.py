"""How far is a prior from the best one?  The largest D(G, theta), searched for over all of space."""

from __future__ import annotations

import numpy as np

from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.ascent import (
    FEW_ENOUGH,
    TOGETHER,
    Maxima,
    Rest,
    client_log_weights,
    climb,
    gap_and_one,
)
from vaneb.npmle.fit import Certificate, log_mixture
from vaneb.npmle.starts import starting_points
from vaneb.npmle.support import crossings, distinct
from vaneb.semidefinite import standard_errors

#: Points at which D is evaluated, and how many of the best of them are climbed from.
LOOKED_AT = 400
CLIMBED = 40
#: Of them, where nothing but the largest D is asked for.
HIGHEST = 20
#: Up to here a client that stands apart gets an atom of its own; see ``guarded``.
FEW_DIMENSIONS = 4
MOST_CLIMBED = 200
FEW_CLIENTS = 2_000
#: Clients up to which a certificate rests on climbs from all of their estimates, and how many there may be
#: for each atom: many atoms are the sign of clients so precise that D has a maximum at almost each of them.
CLIMBED_FROM_ALL, CLIENTS_AN_ATOM = 4_000, 20
STEPS = 20
#: Of D, so that its derivatives stay finite.
LARGEST_LOG = 300.0
#: Standard errors around the estimates that atoms may move with a variance function.
REACH = 6.0
#: Clients that first looks are taken at, where there are more than twice as many: the first rounds of a fit,
#: and the climbs that show which of many starting points are worth a climb on everyone.
FIRST_LOOK = 20_000
#: With that many there are so many more points in the tails to look at, at a cost that does not grow.
IF_MANY = 5
#: Effort of the search that a certificate rests on; where a pair of client and atom takes long, for a prior
#: that was found otherwise.
THOROUGH, THOROUGH_IF_SLOW = 3.0, 1.5


def guarded(likelihood: Likelihood, log_density: Array) -> Array:
    """log f'_k = log max(f_k, p_k at its own estimate / K): no client asks for an atom of its own.

    In more than FEW_DIMENSIONS a large share of clients would each get an atom that serves nobody else (600
    of 2,000 clients of a five-point population in ten dimensions), and predict the worse for it.  With f' in
    place of f a lone client adds no more than 1 to D + 1, at its own estimate.  What is given up is known:
    for every prior H

        l_K(H) - l_K(G)  <=  mean(log f'_k - log f_k) + max D',   D' = mean p_k / f'_k - 1,

    since log(h / f) <= log(f' / f) + h / f' - 1.  In fewer dimensions f' = f.
    """
    if likelihood.dimension <= FEW_DIMENSIONS:
        return log_density
    return np.maximum(log_density, likelihood.peak() - np.log(likelihood.n_clients))


def region(likelihood: Likelihood, candidates: Array) -> tuple[Array, Array] | None:
    """Corners of the box that atoms may not leave; ``None`` where they may go everywhere.

    With constant precisions D falls off in all directions that anybody knows of, so that no box is needed;
    and a maximum may lie outside the box of the estimates, where elongated likelihoods cross.  A variance
    function moves maxima by a few standard errors.  A likelihood that rises for ever (separated responses)
    would send an atom to infinity, where nobody is informative: it is kept within the starting points.
    """
    if isinstance(likelihood, ConstantGaussian):
        return None
    margin: Array | float = 0.0
    if likelihood.cheap:
        margin = REACH * standard_errors(likelihood.local_precision())
    return (candidates - margin).min(axis=0), (candidates + margin).max(axis=0)


def search(
    likelihood: Likelihood,
    atoms: Array,
    log_density: Array,
    candidates: Array,
    rng: np.random.Generator,
    *,
    tol: float,
    effort: float = 1.0,
    coarse: bool = False,
    rough: bool = False,
) -> Maxima:
    """Local maxima of D climbed to from the atoms, and from the best of a random set of candidates or all.

    ``effort`` scales how many points are looked at, climbed from, and how long the climbs may be; what a
    certificate rests on (more than one) is scaled up where clients are few and D costs little.  ``coarse``:
    climb the D of the clients that matter most.  ``rough``: of many clients, come close to the maxima only.
    """
    if effort > 1:
        effort *= float(np.clip((FEW_CLIENTS / likelihood.n_clients) ** 0.5, 1.0, 4.0))
    log_density, log_weights = _weighing(likelihood, log_density)
    # Where maxima are many, D where a climb starts says little of where it ends.
    few = likelihood.n_clients <= min(CLIMBED_FROM_ALL, CLIENTS_AN_ATOM * len(atoms))
    from_all = effort > 1 and likelihood.cheap and few
    near, *between = _looked_at(likelihood, candidates, log_density, rng, effort)
    looked_at = between if from_all else [near, *between]
    starts, box = [candidates] if from_all else [], region(likelihood, candidates)
    if coarse:
        likelihood, log_weights = important(likelihood, log_weights, part_size(likelihood.n_clients), rng)
    part, part_weights = _first_look(likelihood, log_weights, rng)
    for points in looked_at:
        value = gap_and_one(part, points, part_weights)
        # Climb from all where D > 0, and from some where it is not: a maximum may lie between clients.
        count = int(np.clip((value > 1).sum(), effort * CLIMBED, MOST_CLIMBED))
        order = np.argsort(-value, kind="stable")
        starts.append(points[order[:count]])
        if effort > 1:
            # The best points are on the slopes of what was found before; maxima that were missed are
            # climbed to from clients that stand apart, where D is low.
            starts.append(points[rng.permutation(order[count:])[: int(effort * CLIMBED)]])
    others = np.concatenate(starts)
    count = len(others)
    if part is not likelihood:
        first = climb(part, others, part_weights, steps=STEPS, gain=tol, box=box, keep=0)
        others = first.points[distinct(first.points, first.scale, np.argsort(-first.gap), TOGETHER)]
        others = others[: max(int(effort * CLIMBED), int((first.gap > 0).sum()))]
    if rough and likelihood.n_clients > 2 * FIRST_LOOK:
        maxima = _climbed_roughly(likelihood, atoms, others, log_weights, rng, box, tol, effort)
    else:
        maxima = _climbed(likelihood, atoms, others, log_weights, box, tol, effort)
    return maxima._replace(starts=len(atoms) + count)


def _weighing(likelihood: Likelihood, log_density: Array) -> tuple[Array, Array]:
    """log f'_k, see ``guarded``, and the log u_k that D is made of."""
    log_density = guarded(likelihood, log_density)
    # A client that the prior does not explain at all has an infinite D; a huge one is enough to climb.
    return log_density, np.minimum(client_log_weights(log_density), LARGEST_LOG - likelihood.peak())


def _looked_at(
    likelihood: Likelihood, candidates: Array, log_density: Array, rng: np.random.Generator, effort: float
) -> list[Array]:
    """Points (m, d) near which a maximum of D may be: candidates, and if ``effort`` > 1 places between them.

    Half of the candidates are the clients that the prior explains worst, half are random.  Crossings far from
    the estimates are common where precisions are full, rare where they are diagonal.
    """
    half = int(effort * LOOKED_AT * (IF_MANY if likelihood.n_clients > 2 * FIRST_LOOK else 1)) // 2
    worst = np.argsort(log_density - likelihood.peak(), kind="stable")[:half]
    points = [candidates[np.union1d(worst, rng.permutation(len(candidates))[:half])]]
    if effort > 1 and (likelihood.local_precision().ndim == 3 or likelihood.n_clients <= FEW_CLIENTS):
        points.append(crossings(likelihood, worst, half, rng))
    return points


def _first_look(
    likelihood: Likelihood, log_weights: Array, rng: np.random.Generator
) -> tuple[Likelihood, Array]:
    """The clients that a first look is taken at, all or the important ones, with their weights."""
    if likelihood.n_clients <= 2 * FIRST_LOOK:
        return likelihood, log_weights
    return important(likelihood, log_weights, FIRST_LOOK, rng)


def _highest(
    likelihood: Likelihood,
    atoms: Array,
    log_density: Array,
    candidates: Array,
    rng: np.random.Generator,
    tol: float,
) -> Maxima:
    """The largest D, climbed to from the few highest of the points that a thorough search looks at."""
    log_density, log_weights = _weighing(likelihood, log_density)
    points = np.concatenate([atoms, *_looked_at(likelihood, candidates, log_density, rng, THOROUGH_IF_SLOW)])
    part, part_weights = _first_look(likelihood, log_weights, rng)
    value = gap_and_one(part, points, part_weights)
    starts = points[np.argsort(-value, kind="stable")[:HIGHEST]]
    box = region(likelihood, candidates)
    maxima = _climbed(likelihood, starts, points[:0], log_weights, box, tol, THOROUGH_IF_SLOW)
    return maxima._replace(starts=len(points))


def part_size(n_clients: int) -> int:
    """Clients that the first rounds of a fit look at."""
    return max(FIRST_LOOK, n_clients // 10)


def climbing_size(n_clients: int) -> int:
    """Clients that the steps of rough climbs look at."""
    return max(FIRST_LOOK, n_clients // 20)


def important(
    likelihood: Likelihood, log_weights: Array, size: int, rng: np.random.Generator
) -> tuple[Likelihood, Array]:
    """About ``size`` of the clients, with weights under which D has the same expectation.

    A client adds to D + 1 hardly more than u_k p_k at its own estimate.  It is drawn with a probability in
    proportion to that, at most 1: so all clients that the prior explains badly are there, which make the
    high places of D in the tails, and one in many of the others.
    """
    most = np.exp(np.minimum(log_weights + likelihood.peak(), 0.0))  # 1 alone makes D > 0
    ordered = np.sort(most)[::-1]
    # Probabilities min(1, c most_k) that sum to ``size``: the j largest are 1, the others share the rest.
    below = np.cumsum(ordered[::-1])[::-1]
    certain = int(np.argmax(ordered * (size - np.arange(len(most))) <= below))
    probability = np.minimum(1.0, most * ((size - certain) / below[certain]))
    rows = np.flatnonzero(rng.random(len(most)) < probability)
    return likelihood.take(rows), log_weights[rows] - np.log(probability[rows])


def confirmed(
    likelihood: Likelihood,
    atoms: Array,
    log_density: Array,
    candidates: Array,
    before: Maxima,
    *,
    tol: float,
    effort: float = 1.0,
) -> Maxima:
    """The maxima of a prior that is almost the one whose maxima were ``before``: climbed to from those."""
    log_weights = client_log_weights(guarded(likelihood, log_density))
    order = np.argsort(-before.gap, kind="stable")
    rest = before.points[distinct(before.points, before.scale, order, TOGETHER)]
    box = region(likelihood, candidates)
    maxima = _climbed(likelihood, atoms, rest, log_weights, box, tol, effort)
    return maxima._replace(starts=max(maxima.starts, before.starts))


def _climbed(
    likelihood: Likelihood,
    atoms: Array,
    others: Array,
    log_weights: Array,
    box: tuple[Array, Array] | None,
    tol: float,
    effort: float,
) -> Maxima:
    """Climb from all atoms, each with a result of its own, and from other points."""
    return climb(
        likelihood,
        np.concatenate([atoms, others]),
        log_weights,
        steps=int(effort * STEPS),
        gain=0.02 * tol / max(effort, 1.0) ** 2,
        box=box,
        keep=len(atoms),
    )


def _climbed_roughly(
    likelihood: Likelihood,
    atoms: Array,
    others: Array,
    log_weights: Array,
    rng: np.random.Generator,
    box: tuple[Array, Array] | None,
    tol: float,
    effort: float,
) -> Maxima:
    """As ``_climbed`` at a fraction of its cost.

    All clients are asked where the climbs start and where they end; the steps in between are taken on those
    that matter most, corrected for the rest.
    """
    starts, keep = np.concatenate([atoms, others]), len(atoms)
    curvature = starts.shape[1] <= FEW_ENOUGH
    part, part_weights = important(likelihood, log_weights, climbing_size(likelihood.n_clients), rng)
    whole = likelihood.ascent(starts, log_weights, curvature=curvature)
    rest = Rest.between(whole, part.ascent(starts, part_weights, curvature=curvature), starts)
    maxima = climb(
        part, starts, part_weights, steps=int(effort * STEPS), gain=0.02 * tol, box=box, keep=keep, rest=rest
    )
    points, value = maxima.points.copy(), gap_and_one(likelihood, maxima.points, log_weights)
    fallen = np.flatnonzero(value[:keep] < whole.value[:keep])
    points[fallen], value[fallen] = atoms[fallen], whole.value[fallen]
    return maxima._replace(points=points, gap=value - 1)


def certify(
    likelihood: Likelihood,
    atoms: Array,
    weights: Array,
    rng: np.random.Generator,
    *,
    tol: float = 1e-4,
    candidates: Array | None = None,
    doubtful: bool = False,
) -> Certificate:
    """Largest D found by climbing from all atoms and the most promising clients' estimates.

    Where a pair of client and atom takes long, or the prior is ``doubtful``, only the highest of them are
    climbed from at first: if D is above ``tol``, as for most priors that were not fitted to this end, nothing
    else is of interest.
    """
    if candidates is None:
        candidates = starting_points(likelihood)
    density = log_mixture(likelihood, atoms, weights)
    if doubtful or not likelihood.cheap:
        maxima = _highest(likelihood, atoms, density, candidates, rng, tol)
        if maxima.gap.max() > tol:
            return certificate_of(likelihood, density, maxima, tol)
    effort = THOROUGH if likelihood.cheap else THOROUGH_IF_SLOW
    maxima = search(likelihood, atoms, density, candidates, rng, tol=tol, effort=effort)
    return certificate_of(likelihood, density, maxima, tol)


def certificate_of(likelihood: Likelihood, log_density: Array, maxima: Maxima, tol: float) -> Certificate:
    best = int(np.argmax(maxima.gap))
    alone = float((guarded(likelihood, log_density) - log_density).mean())
    return Certificate(
        float(maxima.gap[best]), maxima.points[best], "ascent", tol, maxima.starts, alone, maxima.within
    )
