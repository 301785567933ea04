"""Clients as the sampler sees them: a population goes in, sums over clients come out.

Gaussian clients are drawn afresh in every sweep, and nothing is kept of them.  Clients whose likelihood is
not Gaussian are seen through the Gaussian that touches it at a likely theta.  What is drawn under that view
is a proposal, accepted with probability min(1, ratio' / ratio), where ratio is the likelihood over the view:
so the draws are exact.  These clients keep their theta from sweep to sweep.

Thetas are in the units of ``units.Units``.  Random numbers belong to a client by its key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks, sum_blocks
from vaneb.likelihood.base import Array, Likelihood, as_matrices, log_of
from vaneb.likelihood.expansion import view_under
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.population import sweep as kernels
from vaneb.population.lanes import LANES, Lanes, in_a_row, lanes_of, side_by_side
from vaneb.population.mixtures import Mixture
from vaneb.population.sweep import ComponentSums
from vaneb.population.units import Units, units_of, wide_view

#: Blocks of lanes in one piece of work for a thread.
BLOCK_LANES = 128
#: Variance that is added to clients' noise while the population is learnt, in that of the population.
SOFT = 1e-4


class Coordinates(NamedTuple):
    """Which coordinates of theta differ from client to client, and which all clients share."""

    varying: NDArray[np.intp]
    shared: NDArray[np.intp]

    def widened(self, basis: Array) -> Array:
        """A basis of the varying coordinates as one of all; an empty one as it is."""
        if not len(basis):
            return basis
        wide = np.eye(len(self.varying) + len(self.shared))
        wide[np.ix_(self.varying, self.varying)] = basis
        return wide


class Clients(Protocol):
    """What a chain needs of the clients; ``few`` is a slice of blocks of LANES clients."""

    units: Units
    lanes: Lanes
    cost: float
    """Of a client in a sweep, in that of a Gaussian one."""

    @property
    def acceptance(self) -> float:
        """Share of proposals that clients accepted."""
        ...

    def sweep(
        self, population: Mixture, number: int, few: slice, rng: np.random.Generator, basis: Array
    ) -> tuple[Mixture, ComponentSums]:
        """Draw all clients given the population; it comes back with new values of shared coordinates.

        The sums are in the coordinates of ``basis`` (r, r), unless that is empty.
        """
        ...

    def follow(
        self, old: Mixture, centres: Array, stretch: Array, few: slice, rng: np.random.Generator
    ) -> bool:
        """Move clients with their components' new centres (J, D) and stretches (J, r, r), all or none."""
        ...

    def expand(self, mean: Array, covariance: Array) -> None:
        """See the clients anew, from where a population with these moments would have them."""
        ...


def clients_of(likelihood: Likelihood, coordinates: Coordinates, seed: int) -> Clients:
    """The clients behind ``likelihood``, in their order; each gets a key from ``seed`` and its place."""
    n = likelihood.n_clients
    keys = np.zeros(-(-n // LANES) * LANES, dtype=np.uint64)
    keys[:n] = np.random.default_rng([seed, 1]).integers(0, 2**63, n).astype(np.uint64)
    kind = GaussianClients if likelihood.is_gaussian else OtherClients
    return kind(likelihood, coordinates, keys.reshape(-1, LANES))


class GaussianClients:
    """Clients that report an estimate and its precision."""

    acceptance: float = 1.0
    cost = 1.0

    def __init__(self, likelihood: Likelihood, coordinates: Coordinates, keys: NDArray[np.uint64]) -> None:
        view = likelihood.expanded(None)
        self.coordinates, self.keys, self.units = coordinates, keys, units_of(view)
        precision = _softened(self.units.precisions(view.base_precision))
        self.lanes = lanes_of(self.units.estimates(view.estimates), precision)

    def sweep(
        self, population: Mixture, number: int, few: slice, rng: np.random.Generator, basis: Array
    ) -> tuple[Mixture, ComponentSums]:
        varying, shared = self.coordinates
        if len(shared):
            total, right = self._map(kernels.sweep_shared, population, 2 * number + 1, few, shared)
            centres = population.centres.copy()
            centres[:, shared] += gaussian(rng, total, right)
            population = population._replace(centres=centres)
        wide = self.coordinates.widened(basis)
        sums = self._map(kernels.sweep, population, 2 * number, few, varying, wide)
        return population, ComponentSums(*sums)

    def _map(
        self,
        kernel: Callable[..., tuple[Array, ...]],
        population: Mixture,
        number: int,
        few: slice,
        *which: NDArray,
    ) -> tuple[Array, ...]:
        (x, precision, n), keys = self.lanes.some(few), np.ascontiguousarray(self.keys[few])
        logs = log_of(population.weights)
        return added(
            lambda at, m: kernel(
                m, x[at], precision[at], keys[at], number, logs, population.centres, population.roots, *which
            ),
            n,
        )

    def follow(
        self, old: Mixture, centres: Array, stretch: Array, few: slice, rng: np.random.Generator
    ) -> bool:
        return True

    def expand(self, mean: Array, covariance: Array) -> None:
        pass


class OtherClients:
    """Clients whose likelihood is not Gaussian."""

    cost = 6.0

    def __init__(self, likelihood: Likelihood, coordinates: Coordinates, keys: NDArray[np.uint64]) -> None:
        self.likelihood, self.coordinates, self.keys = likelihood, coordinates, keys
        self.accepted, self.proposed = 0, 0
        view = wide_view(likelihood)
        self.units = units_of(view)
        self._see(view)

    @property
    def acceptance(self) -> float:
        return self.accepted / max(self.proposed, 1)

    def _see(self, view: ConstantGaussian) -> None:
        self.view = view
        self.lanes = lanes_of(
            self.units.estimates(view.estimates), self.units.precisions(view.base_precision)
        )
        self.theta = np.zeros(view.estimates.shape)
        self.log_ratio = np.full(len(self.theta), -np.inf)
        self.component = np.zeros(self.keys.shape, dtype=np.int64)

    def expand(self, mean: Array, covariance: Array) -> None:
        self._see(view_under(self.likelihood, mean, covariance))

    def sweep(
        self, population: Mixture, number: int, few: slice, rng: np.random.Generator, basis: Array
    ) -> tuple[Mixture, ComponentSums]:
        theta = self._draw(population, number, few)
        varying, shared = self.coordinates
        if len(shared):
            population, theta = self._draw_shared(population, theta, few, rng)
        (x, precision, n), component = self.lanes.some(few), np.ascontiguousarray(self.component[few])
        wide = self.coordinates.widened(basis)
        sums = added(
            lambda at, m: kernels.add_up(
                m, x[at], precision[at], component[at], theta[at], varying, population.centres, wide
            ),
            n,
        )
        return population, ComponentSums(*sums)

    def _draw(self, population: Mixture, number: int, few: slice) -> Array:
        """Thetas (B, D, LANES) of some of the clients; leaves their components.

        What is drawn under the view is a proposal.  A client that refuses it keeps its theta and draws a
        component for it.
        """
        (x, precision, n), keys = self.lanes.some(few), np.ascontiguousarray(self.keys[few])
        component = np.empty(keys.shape, dtype=np.int64)
        logs, theta = log_of(population.weights), np.empty(x.shape)

        def block(part: slice) -> None:
            kernels.draw_clients(
                x[part], precision[part], keys[part], number, logs, population.centres, population.roots,
                component[part], theta[part],
            )  # fmt: skip

        list(map_blocks(block, len(x), BLOCK_LANES))
        rows = self._rows(few)
        proposed = in_a_row(theta, n)
        log_ratio, old = self._ratio(proposed, rows), self.log_ratio[rows]
        chance = np.empty(keys.shape)
        kernels.accept_chances(keys, number, chance)
        chance = chance.ravel()[:n]
        with np.errstate(invalid="ignore"):
            stay = ~((np.log(chance) < log_ratio - old) | ~np.isfinite(old))
        self.accepted, self.proposed = self.accepted + int((~stay).sum()), self.proposed + n
        log_ratio[stay], proposed[stay] = old[stay], self.theta[rows][stay]
        self.log_ratio[rows], self.theta[rows] = log_ratio, proposed
        if stay.any():
            component.flat[np.flatnonzero(stay)] = _components_of(
                proposed[stay], population, self.coordinates.varying, chance[stay]
            )
        self.component[few] = component
        return side_by_side(proposed)

    def _draw_shared(
        self, population: Mixture, theta: Array, few: slice, rng: np.random.Generator
    ) -> tuple[Mixture, Array]:
        """Propose new values of the coordinates that all clients share; all accept them, or none."""
        shared, scale, rows = self.coordinates.shared, self.units.scale, self._rows(few)
        likelihood, here = self._some(rows), self.theta[rows]

        def slopes(points: Array) -> tuple[float, Array, Array]:
            """Log-likelihood, and the information and pull in the shared coordinates at some points."""
            view = likelihood.expanded(self.units.centre + scale * points)
            away = (view.estimates - self.units.centre) / scale - points
            information = as_matrices(view.base_precision) * scale[:, None] * scale
            pull = np.einsum("kij,kj->i", information, away)[shared]
            height = float(view.at(self.units.centre + scale * points).sum())
            return height, information.sum(axis=0)[np.ix_(shared, shared)], pull

        before, information, pull = slopes(here)
        step = gaussian(rng, information, pull)
        there = here.copy()
        there[:, shared] += step
        after, information_there, pull_there = slopes(there)
        log_chance = after - before
        log_chance += _log_density(-step, information_there, pull_there)
        log_chance -= _log_density(step, information, pull)
        if not (np.isfinite(log_chance) and np.log(rng.random()) < log_chance):
            return population, theta
        self.theta[rows], self.log_ratio[rows] = there, self._ratio(there, rows)
        centres = population.centres.copy()
        centres[:, shared] = there[0, shared]
        return population._replace(centres=centres), side_by_side(there)

    def follow(
        self, old: Mixture, centres: Array, stretch: Array, few: slice, rng: np.random.Generator
    ) -> bool:
        rows, varying = self._rows(few), self.coordinates.varying
        mine = self.component[few].ravel()[: len(rows)]
        rank = np.empty(mine.max() + 1, dtype=np.int64)
        rank[np.argsort(-np.bincount(mine), kind="stable")] = np.arange(len(rank))
        mine, here = rank[mine], self.theta[rows]  # components are now in the order of their size
        there = here.copy()
        away = here[:, varying] - old.centres[mine][:, varying]
        there[:, varying] = centres[mine][:, varying] + np.einsum("kia,ka->ki", stretch[mine], away)
        log_ratio = self._ratio(there, rows)
        change = float((log_ratio - self.log_ratio[rows]).sum())
        if not (np.isfinite(change) and np.log(rng.random()) < change):
            return False
        self.theta[rows], self.log_ratio[rows] = there, log_ratio
        return True

    def _rows(self, few: slice) -> NDArray[np.intp]:
        """Clients in some of the blocks of lanes."""
        block = np.arange(len(self.keys))[few]
        clients = (block[:, None] * LANES + np.arange(LANES)).ravel()
        return clients[clients < self.lanes.clients]

    def _some(self, rows: NDArray[np.intp]) -> Likelihood:
        return self.likelihood if len(rows) == len(self.theta) else self.likelihood.take(rows)

    def _ratio(self, theta: Array, rows: NDArray[np.intp]) -> Array:
        """log of likelihood over view at ``theta`` (K, D)."""
        view = self.view if len(rows) == len(self.theta) else self.view.take(rows)
        points = self.units.centre + self.units.scale * theta
        ratio = self._some(rows).at(points) - view.at(points)
        return np.where(np.isfinite(ratio), ratio, -np.inf)


def added(function: Callable[[slice, int], tuple[Array, ...]], n_clients: int) -> tuple[Array, ...]:
    """The sum over blocks of clients, always of the same blocks in the same order.

    ``function`` takes blocks of lanes, and how many clients are in them.
    """
    return sum_blocks(
        lambda at: function(at, min(at.stop * LANES, n_clients) - at.start * LANES),
        -(-n_clients // LANES),
        BLOCK_LANES,
    )


def _scaled_root(information: Array) -> tuple[Array, Array]:
    """Scales, and a root of the information in them; a direction without any has a little."""
    scale = 1 / np.sqrt(np.diagonal(information) + 1e-6)
    unit = information * scale[:, None] * scale
    root: Array = np.asarray(np.linalg.cholesky(unit + 1e-9 * np.eye(len(scale))), dtype=np.float64)
    return scale, root


def gaussian(rng: np.random.Generator, information: Array, right: Array) -> Array:
    """A draw from N(A^{-1} right, A^{-1}), A = information; a direction without any is not moved far."""
    scale, root = _scaled_root(information)
    half = np.linalg.solve(root, right * scale) + rng.standard_normal(len(right))
    return scale * np.linalg.solve(root.T, half)


def _log_density(step: Array, information: Array, right: Array) -> float:
    """Of ``step`` under what ``gaussian`` draws, without constants that do not depend on information."""
    scale, root = _scaled_root(information)
    away = root.T @ (step / scale) - np.linalg.solve(root, right * scale)
    return float(np.log(np.diagonal(root)).sum() - np.log(scale).sum() - 0.5 * away @ away)


def _components_of(
    theta: Array, population: Mixture, varying: NDArray[np.intp], chance: Array
) -> NDArray[np.int64]:
    """Components of clients whose theta is known, given a uniform number each."""
    roots, centres = population.roots[:, varying], population.centres[:, varying]
    logs = log_of(population.weights) - np.log(np.abs(np.diagonal(roots, axis1=1, axis2=2))).sum(axis=1)
    inverse = np.linalg.inv(roots)
    away = np.einsum("jab,kjb->kja", inverse, theta[:, None, varying] - centres)
    logs = logs - 0.5 * (away**2).sum(axis=2)
    p = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
    return (chance[:, None] * p[:, -1:] > p).sum(axis=1).clip(0, len(logs[0]) - 1)


def _softened(precision: Array) -> Array:
    """(P^{-1} + SOFT I)^{-1}: a client that knows itself to the last digit would pin the population."""
    if precision.ndim == 2:
        return precision / (1 + SOFT * precision)
    return np.asarray(np.linalg.solve(np.eye(precision.shape[1]) + SOFT * precision, precision))
