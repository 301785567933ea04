"""The likelihood of clients whose loss is no sum over rows: l_k(a) = -L_k(a), as Cox's partial one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood import seam
from vaneb.likelihood.expansion import from_slopes
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.seam import Array, Ascent, Box
from vaneb.likelihood.starts import box_of, plausible_points
from vaneb.local.fit import LocalFits
from vaneb.local.objective import Clients, Objective

#: Pairs whose share r_kj is below exp(SKIP) / K change a sum of order one by less than 1e-13.
SKIP = -30.0


@runtime_checkable
class ValuedObjective(Objective, Protocol):
    """An objective that has values without derivatives, too, and parts."""

    def values(self, theta: Array, clients: Clients) -> Array: ...

    def take(self, clients: NDArray[np.intp] | slice) -> Self: ...


@dataclass(frozen=True, eq=False)
class ObjectiveLikelihood(seam.Clients):
    """Clients by their losses; see ``vaneb.likelihood.exact``."""

    is_gaussian: ClassVar[bool] = False
    is_report: ClassVar[bool] = False

    objective: ValuedObjective
    fits: LocalFits

    @property
    def n_clients(self) -> int:
        return self.objective.n_clients

    @property
    def dimension(self) -> int:
        return self.objective.dimension

    def log_likelihood(self, atoms: Array) -> Array:
        return np.stack([self.at(self._everywhere(atom)) for atom in atoms], axis=1)

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> Ascent:
        m, d = atoms.shape
        value, gradient = np.zeros(m), np.zeros((m, d))
        outer, information = np.zeros((m, d, d)), np.zeros((m, d, d))
        floor = SKIP - float(np.log(self.n_clients))
        for j, atom in enumerate(atoms):
            log_share = log_weights + self.at(self._everywhere(atom))
            near = np.flatnonzero(log_share > floor)
            value[j] = np.exp(log_share).sum()
            if near.size:
                share = np.exp(log_share[near])
                _, slope, hessian = self.objective.terms(np.tile(atom, (len(near), 1)), near)
                gradient[j] = -share @ slope
                outer[j] = np.einsum("k,ki,kj->ij", share, slope, slope)
                information[j] = np.einsum("k,kij->ij", share, hessian)
        return Ascent(value, gradient, outer if curvature else None, information)

    def _everywhere(self, atom: Array) -> Array:
        return np.tile(atom, (self.n_clients, 1))

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        return replace(self, objective=self.objective.take(rows), fits=self.fits.take(rows))

    def peak(self) -> Array:
        """l_k at the client's own estimate."""
        return -self.fits.loss

    def at(self, points: Array) -> Array:
        return -self.objective.values(points, np.arange(self.n_clients))

    def expanded(self, points: Array | None) -> ConstantGaussian:
        points = self.fits.theta if points is None else points
        loss, gradient, hessian = self.objective.terms(points, np.arange(self.n_clients))
        view = from_slopes(points, -loss, -gradient, hessian)
        # A coordinate without any curvature is not known at all, not even a little.
        none = np.diagonal(hessian, axis1=1, axis2=2) == 0
        precision = np.where(none[:, :, None] | none[:, None, :], 0.0, view.base_precision)
        made = ConstantGaussian(view.estimates, precision)
        return replace(made, offset=-loss - made.at(points))

    def local_estimates(self) -> Array:
        return self.fits.theta

    def local_precision(self) -> Array:
        return self.fits.hessian

    def starts(self) -> Array:
        return plausible_points(self)

    def region(self, starts: Array) -> Box:
        """The box of the starts: beyond, a likelihood that rises for ever would send an atom to infinity."""
        return box_of(starts)
