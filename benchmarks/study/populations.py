"""How close to the oracle can a mixture with own spreads come in the quadratic scenario?

    python benchmarks/study/populations.py [--clients 3200] [--n-min 40 10] [--replicates 2] [--thin 1 0.25]

For several numbers of components, one fit and averages of several fits from different starting points: RMSE
as a multiple of the oracle's before and after two steps on the weights, and in parentheses the coverage of
90% intervals of normal shape before them.  The default's number of components is marked.  ``--thin``: the
variances of a component but the largest are multiplied by this, since curves have no thickness.  The draws
are those of the study.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from vaneb.blocks import one_blas_thread
from vaneb.estimators import as_likelihood, diagonal_spread
from vaneb.likelihood.seam import Likelihood
from vaneb.npmle.ellipsoids import (
    ATOMS,
    Ellipsoids,
    Summaries,
    average,
    fine_atoms,
    fit_ellipsoids,
    n_components,
    summaries,
    weight_steps,
)
from vaneb.npmle.gaussian_prior import gaussian_prior
from vaneb.npmle.weights import likelihood_matrix
from vaneb.prior import Prior
from vaneb.study.estimators import Clients, oracle
from vaneb.study.scenarios import simulate
from vaneb.study.sweep import Cell, generator

SCENARIO, SEED = "quadratic", 0
#: Components as multiples of the default's number, and fits that are averaged.
MULTIPLES, FITS = (0.67, 1.0, 1.5, 2.0), (1, 2, 4, 8)
STEPS = 2
#: 95% point of the standard normal.
NORMAL_90 = 1.6448536269514722


class Draw(NamedTuple):
    likelihood: Likelihood
    single: Prior
    summaries: Summaries
    truth: np.ndarray
    oracle: float

    def error(self, mean: np.ndarray) -> float:
        return float(np.sqrt(((mean - self.truth) ** 2).sum(axis=1).mean()))


def draw(n_clients: int, n_min: int, replicate: int) -> Draw:
    cell = Cell(SCENARIO, n_clients, n_min)
    sample = simulate(SCENARIO, n_clients, n_min, generator(cell, replicate, SEED))
    clients = Clients(sample)
    likelihood = as_likelihood(clients.exact)
    single = gaussian_prior(likelihood, diagonal=diagonal_spread(likelihood), tol=1e-4)
    one = Draw(likelihood, single, summaries(likelihood, single), sample.theta, 1.0)
    return one._replace(oracle=one.error(oracle(clients).mean))


def thinned(mixture: Ellipsoids, share: float) -> Ellipsoids:
    """All variances of a component but the largest times ``share``."""
    values, vectors = np.linalg.eigh(mixture.covariances)
    values[:, :-1] *= share
    return mixture._replace(covariances=(vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2))


def scores(one: Draw, mixture: Ellipsoids) -> tuple[float, float, float]:
    """RMSE over the oracle's, before and after STEPS on the weights; coverage of 90% intervals before."""
    atoms, weights = fine_atoms(mixture, one.single, ATOMS)
    matrix, _ = likelihood_matrix(one.likelihood, atoms)
    ratios, coverage = [], 0.0
    for steps in (0, STEPS):
        shares = matrix * weight_steps(matrix, weights, steps)
        shares /= shares.sum(axis=1)[:, None]
        mean = shares @ atoms
        ratios.append(one.error(mean) / one.oracle)
        if steps == 0:
            deviation = np.sqrt(np.maximum(shares @ atoms**2 - mean**2, 0.0))
            coverage = float((np.abs(one.truth - mean) <= NORMAL_90 * deviation).mean())
    return ratios[0], ratios[1], coverage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=3200)
    parser.add_argument("--n-min", type=int, nargs="+", default=[40, 10])
    parser.add_argument("--replicates", type=int, default=2)
    parser.add_argument("--thin", type=float, nargs="+", default=[1.0])
    options = parser.parse_args()
    default = n_components(options.clients)
    print("| n_min | replicate | components | thin | " + " | ".join(f"{count} fits" for count in FITS) + " |")
    print("|---:|---:|---:|---:|" + "---:|" * len(FITS))
    for n_min in options.n_min:
        for replicate in range(options.replicates):
            with one_blas_thread():
                one = draw(options.clients, n_min, replicate)
                for multiple in MULTIPLES:
                    size, rng = round(multiple * default), np.random.default_rng(1)
                    assert one.single.spread is not None
                    fits = [
                        fit_ellipsoids(one.summaries, one.single.spread, size, rng) for _ in range(max(FITS))
                    ]
                    mark = " (default)" if multiple == 1 else ""
                    for share in options.thin:
                        mixtures = [thinned(average(fits[:count]), share) for count in FITS]
                        cells = ["{:.3f}, {:.3f} ({:.2f})".format(*scores(one, own)) for own in mixtures]
                        place = f"| {n_min} | {replicate} | {size}{mark} | {share:g} "
                        print(f"{place}| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
