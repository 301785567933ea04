"""Sandwich covariances of M-estimators: Sigma = H^{-1} J H^{-1}.

H is the mean Hessian of the client's loss and J the mean outer product of its gradient.  When the model
is right both are the Fisher information and the sandwich collapses; when it is not (overdispersed
counts, a robust loss) the sandwich is what the estimate's covariance really is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance import _checks
from vaneb.covariance.base import Array, FullCovariance, Wire, read_key, same_dimension, symmetric, unchecked
from vaneb.covariance.empirical import RaggedInformation
from vaneb.errors import InvalidReport

#: Eigenvalues of J below this share of its largest one count as zero, and J^{-1} is then the
#: pseudo-inverse: a direction in which no row has a gradient carries no information.
RANK_TOLERANCE = 1e-10
#: Models whose score is (y - mean(eta)) z, so that the Hessian does not depend on y.
MODELS = ("poisson", "logistic", "gaussian")


@dataclass(frozen=True, eq=False)
class SandwichCovariance(FullCovariance):
    """Sigma_k(theta)^{-1} = H_k(theta) J_k(theta)^+ H_k(theta).

    Parameters
    ----------
    bread : FullCovariance
        A family whose ``precision`` is H_k, for example ``EmpiricalGLM`` or ``ConstantFull``.
    meat : FullCovariance
        A family whose ``precision`` is J_k, for example ``EmpiricalScores``.
    """

    family: ClassVar[str | None] = "sandwich"
    bread: FullCovariance
    meat: FullCovariance

    def __post_init__(self) -> None:
        for name in ("bread", "meat"):
            part = getattr(self, name)
            if not isinstance(part, FullCovariance) or isinstance(part, SandwichCovariance):
                raise InvalidReport(f"{name}: expected a family of full matrices, not itself a sandwich")
        sizes = [(part.n_clients, part.dimension) for part in (self.bread, self.meat)]
        if sizes[0] != sizes[1]:
            raise InvalidReport(f"meat: (clients, dimension) is {sizes[1]}, but {sizes[0]} of the bread")

    @property
    def n_clients(self) -> int:
        return self.bread.n_clients

    @property
    def dimension(self) -> int:
        return self.bread.dimension

    def precision(self, points: Array) -> Array:
        h = self.bread.precision(points)
        inverse, _ = _pseudo_inverse(self.meat.precision(points))
        return symmetric(h @ inverse @ h)

    def precision_gradient(self, points: Array) -> Array:
        """dH J^+ H + H dJ^+ H + H J^+ dH, for J of constant rank.

        dJ^+ = -J^+ dJ J^+ + J^+ J^+ dJ N + N dJ J^+ J^+, N the projection on the null space of J.
        """
        h = self.bread.precision(points)
        inverse, null = _pseudo_inverse(self.meat.precision(points))
        # the coordinate of theta goes in front of the matrices, so that @ works
        dh = np.moveaxis(self.bread.precision_gradient(points), -1, 2)
        dj = np.moveaxis(self.meat.precision_gradient(points), -1, 2)
        h, inverse, null = h[:, :, None], inverse[:, :, None], null[:, :, None]
        outside = inverse @ inverse @ dj @ null
        d_inverse = outside + np.swapaxes(outside, -1, -2) - inverse @ dj @ inverse
        left = dh @ inverse @ h
        gradient = left + np.swapaxes(left, -1, -2) + h @ d_inverse @ h
        return np.moveaxis(gradient, 2, -1)

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        return unchecked(self, bread=self.bread.take(rows), meat=self.meat.take(rows))

    def to_wire(self) -> Wire:
        return {"family": self.family, "bread": self.bread.to_wire(), "meat": self.meat.to_wire()}

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        from vaneb.covariance import from_wire

        parts = []
        for key in ("bread", "meat"):
            inner = read_key(wire, key)
            # asked before it is read: a message of nested sandwiches must not nest calls
            if isinstance(inner, dict) and inner.get("family") == cls.family:
                raise InvalidReport(f"{key}: a sandwich cannot be part of a sandwich")
            try:
                parts.append(from_wire(inner))
            except InvalidReport as error:
                raise InvalidReport(f"{key}: {error}") from None
        return cls(*parts)  # type: ignore[arg-type]  # __post_init__ refuses other families

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        same_dimension(parts)
        stacked = {}
        for name in ("bread", "meat"):
            inner = [getattr(part, name) for part in parts]
            if len({type(part) for part in inner}) > 1:
                raise InvalidReport(f"{name}: clients to stack have different families")
            stacked[name] = type(inner[0]).stack(inner)
        return unchecked(parts[0], **stacked)


@dataclass(frozen=True, eq=False)
class EmpiricalScores(RaggedInformation):
    """J_k(theta) = (1/n_k) sum_i (y_i - mean(z_i'theta))^2 z_i z_i', the meat of a GLM's sandwich.

    mean(eta) is e^eta (poisson, exponent clipped at 200), 1 / (1 + e^-eta) (logistic) or eta (gaussian);
    for the gaussian model residuals are divided by ``variance``.

    Parameters
    ----------
    rows : array (N, d)
    offsets : array (K + 1,)
    responses : array (N,)
    model : {"poisson", "logistic", "gaussian"}
    variance : float
        Only of the gaussian model; the one its loss assumes, as in the bread.
    """

    family: ClassVar[str | None] = "empirical-scores"
    _per_row: ClassVar[tuple[str, ...]] = ("rows", "responses")
    responses: Array
    model: str
    variance: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in MODELS:
            raise InvalidReport(f"model: {self.model!r:.40} is unknown; choose one of {', '.join(MODELS)}")
        responses = _checks.finite_array(self.responses, "responses", (self.rows.shape[0],))
        variance = _checks.positive(_checks.finite_array(self.variance, "variance", ()), "variance")
        object.__setattr__(self, "responses", np.ascontiguousarray(responses))
        object.__setattr__(self, "variance", float(variance))

    def _moments(self, points: Array, order: int) -> Array:
        return self._sums(points, order, f"{self.model} score", self.variance, responses=self.responses)


def _pseudo_inverse(matrices: Array) -> tuple[Array, Array]:
    """J^+ and the projection on the null space of J, for symmetric matrices (..., d, d)."""
    inverse = symmetric(np.linalg.pinv(matrices, rcond=RANK_TOLERANCE, hermitian=True))
    return inverse, np.eye(matrices.shape[-1]) - inverse @ matrices
