"""How smooth is the population?  The spread Gamma around the atoms, chosen from the data.

More atoms always raise the likelihood of the clients they were fitted to, so that likelihood cannot
choose; the likelihood of *held-out clients* can.  Candidates run from the discrete NPMLE (Gamma = 0) over
NPMLEs with components N(a, c Gamma_1) to the single Gaussian N(mu, Gamma_1) of a mixed model, Gamma_1 its
maximum-likelihood covariance.  Each is fitted without one fold of clients and scored on that fold.  In few
dimensions, and with enough clients, so are mixtures whose components have spreads of their own
(``ellipsoids``).

Clients that neither the Gaussian nor any other client explains are left out of the comparison: what they say
is that they are alone, not how smooth the population is.  Of the others none counts for more than ``MOST``:
a single one must not decide.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle import ellipsoids
from vaneb.npmle.fit import Progress, log_mixture
from vaneb.npmle.gaussian_prior import ALONE, gaussian_prior, without_loners
from vaneb.npmle.starts import starting_points
from vaneb.npmle.support import covering_subset
from vaneb.npmle.weights import mixture, npmle_weights, scaled_likelihood

#: Shares c of the Gaussian's covariance that are tried, besides the single Gaussian itself.
SHARES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0)
#: Folds for few clients and for many: with many, a fit to half of them is close to a fit to all.
FOLDS, FOLDS_OF_MANY, MANY = 5, 2, 400
#: Clients that the choice looks at, where there are more.  With fewer, a mixture that is better is too often
#: not seen to be: of 3,200 clients with 20 to 40 counts each, 1,500 left every other fit a single Gaussian.
#: Where a client's likelihood takes long, so many are looked at first, and that is all if the choice for or
#: against a single Gaussian is then further than CLEAR standard errors from the other.
LOOKED_AT, FIRST_LOOK, CLEAR = 4_000, 1_500, 2.0
#: Atoms that the candidates share; fewer of them, and fewer candidates, where a client's likelihood takes
#: long (Laplace's approximation for every pair).
MOST_ATOMS, MOST_ATOMS_IF_SLOW = 800, 200
SHARES_IF_SLOW = (0.1, 0.03, 0.01, 0.0)
#: Difference in a client's log-density to the single Gaussian's beyond which it counts for no more.
MOST = 5.0
#: A less smooth mixture must beat a smoother one by this many standard errors of their difference, and
#: the best mixture must beat the single Gaussian by more of them: a mixture that looks better by chance
#: predicts worse (160 schools: +1.9 standard errors held out, 1% worse on new rows).  With many clients the
#: mixture is scored after a fit to half of them, which costs it more than the Gaussian, and a mixture fitted
#: to all loses little where it is not needed: there it takes fewer.  The same lead over the Gaussian is asked
#: of components with spreads of their own; over another mixture any lead will do (five draws of 800 and 3,200
#: clients with classes, leads of 0.6 to 1.4 standard errors: their estimates were nearer in all five).
STANDARD_ERRORS = 0.5
AGAINST_THE_GAUSSIAN, AGAINST_IF_MANY = 2.0, 1.0
#: Components with spreads of their own are tried in these dimensions (in one, a shared spread does as well),
#: with so many clients or more.
DIMENSIONS, ENOUGH_CLIENTS = (2, 3, 4), 150


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
    chosen : index of the choice, or of the best of them where ``steps`` is not None.
    steps : int or None
        Steps on the weights, if components with spreads of their own were best.
    held_out_steps : average held-out log-likelihood of such components after each of ``ellipsoids.STEPS``.
    """

    spread: Array | None
    single: bool
    shares: tuple[float, ...]
    held_out: tuple[float, ...]
    chosen: int
    steps: int | None = None
    held_out_steps: tuple[float, ...] = ()

    @property
    def certifies(self) -> bool:
        """Is a small gap D what the fit aims for?  Not where held-out clients prefer less likelihood."""
        return not self.single and self.steps is None


def lots_of(likelihood: Likelihood) -> NDArray[np.int64]:
    """A number for each client, (K,), as good as random, that depends on the client's own numbers alone.

    Folds and subsets drawn by it do not change with the order of clients; one more client leaves the others
    where they were; and copies of a client cannot stand on both sides.
    """
    rows = np.ascontiguousarray(likelihood.local_estimates(), dtype=np.float64)
    return np.array([zlib.crc32(row.tobytes()) for row in rows], dtype=np.int64)


def choose_spread(
    likelihood: Likelihood,
    *,
    diagonal: bool,
    rng: np.random.Generator,
    progress: Progress | None = None,
    own_spreads: bool = True,
) -> SmoothChoice:
    """Choose the spread by held-out likelihood over folds of clients.

    All candidates but the single Gaussian share their atoms, a covering subset of the clients' starting
    points, so that comparing them takes no more than weights.  Candidates are tried from the smoothest on;
    two in a row that are worse than the best end the search.  ``own_spreads``: try components with spreads
    of their own too.
    """
    looks = (
        (LOOKED_AT,) if likelihood.cheap or likelihood.n_clients <= FIRST_LOOK else (FIRST_LOOK, LOOKED_AT)
    )
    for size in looks:
        choice, margin = _look(_some(likelihood, size), diagonal, rng, progress, own_spreads)
        if margin > CLEAR:
            break
    return choice


def _some(likelihood: Likelihood, size: int) -> Likelihood:
    """``size`` of the clients, drawn by lot, or all where there are no more."""
    if likelihood.n_clients <= size:
        return likelihood
    return likelihood.take(np.sort(np.argsort(lots_of(likelihood), kind="stable")[:size]))


def _look(
    likelihood: Likelihood,
    diagonal: bool,
    rng: np.random.Generator,
    progress: Progress | None,
    own_spreads: bool,
) -> tuple[SmoothChoice, float]:
    """The choice by all clients given, and how many standard errors it is from the other side."""
    cheap = likelihood.cheap
    single = gaussian_prior(likelihood, diagonal=diagonal, tol=1e-6)
    assert single.spread is not None
    likelihood = without_loners(likelihood, single)
    many = likelihood.n_clients > MANY
    parts = _split(likelihood, FOLDS_OF_MANY if many else FOLDS)
    needed = AGAINST_IF_MANY if many else AGAINST_THE_GAUSSIAN
    points = starting_points(likelihood)
    # Not chosen by weight: atoms that all clients had a hand in choosing would favour the rough candidates.
    atoms = points[covering_subset(points, MOST_ATOMS if cheap else MOST_ATOMS_IF_SLOW, rng)]
    shares = (1.0, *(SHARES if cheap else SHARES_IF_SLOW))
    scores = np.full((len(shares), likelihood.n_clients), np.nan)
    chosen, averages, lead = 0, np.full(len(shares), np.nan), np.nan
    for i, share in enumerate(shares):
        if progress is not None:
            progress("choosing the spread", i + 1, len(shares))
        if i == 0:
            for inside, outside in parts:
                one = gaussian_prior(likelihood.take(inside), diagonal=diagonal, tol=1e-6)
                test = likelihood.take(outside).smoothed(one.spread)
                scores[0, outside] = log_mixture(test, one.atoms, one.weights)
        else:
            smoothed = likelihood.smoothed(share * single.spread if share > 0 else None)
            matrix, top = scaled_likelihood(smoothed.log_likelihood(atoms))
            for inside, outside in parts:
                weights = npmle_weights(matrix[inside], tol=1e-3).weights
                scores[i, outside] = np.log(mixture(matrix[outside], weights)) + top[outside]
        chosen, averages, lead = _best(scores[: i + 1], likelihood.peak(), needed)
        if i >= int(np.argmax(averages)) + 2:
            break
    steps, by_steps, own_lead = None, np.empty(0), -np.inf
    if own_spreads and likelihood.dimension in DIMENSIONS and likelihood.n_clients >= ENOUGH_CLIENTS:
        own = np.full((len(ellipsoids.STEPS), likelihood.n_clients), np.nan)
        for inside, outside in parts:
            own[:, outside] = ellipsoids.held_out(likelihood, single, inside, outside, rng)
        found = _own_spreads(scores[: len(averages)], own, chosen, likelihood.peak(), needed)
        steps, by_steps, own_lead = found
    choice = SmoothChoice(
        single.spread * shares[chosen] if shares[chosen] > 0 and steps is None else None,
        chosen == 0 and steps is None,
        shares[: len(averages)],
        tuple(float(a) for a in averages),
        chosen,
        steps,
        tuple(float(a) for a in by_steps),
    )
    return choice, abs(max(lead, own_lead) - needed)


def _own_spreads(
    scores: Array, own: Array, chosen: int, peak: Array, needed: float
) -> tuple[int | None, Array, float]:
    """Components with spreads of their own against the choice among the others.

    Steps on the weights if they are better than the mixture chosen, and than the single Gaussian by
    ``needed`` standard errors, or None; their average scores; and their lead over the single Gaussian.
    """
    used = _comparable(np.concatenate([scores, own]), peak)
    if used is None:
        return None, np.full(len(own), np.nan), np.nan
    averages = used.mean(axis=1)[len(scores) :]
    best = int(np.argmax(averages))
    own = used[len(scores) + best]
    lead = _lead(own - used[0])
    won = lead > needed and (chosen == 0 or own.mean() > used[chosen].mean())
    return (ellipsoids.STEPS[best] if won else None), averages, lead


def _split(likelihood: Likelihood, folds: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """(clients to fit on, clients to score), for each fold that leaves something on both sides."""
    fold = lots_of(likelihood) % folds
    parts = [(np.flatnonzero(fold != i), np.flatnonzero(fold == i)) for i in range(folds)]
    return [(inside, outside) for inside, outside in parts if len(inside) > 1 and len(outside) > 0]


def _best(scores: Array, peak: Array, needed: float) -> tuple[int, Array, float]:
    """The smoothest candidate that no less smooth one beats clearly, the average scores, and a lead.

    A mixture must beat the single Gaussian, the first candidate, by ``needed`` standard errors; the lead is
    that of the best mixture over it.
    """
    used = _comparable(scores, peak)
    if used is None:
        return 0, np.full(len(scores), np.nan), np.nan
    averages = used.mean(axis=1)
    if len(used) == 1:
        return 0, averages, np.nan
    chosen = 1
    for i in range(2, len(used)):
        if _lead(used[i] - used[chosen]) > STANDARD_ERRORS:
            chosen = i
    lead = _lead(used[chosen] - used[0])
    return (chosen if lead > needed else 0), averages, lead


def _comparable(scores: Array, peak: Array) -> Array | None:
    """Scores of the clients that some candidate explains, none of them far from the first candidate's."""
    scored = ~np.isnan(scores).any(axis=0)
    explained = scored & (np.nan_to_num(scores, nan=-np.inf).max(axis=0) > peak + ALONE)
    if not explained.any():
        return None
    used = np.maximum(scores[:, explained], peak[explained] + ALONE)
    return np.asarray(used[0] + np.clip(used - used[0], -MOST, MOST))


def _lead(difference: Array) -> float:
    """Average difference in standard errors."""
    return float(difference.mean() / max(difference.std() / np.sqrt(len(difference)), 1e-300))
