"""How far is a prior from the best one?  The largest D(G, theta), searched for over all of space."""

from __future__ import annotations

import numpy as np

from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.ascent import Maxima, client_log_weights, climb
from vaneb.npmle.fit import Certificate, log_mixture
from vaneb.npmle.support import starting_points

#: Points at which D is evaluated, and how many of the best of them are climbed from.
LOOKED_AT = 400
CLIMBED = 40
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
    looked_at, climbed = int(effort * LOOKED_AT), int(effort * CLIMBED)
    log_weights = client_log_weights(log_density)
    chosen = candidates[rng.choice(len(candidates), min(looked_at, len(candidates)), replace=False)]
    value = likelihood.ascent(chosen, log_weights, curvature=False).value
    best = np.argsort(-value, kind="stable")[:climbed]
    starts = np.concatenate([atoms, chosen[best]])
    return climb(likelihood, starts, log_weights, steps=int(effort * STEPS), gain=0.02 * tol)


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
