"""Counts with more scatter than Poisson's: variance mean + alpha mean^2, log link.

    loss = (y + 1/alpha) log(1 + alpha e^eta) - y eta

alpha is one number for all clients.  Where there is a population it is estimated together with it, by the
marginal likelihood (``estimated``).  Clients that only report take it from their residuals (``for_rows``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betainc, expit, gammaln

from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Array, Family, Flags, counts, log_of_counts
from vaneb.local.family.links import LOG, Link
from vaneb.local.family.losses import Losses, scalar
from vaneb.local.family.poisson import Poisson
from vaneb.vector_math import exp, log

if TYPE_CHECKING:
    from vaneb.covariance.base import CovarianceFunction
    from vaneb.local.fit import LocalFits

#: alpha is looked for between these: from as good as Poisson's to a standard deviation of ten means.
LEAST, MOST = 1e-4, 100.0
#: log alpha is found to this; the standard error of log alpha is seldom below 0.05.
CLOSE = 0.005
#: As many clients say enough of one number.
ENOUGH = 2_000
#: Rounds of fits at alpha and alpha from their residuals.
ROUNDS = 4


@scalar
def value(eta, y, a):  # type: ignore[no-untyped-def]
    x = eta + log(a)
    return (y + 1.0 / a) * (max(x, 0.0) + log(1.0 + exp(-abs(x)))) - y * eta


@scalar
def derivatives(eta, y, a):  # type: ignore[no-untyped-def]
    x = eta + log(a)
    e = exp(-abs(x))
    q = 1.0 / (1.0 + e)
    share = q if x >= 0.0 else e * q
    n = y + 1.0 / a
    return n * (max(x, 0.0) + log(1.0 + e)) - y * eta, n * share - y, n * e * q * q


@dataclass(frozen=True, eq=False)
class NegativeBinomial(Family):
    """Counts with log link and variance mean + ``alpha`` mean^2."""

    name: ClassVar[str] = "negative-binomial"
    losses: ClassVar[Losses] = Losses(value, derivatives)
    link: ClassVar[Link] = LOG
    rule: ClassVar[str] = Poisson.rule
    score_name: ClassVar[str] = "deviance"
    parameter_name: ClassVar[str] = "alpha"
    bounds: ClassVar[tuple[float, float] | None] = (LEAST, MOST)

    alpha: float

    @classmethod
    def allowed(cls, response: Array) -> Flags:
        return counts(response)

    def variance(self, mean: Array) -> Array:
        return mean + self.alpha * mean**2

    def log_constant(self, response: Array, weight: Array) -> Array:
        y, size = response, 1 / self.alpha
        return weight * (gammaln(y + size) - gammaln(size) - gammaln(y + 1) + y * np.log(self.alpha))

    def simulate(self, index: Array, rng: np.random.Generator, weight: Array | None = None) -> Array:
        return rng.negative_binomial(1 / self.alpha, expit(-index - np.log(self.alpha))).astype(np.float64)

    def below(self, response: Array, mean: Array) -> Array:
        y = np.floor(np.maximum(response, 0))
        return np.where(response < 0, 0.0, betainc(1 / self.alpha, y + 1, 1 / (1 + self.alpha * mean)))

    def working_response(self, rows: GroupedRows) -> Array:
        return log_of_counts(rows)

    def climbs(self, index: Array, response: Array) -> Array:
        return Poisson.climbs(Poisson(), index, response)

    def information(self, rows: GroupedRows, form: str) -> CovarianceFunction:
        from vaneb.covariance import EmpiricalGLM

        if form == "moments":
            return super().information(rows, form)
        return EmpiricalGLM(rows.design, rows.starts, "negative-binomial", 1 / self.alpha)

    @classmethod
    def row_scores(cls, response: Array, mean: Array) -> Array:
        """Poisson's deviance: it needs no alpha, so that fits with different ones can be compared."""
        return Poisson.row_scores(response, mean)

    @classmethod
    def for_rows(cls, rows: GroupedRows, n_classes: int = 0) -> Self:
        """alpha with which Pearson's statistic within clients is its degrees of freedom."""
        from vaneb.local.fit import fit_clients, within_clients

        family: Family = Poisson()
        found = cls(LEAST)
        found.check(rows)
        for _ in range(ROUNDS):
            part, index, freedom = within_clients(rows, family, fit_clients(rows, family))
            found = cls(_from_residuals(part.response, np.exp(index), part.weight, freedom))
            family = found
        return found

    def estimated(self, rows: GroupedRows, fits: LocalFits, basis: Array) -> tuple[Self, tuple[str, ...]]:
        """alpha by the marginal likelihood under a Gaussian population (Laplace's approximation)."""
        from vaneb.local.marginal import Population, laplace

        part = rows.take(np.arange(0, rows.n_clients, -(-rows.n_clients // ENOUGH)))
        latest: Population | None = None

        def deviance(log_alpha: float) -> float:
            nonlocal latest
            latest = laplace(part, replace(self, alpha=float(np.exp(log_alpha))), basis, latest)
            return -latest.log_likelihood

        found = minimize_scalar(
            deviance, bounds=(np.log(LEAST), np.log(MOST)), method="bounded", options={"xatol": CLOSE}
        )
        alpha = float(np.exp(found.x))
        notes: tuple[str, ...] = ()
        if alpha < 2 * LEAST:
            notes = ("the counts scatter no more than Poisson's; use family poisson",)
        return replace(self, alpha=alpha), notes


def _from_residuals(y: Array, mean: Array, weight: Array, freedom: float) -> float:
    def excess(log_alpha: float) -> float:
        variance = mean + np.exp(log_alpha) * mean**2
        return float(np.sum(weight * (y - mean) ** 2 / variance)) - freedom

    low, high = np.log(LEAST), np.log(MOST)
    if excess(low) <= 0:
        return LEAST
    return MOST if excess(high) >= 0 else float(np.exp(brentq(excess, low, high, xtol=1e-6)))
