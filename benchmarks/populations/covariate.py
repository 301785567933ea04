"""Parameters that depend on the standard error: with the standard error as a covariate, and without.

    python benchmarks/populations/covariate.py

theta_k = b s_k + tau N(0, 1), and the estimate is theta_k + s_k N(0, 1).  Beside us stands full Bayes for
exactly this model: a flat prior for the intercept and b, a flat prior for tau, integrated over a grid.
"""

from __future__ import annotations

import numpy as np

from vaneb import VANEB, Reports

#: Clients, slope on the standard error, standard deviation about the line, replicates.
CELLS = ((20, 1.0, 0.5, 40), (50, 1.0, 0.3, 40), (50, 0.5, 1.0, 40), (200, 1.0, 0.3, 20))
FIRST_SEED = 5000


def full_bayes(x: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean and standard deviation of each theta."""
    design, logs, means, variances = np.stack([np.ones_like(s), s], axis=1), [], [], []
    for tau in np.linspace(0.005, 4, 400):
        weight = 1 / (tau**2 + s**2)
        information = (design * weight[:, None]).T @ design
        inverse = np.linalg.inv(information)
        line = design @ (inverse @ (design.T @ (weight * x)))
        logs.append(
            0.5 * np.log(weight).sum()
            - 0.5 * np.linalg.slogdet(information)[1]
            - 0.5 * (weight * (x - line) ** 2).sum()
        )
        own = tau**2 * weight
        means.append((1 - own) * line + own * x)
        variances.append((1 - own) ** 2 * np.einsum("ki,ij,kj->k", design, inverse, design) + own * s**2)
    share = np.exp(np.array(logs) - max(logs))
    share /= share.sum()
    mean = share @ np.array(means)
    return mean, np.sqrt(share @ (np.array(variances) + (np.array(means) - mean) ** 2))


def scores(theta: np.ndarray, mean: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> list[float]:
    """RMSE, and coverage of intervals in percent."""
    inside = (lower <= theta) & (theta <= upper)
    return [float(np.sqrt(np.mean((mean - theta) ** 2))), 100 * float(inside.mean())]


def replicate(clients: int, slope: float, tau: float, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    s = rng.uniform(0.2, 1.5, clients)
    theta = slope * s + tau * rng.standard_normal(clients)
    x = theta + s * rng.standard_normal(clients)
    reports, out = Reports(x[:, None], standard_errors=s[:, None]), []
    for known in ({}, {"covariates": s[:, None]}):
        model = VANEB().fit(reports, **known)
        posterior = model.personalize(reports, **known)
        out += scores(theta, posterior.mean[:, 0], *(end[:, 0] for end in posterior.interval(0.9)))
    mean, sd = full_bayes(x, s)
    return out + scores(theta, mean, mean - 1.645 * sd, mean + 1.645 * sd)


def main() -> None:
    what = (f"{who}: RMSE | coverage" for who in ("without", "with", "full Bayes"))
    print(f"| K | b | tau | replicates | {' | '.join(what)} |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for clients, slope, tau, replicates in CELLS:
        rows = np.array([replicate(clients, slope, tau, FIRST_SEED + i) for i in range(replicates)])
        mean, error = rows.mean(axis=0), rows.std(axis=0, ddof=1) / np.sqrt(replicates)
        cells = [
            f"{mean[i]:.3f}" if i % 2 == 0 else f"{mean[i]:.1f} ± {error[i]:.1f}" for i in range(len(mean))
        ]
        print(f"| {clients} | {slope} | {tau} | {replicates} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
