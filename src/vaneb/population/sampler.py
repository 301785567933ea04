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
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import BLOCK_CLIENTS, map_blocks, one_blas_thread
from vaneb.likelihood.expansion import view_under
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.population import sweep as kernels
from vaneb.population.mixtures import Mixture, draw_moves, draw_population
from vaneb.population.options import Options
from vaneb.population.sweep import Moves, Sums
from vaneb.population.units import units_of, wide_view
from vaneb.prior import Prior

T = TypeVar("T", Moves, Sums)
#: Called with (what is being done, steps done, steps expected).
Progress = Callable[[str, int, int], None]
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
) -> tuple[Prior, Sampling]:
    """Populations drawn from their posterior given the clients behind ``likelihood``.

    ``single``: only populations of one Gaussian component.
    """
    options = options or Options()
    with one_blas_thread():
        first = likelihood.expanded(None)
        order = canonical_order(first)
        chain = _Chain(likelihood.take(order), first.take(order), single, seed, options)
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
        self, likelihood: Likelihood, view: ConstantGaussian, single: bool, seed: int, options: Options
    ) -> None:
        self.likelihood, self.options, self.n = likelihood, options, likelihood.n_clients
        self.most, self.spare = (1, 0) if single else (options.groups, options.spare)
        self.rng = np.random.default_rng([seed, 2])
        self.keys = np.random.default_rng([seed, 1]).integers(0, 2**63, self.n).astype(np.uint64)
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
        self.x = self.units.estimates(view.estimates)
        self.precision = self.units.precisions(view.base_precision)
        if self.likelihood.is_gaussian:
            self.precision = _softened(self.precision)
        self.theta = np.zeros_like(self.x)
        self.component = np.zeros(self.n, dtype=np.int64)
        self.log_ratio = np.full(self.n, -np.inf)

    def start(self) -> Mixture:
        """Groups around clients that are spread over all of them."""
        d = self.x.shape[1]
        many = 1 if self.most == 1 else int(np.clip(round(1.5 * self.n ** (1 / 3)), 4, self.most))
        near = np.clip(self.x, -5, 5)
        centres = 0.5 * near[self.rng.choice(self.n, many)] if many > 1 else near.mean(axis=0, keepdims=True)
        roots = np.tile(np.eye(d) * (0.5 if many > 1 else 1.0), (many, 1, 1))
        return Mixture(
            np.full(many, 1 / many),
            centres,
            roots,
            np.ones(many),
            many,
            np.zeros(d),
            np.eye(d),
            np.ones(d),
            0.3,
        )

    def step(self, population: Mixture, rows: slice) -> Mixture:
        """One sweep over some of the clients.

        Clients' thetas, then the population given them; then the population once more, given where clients
        stand relative to their centres.  The two complement each other (Yu and Meng 2011): the first is slow
        where clients know little of themselves, the second where they know much.
        """
        self.sweeps += 1
        x, precision = self.x[rows], self.precision[rows]
        component, theta = self._draw_clients(population, rows)
        sums = _added(
            lambda part: Sums(*kernels.add_up(component[part], theta[part], population.centres)), len(x)
        )
        order = np.argsort(-sums.clients, kind="stable")
        drawn = Mixture(
            *draw_population(
                self.rng, *sums, population.centres, population.roots, population.scales, population.middle,
                population.concentration, self.grid, self.spare, self.most,
            )
        )  # fmt: skip
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        component = place[component]  # the components are now in the order of their size
        centres = drawn.centres[: drawn.occupied]
        moves = _added(
            lambda part: Moves(
                *kernels.add_up_moves(x[part], precision[part], component[part], theta[part], centres)
            ),
            len(x),
        )
        stretch, moved = draw_moves(self.rng, *moves, drawn.shape, drawn.middle, drawn.between)
        if not self.likelihood.is_gaussian:
            now = moved[component] + stretch * (theta - centres[component])
            log_ratio = self._ratio(now, rows)
            change = float((log_ratio - self.log_ratio[rows]).sum())
            if not (np.isfinite(change) and np.log(self.rng.random()) < change):
                return drawn
            self.theta[rows], self.log_ratio[rows] = now, log_ratio
        drawn.centres[: drawn.occupied] = moved
        signs = np.sign(stretch)
        return drawn._replace(roots=stretch[:, None] * drawn.roots * signs, shape=drawn.shape * stretch**2)

    def _draw_clients(self, population: Mixture, rows: slice) -> tuple[NDArray[np.int64], Array]:
        """Components and thetas of some of the clients."""
        logs = np.log(np.maximum(population.weights, 1e-300))
        x, precision, keys = self.x[rows], self.precision[rows], self.keys[rows]
        component, theta = np.empty(len(x), dtype=np.int64), np.empty_like(x)

        def block(part: slice) -> None:
            kernels.draw_clients(
                x[part], precision[part], keys[part], self.sweeps, logs, population.centres, population.roots,
                component[part], theta[part],
            )  # fmt: skip

        list(map_blocks(block, len(x), BLOCK_CLIENTS))
        if self.likelihood.is_gaussian:
            return component, theta
        # What was drawn is a proposal; a client that refuses it keeps its theta and draws a component for it.
        log_ratio, old = self._ratio(theta, rows), self.log_ratio[rows]
        chance = np.empty(len(theta))
        kernels.uniforms(keys, self.sweeps, chance)
        with np.errstate(invalid="ignore"):
            stay = ~((np.log(chance) < log_ratio - old) | ~np.isfinite(old))
        self.accepted, self.proposed = self.accepted + int((~stay).sum()), self.proposed + len(stay)
        log_ratio[stay], theta[stay] = old[stay], self.theta[rows][stay]
        self.log_ratio[rows], self.theta[rows] = log_ratio, theta
        if stay.any():
            component[stay] = _components_of(theta[stay], population, chance[stay])
        return component, theta

    def _ratio(self, theta: Array, rows: slice) -> Array:
        """log of likelihood over view at ``theta`` (K, d)."""
        likelihood, view = self.likelihood, self.view
        if rows != slice(0, self.n):
            likelihood, view = likelihood.take(np.arange(self.n)[rows]), view.take(rows)
        points = self.units.centre + self.units.scale * theta
        ratio = likelihood.at(points) - view.at(points)
        return np.where(np.isfinite(ratio), ratio, -np.inf)

    def run(self, progress: Progress | None) -> tuple[list[Components], Sampling]:
        options, n = self.options, self.n
        draws = int(np.clip(options.work / n, options.fewest_draws, options.draws))
        population = self.start()
        everyone, few = slice(0, n), slice(0, n, max(1, n // options.first_clients))
        few = everyone if few.step == 1 else few
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
        pairs = self.n * (1 + self.x.shape[1]) ** 2
        return max(self.options.burn + draws, min(self.options.sweeps, self.options.effort / pairs))

    def _expand(self, population: Mixture) -> None:
        """Expand the clients where the present population has them, and go on from there."""
        w, mu, covariance = self._in_units(population)
        mean = w @ mu
        total = np.einsum("j,jab->ab", w, covariance) + (mu - mean).T @ ((mu - mean) * w[:, None])
        self.see(view_under(self.likelihood, mean, total))

    def _error(self, kept: list[Mixture]) -> float:
        """The 95% point of the clients' Monte Carlo errors, from batches of the populations kept."""
        rows = slice(0, self.n, max(1, self.n // WATCHED))
        x, precision = np.ascontiguousarray(self.x[rows]), np.ascontiguousarray(self.precision[rows])
        means, totals, batches = [], np.zeros(x.shape), min(BATCHES, len(kept))
        for batch in np.array_split(np.arange(len(kept)), batches):
            some = [kept[i] for i in batch]
            starts = np.concatenate([[0], np.cumsum([len(one.weights) for one in some])])
            logs = np.log(np.maximum(np.concatenate([one.weights for one in some]), 1e-300))
            mean, covariance, scratch = np.empty_like(x), np.empty((*x.shape, x.shape[1])), np.empty(len(x))
            kernels.posterior_moments(
                x, precision, logs, np.concatenate([one.centres for one in some]),
                np.concatenate([one.roots for one in some]), starts, np.ones(len(logs), dtype=np.bool_),
                np.empty(len(x)), mean, covariance, scratch,
            )  # fmt: skip
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
            centres = np.vstack([centres, one.middle])
            broad = one.between @ one.between.T + np.diag(one.shape)
            covariances = np.concatenate([covariances, broad[None]])
        centres = self.units.centre + scale * centres
        return weights / weights.sum(), centres, covariances * scale[:, None] * scale


def _softened(precision: Array) -> Array:
    """(P^{-1} + SOFT I)^{-1}: a client that knows itself to the last digit would pin the population."""
    if precision.shape[2] == 1:
        return precision / (1 + SOFT * precision)
    d = precision.shape[1]
    return np.ascontiguousarray(np.linalg.solve(np.eye(d) + SOFT * precision, precision))


def _added(function: Callable[[slice], T], n_clients: int) -> T:
    """The sum over blocks of clients, always of the same blocks in the same order."""
    parts = iter(map_blocks(function, n_clients, BLOCK_CLIENTS))
    total = next(parts)
    for part in parts:
        total = total.plus(part)
    return total


def _components_of(theta: Array, population: Mixture, chance: Array) -> NDArray[np.int64]:
    """Components of clients whose theta is known, given a uniform number each."""
    logs = np.log(np.maximum(population.weights, 1e-300)) - np.log(
        np.abs(np.diagonal(population.roots, axis1=1, axis2=2))
    ).sum(axis=1)
    away = np.linalg.solve(population.roots[None], (theta[:, None] - population.centres)[..., None])[..., 0]
    logs = logs - 0.5 * (away**2).sum(axis=2)
    p = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
    return (chance[:, None] * p[:, -1:] > p).sum(axis=1).clip(0, len(logs[0]) - 1)


def _tell(progress: Progress | None, done: int, expected: int) -> None:
    if progress is not None and done % 20 == 0:
        progress("sampling populations", done, expected)
