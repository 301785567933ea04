"""How far two fits of the same clients differ: another seed, and estimates times 1 + 1e-13.

    python benchmarks/populations/seeds.py

Prints a table: the 95% point and the largest difference of estimates, and of the ends of 90%
intervals, in posterior standard deviations of the client, and the CPU time of a fit.
"""

from __future__ import annotations

import time

import numpy as np
from populations import draw

from vaneb import VANEB, Reports

CELLS = [
    ("clusters", 200, 1), ("clusters", 200, 3), ("clusters", 1000, 3), ("sparse", 1000, 3),
    ("heavy", 200, 5), ("clusters", 300, 10), ("lowrank", 300, 10), ("sparse", 300, 10),
    ("normal", 50, 10), ("clusters", 200, 30),
]  # fmt: skip


def fitted(x: np.ndarray, se: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    reports = Reports(x, n=np.full(len(x), 10), standard_errors=se)
    start = time.process_time()
    made = VANEB(seed=seed).fit(reports).personalize(reports)
    ends = np.stack(made.interval(0.9))
    return made.mean, made.sd, ends, time.process_time() - start


def main() -> None:
    print("| population | K | d | what | mean, 95% | largest | ends, 95% | largest | CPU s |")
    print("|---|---:|---:|---|---:|---:|---:|---:|---:|")
    for name, clients, d in CELLS:
        one = draw(name, clients, d, "uniform", 7)
        mean, sd, ends, _ = fitted(one.estimates, one.standard_errors, 0)
        for what, x, seed in (("seed", one.estimates, 1), ("1e-13", one.estimates * (1 + 1e-13), 0)):
            other, _, other_ends, cpu = fitted(x, one.standard_errors, seed)
            away = np.abs(other - mean) / sd
            far = (np.abs(other_ends - ends) / sd).max(axis=0)
            print(
                f"| {name} | {clients} | {d} | {what} | {np.quantile(away, 0.95):.3f} | {away.max():.2f} | "
                f"{np.quantile(far, 0.95):.3f} | {far.max():.2f} | {cpu:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
