"""Does a mixture predict clients' rows better than a single Gaussian population?

The likelihood of held-out *clients* can prefer a mixture that predicts worse: it is paid for saying where
clients are, and on 160 schools a different draw of folds turns the answer round.  What is wanted is
prediction, so where the rows are at hand they are asked: each client's rows are halved, A and B, and the
score of a population G that was fitted without the client is the log density of one half given the other,

    s_k(G) = [log f_k(B | A) + log f_k(A | B)] / 2 = log f_k(A, B) - [log f_k(A) + log f_k(B)] / 2.

That score believes the family.  Where noise is not what the family says (marks from 0 to 10 taken for
Gaussian), a mixture can win by describing the noise and predict worse, so it must also have the smaller
loss when half of a client's rows are predicted from the other half.  It has to win both ways by
``STANDARD_ERRORS`` of the difference: in simulations mixtures that predicted better won by 3 to 11 of them,
those that did not by 2 at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.estimators import VANEB
from vaneb.grouped.predictive import expected_response
from vaneb.grouped.scores import row_losses
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.npmle.fit import Progress, log_mixture
from vaneb.posterior import posterior
from vaneb.prior import Prior

FOLDS, FOLDS_OF_MANY, MANY = 5, 2, 400
STANDARD_ERRORS = 2.5
#: Ways to halve the rows that the scores are averaged over.
HALVINGS = 3
#: Fewer clients with two rows or more than this cannot tell.
FEWEST = 10


@dataclass(frozen=True)
class RowsVerdict:
    """How a mixture compared with the single Gaussian at predicting rows.

    Parameters
    ----------
    gain : average over clients of s_k(mixture) - s_k(Gaussian)
    standard_error : of ``gain``
    loss_gain : average over clients of the loss of the Gaussian's predictions minus the mixture's
    loss_error : standard error of ``loss_gain``
    """

    gain: float
    standard_error: float
    loss_gain: float
    loss_error: float

    @property
    def mixture(self) -> bool:
        """Is the mixture better, clearly?"""
        likelier = self.gain > STANDARD_ERRORS * self.standard_error
        return likelier and self.loss_gain > STANDARD_ERRORS * self.loss_error


def compare_on_rows(
    rows: GroupedRows,
    family: Family,
    clients: Likelihood,
    spread: Array | None,
    fit_single: Callable[[Likelihood], Prior],
    *,
    tol: float,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> RowsVerdict:
    """Compare the mixture with components of covariance ``spread`` and the single Gaussian.

    ``fit_single`` fits the latter to some of the clients.
    """
    several = np.flatnonzero(rows.n_rows >= 2)
    if len(several) < FEWEST:
        return RowsVerdict(0.0, np.inf, 0.0, np.inf)
    part = rows.take(several)
    halved = [half for _ in range(HALVINGS) for half in halves_of_rows(part, rng)]
    halves = [exact_likelihood(half, family) for half in halved]
    fold = rng.permutation(rows.n_clients) % (FOLDS if rows.n_clients <= MANY else FOLDS_OF_MANY)
    difference, saved = np.empty(len(several)), np.empty(len(several))
    for i in range(int(fold.max()) + 1):
        if progress is not None:
            progress("comparing populations", i + 1, int(fold.max()) + 1)
        inside = clients.take(np.flatnonzero(fold != i))
        outside = np.flatnonzero(fold[several] == i)
        parts = [clients.take(several[outside]), *(half.take(outside) for half in halves)]
        single = fit_single(inside)
        mixture = VANEB(smooth="off" if spread is None else spread, tol=tol).fit(inside).prior_
        difference[outside] = _score(parts, mixture) - _score(parts, single)
        rows_of_halves = [half.take(outside) for half in halved]
        saved[outside] = _losses(parts[1:], rows_of_halves, family, single)
        saved[outside] -= _losses(parts[1:], rows_of_halves, family, mixture)
    errors = (float(v.std() / np.sqrt(len(v))) for v in (difference, saved))
    return RowsVerdict(float(difference.mean()), next(errors), float(saved.mean()), next(errors))


def _score(parts: list[Likelihood], prior: Prior) -> Array:
    """s_k, from the likelihoods of all rows and of their halves."""
    both, *halves = (log_mixture(p.smoothed(prior.spread), prior.atoms, prior.weights) for p in parts)
    return both - np.mean(halves, axis=0)


def _losses(halves: list[Likelihood], rows: list[GroupedRows], family: Family, prior: Prior) -> Array:
    """Average loss of each client's rows when either half is predicted from the other, (K,)."""
    total = np.zeros(rows[0].n_clients)
    for i, half in enumerate(halves):
        other = rows[i ^ 1]
        after = posterior(half, prior)
        mean = expected_response(family, after, other.client_of_row, other.design, other.offset)
        total += (
            np.add.reduceat(row_losses(family.name, other.response, mean), other.starts[:-1]) / other.n_rows
        )
    return total / len(halves)


def halves_of_rows(rows: GroupedRows, rng: np.random.Generator) -> tuple[GroupedRows, GroupedRows]:
    """Each client's rows in two halves by chance, the first as large as the second or one row larger."""
    shuffled = np.lexsort((rng.random(len(rows.response)), rows.client_of_row))
    place = np.arange(len(shuffled)) - np.repeat(rows.starts[:-1], rows.n_rows)
    first = place % 2 == 0
    return _some(rows, np.sort(shuffled[first])), _some(rows, np.sort(shuffled[~first]))


def _some(rows: GroupedRows, index: NDArray[np.intp]) -> GroupedRows:
    """Some of the rows, at least one of each client."""
    counts = np.bincount(rows.client_of_row[index], minlength=rows.n_clients)
    starts = np.concatenate([[0], np.cumsum(counts)])
    columns = rows.design[index], rows.response[index], rows.offset[index]
    return GroupedRows(*columns, starts, rows.ids, rows.names)
