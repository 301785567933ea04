"""Eight schools by vaneb and by a full Bayes computation, for the page beside metafor.

    python benchmarks/rivals/eight_schools.py

metafor's own column comes from eight_schools.R.  Full Bayes: theta_k ~ N(mu, tau^2), mu and tau with flat
priors (Rubin 1981; Gelman et al., Bayesian Data Analysis); mu integrated out, tau on a grid.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

import vaneb

EFFECT = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERROR = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
TAU = np.linspace(0.005, 150.0, 30_000)

reports = vaneb.Reports(EFFECT, standard_errors=ERROR, ids=list("ABCDEFGH"), names=["effect"])
post = vaneb.VANEB().fit(reports).personalize(reports)

total = TAU[:, None] ** 2 + ERROR**2
precision = (1 / total).sum(1)
mu = (EFFECT / total).sum(1) / precision
log_p = -0.5 * (np.log(total).sum(1) + np.log(precision) + ((EFFECT - mu[:, None]) ** 2 / total).sum(1))
weight = np.exp(log_p - log_p.max())
weight /= weight.sum()
share = TAU[:, None] ** 2 / total
mean = share * EFFECT + (1 - share) * mu[:, None]
sd = np.sqrt(share * ERROR**2 + (1 - share) ** 2 / precision[:, None])


def quantile(k: int, p: float) -> float:
    return brentq(lambda x: weight @ ndtr((x - mean[:, k]) / sd[:, k]) - p, -100, 150)


lower, upper = post.interval(0.9)
for k, school in enumerate("ABCDEFGH"):
    full = f"{weight @ mean[:, k]:.1f} ({quantile(k, 0.05):.1f}, {quantile(k, 0.95):.1f})"
    found = f"{post.mean[k, 0]:.1f} ({lower[k, 0]:.1f}, {upper[k, 0]:.1f})"
    sys.stdout.write(f"| {school} | {EFFECT[k]:.0f} ± {ERROR[k]:.0f} | {full} | {found} |\n")
