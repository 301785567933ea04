"""How far is a prior from the best one?  The largest D(G, theta), searched for over all of space.

A search climbs D from all atoms and from the best of many other points: clients' estimates, places where two
clients agree, and where atoms may not go everywhere, points all over the region.  What a certificate rests on
looks ``Options.thorough`` times as far, and farther where clients are few.

Of many clients a part is climbed on: those that matter most, corrected for the rest (``ascent.Rest``).  All
are asked where climbs start and where they end, so the value of D is that of all clients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.base import Array, Box, Likelihood
from vaneb.likelihood.gaussian import neighbours_together
from vaneb.npmle.ascent import Maxima, Rest, climb, gap_and_one, uses_curvature
from vaneb.npmle.fit import Certificate, log_mixture
from vaneb.npmle.options import DEFAULT, Options
from vaneb.npmle.support import crossings, distinct


class Part(NamedTuple):
    """Clients, and for how many each of them stands."""

    likelihood: Likelihood
    starts: Array
    """A point for each, (K, d)."""
    share: Array
    """(K,), sums to one."""

    @classmethod
    def everyone(cls, likelihood: Likelihood) -> Part:
        n = likelihood.n_clients
        return cls(likelihood, likelihood.starts(), np.full(n, 1 / n))

    def log_weights(self, log_density: Array) -> Array:
        """log u_k = log share_k - log f_k, so that D + 1 = sum_k u_k p_k.

        A client that the prior does not explain at all has an infinite D; a huge one is enough to climb.
        """
        return np.minimum(np.log(self.share) - log_density, 300.0 - self.likelihood.peak())

    def some(self, importance: Array, size: int, rng: np.random.Generator) -> tuple[Part, NDArray[np.intp]]:
        """About ``size`` of the clients, drawn with probabilities min(1, c importance_k), and which they are.

        Each stands for 1 / probability of what it stood for: D has the same expectation.  The draw is
        systematic along an order in which neighbours stand together, so that no region is left out.
        """
        order = neighbours_together(self.starts)
        chosen, probability = drawn(importance[order], size, rng.random())
        rows = order[chosen]
        share = self.share[rows] / probability
        return Part(self.likelihood.take(rows), self.starts[rows], share / share.sum()), rows

    def important(
        self, log_density: Array, size: int, rng: np.random.Generator
    ) -> tuple[Part, NDArray[np.intp]]:
        """``some`` that matter most for D.

        A client adds to D + 1 hardly more than u_k p_k at its own estimate, and 1 alone makes D > 0.  So all
        clients that the prior explains badly are there, which make the high places of D in the tails, and one
        in many of the others.
        """
        most = self.log_weights(log_density) + self.likelihood.peak()
        return self.some(np.exp(np.minimum(most, 0.0)), size, rng)


def search(
    part: Part,
    atoms: Array,
    log_density: Array,
    rng: np.random.Generator,
    *,
    tol: float,
    wide: bool = False,
    also: Array | None = None,
    options: Options = DEFAULT,
) -> Maxima:
    """Local maxima of D climbed to from the atoms, each with a result of its own, and from other points.

    ``tol``: the accuracy with which maxima are of interest.  ``wide``: what a certificate rests on.
    ``also``: points to climb from.
    """
    n, same = part.likelihood.n_clients, options.same
    effort = options.thorough * float(np.clip((2_000 / n) ** 0.5, 1.0, 4.0)) if wide else 1.0
    box = part.likelihood.region(part.starts)
    looked, rows = part, np.arange(n)
    if n > 2 * options.first_clients:
        size = max(options.first_clients, n // 20)
        looked, rows = part.important(log_density, 2 * size if wide else size, rng)
    log_weights, looked_weights = part.log_weights(log_density), looked.log_weights(log_density[rows])
    others = _promising(looked, atoms, log_density[rows], looked_weights, box, rng, effort, options)
    others = others if also is None else np.concatenate([also, others])
    count, keep = len(atoms) + len(others), len(atoms)
    if wide or looked is not part:
        # First a few steps from everywhere, then the best go on: another few do not raise D by a tenth.
        first = climb(
            looked.likelihood,
            others,
            looked_weights,
            steps=options.steps,
            gain=tol,
            box=box,
            keep=0,
            same=same,
        )
        others = first.points[distinct(first.points, first.scale, np.argsort(-first.gap), 2 * same)]
        value = gap_and_one(part.likelihood, others, log_weights)
        order = np.argsort(-value, kind="stable")[: 5 * options.climbed]
        others = others[order[value[order] > 0.9]]
    points = np.concatenate([atoms, others])
    # Many steps, since along ridges they are short.
    steps, gain = int(effort * options.steps), 0.02 * tol / effort
    if looked is part:
        maxima = climb(
            part.likelihood,
            points,
            log_weights,
            steps=steps,
            gain=gain,
            box=box,
            keep=keep,
            same=same,
        )
        return maxima._replace(starts=count)
    maxima = _climbed_on_part(part, looked, points, log_weights, looked_weights, box, steps, gain)
    if wide:
        # The correction is exact only where a climb starts: the highest go on, on everyone.
        high = np.argsort(-maxima.gap, kind="stable")[: options.climbed]
        found = climb(
            part.likelihood, maxima.points[high], log_weights, steps=options.steps, gain=gain, box=box
        )
        maxima = maxima.updated(high, found)
    return maxima._replace(starts=count)


def drawn(importance: Array, size: int, offset: float) -> tuple[NDArray[np.intp], Array]:
    """About ``size`` rows, drawn with probabilities min(1, c importance_k), and these probabilities.

    Systematically: wherever the sum of the probabilities so far, plus ``offset``, passes a whole number.
    """
    ordered = np.sort(importance)[::-1]
    # The j largest are certain, the others share the rest.
    below = np.cumsum(ordered[::-1])[::-1]
    certain = int(np.argmax(ordered * (size - np.arange(len(ordered))) <= below))
    probability = np.minimum(1.0, importance * ((size - certain) / below[certain]))
    passed = np.floor(np.cumsum(probability) + offset)
    rows = np.flatnonzero(np.diff(passed, prepend=0.0) > 0)
    return rows, probability[rows]


def _promising(
    part: Part,
    atoms: Array,
    log_density: Array,
    log_weights: Array,
    box: Box | None,
    rng: np.random.Generator,
    effort: float,
    options: Options,
) -> Array:
    """Points (m, d) to climb from: of several kinds of places, those where D is highest.

    And where ``effort`` is above one some others too: the best are on the slopes of what was found before,
    and maxima that were missed are climbed to from clients that stand apart, where D is low.
    """
    likelihood, n, half = part.likelihood, part.likelihood.n_clients, int(effort * options.looked_at) // 2
    # Half of them those that the prior explains worst, half at random.
    worst = np.argsort(log_density - likelihood.peak(), kind="stable")[:half]
    near = part.starts[np.union1d(worst, rng.permutation(n)[:half])]
    kinds, chosen = [near], []
    if effort > 1:
        # Elongated likelihoods cross far from the estimates; others hardly ever.
        if likelihood.local_precision().ndim == 3 or n <= 2_000:
            kinds.append(crossings(likelihood, worst, half, rng))
        # Many atoms are the sign of clients so precise that D has a maximum at almost each of them; then D
        # where a climb starts says little of where it ends.
        if n <= min(10 * options.looked_at, 20 * len(atoms)):
            kinds, chosen = kinds[1:], [part.starts]
        if box is not None:
            kinds.append(rng.uniform(*box, (half, len(box[0]))))
    for points in kinds:
        value = gap_and_one(likelihood, points, log_weights)
        # Climb from all where D > 0, and from some where it is not: a maximum may lie between clients.
        count = min(max(int((value > 1).sum()), int(effort * options.climbed)), 5 * options.climbed)
        order = np.argsort(-value, kind="stable")
        chosen.append(points[order[:count]])
        if effort > 1:
            chosen.append(points[rng.permutation(order[count:])[: int(effort * options.climbed)]])
    return np.concatenate(chosen)


def _climbed_on_part(
    part: Part,
    looked: Part,
    starts: Array,
    log_weights: Array,
    looked_weights: Array,
    box: Box | None,
    steps: int,
    gain: float,
) -> Maxima:
    """``part`` is asked where the climbs start and end; the steps in between are taken on ``looked``."""
    curvature = uses_curvature(starts)
    whole = part.likelihood.ascent(starts, log_weights, curvature=curvature)
    rest = Rest.between(whole, looked.likelihood.ascent(starts, looked_weights, curvature=curvature), starts)
    maxima = climb(looked.likelihood, starts, looked_weights, steps=steps, gain=gain, box=box, rest=rest)
    value = gap_and_one(part.likelihood, maxima.points, log_weights)
    higher = value >= whole.value
    points = np.where(higher[:, None], maxima.points, starts)
    return maxima._replace(points=points, gap=np.maximum(value, whole.value) - 1)


def certify(
    likelihood: Likelihood,
    atoms: Array,
    weights: Array,
    rng: np.random.Generator,
    *,
    tol: float = 1e-4,
    options: Options = DEFAULT,
) -> Certificate:
    """Largest D of any prior, found by a wide search."""
    density = log_mixture(likelihood, atoms, weights)
    maxima = search(Part.everyone(likelihood), atoms, density, rng, tol=tol, wide=True, options=options)
    return certificate_of(maxima, tol)


def certificate_of(maxima: Maxima, tol: float) -> Certificate:
    best = int(np.argmax(maxima.gap))
    return Certificate(
        float(maxima.gap[best]), maxima.points[best], "ascent", tol, maxima.starts, maxima.within
    )
