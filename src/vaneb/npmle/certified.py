"""Support and weights together, until no atom anywhere could raise the likelihood by more than ``tol``.

The NPMLE is a concave problem over measures.  Each round

1. climbs the gap D(G, .) from all atoms and from the clients that the prior explains worst,
2. adds the maxima that were found as new atoms,
3. solves for the weights of old and new atoms together, which drops most of them.

The old atoms are kept until the weights drop them, so the likelihood never falls; the maxima next to an
atom are where it wants to move to.  When the largest D is below ``tol``, a wider search confirms it.

For many clients the rounds first run on a random part of them: the support found there is almost right,
and only the last rounds need everyone.
"""

from __future__ import annotations

import numpy as np

from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle import certificate as cert
from vaneb.npmle.ascent import Maxima, client_log_weights
from vaneb.npmle.fit import Certificate, Fit, Progress, Step, log_mixture
from vaneb.npmle.starts import starting_points
from vaneb.npmle.support import covering_subset, distinct, merged
from vaneb.npmle.weights import npmle_weights, scaled_likelihood

#: Clients that the first rounds look at, where there are more.
FIRST_LOOK = 20_000
#: Atoms that the first weights are solved over.
FIRST_ATOMS = 400
#: Where a pair of client and atom takes long: how widely to look, and for how many rounds at most.
EFFORT_IF_SLOW, ROUNDS_IF_SLOW = 0.3, 3
#: Two maxima, or two atoms at the end, closer than this many local standard errors are one.
SAME = 0.02


def certified(
    likelihood: Likelihood,
    *,
    tol: float = 1e-4,
    rng: np.random.Generator | None = None,
    max_rounds: int = 60,
    progress: Progress | None = None,
    start: tuple[Array, Array] | None = None,
    effort: float = 1.0,
) -> Fit:
    """The NPMLE under ``likelihood`` to a gap of ``tol``.

    Parameters
    ----------
    start : (atoms, weights), optional
        Where to start from instead of a covering subset of the clients' estimates.
    effort : float
        Scales how widely each round looks for new atoms.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    n_clients = likelihood.n_clients
    if not likelihood.cheap:
        effort, max_rounds = effort * EFFORT_IF_SLOW, min(max_rounds, ROUNDS_IF_SLOW)
    trace: list[Step] = []
    if n_clients > 2 * FIRST_LOOK:
        part = likelihood.take(np.sort(rng.choice(n_clients, FIRST_LOOK, replace=False)))
        first = certified(
            part, tol=tol, rng=rng, max_rounds=max_rounds, progress=progress, start=start, effort=effort
        )
        start, trace = (first.atoms, first.weights), list(first.trace)
    candidates = starting_points(likelihood)
    if start is None:
        atoms = candidates[covering_subset(candidates, FIRST_ATOMS, rng)]
        weights = np.full(len(atoms), 1 / len(atoms))
        atoms, weights, density = _solved(likelihood, atoms, None, max(tol, 1e-2))
    else:
        atoms, weights, density = _solved(likelihood, *start, max(tol, 1e-2))

    best: Certificate | None = None
    for done in range(max_rounds):
        maxima = cert.search(likelihood, atoms, density, candidates, rng, tol=tol, effort=effort)
        found = cert.certificate_of(maxima, tol)
        if found.reached:
            wide = cert.search(
                likelihood, atoms, density, candidates, rng, tol=tol, effort=effort * cert.THOROUGH
            )
            if wide.gap.max() > maxima.gap.max():
                maxima, found = wide, cert.certificate_of(wide, tol)
        trace.append(Step(float(density.mean()), len(atoms), found.gap))
        best = found
        if progress is not None:
            progress("fitting the prior", done + 1, max_rounds)
        if found.reached:
            break
        moved = _moved(likelihood, weights, maxima, float(density.mean()))
        # The maxima that matter, best first, and apart from each other; from the atoms too, if those are at
        # their maxima.  Otherwise old atom and new maximum stand side by side, for the weights to decide.
        useful = np.argsort(-maxima.gap, kind="stable")[: int((maxima.gap > 0.01 * tol).sum())]
        if moved is None:
            new = maxima.points[distinct(maxima.points, maxima.scale, useful, SAME)]
        else:
            atoms, weights, scale = moved
            points = np.concatenate([atoms, maxima.points[useful]])
            scale = np.concatenate([scale, maxima.scale[useful]])
            kept = distinct(points, scale, np.arange(len(points)), SAME, always=len(atoms))
            new = points[kept[len(atoms) :]]
        start_weights = np.concatenate([weights, np.zeros(len(new))])
        accuracy = max(0.1 * tol, min(1e-2, 0.05 * found.gap))
        atoms, weights, density = _solved(likelihood, np.concatenate([atoms, new]), start_weights, accuracy)
    assert best is not None
    fit = Fit(atoms, weights, best, tuple(trace), float(density.mean()))
    return _tidied(likelihood, fit, candidates, rng, effort)


def _moved(
    likelihood: Likelihood, weights: Array, maxima: Maxima, value: float
) -> tuple[Array, Array, Array] | None:
    """Atoms at the maxima climbed to from them, their weights and scales, if the likelihood rises."""
    m = len(weights)
    atoms, total, heads = merged(maxima.points[:m], weights, maxima.scale[:m], SAME)
    if log_mixture(likelihood, atoms, total).mean() > value:
        return atoms, total, maxima.scale[heads]
    return None


def _solved(
    likelihood: Likelihood, atoms: Array, start: Array | None, tol: float
) -> tuple[Array, Array, Array]:
    """Atoms with positive weight, their weights, and log f_k."""
    matrix, top = scaled_likelihood(likelihood.log_likelihood(atoms))
    weights = npmle_weights(matrix, tol=tol, start=start).weights
    keep = weights > 0
    density = np.log(matrix[:, keep] @ weights[keep]) + top
    return atoms[keep], weights[keep], density


def _tidied(
    likelihood: Likelihood, fit: Fit, candidates: Array, rng: np.random.Generator, effort: float
) -> Fit:
    """Near-equal atoms made one, if the result is as good by the same measure."""
    scale = _local_scale(likelihood, fit)
    atoms, weights, _ = merged(fit.atoms, fit.weights, scale, 5 * SAME)
    if len(atoms) == len(fit.atoms):
        return fit
    tol = fit.certificate.tolerance
    atoms, weights, density = _solved(likelihood, atoms, weights, 0.1 * tol)
    maxima = cert.search(likelihood, atoms, density, candidates, rng, tol=tol, effort=effort * cert.THOROUGH)
    certificate = cert.certificate_of(maxima, tol)
    if certificate.gap > max(fit.certificate.gap, tol):
        return fit
    step = Step(float(density.mean()), len(atoms), certificate.gap)
    return Fit(atoms, weights, certificate, (*fit.trace, step), float(density.mean()))


def _local_scale(likelihood: Likelihood, fit: Fit) -> Array:
    """Average information of the clients at each atom, (m, d, d)."""
    weights = client_log_weights(log_mixture(likelihood, fit.atoms, fit.weights))
    sums = likelihood.ascent(fit.atoms, weights, curvature=False)
    information = sums.information
    if information.ndim == 2:
        information = information[:, :, None] * np.eye(information.shape[1])
    return information / np.maximum(sums.value, 1e-300)[:, None, None]
