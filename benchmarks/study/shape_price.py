"""What must anybody pay who does not know the curves?  A first-order bound on the distance to the oracle.

    python benchmarks/study/shape_price.py [--cells quadratic:3200:40 ...] [--draws 8000]

Give an estimator more than any has: it knows that the population is five curves without thickness, which
clients' likelihoods are exact, and every curve but for a displacement

    curve_c(t) + sum_{h < H} beta_ch cos(h pi t),    t uniform on [0, 1],    beta_ch ~ N(0, SD^2 I),

15 H numbers in all (the displacement along the curve is its density).  With S_k the score of client k's
log-density in beta, I = E S_k S_k' and J_k the derivative of its posterior mean, the posterior of beta given
all clients has, to first order, the covariance (K I + 1 / SD^2)^{-1}, and what the posterior mean of a client
loses by it over the oracle's is

    tr[ E(J_k' J_k) (K I + 1 / SD^2)^{-1} ].

Printed: RMSE as a multiple of the oracle's, for several H; and how far the best H cosines for each coordinate
stay from the five curves themselves, which is what H has to be large enough for.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from vaneb.blocks import one_blas_thread
from vaneb.estimators import as_likelihood
from vaneb.likelihood.base import Likelihood
from vaneb.study.estimators import Clients
from vaneb.study.prior_curves import CURVES, FiveCurves
from vaneb.study.scenarios import simulate

CELLS = [f"{s}:3200:{n}" for s in ("quadratic", "logistic", "poisson") for n in (40, 10, 5)]
#: Cosines for each coordinate of each curve.
COSINES = (5, 9, 13, 17, 25)
SD = 0.5
#: Atoms on each curve, clients at a time, and the step of the differences that stand for derivatives.
PER_CURVE, BLOCK, STEP = 240, 400, 1e-4
#: Not a seed of the study.
SEED = 7


class Moments(NamedTuple):
    """E S S' and E J' J over all 15 H numbers, and the oracle's mean squared error."""

    information: np.ndarray
    sensitivity: np.ndarray
    oracle: float


def cosines(count: int) -> np.ndarray:
    """cos(h pi t) at the atoms of one curve, (PER_CURVE, count)."""
    t = (np.arange(PER_CURVE) + 0.5) / PER_CURVE
    return np.cos(np.pi * np.outer(t, np.arange(count)))


def scores(clients: Likelihood, atoms: np.ndarray) -> np.ndarray:
    """Gradients of the log-likelihoods in the atom, (clients, atoms, 3), by central differences."""
    steps = STEP * np.eye(3)
    return np.stack(
        [
            (clients.log_likelihood(atoms + step) - clients.log_likelihood(atoms - step)) / (2 * STEP)
            for step in steps
        ],
        axis=2,
    )


def moments(scenario: str, n_min: int, draws: int) -> Moments:
    """The moments of one scenario, from ``draws`` clients."""
    sample = simulate(scenario, draws, n_min, np.random.default_rng(SEED))
    likelihood = as_likelihood(Clients(sample).exact)
    atoms, weights = FiveCurves().atoms(PER_CURVE)
    # Displacements of one curve leave the atoms of the others where they are: (atoms, 5 H).
    basis = np.kron(np.eye(len(CURVES)), cosines(max(COSINES)))
    size = 3 * basis.shape[1]
    information, sensitivity, error = np.zeros((size, size)), np.zeros((size, size)), 0.0
    for start in range(0, draws, BLOCK):
        rows = np.arange(start, min(start + BLOCK, draws))
        clients = likelihood.take(rows)
        logs = clients.log_likelihood(atoms)
        shares = np.exp(logs - logs.max(axis=1, keepdims=True)) * weights
        shares /= shares.sum(axis=1, keepdims=True)
        mean = shares @ atoms
        error += ((mean - sample.theta[rows]) ** 2).sum()
        # Moving atom q by e changes log f_k by r_kq g_kq'e ...
        pulls = shares[:, :, None] * scores(clients, atoms)
        score = np.einsum("kqa,qb->kba", pulls, basis, optimize=True).reshape(len(rows), -1)
        information += score.T @ score
        for i in range(3):
            # ... and the mean by r_kq (e + (a_q - mean) g_kq'e).
            moves = (atoms[None, :, i] - mean[:, i, None])[:, :, None] * pulls
            moves[:, :, i] += shares
            slope = np.einsum("kqa,qb->kba", moves, basis, optimize=True).reshape(len(rows), -1)
            sensitivity += slope.T @ slope
    return Moments(information / draws, sensitivity / draws, error / draws)


def price(found: Moments, n_clients: int, count: int) -> float:
    """RMSE over the oracle's with ``count`` cosines for each coordinate."""
    used = np.zeros((len(CURVES), max(COSINES), 3), dtype=bool)
    used[:, :count] = True
    kept = np.ix_(used.ravel(), used.ravel())
    precision = n_clients * found.information[kept] + np.eye(int(used.sum())) / SD**2
    excess = np.trace(np.linalg.solve(precision, found.sensitivity[kept]))
    return float(np.sqrt(1 + excess / found.oracle))


def distance(count: int) -> float:
    """Root mean squared distance of the curves from their best approximation by ``count`` cosines."""
    prior, basis, total = FiveCurves(), cosines(count), 0.0
    points = prior.atoms(PER_CURVE)[0].reshape(len(CURVES), PER_CURVE, 3)
    for weight, curve in zip(prior.weights, points, strict=True):
        left = curve - basis @ np.linalg.lstsq(basis, curve, rcond=None)[0]
        total += weight * float((left**2).sum(axis=1).mean())
    return total**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=CELLS)
    parser.add_argument("--draws", type=int, default=8000)
    options = parser.parse_args()
    heads = [f"{15 * count} numbers" for count in COSINES]
    print(f"| cell | {' | '.join(heads)} |")
    print("|---|" + "---:|" * len(heads))
    print("| curves are left by |" + "".join(f" {distance(count):.2f} |" for count in COSINES), flush=True)
    for name in options.cells:
        scenario, n_clients, n_min = name.split(":")
        with one_blas_thread():
            found = moments(scenario, int(n_min), options.draws)
        row = "".join(f" {price(found, int(n_clients), count):.3f} |" for count in COSINES)
        print(f"| {scenario} K={n_clients} n_min={n_min} |{row}", flush=True)


if __name__ == "__main__":
    main()
