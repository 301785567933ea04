"""Support and weights together, until no atom anywhere could raise the likelihood by more than ``tol``.

The NPMLE is a concave problem over measures.  Each round

1. climbs the gap D(G, .) from all atoms and from the clients that the prior explains worst,
2. moves the atoms to the maxima that were climbed to from them, if that raises the likelihood, and adds the
   other maxima as new atoms,
3. solves for the weights of all of them together, which drops most.

When the largest D is below ``tol``, a wider search confirms it.

For many clients the rounds first run on a random part of them, and on a part of that part: the support found
there is almost right.  Then the weights are solved for everyone, and D is first climbed for those clients
who make it large; then all are asked where climbs start and end, and only the last rounds climb the D of all.

In more than a few dimensions the NPMLE would give every client that stands apart an atom of its own,
thousands of them.  There lone clients get none (``certificate.guarded``), and the first atoms are gathered by
EM.  The number of atoms is limited by what the matrix of likelihoods may take; where the limit binds, the
certificate says what was not reached.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle import certificate as cert
from vaneb.npmle.ascent import Maxima, average_information, client_log_weights
from vaneb.npmle.fit import Fit, Progress, Step, log_mixture
from vaneb.npmle.proof import prove
from vaneb.npmle.pseudo_em import pseudo_em
from vaneb.npmle.starts import starting_points
from vaneb.npmle.support import covering_subset, distinct, merged
from vaneb.npmle.weights import likelihood_matrix, mixture, npmle_weights

#: Gap to which a part of the clients is fitted before all of them: their own noise is of this order.
FIRST_TOLERANCE = 1e-3
#: Gap down to which D is climbed for a part of many clients only.
COARSE = 0.1
#: Gap down to which climbs on many clients need not end exactly on the maxima, and the share of ``tol`` that
#: such climbs, which end below them, must not exceed before a wide search is worth its cost.
ROUGH, ROUGHLY_REACHED = 3e-3, 0.7
#: Atoms that the first weights are solved over, in few dimensions and in many.
FIRST_ATOMS = (400, 60)
#: Entries that the matrix of likelihoods (clients x atoms) may have, and limits of the atoms that gives, the
#: upper one in few dimensions and in many.
MOST_ENTRIES, FEWEST_ATOMS, MOST_ATOMS = 4e8, 150, (3_000, 300)
#: EM steps that bring the first atoms together in many dimensions, where an estimate is far from all others.
GATHERING_STEPS = 30
#: Where a pair of client and atom takes long: how widely to look, and rounds at most.
EFFORT_IF_SLOW, ROUNDS_IF_SLOW = 0.3, 3
#: Maxima closer than this many local standard errors are one, and atoms closer than so many times that; on
#: the way less, where the square of the distance, of whose order the cost is, would be above the gap.
SAME, MERGED = 0.02, 5


def certified(
    likelihood: Likelihood,
    *,
    tol: float = 1e-4,
    rng: np.random.Generator | None = None,
    max_rounds: int = 60,
    progress: Progress | None = None,
    start: tuple[Array, Array] | None = None,
    effort: float = 1.0,
    confirm: bool = True,
    proof: bool = False,
) -> Fit:
    """The NPMLE under ``likelihood`` to a gap of ``tol``.

    Parameters
    ----------
    start : (atoms, weights), optional
        Where to start from instead of a covering subset of the clients' estimates.
    effort : float
        Scales how widely each round looks for new atoms.
    confirm : bool
        Whether a wider search at the end confirms that the gap is below ``tol``.
    proof : bool
        Whether to prove it, where that can be done; see ``vaneb.npmle.proof``.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    n_clients = likelihood.n_clients
    if not likelihood.cheap:
        effort *= EFFORT_IF_SLOW
        max_rounds = min(max_rounds, ROUNDS_IF_SLOW)
    trace: list[Step] = []
    if n_clients > 2 * cert.FIRST_LOOK:
        rows = np.sort(rng.choice(n_clients, cert.part_size(n_clients), replace=False))
        part = likelihood.take(rows)
        fit = certified(
            part,
            tol=max(tol, FIRST_TOLERANCE),
            rng=rng,
            max_rounds=max_rounds,
            progress=progress,
            start=start,
            confirm=False,
        )
        start, trace = (fit.atoms, fit.weights), list(fit.trace)
    upper = MOST_ATOMS[likelihood.dimension > cert.FEW_DIMENSIONS]
    most_atoms = int(np.clip(MOST_ENTRIES / n_clients, FEWEST_ATOMS, upper))
    candidates = starting_points(likelihood)
    first = _first(likelihood, candidates, rng) if start is None else start
    atoms, weights, density = _solved(likelihood, *first, max(tol, 1e-2))
    coarse, exact = n_clients > 2 * cert.FIRST_LOOK, n_clients <= 2 * cert.FIRST_LOOK
    wide: Maxima | None = None
    for done in range(max_rounds):
        coarse = coarse and done < max_rounds - 1
        # Far from the optimum maxima need not be found to the last digit.
        sharp = max(tol, 0.05 * trace[-1].gap) if done else tol
        rough = not exact and 0 < done < max_rounds - 1 and trace[-1].gap > max(ROUGH, tol)
        maxima = cert.search(
            likelihood, atoms, density, candidates, rng, tol=sharp, effort=effort, coarse=coarse, rough=rough
        )
        if confirm and not coarse and maxima.gap.max() <= tol * (ROUGHLY_REACHED if rough else 1.0):
            thorough = effort * cert.THOROUGH
            if wide is not None:  # a few atoms later the maxima are near those that it has found
                wide = cert.confirmed(likelihood, atoms, density, candidates, wide, tol=tol, effort=thorough)
            if wide is None or (n_clients <= 2 * cert.FIRST_LOOK and wide.gap.max() <= tol):
                wide = cert.search(likelihood, atoms, density, candidates, rng, tol=tol, effort=thorough)
            maxima = max(maxima, wide, key=lambda found: float(found.gap.max()))
            rough = False  # the wide search is exact
        certificate = cert.certificate_of(likelihood, density, maxima, tol)
        trace.append(Step(float(density.mean()), len(atoms), certificate.gap))
        if progress is not None:
            progress("fitting the prior", done + 1, max_rounds)
        stalled = _stalled(trace, most_atoms, tol)
        if not (coarse or (rough and confirm)) and (certificate.reached or done == max_rounds - 1 or stalled):
            break
        coarse = coarse and certificate.gap > COARSE and not stalled
        exact = exact or stalled
        candidate_atoms, candidate_weights = _next_atoms(
            likelihood, atoms, weights, maxima, float(density.mean()), tol, most_atoms
        )
        accuracy = max(0.1 * tol, min(1e-2, 0.05 * certificate.gap))
        atoms, weights, density = _solved(likelihood, candidate_atoms, candidate_weights, accuracy)
    fit = Fit(atoms, weights, certificate, tuple(trace), float(density.mean()))
    if not confirm:
        return fit
    fit = _tidied(likelihood, fit, candidates, maxima, effort)
    if not (proof and fit.certificate.reached):
        return fit
    found = prove(likelihood, client_log_weights(log_mixture(likelihood, fit.atoms, fit.weights)), tol)
    if found is None:
        return fit
    if found.value > tol and len(trace) < max_rounds:
        # The search has missed it: go on from there.
        return certified(
            likelihood,
            tol=tol,
            rng=rng,
            max_rounds=max_rounds - len(trace),
            progress=progress,
            start=(np.concatenate([fit.atoms, found.best[None]]), np.append(fit.weights, 0.0)),
            effort=effort,
            proof=True,
        )
    return replace(fit, certificate=fit.certificate.with_proof(found.bound, found.value, found.best))


def _first(likelihood: Likelihood, candidates: Array, rng: np.random.Generator) -> tuple[Array, Array | None]:
    """First atoms, and weights to start from if there are any."""
    many = likelihood.dimension > cert.FEW_DIMENSIONS
    atoms = candidates[covering_subset(candidates, FIRST_ATOMS[many], rng)]
    if not (many and likelihood.cheap):
        return atoms, None
    atoms, weights, _ = pseudo_em(likelihood, atoms, np.full(len(atoms), 1 / len(atoms)), GATHERING_STEPS)
    return atoms, weights


def _stalled(trace: list[Step], most_atoms: int, tol: float) -> bool:
    """Has the limit of atoms been reached, and the likelihood stopped rising?"""
    return (
        len(trace) > 2
        and trace[-1].atoms > 0.9 * most_atoms
        and trace[-1].log_likelihood - trace[-3].log_likelihood < tol
    )


def _next_atoms(
    likelihood: Likelihood,
    atoms: Array,
    weights: Array,
    maxima: Maxima,
    value: float,
    tol: float,
    most_atoms: int,
) -> tuple[Array, Array]:
    """Old atoms, moved where that helps, with new ones at the maxima that matter, best first.

    Maxima are kept apart from each other; from the atoms too, if those are at their maxima.  Otherwise old
    atom and new maximum stand side by side, for the weights to decide.
    """
    moved = _moved(likelihood, weights, maxima, value)
    useful = np.argsort(-maxima.gap, kind="stable")[: int((maxima.gap > 0.01 * tol).sum())]
    if moved is None:
        # Columns that are nearly equal make the weights' quadratic programmes large and slow.
        radius = float(np.clip(max(maxima.gap.max(), 0.0) ** 0.5, SAME, MERGED * SAME))
        atoms, weights, _ = merged(atoms, weights, maxima.scale[: len(atoms)], radius)
        new = maxima.points[distinct(maxima.points, maxima.scale, useful, radius)]
    else:
        atoms, weights, scale = moved
        points = np.concatenate([atoms, maxima.points[useful]])
        scale = np.concatenate([scale, maxima.scale[useful]])
        kept = distinct(points, scale, np.arange(len(points)), SAME, always=len(atoms))
        new = points[kept[len(atoms) :]]
    new = new[: max(0, most_atoms - len(atoms))]
    return np.concatenate([atoms, new]), np.concatenate([weights, np.zeros(len(new))])


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
    matrix, top = likelihood_matrix(likelihood, atoms)
    weights = npmle_weights(matrix, tol=tol, start=start).weights
    keep = weights > 0
    return atoms[keep], weights[keep], np.log(mixture(matrix, weights)) + top


def _tidied(likelihood: Likelihood, fit: Fit, candidates: Array, maxima: Maxima, effort: float) -> Fit:
    """Near-equal atoms made one, if the result is as good by the same measure."""
    scale = _local_scale(likelihood, fit)
    atoms, weights, _ = merged(fit.atoms, fit.weights, scale, MERGED * SAME)
    if len(atoms) == len(fit.atoms):
        return fit
    tol = fit.certificate.tolerance
    atoms, weights, density = _solved(likelihood, atoms, weights, 0.1 * tol)
    wide = effort * cert.THOROUGH
    maxima = cert.confirmed(likelihood, atoms, density, candidates, maxima, tol=tol, effort=wide)
    certificate = cert.certificate_of(likelihood, density, maxima, tol)
    if certificate.gap > max(fit.certificate.gap, tol):
        return fit
    step = Step(float(density.mean()), len(atoms), certificate.gap)
    return Fit(atoms, weights, certificate, (*fit.trace, step), float(density.mean()))


def _local_scale(likelihood: Likelihood, fit: Fit) -> Array:
    """Average information of the clients at each atom, (m, d, d) or diagonals (m, d)."""
    weights = client_log_weights(log_mixture(likelihood, fit.atoms, fit.weights))
    return average_information(likelihood.ascent(fit.atoms, weights, curvature=False))
