"""The paper's estimators, with ``fit(reports)`` and ``personalize(reports)`` like all others."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import numpy as np

from vaneb.blocks import one_blas_thread
from vaneb.errors import InvalidOption
from vaneb.estimators import Estimator, as_likelihood, fixed_covariance
from vaneb.likelihood.base import Array, Likelihood
from vaneb.paper.algorithm_1 import STARTS, algorithm_1, e_step, starting_weights
from vaneb.paper.grid import grid
from vaneb.paper.tweedie import regularised


@dataclass(frozen=True, eq=False)
class Personalised:
    """Personalised estimates, and the prior they come from.

    Parameters
    ----------
    mean : (K, d)
        sum_j r_kj a_j, or the regularised rule where ``rho`` was given.
    atoms, weights : (m, d), (m,)
    responsibilities : (K, m)
    log_marginal : (K,)
        log f_k, the log density of theta_hat_k under the prior.
    bound : float or None
        What the grid of spacing ``delta`` costs the starting fit in average log-likelihood, at most;
        infinite if the spacing is too wide for the proof, ``None`` if there was no grid.
    """

    mean: Array
    atoms: Array
    weights: Array
    responsibilities: Array
    log_marginal: Array
    bound: float | None = None


def personalise(
    likelihood: Likelihood,
    atoms: Array,
    weights: Array,
    *,
    rho: Array | float | None = None,
    bound: float | None = None,
) -> Personalised:
    """Posterior means of the clients under the prior sum_j w_j delta_{a_j}."""
    share, log_marginal = e_step(likelihood, atoms, weights)
    mean = share @ atoms
    if rho is not None:
        if np.shape(rho) not in ((), (len(mean),)) or not np.all(np.asarray(rho) >= 0):
            raise InvalidOption(
                f"rho: give a number, or one for each of the {len(mean)} clients, none below zero"
            )
        mean = regularised(likelihood.local_estimates(), mean, log_marginal, rho)
    return Personalised(mean, atoms, weights, share, log_marginal, bound)


class Algorithm1(Estimator):
    """The paper's VANEB, to the letter; see ``vaneb.paper.algorithm_1``.

    For anything but looking at the paper's method use ``vaneb.VANEB``.

    Parameters
    ----------
    start : "fixed-covariance", "coupled" or "uniform"
        Starting weights.  "fixed-covariance": the conic solve with covariances fixed at the reported
        estimates, as the paper says of its implementation; atoms without weight are dropped.  "coupled": the
        same with each covariance at the atom, as Algorithm 1 is printed.  "uniform": 1 / m.
    steps : int
        S, pseudo-EM steps.
    delta : float, optional
        Spacing of a grid that takes the place of the estimates as first atoms, in the units of theta.
    rho : float or (K,), optional
        Regularises Tweedie's formula; see ``vaneb.paper.rho``.
    tol : float
        Average log-likelihood that the starting weights may lack.

    Attributes
    ----------
    atoms_, weights_ : (m, d), (m,)
    bound_ : float or None, see ``Personalised``.

    Examples
    --------
    >>> import numpy as np, vaneb
    >>> reports = vaneb.Reports([0.0, 0.1, 4.0, 4.1], standard_errors=[0.1] * 4)
    >>> vaneb.paper.Algorithm1().fit(reports).personalize(reports).mean.round(2).ravel().tolist()
    [0.05, 0.05, 4.05, 4.05]
    """

    def __init__(
        self,
        start: str = "fixed-covariance",
        steps: int = 50,
        delta: float | None = None,
        rho: Array | float | None = None,
        tol: float = 1e-6,
    ) -> None:
        self.start = start
        self.steps = steps
        self.delta = delta
        self.rho = rho
        self.tol = tol

    atoms_: Array
    weights_: Array
    bound_: float | None

    def _seen(self, clients: Any) -> Likelihood:
        return as_likelihood(clients)

    def fit(self, clients: Any) -> Self:
        """Learn the prior from ``clients``: ``Reports``, or any likelihood."""
        self._check()
        likelihood = self._seen(clients)
        with one_blas_thread():
            atoms, self.bound_ = likelihood.local_estimates(), None
            if self.delta is not None:
                atoms, self.bound_, _ = grid(likelihood, self.delta)
            weights = starting_weights(likelihood, atoms, self.start, self.tol)
            self.atoms_, self.weights_ = algorithm_1(likelihood, atoms, weights, self.steps)
        return self

    def personalize(self, clients: Any) -> Personalised:
        """Posterior means of ``clients``, who need not be those of the fit."""
        if not hasattr(self, "atoms_"):
            raise InvalidOption(f"fit the model first: {type(self).__name__}().fit(reports)")
        return personalise(self._seen(clients), self.atoms_, self.weights_, rho=self.rho, bound=self.bound_)

    def _check(self) -> None:
        if self.start not in STARTS:
            raise InvalidOption(f"start must be one of {', '.join(STARTS)}, not {self.start!r}")
        if not (isinstance(self.steps, int | np.integer) and self.steps >= 0):
            raise InvalidOption(f"steps must be a whole number, zero or more, not {self.steps!r}")
        if not (isinstance(self.tol, Real) and 0 < self.tol < np.inf):
            raise InvalidOption(f"tol must be a positive number, not {self.tol!r}")


class NPEB(Algorithm1):
    """The same lines with every covariance fixed at the reported one: EM for the fixed-covariance NPMLE.

    A covariance function is replaced by its value at the client's own estimate.  Options as for
    ``Algorithm1``; "fixed-covariance" and "coupled" are the same start here.
    """

    def _seen(self, clients: Any) -> Likelihood:
        return fixed_covariance(clients)


class Oracle(Estimator):
    """Posterior means under the true prior and the Gaussian working likelihood.

    Parameters
    ----------
    atoms : (m, d)
        Points on the support of the true prior.
    weights : (m,)
    """

    def __init__(self, atoms: Array, weights: Array) -> None:
        self.atoms = atoms
        self.weights = weights

    def fit(self, clients: Any) -> Self:
        return self

    def personalize(self, clients: Any) -> Personalised:
        return personalise(as_likelihood(clients), self.atoms, self.weights)
