"""Does the fitted population explain what clients reported?  Probability integral transforms."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from vaneb.blocks import blocks
from vaneb.likelihood.base import Array
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.posterior import Posterior
from vaneb.reports import Reports
from vaneb.semidefinite import standard_errors

ROWS = 512


def probability_transforms(posterior: Posterior, reports: Reports | None, shown: tuple[int, ...]) -> Array:
    """F_ki(theta_hat_ki), the predicted distribution at each reported estimate, (K, p).

    F_ki(x) = sum_j w_j Phi((x - a_ji) / sqrt(Sigma_k(a_j)_ii / n_k + S_j,ii)): uniform if population and
    noise are right.  NaN where a client's data leave a parameter open.  An array without columns for clients
    that are seen by their exact likelihood: they reported no estimate whose distribution could be checked.
    """
    prior, index = posterior.prior, list(shown)
    estimates = posterior.likelihood.local_estimates()[:, index]
    own = np.zeros((1, len(index)))
    if prior.covariances is not None:
        own = np.diagonal(prior.covariances, axis1=1, axis2=2)[:, index]
    out = np.full(estimates.shape, np.nan)
    for rows in blocks(len(posterior), ROWS):
        if isinstance(posterior.likelihood, ConstantGaussian):
            errors = standard_errors(posterior.likelihood.local_precision()[rows])[:, None, index]
        elif reports is not None:
            errors = _errors_at(reports.take(rows), posterior.centres(rows))[:, :, index]
        else:
            return np.zeros((len(posterior), 0))
        z = (estimates[rows][:, None, :] - posterior.centres(rows)[:, :, index]) / np.sqrt(errors**2 + own)
        out[rows] = np.einsum("m,kmi->ki", prior.weights, ndtr(z))
        out[rows][~np.isfinite(errors).all(axis=1)] = np.nan
    return out


def _errors_at(reports: Reports, atoms: Array) -> Array:
    """Standard errors (K, m, d) of the estimates, had each atom (1 or K, m, d) been the truth."""
    unit = reports.covariance.precision(atoms)
    precision = unit * reports.n.reshape(-1, *(1,) * (unit.ndim - 1))
    flat = precision.reshape(-1, *precision.shape[2:])
    return standard_errors(flat).reshape(*precision.shape[:2], -1)
