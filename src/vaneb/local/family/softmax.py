"""Classes: loss log(1 + sum_c e^eta_c) - eta_y with eta_0 = 0.

The index holds the scores of classes 1 to C relative to class 0, eta_c = ((B_c - B_0) z)' theta.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy.special import softmax

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import CLASSES, Array, Family, Flags, counts
from vaneb.local.family.binomial import CLIP
from vaneb.local.family.losses import Losses, TileLosses
from vaneb.vector_math import exp, log

if TYPE_CHECKING:
    from vaneb.covariance.base import CovarianceFunction

#: Points at which probabilities are averaged over an uncertain index.
DRAWS = 64
_compiled = njit(cache=True, error_model="numpy", fastmath={"contract", "nsz"})


@_compiled
def _log_sum(size, index, terms, total, log_total):
    """log(1 + sum_c e^eta_c), with e^(eta_c - largest) and their sum (of at least 1) left over."""
    eta = index[0]
    for i in range(size):
        log_total[i] = max(eta[i], 0.0)
    for c in range(1, index.shape[0]):
        eta = index[c]
        for i in range(size):
            log_total[i] = max(log_total[i], eta[i])
    for i in range(size):
        total[i] = exp(-log_total[i])
    for c in range(index.shape[0]):
        eta, term = index[c], terms[c]
        for i in range(size):
            e = exp(eta[i] - log_total[i])
            term[i] = e
            total[i] += e
    for i in range(size):
        log_total[i] += log(total[i])


@_compiled
def _subtract_own(size, y, index, loss):
    """loss -= eta_y, with eta_0 = 0."""
    for c in range(index.shape[0]):
        eta = index[c]
        for i in range(size):
            loss[i] -= eta[i] if y[i] == c + 1.0 else 0.0


def values(a, size, y, index, loss, work):  # type: ignore[no-untyped-def]
    _log_sum(size, index, work, work[index.shape[0]], loss)
    _subtract_own(size, y, index, loss)


def derivatives(a, size, y, index, loss, first, second, work):  # type: ignore[no-untyped-def]
    n_index = index.shape[0]
    total = work[n_index]
    _log_sum(size, index, work, total, loss)
    for i in range(size):
        total[i] = 1.0 / total[i]
    for c in range(n_index):
        own = work[c]
        for i in range(size):
            own[i] *= total[i]
    _subtract_own(size, y, index, loss)
    at = 0
    for b in range(n_index):
        p, slope = work[b], first[b]
        for i in range(size):
            slope[i] = p[i] - (1.0 if y[i] == b + 1.0 else 0.0)
        for c in range(b):
            other, entry = work[c], second[at]
            for i in range(size):
                entry[i] = -p[i] * other[i]
            at += 1
        entry = second[at]
        for i in range(size):
            entry[i] = p[i] * (1.0 - p[i])
        at += 1


@dataclass(frozen=True, eq=False)
class SharedSoftmax(Family):
    """Softmax with class scores (B_c z)' theta, one theta for all classes."""

    name: ClassVar[str] = "shared_softmax"
    losses: ClassVar[Losses] = TileLosses(values, derivatives)
    takes: ClassVar[str] = CLASSES
    rule: ClassVar[str] = "a class counted from 0"
    score_name: ClassVar[str] = "log-loss"

    projections: Array
    """B_c, shape (C + 1, d, p)."""

    @property
    def n_index(self) -> int:
        return len(self.projections) - 1

    @property
    def index_map(self) -> Array:
        relative = self.projections[1:] - self.projections[0]
        return np.ascontiguousarray(relative.transpose(0, 2, 1)).reshape(-1, relative.shape[1])

    def features(self, design: Array) -> Array:
        blocks = self.index_map.reshape(self.n_index, design.shape[1], -1)
        return np.ascontiguousarray(np.einsum("np,cpd->ncd", design, blocks))

    def dimension(self, n_columns: int) -> int:
        if self.projections.shape[2] != n_columns:
            raise InvalidOption(
                f"{self.name}: its projections are for {self.projections.shape[2]} columns of covariates, "
                f"the design has {n_columns}"
            )
        return self.projections.shape[1]

    def parameter_names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"theta{i + 1}" for i in range(self.projections.shape[1]))

    def index(self, theta: Array, design: Array, offset: Array | float = 0.0) -> Array:
        per_row = np.broadcast_to(theta, (len(design), theta.shape[-1]))
        coefficients = (per_row @ self.index_map.T).reshape(len(design), self.n_index, -1)
        return np.einsum("np,ncp->nc", design, coefficients)

    def mean(self, index: Array) -> Array:
        return softmax(np.column_stack([np.zeros(len(index)), index]), axis=1)

    def average(self, index: Array, variance: Array) -> Array:
        """Average probabilities of all classes, (N, classes), over points of a Sobol sequence."""
        eigenvalues, vectors = np.linalg.eigh(variance)
        root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[:, None, :]
        draws = _draws(index.shape[-1])
        total = np.zeros((len(index), index.shape[1] + 1))
        for x in draws:
            total += self.mean(index + root @ x)
        return total / len(draws)

    def simulate(self, index: Array, rng: np.random.Generator, weight: Array | None = None) -> Array:
        scores = np.column_stack([np.zeros(len(index)), index])
        return np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.float64)

    @classmethod
    def allowed(cls, response: Array) -> Flags:
        return counts(response)

    def check(self, rows: GroupedRows) -> None:
        super().check(rows)
        bad = np.flatnonzero(rows.response > self.n_index)
        if bad.size:
            raise InvalidReport(
                f"client {rows.owner(bad[0])!r}: there is no class "
                f"{rows.response[bad[0]]:g}; the {self.name} family has {self.n_index + 1}, counted from 0"
            )
        if rows.offset.any():
            raise InvalidOption(f"{self.name}: an offset has no meaning for several classes; leave it out")

    def climbs(self, index: Array, response: Array) -> Array:
        """The score of the class that was observed may rise above the others for ever."""
        scores = np.column_stack([np.zeros(len(index)), index])
        own = np.take_along_axis(scores, response.astype(np.intp)[:, None], axis=1)[:, 0]
        return scores.max(axis=1) - own

    def information(self, rows: GroupedRows, form: str) -> CovarianceFunction:
        from vaneb import covariance
        from vaneb.local.report import covariate_moments

        design, projections = self._square(rows.design)
        if form == "empirical":
            return covariance.EmpiricalSoftmax(design, rows.starts, projections)
        return covariance.MomentSoftmax(*covariate_moments(design, rows.starts), projections)

    def _square(self, design: Array) -> tuple[Array, Array]:
        """Design and projections with as many columns as parameters, zeros added where there are fewer."""
        _, d, p = self.projections.shape
        if p > d:
            raise InvalidOption(
                f"{self.name}: {p} columns and only {d} parameters; combine columns or use form='constant'"
            )
        wide = np.zeros((len(design), d))
        wide[:, :p] = design
        square = np.zeros((len(self.projections), d, d))
        square[:, :, :p] = self.projections
        return wide, square

    @classmethod
    def row_scores(cls, response: Array, mean: Array) -> Array:
        return -np.log(np.clip(mean[np.arange(len(response)), response.astype(int)], CLIP, 1.0))


@dataclass(frozen=True, eq=False)
class Multinomial(SharedSoftmax):
    """Softmax with parameters of its own for each class but the first."""

    name: ClassVar[str] = "multinomial"

    @classmethod
    def of(cls, n_classes: int, n_columns: int) -> Self:
        """Class 0 is the reference: d = (n_classes - 1) n_columns parameters."""
        if n_classes < 2:
            raise InvalidOption(f"multinomial: needs at least 2 classes, not {n_classes}")
        blocks = np.zeros((n_classes, n_classes - 1, n_columns, n_columns))
        for c in range(1, n_classes):
            blocks[c, c - 1] = np.eye(n_columns)
        return cls(blocks.reshape(n_classes, -1, n_columns))

    @classmethod
    def restored(
        cls, parameter: float = 1.0, dispersion: float = 1.0, n_classes: int = 0, n_columns: int = 0
    ) -> Self:
        return cls.of(n_classes, n_columns)

    @classmethod
    def for_rows(cls, rows: GroupedRows, n_classes: int = 0) -> Self:
        return cls.of(n_classes, rows.design.shape[1])

    def features(self, design: Array) -> Array:
        """None: the design says it all."""
        return np.zeros((0, 0, 0))

    def parameter_names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{c}:{name}" for c in range(1, self.n_index + 1) for name in columns)


def shared_softmax(projections: ArrayLike) -> SharedSoftmax:
    """``SharedSoftmax``, of one matrix B_c for each class: shape (classes, d, p)."""
    b = np.asarray(projections, dtype=np.float64)
    if b.ndim != 3 or len(b) < 2 or not np.isfinite(b).all():
        raise InvalidOption(
            f"shared_softmax: projections must be finite numbers of shape (classes, d, p), not {b.shape}"
        )
    return SharedSoftmax(b)


@cache
def _draws(dimension: int) -> Array:
    """Gaussian points, spread evenly, with those opposite them: (DRAWS, dimension)."""
    from scipy.special import ndtri
    from scipy.stats.qmc import Sobol

    points = ndtri(Sobol(dimension, scramble=True, rng=np.random.default_rng(0)).random(DRAWS // 2))
    return np.concatenate([points, -points])
