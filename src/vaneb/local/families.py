"""Families of losses for the rows of a client: plain values, made by the functions below.

A row's loss depends on the parameter theta through a linear index only,

    eta = z' theta + offset                                one entry: all families but softmax
    eta_c = ((B_c - B_0) z)' theta,   c = 1, ..., C        softmax over C + 1 classes

and a row's log-likelihood is ``-loss / dispersion + constant``.  The losses are in ``losses``.

Letters: p columns of the design, d parameters, C entries of the index; d = p except for softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, gammaln, softmax

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.local import losses
from vaneb.local.data import GroupedRows

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Family:
    """A loss for single rows, and the likelihood it comes from."""

    name: str
    code: int
    """Which of ``losses`` it is."""
    parameter: float = 1.0
    """Dispersion of the negative binomial, threshold of Huber's loss; unused otherwise."""
    dispersion: float = 1.0
    """phi in the log-likelihood -loss / phi: variance of Gaussian noise, 1 / shape of a gamma response."""
    projections: Array | None = None
    """Softmax only: B_c, shape (C + 1, d, p)."""
    is_likelihood: bool = True
    """False where the loss is not minus the logarithm of a density (Huber)."""

    @property
    def n_index(self) -> int:
        """C: one less than the number of classes for softmax, else 1."""
        return 1 if self.projections is None else len(self.projections) - 1

    @property
    def index_map(self) -> Array:
        """(B_c - B_0)' stacked, shape (C p, d): times theta it gives the coefficients of the columns.

        Shape (0, 0) for families with one index: their coefficients are theta itself.
        """
        if self.projections is None:
            return np.zeros((0, 0))
        relative = self.projections[1:] - self.projections[0]
        return np.ascontiguousarray(relative.transpose(0, 2, 1)).reshape(-1, relative.shape[1])

    def features(self, design: Array) -> Array:
        """(B_c - B_0) z of each row where the entries of the index share theta: (N, C, d); else empty.

        With one entry, or with parameters of its own for each entry (multinomial), the design says it all.
        """
        if self.projections is None or self.name == "multinomial":
            return np.zeros((0, 0, 0))
        blocks = self.index_map.reshape(self.n_index, design.shape[1], -1)
        return np.ascontiguousarray(np.einsum("np,cpd->ncd", design, blocks))

    def dimension(self, n_columns: int) -> int:
        """d, for a design of p = ``n_columns`` columns."""
        if self.projections is None:
            return n_columns
        if self.projections.shape[2] != n_columns:
            raise InvalidOption(
                f"{self.name}: its projections are for {self.projections.shape[2]} columns of covariates, "
                f"the design has {n_columns}"
            )
        return self.projections.shape[1]

    def parameter_names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the d parameters, from those of the columns of the design."""
        if self.projections is None:
            return columns
        if self.name == "multinomial":
            return tuple(f"{c}:{name}" for c in range(1, self.n_index + 1) for name in columns)
        return tuple(f"theta{i + 1}" for i in range(self.projections.shape[1]))

    def with_dispersion(self, dispersion: float) -> Self:
        """The same family with another dispersion."""
        return replace(self, dispersion=_positive(self.name, "dispersion", dispersion))

    def index(self, theta: Array, design: Array, offset: Array | float = 0.0) -> Array:
        """Linear index of rows: (N,), or (N, C) for softmax; ``theta`` is (d,) or one per row, (N, d)."""
        per_row = np.broadcast_to(theta, (len(design), theta.shape[-1]))
        if self.projections is None:
            return np.einsum("np,np->n", design, per_row) + offset
        coefficients = (per_row @ self.index_map.T).reshape(len(design), self.n_index, -1)
        return np.einsum("np,ncp->nc", design, coefficients)

    def mean(self, index: Array) -> Array:
        """Expected response at ``index``; for softmax the probabilities of the classes."""
        if self.code == losses.SOFTMAX:
            return softmax(np.column_stack([np.zeros(len(index)), index]), axis=1)
        if self.code == losses.BINOMIAL:
            return expit(index)
        if self.code in (losses.GAUSSIAN, losses.HUBER):
            return index
        return np.exp(index)

    def derivatives(self, index: Array, response: Array) -> tuple[Array, Array, Array]:
        """Loss (N,), first (N, C) and second (N, C, C) derivatives in the index, (N,) or (N, C)."""
        eta = np.ascontiguousarray(index.reshape(len(response), -1).T, dtype=np.float64)
        n_index, size = eta.shape
        loss, first = np.empty(size), np.empty((n_index, size))
        packed = np.empty((n_index * (n_index + 1) // 2, size))
        work = np.empty((n_index + 2, size))
        losses.derivatives(self.code, self.parameter, size, response, eta, loss, first, packed, work)
        second = np.empty((size, n_index, n_index))
        for at, (b, c) in enumerate(zip(*np.tril_indices(n_index), strict=True)):
            second[:, b, c] = second[:, c, b] = packed[at]
        return loss, first.T, second

    def expected_curvature(self, index: Array) -> Array:
        """E of the second derivative given the covariates, per unit of dispersion: (N, C, C).

        The Fisher information of one row is B' (this kron z z') B / dispersion.
        """
        if not self.is_likelihood:
            raise InvalidOption(f"{self.name} is a loss, not a likelihood: it has no Fisher information")
        eta = index.reshape(len(index), -1)
        if self.code == losses.SOFTMAX:
            p = self.mean(eta)[:, 1:]
            return p[:, :, None] * np.eye(self.n_index) - p[:, :, None] * p[:, None, :]
        if self.code == losses.BINOMIAL:
            value = expit(eta) * expit(-eta)
        elif self.code == losses.POISSON:
            value = np.exp(eta)
        elif self.code == losses.NEGATIVE_BINOMIAL:
            value = expit(eta + np.log(self.parameter)) / self.parameter
        else:
            value = np.ones_like(eta)
        return value[:, :, None]

    def log_constant(self, response: Array) -> Array:
        """What is left of a row's log-likelihood once -loss / dispersion is taken away: (N,)."""
        y, phi = response, self.dispersion
        if self.code == losses.GAUSSIAN:
            return np.full(len(y), -0.5 * np.log(2 * np.pi * phi))
        if self.code == losses.POISSON:
            return -gammaln(y + 1)
        if self.code == losses.GAMMA:
            shape = 1 / phi
            return (shape - 1) * np.log(y) + shape * np.log(shape) - gammaln(shape)
        if self.code == losses.NEGATIVE_BINOMIAL:
            size = 1 / self.parameter
            return gammaln(y + size) - gammaln(size) - gammaln(y + 1) + y * np.log(self.parameter)
        return np.zeros(len(y))

    def check(self, rows: GroupedRows) -> None:
        """Raise ``InvalidReport`` for a response that this family cannot have produced."""
        self.dimension(rows.design.shape[1])
        y = rows.response
        rule, ok = _RESPONSES[self.code]
        bad = np.flatnonzero(~ok(y, self.n_index))
        if bad.size:
            client = rows.ids[rows.client_of_row[bad[0]]]
            raise InvalidReport(
                f"client {client!r}: response {y[bad[0]]:g} is not {rule}, as the {self.name} family needs"
            )
        if self.code == losses.SOFTMAX and rows.offset.any():
            raise InvalidOption(f"{self.name}: an offset has no meaning for several classes; leave it out")


def gaussian(dispersion: float = 1.0) -> Family:
    """Least squares; ``dispersion`` is the noise variance."""
    return Family("gaussian", losses.GAUSSIAN, dispersion=_positive("gaussian", "dispersion", dispersion))


def binomial() -> Family:
    """Logistic regression of a response that is 0 or 1."""
    return Family("binomial", losses.BINOMIAL)


def poisson() -> Family:
    """Counts with log link; log exposure goes into the offset."""
    return Family("poisson", losses.POISSON)


def gamma(dispersion: float = 1.0) -> Family:
    """Positive response with log link; variance ``dispersion`` * mean^2."""
    return Family("gamma", losses.GAMMA, dispersion=_positive("gamma", "dispersion", dispersion))


def negative_binomial(alpha: float) -> Family:
    """Counts with log link and variance mean + ``alpha`` mean^2, alpha known."""
    return Family(
        "negative_binomial", losses.NEGATIVE_BINOMIAL, _positive("negative_binomial", "alpha", alpha)
    )


def huber(threshold: float) -> Family:
    """Huber's loss, quadratic up to ``threshold`` (in units of the response) and linear beyond."""
    threshold = _positive("huber", "threshold", threshold)
    return Family("huber", losses.HUBER, threshold, is_likelihood=False)


def multinomial(n_classes: int, n_columns: int) -> Family:
    """Softmax over ``n_classes`` with class 0 as reference: d = (n_classes - 1) n_columns parameters."""
    if n_classes < 2:
        raise InvalidOption(f"multinomial: needs at least 2 classes, not {n_classes}")
    blocks = np.zeros((n_classes, n_classes - 1, n_columns, n_columns))
    for c in range(1, n_classes):
        blocks[c, c - 1] = np.eye(n_columns)
    return Family("multinomial", losses.SOFTMAX, projections=blocks.reshape(n_classes, -1, n_columns))


def shared_softmax(projections: ArrayLike) -> Family:
    """Softmax with class scores (B_c z)' theta, one theta for all classes.

    ``projections`` has one matrix B_c for each class: shape (classes, d, p).
    """
    b = np.asarray(projections, dtype=np.float64)
    if b.ndim != 3 or len(b) < 2 or not np.isfinite(b).all():
        raise InvalidOption(
            f"shared_softmax: projections must be finite numbers of shape (classes, d, p), not {b.shape}"
        )
    return Family("shared_softmax", losses.SOFTMAX, projections=b)


#: Families that need no argument, by the name a user gives them.
SIMPLE_FAMILIES: dict[str, Callable[[], Family]] = {
    "gaussian": gaussian,
    "binomial": binomial,
    "poisson": poisson,
    "gamma": gamma,
}


def _positive(family: str, name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise InvalidOption(f"{family}: {name} must be a positive number, not {value}")
    return float(value)


def _count(y: Array, n_index: int) -> NDArray[np.bool_]:
    return (y >= 0) & (y == np.floor(y))


def _any_number(y: Array, n_index: int) -> NDArray[np.bool_]:
    return np.ones(len(y), dtype=bool)


_RESPONSES: dict[int, tuple[str, Callable[[Array, int], NDArray[np.bool_]]]] = {
    losses.GAUSSIAN: ("a number", _any_number),
    losses.HUBER: ("a number", _any_number),
    losses.BINOMIAL: ("0 or 1", lambda y, _: (y == 0) | (y == 1)),
    losses.POISSON: ("a count", _count),
    losses.NEGATIVE_BINOMIAL: ("a count", _count),
    losses.GAMMA: ("a positive number", lambda y, _: y > 0),
    losses.SOFTMAX: ("a class counted from 0", lambda y, n: _count(y, n) & (y <= n)),
}
