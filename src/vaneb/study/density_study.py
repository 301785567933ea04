"""The theory where all of its assumptions hold: a prior with a density, diagonal and smooth variances.

    prior       G_0 = four Gaussians N(c, 0.4^2 I) in the plane, equal weights
    variance    V_ki(theta) = 1 + sin(theta_i + phi_k) / 4, phi_k uniform on the circle: s = 3/4, S = 5/4
    clients     theta_hat_k ~ N(theta_k, diag V_k(theta_k) / n_k), n_k uniform on [n, 2 n]

Variances must differ between clients in more than a factor: where all have the same V, as in the quadratic
scenario, it cancels in Algorithm 1's move, and there is nothing to contract.

The oracle integrates the density over a fine grid, exact to the digits shown.  For Algorithm 1 in paper mode
(``algorithm-1``), the certified discrete NPMLE (``npmle``), ``local`` and our default, whose population may
be smooth (``vaneb``), a row has as much of this as there is of it:

    risk, oracle_risk, excess        mean squared errors, and the distance to the oracle's estimates
    van_trees, upper                 the bounds of the oracle's risk
    hellinger, hellinger_weighted    average squared distances of the marginals, and of the variance-weighted
                                     marginals, the largest of the two coordinates
    residual                         largest |psi_j(a_j) - a_j|, the next move of an atom
    contraction, rate                medians of the lemma's L_j, and of the contraction that is observed
    root, root_bound, root_proved    median distance of a fixed point to the exact score's root, median of
                                     the lemma's bound, and the share of atoms where it is proved
    mixing_gain, below_floor         what the denoising theorem asks of a fit: at most 0, and none
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vaneb import text_tables
from vaneb.covariance.base import DiagonalCovariance, Wire
from vaneb.errors import InvalidReport
from vaneb.growing_tables import Row
from vaneb.study.rates import Rows, Study, slopes, slopes_as_markdown, standard_error
from vaneb.study.workers import Job

Array = NDArray[np.float64]

CENTRES = np.array([[1.5, 1.0], [-1.5, 1.0], [0.0, -1.5], [1.5, -1.0]])
SPREAD = 0.4
AMPLITUDE = 0.25
#: The grid of the oracle: steps of a quarter of the spread, out to this many spreads.
REACH = 4.5
#: Reports drawn for a Hellinger distance, over all clients; at least 2 of each.
DRAWS = 1_600
#: Draws from a smooth population, which stand for it in a Hellinger distance.
SMOOTH_DRAWS = 4_000
#: Draws of a row depend on the place of its estimator here: add at the end.
ESTIMATORS = ("algorithm-1", "npmle", "local", "vaneb")
KEYS = ("sweep", "clients", "n", "replicate", "seed", "estimator")
MEASURES = (
    *("risk", "oracle_risk", "excess", "van_trees", "upper", "hellinger", "hellinger_weighted"),
    *("residual", "contraction", "rate", "root", "root_bound", "root_proved", "mixing_gain", "below_floor"),
)
DENSITY = Study(
    kind="density",
    priors=("density",),
    estimators=ESTIMATORS,
    columns=(*KEYS, *MEASURES, "cpu_seconds"),
    expected={
        ("excess", "algorithm-1"): (-1.0, -1.0),
        ("excess", "npmle"): (-1.0, -1.0),
        ("excess", "local"): (0.0, -1.0),
        ("excess", "vaneb"): (-1.0, -1.0),
        ("hellinger", "algorithm-1"): (-1.0, 0.0),
        ("hellinger", "npmle"): (-1.0, 0.0),
        ("hellinger", "vaneb"): (-1.0, 0.0),
        ("hellinger_weighted", "algorithm-1"): (-1.0, 0.0),
        ("hellinger_weighted", "npmle"): (-1.0, 0.0),
        ("hellinger_weighted", "vaneb"): (-1.0, 0.0),
    },
    clients=(50, 100, 200, 400, 800),
    n=(10, 20, 40, 80),
)


@dataclass(frozen=True, eq=False)
class WaveVariance(DiagonalCovariance):
    """V_ki(theta) = 1 + AMPLITUDE sin(theta_i + phase_k); ``phase`` (K,)."""

    phase: Array

    @property
    def dimension(self) -> int:
        return 2

    @property
    def n_clients(self) -> int:
        return len(self.phase)

    def precision(self, points: Array) -> Array:
        return 1 / (1 + AMPLITUDE * np.sin(points + self.phase[:, None, None]))

    def precision_gradient(self, points: Array) -> Array:
        slope = -AMPLITUDE * np.cos(points + self.phase[:, None, None]) * self.precision(points) ** 2
        return slope[..., None] * np.eye(self.dimension)

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        return replace(self, phase=self.phase[rows])

    def to_wire(self) -> Wire:
        raise InvalidReport("covariance: a variance of the study is not sent")

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        raise InvalidReport("covariance: a variance of the study is not sent")

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        return replace(parts[0], phase=np.concatenate([part.phase for part in parts]))


def fine_prior() -> tuple[Array, Array]:
    """G_0 by the midpoint rule: atoms (m, 2) and weights (m,)."""
    offsets = SPREAD * np.arange(-REACH, REACH + 1e-9, 0.25)
    place = np.stack(np.meshgrid(offsets, offsets, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = np.exp(-0.5 * (place**2).sum(axis=1) / SPREAD**2)
    atoms = (CENTRES[:, None] + place).reshape(-1, 2)
    return atoms, np.tile(weights / weights.sum() / len(CENTRES), len(CENTRES))


def density_rows(job: Job) -> Iterator[Row]:
    """Rows of one replicate."""
    from vaneb import paper
    from vaneb.estimators import VANEB
    from vaneb.reports import Reports
    from vaneb.theory import (
        average_hellinger,
        covariance_bounds,
        prior_information,
        risk_decomposition,
        settled_points,
        shares,
        van_trees_bounds,
    )

    key = (job["clients"], job["n"], job["replicate"])
    rng = np.random.default_rng(np.random.SeedSequence(job["seed"], spawn_key=key))
    k = int(job["clients"])
    theta = CENTRES[rng.integers(len(CENTRES), size=k)] + SPREAD * rng.standard_normal((k, 2))
    n = rng.integers(job["n"], 2 * job["n"], size=k, endpoint=True).astype(np.float64)
    covariance = WaveVariance(rng.uniform(0, 2 * np.pi, size=(k,)))
    precision = covariance.precision(theta[:, None])[:, 0] * n[:, None]
    reports = Reports(theta + rng.standard_normal((k, 2)) / np.sqrt(precision), n=n, covariance=covariance)
    truth = fine_prior()
    oracle = paper.Oracle(*truth).personalize(reports).mean
    # Coordinates have the same function, each of its own: a line through one period sees all of it.
    line = np.repeat(np.linspace(-np.pi, np.pi, 201)[:, None], 2, axis=1)
    bounds = covariance_bounds(covariance, line)
    information = prior_information(CENTRES, np.full(4, 0.25), SPREAD**2 * np.eye(2), rng=rng)
    van_trees, upper = van_trees_bounds(bounds, n, information)
    draws = max(2, DRAWS // k)
    for name in job["estimators"]:
        # Draws of its own, so that a row does not depend on which others are still missing.
        rng = np.random.default_rng(
            np.random.SeedSequence(job["seed"], spawn_key=(*key, ESTIMATORS.index(name)))
        )
        row: Row = dict.fromkeys(DENSITY.columns)
        row.update({each: job[each] for each in KEYS if each != "estimator"})
        row.update(estimator=name, van_trees=van_trees, upper=upper)
        begin = time.process_time()
        fit = None
        if name == "local":
            mean = reports.estimate
        elif name == "algorithm-1":
            fit = paper.Algorithm1().fit(reports).personalize(reports)
        elif name == "npmle":
            prior = VANEB(population="discrete").fit(reports).prior_
            fit = paper.Oracle(prior.atoms, prior.weights).personalize(reports)
        else:
            model = VANEB().fit(reports)
            mean = model.personalize(reports).mean
            own = model.prior_.sample(SMOOTH_DRAWS, rng), np.full(SMOOTH_DRAWS, 1 / SMOOTH_DRAWS)
        if name != "local":
            row["cpu_seconds"] = round(time.process_time() - begin, 3)
        if fit is not None:
            mean, own = fit.mean, (fit.atoms, fit.weights)
        if name != "local":
            distances = [
                average_hellinger(own, truth, n, covariance, rng=rng, draws=draws, coordinate=each).value
                for each in (None, 0, 1)
            ]
            row["hellinger"], row["hellinger_weighted"] = distances[0], max(distances[1:])
        if fit is not None:
            found = paper.lemma_bounds(reports, fit, line)
            settled = settled_points(
                fit.atoms, shares(reports.likelihood(), *own), reports.estimate, n, covariance
            )
            root = np.linalg.norm(settled.root - settled.fixed, axis=1)
            row.update(
                residual=float(found.residual.max()),
                contraction=float(np.median(found.contraction)),
                rate=float(np.median(settled.rate)),
                root=float(np.median(root)),
                root_bound=float(np.median(found.score_root)),
                root_proved=float(found.score_root_proved.mean()),
                mixing_gain=found.mixing_gain,
                below_floor=int(found.below_floor.sum()),
            )
        risk = risk_decomposition(mean, oracle, theta)
        row.update(risk=risk.total, oracle_risk=risk.oracle, excess=risk.excess)
        yield row


def _values(rows: Rows, measure: str, **where: str) -> Array:
    """One value for each replicate: where the two sweeps meet they have the same."""
    found = {
        row["replicate"]: float(row[measure]) for row in rows if row[measure] and where.items() <= row.items()
    }
    return np.array(list(found.values()))


def as_markdown(rows: Rows) -> str:
    """Rates in K and n, then every measure by place, means with standard errors."""
    lines = []
    places = sorted({(row["estimator"], int(row["clients"]), int(row["n"])) for row in rows})
    for estimator, k, n in places:
        cells = []
        for measure in MEASURES:
            values = _values(rows, measure, estimator=estimator, clients=str(k), n=str(n))
            error = standard_error(values)
            note = "" if np.isnan(error) else f"{error:.1g}"
            cells.append(f"{values.mean():.3g} ({note})" if len(values) else "")
        lines.append([estimator, str(k), str(n), *cells])
    table = text_tables.as_markdown(("estimator", "K", "n", *MEASURES), lines)
    return f"{slopes_as_markdown(slopes(DENSITY, rows))}\n\n{table}"
