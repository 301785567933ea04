"""What a family of responses is: a loss of one row, the likelihood it comes from, and all that depends on it.

A row's loss depends on the parameter theta through a linear index only,

    eta = z' theta + offset                                one entry: all families but softmax
    eta_c = ((B_c - B_0) z)' theta,   c = 1, ..., C        softmax over C + 1 classes

and the log-likelihood of a row of weight w is ``-w loss / dispersion + constant``.

A family is a class in a file of its own that overrides what is below; ``vaneb.local.family.FAMILIES`` lists
them.  Letters: N rows, p columns of the design, d parameters, C entries of the index; d = p and C = 1 but for
softmax.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.local.data import GroupedRows
from vaneb.local.family.links import IDENTITY, Link
from vaneb.local.family.losses import Losses

if TYPE_CHECKING:
    from vaneb.covariance.base import CovarianceFunction
    from vaneb.local.fit import LocalFits
    from vaneb.local.objective import Objective

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

NUMBERS, CLASSES, SURVIVAL = "numbers", "classes", "survival"


@dataclass(frozen=True, eq=False)
class Family:
    """A loss for single rows, and the likelihood it comes from."""

    name: ClassVar[str]
    """As a user gives it."""
    losses: ClassVar[Losses]
    link: ClassVar[Link] = IDENTITY
    takes: ClassVar[str] = NUMBERS
    """The response: "numbers", "classes" (text or numbers, coded 0, 1, ...) or "survival" (three columns)."""
    takes_trials: ClassVar[bool] = False
    """``successes | trials`` may stand on the left-hand side of a formula."""
    rule: ClassVar[str] = "a finite number"
    """What a response must be."""
    score_name: ClassVar[str] = "mse"
    """Of ``row_scores``: "mse", "log-loss", "deviance", ..."""
    is_likelihood: ClassVar[bool] = True
    """False where the loss is not minus the logarithm of a density (Huber)."""
    has_dispersion: ClassVar[bool] = False
    """Whether ``dispersion`` is estimated; else it is 1."""
    parameter_name: ClassVar[str] = ""
    """The field that holds ``parameter``, where the losses have one; it must be positive."""
    bounds: ClassVar[tuple[float, float] | None] = None
    """Of ``parameter``, where that is estimated."""
    by_row: ClassVar[bool] = True
    """Whether a client's loss is a sum of ``losses`` over its rows; else ``objective`` is its own."""
    has_intercept: ClassVar[bool] = True
    """False where the design has no constant column, since no coefficient of it could be told."""
    GLM: ClassVar[str] = ""
    """Its name among the models of ``vaneb.covariance.EmpiricalScores``, if it is one of them."""

    too_much_scatter: ClassVar[str] = ""
    """What to say where responses scatter ``{ratio}`` times as much as the family has it."""

    dispersion: float = field(default=1.0, kw_only=True)
    """phi in the log-likelihood -w loss / phi: variance of Gaussian noise, 1 / shape of a gamma response."""

    def __post_init__(self) -> None:
        for number in ("dispersion", self.parameter_name):
            if number and not (np.isfinite(getattr(self, number)) and getattr(self, number) > 0):
                value = getattr(self, number)
                raise InvalidOption(f"{self.name}: {number} must be a positive number, not {value}")

    # ---------------------------------------------------------------- loss and likelihood

    @property
    def parameter(self) -> float:
        """a, the third argument of the losses."""
        return getattr(self, self.parameter_name) if self.parameter_name else 1.0

    def mean(self, index: Array) -> Array:
        """Expected response at ``index``; for softmax the probabilities of the classes."""
        return self.link.mean(index)

    def average(self, index: Array, variance: Array) -> Array:
        """Its mean over an index (N, C) that is Gaussian with this mean and ``variance`` (N, C, C)."""
        return self.link.average(index[:, 0], np.maximum(variance[:, 0, 0], 0.0))

    def variance(self, mean: Array) -> Array:
        """Variance of a response of weight 1, per unit of dispersion."""
        return np.ones_like(mean)

    def derivatives(self, index: Array, response: Array) -> tuple[Array, Array, Array]:
        """Loss (N,), first (N, C) and second (N, C, C) derivatives in the index, (N,) or (N, C)."""
        return self.losses.at(self.parameter, response, index.reshape(len(response), -1))

    def log_constant(self, response: Array, weight: Array) -> Array:
        """What is left of a row's log-likelihood once -w loss / dispersion is taken away: (N,)."""
        return np.zeros(len(response))

    def hessian_weight(self, index: Array, response: Array) -> Array | None:
        """The loss's own second derivative (N,), where that is not what ``derivatives`` says (Huber)."""
        return None

    def simulate(self, index: Array, rng: np.random.Generator, weight: Array | None = None) -> Array:
        """Responses drawn at ``index``, (N,) or (N, C)."""
        raise InvalidOption(f"{self.name} is a loss, not a likelihood: it has no responses to draw")

    # ---------------------------------------------------------------- parameters and index

    @property
    def n_index(self) -> int:
        """C: one less than the number of classes for softmax, else 1."""
        return 1

    @property
    def index_map(self) -> Array:
        """(B_c - B_0)' stacked, shape (C p, d): times theta it gives the coefficients of the columns.

        Shape (0, 0) for families with one index: their coefficients are theta itself.
        """
        return np.zeros((0, 0))

    def features(self, design: Array) -> Array:
        """(B_c - B_0) z of each row where the entries of the index share theta: (N, C, d); else empty."""
        return np.zeros((0, 0, 0))

    def dimension(self, n_columns: int) -> int:
        """d, for a design of p = ``n_columns`` columns."""
        return n_columns

    def parameter_names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the d parameters, from those of the columns of the design."""
        return columns

    def index(self, theta: Array, design: Array, offset: Array | float = 0.0) -> Array:
        """Linear index of rows: (N,), or (N, C) for softmax; ``theta`` is (d,) or one per row, (N, d)."""
        per_row = np.broadcast_to(theta, (len(design), theta.shape[-1]))
        return np.einsum("np,np->n", design, per_row) + offset

    def with_dispersion(self, dispersion: float) -> Self:
        """The same family with another dispersion."""
        return replace(self, dispersion=dispersion)

    # ---------------------------------------------------------------- responses

    @classmethod
    def allowed(cls, response: Array) -> Flags:
        """Which responses (N,) the family can have produced."""
        return np.isfinite(response)

    def check(self, rows: GroupedRows) -> None:
        """Raise ``InvalidReport`` for a response that this family cannot have produced."""
        self.dimension(rows.design.shape[1])
        if rows.response.ndim != 1:
            raise InvalidReport(f"response: the {self.name} family takes one number for each row")
        bad = np.flatnonzero(~self.allowed(rows.response))
        if bad.size:
            client, y = rows.owner(bad[0]), rows.response[bad[0]]
            raise InvalidReport(
                f"client {client!r}: response {y:g} is not {self.rule}, as the {self.name} family needs"
            )

    @classmethod
    def restored(
        cls, parameter: float = 1.0, dispersion: float = 1.0, n_classes: int = 0, n_columns: int = 0
    ) -> Self:
        """The family from its plain numbers, such as those of a saved model."""
        given = {cls.parameter_name: parameter} if cls.parameter_name else {}
        return cls(dispersion=dispersion, **given)

    def below(self, response: Array, mean: Array) -> Array:
        """P(y <= response) where the expected response is ``mean``, for intervals of predictions."""
        raise InvalidOption(f"family {self.name} does not say how responses scatter")

    @classmethod
    def for_rows(cls, rows: GroupedRows, n_classes: int = 0) -> Self:
        """The family with whatever else it needs taken from rows, each client by itself."""
        return cls()

    # ---------------------------------------------------------------- fits

    def estimated(self, rows: GroupedRows, fits: LocalFits, basis: Array) -> tuple[Self, tuple[str, ...]]:
        """The family with numbers that all clients share estimated from all of them, and what was noticed.

        ``basis`` (d, d) is that of coordinates in which a population is simple: centred and scaled ones.
        """
        from vaneb.local.fit import common_dispersion

        if not self.has_dispersion:
            return self, ()
        return self.with_dispersion(max(common_dispersion(rows, self, fits), 1e-12)), ()

    def objective(self, rows: GroupedRows) -> Objective:
        """The loss of each client, for the solver."""
        from vaneb.local.objective import RowsObjective

        return RowsObjective(rows, self)

    def pooled_objective(self, rows: GroupedRows) -> Objective:
        """The loss of all clients with one parameter, as one client's."""
        return self.objective(rows.pooled())

    def working_response(self, rows: GroupedRows) -> Array | None:
        """Responses on the scale of the index, whose least squares are a good start; None: start at zero."""
        return None

    def climbs(self, index: Array, response: Array) -> Array:
        """By how much a row's loss ends up rising along a direction that changes its index (N, C): (N,).

        Zero means that the loss never rises.
        """
        return np.abs(index[:, 0])

    # ---------------------------------------------------------------- reports and scores

    def information(self, rows: GroupedRows, form: str) -> CovarianceFunction:
        """Covariance functions of K clients of form "empirical" or "moments" (``vaneb.local.report``)."""
        raise InvalidOption(f"family {self.name!r} has no form {form!r}; use form='constant'")

    @classmethod
    def row_scores(cls, response: Array, mean: Array) -> Array:
        """How bad predictions ``mean`` are, (N,); smaller is better."""
        return (response - mean) ** 2

    @classmethod
    def score(
        cls,
        response: Array,
        mean: Array,
        weight: Array | None = None,
        group: NDArray[np.object_] | None = None,
    ) -> float:
        """How bad predictions are on average; ``group`` names the client of each row."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return float(np.average(cls.row_scores(response, mean), weights=weight))

    def client_scores(self, rows: GroupedRows, mean: Array) -> Array:
        """The same for each client, (K,)."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            loss = self.row_scores(rows.response, mean) * rows.weight
        first = rows.starts[:-1]
        return np.add.reduceat(loss, first) / np.add.reduceat(rows.weight, first)

    # ---------------------------------------------------------------- scatter

    def residual_variance(self, rows: GroupedRows, index: Array) -> Array | None:
        """Variance of each squared Pearson residual, (N,); ``None`` where they say nothing of scatter."""
        return None

    def scatter(self, rows: GroupedRows, index: Array, freedom: float) -> tuple[float, str]:
        """Pearson's statistic per degree of freedom and a note, where it is beyond chance and ``NOTICED``.

        Else 1 and no note.
        """
        fourth = self.residual_variance(rows, index)
        if fourth is None or freedom <= 0:
            return 1.0, ""
        mean = self.mean(index)
        squares = rows.weight * (rows.response - mean) ** 2 / self.variance(mean)
        ratio, error = float(squares.sum()) / freedom, float(np.sqrt(fourth.sum())) / freedom
        if ratio <= max(NOTICED, 1 + BEYOND_CHANCE * error):
            return 1.0, ""
        return ratio, self.too_much_scatter.format(ratio=ratio)


#: Scatter is worth a word when Pearson's statistic is this many times its degrees of freedom: standard errors
#: are then too small by a tenth.
NOTICED = 1.2
#: ... and this many of its standard errors above them.
BEYOND_CHANCE = 3.0


def counts(response: Array) -> Flags:
    """Which numbers are counts."""
    return (response >= 0) & (response == np.floor(response)) & np.isfinite(response)


def log_of_counts(rows: GroupedRows) -> Array:
    """Logarithms of responses pulled towards the client's mean: a good start where means are far from 1."""
    mean = np.add.reduceat(rows.response, rows.starts[:-1]) / rows.n_rows
    return np.log((rows.response + mean[rows.client_of_row]) / 2 + 1e-3)
