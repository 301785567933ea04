"""From local fits to the population and back to every client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.estimators import VANEB
from vaneb.grouped.models import LocalModel
from vaneb.grouped.predictive import expected_response
from vaneb.grouped.scores import row_losses
from vaneb.grouped.structure import centred_basis, enough_clients
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.loss_sums import Columns, LossSums
from vaneb.likelihood.recoded import Recoded
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.local.losses import GAUSSIAN
from vaneb.local.report import report
from vaneb.npmle.fit import Progress
from vaneb.population.options import QUICK
from vaneb.population.sampler import sample_populations
from vaneb.posterior import Posterior, posterior
from vaneb.reports import OK, Reports

#: With fewer clients than this, rows cannot tell a mixture from one Gaussian.
FEWEST = 20


def client_reports(rows: GroupedRows, local: LocalModel, names: tuple[str, ...]) -> Reports:
    """What clients would send to a server: estimates, and precisions at them (sandwich for Huber)."""
    made = report(rows, local.family, local.fits, dispersion=local.family.dispersion)
    status = list(made.status)
    return Reports(
        made.estimate, n=made.n, covariance=made.covariance, ids=made.ids, names=names, status=status
    )


def fit_population(
    rows: GroupedRows,
    local: LocalModel,
    names: tuple[str, ...],
    likelihood: str,
    model: VANEB,
    progress: Progress | None,
) -> tuple[VANEB, Posterior]:
    """Fit the population with ``model``'s options, and condition every client on it.

    The population is sampled in coordinates phi, theta = B phi, of covariates that are centred and scaled:
    the intercept at an average row, and changes by a standard deviation.  So neither the units nor the zero
    of a covariate has a say.

    With ``population="auto"`` it is one Gaussian, as in a mixed model, unless a mixture predicts rows better
    (``predicts_better``): where noise is not what the family says, a mixture would take it for groups.
    """
    if likelihood == "gaussian" or not local.family.is_likelihood:
        reports = client_reports(rows, local, names)
        model.fit(reports, progress=progress)
        return model, model.personalize(reports)
    clients = exact_likelihood(rows, local.family, local.fits)
    learn_population(
        clients,
        Columns.of(rows.design),
        names,
        model,
        lambda: halves_of_clients(rows, local.family, local.fits.theta, model.seed),
        progress,
    )
    status = [OK if e else str(o) for e, o in zip(local.fits.exists, local.fits.outcome, strict=True)]
    return model, posterior(clients, model.prior_, ids=rows.ids, names=names, status=tuple(status))


def model_basis(columns_basis: Array, dimension: int) -> Array:
    """B (d, d) from that of the columns of the design: the same for every class."""
    return np.kron(np.eye(dimension // len(columns_basis)), columns_basis).astype(np.float64)


def learn_population(
    clients: Likelihood,
    columns: Columns,
    names: tuple[str, ...],
    model: VANEB,
    halves: Callable[[], Halves | None],
    progress: Progress | None = None,
) -> None:
    """Fit ``model`` to clients whose coefficients belong to these columns; ``halves`` are for the choice."""
    if model.kind == "discrete":
        model.fit(clients, progress=progress)
        model.prior_ = replace(model.prior_, names=names)
        return
    own, intercept = centred_basis(columns)
    basis = model_basis(own, clients.dimension)
    kind, varying = model.kind, np.ones(clients.dimension, dtype=bool)
    if model.population == "auto":
        if intercept is not None and not enough_clients(clients.dimension, clients.n_clients):
            alone = np.arange(clients.dimension) % len(own) == intercept
            varying = what_varies(halves(), basis, alone, model.seed)
        if not (varying.all() and predicts_better(halves(), basis, model.seed)):
            kind = "gaussian"
    recoded: Any = Recoded(clients, basis)
    prior, model.sampling_ = sample_populations(
        recoded,
        single=kind == "gaussian",
        seed=model.seed,
        options=model.options,
        progress=progress,
        varying=varying,
    )
    model.prior_ = prior.mapped(basis, names)
    model.certificate_, model.trace_ = None, ()


class Half(NamedTuple):
    """Half of the rows of K clients, and how well estimates from it predict the other half."""

    clients: Likelihood
    loss: Callable[[Posterior], Array]
    """Average loss of each client's other rows, (K,), given the posterior from these."""


Halves = tuple[Half, Half]


def what_varies(
    halves: Halves | None, basis: Array, alone: NDArray[np.bool_], seed: int
) -> NDArray[np.bool_]:
    """Coordinates in which few clients differ, (d,): the intercept alone unless all predict better.

    Fewer clients than entries of a covariance cannot say how all coefficients differ together.  So half of
    the rows is asked which population predicts the other half better; without halves the intercepts, which
    ``alone`` marks, are all that differs.
    """
    everything = np.ones_like(alone)
    if halves is None:
        return alone
    totals = []
    for varying in (alone, everything):
        total = 0.0
        for half in halves:
            recoded: Any = Recoded(half.clients, basis)
            prior, _ = sample_populations(recoded, single=True, seed=seed, options=QUICK, varying=varying)
            total += float(half.loss(posterior(half.clients, prior.mapped(basis))).mean())
        totals.append(total)
    return everything if totals[1] < totals[0] else alone


def predicts_better(halves: Halves | None, basis: Array, seed: int) -> bool:
    """Does a mixture predict half of each client's rows from the other half better than one Gaussian?

    By more than a standard error of the average over clients, whose losses are compared one by one; and only
    where either half of the rows is sure that there are groups.  Never without ``halves``, or of few clients.
    """
    if halves is None or halves[0].clients.n_clients < FEWEST:
        return False
    gains = []
    for half in halves:
        losses = []
        for kind in ("gaussian", "mixture"):
            model = VANEB(kind, seed=seed, options=QUICK).fit(Recoded(half.clients, basis))
            if kind == "mixture" and model.prior_.group_counts()[0] < 2:
                return False
            losses.append(half.loss(posterior(half.clients, model.prior_.mapped(basis))))
        gains.append(losses[0] - losses[1])
    gain = np.mean(gains, axis=0)
    return bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


def halves_of_clients(rows: GroupedRows, family: Family, points: Array, seed: int) -> Halves | None:
    """Halves of the rows of those that have two or more; ``points`` are near the clients' estimates."""
    enough = np.flatnonzero(rows.n_rows >= 2)
    if not len(enough):
        return None
    first, second = halves_of_rows(rows.take(enough), seed)
    if family.code == GAUSSIAN:
        parts = [LossSums.of(half, family, points[enough]) for half in (first, second)]
        return halves_of_sums(parts[0], parts[1], family)

    def half(own: GroupedRows, other: GroupedRows) -> Half:
        def loss(after: Posterior) -> Array:
            mean = expected_response(family, after, other.client_of_row, other.design, other.offset)
            found = row_losses(family.name, other.response, mean)
            return np.add.reduceat(found, other.starts[:-1]) / other.n_rows

        return Half(exact_likelihood(own, family), loss)

    return half(first, second), half(second, first)


def halves_of_sums(first: LossSums, second: LossSums, family: Family) -> Halves | None:
    """The same from sums: the loss of the other rows at the posterior mean, as a quadratic.

    For least squares that is what the rows say: half their squared errors.
    """
    if not first.n_clients:
        return None

    def half(own: LossSums, other: LossSums) -> Half:
        return Half(own.likelihood(family), lambda after: other.at(after.mean) / other.n)

    return half(first, second), half(second, first)


def halves_of_rows(rows: GroupedRows, seed: int) -> tuple[GroupedRows, GroupedRows]:
    """Half of each client's rows, taken at random, and the others."""
    first = first_halves(rows, seed)
    return some_rows(rows, first), some_rows(rows, ~first)


def first_halves(rows: GroupedRows, seed: int) -> NDArray[np.bool_]:
    """Whether a row is in the first half of its client's rows, (N,).

    Rows come in the order of their values.  Every second one would make halves more alike than rows that are
    independent, and a population too wide would then seem to predict best.  Chance is a client's own, drawn
    from its rows: it makes the same halves where no other client's rows are.
    """
    place = np.arange(len(rows.response)) - np.repeat(rows.starts[:-1], rows.n_rows)
    columns = np.column_stack([rows.design, rows.response, rows.offset])
    values = np.frombuffer(columns.tobytes(), np.uint64).reshape(len(place), -1)
    number = np.arange(values.shape[1]).astype(np.uint64)
    marks = _scrambled(np.add(values, number, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    own = np.add.reduceat(_scrambled(marks), rows.starts[:-1])[rows.client_of_row]
    chance = _scrambled(own + _scrambled(place.astype(np.uint64) + np.uint64(seed << 32)))
    first = np.zeros(len(place), dtype=bool)
    first[np.lexsort((chance, rows.client_of_row))] = place % 2 == 0
    return first


def _scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The mixing step of splitmix64: numbers that look random, the same for the same numbers."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def some_rows(rows: GroupedRows, mask: NDArray[np.bool_]) -> GroupedRows:
    """Some of the rows, of the clients that have any of them."""
    counts = np.bincount(rows.client_of_row[mask], minlength=rows.n_clients)
    there = np.flatnonzero(counts)
    starts = np.concatenate([[0], np.cumsum(counts[there])])
    columns = rows.design[mask], rows.response[mask], rows.offset[mask]
    return GroupedRows(*columns, starts, tuple(rows.ids[k] for k in there), rows.names)
