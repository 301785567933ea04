"""The exact likelihood of clients' own rows: l_k(a) = sum_i w_i log p(y_i | z_i, a).

No Gaussian approximation of an estimate stands between the rows and the solver, so a client whose
estimate is poor or does not exist (few rows, all responses the same) says exactly what it knows.

``exact_likelihood`` picks the implementation.  For least squares the likelihood *is* that of a Gaussian
report in information form, whatever the number of rows; all other families keep their rows, those whose loss
is no sum over rows in ``exact_objective``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.errors import InvalidOption
from vaneb.likelihood import exact_kernels
from vaneb.likelihood.exact_objective import ObjectiveLikelihood, ValuedObjective
from vaneb.likelihood.expansion import from_slopes
from vaneb.likelihood.gaussian import LOG_2PI, ConstantGaussian, log_pseudo_determinant, transposed
from vaneb.likelihood.loss_sums import LossSums
from vaneb.likelihood.seam import Array, Ascent, Box, Clients, Likelihood
from vaneb.likelihood.starts import box_of, plausible_points
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.local.family.gaussian import Gaussian
from vaneb.local.fit import LocalFits, fit_clients
from vaneb.local.objective import RowsObjective

#: Clients are split into at most this many blocks, whatever the number of threads.
MAX_BLOCKS = 64
MIN_BLOCK = 32
#: Pairs whose share r_kj is below exp(SKIP) / K change a sum of order one by less than 1e-13.
SKIP = -30.0


def exact_likelihood(rows: GroupedRows, family: Family, fits: LocalFits | None = None) -> Likelihood:
    """Likelihood of K clients' rows.

    Parameters
    ----------
    rows : the rows of K clients
    family : with its dispersion (``vaneb.local.fit.common_dispersion`` estimates one for all clients)
    fits : local fits of the same rows and family, made here if not given
    """
    if not family.is_likelihood:
        raise InvalidOption(
            f"family {family.name!r} is a loss without a density: "
            "use Gaussian reports with sandwich covariances instead"
        )
    fits = fit_clients(rows, family) if fits is None else fits
    if isinstance(family, Gaussian):
        return _information_form(rows, family, fits)
    if not family.by_row:
        objective = family.objective(rows)
        assert isinstance(objective, ValuedObjective)
        return ObjectiveLikelihood(objective, fits)
    return ExactLikelihood(rows, family, fits)


def _information_form(rows: GroupedRows, family: Family, fits: LocalFits) -> ConstantGaussian:
    """Least squares: -n/2 log(2 pi phi) - RSS / (2 phi) - (a - theta_hat)' Z'Z (a - theta_hat) / (2 phi)."""
    sums = LossSums.of(rows, family, fits.information_form())
    # Directions that a client's rows leave open: there the estimate is that of all rows, as with sums.
    estimates, precision = sums.minima(), sums.hessian / family.dispersion
    constant = family.log_constant(rows.response, rows.weight)
    log_density = np.add.reduceat(constant, rows.starts[:-1]) - sums.at(estimates) / family.dispersion
    log_determinant, rank = log_pseudo_determinant(precision)
    # The density of the estimate already carries this much.
    return ConstantGaussian(estimates, precision, log_density - 0.5 * (log_determinant - rank * LOG_2PI))


@dataclass(frozen=True, eq=False)
class ExactLikelihood(Clients):
    """Clients that keep their rows; see ``exact_likelihood``.

    Parameters
    ----------
    rows, family, fits : as there
    """

    is_gaussian: ClassVar[bool] = False
    is_report: ClassVar[bool] = False

    rows: GroupedRows
    family: Family
    fits: LocalFits

    @property
    def n_clients(self) -> int:
        return self.rows.n_clients

    @property
    def dimension(self) -> int:
        return self.fits.theta.shape[1]

    @cached_property
    def constant(self) -> Array:
        """What is left of each client's log-likelihood without its losses, shape (K,)."""
        if not self.n_clients:
            return np.zeros(0)
        return np.add.reduceat(
            self.family.log_constant(self.rows.response, self.rows.weight), self.rows.starts[:-1]
        )

    @property
    def _block(self) -> int:
        return max(MIN_BLOCK, -(-self.n_clients // MAX_BLOCKS))

    def _rows(self, part: slice) -> exact_kernels.Rows:
        """The rows of a block, as the kernels take them."""
        rows, family = self.rows, self.family
        return exact_kernels.Rows(
            family.losses.values,
            family.losses.derivatives,
            family.parameter,
            family.dispersion,
            rows.design,
            rows.response,
            rows.offset,
            rows.weight,
            rows.starts[part.start : part.stop + 1],
            family.n_index,
            self._features,
        )

    @cached_property
    def _features(self) -> Array:
        return self.family.features(self.rows.design)

    def log_likelihood(self, atoms: Array) -> Array:
        out = np.empty((self.n_clients, len(atoms)))
        atoms_t, constant = transposed(atoms), self.constant

        def block(part: slice) -> None:
            exact_kernels.log_likelihood(self._rows(part), constant[part], atoms_t, out[part])

        list(map_blocks(block, self.n_clients, self._block))
        return out

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> Ascent:
        atoms_t, constant = transposed(atoms), self.constant + log_weights
        floor = SKIP - float(np.log(self.n_clients))

        def block(part: slice) -> exact_kernels.Sums:
            return exact_kernels.ascent(self._rows(part), constant[part], atoms_t, floor, curvature)

        parts = list(map_blocks(block, self.n_clients, self._block))
        value, gradient, outer, information = (np.sum(sums, axis=0) for sums in zip(*parts, strict=True))
        return Ascent(value, gradient, outer if curvature else None, information)

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        part = replace(self, rows=self.rows.take(rows), fits=self.fits.take(rows))
        if "constant" in self.__dict__:
            part.__dict__["constant"] = self.constant[rows]
        return part

    def peak(self) -> Array:
        """l_k at the client's own estimate."""
        return self.constant - self.fits.loss / self.family.dispersion

    def at(self, points: Array) -> Array:
        return (
            self.constant
            - self._objective.terms(points, np.arange(self.n_clients))[0] / self.family.dispersion
        )

    @cached_property
    def _objective(self) -> RowsObjective:
        return RowsObjective(self.rows, self.family)

    def expanded(self, points: Array | None) -> ConstantGaussian:
        points = self.fits.theta if points is None else points
        loss, gradient, hessian = self._objective.terms(points, np.arange(self.n_clients))
        phi = self.family.dispersion
        return from_slopes(points, self.constant - loss / phi, -gradient / phi, hessian / phi)

    def local_estimates(self) -> Array:
        return self.fits.theta

    def local_precision(self) -> Array:
        return self.fits.hessian / self.family.dispersion

    def starts(self) -> Array:
        return plausible_points(self)

    def region(self, starts: Array) -> Box:
        """The box of the starts: beyond, a likelihood that rises for ever would send an atom to infinity."""
        return box_of(starts)
