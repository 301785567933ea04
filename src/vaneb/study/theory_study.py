"""Do the rates of the theory show?  Excess risk over the oracle, and Hellinger distance of the marginals.

Clients report means of rows with variance theta^2 (the quadratic scenario), their parameters drawn from a
discrete prior G_0, so that the oracle and the true marginals are exact:

    points    10 atoms, two on each of the five curves
    curves    500 atoms, 100 on each curve: too many to tell apart

With n_k uniform on [n, 2 n] the excess risk (1/K) sum_k |estimate_k - oracle_k|^2 should fall as 1 / (n K)
for VANEB and as 1 / n for local estimates, the average squared Hellinger distance as 1 / K, all up to powers
of log K.  VANEB is the certified discrete NPMLE here, the estimator that the theory is about.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vaneb.drawing import pyplot, save
from vaneb.growing_tables import Row
from vaneb.study.prior_curves import FiveCurves
from vaneb.study.rates import ALONG, Rows, Study, curve, slopes, standard_error
from vaneb.study.scenarios import SCENARIOS
from vaneb.study.workers import Job

#: Atoms on each curve.
PRIORS = {"points": 2, "curves": 100}
MEASURES = ("excess", "hellinger")
KEYS = ("prior", "sweep", "clients", "n", "replicate", "seed", "estimator")
THEORY = Study(
    kind="theory",
    priors=tuple(PRIORS),
    estimators=("vaneb", "local"),
    columns=(*KEYS, *MEASURES, "risk", "oracle_risk", "gap", "cpu_seconds"),
    expected={
        ("excess", "vaneb"): (-1.0, -1.0),
        ("excess", "local"): (0.0, -1.0),
        ("hellinger", "vaneb"): (-1.0, 0.0),
    },
    clients=(50, 100, 200, 400, 800, 1600),
    n=(5, 10, 20, 40, 80),
)
#: Reports drawn for a Hellinger distance, over all clients; at most 100 of each.
DRAWS = 12_800


def theory_rows(job: Job) -> Iterator[Row]:
    """Rows of local and VANEB for one replicate."""
    from vaneb.covariance.quadratic import QuadraticVariance
    from vaneb.estimators import VANEB, Oracle
    from vaneb.prior import Prior
    from vaneb.reports import Reports
    from vaneb.theory import average_hellinger, risk_decomposition

    key = (zlib.crc32(job["prior"].encode()), job["clients"], job["n"], job["replicate"])
    rng = np.random.default_rng(np.random.SeedSequence(job["seed"], spawn_key=key))
    truth = Prior(*FiveCurves().atoms(PRIORS[job["prior"]]))
    theta = truth.sample(job["clients"], rng)
    n = rng.integers(job["n"], 2 * job["n"], size=len(theta), endpoint=True)
    sample = SCENARIOS["quadratic"](theta, n, rng)
    covariance = QuadraticVariance.squared(3, len(theta))
    reports = Reports(sample.means, n=n, covariance=covariance)
    oracle = Oracle(truth).fit(reports).personalize(reports).mean
    begin = time.process_time()
    model = VANEB(population="discrete").fit(reports)
    assert model.certificate_ is not None
    fitted = model.personalize(reports).mean
    seconds = time.process_time() - begin
    distance = average_hellinger(
        (model.prior_.atoms, model.prior_.weights),
        (truth.atoms, truth.weights),
        n.astype(np.float64),
        covariance,
        rng=rng,
        draws=min(100, max(4, DRAWS // len(theta))),
    ).value
    assert sample.means is not None
    for name in job["estimators"]:
        own = name == "vaneb"
        risk = risk_decomposition(fitted if own else sample.means, oracle, theta)
        yield {
            **{key: job[key] for key in KEYS if key != "estimator"},
            "estimator": name,
            "excess": risk.excess,
            "hellinger": distance if own else None,
            "risk": risk.total,
            "oracle_risk": risk.oracle,
            "gap": float(model.certificate_.gap) if own else None,
            "cpu_seconds": round(seconds, 3) if own else 0.0,
        }


def draw_theory(rows: Rows, path: Path) -> None:
    """Means with standard errors on logarithmic scales: a row for each prior, excess risk and Hellinger."""
    plt = pyplot()
    figure, axes = plt.subplots(len(PRIORS), 4, figsize=(16, 3.8 * len(PRIORS)), squeeze=False)
    panels = [(measure, sweep) for measure in MEASURES for sweep in ("K", "n")]
    fitted = {(s.prior, s.sweep, s.measure, s.estimator): s.value for s in slopes(THEORY, rows)}
    for line, prior in zip(axes, PRIORS, strict=True):
        for axis, (measure, sweep) in zip(line, panels, strict=True):
            for estimator, colour in (("vaneb", "C1"), ("local", "C7")):
                places, values = curve(rows, prior, sweep, measure, estimator)
                if not values.size:
                    continue
                error = [standard_error(column) for column in values.T] if len(values) > 1 else None
                slope = fitted.get((prior, sweep, measure, estimator), float("nan"))
                axis.errorbar(
                    places,
                    values.mean(axis=0),
                    error,
                    color=colour,
                    marker="o",
                    capsize=3,
                    label=f"{estimator}: slope {slope:.2f}",
                )
            axis.set(xscale="log", yscale="log", xlabel="clients K" if sweep == "K" else "sample size n")
            axis.set_title(f"{prior}: {'excess risk' if measure == 'excess' else 'squared Hellinger'}")
            axis.grid(alpha=0.3)
            ticks = sorted({int(row[ALONG[sweep]]) for row in rows if row["sweep"] == sweep})
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.xaxis.minorticks_off()
            if axis.get_legend_handles_labels()[0]:
                axis.legend(fontsize=8)
    save(figure, path)
