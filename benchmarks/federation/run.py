"""Figures of the federation.  Each part writes one JSON file beside this one.

python benchmarks/federation/run.py privacy | plug_in | liars | blocks | exchanges CLIENTS

Bytes are measured by ``traffic.py``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vaneb import VANEB, ClientReport, Prior, Reports
from vaneb.covariance import ConstantDiagonal

HERE = Path(__file__).parent
#: Three groups of clients in three dimensions, and how precise clients are.
CENTRES = np.array([[-2.0, 0.0, 1.0], [1.0, 1.5, -1.0], [2.0, -2.0, 0.0]])
ERRORS = (0.3, 0.8)


def population(clients: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True parameters, estimates and standard errors, (K, 3) each."""
    theta = CENTRES[rng.integers(0, len(CENTRES), clients)] + 0.2 * rng.standard_normal((clients, 3))
    errors = rng.uniform(*ERRORS, (clients, 3))
    return theta, theta + errors * rng.standard_normal((clients, 3)), errors


def rmse(found: np.ndarray, theta: np.ndarray) -> float:
    return float(np.sqrt(((found - theta) ** 2).sum(axis=1).mean()))


def released(mechanism: Any, clients: int, seed: list[int]) -> tuple[np.ndarray, ...]:
    """A population, and the private reports of its clients."""
    rng = np.random.default_rng(seed)
    theta, estimate, errors = population(clients, rng)
    reports = [
        mechanism.release(
            ClientReport(str(k), estimate[k], 1.0, ConstantDiagonal(1 / errors[k : k + 1] ** 2)), rng
        )
        for k in range(clients)
    ]
    return theta, estimate, errors, Reports.from_clients(reports)


def at_home(model: VANEB, estimate: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """What a client does: the population is private, its own report is not."""
    one = VANEB.from_prior(replace(model.prior_, draw=None, clients=None))
    return one.personalize(Reports(estimate, standard_errors=errors)).mean


def flat_gaussian(aware: Reports, noise: float, rng: np.random.Generator, draws: int = 200) -> VANEB:
    """One Gaussian under a flat prior, by rejection: the covariance of noisy reports less the noise."""
    from scipy.stats import invwishart

    n, d = aware.estimate.shape
    scale = (n - 1) * np.cov(aware.estimate.T)
    noisy = invwishart.rvs(n - 1, scale, size=20_000, random_state=rng)
    found = noisy - noise * np.eye(d)
    possible = np.linalg.eigvalsh(found)[:, 0] > 0
    found, noisy = found[possible][:draws], noisy[possible][:draws]
    middle = aware.estimate.mean(axis=0)
    atoms = np.array([rng.multivariate_normal(middle, one / n) for one in noisy])
    return VANEB.from_prior(Prior(atoms, np.full(len(atoms), 1 / len(atoms)), found))


def plug_in(clients: int = 300, repeats: int = 14, epsilon: float = 16.0) -> dict:
    """RMSE on other seeds than ``privacy``, beside one Gaussian: with the moments of the noisy reports, and
    under a flat prior."""
    from vaneb.flower.privacy import Mechanism

    mechanism, (low, high) = Mechanism(epsilon, 1e-5, 4.0, se_range=ERRORS), ERRORS
    noise = mechanism.noise**2 + (low**2 + low * high + high**2) / 3
    scores = []
    for repeat in range(repeats):
        theta, estimate, errors, aware = released(mechanism, clients, [77, repeat])
        centre, covariance = aware.estimate.mean(axis=0), np.cov(aware.estimate.T) - noise * np.eye(3)
        values, vectors = np.linalg.eigh(covariance)
        covariance = (vectors * np.maximum(values, 1e-3)) @ vectors.T
        gaussian = VANEB.from_prior(Prior(centre[None], np.ones(1), covariance))
        scores.append(
            {
                "local": rmse(estimate, theta),
                "at_home": rmse(at_home(VANEB().fit(aware), estimate, errors), theta),
                "plug_in": rmse(at_home(gaussian, estimate, errors), theta),
                "flat": rmse(
                    at_home(
                        flat_gaussian(aware, noise, np.random.default_rng([78, repeat])), estimate, errors
                    ),
                    theta,
                ),
            }
        )
        print(scores[-1], flush=True)
    found: dict = {"epsilon": epsilon, "repeats": repeats}
    values = {key: np.array([score[key] for score in scores]) for key in scores[0]}
    for other in ("plug_in", "flat"):
        values[f"at_home_less_{other}"] = values["at_home"] - values[other]
    for key, one in values.items():
        found |= {key: one.mean(), f"{key}_se": one.std(ddof=1) / repeats**0.5}
    return found


def privacy(clients: int = 300, repeats: int = 6) -> dict:
    """RMSE against epsilon, mean and standard error: clients that personalise themselves; at the server, the
    fit that knows the noise, the one that does not, and no fit.  ``local``: a client's own estimate."""
    from vaneb.flower.privacy import Mechanism

    rows = []
    for epsilon in (1.0, 4.0, 16.0, 64.0):
        mechanism = Mechanism(epsilon, 1e-5, 4.0, se_range=ERRORS)
        scores = []
        for repeat in range(repeats):
            theta, estimate, errors, aware = released(mechanism, clients, [1, repeat])
            told = 1 / aware.covariance.unit_precision - mechanism.noise**2
            ignorant = Reports(aware.estimate, standard_errors=np.sqrt(told))
            model = VANEB().fit(aware)
            scores.append(
                {
                    "local": rmse(estimate, theta),
                    "at_home": rmse(at_home(model, estimate, errors), theta),
                    "knows": rmse(model.personalize(aware).mean, theta),
                    "ignores": rmse(VANEB().fit(ignorant).personalize(ignorant).mean, theta),
                    "no_fit": rmse(aware.estimate, theta),
                }
            )
        means = {key: np.array([score[key] for score in scores]) for key in scores[0]}
        means["gain"] = means["local"] - means["at_home"]
        row = {"epsilon": epsilon, "noise_sd": mechanism.noise, "repeats": repeats}
        for key, values in means.items():
            row |= {key: values.mean(), f"{key}_se": values.std(ddof=1) / repeats**0.5}
        print(row, flush=True)
        rows.append(row)
    theta, estimate, errors = population(clients, np.random.default_rng([1, 0]))
    plain = Reports(estimate, standard_errors=errors)
    return {
        "clients": clients,
        "delta": 1e-5,
        "radius": 4.0,
        "not_private": {
            "vaneb": rmse(VANEB().fit(plain).personalize(plain).mean, theta),
            "no_fit": rmse(estimate, theta),
        },
        "rows": rows,
    }


def liars(clients: int = 300, share: float = 0.1, repeats: int = 2) -> dict:
    """Honest clients' error with and without liars: arbitrary estimates with tiny variances."""
    rows = []
    for kind in ("scattered", "one place", "far away"):
        ratios = []
        for repeat in range(repeats):
            rng = np.random.default_rng([2, repeat])
            theta, estimate, errors = population(clients, rng)
            count = int(share * clients)
            honest = slice(count, None)
            alone = Reports(estimate[honest], standard_errors=errors[honest])
            before = rmse(VANEB().fit(alone).personalize(alone).mean, theta[honest])
            lies = {
                "scattered": rng.uniform(-5, 5, (count, 3)),
                "one place": np.tile([0.0, 0.0, 0.0], (count, 1)) + 1e-3 * rng.standard_normal((count, 3)),
                "far away": rng.uniform(-1e6, 1e6, (count, 3)),
            }[kind]
            everyone = Reports(
                np.concatenate([lies, estimate[honest]]),
                standard_errors=np.concatenate([np.full((count, 3), 1e-3), errors[honest]]),
            )
            after = rmse(VANEB().fit(everyone).personalize(everyone).mean[honest], theta[honest])
            ratios.append([before, after, after / before, rmse(estimate[honest], theta[honest])])
        before, after, ratio, local = np.mean(ratios, axis=0)
        rows.append({"liars": kind, "without": before, "with": after, "factor": ratio, "local": local})
    return {"clients": clients, "share": share, "rows": rows}


def blocks(clients: int = 100_000) -> dict:
    """Constants of a pass over a file."""
    from vaneb.outofcore import fit_file
    from vaneb.tables import write_reports

    rng = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reports.parquet"
        _, estimate, errors = population(clients, rng)
        write_reports(path, Reports(estimate, standard_errors=errors))
        size = path.stat().st_size
        times = {}
        for steps in (1, 4):
            began, cpu = time.perf_counter(), time.process_time()
            fit = fit_file(path, steps=steps, population="discrete", sample=2000)
            times[steps] = (time.perf_counter() - began, time.process_time() - cpu)
    wall, cpu = ((times[4][i] - times[1][i]) / 3 for i in (0, 1))
    return {
        "clients": clients,
        "d": 3,
        "atoms": len(fit.prior.weights),
        "bytes_per_client_on_disk": size / clients,
        "microseconds_per_client_and_pass": 1e6 * wall / clients,
        "cpu_microseconds_per_client_and_pass": 1e6 * cpu / clients,
    }


def exchanges(clients: int) -> dict:
    """A simulated one-shot run: seconds of its two exchanges, and the server's share of the work."""
    from vaneb.flower.control import simulate
    from vaneb.flower.settings import Settings

    rng = np.random.default_rng(4)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.csv"
        with open(data, "w") as file:
            file.write("site,x,y\n")
            for k in range(clients):
                for x in rng.standard_normal(20):
                    file.write(f"s{k},{x:.6f},{(k % 3) + x + rng.standard_normal():.6f}\n")
        settings = Settings(
            formula="y ~ x",
            nodes=clients,
            wait=300.0,
            timeout=400.0,
            population="discrete",
        )
        began = time.perf_counter()
        outcome = simulate(settings, Path(folder) / "server", data, "site", clients)
        outcome["seconds_in_all"] = time.perf_counter() - began
    outcome["served"] = len(outcome["served"])
    return outcome


def main() -> None:
    parts = {"privacy": privacy, "plug_in": plug_in, "liars": liars, "blocks": blocks, "exchanges": exchanges}
    part, *more = sys.argv[1:] or [""]
    if part not in parts:
        sys.exit(f"usage: python benchmarks/federation/run.py {'|'.join(parts)} [CLIENTS]")
    found = parts[part](*map(int, more))
    name = "-".join([part, *more])
    (HERE / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
