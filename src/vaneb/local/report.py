"""From local fits to what a client may send: estimate, sample size, covariance function, status.

Covariance functions come in two kinds and three forms:

                 constant                 empirical                      moments
    model        information at the       information as a function,     the same from the mean and
                 estimate; any            from the rows themselves;      covariance of the covariates;
                 likelihood               any likelihood                 binomial, poisson, softmax
    sandwich     A B^{-1} A at the        function from rows and         -
                 estimate; any loss       responses; gaussian,
                                          binomial, poisson

Only ``moments`` and ``constant`` keep the rows at home.  Moments describe covariates by a Gaussian, which a
few rows need not follow: with five or ten rows of counts they are sure of estimates that have run off.
For least squares and for gamma regression the information does not depend on the parameter and all forms of
the model kind are constant.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vaneb import covariance as functions
from vaneb.covariance.base import CovarianceFunction
from vaneb.errors import InvalidOption
from vaneb.local.client_sums import outer_sums
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.local.fit import LocalFits, common_dispersion, fit_clients
from vaneb.local.m_estimator import MEstimator
from vaneb.local.objective import Array
from vaneb.local.sandwich import sandwich_precision
from vaneb.reports import OK, Reports

KINDS = ("model", "sandwich")
FORMS = ("constant", "empirical", "moments")
UNIDENTIFIED = ("information", "penalised")


def report(
    rows: GroupedRows,
    model: Family | MEstimator,
    fits: LocalFits | None = None,
    *,
    kind: str | None = None,
    form: str = "constant",
    dispersion: float | None = None,
    unidentified: str = "information",
) -> Reports:
    """Reports of K clients, from their rows.

    Parameters
    ----------
    rows : the rows of K clients
    model : a family or an M-estimator
    fits : local fits of the same, made here if not given
    kind : "model" or "sandwich"; the first for likelihoods and the second for other losses by default
    form : "constant", "empirical" or "moments"
    dispersion : of the gaussian and gamma families; estimated from all clients by default
    unidentified : what a client without an estimate of its own sends.  "information": the centre of the
        quadratic that its likelihood is close to, which with its (possibly singular) precision is no
        more than its rows say.  "penalised": the penalised estimate.

    A client's status is "ok", or the outcome of its fit.
    """
    if isinstance(model, MEstimator):
        fits = model.fit(rows) if fits is None else fits
        names: tuple[str, ...] = tuple(f"theta{i + 1}" for i in range(model.dimension))
    else:
        fits = fit_clients(rows, model) if fits is None else fits
        names = model.parameter_names(rows.names)
    if kind is None:
        kind = "model" if isinstance(model, Family) and model.is_likelihood else "sandwich"
    for option, value, known in (
        ("kind", kind, KINDS),
        ("form", form, FORMS),
        ("unidentified", unidentified, UNIDENTIFIED),
    ):
        if value not in known:
            raise InvalidOption(f"{option}: choose one of {', '.join(known)}, not {value!r}")
    estimates = fits.information_form() if unidentified == "information" else fits.theta
    return Reports(
        estimates,
        n=fits.n.astype(np.float64),
        covariance=covariance_function(rows, model, fits, kind=kind, form=form, dispersion=dispersion),
        ids=rows.ids,
        names=names,
        status=[
            OK if exists else str(outcome) for exists, outcome in zip(fits.exists, fits.outcome, strict=True)
        ],
    )


def covariance_function(
    rows: GroupedRows,
    model: Family | MEstimator,
    fits: LocalFits,
    *,
    kind: str,
    form: str,
    dispersion: float | None = None,
) -> CovarianceFunction:
    """Sigma_k(theta) of K clients, of the kind and form asked for."""
    if isinstance(model, MEstimator) or not model.is_likelihood:
        name = "an M-estimator" if isinstance(model, MEstimator) else f"family {model.name!r}"
        if kind == "model" or form != "constant":
            raise InvalidOption(f"{name} has no Fisher information; use kind='sandwich', form='constant'")
        return functions.ConstantFull(sandwich_precision(rows, model, fits))
    if form != "constant" and rows.offset.any():
        raise InvalidOption(f"form={form!r} does not take an offset into account; use form='constant'")
    if form != "constant" and (rows.weight != 1).any():
        raise InvalidOption(f"form={form!r} does not take weights into account; use form='constant'")
    phi = common_dispersion(rows, model, fits) if dispersion is None else dispersion
    if not phi > 0:
        raise InvalidOption(
            f"dispersion: the responses of the {model.name} family fit without any noise. Leave out the "
            "covariate that gives the response away, or give a dispersion."
        )
    family = model.with_dispersion(phi)
    if kind == "sandwich":
        return _sandwich(rows, family, fits, form)
    if form != "constant":
        return family.information(rows, form)
    return functions.ConstantFull(fits.hessian / (family.dispersion * fits.n[:, None, None]))


def _sandwich(rows: GroupedRows, family: Family, fits: LocalFits, form: str) -> CovarianceFunction:
    if form == "constant":
        return functions.ConstantFull(sandwich_precision(rows, family, fits))
    if form == "moments" or not family.GLM:
        raise InvalidOption(
            f"family {family.name!r}: kind='sandwich' has no form {form!r}; use form='constant'"
        )
    bread = family.information(rows, form)
    assert isinstance(bread, functions.FullCovariance)
    meat = functions.EmpiricalScores(rows.design, rows.starts, rows.response, family.GLM, family.dispersion)
    return functions.SandwichCovariance(bread, meat)


def covariate_moments(design: Array, starts: NDArray[np.intp]) -> tuple[Array, Array]:
    """Mean (K, p) and covariance (K, p, p) of each client's covariates, with n_k in the denominator."""
    n = np.diff(starts)
    mean = np.add.reduceat(design, starts[:-1], axis=0) / n[:, None]
    centred = design - np.repeat(mean, n, axis=0)
    return mean, outer_sums(centred, starts) / n[:, None, None]
