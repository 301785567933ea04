"""Information of generalised linear models from the covariates' mean and covariance only.

If a client's covariates are close to z ~ N(mu, S), the unit information needs no rows: the client
sends mu (d numbers) and S (d x d) and the server computes the expectation.  A coordinate whose row of
S is zero and whose mean is one is an intercept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from vaneb.covariance import _checks
from vaneb.covariance.base import Array, FullCovariance, symmetric
from vaneb.covariance.empirical import check_projections, symmetric_layout
from vaneb.errors import InvalidReport

#: The exponent of the Poisson information is clipped here: e^200 is 7e86, so that a precision, its
#: square and its determinant stay finite.
EXPONENT_LIMIT = 200.0
#: (client, point) pairs whose quadrature moments are held at once.
PAIRS_AT_ONCE = 4096
#: A principal axis of the logits with less than this share of their largest variance is not integrated.
NEGLIGIBLE = 1e-14


@dataclass(frozen=True, eq=False)
class _Moments(FullCovariance):
    """What the families share: mu_k (K, d) and S_k (K, d, d), positive semidefinite."""

    per_client: ClassVar[tuple[str, ...]] = ("mean", "covariance")
    mean: Array
    covariance: Array

    def __post_init__(self) -> None:
        mean = _checks.finite_array(self.mean, "mean", (None, None))
        k, d = mean.shape
        covariance = _checks.finite_array(self.covariance, "covariance", (k, d, d))
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", _checks.semidefinite(covariance, "covariance"))


@dataclass(frozen=True, eq=False)
class MomentPoisson(_Moments):
    """Poisson regression with log link, in closed form.

        Sigma(theta)^{-1} = E[e^{z'theta} z z'] = exp(mu'theta + theta'S theta / 2) [S + v v'],
        v = mu + S theta.

    Parameters
    ----------
    mean : array (K, d)
        mu_k.
    covariance : array (K, d, d)
        S_k, positive semidefinite.
    """

    family: ClassVar[str | None] = "moment-poisson"
    starts_at_estimates: ClassVar[bool] = True

    def precision(self, points: Array) -> Array:
        return self._filled(points, 2)

    def precision_gradient(self, points: Array) -> Array:
        """e^c [v_r (S_ab + v_a v_b) + S_ar v_b + v_a S_br]; e^c is constant where it is clipped."""
        return self._filled(points, 3)

    def _filled(self, points: Array, order: int) -> Array:
        from vaneb.covariance._moment_kernels import moment_poisson

        shape, d = (self.n_clients, points.shape[1]), self.dimension
        out = np.empty((*shape, d, d ** (order - 1)))
        points = np.ascontiguousarray(points, dtype=np.float64)
        moment_poisson(self.mean, self.covariance, points, EXPONENT_LIMIT, order == 3, out)
        return out.reshape(*shape, *[d] * order)


@dataclass(frozen=True, eq=False)
class MomentSoftmax(_Moments):
    """Multinomial logit whose C classes share theta through projections B_c, and logistic regression.

    The class probabilities depend on z only through the r = min(C - 1, d) dimensional Gaussian vector
    of logit differences zeta = A z, A_c = theta'(B_c - B_C), and z given zeta is Gaussian with a mean
    linear in zeta and a constant covariance R.  With zeta = A mu + L t, t ~ N(0, I_r), L L' = A S A',

        z | t ~ N(mu + F t, R),   F = S A' L'^+,   R = S - F F',
        Sigma(theta)^{-1} = sum_{c,b < C} D_c E[W_cb(t) ((mu + F t)(mu + F t)' + R)] D_b',

    D_c = B_c - B_C, W = diag(p) - p p'.  So the expectation over d covariates becomes moments of W up to
    order two under an r-dimensional Gaussian.  For C = 2 this is Stein's identity for logistic
    regression, with one-dimensional integrals.

    The integrals are taken by the trapezoid rule, which converges exponentially for these functions
    and, unlike Gauss-Hermite nodes, follows logits of large variance (``_quadrature.RULES`` has the
    accuracy).  Beyond a standard deviation of 20 of a logit difference the nodes become too sparse and
    digits are lost; the value stays positive semidefinite.  More than four classes in more than three
    dimensions are refused, since they take too long; use ``EmpiricalSoftmax`` there.

    Parameters
    ----------
    mean : array (K, d)
    covariance : array (K, d, d)
    projections : array (C, d, d)
        B_c, the same for all clients.
    """

    family: ClassVar[str | None] = "moment-softmax"
    projections: Array

    def __post_init__(self) -> None:
        from vaneb.covariance._quadrature import MOST_AXES

        super().__post_init__()
        projections = check_projections(self.projections, self.dimension)
        if min(projections.shape[0] - 1, self.dimension) > MOST_AXES:
            raise InvalidReport(
                f"projections: {projections.shape[0]} classes in {self.dimension} dimensions need "
                f"quadrature in more than {MOST_AXES} dimensions; use the empirical family"
            )
        object.__setattr__(self, "projections", projections)

    @classmethod
    def logistic(cls, mean: Array, covariance: Array) -> Self:
        """E[pi (1 - pi) z z']: two classes with B_1 = I and B_2 = 0."""
        identity = np.eye(np.shape(mean)[-1])
        return cls(mean, covariance, np.stack([identity, np.zeros_like(identity)]))

    def precision(self, points: Array) -> Array:
        return self._in_blocks(points, 2)

    def precision_gradient(self, points: Array) -> Array:
        return self._in_blocks(points, 3)

    def _in_blocks(self, points: Array, order: int) -> Array:
        k, m, d = self.n_clients, points.shape[1], self.dimension
        out = np.empty((k, m) + (d,) * order)
        clients = max(1, PAIRS_AT_ONCE // max(1, m))
        for start in range(0, k, clients):
            block = slice(start, start + clients)
            own = points if points.shape[0] == 1 else points[block]
            out[block] = self._expectation(self.mean[block], self.covariance[block], own, order)
        return out

    def _expectation(self, mean: Array, covariance: Array, points: Array, order: int) -> Array:
        """The formula of the class docstring (order 2), or with third cumulants its gradient (order 3)."""
        differences = self.projections[:-1] - self.projections[-1]
        a = np.einsum("cab,kma->kmcb", differences, points)
        s_a = np.einsum("kab,kmcb->kmac", covariance, a)
        variances, axes = np.linalg.eigh(a @ s_a)
        # the r largest variances, largest first: the kernel runs fastest along the first axis
        r = min(differences.shape[0], self.dimension)
        variances, axes = variances[..., : -r - 1 : -1], axes[..., : -r - 1 : -1]
        kept = variances > NEGLIGIBLE * variances[..., :1]
        deviations = np.sqrt(np.where(kept, variances, 0.0))
        f = (s_a @ axes) * np.where(kept, 1.0 / np.where(kept, deviations, 1.0), 0.0)[..., None, :]
        moments = _softmax_moments(a @ mean[:, None, :, None], axes * deviations[..., None, :], order)
        rest = covariance[:, None] - f @ np.swapaxes(f, -1, -2)
        g = np.concatenate([np.broadcast_to(mean[:, None, :, None], (*f.shape[:-1], 1)), f], axis=-1)
        # B_c z given t has the loadings h_c = D_c (mu, F) on (1, t)
        h = np.einsum("cab,kmbi->kmcai", differences, g)
        spread = np.einsum("cax,kmxy,eby->kmcaeb", differences, rest, differences)
        if order == 2:
            out = np.einsum("kmceij,kmcai,kmebj->kmab", moments, h, h, optimize=True)
            out += np.einsum("kmce,kmcaeb->kmab", moments[..., 0, 0], spread)
            return symmetric(out)
        out = np.einsum("kmcefijl,kmcai,kmebj,kmfrl->kmabr", moments, h, h, h, optimize=True)
        cross = np.einsum("kmcefl,kmfrl,kmcaeb->kmabr", moments[..., 0, 0, :], h, spread, optimize=True)
        return out + cross + np.einsum("kmabr->kmarb", cross) + np.einsum("kmabr->kmrba", cross)


def _softmax_moments(mean: Array, loading: Array, order: int) -> Array:
    """E[kappa_{c..}(t) (1, t)_i ... ] as a full tensor (K, m, C-1, ..., C-1, 1+r, ..., 1+r).

    Parameters
    ----------
    mean : array (K, m, C - 1, 1)
        Mean of the logits relative to the last class.
    loading : array (K, m, C - 1, r)
        Their loadings on t, r <= 3.
    """
    from vaneb.covariance import _quadrature as quadrature

    k, m, c, r = loading.shape
    padded = np.zeros((k * m, c, quadrature.MOST_AXES))
    padded[..., :r] = loading.reshape(k * m, c, r)
    # largest change of a difference of two logits, the last one being zero, per unit of each axis
    rate = np.maximum(padded.max(axis=1), 0.0) - np.minimum(padded.min(axis=1), 0.0)
    widest, product, reach, most_nodes = quadrature.RULES[r]
    step = product / np.maximum(rate, product / widest)
    step = np.maximum(step, reach / most_nodes)
    nodes = np.where(rate > 0, np.ceil(reach / step), 0).astype(np.intp)
    classes, class_scatter = symmetric_layout(c, order)
    monomials, monomial_scatter = symmetric_layout(1 + r, order)
    out = np.empty((k * m, len(classes), len(monomials)))
    means = np.ascontiguousarray(mean.reshape(k * m, c))
    quadrature.softmax_quadrature(means, padded, step, nodes, reach, classes, monomials, out)
    full = out[:, class_scatter[:, None], monomial_scatter]
    return full.reshape(k, m, *(c,) * order, *(1 + r,) * order)
