"""The exact likelihood of clients' own rows: l_k(a) = constant_k - L_k(a) / phi, L_k the client's loss.

No Gaussian approximation of an estimate stands between the rows and the solver, so a client whose
estimate is poor or does not exist (few rows, all responses the same) says exactly what it knows.

For least squares the likelihood *is* that of a Gaussian report in information form, whatever the number of
rows.  All other families keep their rows, as an ``Objective`` that knows losses and their derivatives.
Losses that are sums over rows are added up at many atoms by compiled loops over atoms (``exact_kernels``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks, sum_blocks
from vaneb.errors import InvalidOption
from vaneb.likelihood import exact_kernels
from vaneb.likelihood.base import Array, AtomSums, Box, Likelihood
from vaneb.likelihood.expansion import from_slopes
from vaneb.likelihood.gaussian import ConstantGaussian, transposed
from vaneb.likelihood.loss_sums import LossSums
from vaneb.likelihood.pairwise import SKIP, Indices, Pairwise
from vaneb.likelihood.starts import box_of, plausible_points
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.local.family.gaussian import Gaussian
from vaneb.local.fit import LocalFits, fit_clients
from vaneb.local.objective import Objective, RowsObjective


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
    constant = np.zeros(rows.n_clients)
    if family.by_row and rows.n_clients:
        constant = np.add.reduceat(family.log_constant(rows.response, rows.weight), rows.starts[:-1])
    if isinstance(family, Gaussian):
        # Directions that a client's rows leave open: there the estimate is that of all rows.
        return LossSums.of(rows, family, fits.information_form()).likelihood(family, constant)
    objective = family.objective(rows)
    if isinstance(objective, RowsObjective):
        return RowsLikelihood(objective, fits, constant, family.dispersion)
    return ExactLikelihood(objective, fits, constant, family.dispersion)


@dataclass(frozen=True, eq=False)
class ExactLikelihood(Pairwise):
    """Clients that keep their rows; see ``exact_likelihood``.

    Parameters
    ----------
    objective : L_k, the clients' losses
    fits : their minima
    constant : (K,)
    dispersion : phi
    """

    is_gaussian: ClassVar[bool] = False
    is_report: ClassVar[bool] = False

    objective: Objective
    fits: LocalFits
    constant: Array
    dispersion: float

    @property
    def n_clients(self) -> int:
        return self.objective.n_clients

    @property
    def dimension(self) -> int:
        return self.objective.dimension

    def _logs(self, atoms: Array) -> tuple[Array, None]:
        m, everyone = len(atoms), np.arange(self.n_clients)
        losses = self.objective.values(np.tile(atoms, (len(everyone), 1)), np.repeat(everyone, m))
        return self.constant[:, None] - losses.reshape(-1, m) / self.dispersion, None

    def _scores(
        self, found: None, atoms: Array, client: Indices, atom: Indices, frozen: bool
    ) -> tuple[Array, Array]:
        _, gradient, hessian = self.objective.terms(atoms[atom], client)
        gradient /= -self.dispersion
        if self.dispersion != 1:
            hessian /= self.dispersion
        return gradient, hessian

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        return replace(
            self,
            objective=self.objective.take(rows),
            fits=self.fits.take(rows),
            constant=self.constant[rows],
        )

    def peak(self) -> Array:
        """l_k at the client's own estimate."""
        return self.constant - self.fits.loss / self.dispersion

    def at(self, points: Array) -> Array:
        return self.constant - self.objective.values(points, np.arange(self.n_clients)) / self.dispersion

    def expanded(self, points: Array | None) -> ConstantGaussian:
        points = self.fits.theta if points is None else points
        loss, gradient, hessian = self.objective.terms(points, np.arange(self.n_clients))
        value, phi = self.constant - loss / self.dispersion, self.dispersion
        view = from_slopes(points, value, -gradient / phi, hessian / phi)
        # A coordinate without any curvature is not known at all, not even a little.
        none = np.diagonal(hessian, axis1=1, axis2=2) == 0
        if not none.any():
            return view
        precision = np.where(none[:, :, None] | none[:, None, :], 0.0, view.base_precision)
        made = ConstantGaussian(view.estimates, precision)
        return replace(made, offset=value - made.at(points))

    def local_estimates(self) -> Array:
        return self.fits.theta

    def local_precision(self) -> Array:
        return self.fits.hessian / self.dispersion

    def starts(self) -> Array:
        return plausible_points(self)

    def region(self, starts: Array) -> Box:
        """The box of the starts: beyond, a likelihood that rises for ever would send an atom to infinity."""
        return box_of(starts)


@dataclass(frozen=True, eq=False)
class RowsLikelihood(ExactLikelihood):
    """Clients whose losses are sums over rows.  At many atoms loops over atoms are faster than pairs."""

    objective: RowsObjective

    @property
    def _block(self) -> int:
        return max(32, -(-self.n_clients // 64))

    @cached_property
    def _features(self) -> Array:
        return self.objective.family.features(self.objective.rows.design)

    def _rows(self, part: slice) -> exact_kernels.FamilyRows:
        """The rows of a block, as the kernels take them."""
        rows, family = self.objective.rows, self.objective.family
        return exact_kernels.FamilyRows(
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

    def log_likelihood(self, atoms: Array) -> Array:
        out, atoms_t = np.empty((self.n_clients, len(atoms))), transposed(atoms)

        def block(part: slice) -> None:
            exact_kernels.log_likelihood(self._rows(part), self.constant[part], atoms_t, out[part])

        list(map_blocks(block, self.n_clients, self._block))
        return out

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> AtomSums:
        atoms_t, constant = transposed(atoms), self.constant + log_weights
        floor = SKIP - float(np.log(self.n_clients))

        def block(part: slice) -> tuple[Array, ...]:
            return exact_kernels.ascent(self._rows(part), constant[part], atoms_t, floor, curvature)

        value, gradient, outer, information = sum_blocks(block, self.n_clients, self._block)
        return AtomSums(value, gradient, outer if curvature else None, information)

    def expectation(self, atoms: Array, log_prior: Array) -> tuple[Array, AtomSums]:
        return Likelihood.expectation(self, atoms, log_prior)
