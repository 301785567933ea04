"""Support and weights together, until no atom anywhere could raise the likelihood by more than ``tol``.

The NPMLE is a concave problem over measures.  Each round

1. climbs the gap D(G, .) from all atoms and from the clients that the prior explains worst,
2. moves the atoms to the maxima that were climbed to from them, if that raises the likelihood, and adds the
   other maxima as new atoms,
3. solves for the weights of all of them together, which drops most.

When the largest D is below ``tol``, a wider search has to confirm it.

For many clients the rounds first run on a part of them, drawn evenly.  Then they run on larger parts, which
hold all clients that the atoms so far explain badly.  The support found there is almost right.

In many dimensions the NPMLE gives almost every client that stands apart an atom of its own.  The number of
atoms is limited by what the matrix of likelihoods may take; where the limit binds, the certificate says what
was not reached.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vaneb.blocks import Progress
from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.ascent import Maxima, client_log_weights
from vaneb.npmle.fit import Fit, Step, log_mixture
from vaneb.npmle.options import DEFAULT, Options
from vaneb.npmle.proof import prove
from vaneb.npmle.search import Part, certificate_of, search
from vaneb.npmle.support import covering_subset, distinct, merged
from vaneb.npmle.weights import likelihood_matrix, mixture, npmle_weights

#: Atoms, their weights, and log f_k of all clients.
Solved = tuple[Array, Array, Array]


def certified(
    likelihood: Likelihood,
    *,
    tol: float = 1e-4,
    rng: np.random.Generator | None = None,
    progress: Progress | None = None,
    start: tuple[Array, Array] | None = None,
    proof: bool = False,
    options: Options = DEFAULT,
) -> Fit:
    """The NPMLE under ``likelihood`` to a gap of ``tol``.

    Parameters
    ----------
    start : (atoms, weights), optional
        Where to start from instead of a covering subset of the clients' estimates.
    proof : bool
        Whether to prove that the gap is below ``tol``, where that can be done; see ``vaneb.npmle.proof``.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    everyone, n, size = Part.everyone(likelihood), likelihood.n_clients, options.first_clients
    fit: Fit | None = None
    if n > 2 * size:
        some, _ = everyone.some(np.ones(n), size, rng)
        size *= 2
        while True:
            # The noise of a part is of the order of 1e-3.
            fit = _rounds(some, start, max(tol, 1e-3), rng, options, progress, fit)
            start = fit.atoms, fit.weights
            if size > n / 2:
                break
            some, _ = everyone.important(log_mixture(likelihood, *start), size, rng)
            size *= 5
    fit = _rounds(everyone, start, tol, rng, options, progress, fit)
    if not (proof and fit.certificate.reached):
        return fit
    found = prove(
        likelihood, client_log_weights(log_mixture(likelihood, fit.atoms, fit.weights)), tol, options
    )
    if found is None:
        return fit
    if found.value > tol and len(fit.trace) < options.rounds:
        # The search has missed it: go on from there.
        start = np.concatenate([fit.atoms, found.best[None]]), np.append(fit.weights, 0.0)
        left = replace(options, rounds=options.rounds - len(fit.trace))
        return certified(
            likelihood, tol=tol, rng=rng, progress=progress, start=start, proof=True, options=left
        )
    return replace(fit, certificate=fit.certificate.with_proof(found.bound, found.value, found.best))


def _rounds(
    part: Part,
    start: tuple[Array, Array] | None,
    tol: float,
    rng: np.random.Generator,
    options: Options,
    progress: Progress | None,
    before: Fit | None,
) -> Fit:
    """Rounds on ``part`` until a wide search finds no D above ``tol``; the trace of ``before`` goes on."""
    trace = [] if before is None else list(before.trace)
    began = len(trace)
    most_atoms = int(min(max(options.entries / part.likelihood.n_clients, 150), options.most_atoms))
    first: tuple[Array, Array | None] = (
        (part.starts[covering_subset(part.starts, options.first_atoms, rng)], None)
        if start is None
        else start
    )
    solved = _solved(part, *first, max(tol, 1e-2), options)
    also: Array | None = None
    merging = True
    for done in range(options.rounds):
        atoms, weights, density = solved
        # Far from the optimum maxima need not be found to the last digit.
        sharp = max(tol, 0.05 * trace[-1].gap) if done else tol
        maxima = search(part, atoms, density, rng, tol=sharp, also=also, options=options)
        over = done == options.rounds - 1 or _stalled(trace[began:], most_atoms, tol)
        if over or maxima.gap.max() <= tol:
            if merging:
                solved = _without_near_equals(part, solved, maxima, tol, options)
                atoms, weights, density = solved
                merging = False
            maxima = search(part, atoms, density, rng, tol=tol, wide=True, also=also, options=options)
            high = np.argsort(-maxima.gap, kind="stable")[: options.climbed]
            also = maxima.points[high]  # a few atoms later the maxima are near these
        certificate = certificate_of(maxima, tol)
        trace.append(Step(float(part.share @ density), len(atoms), certificate.gap))
        if progress is not None:
            progress("fitting the prior", done + 1, options.rounds)
        if over or certificate.reached:
            break
        atoms, weights = _next_atoms(part, solved, maxima, tol, most_atoms, options)
        solved = _solved(part, atoms, weights, max(0.1 * tol, min(1e-2, 0.05 * certificate.gap)), options)
    return Fit(atoms, weights, certificate, tuple(trace), float(part.share @ density))


def _stalled(trace: list[Step], most_atoms: int, tol: float) -> bool:
    """Has the limit of atoms been reached, and the likelihood stopped rising?"""
    return (
        len(trace) > 2
        and trace[-1].atoms > 0.9 * most_atoms
        and trace[-1].log_likelihood - trace[-3].log_likelihood < tol
    )


def _next_atoms(
    part: Part, solved: Solved, maxima: Maxima, tol: float, most_atoms: int, options: Options
) -> tuple[Array, Array]:
    """Old atoms, moved where that helps, with new ones at the maxima that matter, best first.

    Maxima are kept apart from each other; from the atoms too, if those are at their maxima.  Otherwise old
    atom and new maximum stand side by side, for the weights to decide.
    """
    atoms, weights, density = solved
    m, same = len(atoms), options.same
    useful = np.argsort(-maxima.gap, kind="stable")[: int((maxima.gap > 0.1 * tol).sum())]
    moved, total, heads = merged(maxima.points[:m], weights, maxima.scale[:m], same)
    if part.share @ log_mixture(part.likelihood, moved, total) > part.share @ density:
        atoms, weights = moved, total
        points = np.concatenate([atoms, maxima.points[useful]])
        scale = np.concatenate([maxima.scale[heads], maxima.scale[useful]])
        new = points[distinct(points, scale, np.arange(len(points)), same, always=len(atoms))[len(atoms) :]]
    else:
        # Columns that are nearly equal make the weights' quadratic programmes large and slow: they are kept
        # apart as long as the square of the distance, of whose order the cost is, is below the gap.
        radius = float(np.clip(max(maxima.gap.max(), 0.0) ** 0.5, same, 5 * same))
        atoms, weights, _ = merged(atoms, weights, maxima.scale[:m], radius)
        new = maxima.points[distinct(maxima.points, maxima.scale, useful, radius)]
    new = new[: max(0, most_atoms - len(atoms))]
    return np.concatenate([atoms, new]), np.concatenate([weights, np.zeros(len(new))])


def _solved(part: Part, atoms: Array, start: Array | None, tol: float, options: Options) -> Solved:
    """Atoms with positive weight, their weights, and log f_k."""
    matrix, top = likelihood_matrix(part.likelihood, atoms, options)
    weights = npmle_weights(matrix, tol=tol, start=start, share=part.share).weights
    keep = weights > 0
    return atoms[keep], weights[keep], np.log(mixture(matrix, weights)) + top


def _without_near_equals(part: Part, solved: Solved, maxima: Maxima, tol: float, options: Options) -> Solved:
    """Atoms that nobody could tell apart made one."""
    m = len(solved[0])
    atoms, weights, _ = merged(*solved[:2], maxima.scale[:m], 5 * options.same)
    return solved if len(atoms) == m else _solved(part, atoms, weights, 0.1 * tol, options)
