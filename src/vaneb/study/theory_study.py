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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.study.figures import pyplot, save
from vaneb.study.prior_curves import FiveCurves
from vaneb.study.rows import Row
from vaneb.study.scenarios import SCENARIOS
from vaneb.study.sweep import Progress, append_jobs, checked_rows
from vaneb.study.workers import Job

Array = NDArray[np.float64]

CLIENTS = (50, 100, 200, 400, 800, 1600)
N = (5, 10, 20, 40, 80)
#: Atoms on each curve.
PRIORS = {"points": 2, "curves": 100}
MEASURES = ("excess", "hellinger")
COLUMNS = (
    *("prior", "sweep", "clients", "n", "replicate", "seed", "estimator"),
    *MEASURES,
    *("risk", "oracle_risk", "gap", "cpu_seconds"),
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
    common = {name: job[name] for name in ("prior", "sweep", "clients", "n", "replicate", "seed")}
    for name, estimates in (("vaneb", fitted), ("local", sample.means)):
        own = name == "vaneb"
        risk = risk_decomposition(estimates, oracle, theta)
        yield {
            **common,
            "estimator": name,
            "excess": risk.excess,
            "hellinger": distance if own else None,
            "risk": risk.total,
            "oracle_risk": risk.oracle,
            "gap": float(model.certificate_.gap) if own else None,
            "cpu_seconds": round(seconds, 3) if own else 0.0,
        }


def run_theory(
    path: Path,
    *,
    replicates: int,
    seed: int = 0,
    workers: int = 1,
    clients: Sequence[int] = CLIENTS,
    n: Sequence[int] = N,
    progress: Progress | None = None,
) -> None:
    """Append what is missing to ``path``: K varies at the middle ``n``, n at the middle of ``clients``."""
    if replicates < 1:
        raise InvalidOption(f"replicates: at least 1 is needed, not {replicates}")
    for name, values in (("clients", clients), ("n", n)):
        if len(values) < 2 or min(values) < 2:
            raise InvalidOption(
                f"{name}: a slope needs two values or more, of at least 2, not {list(values)}"
            )
    middle_n, middle_clients = sorted(n)[len(n) // 2], sorted(clients)[len(clients) // 2]
    places = [("K", k, middle_n) for k in clients] + [("n", middle_clients, each) for each in n]
    counts: dict[tuple[str, ...], int] = {}
    for row in checked_rows(path, COLUMNS, seed):
        place = tuple(row[name] for name in ("prior", "sweep", "clients", "n", "replicate"))
        counts[place] = counts.get(place, 0) + 1
    jobs: list[Job] = []
    for replicate in range(replicates):
        for prior in PRIORS:
            for sweep, k, each in places:
                present = counts.get((prior, sweep, str(k), str(each), str(replicate)), 0)
                if present < 2:
                    job = {"prior": prior, "sweep": sweep, "clients": k, "n": each, "replicate": replicate}
                    title = f"{prior} K={k} n={each} #{replicate + 1}"
                    jobs.append({"kind": "theory", "title": title, "seed": seed, **job})
    append_jobs(path, COLUMNS, jobs, workers, progress)


@dataclass(frozen=True)
class Slope:
    """How fast a measure falls along a sweep, on logarithmic scales.

    Parameters
    ----------
    value, error : mean over replicates of the least-squares slope, and its standard error.
    expected : the theory's, up to logarithms.
    """

    prior: str
    sweep: str
    measure: str
    estimator: str
    value: float
    error: float
    expected: float
    replicates: int


#: The theory's exponents along K and along n.
EXPECTED = {
    ("excess", "vaneb"): {"K": -1.0, "n": -1.0},
    ("excess", "local"): {"K": 0.0, "n": -1.0},
    ("hellinger", "vaneb"): {"K": -1.0, "n": 0.0},
}


def curve(
    rows: Sequence[dict[str, str]], prior: str, sweep: str, measure: str, estimator: str
) -> tuple[Array, Array]:
    """Places (q,) along a sweep and the measure there, (replicates, q); incomplete replicates left out."""
    along = "clients" if sweep == "K" else "n"
    table: dict[int, dict[int, float]] = {}
    for row in rows:
        if (row["prior"], row["sweep"], row["estimator"]) == (prior, sweep, estimator) and row[measure]:
            table.setdefault(int(row["replicate"]), {})[int(row[along])] = float(row[measure])
    places = sorted({place for values in table.values() for place in values})
    full = [[values[p] for p in places] for _, values in sorted(table.items()) if len(values) == len(places)]
    return np.array(places, dtype=float), np.array(full, dtype=float).reshape(len(full), len(places))


def slopes(rows: Sequence[dict[str, str]]) -> list[Slope]:
    """Fitted slopes of everything that the theory has a rate for."""
    out = []
    for prior in PRIORS:
        for (measure, estimator), expected in EXPECTED.items():
            for sweep in ("K", "n"):
                places, values = curve(rows, prior, sweep, measure, estimator)
                if len(places) < 2 or not len(values):
                    continue
                # Zero is what a risk that underflows, or no difference in any draw, leaves.
                logs = np.log(np.maximum(values, 1e-300)).T
                fitted = np.polyfit(np.log(places), logs, 1)[0]
                count = len(fitted)
                error = float(fitted.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
                out.append(
                    Slope(
                        prior, sweep, measure, estimator, float(fitted.mean()), error, expected[sweep], count
                    )
                )
    return out


def slopes_as_markdown(found: Sequence[Slope]) -> str:
    """The slopes as a table."""
    lines = [
        "| prior | measure | estimator | along | slope | s.e. | theory, up to logs | replicates |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for s in found:
        error = "" if np.isnan(s.error) else f"{s.error:.2f}"
        lines.append(
            f"| {s.prior} | {s.measure} | {s.estimator} | {s.sweep} | {s.value:.2f} | {error} "
            f"| {s.expected:g} | {s.replicates} |"
        )
    return "\n".join(lines)


def draw_theory(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Means with standard errors on logarithmic scales: a row for each prior, excess risk and Hellinger."""
    plt = pyplot()
    figure, axes = plt.subplots(len(PRIORS), 4, figsize=(16, 3.8 * len(PRIORS)), squeeze=False)
    panels = [(measure, sweep) for measure in MEASURES for sweep in ("K", "n")]
    fitted = {(s.prior, s.sweep, s.measure, s.estimator): s.value for s in slopes(rows)}
    for line, prior in zip(axes, PRIORS, strict=True):
        for axis, (measure, sweep) in zip(line, panels, strict=True):
            for estimator, colour in (("vaneb", "C1"), ("local", "C7")):
                places, values = curve(rows, prior, sweep, measure, estimator)
                if not values.size:
                    continue
                error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
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
            ticks = sorted(
                {int(row["clients" if sweep == "K" else "n"]) for row in rows if row["sweep"] == sweep}
            )
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.xaxis.minorticks_off()
            if axis.get_legend_handles_labels()[0]:
                axis.legend(fontsize=8)
    save(figure, path)
