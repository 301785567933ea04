"""The posterior over populations of clients, by Gibbs sampling.

A sweep draws every client's component and theta given the population (``sweep``, a map over blocks of clients
that returns sums), and then the population given the sums (``mixtures``).  It starts from more groups than
needed, since groups that are not needed empty quickly while new ones are rarely found.

Clients whose likelihood is not Gaussian are seen through the Gaussian that touches it at a likely theta.
What is drawn under that Gaussian is a proposal, accepted with probability min(1, ratio' / ratio), where
ratio is the likelihood over the Gaussian: so the draws are exact.

Random numbers belong to clients by their rank among all estimates, not by their place in the table: another
order of clients gives the same populations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks, one_blas_thread
from vaneb.likelihood.expansion import view_under
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.seam import Array, Likelihood, as_matrices
from vaneb.population import sweep as kernels
from vaneb.population.conditioning import components_of, moments_of
from vaneb.population.lanes import LANES, in_a_row, lanes_of, side_by_side
from vaneb.population.mixtures import Mixture, draw_moves, draw_population
from vaneb.population.options import Options
from vaneb.population.start import first_mixture
from vaneb.population.units import units_of, wide_view
from vaneb.prior import Prior

#: Called with (what is being done, steps done, steps expected).
Progress = Callable[[str, int, int], None]
#: Blocks of lanes in one piece of work for a thread.
BLOCK_LANES = 128
#: Variance that is added to clients' noise while the population is learnt, in that of the population.
SOFT = 1e-4
#: Clients whose estimates tell the Monte Carlo error, and batches of draws that it is taken from.
WATCHED, BATCHES = 100, 20


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
        return self.error <= 2 * self.accuracy

    def __str__(self) -> str:
        said = f"Monte Carlo error below {self.error:.2g} of a posterior sd for 95% of estimates"
        return f"{said} ({self.sweeps:,} sweeps)"


def canonical_order(view: ConstantGaussian) -> NDArray[np.intp]:
    """An order of clients that depends on what they say, not on where they stand."""
    precision = view.base_precision
    diagonal = precision if precision.ndim == 2 else np.diagonal(precision, axis1=1, axis2=2)
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
        first = likelihood.expanded(None)
        order = canonical_order(first)
        differ = (
            np.ones(likelihood.dimension, dtype=bool) if varying is None else np.asarray(varying, dtype=bool)
        )
        chain = _Chain(likelihood.take(order), first.take(order), single, seed, options, differ)
        kept, sampling = chain.run(progress)
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
        self,
        likelihood: Likelihood,
        view: ConstantGaussian,
        single: bool,
        seed: int,
        options: Options,
        varying: NDArray[np.bool_],
    ) -> None:
        self.likelihood, self.options, self.n = likelihood, options, likelihood.n_clients
        self.varying, self.shared = np.flatnonzero(varying), np.flatnonzero(~varying)
        self.most, self.spare = (1, 0) if single or not varying.any() else (options.groups, options.spare)
        self.rng = np.random.default_rng([seed, 2])
        keys = np.random.default_rng([seed, 1]).integers(0, 2**63, self.n).astype(np.uint64)
        filled = np.zeros(-(-self.n // LANES) * LANES, dtype=np.uint64)
        filled[: self.n] = keys
        self.keys = filled.reshape(-1, LANES)
        self.grid = np.geomspace(options.smallest_scale**2, 1.0, 6)
        self.sweeps, self.accepted, self.proposed = 0, 0, 0
        self.units = units_of(view)
        if not likelihood.is_gaussian:
            view = wide_view(likelihood)
            self.units = units_of(view)
        self.see(view)

    def see(self, view: ConstantGaussian) -> None:
        """Take the Gaussian ``view`` for the clients, or for what proposes their thetas."""
        self.view = view
        precision = self.units.precisions(view.base_precision)
        if self.likelihood.is_gaussian:
            precision = _softened(precision)
        self.lanes = lanes_of(self.units.estimates(view.estimates), precision)
        self.theta = np.zeros(view.estimates.shape)
        self.log_ratio = np.full(self.n, -np.inf)

    def some(self, blocks: slice) -> NDArray[np.intp]:
        """Clients in some of the blocks of lanes."""
        number = np.arange(len(self.keys))[blocks]
        clients = (number[:, None] * LANES + np.arange(LANES)).ravel()
        return clients[clients < self.n]

    def start(self, blocks: slice) -> Mixture:
        few = self.some(blocks)
        x, precision = in_a_row(self.lanes.x, self.n)[few], in_a_row(self.lanes.precision, self.n)[few]
        population = first_mixture(
            lanes_of(x, precision), self.varying, self.most, lambda count: self.rng.choice(len(few), count)
        )
        if len(self.shared):
            population.centres[:, self.shared] = np.average(
                x[:, self.shared], axis=0, weights=_diagonal(precision, x.shape[1])[:, self.shared] + 1e-12
            )
        return population

    def step(self, population: Mixture, blocks: slice) -> Mixture:
        """One sweep over the clients in some blocks of lanes.

        Clients' thetas, then the population given them; then the population once more, given where clients
        stand relative to their centres.  The two complement each other (Yu and Meng 2011): the first is slow
        where clients know little of themselves, the second where they know much.
        """
        self.sweeps += 1
        x, precision = self.lanes.x[blocks], self.lanes.precision[blocks]
        few = None if blocks == slice(0, len(self.keys)) else self.some(blocks)
        n = self.n if few is None else len(few)
        component, theta = self._draw_clients(population, x, precision, blocks, few, n)
        if len(self.shared):
            population, theta = self._draw_shared(population, x, precision, component, theta, few, n)
        if not len(self.varying):
            return population
        count, first, second = _added(
            lambda at, m: kernels.add_up(m, component[at], theta[at], self.varying, population.centres), n
        )
        drawn = self._population(count, first, second, population)
        place = np.empty(len(count), dtype=np.int64)
        place[np.argsort(-count, kind="stable")] = np.arange(len(count))
        component = place[component]  # the components are now in the order of their size
        used = drawn.occupied
        centres = drawn.centres[:used]
        moves = _added(
            lambda at, m: kernels.add_up_moves(
                m, x[at], precision[at], component[at], theta[at], self.varying, centres
            ),
            n,
        )
        square, cross, total, product, right = moves
        stretch, step = draw_moves(
            self.rng, square, cross, total, product, right, centres[:, self.varying], drawn.shape,
            drawn.middle, drawn.between,
        )  # fmt: skip
        moved = centres.copy()
        moved[:, self.varying] += step
        if not self.likelihood.is_gaussian:
            rows = slice(None) if few is None else few
            mine = component.ravel()[:n]
            now = moved[mine]
            now[:, self.varying] += stretch * (self.theta[rows] - centres[mine])[:, self.varying]
            log_ratio = self._ratio(now, few)
            change = float((log_ratio - self.log_ratio[rows]).sum())
            if not (np.isfinite(change) and np.log(self.rng.random()) < change):
                return drawn
            self.theta[rows], self.log_ratio[rows] = now, log_ratio
        drawn.centres[:used] = moved
        roots = drawn.roots
        roots[:, self.varying] = (stretch * roots[:, self.varying].swapaxes(1, 2)).swapaxes(1, 2) * np.sign(
            stretch
        )
        return drawn._replace(roots=roots, shape=drawn.shape * stretch**2)

    def _population(self, count: Array, first: Array, second: Array, last: Mixture) -> Mixture:
        """The next population, given sums over clients."""
        weights, centres, roots, *rest = draw_population(
            self.rng, count, first, second, last.centres[:, self.varying], last.roots[:, self.varying],
            last.scales, last.middle, last.concentration, self.grid, self.spare, self.most,
        )  # fmt: skip
        if not len(self.shared):
            return Mixture(weights, centres, roots, *rest)
        everywhere = np.tile(last.centres[0], (len(weights), 1))
        everywhere[:, self.varying] = centres
        in_all = np.zeros((len(weights), len(last.centres[0]), len(self.varying)))
        in_all[:, self.varying] = roots
        return Mixture(weights, everywhere, in_all, *rest)

    def _draw_clients(
        self,
        population: Mixture,
        x: Array,
        precision: Array,
        blocks: slice,
        few: NDArray[np.intp] | None,
        n: int,
    ) -> tuple[NDArray[np.int64], Array]:
        """Components (B, LANES) and thetas (B, D, LANES) of some of the clients."""
        logs = np.log(np.maximum(population.weights, 1e-300))
        keys = self.keys[blocks]
        component, theta = np.zeros(keys.shape, dtype=np.int64), np.empty(x.shape)

        def block(part: slice) -> None:
            kernels.draw_clients(
                x[part], precision[part], keys[part], self.sweeps, logs, population.centres, population.roots,
                component[part], theta[part],
            )  # fmt: skip

        list(map_blocks(block, len(x), BLOCK_LANES))
        if self.likelihood.is_gaussian:
            return component, theta
        # What was drawn is a proposal; a client that refuses it keeps its theta and draws a component for it.
        rows = slice(None) if few is None else few
        proposed = in_a_row(theta, n)
        log_ratio, old = self._ratio(proposed, few), self.log_ratio[rows]
        chance = np.empty(keys.shape)
        kernels.accept_chances(keys, self.sweeps, chance)
        chance = chance.ravel()[:n]
        with np.errstate(invalid="ignore"):
            stay = ~((np.log(chance) < log_ratio - old) | ~np.isfinite(old))
        self.accepted, self.proposed = self.accepted + int((~stay).sum()), self.proposed + n
        log_ratio[stay], proposed[stay] = old[stay], self.theta[rows][stay]
        self.log_ratio[rows], self.theta[rows] = log_ratio, proposed
        if stay.any():
            component.ravel()[:n][stay] = _components_of(
                proposed[stay][:, self.varying], population, self.varying, chance[stay]
            )
        return component, side_by_side(proposed)

    def _draw_shared(
        self,
        population: Mixture,
        x: Array,
        precision: Array,
        component: NDArray[np.int64],
        theta: Array,
        few: NDArray[np.intp] | None,
        n: int,
    ) -> tuple[Mixture, Array]:
        """New values of the coordinates that all clients share, whatever the clients' own thetas are.

        Where clients are not Gaussian this too is a proposal, which they accept or refuse together.
        """
        if self.likelihood.is_gaussian:
            total, right = _added(
                lambda at, m: kernels.add_up_shared(
                    m, x[at], precision[at], component[at], self.shared, population.centres, population.roots
                ),
                n,
            )
            change = _gaussian(self.rng, total, right)
            centres = population.centres.copy()
            centres[:, self.shared] += change
            population = population._replace(centres=centres)
            theta = np.empty(x.shape)

            def block(part: slice) -> None:
                kernels.draw_thetas(
                    x[part], precision[part], self.keys[part], self.sweeps, component[part], centres,
                    population.roots, theta[part],
                )  # fmt: skip

            list(map_blocks(block, len(x), BLOCK_LANES))
            return population, theta
        rows = slice(None) if few is None else few
        likelihood = self.likelihood if few is None else self.likelihood.take(few)
        here = self.theta[rows]
        value = here[0, self.shared]
        scale = self.units.scale

        def slopes(points: Array) -> tuple[float, Array, Array]:
            """Log-likelihood, and the information and pull in the shared coordinates at some points."""
            view = likelihood.expanded(self.units.centre + scale * points)
            away = (view.estimates - self.units.centre) / scale - points
            information = as_matrices(view.base_precision) * scale[:, None] * scale
            pull = np.einsum("kij,kj->i", information, away)[self.shared]
            height = float(view.at(self.units.centre + scale * points).sum())
            return height, information.sum(axis=0)[np.ix_(self.shared, self.shared)], pull

        before, information, pull = slopes(here)
        step = _gaussian(self.rng, information, pull)
        there = here.copy()
        there[:, self.shared] += step
        after, information_there, pull_there = slopes(there)
        log_chance = after - before
        log_chance += _log_density(-step, information_there, pull_there) - _log_density(
            step, information, pull
        )
        if np.isfinite(log_chance) and np.log(self.rng.random()) < log_chance:
            self.theta[rows] = there
            self.log_ratio[rows] = self._ratio(there, few)
            centres = population.centres.copy()
            centres[:, self.shared] = value + step
            return population._replace(centres=centres), side_by_side(there)
        return population, theta

    def _ratio(self, theta: Array, few: NDArray[np.intp] | None) -> Array:
        """log of likelihood over view at ``theta`` (K, D)."""
        likelihood, view = self.likelihood, self.view
        if few is not None:
            likelihood, view = likelihood.take(few), view.take(few)
        points = self.units.centre + self.units.scale * theta
        ratio = likelihood.at(points) - view.at(points)
        return np.where(np.isfinite(ratio), ratio, -np.inf)

    def run(self, progress: Progress | None) -> tuple[list[Components], Sampling]:
        options, n = self.options, self.n
        draws = int(np.clip(options.work / n, options.fewest_draws, options.draws))
        everyone = slice(0, len(self.keys))
        few = slice(0, len(self.keys), max(1, n // options.first_clients))
        few = everyone if few.step == 1 else few
        population = self.start(few)
        expansions = 0 if self.likelihood.is_gaussian else options.expansions
        for i in range(options.burn):
            population = self.step(population, few)
            if expansions and i in np.linspace(0, options.burn // 2, expansions + 1)[1:].astype(int):
                self._expand(population)
            _tell(progress, self.sweeps, options.burn + draws)
        if few != everyone:
            for _ in range(options.burn // 20):
                population = self.step(population, everyone)
        kept: list[Mixture] = []
        every = 1
        while True:
            for _ in range(every):
                population = self.step(population, everyone)
            kept.append(population)
            _tell(progress, self.sweeps, options.burn + draws * every)
            if len(kept) == draws:
                error = self._error(kept)
                if error <= options.accuracy or self.sweeps + draws * every > self._most_sweeps(draws):
                    break
                kept, every = kept[1::2], every * 2
        share = self.accepted / self.proposed if self.proposed else 1.0
        sampling = Sampling(error, options.accuracy, self.sweeps, share)
        return [self._in_units(one) for one in kept], sampling

    def _most_sweeps(self, draws: int) -> float:
        """Sweeps that the clients' number allows."""
        pairs = self.n * (1 + self.lanes.x.shape[1]) ** 2
        return max(self.options.burn + draws, min(self.options.sweeps, self.options.effort / pairs))

    def _expand(self, population: Mixture) -> None:
        """Expand the clients where the present population has them, and go on from there."""
        w, mu, covariance = self._in_units(population)
        mean = w @ mu
        total = np.einsum("j,jab->ab", w, covariance) + (mu - mean).T @ ((mu - mean) * w[:, None])
        self.see(view_under(self.likelihood, mean, total))

    def _error(self, kept: list[Mixture]) -> float:
        """The 95% point of the clients' Monte Carlo errors, from batches of the populations kept."""
        watched = np.arange(0, self.n, max(1, self.n // WATCHED))
        clients = lanes_of(
            in_a_row(self.lanes.x, self.n)[watched], in_a_row(self.lanes.precision, self.n)[watched]
        )
        n, d = len(watched), clients.x.shape[1]
        means, totals, batches = [], np.zeros((n, d)), min(BATCHES, len(kept))
        for batch in np.array_split(np.arange(len(kept)), batches):
            some = [kept[i] for i in batch]
            starts = np.concatenate([[0], np.cumsum([len(one.weights) for one in some])])
            centres, roots = (
                np.concatenate([one.centres for one in some]),
                np.concatenate([one.roots for one in some]),
            )
            weights = np.concatenate([one.weights for one in some])
            anything = np.ones(len(weights), dtype=np.bool_)
            _, mean, covariance, _ = moments_of(
                clients, weights, *components_of(centres, roots), starts, anything
            )
            means.append(mean)
            totals = totals + np.diagonal(covariance, axis1=1, axis2=2) / batches
        spread = np.std(means, axis=0, ddof=1)
        sd = np.sqrt(np.maximum(totals, 0.0) + spread**2)
        return float(np.quantile(spread / np.sqrt(batches) / np.where(sd > 0, sd, 1.0), 0.95))

    def _in_units(self, one: Mixture) -> Components:
        """Weights, centres and covariances in the clients' units.

        Components without clients are offers, together a broad one: where a group not yet seen might be.
        """
        used, scale = one.occupied, self.units.scale
        covariances = one.roots[:used] @ np.swapaxes(one.roots[:used], 1, 2)
        weights, centres = one.weights[:used], one.centres[:used]
        if len(one.weights) > used:
            weights = np.append(weights, one.weights[used:].sum())
            broad_centre, broad = one.centres[0].copy(), np.zeros(covariances.shape[1:])
            broad_centre[self.varying] = one.middle
            broad[np.ix_(self.varying, self.varying)] = one.between @ one.between.T + np.diag(one.shape)
            centres = np.vstack([centres, broad_centre])
            covariances = np.concatenate([covariances, broad[None]])
        centres = self.units.centre + scale * centres
        return weights / weights.sum(), centres, covariances * scale[:, None] * scale


def _softened(precision: Array) -> Array:
    """(P^{-1} + SOFT I)^{-1}: a client that knows itself to the last digit would pin the population."""
    if precision.ndim == 2:
        return precision / (1 + SOFT * precision)
    return np.asarray(np.linalg.solve(np.eye(precision.shape[1]) + SOFT * precision, precision))


def _diagonal(flat: Array, d: int) -> Array:
    return flat if flat.shape[1] == d else flat.reshape(-1, d, d).diagonal(axis1=1, axis2=2)


def _added(function: Callable[[slice, int], tuple[Array, ...]], n_clients: int) -> tuple[Array, ...]:
    """The sum over blocks of clients, always of the same blocks in the same order.

    ``function`` takes blocks of lanes, and how many clients are in them.
    """
    many = -(-n_clients // LANES)
    parts = map_blocks(
        lambda at: function(at, min(at.stop * LANES, n_clients) - at.start * LANES), many, BLOCK_LANES
    )
    return tuple(sum(column[1:], start=column[0]) for column in zip(*parts, strict=True))


def _gaussian(rng: np.random.Generator, information: Array, right: Array) -> Array:
    """A draw from N(A^{-1} right, A^{-1}), A = information; a direction without any is not moved far."""
    scale = 1 / np.sqrt(np.diagonal(information) + 1e-6)
    root = np.linalg.cholesky(information * scale[:, None] * scale + 1e-9 * np.eye(len(right)))
    half = np.linalg.solve(root, right * scale) + rng.standard_normal(len(right))
    return scale * np.linalg.solve(root.T, half)


def _log_density(step: Array, information: Array, right: Array) -> float:
    """Of ``step`` under what ``_gaussian`` draws, without constants that do not depend on information."""
    scale = 1 / np.sqrt(np.diagonal(information) + 1e-6)
    root = np.linalg.cholesky(information * scale[:, None] * scale + 1e-9 * np.eye(len(right)))
    away = root.T @ (step / scale) - np.linalg.solve(root, right * scale)
    return float(np.log(np.diagonal(root)).sum() - np.log(scale).sum() - 0.5 * away @ away)


def _components_of(
    theta: Array, population: Mixture, varying: NDArray[np.intp], chance: Array
) -> NDArray[np.int64]:
    """Components of clients whose theta is known, given a uniform number each."""
    roots, centres = population.roots[:, varying], population.centres[:, varying]
    logs = np.log(np.maximum(population.weights, 1e-300)) - np.log(
        np.abs(np.diagonal(roots, axis1=1, axis2=2))
    ).sum(axis=1)
    away = np.linalg.solve(roots[None], (theta[:, None] - centres)[..., None])[..., 0]
    logs = logs - 0.5 * (away**2).sum(axis=2)
    p = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
    return (chance[:, None] * p[:, -1:] > p).sum(axis=1).clip(0, len(logs[0]) - 1)


def _tell(progress: Progress | None, done: int, expected: int) -> None:
    if progress is not None and done % 20 == 0:
        progress("sampling populations", done, expected)
