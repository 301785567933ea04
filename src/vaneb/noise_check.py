"""Do estimates scatter as their standard errors say?

If theta_k does not depend on the standard error s_k, the squares of estimates about their mean have

    E (theta_hat_k - m)^2 = tau^2 + kappa^2 s_k^2,

and kappa is 1 where standard errors are right.  Where s_k differs between clients, tau and kappa can be told
apart by least squares; where all are nearly the same, only kappa^2 <= (variance of the estimates) / s^2 is
known, which says something where it is below 1.

And do the estimates themselves depend on their standard errors?  Then sure and unsure clients do not come
from one population, and an unsure client is pulled to where the sure ones are.  Egger's regression of
theta_hat_k, here on log s_k, tells.
"""

from __future__ import annotations

import math

import numpy as np

from vaneb.likelihood.base import Array

#: A factor is told where it is this many standard errors from 1, and this far from it.
SURE, FACTOR = 5.0, 1.25
#: Standard errors by which kappa^2 itself must be above 1.
ABOVE = 2.5
#: Standard errors by which a slope on log s_k must differ from zero.
LEANING = 3.5
#: Fewest clients to look at.
FEWEST = 40
#: Standard errors that differ by less than this share are taken for equal.
ALIKE = 0.01


def scatter_factor(estimates: Array, errors: Array) -> tuple[float, float]:
    """kappa^2 and its standard error, for one parameter of K clients, by weighted least squares.

    Where the line would begin below zero, kappa^2 at tau = 0 is an upper bound, and is told if it is below 1.
    """
    s2 = errors**2
    ceiling = (estimates - np.average(estimates, weights=1 / s2)) ** 2 / s2
    bound = float(ceiling.mean()), float(np.std(ceiling) / math.sqrt(len(s2)))
    if np.ptp(errors) < ALIKE * errors.max():
        return min(bound[0], 1.0), bound[1]
    tau2, kappa2 = 0.0, 1.0
    design = np.stack([np.ones_like(s2), s2], axis=1)
    for _ in range(10):
        weight = 1 / np.maximum(max(tau2, 0.0) + max(kappa2, 0.0) * s2, 1e-12 * s2.max())
        square = (estimates - np.average(estimates, weights=weight)) ** 2
        inverse = np.linalg.inv(design.T @ (design * weight[:, None] ** 2))
        tau2, kappa2 = inverse @ (design.T @ (weight**2 * square))
        if tau2 < 0 and bound[0] < 1:
            return bound
    influence = (inverse @ design.T) * weight**2 * (square - design @ [tau2, kappa2])  # robust against tails
    return max(float(kappa2), 0.0), float(np.sqrt((influence[1] ** 2).sum()))


def leaning(estimates: Array, errors: Array) -> tuple[float, float]:
    """The slope of K estimates on the logarithm of their standard errors, and its standard error (HC3)."""
    s2, log_s = errors**2, np.log(errors)
    design = np.stack([np.ones_like(s2), log_s - log_s.mean()], axis=1)
    least = 1e-6 * float(np.median(s2))  # no client counts as much as a million others
    tau2 = max(least, float(np.median(np.abs(estimates - np.median(estimates)))) ** 2)
    for _ in range(10):
        weight = 1 / (tau2 + s2)
        inverse = np.linalg.inv(design.T @ (design * weight[:, None]))
        coefficients = inverse @ (design.T @ (weight * estimates))
        rest = estimates - design @ coefficients
        tau2 = max(least, float(np.average(rest**2 - s2, weights=weight**2)))
    leverage = np.einsum("ki,ij,kj->k", design, inverse, design) * weight
    influence = (inverse @ design.T)[1] * weight * rest / np.maximum(1 - leverage, 1e-9)
    return float(coefficients[1]), float(np.sqrt((influence**2).sum()))


def noise_notes(estimates: Array, errors: Array, names: tuple[str, ...]) -> tuple[str, ...]:
    """What to say of standard errors (K, d) that do not fit the estimates; () for most."""
    notes = []
    for i, name in enumerate(names):
        known = np.isfinite(errors[:, i]) & (errors[:, i] > 0)
        if known.sum() < FEWEST:
            continue
        kappa2, error = scatter_factor(estimates[known, i], errors[known, i])
        factor = math.sqrt(kappa2)
        # An error of kappa^2 grows with kappa^2, unless it comes from tau: hence two rules above 1.
        if kappa2 > 1:
            sure = kappa2 * math.log(kappa2) > SURE * error and kappa2 - 1 > ABOVE * error
        else:
            sure = 1 - kappa2 > SURE * error
        if sure and max(factor, 1 / max(factor, 1e-6)) > FACTOR:
            size = "small" if factor > 1 else "large"
            notes.append(
                f"{name}: estimates scatter as if standard errors were {factor:.2g} times as large as given. "
                f"If they are too {size}, all results are; or clients with large errors differ in other ways"
            )
        if np.ptp(errors[known, i]) < ALIKE * errors[known, i].max():
            continue
        slope, error = leaning(estimates[known, i], errors[known, i])
        if abs(slope) > LEANING * error:
            notes.append(
                f"{name}: estimates with larger standard errors are {'larger' if slope > 0 else 'smaller'}, "
                "so unsure clients are pulled towards sure ones that differ from them. Give the standard "
                "error as a covariate of the clients, or, if it was computed from the estimate as for a "
                "rate, name the variance function"
            )
    return tuple(notes)
