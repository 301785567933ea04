"""Any smooth loss, given as a function: theta_hat_k = argmin sum_i rho(z_i, y_i; theta).

The function is called on all rows at once, with one parameter vector per row, so that thousands of
clients are still one batch:

    loss(design (N, p), response (N,), theta (N, d)) -> (N,)

Derivatives come from torch where it is installed and the function accepts its tensors, else from central
differences (gradients to about 1e-9, Hessians to about 1e-6 of their size).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Self

import numpy as np

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.local.data import GroupedRows
from vaneb.local.fit import LocalFits, fit_objective
from vaneb.local.objective import Array, Clients, Objective, Terms

Loss = Callable[[Any, Any, Any], Any]
GRADIENT_STEP = float(np.finfo(float).eps ** (1 / 3))
HESSIAN_STEP = float(np.finfo(float).eps ** (1 / 4))
DERIVATIVES = ("auto", "torch", "numeric")


@dataclass(frozen=True)
class MEstimator:
    """Estimation by minimising a loss of the user's.

    Parameters
    ----------
    loss : see the module's text
    dimension : d
    start : (d,), where to start; zero by default.  The loss must be informative there: a parameter
        that it does not feel at the start is taken for undetermined.
    derivatives : "torch", "numeric", or "auto" for the first if torch is installed

    Examples
    --------
    >>> import numpy as np
    >>> from vaneb.local.data import GroupedRows
    >>> def pseudo_huber(z, y, theta):
    ...     return (1 + ((z * theta).sum(-1) - y) ** 2) ** 0.5 - 1
    >>> rows = GroupedRows.from_columns([0, 0, 0], np.ones((3, 1)), [1.0, 2.0, 3.0])
    >>> fits = MEstimator(pseudo_huber, dimension=1).fit(rows)
    >>> round(float(fits.theta[0, 0]), 6), str(fits.outcome[0])
    (2.0, 'converged')
    """

    loss: Loss
    dimension: int
    start: Array | None = None
    derivatives: str = "auto"

    def __post_init__(self) -> None:
        if self.derivatives not in DERIVATIVES:
            raise InvalidOption(
                f"derivatives: choose one of {', '.join(DERIVATIVES)}, not {self.derivatives!r}"
            )
        if self.dimension < 1:
            raise InvalidOption(f"dimension must be at least 1; it is {self.dimension}")
        if self.start is not None and np.shape(self.start) != (self.dimension,):
            raise InvalidOption(f"start must have shape ({self.dimension},), not {np.shape(self.start)}")

    @property
    def uses_torch(self) -> bool:
        """Whether derivatives are taken by torch."""
        return self.derivatives == "torch" or (self.derivatives == "auto" and find_spec("torch") is not None)

    def fit(self, rows: GroupedRows, *, ridge_rows: float = 1.0) -> LocalFits:
        """Fit every client by itself; as ``vaneb.local.fit.fit_clients``."""
        return fit_objective(
            LossObjective(rows, self),
            LossObjective(rows.pooled(), self),
            rows.n_rows,
            ridge_rows=ridge_rows,
        )

    def scores(self, rows: GroupedRows, theta: Array) -> Array:
        """Gradient of each row's loss at its client's parameter ``theta`` (K, d): shape (N, d)."""
        alone = replace(rows, starts=np.arange(len(rows.response) + 1))
        return self.derive(alone, theta[rows.client_of_row])[1]

    def derive(self, rows: GroupedRows, theta: Array) -> Terms:
        """Each client's loss at ``theta`` (K, d), its gradient and its Hessian."""
        return (_torch_terms if self.uses_torch else _numeric_terms)(self, rows, theta)

    def _call(self, rows: GroupedRows, per_row: Array) -> Array:
        values = np.asarray(self.loss(rows.design, rows.response, per_row), dtype=np.float64)
        if values.shape != (len(rows.response),):
            raise InvalidReport(f"the loss returned shape {values.shape}; it must return one number per row")
        return values

    def _call_torch(self, rows: GroupedRows, per_row: Any) -> Any:
        import torch

        values = self.loss(torch.from_numpy(rows.design), torch.from_numpy(rows.response), per_row)
        if tuple(values.shape) != (len(rows.response),):
            raise InvalidReport(
                f"the loss returned shape {tuple(values.shape)}; it must return one number per row"
            )
        return values


@dataclass(frozen=True)
class LossObjective(Objective):
    """Sum of a user's loss over each client's rows; see ``vaneb.local.objective.Objective``."""

    rows: GroupedRows
    estimator: MEstimator

    @property
    def n_clients(self) -> int:
        return self.rows.n_clients

    @property
    def dimension(self) -> int:
        return self.estimator.dimension

    def start(self) -> Array:
        start = np.zeros(self.dimension) if self.estimator.start is None else self.estimator.start
        return np.tile(np.asarray(start, dtype=np.float64), (self.n_clients, 1))

    @cached_property
    def metric(self) -> Array:
        """Mean Hessian of a row at the start, its eigenvalues made positive."""
        hessian = self.terms(self.start(), np.arange(self.n_clients))[2]
        return hessian / self.rows.n_rows[:, None, None]

    def take(self, clients: Clients | slice) -> Self:
        return replace(self, rows=self.rows.take(clients))

    def terms(self, theta: Array, clients: Clients) -> Terms:
        """As the protocol says; where a Hessian is not positive definite, its absolute value."""
        rows = self.rows if len(clients) == self.n_clients else self.rows.take(clients)
        value, gradient, hessian = self.estimator.derive(rows, theta)
        usable = np.isfinite(hessian).all(axis=(1, 2))
        hessian[usable] = _absolute(hessian[usable])
        return value, gradient, hessian


def _absolute(matrices: Array) -> Array:
    """Symmetric matrices with the absolute values of their eigenvalues."""
    values, vectors = np.linalg.eigh((matrices + matrices.transpose(0, 2, 1)) / 2)
    return (vectors * np.abs(values)[:, None, :]) @ vectors.transpose(0, 2, 1)


def _torch_terms(estimator: MEstimator, rows: GroupedRows, theta: Array) -> Terms:
    import torch

    point = torch.tensor(theta, requires_grad=True)
    group = torch.from_numpy(rows.client_of_row)
    losses = estimator._call_torch(rows, point[group])
    value = torch.zeros(len(theta), dtype=losses.dtype).index_add(0, group, losses)
    # Clients do not share parameters, so the gradient of the total holds every client's own.
    (gradient,) = torch.autograd.grad(losses.sum(), point, create_graph=True)
    columns = []
    for c in range(theta.shape[1]):
        column = None
        if gradient.requires_grad:
            (column,) = torch.autograd.grad(gradient[:, c].sum(), point, retain_graph=True, allow_unused=True)
        columns.append(torch.zeros_like(point) if column is None else column)
    hessian = torch.stack(columns, dim=1)
    return value.detach().numpy(), gradient.detach().numpy().copy(), hessian.detach().numpy().copy()


def _numeric_terms(estimator: MEstimator, rows: GroupedRows, theta: Array) -> Terms:
    group, first = rows.client_of_row, rows.starts[:-1]

    def total(point: Array) -> Array:
        return np.add.reduceat(estimator._call(rows, point[group]), first)

    n_clients, d = theta.shape
    value = total(theta)
    gradient, hessian = np.empty((n_clients, d)), np.empty((n_clients, d, d))
    steps = np.zeros((d, n_clients, d))
    for c in range(d):
        steps[c, :, c] = HESSIAN_STEP * (1 + np.abs(theta[:, c]))
        small = steps[c] * (GRADIENT_STEP / HESSIAN_STEP)
        gradient[:, c] = (total(theta + small) - total(theta - small)) / (2 * small[:, c])
        second = total(theta + steps[c]) - 2 * value + total(theta - steps[c])
        hessian[:, c, c] = second / steps[c, :, c] ** 2
        for b in range(c):
            up = total(theta + steps[c] + steps[b]) - total(theta + steps[c] - steps[b])
            down = total(theta - steps[c] + steps[b]) - total(theta - steps[c] - steps[b])
            hessian[:, b, c] = hessian[:, c, b] = (up - down) / (4 * steps[c, :, c] * steps[b, :, b])
    return value, gradient, hessian
