"""VANEB and the estimators it is compared with: all ``fit(reports)`` and ``personalize(reports)``.

Every estimator follows scikit-learn's conventions: options are stored as given, ``get_params`` /
``set_params`` / ``clone`` work, and what a fit learned ends in an underscore.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from numbers import Real
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from vaneb.adamix import adamix
from vaneb.blocks import Progress, one_blas_thread
from vaneb.covariates import (
    Effects,
    augmented,
    effects_of,
    learn_covariates,
    parameter_names,
    posterior_with,
    varying,
)
from vaneb.display import Shown
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.contaminated import OUTLIERS, with_outliers
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.noise_check import noise_notes
from vaneb.npmle import SOLVERS, solver
from vaneb.npmle.fit import Certificate, Fit, Step
from vaneb.npmle.support import atom_variances
from vaneb.population.options import Options
from vaneb.population.sampler import Sampling, sample_populations
from vaneb.posterior import Posterior, posterior
from vaneb.prior import Prior
from vaneb.semidefinite import covariance_of_estimates

POPULATIONS = ("auto", "mixture", "gaussian", "discrete")
#: With fewer clients than these the results carry a note.
FEW_CLIENTS = 5


class Estimator(Shown):
    """Options in, fitted attributes out."""

    @classmethod
    def _parameter_names(cls) -> list[str]:
        if cls.__init__ is object.__init__:
            return []
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options, by name."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **parameters: Any) -> Self:
        """Change some of the options."""
        for name, value in parameters.items():
            if name not in self._parameter_names():
                known = ", ".join(self._parameter_names())
                raise InvalidOption(f"{type(self).__name__} has no option {name!r}; it has {known}")
            setattr(self, name, value)
        return self

    def fit(self, clients: Any) -> Self:
        """Learn from ``clients``: ``Reports``, or any likelihood."""
        raise NotImplementedError

    def personalize(self, clients: Any) -> Any:
        """Estimates of ``clients``, which may be others than those of the fit."""
        raise NotImplementedError

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({options})"


def as_likelihood(clients: Any) -> Likelihood:
    """Reports, or anything that already is a likelihood."""
    likelihood = clients.likelihood() if hasattr(clients, "likelihood") else clients
    if not hasattr(likelihood, "expanded"):
        raise InvalidReport(f"expected Reports, or a likelihood of clients, not {type(clients).__name__}")
    return likelihood


def labels(clients: Any) -> dict[str, tuple]:
    return {
        **_names(clients),
        "status": tuple(getattr(clients, "status", ())),
    }


class VANEB(Estimator):
    """Variance-aware nonparametric empirical Bayes.

    Parameters
    ----------
    population : "auto", "mixture", "gaussian" or "discrete"
        "mixture": a posterior over mixtures of any number of Gaussian groups, one included; what "auto"
        takes. "gaussian": a posterior over single Gaussians.  "discrete": the nonparametric maximum
        likelihood estimate, atoms with a certificate.
    solver : "certified", "pseudo-em" or "grid"
        How a discrete population is fitted; naming one asks for a discrete population.  "certified": atoms
        and weights until the gap is below ``tol``.  "pseudo-em": the paper's Algorithm 1.  "grid": weights
        over a grid that covers the estimates.
    tol : float
        Largest gap D, i.e. loss in average log-likelihood, that is accepted (discrete).
    iterations : int
        Pseudo-EM iterations (``solver="pseudo-em"``).
    seed : int
        For all random numbers.
    outliers : float
        Share of clients whose estimate may be off by more than their covariance function allows
        (``likelihood.contaminated``).  Only for reports with covariance functions of their own, and not for
        the paper's Algorithm 1, which knows no such clients.
    options : vaneb.population.options.Options
        How the posterior over populations is sampled.
    smooth : gone; see ``population``.

    Attributes
    ----------
    prior_ : Prior
    sampling_ : Sampling or None
        How well the posterior over populations was sampled.
    certificate_ : Certificate or None
        Discrete populations: how far they can be from the best one.
    effects_ : vaneb.covariates.Effects or None
        What covariates of the clients do to the centre of the population.
    notes_ : tuple of str
        What is odd about the clients' number or their standard errors, in words; empty for most.
    trace_, log_likelihood_ : tuple of Step, float
        Discrete populations: what happened on the way, and the average over clients at the end.
    """

    def __init__(
        self,
        population: str = "auto",
        solver: str | None = None,
        tol: float = 1e-4,
        iterations: int = 50,
        seed: int = 0,
        outliers: float = OUTLIERS,
        options: Options | None = None,
        smooth: None = None,
    ) -> None:
        self.population = population
        self.solver = solver
        self.tol = tol
        self.iterations = iterations
        self.seed = seed
        self.outliers = outliers
        self.options = options
        self.smooth = smooth

    prior_: Prior
    effects_: Effects | None
    sampling_: Sampling | None
    notes_: tuple[str, ...]
    certificate_: Certificate | None
    trace_: tuple[Step, ...]
    log_likelihood_: float

    @classmethod
    def from_prior(cls, prior: Prior) -> Self:
        """A model with a prior that was fitted before: it personalises, it need not be fitted."""
        model = cls()
        model.prior_, model.effects_ = prior, effects_of(prior)
        return model

    @property
    def kind(self) -> str:
        """The kind of population that these options ask for."""
        if self.population == "auto":
            return "mixture" if self.solver is None else "discrete"
        return self.population

    def fit(self, clients: Any, progress: Progress | None = None, *, covariates: Any = None) -> Self:
        """Learn the population from ``clients``: ``Reports``, or any likelihood.

        ``covariates`` (K, q), an array or a data frame: what is known of the clients themselves.  They
        move the centre of the population, theta_k = B z_k + u_k; ``effects_`` is B.
        """
        self.check()
        likelihood, names = self._likelihood(clients), tuple(getattr(clients, "names", ()))
        self.sampling_, self.certificate_, self.trace_, self.effects_ = None, None, (), None
        self.notes_ = _notes(likelihood, names) if covariates is None else ()
        with one_blas_thread():
            if self.kind == "discrete":
                if covariates is not None:
                    raise InvalidOption(
                        "covariates: a discrete population has no centre to move. Choose another population."
                    )
                fit = self._solve(likelihood, progress)
                places = atom_variances(likelihood, fit.atoms, fit.weights)
                self.prior_ = Prior(fit.atoms, fit.weights, None, names, likelihood.n_clients, places)
                self.certificate_, self.trace_ = fit.certificate, fit.trace
                self.log_likelihood_ = fit.log_likelihood
                return self
            known, differ = None, None
            if covariates is not None:
                known, d = learn_covariates(covariates, likelihood.n_clients), likelihood.dimension
                names = parameter_names(names or tuple(f"theta{i + 1}" for i in range(d)), known)
                likelihood, differ = augmented(likelihood, known, covariates), varying(d, known)
            prior, self.sampling_ = sample_populations(
                likelihood,
                single=self.kind == "gaussian",
                seed=self.seed,
                options=self.options,
                names=names,
                progress=progress,
                varying=differ,
            )
            self.prior_ = replace(prior, covariates=known)
            self.effects_ = effects_of(self.prior_)
        return self

    def _likelihood(self, clients: Any) -> Likelihood:
        return with_outliers(as_likelihood(clients), 0.0 if self.solver == "pseudo-em" else self.outliers)

    def personalize(self, clients: Any, *, covariates: Any = None) -> Posterior:
        """Each client's own posterior; ``clients`` may be ones that the fit has not seen.

        ``covariates`` as in ``fit``, where there were any.
        """
        _need(self, "prior_")
        known = self.prior_.covariates
        if (known is None) != (covariates is None):
            raise InvalidOption(
                "covariates: the population was fitted without. Leave them out."
                if known is None
                else f"covariates: the population was fitted with {', '.join(known.names)}. Give those of "
                "these clients, too."
            )
        if known is not None:
            return posterior_with(self._likelihood(clients), self.prior_, covariates, **labels(clients))
        return posterior(self._likelihood(clients), self.prior_, **labels(clients))

    def check(self) -> None:
        """Refuse options that cannot be."""
        if self.smooth is not None:
            raise InvalidOption(
                'smooth is gone: write population="discrete" for smooth="off" or 0, and nothing for "auto"'
            )
        if self.population not in POPULATIONS:
            raise InvalidOption(
                f"population must be one of {', '.join(POPULATIONS)}, not {self.population!r}"
            )
        if self.solver is not None and self.solver not in SOLVERS:
            raise InvalidOption(f"solver must be one of {', '.join(SOLVERS)}, not {self.solver!r}")
        if self.solver is not None and self.kind != "discrete":
            raise InvalidOption(
                f"solver={self.solver!r} fits discrete populations: leave it out, or write "
                'population="discrete"'
            )
        if not (isinstance(self.tol, Real) and 0 < self.tol < np.inf):
            raise InvalidOption(f"tol must be a positive number, not {self.tol!r}")
        if not (isinstance(self.iterations, int | np.integer) and self.iterations >= 0):
            raise InvalidOption(f"iterations must be a whole number, zero or more, not {self.iterations!r}")
        if not (isinstance(self.outliers, Real) and 0 <= self.outliers < 1):
            raise InvalidOption(f"outliers must be a share, from 0 to below 1, not {self.outliers!r}")

    def _solve(self, likelihood: Likelihood, progress: Progress | None) -> Fit:
        name = self.solver or "certified"
        options: dict[str, dict[str, Any]] = {
            "certified": {"proof": True},
            "pseudo-em": {"iterations": self.iterations},
        }
        rng = np.random.default_rng(self.seed)
        return solver(name)(likelihood, tol=self.tol, rng=rng, progress=progress, **options.get(name, {}))


@dataclass(frozen=True, eq=False)
class PointEstimates:
    """Personalised estimates without a posterior, as the simpler methods give them.

    Parameters
    ----------
    mean : (K, d)
    covariance : (K, d, d) or None
        What the method itself takes for the estimates' error; ``None`` if it has no notion of it.
    """

    mean: Array
    covariance: Array | None = None
    ids: tuple = ()
    names: tuple[str, ...] = ()

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper ends (K, d), where the method has a notion of its error."""
        if self.covariance is None:
            raise InvalidOption("this method gives no uncertainty, hence no intervals")
        if not 0 < level < 1:
            raise InvalidOption(f"level must lie between 0 and 1, not {level}: 0.9 is a 90% interval")
        half = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))
        return self.mean - half, self.mean + half


class Local(Estimator):
    """No sharing: every client keeps its own estimate."""

    def fit(self, clients: Any) -> Self:
        return self

    def personalize(self, clients: Any) -> PointEstimates:
        likelihood = as_likelihood(clients)
        covariance = covariance_of_estimates(likelihood.local_precision())
        return PointEstimates(likelihood.local_estimates(), covariance, **_names(clients))


class FedAvg(Estimator):
    """Full sharing: every client gets sum_k n_k theta_hat_k / sum_k n_k."""

    average_: Array

    def fit(self, clients: Any) -> Self:
        estimates = as_likelihood(clients).local_estimates()
        self.average_ = np.average(estimates, axis=0, weights=getattr(clients, "n", None))
        return self

    def personalize(self, clients: Any) -> PointEstimates:
        _need(self, "average_")
        count = as_likelihood(clients).n_clients
        return PointEstimates(np.tile(self.average_, (count, 1)), None, **_names(clients))


class NPEB(Estimator):
    """Nonparametric empirical Bayes with each client's covariance fixed at what it reported.

    What VANEB is when covariances do not depend on the parameter: the covariance function is replaced by its
    value at the client's own estimate.
    """

    def __init__(self, tol: float = 1e-4, seed: int = 0) -> None:
        self.tol = tol
        self.seed = seed

    def fit(self, clients: Any) -> Self:
        self.model_ = VANEB(population="discrete", tol=self.tol, seed=self.seed).fit(
            fixed_covariance(clients)
        )
        self.prior_, self.certificate_ = self.model_.prior_, self.model_.certificate_
        return self

    def personalize(self, clients: Any) -> Posterior:
        _need(self, "prior_")
        return posterior(fixed_covariance(clients), self.prior_, **labels(clients))


def fixed_covariance(clients: Any) -> Likelihood:
    """The same estimates with every covariance fixed at its value at the estimate."""
    likelihood = as_likelihood(clients)
    return ConstantGaussian(likelihood.local_estimates(), likelihood.local_precision())


class AdaMix(Estimator):
    """A spherical Gaussian mixture prior with MAP shrinkage; see ``vaneb.adamix``."""

    def __init__(self, components: int = 5, iterations: int = 20, rate: float = 0.5, seed: int = 0) -> None:
        self.components = components
        self.iterations = iterations
        self.rate = rate
        self.seed = seed

    def fit(self, clients: Any) -> Self:
        return self

    def personalize(self, clients: Any) -> PointEstimates:
        for name, least in (("components", 1), ("iterations", 0)):
            value = getattr(self, name)
            if not (isinstance(value, int | np.integer) and value >= least):
                raise InvalidOption(f"{name} must be a whole number, {least} or more, not {value!r}")
        if not (isinstance(self.rate, Real) and 0 < self.rate <= 1):
            raise InvalidOption(f"rate must lie between 0 and 1, not {self.rate!r}")
        likelihood = as_likelihood(clients)
        precision = likelihood.local_precision()
        if precision.ndim == 3:
            # the diagonal of the covariance, as the method has it, not of the precision
            precision = 1 / np.diagonal(covariance_of_estimates(precision), axis1=1, axis2=2)
        mean, self.mixture_ = adamix(
            likelihood.local_estimates(),
            precision,
            components=self.components,
            iterations=self.iterations,
            rate=self.rate,
            rng=np.random.default_rng(self.seed),
        )
        return PointEstimates(mean, None, **_names(clients))


class Oracle(Estimator):
    """Posterior means under the true population, which nobody knows: the best that can be done."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior

    def fit(self, clients: Any) -> Self:
        return self

    def personalize(self, clients: Any) -> Posterior:
        return posterior(as_likelihood(clients), self.prior, **labels(clients))


def notes_of_few(count: int) -> tuple[str, ...]:
    """What to know where there are few clients."""
    if count == 1:
        return ("there is one client only: nothing can be learnt from others, and it keeps its own estimate",)
    if count < FEW_CLIENTS:
        return (f"there are {count} clients only: how much clients differ is hardly known",)
    return ()


def _notes(likelihood: Likelihood, names: tuple[str, ...]) -> tuple[str, ...]:
    """What to know of the clients before results are used; () for most."""
    if few := notes_of_few(likelihood.n_clients):
        return few
    if not likelihood.is_gaussian:
        return ()
    view = likelihood.expanded(None)
    variances = np.diagonal(covariance_of_estimates(view.base_precision), axis1=1, axis2=2)
    names = names or tuple(f"parameter {i + 1}" for i in range(likelihood.dimension))
    return noise_notes(view.estimates, np.sqrt(variances), names)


def _need(model: Estimator, attribute: str) -> None:
    if not hasattr(model, attribute):
        name = type(model).__name__
        also = ", or VANEB.from_prior(prior)" if name == "VANEB" else ""
        raise InvalidOption(f"fit the model first: {name}().fit(reports){also}")


def _names(clients: Any) -> dict[str, tuple]:
    return {"ids": tuple(getattr(clients, "ids", ())), "names": tuple(getattr(clients, "names", ()))}
