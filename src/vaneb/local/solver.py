"""Damped Newton on thousands of small problems at once, each ending in a named outcome.

All clients still running take their step together; one whose loss did not fall enough tries a quarter of
it next time, one that has converged leaves.  So the cost is that of the rows still in play, and the
interpreter is entered once per iteration, not once per client.

Convergence is judged by the change of the linear index, not of the parameter or of the loss: the loss of
a separated client converges while its estimate runs away by the same distance at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vaneb.local.objective import Array, Clients, Objective, Terms
from vaneb.local.small_matrices import solve_each

CONVERGED = "converged"
SEPARATED = "separated"
DIVERGING = "diverging"
RANK_DEFICIENT = "rank-deficient"
ITERATION_LIMIT = "iteration-limit"
OUTCOMES = {
    CONVERGED: "the estimate is the minimiser",
    SEPARATED: "some direction fits every row better and better: there is no minimiser",
    DIVERGING: "the estimate runs away or the loss is not finite, without a proof that it must",
    RANK_DEFICIENT: "the client's rows leave some direction of the parameter undetermined",
    ITERATION_LIMIT: "the iterations ended before the estimate settled",
}

MOST_ITERATIONS = 60
#: Newton stops when a full step changes the index by this little, relative to 1 + the index.
STEP_TOLERANCE = 1e-9
#: ... or when the loss cannot be told from its minimum and the step is small.
FLOOR = 1e-15
SMALL_STEP = 1e-4
#: From here on a client still running is asked whether it is separated: by then the part of the step that
#: does not belong to the receding direction has shrunk by e^-20.
ASK_AFTER = 20
#: Smallest eigenvalue of the metric, scaled to unit diagonal, that counts as full rank.
RANK_TOLERANCE = 1e-11
#: An index that still changes by more than this at the last step is running away, not settling.
RUNNING = 1e-2


@dataclass(frozen=True, eq=False)
class Minima:
    """Where Newton ended, for each of K problems."""

    theta: Array
    """Shape (K, d)."""
    loss: Array
    """At ``theta``, (K,)."""
    gradient: Array
    """Of the loss, (K, d)."""
    hessian: Array
    """Of the loss, (K, d, d)."""
    outcome: NDArray[np.str_]
    """Shape (K,), of the keys of ``OUTCOMES``."""
    iterations: NDArray[np.int64]
    """Of Newton's method, (K,)."""


@dataclass(frozen=True)
class Penalised(Objective):
    """L_k(theta) + (theta - centre)' matrix (theta - centre) / 2: always has a minimiser if L_k is convex."""

    objective: Objective
    centre: Array
    """Shape (d,)."""
    matrix: Array
    """Positive definite, shape (d, d)."""

    @property
    def n_clients(self) -> int:
        return self.objective.n_clients

    @property
    def dimension(self) -> int:
        return self.objective.dimension

    @property
    def metric(self) -> Array:
        return self.objective.metric + self.matrix

    def terms(self, theta: Array, clients: Clients) -> Terms:
        value, gradient, hessian = self.objective.terms(theta, clients)
        away = theta - self.centre
        pull = away @ self.matrix
        return value + 0.5 * (away * pull).sum(1), gradient + pull, hessian + self.matrix

    def take(self, clients: Clients | slice) -> Self:
        return replace(self, objective=self.objective.take(clients))

    def start(self) -> Array:
        return np.tile(self.centre, (self.n_clients, 1))


def full_rank(metric: Array) -> NDArray[np.bool_]:
    """Whether matrices (K, d, d) are definite once scaled to unit diagonal: (K,)."""
    scale = np.sqrt(np.maximum(np.einsum("kii->ki", metric), 0))
    safe = np.where(scale > 0, scale, 1.0)
    smallest = np.linalg.eigvalsh(metric / (safe[:, :, None] * safe[:, None, :]))[:, 0]
    return (scale > 0).all(axis=1) & (smallest > RANK_TOLERANCE)


def minimise(objective: Objective, *, start: Array | None = None) -> Minima:
    """Minimise K losses by damped Newton."""
    n_clients = objective.n_clients
    theta = objective.start() if start is None else np.array(start, dtype=np.float64)
    metric = objective.metric
    value, gradient, hessian = objective.terms(theta, np.arange(n_clients))
    outcome = np.where(full_rank(metric), ITERATION_LIMIT, RANK_DEFICIENT).astype("<U16")
    iterations = np.zeros(n_clients, dtype=np.int64)

    running = np.flatnonzero(outcome == ITERATION_LIMIT)
    finite = np.isfinite(value[running])
    outcome[running[~finite]] = DIVERGING
    running = running[finite]
    damping = np.ones(n_clients)
    step = np.zeros_like(theta)
    length = np.full(n_clients, np.inf)
    step[running], definite = solve_each(hessian[running], gradient[running])
    running = running[definite]

    for iteration in range(1, MOST_ITERATIONS + 1):
        if not running.size:
            break
        iterations[running] = iteration
        decrement = 0.5 * (gradient[running] * step[running]).sum(1)
        length[running] = _norm(metric[running], step[running])
        extent = 1 + _norm(metric[running], theta[running])
        magnitude = 1 + np.abs(value[running])
        candidate = theta[running] - damping[running, None] * step[running]
        new = objective.terms(candidate, running)
        # Rounding of a sum of n_k losses must not look like a rise of the loss.
        fall = 1e-4 * damping[running] * decrement - 1e-13 * magnitude
        accepted = np.isfinite(new[0]) & (new[0] <= value[running] - fall)
        accepted &= np.isfinite(new[2]).all(axis=(1, 2))

        settled = (length[running] <= STEP_TOLERANCE * extent) | (
            (decrement <= FLOOR * magnitude) & (length[running] <= SMALL_STEP * extent)
        )
        moved = running[accepted]
        theta[moved], value[moved] = candidate[accepted], new[0][accepted]
        gradient[moved], hessian[moved] = new[1][accepted], new[2][accepted]
        damping[moved] = 1.0
        damping[running[~accepted]] *= 0.25
        outcome[running[settled]] = CONVERGED

        new_step, definite = solve_each(hessian[moved], gradient[moved])
        step[moved[definite]] = new_step[definite]
        ended = settled | (damping[running] < 1e-12)
        ended[accepted] |= ~definite
        if iteration >= ASK_AFTER:
            receding = objective.recedes(-step[running], running) & ~settled
            outcome[running[receding]] = SEPARATED
            ended |= receding
        running = running[~ended]

    stuck = np.flatnonzero(outcome == ITERATION_LIMIT)
    if stuck.size:
        runaway = (length[stuck] > RUNNING * (1 + _norm(metric[stuck], theta[stuck]))) | ~np.isfinite(
            value[stuck]
        )
        outcome[stuck[runaway]] = DIVERGING
        outcome[stuck[objective.recedes(-step[stuck], stuck)]] = SEPARATED
    return Minima(theta, value, gradient, hessian, outcome, iterations)


def _norm(metric: Array, vectors: Array) -> Array:
    """sqrt(v' M v) of (K, d) vectors in (K, d, d) metrics."""
    return np.sqrt(np.maximum(np.einsum("ki,kij,kj->k", vectors, metric, vectors), 0))
