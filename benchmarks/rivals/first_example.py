"""The README's example over 20 draws (it shows draw 0): own estimates, one Gaussian population, the default.

python benchmarks/rivals/first_example.py --draws 20
"""

from __future__ import annotations

import argparse

import numpy as np

import vaneb


def one_draw(seed: int) -> tuple[float, ...]:
    """Root mean squared errors of three estimates; share of 90% intervals that hold the truth."""
    rng = np.random.default_rng(seed)
    works = rng.random(200) < 0.25
    truth = np.where(works, 2.5, 0.0) + 0.15 * rng.standard_normal(200)
    se = rng.uniform(0.3, 1.0, 200)
    estimate = truth + se * rng.standard_normal(200)
    reports = vaneb.Reports(estimate, standard_errors=se)
    one_mean, post = (
        vaneb.VANEB(population=population).fit(reports).personalize(reports)
        for population in ("gaussian", "auto")
    )
    lower, upper = post.interval(0.9)
    return (
        *(
            float(np.sqrt(np.mean((values - truth) ** 2)))
            for values in (estimate, one_mean.mean[:, 0], post.mean[:, 0])
        ),
        float(np.mean((lower[:, 0] < truth) & (truth < upper[:, 0]))),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=20)
    found = np.array([one_draw(seed) for seed in range(parser.parse_args().draws)])
    errors = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    names = ("own", "one mean", "vaneb", "held")
    for name, mean, error in zip(names, found.mean(axis=0), errors, strict=True):
        print(f"{name:<10} {mean:.3f} ± {error:.3f}")
    print(f"vaneb below one mean in {np.sum(found[:, 2] < found[:, 1])} of {len(found)} draws")
