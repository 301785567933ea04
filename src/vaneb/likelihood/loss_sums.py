"""What clients' rows say of their coefficients, as sums: all that ever needs to leave a client.

A client's loss, its gradient and its Hessian at a point t_k of its own,

    L_k(t_k + h) = loss_k + gradient_k' h + h' hessian_k h / 2.

For least squares the loss is half the sum of squares, this is exact at any h, and the three are the
cross-products X'X, X'y, y'y of the rows.  (Written about a point near the estimate they keep their digits
where the level of the response is large.)  For other families it is the expansion at t_k.

Sums of two sets of rows at the same points add up to the sums of both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.expansion import from_slopes
from vaneb.likelihood.gaussian import LOG_2PI, ConstantGaussian
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.local.objective import Array, RowsObjective
from vaneb.semidefinite import generalised_inverse, log_pseudo_determinant


@dataclass(frozen=True, eq=False)
class LossSums:
    """Sums over the rows of K clients."""

    n: NDArray[np.intp]
    """Rows, (K,)."""
    point: Array
    """t_k, (K, d)."""
    loss: Array
    """(K,)"""
    gradient: Array
    """(K, d)"""
    hessian: Array
    """(K, d, d)"""

    @classmethod
    def of(cls, rows: GroupedRows, family: Family, points: Array) -> Self:
        """The sums of these rows; the dispersion of the family has no part in them."""
        terms = RowsObjective(rows, family).terms(points, np.arange(rows.n_clients))
        return cls(rows.n_rows, np.array(points), *terms)

    @property
    def n_clients(self) -> int:
        """K."""
        return len(self.n)

    def take(self, clients: NDArray[np.intp] | slice) -> Self:
        """Some of the clients, in the order given."""
        return type(self)(**{name: values[clients] for name, values in vars(self).items()})

    def plus(self, other: Self) -> Self:
        """The sums of both sets of rows, which must be about the same points."""
        return replace(
            self,
            n=self.n + other.n,
            loss=self.loss + other.loss,
            gradient=self.gradient + other.gradient,
            hessian=self.hessian + other.hessian,
        )

    def at(self, points: Array) -> Array:
        """The quadratics at each client's own point (K, d) or at one point (d,) of all: (K,)."""
        h = points - self.point
        return (
            self.loss + (self.gradient * h).sum(axis=1) + 0.5 * np.einsum("ki,kij,kj->k", h, self.hessian, h)
        )

    def slope(self, point: Array) -> Array:
        """Gradients of the quadratics at one point (d,) of all: (K, d)."""
        return self.gradient + np.einsum("kij,kj->ki", self.hessian, point - self.point)

    def minimum(self) -> Array:
        """Where the sum of all quadratics is smallest, (d,)."""
        start = self.point.mean(axis=0)
        inverse = generalised_inverse(self.hessian.sum(axis=0)[None])[0]
        return np.asarray(start - inverse @ self.slope(start).sum(axis=0))

    def minima(self) -> Array:
        """c - H^+ g(c), (K, d), with c = ``minimum()``: where each quadratic is smallest.

        Of several such points the nearest to c, so that the points t, which are anywhere, have no say.
        """
        centre = self.minimum()
        return centre - np.einsum("kij,kj->ki", generalised_inverse(self.hessian), self.slope(centre))

    def likelihood(self, family: Family, constant: Array | None = None) -> ConstantGaussian:
        """The clients as a solver sees them: log p_k(theta) = -L_k(theta) / phi + constant.

        Least squares have all of the ``constant`` (K,), that of rows of weight 1 unless it is given.  Other
        families' constants, which no population depends on, stay with the rows.
        """
        phi = family.dispersion
        if family.name != "gaussian":
            return from_slopes(self.point, -self.loss / phi, -self.gradient / phi, self.hessian / phi)
        estimates, precision = self.minima(), self.hessian / phi
        constant = -0.5 * self.n * np.log(2 * np.pi * phi) if constant is None else constant
        log_determinant, rank = log_pseudo_determinant(precision)
        # The density of the estimate already carries this much.
        carried = 0.5 * (log_determinant - rank * LOG_2PI)
        return ConstantGaussian(estimates, precision, constant - self.at(estimates) / phi - carried)


@dataclass(frozen=True, eq=False)
class Columns:
    """Mean and standard deviation of each column of a design."""

    mean: Array
    """(p,)"""
    scale: Array
    """(p,); zero of a column that is the same in all rows, and of no other."""

    @classmethod
    def of(cls, design: Array) -> Self:
        """Those of a design (N, p)."""
        # About the first row: the mean of a constant column is that constant, to the last digit.
        away = design - design[0]
        mean = away.mean(axis=0)
        return cls(design[0] + mean, np.sqrt(np.mean((away - mean) ** 2, axis=0)))

    @classmethod
    def pooled(cls, n: NDArray[np.intp], means: Array, scales: Array) -> Self:
        """Of all rows, from those of K clients (K, p)."""
        share = (n / n.sum())[:, None]
        away = means - means[0]
        shift = (share * away).sum(axis=0)
        return cls(means[0] + shift, np.sqrt((share * (scales**2 + (away - shift) ** 2)).sum(axis=0)))
