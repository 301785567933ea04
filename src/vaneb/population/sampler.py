"""The posterior over populations of clients, by Gibbs sampling.

A sweep draws every client's component and theta given the population (``clients``: a map over blocks of
clients that returns sums), and then the population given the sums (``mixtures``).  It starts from a mixture
fitted by EM (``start``), since sampling is slow to find new groups.

Random numbers belong to clients by their rank among all estimates, not by their place in the table: another
order of clients gives the same populations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import Progress, one_blas_thread
from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.population.clients import Clients, Coordinates, clients_of
from vaneb.population.conditioning import moments_of
from vaneb.population.lanes import in_a_row, lanes_of
from vaneb.population.mixtures import Mixture, draw_moves, draw_population
from vaneb.population.options import Options
from vaneb.population.start import first_mixture, with_lone_clients
from vaneb.prior import Prior
from vaneb.semidefinite import diagonals

#: Clients whose estimates tell the Monte Carlo error, and batches of draws that it is taken from.
WATCHED, BATCHES = 100, 20
#: Every so many sweeps stretches are drawn in a random basis.
TURN = 2


@dataclass(frozen=True)
class Sampling:
    """What is known of how well the posterior over populations was sampled.

    Parameters
    ----------
    error : 95% of the clients' estimates have a Monte Carlo standard error below this, in posterior
        standard deviations
    accuracy : what was aimed at
    sweeps : that were made
    acceptance : share of proposals that clients accepted; 1 where their likelihoods are Gaussian
    """

    error: float
    accuracy: float
    sweeps: int
    acceptance: float = 1.0

    @property
    def reached(self) -> bool:
        """Whether the error is at most twice what was asked for."""
        return self.error <= 2 * self.accuracy

    def __str__(self) -> str:
        said = f"Monte Carlo error below {self.error:.2g} of a posterior sd for 95% of estimates"
        return f"{said} ({self.sweeps:,} sweeps)"


def canonical_order(view: ConstantGaussian) -> NDArray[np.intp]:
    """An order of clients that depends on what they say, not on where they stand."""
    precision = view.base_precision
    diagonal = diagonals(precision)
    return np.lexsort((*diagonal.T[::-1], *view.estimates.T[::-1]))


def sample_populations(
    likelihood: Likelihood,
    *,
    single: bool = False,
    seed: int = 0,
    options: Options | None = None,
    names: tuple[str, ...] = (),
    progress: Progress | None = None,
    varying: NDArray[np.bool_] | None = None,
) -> tuple[Prior, Sampling]:
    """Populations drawn from their posterior given the clients behind ``likelihood``.

    ``single``: only populations of one Gaussian component.
    ``varying`` (D,): in which coordinates clients differ; all unless told.  In the others all have the same
    value, which is not known either.
    """
    options = options or Options()
    with one_blas_thread():
        likelihood = likelihood.take(canonical_order(likelihood.expanded(None)))
        differ = np.full(likelihood.dimension, True) if varying is None else np.asarray(varying, dtype=bool)
        coordinates = Coordinates(np.flatnonzero(differ), np.flatnonzero(~differ))
        chain = _Chain(clients_of(likelihood, coordinates, seed), coordinates, single, seed, options)
        kept, sampling = chain.run(0 if likelihood.is_gaussian else options.expansions, progress)
    weights = np.concatenate([w for w, _, _ in kept]) / len(kept)
    draw = np.repeat(np.arange(len(kept)), [len(w) for w, _, _ in kept])
    prior = Prior(
        np.concatenate([c for _, c, _ in kept]), weights, np.concatenate([s for _, _, s in kept]), names,
        likelihood.n_clients, None, draw,
    )  # fmt: skip
    return prior, sampling


Components = tuple[Array, Array, Array]


class _Chain:
    """One chain of sweeps, with the clients in canonical order."""

    def __init__(
        self, clients: Clients, coordinates: Coordinates, single: bool, seed: int, options: Options
    ) -> None:
        self.clients, self.options, self.n = clients, options, clients.lanes.clients
        self.varying, self.shared = coordinates
        alone = single or not len(self.varying)
        self.most, self.spare = (1, 0) if alone else (options.groups, options.spare)
        self.rng = np.random.default_rng([seed, 2])
        self.sweeps = 0

    def start(self, few: slice) -> Mixture:
        lanes = self.clients.lanes
        some = lanes.some(few)
        population = first_mixture(
            some, self.varying, self.most, lambda count: self.rng.choice(some.clients, count)
        )
        if len(self.shared):
            x, precision = in_a_row(some.x, some.clients), in_a_row(some.precision, some.clients)
            d = x.shape[1]
            weights = precision if precision.shape[1] == d else precision[:, :: d + 1]
            population.centres[:, self.shared] = np.average(
                x[:, self.shared], axis=0, weights=weights[:, self.shared] + 1e-12
            )
        return with_lone_clients(population, lanes, self.varying, self.most)

    def step(self, population: Mixture, few: slice) -> Mixture:
        """One sweep over the clients in some blocks of lanes.

        Clients' thetas, then the population given them; then the population once more, given where clients
        stand relative to their centres.  The two complement each other (Yu and Meng 2011): the first is slow
        where clients know little of themselves, the second where they know much.  Every ``TURN``-th time the
        second is done in the coordinates of a random basis, so that correlations move, too.
        """
        self.sweeps += 1
        r = len(self.varying)
        turn = r > 1 and self.sweeps % TURN == 0
        basis = np.eye(r)
        if turn:
            basis = np.ascontiguousarray(np.linalg.qr(self.rng.standard_normal((r, r)))[0])
        population, sums = self.clients.sweep(
            population, self.sweeps, few, self.rng, basis if turn else np.empty((0, 0))
        )
        if not r:
            return population
        if turn:
            sums = sums._replace(first=sums.first @ basis.T, second=basis @ sums.second @ basis.T)
        last = self._varying_part(population)
        order = np.argsort(-sums.clients, kind="stable")[: np.count_nonzero(sums.clients)]
        least = self.options.smallest_scale**2
        drawn = draw_population(self.rng, order, sums, last, least, self.spare, self.most)
        maps, moved = draw_moves(self.rng, order, sums, last.centres, drawn, least, basis, not turn)
        drawn, moved = (self._everywhere(one, population.centres[0]) for one in (drawn, moved))
        return moved if self.clients.follow(drawn, moved.centres, maps, few, self.rng) else drawn

    def _varying_part(self, population: Mixture) -> Mixture:
        """The population in the coordinates in which clients differ."""
        if not len(self.shared):
            return population
        centres, roots = population.centres[:, self.varying], population.roots[:, self.varying]
        return population._replace(centres=np.ascontiguousarray(centres), roots=np.ascontiguousarray(roots))

    def _everywhere(self, population: Mixture, centre: Array) -> Mixture:
        """The population in all coordinates; those that clients share are as in ``centre``."""
        if not len(self.shared):
            return population
        centres = np.tile(centre, (len(population.weights), 1))
        centres[:, self.varying] = population.centres
        roots = np.zeros((*centres.shape, len(self.varying)))
        roots[:, self.varying] = population.roots
        return population._replace(centres=centres, roots=roots)

    def run(self, expansions: int, progress: Progress | None) -> tuple[list[Components], Sampling]:
        options, n, blocks = self.options, self.n, len(self.clients.lanes.x)
        draws = options.populations_kept(n, self.clients.lanes.x.shape[1])
        most = self._most_sweeps(draws)
        everyone, few = slice(0, blocks), slice(0, blocks, max(1, n // options.first_clients))
        population = self.start(few)
        anew = np.linspace(0, options.burn // 2, expansions + 1)[1:].astype(int)
        for i in range(options.burn):
            population = self.step(population, few)
            if i in anew:
                self._expand(population)
            _tell(progress, self.sweeps, options.burn + draws)
        if few.step > 1:
            for _ in range(options.burn // 20):
                population = self.step(population, everyone)
        kept: list[Mixture] = []
        # Groups come and go slowly, and what was not seen yet is in no batch: hence a least number of sweeps.
        wanted = -(-(options.fewest_sweeps - options.burn) // draws) if self.spare else 1
        every = max(1, min(wanted, int(most - options.burn) // draws))
        while True:
            for _ in range(every):
                population = self.step(population, everyone)
            kept.append(population)
            _tell(progress, self.sweeps, options.burn + draws * every)
            if len(kept) == draws:
                error = self._error(kept)
                # What clients share differs between populations only: 400 of them know it to 1/20.
                aim = max(options.accuracy, min(draws, 400) ** -0.5 if len(self.shared) else 0.0)
                if error <= aim or self.sweeps + draws * every > most:
                    break
                kept, every = kept[1::2], every * 2
        sampling = Sampling(error, aim, self.sweeps, self.clients.acceptance)
        return [self._in_units(one) for one in kept], sampling

    def _most_sweeps(self, draws: int) -> float:
        """Sweeps that the clients' number allows; a client that is not Gaussian counts as several."""
        d = self.clients.lanes.x.shape[1]
        pairs = self.n * (1 + d) * max(1.0, d / 30) * self.clients.cost
        return max(self.options.burn + draws, min(self.options.sweeps, self.options.effort / pairs))

    def _expand(self, population: Mixture) -> None:
        """See the clients anew from where the present population has them, and go on from there."""
        w, mu, covariance = self._in_units(population)
        mean = w @ mu
        total = np.einsum("j,jab->ab", w, covariance) + (mu - mean).T @ ((mu - mean) * w[:, None])
        # What is seen must serve wider populations, too: the next ones may be.
        wide = np.zeros(len(mean))
        wide[self.varying] = self.clients.units.scale[self.varying] ** 2
        self.clients.expand(mean, total + np.diag(wide))

    def _error(self, kept: list[Mixture]) -> float:
        """The 95% point of the clients' Monte Carlo errors, from batches of the populations kept.

        An error is that of an estimate or half that of an end of a 90% interval, whichever is larger.
        """
        watched, lanes = np.arange(0, self.n, max(1, self.n // WATCHED)), self.clients.lanes
        clients = lanes_of(in_a_row(lanes.x, self.n)[watched], in_a_row(lanes.precision, self.n)[watched])
        means, variances = [], []
        for batch in np.array_split(np.arange(len(kept)), min(BATCHES, len(kept))):
            some = [kept[i] for i in batch]
            starts = np.concatenate([[0], np.cumsum([len(one.weights) for one in some])])
            centres, roots, weights = (
                np.concatenate(parts)
                for parts in zip(*((o.centres, o.roots, o.weights) for o in some), strict=True)
            )
            _, mean, covariance, _ = moments_of(clients, weights, centres, roots, starts)
            means.append(mean)
            variances.append(np.diagonal(covariance, axis1=1, axis2=2))
        batches = len(means)
        middle = np.mean(means, axis=0)
        second = np.array(variances) + (np.array(means) - middle) ** 2  # about the same point in all batches
        sd = np.sqrt(np.maximum(second.mean(axis=0), 1e-300))
        ends = 1.645 * second / (2 * sd)  # what a batch would make of the half-width, to first order
        spread = np.std(means, axis=0, ddof=1)
        of_end = np.hypot(spread, np.std(ends, axis=0, ddof=1))
        worse = np.maximum(spread, of_end / 2) / np.sqrt(batches)
        varies = sd > 1e-9 * np.abs(middle)
        if len(self.varying):
            varies[:, self.shared] = False
        return float(np.quantile((worse / sd)[varies], 0.95)) if varies.any() else 0.0

    def _in_units(self, one: Mixture) -> Components:
        """Weights, centres and covariances in the clients' units.

        Components without clients are offers, together a broad one: where a group not yet seen might be.  A
        component of one client is no group.  It is broad too: only that client says where it is.
        """
        units, varying = self.clients.units, np.ix_(self.varying, self.varying)
        weights, centres = one.weights[: one.occupied].copy(), one.centres[: one.occupied].copy()
        covariances = one.roots[: one.occupied] @ np.swapaxes(one.roots[: one.occupied], 1, 2)
        if self.spare and len(one.weights) > one.occupied:
            weights = np.append(weights, one.weights[one.occupied :].sum())
            centres = np.vstack([centres, centres[0]])
            covariances = np.concatenate([covariances, np.zeros_like(covariances[:1])])
            covariances[-1][varying] = np.diag(2 / one.firmness * one.shape)
        between = one.between @ one.between.T
        for j in range(len(weights)):
            unseen = j == one.occupied
            if unseen or (one.clients[j] == 1 and one.occupied > 1):
                centres[j, self.varying] = one.middle
                covariances[j][varying] += between if unseen else between / one.ties[j]
        centres = units.centre + units.scale * centres
        return weights / weights.sum(), centres, covariances * units.scale[:, None] * units.scale


def _tell(progress: Progress | None, done: int, expected: int) -> None:
    if progress is not None and done % 20 == 0:
        progress("sampling populations", done, expected)
