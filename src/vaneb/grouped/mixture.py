"""Are there groups of clients?  A mixture has to predict halves of their rows better than one Gaussian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.grouped.choice import Fitted, fit_others
from vaneb.grouped.gaussian_posterior import sample_gaussians, weigh_candidate
from vaneb.grouped.mixed_model import Moments, fit_moments
from vaneb.grouped.population import Structure, has_row_factors, in_phi, through_row_factors
from vaneb.grouped.predictive import expected_response
from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.population.options import QUICK
from vaneb.population.sampler import sample_populations
from vaneb.posterior import Posterior, posterior
from vaneb.prior import Prior

#: With fewer clients than this, rows cannot tell a mixture from one Gaussian.
FEWEST = 20
#: Skewness or tails beyond this many standard errors make it worth asking whether there are groups.
ODD = 2.5
#: Standard errors by which a mixture must predict better.
SURELY = 2.0


def looks_odd(fitted: Fitted) -> bool:
    """Are clients skewed, or their tails not Gaussian, beyond what chance may do?

    Hermite polynomials of each client's score in the directions of L; standard normal under the Gaussian
    population.  A client counts as much as it knows.
    """
    model, moments = fitted.model, fitted.moments
    at, root = model.varying, model.root
    # C - I, the scores L' Z'(y - Z mu), and their variances: the diagonal of (C - I) C.
    inner = root.T @ moments.gram[:, at[:, None], at] @ root
    scores = (moments.cross - moments.gram @ (model.mean - fitted.centre))[:, at] @ root
    reliable = np.diagonal(inner, axis1=1, axis2=2)
    variances = reliable + np.sum(inner**2, axis=1)
    seen = variances > 1e-12
    t = np.where(seen, scores / np.sqrt(np.where(seen, variances, 1.0) * model.variance), 0.0)
    rho = np.where(seen, reliable / (1 + reliable), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        skewness = (rho**1.5 * (t**3 - 3 * t)).sum(axis=0) / np.sqrt(6 * (rho**3).sum(axis=0))
        tails = (rho**2 * (t**4 - 6 * t**2 + 3)).sum(axis=0) / np.sqrt(24 * (rho**4).sum(axis=0))
    return bool((np.abs(np.nan_to_num([skewness, tails])) > ODD).any())


def predicts_better(rows: GroupedRows, structure: Structure, seed: int) -> bool:
    """Does a mixture predict half of each client's rows from the other half better than one Gaussian?

    By ``SURELY`` standard errors of the average over clients, whose losses are compared one by one; and only
    where clients are skewed or have other tails than one Gaussian.
    """
    rows = rows.take(np.flatnonzero(rows.n_rows >= 2))
    if not may_have_groups(structure, rows.n_clients):
        return False
    family, fitted = structure.family, structure.fitted

    def half(first: GroupedRows, second: GroupedRows) -> Half:
        clients = exact_likelihood(first, family)
        if fitted is not None and has_row_factors(structure) and not clients.is_gaussian:
            start = fitted.points.mean(axis=0)
            own = fit_others(first, family, structure.basis, fitted.model.varying, start, fitted.correlated)
            clients = through_row_factors(replace(structure, fitted=own))

        def losses(after: Posterior) -> Array:
            mean = expected_response(family, after, second.client_of_row, second.design, second.offset)
            return family.client_scores(second, mean)

        return Half(clients, losses)

    first, second = halves_of_rows(rows, seed)
    return mixture_predicts_better((half(first, second), half(second, first)), structure, seed)


class Half(NamedTuple):
    """Half of the rows of K clients, and how well estimates from it predict the other half."""

    clients: Likelihood
    losses: Callable[[Posterior], Array]
    """Average loss of each client's other rows, (K,), given the posterior from these."""


def may_have_groups(structure: Structure, n_clients: int) -> bool:
    """Is it worth asking halves of this many clients' rows whether there are groups?"""
    if n_clients < FEWEST or not structure.varying.any():
        return False
    return structure.fitted is None or looks_odd(structure.fitted)


def mixture_predicts_better(halves: tuple[Half, Half], structure: Structure, seed: int) -> bool:
    """See ``predicts_better``."""
    losses = []
    for clients, losses_of in halves:
        recoded = in_phi(clients, structure.basis)
        priors = [
            sample_populations(recoded, single=single, seed=seed, options=QUICK, varying=structure.varying)[0]
            for single in (False, True)
        ]
        if (own := _one_gaussian(recoded, structure, seed)) is not None:
            priors.append(own)
        losses.append([losses_of(posterior(clients, prior.mapped(structure.basis))) for prior in priors])
    both = min(map(len, losses))
    mixture, *others = np.mean([one[:both] for one in losses], axis=0)
    gains = np.array(others) - mixture
    return bool((gains.mean(axis=1) > SURELY * gains.std(axis=1, ddof=1) / np.sqrt(gains.shape[1])).all())


def _one_gaussian(clients: Any, structure: Structure, seed: int) -> Prior | None:
    """Gaussian populations with what the structure assumes of correlations, in coordinates phi."""
    fitted = structure.fitted
    if fitted is None or not clients.is_gaussian:
        return None
    view = clients.expanded(None)
    gram = np.ascontiguousarray(view.base_precision)
    cross = np.einsum("kij,kj->ki", gram, view.estimates)
    moments = Moments(gram, cross, penalty=0.0 if fitted.moments.n_rows else fitted.moments.penalty)
    root = fitted.model.root * np.sqrt(fitted.model.variance)
    model = fit_moments(moments, fitted.model.varying, correlated=fitted.correlated, start=root)
    own = weigh_candidate(
        Fitted(model, moments, view.estimates, np.zeros(len(model.mean)), fitted.correlated)
    )
    drawn = None if own is None else sample_gaussians([own], seed=seed, options=QUICK)
    return drawn[0] if drawn else None


def halves_of_rows(rows: GroupedRows, seed: int) -> tuple[GroupedRows, GroupedRows]:
    """Half of each client's rows, taken at random, and the others."""
    first = first_halves(rows, seed)
    return rows.some_rows(first), rows.some_rows(~first)


def first_halves(rows: GroupedRows, seed: int) -> NDArray[np.bool_]:
    """Whether a row is in the first half of its client's rows, (N,).

    Rows come in the order of their values.  Every second one would make halves more alike than rows that are
    independent, and a population too wide would then seem to predict best.  Chance is a client's own, drawn
    from its rows: it makes the same halves where no other client's rows are.
    """
    place = np.arange(len(rows.response)) - np.repeat(rows.starts[:-1], rows.n_rows)
    columns = np.column_stack([rows.design, rows.response, rows.offset])
    values = np.frombuffer(columns.tobytes(), np.uint64).reshape(len(place), -1)
    number = np.arange(values.shape[1]).astype(np.uint64)
    marks = _scrambled(np.add(values, number, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    own = np.add.reduceat(_scrambled(marks), rows.starts[:-1])[rows.client_of_row]
    chance = _scrambled(own + _scrambled(place.astype(np.uint64) + np.uint64(seed << 32)))
    first = np.zeros(len(place), dtype=bool)
    first[np.lexsort((chance, rows.client_of_row))] = place % 2 == 0
    return first


def _scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The mixing step of splitmix64: numbers that look random, the same for the same numbers."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
