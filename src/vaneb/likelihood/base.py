"""All that a solver sees of the clients.

A solver never sees a client's data, report or covariance function.  It sees, for a block of clients,
the log-likelihood of some atoms, and enough of its derivatives to move an atom uphill.  Gaussian
reports are one implementation (``gaussian``), the exact likelihood of a client's own rows another
(``exact``); every solver, the certificate and the posterior work on either.

Letters: K clients, m atoms, d parameters; l_k(a) the log-likelihood of atom a for client k.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.semidefinite import standard_errors

if TYPE_CHECKING:
    from vaneb.likelihood.gaussian import ConstantGaussian

Array = NDArray[np.float64]
#: Two opposite corners, (d,) each.
Box = tuple[Array, Array]


class AtomSums(NamedTuple):
    """Sums over clients, at each of m atoms, of r_kj = exp(log_weight_k + l_k(a_j)) times something."""

    value: Array
    """sum_k r_kj, shape (m,)."""
    gradient: Array
    """sum_k r_kj s_k(a_j), s_k the gradient of l_k: the gradient of ``value``.  Shape (m, d)."""
    outer: Array | None
    """sum_k r_kj s_k s_k', shape (m, d, d); ``None`` when ``curvature=False`` was asked for."""
    information: Array
    """sum_k r_kj I_k(a_j), I_k positive semidefinite and close to minus the Hessian of l_k.

    Shape (m, d, d), or (m, d) where every client's is diagonal.

    So the Hessian of ``value`` is close to ``outer - information``.
    """

    def plus(self, other: AtomSums) -> AtomSums:
        """The sums over these clients and others."""
        outer = None if self.outer is None or other.outer is None else self.outer + other.outer
        information = self.information, other.information
        if self.information.ndim != other.information.ndim:
            information = as_matrices(self.information), as_matrices(other.information)
        return AtomSums(
            self.value + other.value, self.gradient + other.gradient, outer, information[0] + information[1]
        )


def as_matrices(information: Array) -> Array:
    """Diagonals (m, d) as matrices (m, d, d); matrices as they are."""
    if information.ndim == 3:
        return information
    return information[:, :, None] * np.eye(information.shape[1])


class Likelihood(Protocol):
    """K clients, as a solver sees them."""

    @property
    def is_gaussian(self) -> bool:
        """Whether ``expanded`` is the likelihood itself."""
        ...

    @property
    def is_report(self) -> bool:
        """Whether ``expanded`` is the client's report with its covariance at the point."""
        ...

    @property
    def n_clients(self) -> int:
        """K."""
        ...

    @property
    def dimension(self) -> int:
        """d."""
        ...

    def log_likelihood(self, atoms: Array) -> Array:
        """l_k(a_j) with all constants, shape (K, m), for ``atoms`` of shape (m, d)."""
        ...

    def at(self, points: Array) -> Array:
        """l_k at each client's own point, (K,), for ``points`` of shape (K, d)."""
        ...

    def expanded(self, points: Array | None) -> ConstantGaussian:
        """The Gaussian that has the value, slope and curvature of l_k at each client's own point (K, d).

        ``None`` is for the clients' own estimates.
        """
        ...

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> AtomSums:
        """Weighted sums over clients at each atom; ``log_weights`` has shape (K,).

        ``frozen``: leave the dependence of a client's covariance on theta out of the gradient, as the
        paper's pseudo-EM does.  Likelihoods without a covariance function ignore it.
        """
        ...

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        """Some of the clients, in the order given; views, not copies, for a slice."""
        ...

    def peak(self) -> Array:
        """The largest value l_k takes, or a value close to it: l_k at the client's own estimate, (K,)."""
        ...

    def local_estimates(self) -> Array:
        """Each client's own estimate, shape (K, d).  Where it has none (flat or diverging likelihood),
        the point that a weak penalty picks."""
        ...

    def local_precision(self) -> Array:
        """Precision of each client's estimate at that estimate; may be singular.

        Shape (K, d, d), or (K, d) where every client's is diagonal.
        """
        ...

    def starts(self) -> Array:
        """One point for each client, (K, d), from which to look for the atom that it would like best.

        Its own estimate, completed where it knows nothing, unless a likelihood knows better.
        """
        from vaneb.likelihood.starts import completed_estimates

        return completed_estimates(self)

    def region(self, starts: Array) -> Box | None:
        """The box that atoms may not leave, ``None`` where they may go everywhere.

        Six standard errors around the starts: a variance function moves maxima by a few.  Farther out it may
        make D large where no client is informative.
        """
        margin = 6 * standard_errors(self.local_precision())
        return (starts - margin).min(axis=0), (starts + margin).max(axis=0)

    def bounds_in_cells(
        self, log_weights: Array, centres: Array, halves: Array
    ) -> tuple[Array, Array] | None:
        """sum_k exp(log_weight_k + l_k) at the centres (c, d) of boxes with half sides (c, d), and
        numbers that it exceeds nowhere in them; ``None`` where no bound is known."""
        return None

    def expectation(self, atoms: Array, log_prior: Array) -> tuple[Array, AtomSums]:
        """log f_k = log sum_j exp(log_prior_j + l_k(a_j)), (K,), and the frozen ``ascent`` without curvature
        for log_weights = -log K - log f_k: r_kj times the atom's weight is k's responsibility over K."""
        density = log_mixture(self, atoms, log_prior)
        over = -np.log(self.n_clients) - density
        return density, self.ascent(atoms, over, frozen=True, curvature=False)


def log_of(weights: Array) -> Array:
    """Logarithms of weights, finite also where one is zero."""
    return np.log(np.maximum(weights, 1e-300))


def log_mixture(likelihood: Likelihood, atoms: Array, log_prior: Array) -> Array:
    """log f_k = log sum_j exp(log_prior_j + l_k(a_j)), (K,), block by block."""

    def block(rows: slice) -> Array:
        terms = likelihood.take(rows).log_likelihood(atoms)
        terms += log_prior
        top = terms.max(axis=1)
        terms -= top[:, None]
        return np.log(np.exp(terms, out=terms).sum(axis=1)) + top

    return np.concatenate(list(map_blocks(block, likelihood.n_clients)))
