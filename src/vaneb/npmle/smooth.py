"""How smooth is the population?  The spread Gamma around the atoms, chosen from the data.

More atoms always raise the likelihood of the clients they were fitted to, so that likelihood cannot
choose; the likelihood of *held-out clients* can.  Candidates run from the discrete NPMLE (Gamma = 0) over
NPMLEs with components N(a, c Gamma_1) to the single Gaussian N(mu, Gamma_1) of a mixed model, Gamma_1 its
maximum-likelihood covariance.  Each is fitted without one fold of clients and scored on that fold.

Clients that no candidate explains are left out of the comparison: what they say is that they are alone,
not how smooth the population is, and one of them could outweigh all others.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.certified import certified
from vaneb.npmle.fit import Fit, Progress, log_mixture
from vaneb.npmle.gaussian_prior import gaussian_prior
from vaneb.prior import Prior

#: Shares c of the Gaussian's covariance that are tried, besides the single Gaussian itself.
SHARES = (0.3, 0.1, 0.03, 0.01, 0.0)
FOLDS = 5
#: Clients that the choice looks at, where there are more.
LOOKED_AT = 2_000
#: Log-density below a client's own peak at which it counts as explained by nobody.
ALONE = -50.0
#: A less smooth prior must beat a smoother one by this many standard errors of their difference.
STANDARD_ERRORS = 0.5


@dataclass(frozen=True)
class SmoothChoice:
    """The chosen spread and how the candidates compared.

    Parameters
    ----------
    spread : (d, d) or None
        None for the discrete NPMLE.
    single : True if one Gaussian component was best.
    shares : candidates; 1.0 stands for the single Gaussian.
    held_out : average held-out log-likelihood per client of each candidate.
    chosen : index of the choice.
    """

    spread: Array | None
    single: bool
    shares: tuple[float, ...]
    held_out: tuple[float, ...]
    chosen: int


def folds_of(likelihood: Likelihood, folds: int) -> NDArray[np.intp]:
    """A fold for each client that depends on its own numbers alone.

    So the choice does not change with the order of clients, one more client leaves the others where they
    were, and copies of a client cannot stand on both sides.
    """
    rows = np.ascontiguousarray(likelihood.local_estimates(), dtype=np.float64)
    return np.array([zlib.crc32(row.tobytes()) % folds for row in rows], dtype=np.intp)


def choose_spread(
    likelihood: Likelihood,
    *,
    diagonal: bool,
    rng: np.random.Generator,
    folds: int = FOLDS,
    progress: Progress | None = None,
) -> SmoothChoice:
    """Choose the spread by held-out likelihood over folds of clients."""
    if likelihood.n_clients > LOOKED_AT:
        rows = np.sort(rng.choice(likelihood.n_clients, LOOKED_AT, replace=False))
        likelihood = likelihood.take(rows)
    single = gaussian_prior(likelihood, diagonal=diagonal)
    assert single.spread is not None
    fold = folds_of(likelihood, folds)
    scores = np.full((len(SHARES) + 1, likelihood.n_clients), np.nan)
    starts: dict[float, tuple[Array, Array]] = {}
    for number in range(folds):
        inside, outside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if len(outside) == 0 or len(inside) < 2:
            continue
        train, test = likelihood.take(inside), likelihood.take(outside)
        one = gaussian_prior(train, diagonal=diagonal, tol=1e-6)
        scores[0, outside] = log_mixture(test.smoothed(one.spread), one.atoms, one.weights)
        for i, share in enumerate(SHARES, start=1):
            spread = share * single.spread if share > 0 else None
            fit = _quick(train.smoothed(spread), starts.get(share), rng)
            starts.setdefault(share, (fit.atoms, fit.weights))
            scores[i, outside] = log_mixture(test.smoothed(spread), fit.atoms, fit.weights)
        if progress is not None:
            progress("choosing the spread", number + 1, folds)
    chosen, averages = _best(scores, likelihood.peak())
    shares = (1.0, *SHARES)
    spread = single.spread * shares[chosen] if shares[chosen] > 0 else None
    return SmoothChoice(spread, chosen == 0, shares, tuple(float(a) for a in averages), chosen)


def _quick(likelihood: Likelihood, start: tuple[Array, Array] | None, rng: np.random.Generator) -> Fit:
    """A fit good enough to compare candidates by."""
    return certified(likelihood, tol=1e-2, rng=rng, max_rounds=10, start=start, effort=0.4)


def _best(scores: Array, peak: Array) -> tuple[int, Array]:
    """The smoothest candidate that no less smooth one beats clearly, and the average scores."""
    scored = ~np.isnan(scores).any(axis=0)
    explained = scored & (np.nan_to_num(scores, nan=-np.inf).max(axis=0) > peak + ALONE)
    if not explained.any():
        return 0, np.full(len(scores), np.nan)
    used = np.maximum(scores[:, explained], peak[explained] + ALONE)
    averages = used.mean(axis=1)
    chosen = 0
    for i in range(1, len(used)):
        difference = used[i] - used[chosen]
        error = difference.std() / np.sqrt(len(difference))
        if difference.mean() > STANDARD_ERRORS * error:
            chosen = i
    return chosen, averages


def fit_single(likelihood: Likelihood, *, diagonal: bool) -> Prior:
    """The single Gaussian on all clients."""
    return gaussian_prior(likelihood, diagonal=diagonal)
