"""Information of generalised linear models from a client's own covariates.

The unit information of a model whose log-likelihood depends on theta through eta = z'theta is

    I_k(theta) = (1/n_k) sum_i w(z_i'theta) z_i z_i',

and its inverse is the covariance function of the maximum-likelihood estimate.  The value holds the raw
covariates, and so does its wire form: it is meant for simulation and for users who hold all the data
themselves.  Clients that must not send rows send moments (``moments``) instead.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance import _checks
from vaneb.covariance.base import (
    Array,
    FullCovariance,
    Wire,
    read_key,
    same_dimension,
    same_field,
    unchecked,
)
from vaneb.covariance.constant import ConstantFull
from vaneb.errors import InvalidReport

Offsets = NDArray[np.int64]
#: Models by name.
MODELS = ("poisson", "logistic", "negative-binomial")
#: Of models that read no responses, or have no classes.
NONE, NO_CLASSES = np.zeros(0), np.zeros((0, 0, 0))


@dataclass(frozen=True, eq=False)
class RaggedInformation(FullCovariance):
    """What the empirical families share: rows of all clients in one array, and which clients are meant.

    ``take`` only changes ``clients`` (indices into ``offsets``, possibly repeated; all if ``None``):
    no row is copied, however often a solver picks a client.
    """

    rows: Array
    offsets: Offsets
    clients: NDArray[np.intp] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        rows = _checks.finite_array(self.rows, "rows", (None, None))
        object.__setattr__(self, "rows", np.ascontiguousarray(rows))
        object.__setattr__(self, "offsets", check_offsets(self.offsets, rows.shape[0]))

    @property
    def n_clients(self) -> int:
        return self.offsets.size - 1 if self.clients is None else self.clients.size

    @property
    def dimension(self) -> int:
        return self.rows.shape[1]

    @abstractmethod
    def _moments(self, points: Array, order: int) -> Array:
        """The information at ``points`` (order 2) or its derivative (order 3)."""

    def precision(self, points: Array) -> Array:
        return self._moments(points, 2)

    def precision_gradient(self, points: Array) -> Array:
        return self._moments(points, 3)

    def _sums(
        self,
        points: Array,
        order: int,
        kind: str,
        parameter: float,
        *,
        responses: Array = NONE,
        projections: Array = NO_CLASSES,
    ) -> Array:
        """Tensors (K, m, d, ..., d) of a model; see ``_row_kernels``."""
        from vaneb.covariance import _row_kernels

        m, d = points.shape[1:]
        chosen = slice(None) if self.clients is None else self.clients
        bounds = self.offsets[:-1][chosen], self.offsets[1:][chosen]
        out = np.empty((self.n_clients, m, d**order))
        points = np.ascontiguousarray(points, dtype=np.float64)
        model = responses, projections, points, _row_kernels.KINDS[kind], parameter
        _row_kernels.row_moments(self.rows, *bounds, *model, *symmetric_layout(d, order), out)
        return out.reshape(self.n_clients, m, *(d,) * order)

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        clients = np.arange(self.offsets.size - 1) if self.clients is None else self.clients
        return unchecked(self, clients=clients[rows])

    #: Names of the arrays that have one entry per row.
    _per_row: ClassVar[tuple[str, ...]] = ("rows",)

    def _alone(self) -> Self:
        """The same with the rows of these clients alone."""
        if self.clients is None:
            return self
        counts = np.diff(self.offsets)[self.clients]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        index = np.repeat(self.offsets[self.clients] - offsets[:-1], counts) + np.arange(offsets[-1])
        taken = {name: getattr(self, name)[index] for name in self._per_row}
        return unchecked(self, **taken, offsets=offsets, clients=None)

    def to_wire(self) -> Wire:
        wire = super(RaggedInformation, self._alone()).to_wire()
        del wire["clients"]
        return wire

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        return cls(**{f.name: read_key(wire, f.name) for f in fields(cls) if f.name != "clients"})

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        same_dimension(parts)
        for f in fields(cls):
            if f.name not in (*cls._per_row, "offsets", "clients"):
                same_field(parts, f.name)
        own = [part._alone() for part in parts]
        columns = {name: np.concatenate([getattr(part, name) for part in own]) for name in cls._per_row}
        counts = np.concatenate([np.diff(part.offsets) for part in own])
        return unchecked(parts[0], **columns, offsets=np.concatenate([[0], np.cumsum(counts)]), clients=None)


@dataclass(frozen=True, eq=False)
class EmpiricalGLM(RaggedInformation):
    """Sigma_k(theta)^{-1} = (1/n_k) sum_i w(z_i'theta) z_i z_i'.

    ========================  ===============================================
    poisson (log link)        w = e^eta, its exponent clipped at 200
    logistic                  w = pi (1 - pi), pi = 1 / (1 + e^-eta)
    negative-binomial (log)   w = mu size / (mu + size), mu = e^eta, known size
    ========================  ===============================================

    Parameters
    ----------
    rows : array (N, d)
        Covariates of all clients.
    offsets : array (K + 1,)
        Client k holds ``rows[offsets[k]:offsets[k + 1]]``, at least one row.
    model : {"poisson", "logistic", "negative-binomial"}
    size : float
        Only of the negative binomial model.
    """

    family: ClassVar[str | None] = "empirical-glm"
    model: str
    size: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in MODELS:
            raise InvalidReport(f"model: {self.model!r:.40} is unknown; choose one of {', '.join(MODELS)}")
        size = _checks.positive(_checks.finite_array(self.size, "size", ()), "size")
        object.__setattr__(self, "size", float(size))

    def _moments(self, points: Array, order: int) -> Array:
        return self._sums(points, order, self.model, self.size)


@dataclass(frozen=True, eq=False)
class EmpiricalSoftmax(RaggedInformation):
    """Multinomial logit whose classes share theta through projections B_c.

    With l_ic = B_c z_i, class probabilities p_ic proportional to exp(l_ic'theta) and their mean
    lbar_i = sum_c p_ic l_ic,

        Sigma_k(theta)^{-1} = (1/n_k) sum_i sum_c p_ic (l_ic - lbar_i)(l_ic - lbar_i)'.

    Parameters
    ----------
    rows : array (N, d)
    offsets : array (K + 1,)
    projections : array (C, d, d)
        B_c of the C >= 2 classes, the same for all clients.
    """

    family: ClassVar[str | None] = "empirical-softmax"
    projections: Array

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "projections", check_projections(self.projections, self.dimension))

    def _moments(self, points: Array, order: int) -> Array:
        return self._sums(points, order, "softmax", 1.0, projections=self.projections)


def constant_information(rows: Array, offsets: Offsets, weight: float = 1.0) -> ConstantFull:
    """weight (1/n_k) sum_i z_i z_i', the information of models in which it does not depend on theta.

    Least squares with noise variance v: weight 1 / v.  Gamma regression with log link: weight = shape.
    """
    checked = _checks.finite_array(rows, "rows", (None, None))
    own = check_offsets(offsets, checked.shape[0])
    squares = np.add.reduceat(checked[:, :, None] * checked[:, None, :], own[:-1], axis=0)
    return ConstantFull(weight * squares / np.diff(own)[:, None, None])


def check_offsets(value: Any, n_rows: int) -> Offsets:
    """Offsets (K + 1,) as integers from 0 to ``n_rows``; every client has at least one row."""
    numbers = _checks.finite_array(value, "offsets", (None,))
    if numbers.size < 2 or numbers[0] != 0 or numbers[-1] != n_rows:
        raise InvalidReport(f"offsets: must start at 0 and end at the number of rows, {n_rows}")
    if (numbers != np.floor(numbers)).any():
        raise InvalidReport("offsets: must be whole numbers")
    steps = np.diff(numbers)
    if (steps < 1).any():
        raise InvalidReport(f"offsets: client {int(np.argmax(steps < 1))} has no rows; leave it out")
    return numbers.astype(np.int64)


def check_projections(value: Array, dimension: int) -> Array:
    """B_c as a finite array (C, d, d) with C >= 2."""
    array = _checks.finite_array(value, "projections", (None, dimension, dimension))
    if array.shape[0] < 2:
        raise InvalidReport("projections: a softmax model needs at least two classes")
    return np.ascontiguousarray(array)


@cache
def symmetric_layout(dimension: int, order: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Sorted index tuples (T, order) of a symmetric tensor, and the tuple at each flat position."""
    tuples = list(combinations_with_replacement(range(dimension), order))
    place = {entry: index for index, entry in enumerate(tuples)}
    scatter = [place[tuple(sorted(entry))] for entry in product(range(dimension), repeat=order)]  # type: ignore[index]
    return np.array(tuples, dtype=np.intp), np.array(scatter, dtype=np.intp)
