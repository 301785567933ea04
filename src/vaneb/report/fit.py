"""A fit as a page: the sentence, the population, every client, and how good the fit is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vaneb.covariance.constant import ConstantDiagonal, ConstantFull
from vaneb.posterior import UNEXPLAINED, Posterior
from vaneb.report import words
from vaneb.report.calibration import probability_transforms
from vaneb.report.embed import numbers
from vaneb.report.gap_map import gap_map
from vaneb.report.population import Coordinates, coordinates, window
from vaneb.report.quantities import INTERCEPT, Quantity, ShownQuantity, joint_of, outcome_of, quantities_of
from vaneb.reports import Reports
from vaneb.semidefinite import standard_errors

if TYPE_CHECKING:
    from vaneb.estimators import VANEB
    from vaneb.grouped.result import GroupedFit, HeldOut
    from vaneb.prior import Prior

#: Clients and parameters that a page holds; a note says what it leaves out.
MOST_CLIENTS, MOST_PARAMETERS, MOST_NUMBERS = 20_000, 40, 300_000
MOST_ATOMS = 2_000
#: Populations, of those drawn, whose components are drawn on the page.
MOST_POPULATIONS = 100
#: Points of a density.
CURVE = 161


def fit_content(
    model: VANEB,
    posterior: Posterior,
    reports: Reports | None = None,
    *,
    level: float = 0.9,
    seconds: float | None = None,
    title: str = "Personalised estimates",
    sizes: ArrayLike | None = None,
    held_out: HeldOut | None = None,
    notes: Sequence[str] = (),
    reading: Sequence[str] = (),
    client: str | None = None,
    outcome: Quantity | None = None,
) -> dict[str, Any]:
    """Everything that the page of a fit shows.

    Parameters
    ----------
    model, posterior : fitted model (or ``VANEB.from_prior``), and the clients personalised by it.
    reports : what the clients reported, if they did; needed for calibration under a covariance function.
    level : probability of the intervals, before and after.
    seconds : that it took.
    sizes : (K,), sample sizes; those of ``reports`` by default.
    held_out : losses on test rows, where there are any.
    notes, reading : what to know of the fit, and how the input was read.
    client : what clients are, such as "hospital".
    outcome : what clients' parameters say of the outcome itself, on its own scale.
    """
    prior = posterior.population
    clients = _chosen_clients(posterior)
    room = max(1, MOST_NUMBERS // max(len(clients), 1))
    axes = coordinates(prior, posterior.mean, min(MOST_PARAMETERS, room))
    noun, exact = words.nouns(client), not _is_gaussian(posterior, reports)
    own = posterior.likelihood.local_estimates()
    errors = standard_errors(posterior.likelihood.local_precision())
    joint = joint_of(posterior)
    limits = posterior.interval(level)
    shown = [
        ShownQuantity(each, posterior, joint, limits, level)
        for each in quantities_of(joint, axes.shown, outcome)
    ]
    opens = _opens(shown)
    if sizes is None and reports is not None:
        # A report without a sample size counts as one row, which says nothing.
        sizes = reports.n if (reports.n != 1).any() else None
    certificate = getattr(model, "certificate_", None)
    # A coordinate that a client's data leave open has no estimate of its own to show.
    shown_own = np.where(np.isfinite(errors), own, np.nan)
    columns = [each.content(clients) for each in shown]
    return {
        "kind": "fit",
        "title": title,
        "sentence": words.findings(shown[opens], posterior, held_out, noun, level),
        "noun": list(noun),
        "notes": [
            *(words.sentence(note) for note in dict.fromkeys((*notes, *getattr(model, "notes_", ())))),
            *_notes(posterior, axes.shown, len(clients), noun[1]),
            *words.of_covariates(getattr(model, "effects_", None), posterior.names, noun[1]),
        ],
        "reading": list(reading),
        "details": _details(model, posterior, noun, seconds),
        "methods": words.methods(posterior, noun, level, _seen(posterior, reports, noun[0])),
        "citation": words.CITATION,
        "level": level,
        "exact": exact,
        "opens": opens,
        "prior": {
            **prior_content(prior, axes, _ranges(axes, shown_own, posterior)),
            "opens": _opens(shown[-len(axes.shown) :]),
            "percent": shown[-1].quantity.percent,
            "parameters": len(axes.shown),
        },
        "noise": numbers(_typical_noise(axes.map, errors)),
        "clients": {
            "parameters": [each.quantity.name for each in shown],
            "percent": [each.quantity.percent for each in shown],
            "ids": [joint.ids[k] for k in clients],
            "n": None if sizes is None else numbers(np.asarray(sizes)[clients]),
            **{name: [column[name] for column in columns] for name in columns[0]},
            "shrinkage": numbers(posterior.shrinkage[clients]),
            "log_marginal": numbers(posterior.log_marginal[clients]),
            "flag": [posterior.flag[k] for k in clients],
        },
        "funnels": [each.funnel(clients) for each in shown],
        "points": {
            "own": numbers(axes.of(shown_own[clients]).T),
            "mean": numbers(axes.of(posterior.mean[clients]).T),
        },
        "trace": _trace(model),
        "sampling": _sampling(model),
        "gap": None if certificate is None else gap_map(posterior, certificate),
        "tolerance": None if certificate is None else certificate.tolerance,
        "calibration": _calibration(posterior, reports, axes.shown),
        "calibrated": [prior.names[i] for i in axes.shown],
        "held_out": None if held_out is None else _held_out(held_out),
    }


def grouped_content(
    fit: GroupedFit, *, seconds: float | None = None, title: str = "Personalised coefficients"
) -> dict[str, Any]:
    """The page of a fit to grouped rows (``vaneb run``)."""
    return fit_content(
        fit.model,
        fit.posterior,
        fit.reports if fit.likelihood == "gaussian" else None,
        level=fit.level,
        seconds=seconds,
        title=title,
        sizes=fit.local.fits.n if (fit.local.fits.n != 1).any() else None,
        held_out=fit.held_out,
        notes=fit.notes,
        reading=fit.read,
        client=fit.design.client,
        outcome=outcome_of(fit),
    )


def _chosen_clients(posterior: Posterior) -> NDArray[np.intp]:
    """All clients, or flagged ones first and then as many others, evenly spaced, as a page can hold."""
    count = len(posterior)
    if count <= MOST_CLIENTS:
        return np.arange(count)
    flagged = np.flatnonzero([bool(flag) for flag in posterior.flag])[: MOST_CLIENTS // 4]
    others = np.setdiff1d(np.arange(count), flagged)
    step = np.linspace(0, len(others) - 1, MOST_CLIENTS - len(flagged)).astype(np.intp)
    return np.sort(np.concatenate([flagged, others[step]]))


def _opens(shown: Sequence[ShownQuantity]) -> int:
    """The quantity in which clients differ most clearly; an intercept only where there is nothing else.

    The outcome comes before a single parameter, since it says the same on a better known scale.
    """
    if len(shown) == 2 and shown[0].quantity.parameter is None:
        return 0
    others = [i for i, each in enumerate(shown) if each.quantity.name != INTERCEPT] or [0]
    return max(others, key=lambda i: shown[i].between)


def _notes(posterior: Posterior, shown: tuple[int, ...], clients: int, many: str) -> list[str]:
    notes = []
    if clients < len(posterior):
        notes.append(
            f"The page holds {clients:,} of {len(posterior):,} {many}: flagged ones and others evenly "
            "spaced. Numbers in the sentence above are of all; so is the table that was written."
        )
    if len(shown) < posterior.population.dimension:
        notes.append(
            f"The page shows the first {len(shown)} of {posterior.population.dimension} parameters, and "
            "principal components of all of them."
        )
    return notes


def _is_gaussian(posterior: Posterior, reports: Reports | None) -> bool:
    from vaneb.likelihood.gaussian import ConstantGaussian

    return reports is not None or isinstance(posterior.likelihood, ConstantGaussian)


def _seen(posterior: Posterior, reports: Reports | None, one: str) -> str:
    """What the fit knew of each client."""
    if not _is_gaussian(posterior, reports):
        return f"the likelihood of each {one}'s own rows"
    if reports is not None and not isinstance(reports.covariance, ConstantDiagonal | ConstantFull):
        return f"each {one}'s estimate, whose variance is a function of the parameter"
    noise = "standard error" if posterior.population.dimension == 1 else "covariance"
    return f"each {one}'s estimate and its {noise}"


def _details(model: VANEB, posterior: Posterior, noun: tuple[str, str], seconds: float | None) -> str:
    """What the population was taken for, how sure that is, and what it cost."""
    prior, d = posterior.population, posterior.population.dimension
    parts = [
        f"{len(posterior):,} {_plural_of(noun, len(posterior))} with **{d} {_plural('parameter', d)}** each. "
        f"Their population is {_population(prior)}. On average, the others take away "
        f"**{posterior.shrinkage.mean():.0%}** of the variance of the {noun[0]}'s own estimate (shrinkage). ",
        _how_sure(model),
    ]
    if seconds is not None:
        parts.append(f" It took **{seconds:.1f} seconds**.")
    return "".join(parts)


def _plural_of(noun: tuple[str, str], count: int) -> str:
    return noun[0] if count == 1 else noun[1]


def _how_sure(model: VANEB) -> str:
    certificate, sampling = getattr(model, "certificate_", None), getattr(model, "sampling_", None)
    if sampling is not None:
        return (
            "Uncertainty about the population (its centre, its width, the number of groups) is included. "
            f"Another seed would move 95% of the estimates by less than **{2.8 * sampling.error:.2g}** "
            "posterior standard deviations."
        )
    if certificate is None:
        return "The population was given, not fitted, so there is no certificate."
    searched = (
        f"largest gap found from {certificate.starts:,} starts"
        if certificate.proved is None
        else "proved everywhere"
    )
    if certificate.within is not None and certificate.proved is None:
        searched += " in the region of the estimates"
    aim = f"tolerance {certificate.tolerance:g}" + ("" if certificate.reached else ", **not reached**")
    return (
        f"No other set of atoms can fit these clients better by more than **{certificate.bound:.2g}** in "
        f"average log-likelihood ({searched}; {aim})."
    )


def _population(prior: Prior) -> str:
    words, _, rest = str(prior).partition("; ")
    return f"**{words}**" + (f" ({rest})" if rest else "")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _ranges(axes: Coordinates, own: NDArray[np.float64], posterior: Posterior) -> NDArray[np.float64]:
    """Where pictures look, (2, q): at the clients, less those that nobody is near, and at the atoms."""
    prior = posterior.population
    usual = np.array([UNEXPLAINED not in flag for flag in posterior.flag])
    usual = usual if usual.any() else ~usual
    ranges = window(axes.of(posterior.mean[usual]), axes.of(own))
    if prior.covariances is None:
        ranges = np.stack(
            [np.minimum(ranges[0], axes.of(prior.atoms[prior.shared]).min(axis=0)),
             np.maximum(ranges[1], axes.of(prior.atoms[prior.shared]).max(axis=0))]
        )  # fmt: skip
    return ranges


def prior_content(prior: Prior, axes: Coordinates, ranges: NDArray[np.float64]) -> dict[str, Any]:
    """The components, of some of the populations where they are many, heaviest first."""
    shown = np.arange(len(prior.weights))
    if prior.draw is not None:
        drawn = np.unique(np.linspace(0, prior.populations - 1, MOST_POPULATIONS).astype(np.intp))
        shown = np.flatnonzero(np.isin(prior.draw, drawn) & prior.shared)
    shown = shown[np.argsort(-prior.weights[shown], kind="stable")][:MOST_ATOMS]
    spreads = None if prior.covariances is None else axes.map @ prior.covariances[shown] @ axes.map.T
    weights = prior.weights[shown]
    return {
        "ranges": numbers(ranges.T),
        "curves": None if prior.covariances is None else _curves(prior, axes, ranges),
        "axes": list(axes.names),
        "dimension": prior.dimension,
        "words": str(prior),
        "atoms": numbers(axes.of(prior.atoms[shown])),
        "weights": numbers(weights if prior.draw is None else weights / weights.sum()),
        "spreads": None if spreads is None else numbers(spreads),
    }


def _curves(prior: Prior, axes: Coordinates, ranges: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Density of each coordinate: the average over all populations, and where 90% of them lie."""
    made = []
    for i, row in enumerate(axes.map):
        at = np.linspace(ranges[0, i], ranges[1, i], CURVE)
        assert prior.covariances is not None
        own = np.einsum("a,jab,b->j", row, prior.covariances, row)
        # A group narrower than a few pixels would be drawn as a line of any height.
        sd = np.sqrt(own + (2 * (at[1] - at[0])) ** 2)
        centre = axes.of(prior.atoms)[:, i]
        z = (at - centre[:, None]) / sd[:, None]
        parts = np.exp(-0.5 * z**2) * (prior.weights * prior.populations / (sd * np.sqrt(2 * np.pi)))[:, None]
        each = np.add.reduceat(parts, prior.starts[:-1], axis=0)
        low, high = np.quantile(each, [0.05, 0.95], axis=0)
        made.append({"mean": numbers(each.mean(axis=0)), "low": numbers(low), "high": numbers(high)})
    return made


def _typical_noise(rows: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance (q,) that the median client's noise has in each coordinate; smooths pictures of atoms."""
    finite = np.where(np.isfinite(errors), errors, np.nan)
    known = np.isfinite(finite).any(axis=0)
    median = np.zeros(errors.shape[1])
    median[known] = np.nanmedian(finite[:, known], axis=0)
    return rows**2 @ median**2


def _trace(model: VANEB) -> list[Any] | None:
    steps = getattr(model, "trace_", None)
    if not steps:
        return None
    return [[float(s.log_likelihood), s.atoms, numbers(s.gap)] for s in steps]


def _sampling(model: VANEB) -> dict[str, Any] | None:
    sampling = getattr(model, "sampling_", None)
    if sampling is None:
        return None
    prior = model.prior_
    groups = np.maximum(np.add.reduceat(prior.shared.astype(int), prior.starts[:-1]), 1)
    counts = np.bincount(groups)
    return {
        "error": sampling.error,
        "sweeps": sampling.sweeps,
        "populations": prior.populations,
        "groups": [[int(g), int(c)] for g, c in enumerate(counts) if c],
    }


def _calibration(
    posterior: Posterior, reports: Reports | None, shown: tuple[int, ...]
) -> dict[str, Any] | None:
    values = probability_transforms(posterior, reports, shown)
    if not values.shape[1]:
        return None
    bins = int(np.clip(len(values) // 15, 5, 20))
    counts = [np.histogram(column[np.isfinite(column)], bins, (0, 1))[0].tolist() for column in values.T]
    return {"counts": counts}


def _held_out(held_out: HeldOut) -> dict[str, Any]:
    return {
        "loss": held_out.loss,
        "values": {name: float(value) for name, value in held_out.values.items()},
        "rows": held_out.rows,
        "new_clients": held_out.new_clients,
    }
