"""Local fits of many clients at once: an estimate for each, and how it was come by.

A client whose estimate does not exist (separated, rank-deficient, diverging) gets a penalised one,

    argmin L_k(theta) + r (theta - c)' S (theta - c) / 2,

with c the pooled fit and S the information of an average row there, so that the penalty is worth ``r``
rows that agree with the pooled fit.  It stands for any scale of the covariates.  Where the pooled fit
does not exist either, c = 0 and S is the information of an average row at 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.local import solver
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.local.objective import Array, Objective
from vaneb.local.solver import CONVERGED, SEPARATED, Minima, Penalised, minimise

CONSTANT_RESPONSE = "constant-response"
#: What can be said of a local fit; only the first means that the estimate is the minimiser.
OUTCOMES = {
    **solver.OUTCOMES,
    CONSTANT_RESPONSE: "all responses of the client are the same, and so there is no minimiser",
}
#: Eigenvalues of a Hessian below this share of the largest are directions without information.
NULL_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class LocalFits(Minima):
    """K local fits; penalised where ``outcome`` is not "converged", with derivatives of the loss alone."""

    n: NDArray[np.intp]
    """Rows per client, shape (K,)."""

    @property
    def exists(self) -> NDArray[np.bool_]:
        """Whether the estimate is the unpenalised minimiser, shape (K,)."""
        return self.outcome == CONVERGED

    def take(self, clients: NDArray[np.intp] | slice) -> Self:
        """The fits of some of the clients, in the order given."""
        return type(self)(**{name: values[clients] for name, values in vars(self).items()})

    def information_form(self) -> Array:
        """theta - H^+ g: the minimiser of each client's quadratic expansion at ``theta``, shape (K, d).

        For a penalised client it takes the penalty out again: with the precision H it says what the
        client's own rows say near ``theta``, no more.  Exact for least squares of any rank; the estimate
        itself where that exists.
        """
        out = self.theta.copy()
        lost = np.flatnonzero(~self.exists)
        if lost.size:
            inverse = np.linalg.pinv(self.hessian[lost], rcond=NULL_TOLERANCE, hermitian=True)
            out[lost] -= np.einsum("kij,kj->ki", inverse, self.gradient[lost])
        return out


def fit_clients(rows: GroupedRows, family: Family, *, ridge_rows: float = 1.0) -> LocalFits:
    """Fit every client by itself, all in one batch.

    Parameters
    ----------
    rows : the rows of K clients
    family : see ``vaneb.local.families``
    ridge_rows : r, weight of the penalty for clients without an estimate, in rows

    Examples
    --------
    >>> import numpy as np
    >>> from vaneb.local.data import GroupedRows
    >>> from vaneb.local.families import binomial
    >>> rows = GroupedRows.from_columns(["a"] * 4 + ["b"] * 2, np.ones((6, 1)), [0, 1, 1, 1, 1, 1])
    >>> fits = fit_clients(rows, binomial())
    >>> [str(outcome) for outcome in fits.outcome]
    ['converged', 'constant-response']
    >>> round(float(fits.theta[0, 0]), 6)  # log(3)
    1.098612
    """
    family.check(rows)
    objective, pooled = family.objective(rows), family.pooled_objective(rows)
    fits = fit_objective(objective, pooled, rows.n_rows, ridge_rows=ridge_rows)
    if rows.response.ndim > 1:
        return fits
    first = rows.starts[:-1]
    constant = np.minimum.reduceat(rows.response, first) == np.maximum.reduceat(rows.response, first)
    named = np.where(constant & (fits.outcome == SEPARATED), CONSTANT_RESPONSE, fits.outcome)
    return replace(fits, outcome=named.astype("<U20"))


def fit_objective(
    objective: Objective, pooled: Objective, n: NDArray[np.intp], *, ridge_rows: float = 1.0
) -> LocalFits:
    """As ``fit_clients``, for any K losses and the sum of them all as one client (``pooled``)."""
    if not ridge_rows > 0:
        raise InvalidOption(f"ridge_rows must be positive; it is {ridge_rows}")
    minima = minimise(objective)
    lost = np.flatnonzero(minima.outcome != CONVERGED)
    fits = LocalFits(**vars(minima), n=n)
    if lost.size:
        centre, row_information = pooled_row(minimise(pooled), pooled, int(n.sum()))
        penalised = Penalised(objective.take(lost), centre, ridge_rows * row_information)
        rescued = minimise(penalised)
        fits.theta[lost] = rescued.theta
        fits.iterations[lost] += rescued.iterations
        fits.loss[lost], fits.gradient[lost], fits.hessian[lost] = objective.terms(rescued.theta, lost)
    return fits


def pooled_row(minima: Minima, pooled: Objective, n_rows: int) -> tuple[Array, Array]:
    """The pooled estimate c (d,) and the information S (d, d) of an average row there."""
    centre, hessian = minima.theta[0], minima.hessian[0]
    if minima.outcome[0] != CONVERGED:
        centre = np.zeros(pooled.dimension)
        hessian = pooled.terms(centre[None], np.array([0]))[2][0]
    information = hessian / n_rows
    diagonal = np.diagonal(information)
    # A column that no row uses, or a combination of columns, still needs a minimiser: the smallest one.
    floor = np.where(diagonal > 0, diagonal, diagonal.max() if diagonal.max() > 0 else 1.0)
    return centre, information + 1e-8 * np.diag(floor)


def fit_pooled(rows: GroupedRows, family: Family) -> LocalFits:
    """One fit of all clients' rows, as if they were one client's."""
    pooled = family.pooled_objective(rows)
    return fit_objective(pooled, pooled, np.array([len(rows.response)]))


def common_dispersion(rows: GroupedRows, family: Family, fits: LocalFits) -> float:
    """Dispersion shared by all clients: Pearson's statistic within clients over its degrees of freedom.

    1 for families that have no dispersion.
    """
    if not family.has_dispersion:
        return 1.0
    part, index, freedom = within_clients(rows, family, fits)
    mean = family.mean(index)
    return float(np.sum(part.weight * (part.response - mean) ** 2 / family.variance(mean)) / freedom)


def within_clients(rows: GroupedRows, family: Family, fits: LocalFits) -> tuple[GroupedRows, Array, int]:
    """Rows that say something of the scatter around local fits, their index, and degrees of freedom n_k - d.

    Clients with no more rows than parameters say nothing of it; where all clients are such, the residuals
    of one pooled fit are used.
    """
    d = fits.theta.shape[1]
    free = np.where(fits.exists, fits.n - d, 0)
    if free.sum() <= 0:
        if len(rows.response) <= d:
            raise InvalidOption(
                f"dispersion: {len(rows.response)} rows cannot tell the noise from {d} parameters; give it"
            )
        if rows.n_clients == 1:
            # There is no estimate: the penalised one is the best there is.
            return rows, family.index(fits.theta[0], rows.design, rows.offset), len(rows.response) - d
        everyone = rows.pooled()
        return within_clients(everyone, family, fit_clients(everyone, family))
    clients = np.flatnonzero(free > 0)
    part = rows.take(clients)
    theta = fits.theta[clients][part.client_of_row]
    return part, family.index(theta, part.design, part.offset), int(free.sum())


def squared_residuals(rows: GroupedRows, family: Family, fits: LocalFits) -> Array:
    """Pearson's statistic of each client's rows about its own fit, (K,); zero without a dispersion."""
    if not family.has_dispersion:
        return np.zeros(rows.n_clients)
    mean = family.mean(family.index(fits.theta[rows.client_of_row], rows.design, rows.offset))
    squares = rows.weight * (rows.response - mean) ** 2 / family.variance(mean)
    return np.add.reduceat(squares, rows.starts[:-1])
