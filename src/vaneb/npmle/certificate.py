"""How far is a prior from the best one?  The largest D(G, theta), searched for over all of space."""

from __future__ import annotations

import numpy as np

from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.ascent import Maxima, client_log_weights, climb
from vaneb.npmle.fit import Certificate, log_mixture
from vaneb.npmle.starts import starting_points

#: Points at which D is evaluated, and how many of the best of them are climbed from.
LOOKED_AT = 400
CLIMBED = 40
MOST_CLIMBED = 200
STEPS = 20
#: Effort of the search that a certificate rests on.
THOROUGH = 3.0


def search(
    likelihood: Likelihood,
    atoms: Array,
    log_density: Array,
    candidates: Array,
    rng: np.random.Generator,
    *,
    tol: float,
    effort: float = 1.0,
) -> Maxima:
    """Local maxima of D climbed to from the atoms and from the best of a random set of candidates.

    ``effort`` scales how many points are looked at, climbed from, and how long the climbs may be.
    """
    log_weights = client_log_weights(log_density)
    # Half of the points looked at are the clients that the prior explains worst, half are random.
    half = min(len(candidates), int(effort * LOOKED_AT) // 2)
    worst = np.argsort(log_density - likelihood.peak(), kind="stable")[:half]
    chosen = candidates[np.union1d(worst, rng.choice(len(candidates), half, replace=False))]
    value = likelihood.ascent(chosen, log_weights, curvature=False).value
    # Climb from all where D > 0, and from some where it is not: a maximum may lie between clients.
    count = int(np.clip((value > 1).sum(), effort * CLIMBED, MOST_CLIMBED))
    # Atoms stay in the box of the clients' estimates.  With constant diagonal covariances every maximum lies in
    # it; otherwise it keeps a client whose likelihood rises for ever (separated responses) from sending an
    # atom to infinity, where nobody is informative.
    box = candidates.min(axis=0), candidates.max(axis=0)
    starts = np.concatenate([atoms, chosen[np.argsort(-value, kind="stable")[:count]]])
    steps, gain = int(effort * STEPS), 0.02 * tol / max(effort, 1.0) ** 2
    return climb(likelihood, starts, log_weights, steps=steps, gain=gain, box=box)


def certify(
    likelihood: Likelihood,
    atoms: Array,
    weights: Array,
    rng: np.random.Generator,
    *,
    tol: float = 1e-4,
    candidates: Array | None = None,
) -> Certificate:
    """Largest D found by climbing from all atoms and the most promising clients' estimates."""
    if candidates is None:
        candidates = starting_points(likelihood)
    density = log_mixture(likelihood, atoms, weights)
    maxima = search(likelihood, atoms, density, candidates, rng, tol=tol, effort=THOROUGH)
    return certificate_of(maxima, tol)


def certificate_of(maxima: Maxima, tol: float) -> Certificate:
    best = int(np.argmax(maxima.gap))
    return Certificate(float(maxima.gap[best]), maxima.points[best], "ascent", tol, len(maxima.gap))
