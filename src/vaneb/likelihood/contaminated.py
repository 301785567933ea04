"""Gaussian reports, a few of which may be off by more than their covariance function allows.

An estimate from a handful of rows can run off: nearly separated classes, counts that are nearly all zero.
At the atoms of a sensible population its covariance function then says that it could hardly have come from
there, and the client would draw an atom to itself or be left alone.  What such a client knows of itself is
the better guide: at its own estimate its covariance is as large as its ignorance.  So each report is

    p_k(a) = (1 - eps) N(theta_hat_k; a, Sigma_k(a) / n_k)
                 + eps N(theta_hat_k; a, Sigma_k(theta_hat_k) / n_k).

Where both agree this changes nothing; where the first is hopeless the second costs log(1 / eps), once.
The second part is no density of the estimate, whose own covariance moves with it, so likelihood cannot choose
eps (it asks for ever more); it is a small number, given.

Sums over clients of p_k and of its derivatives are those of the two parts added up: ``ascent`` is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.likelihood.base import Array, AtomSums, Likelihood
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.gaussian_function import FunctionGaussian

#: eps by default; from 0.02 to 0.1 little changes (benchmarks/study).
OUTLIERS = 0.05


def with_outliers(likelihood: Likelihood, share: float) -> Likelihood:
    """``likelihood`` with a ``share`` of outliers, where its reports have covariance functions of their own.

    Constant covariances have nothing to fall back on, and a variance function that all clients share is one
    that the user has named; both stay as they are, and so do exact likelihoods.
    """
    if share == 0 or not isinstance(likelihood, FunctionGaussian):
        return likelihood
    return ContaminatedGaussian(likelihood.estimates, likelihood.n, likelihood.covariance, share)


@dataclass(frozen=True)
class ContaminatedGaussian(FunctionGaussian):
    """K reports, each with its covariance function or, with probability ``share``, its own covariance.

    ``share`` is eps, above 0 and below 1; other parameters as of ``FunctionGaussian``.
    """

    is_report: ClassVar[bool] = False

    share: float

    @cached_property
    def usual(self) -> FunctionGaussian:
        """The reports with their covariance functions."""
        return FunctionGaussian(self.estimates, self.n, self.covariance)

    @cached_property
    def other(self) -> ConstantGaussian:
        """The same estimates with every covariance fixed at its value at the estimate."""
        return ConstantGaussian(self.estimates, self.local_precision())

    @property
    def _logs_of_shares(self) -> tuple[float, float]:
        """log(1 - eps) and log(eps)."""
        return float(np.log1p(-self.share)), float(np.log(self.share))

    def log_likelihood(self, atoms: Array) -> Array:
        usual, other = self._logs_of_shares
        out = self.usual.log_likelihood(atoms)

        def add(rows: slice) -> None:
            own = out[rows]
            np.logaddexp(own + usual, self.other.take(rows).log_likelihood(atoms) + other, out=own)

        list(map_blocks(add, self.n_clients))
        return out

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> AtomSums:
        usual, other = self._logs_of_shares
        first = self.usual.ascent(atoms, log_weights + usual, frozen=frozen, curvature=curvature)
        second = self.other.ascent(atoms, log_weights + other, frozen=frozen, curvature=curvature)
        return first.plus(second)

    def expectation(self, atoms: Array, log_prior: Array) -> tuple[Array, AtomSums]:
        return Likelihood.expectation(self, atoms, log_prior)

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        part = super().take(rows)
        # What was computed for all clients need not be computed again for some of them.
        part.__dict__["other"] = self.other.take(rows)
        return part

    def at(self, points: Array) -> Array:
        usual, other = self._logs_of_shares
        return np.logaddexp(self.usual.at(points) + usual, self.other.at(points) + other)

    def starts(self) -> Array:
        return self.usual.starts()

    def expanded(self, points: Array | None) -> ConstantGaussian:
        from vaneb.likelihood.expansion import by_differences

        return by_differences(self, self.estimates if points is None else points)
