"""Do estimates scatter as their standard errors say?

If theta_k does not depend on the standard error s_k, the squares of estimates about their mean have

    E (theta_hat_k - m)^2 = tau^2 + kappa^2 s_k^2,

and kappa is 1 where standard errors are right.  Where s_k differs between clients, tau and kappa can be told
apart by least squares; where all are nearly the same, only kappa^2 <= (variance of the estimates) / s^2 can.
"""

from __future__ import annotations

import math

import numpy as np

from vaneb.likelihood.seam import Array

#: A factor is told where it is this many standard errors from 1, and this far from it.
SURE, FACTOR = 5.0, 1.25
#: Fewest clients to look at.
FEWEST = 40


def scatter_factor(estimates: Array, errors: Array) -> tuple[float, float]:
    """kappa^2 and its standard error, for one parameter of K clients, by weighted least squares."""
    s2 = errors**2
    middle, kappa2, tau2 = np.median(estimates), 1.0, 0.0
    variance = np.full(len(s2), np.nan)
    design = np.stack([np.ones_like(s2), s2], axis=1)
    for _ in range(10):
        weight = 1 / np.maximum(tau2 + kappa2 * s2, 1e-12 * s2.max())
        middle = np.average(estimates, weights=weight)
        square = (estimates - middle) ** 2
        information = design.T @ (design * weight[:, None] ** 2)
        inverse = np.linalg.pinv(information)
        tau2, kappa2 = inverse @ (design.T @ (weight**2 * square))
        # A variance is not negative; what is left is told by the other.
        if tau2 < 0:
            tau2, kappa2 = 0.0, float(np.average(square / s2))
        kappa2 = max(float(kappa2), 0.0)
        variance = square - tau2 - kappa2 * s2
    influence = (inverse @ design.T) * weight**2 * variance  # robust against tails that are not Gaussian
    if tau2 == 0:
        return kappa2, float(np.std(square / s2) / math.sqrt(len(s2)))
    return kappa2, float(np.sqrt((influence[1] ** 2).sum()))


def noise_notes(estimates: Array, errors: Array, names: tuple[str, ...]) -> tuple[str, ...]:
    """What to say of standard errors (K, d) that do not fit the scatter of the estimates; () for most."""
    notes = []
    for i, name in enumerate(names):
        known = np.isfinite(errors[:, i]) & (errors[:, i] > 0)
        if known.sum() < FEWEST:
            continue
        kappa2, error = scatter_factor(estimates[known, i], errors[known, i])
        factor = math.sqrt(kappa2)
        # an error of kappa^2 grows with kappa^2, hence the logarithm above 1
        away = kappa2 * math.log(kappa2) if kappa2 > 1 else 1 - kappa2
        if max(factor, 1 / max(factor, 1e-6)) > FACTOR and away > SURE * error:
            size = "small" if factor > 1 else "large"
            notes.append(
                f"{name}: estimates scatter as if standard errors were {factor:.2g} times as large as given. "
                f"If they are too {size}, all results are; or clients with large errors differ in other ways"
            )
    return tuple(notes)
