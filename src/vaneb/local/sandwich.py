"""Sandwich covariance of local estimates: Sigma_k = A_k^{-1} B_k A_k^{-1}.

    A_k = mean Hessian of a row's loss,    B_k = mean of s_i s_i',  s_i the gradient of row i's loss,

both at the client's estimate.  It is what the noise of an M-estimator is whether or not the loss is a
likelihood.  What is reported is the unit precision A_k B_k^{-1} A_k.

A client with few rows estimates B_k badly, and in the direction of its smallest eigenvalue always too
small, which would make the client look surer than it is.  So B_k is corrected for the d degrees of
freedom that the estimate used up, and pooled with what the other clients say:

    B_k  <-  (n_k [n_k / (n_k - d)] B_k + prior_rows c A_k) / (n_k + prior_rows),

with c the average of trace(A_k^{-1} B_k) / d over clients (1 for a likelihood that is right, the
dispersion for one that is right up to it).  Clients with n_k <= d use c A_k alone.
"""

from __future__ import annotations

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.local.client_sums import outer_sums
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.local.fit import NULL_TOLERANCE, LocalFits
from vaneb.local.m_estimator import MEstimator
from vaneb.local.objective import Array


def row_scores(rows: GroupedRows, model: Family | MEstimator, theta: Array) -> Array:
    """Gradient of each row's loss at its client's parameter, ``theta`` (K, d): shape (N, d)."""
    if isinstance(model, MEstimator):
        return model.scores(rows, theta)
    index = model.index(theta[rows.client_of_row], rows.design, rows.offset)
    _, first, _ = model.derivatives(index, rows.response)
    first = first * rows.weight[:, None]
    in_coefficients = (first[:, :, None] * rows.design[:, None, :]).reshape(len(first), -1)
    return in_coefficients if not model.index_map.size else in_coefficients @ model.index_map


def mean_hessian(rows: GroupedRows, model: Family | MEstimator, fits: LocalFits) -> Array:
    """A_k, shape (K, d, d).  Huber's own second derivative, not the weight that the solver uses."""
    if isinstance(model, Family):
        index = model.index(fits.theta[rows.client_of_row], rows.design, rows.offset)
        own = model.hessian_weight(index, rows.response)
        if own is not None:
            scaled = rows.design * np.sqrt(own * rows.weight)[:, None]
            return outer_sums(scaled, rows.starts) / fits.n[:, None, None]
    return fits.hessian / fits.n[:, None, None]


def sandwich_precision(
    rows: GroupedRows, model: Family | MEstimator, fits: LocalFits, *, prior_rows: float | None = None
) -> Array:
    """Unit precisions A_k B_k^{-1} A_k, shape (K, d, d); singular where A_k is.

    ``prior_rows`` is the weight of what all clients say of B_k, in rows; d by default.
    """
    n, d = fits.n[:, None, None].astype(np.float64), fits.theta.shape[1]
    prior_rows = float(d) if prior_rows is None else prior_rows
    if not prior_rows >= 0:
        raise InvalidOption(f"prior_rows must not be negative; it is {prior_rows}")
    bread = mean_hessian(rows, model, fits)
    meat = outer_sums(row_scores(rows, model, fits.theta), rows.starts) / n
    usable = fits.exists & (fits.n > d)
    meat = meat * n / np.maximum(n - d, 1)
    if usable.any():
        ratio = np.linalg.pinv(bread[usable], rcond=NULL_TOLERANCE, hermitian=True) @ meat[usable]
        scale = float(np.average(np.trace(ratio, axis1=1, axis2=2) / d, weights=fits.n[usable]))
    else:
        scale = 1.0
    own = np.where(usable[:, None, None], n, 0.0)
    total = own + prior_rows
    if (total == 0).any():
        raise InvalidOption("prior_rows=0: a client with no more rows than parameters has no sandwich")
    blended = (own * meat + prior_rows * scale * bread) / total
    precision = bread @ np.linalg.pinv(blended, rcond=NULL_TOLERANCE, hermitian=True) @ bread
    return (precision + precision.transpose(0, 2, 1)) / 2
