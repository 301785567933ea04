"""What CONTRIBUTING.md says of adding a part: one file, one registration, and everything else works with it.

Each file is written beside those of the package, for the test only, and registered where CONTRIBUTING says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, stats

import vaneb
from vaneb import covariance, npmle
from vaneb.covariance import from_wire
from vaneb.errors import InvalidReport
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local import family as families
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class
from vaneb.local.fit import fit_clients

Install = Callable[[Any, str, str], Any]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a file into a package, and import it."""

    def put(package: Any, name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        importlib.invalidate_caches()
        return importlib.import_module(f"{package.__name__}.{name}")

    return put


POWER = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vaneb.covariance import _checks
from vaneb.covariance.base import Array
from vaneb.covariance.coordinatewise import CoordinatewiseVariance


@dataclass(frozen=True, eq=False)
class PowerVariance(CoordinatewiseVariance):
    """V_i(t) = scale_i |t|^1.5, not below 1e-4."""

    family: ClassVar[str | None] = "power-variance"
    scale: Array
    n_clients: int = 1

    def __post_init__(self) -> None:
        scale = _checks.finite_array(self.scale, "scale", (None,))
        object.__setattr__(self, "scale", _checks.positive(scale, "scale"))
        _checks.count(self.n_clients, "n_clients")

    @property
    def dimension(self) -> int:
        return len(self.scale)

    def variance(self, points: Array) -> Array:
        return np.maximum(self.scale * np.abs(points) ** 1.5, 1e-4)

    def variance_derivative(self, points: Array) -> Array:
        value = self.scale * np.abs(points) ** 1.5
        return np.where(value > 1e-4, 1.5 * self.scale * np.sqrt(np.abs(points)) * np.sign(points), 0.0)
'''


def test_a_covariance_family(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = install(covariance, "power_of_test", POWER).PowerVariance
    monkeypatch.setitem(covariance.FAMILIES, kind.family, kind)

    own = kind(np.array([1.0, 2.0]), 30)
    again = from_wire(own.to_wire())
    assert isinstance(again, kind)
    points = np.array([[0.7, 1.9]])
    assert_allclose(again.variance(points), [[0.7**1.5, 2 * 1.9**1.5]])
    step = 1e-6
    slope = (own.shared_precision(points + step) - own.shared_precision(points - step)) / (2 * step)
    assert_allclose(slope, own.coordinate_gradient(points), rtol=1e-6)
    assert kind.stack([own.take(slice(0, 3)), own.take(np.array([4, 7]))]).n_clients == 5
    with pytest.raises(InvalidReport, match="scale: must be positive"):
        from_wire({**own.to_wire(), "scale": [1.0, -1.0]})
    with pytest.raises(InvalidReport, match="scale: differs"):
        kind.stack([own, kind(np.array([1.0, 3.0]), 2)])

    rng = np.random.default_rng(0)
    theta = rng.choice([1.0, 3.0], (30, 2))
    estimates = theta + np.sqrt(own.variance(theta) / 40) * rng.standard_normal(theta.shape)
    reports = vaneb.Reports(estimates, n=40, covariance=own)
    one = vaneb.ClientReport.from_wire(reports[3].to_wire())
    assert_allclose(one.covariance.variance(points), own.variance(points))
    found = vaneb.VANEB("discrete").fit(reports)
    assert found.certificate_.reached
    error = ((found.personalize(reports).mean - theta) ** 2).mean()
    assert error < 0.5 * ((estimates - theta) ** 2).mean()


LOGISTIC_NOISE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vaneb.local.family.base import Array, Family
from vaneb.local.family.losses import Losses, scalar
from vaneb.vector_math import exp, log


@scalar
def value(eta, y, a):
    r = abs(eta - y)
    return r + 2.0 * log(1.0 + exp(-r))


@scalar
def derivatives(eta, y, a):
    r = eta - y
    e = exp(-abs(r))
    slope = (1.0 - e) / (1.0 + e)
    return abs(r) + 2.0 * log(1.0 + e), slope if r > 0.0 else -slope, 2.0 * e / (1.0 + e) ** 2


@dataclass(frozen=True, eq=False)
class LogisticNoise(Family):
    """A mean with logistic noise of scale 1, whose tails are heavier than a Gaussian's."""

    name: ClassVar[str] = "logistic-noise"
    losses: ClassVar[Losses] = Losses(value, derivatives)

    def variance(self, mean: Array) -> Array:
        return np.full_like(mean, np.pi**2 / 3)
'''


def test_a_glm_family(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(families, "logistic_noise_of_test", LOGISTIC_NOISE)
    entry = ("logistic_noise_of_test", "LogisticNoise")
    monkeypatch.setitem(families.FAMILIES, "logistic-noise", entry)

    rng = np.random.default_rng(1)
    clients, each = 25, 12
    client = np.repeat(np.arange(clients), each)
    x = rng.normal(size=len(client))
    theta = np.array([2.0, 1.0]) + rng.normal(size=(clients, 2)) * [1.0, 0.0]
    y = theta[client, 0] + theta[client, 1] * x + rng.logistic(size=len(client))
    design = np.column_stack([np.ones(len(client)), x])
    rows, family = GroupedRows.from_columns(client, design, y), family_class("logistic-noise")()
    fits = fit_clients(rows, family)
    assert fits.exists.all()

    def minus_log_density(t: np.ndarray, k: int) -> float:
        own = client == k
        return -stats.logistic.logpdf(y[own], design[own] @ t).sum()

    for k in (0, 7):
        best = optimize.minimize(minus_log_density, fits.theta[k] + 0.1, args=(k,), method="BFGS")
        assert_allclose(fits.theta[k], best.x, atol=1e-4)
    at = rng.normal(size=(3, 2))
    table = exact_likelihood(rows, family, fits).log_likelihood(at)
    want = [[-minus_log_density(t, k) for t in at] for k in range(clients)]
    assert_allclose(table, want, rtol=1e-9)

    frame = pd.DataFrame({"site": client, "x": x, "y": y})
    fit = vaneb.grouped.fit_groups(frame, client="site", formula="y ~ x", family="logistic-noise")
    error = ((fit.posterior.mean[:, 0] - theta[:, 0]) ** 2).mean()
    assert error < ((fits.theta[:, 0] - theta[:, 0]) ** 2).mean()


ONE_ATOM = '''
import numpy as np

from vaneb.npmle.fit import Fit, Step
from vaneb.npmle.pseudo_em import pseudo_em
from vaneb.npmle.search import certify


def one_atom(likelihood, *, tol, rng, progress=None):
    """The best population of a single atom, by EM from the mean of the estimates."""
    start = likelihood.local_estimates().mean(axis=0, keepdims=True)
    atoms, weights, trace = pseudo_em(likelihood, start, np.ones(1), 20)
    average = float(likelihood.log_likelihood(atoms).mean())
    certificate = certify(likelihood, atoms, weights, rng, tol=tol)
    return Fit(atoms, weights, certificate, (*trace, Step(average, 1, certificate.gap)), average)
'''


def test_a_solver(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(npmle, "one_atom_of_test", ONE_ATOM)
    monkeypatch.setitem(npmle.SOLVERS, "one-atom", ("one_atom_of_test", "one_atom"))

    rng = np.random.default_rng(2)
    se = rng.uniform(0.5, 1.5, 40)
    same, apart = 3 + se * rng.standard_normal(40), np.where(np.arange(40) < 20, 0.0, 30.0)
    mean = np.average(same, weights=1 / se**2)
    found = vaneb.VANEB(solver="one-atom").fit(vaneb.Reports(same, standard_errors=se))
    assert_allclose(found.prior_.atoms, [[mean]], rtol=1e-9)
    assert found.kind == "discrete"
    two = vaneb.VANEB(solver="one-atom").fit(vaneb.Reports(apart + same, standard_errors=se))
    assert two.certificate_.gap > 1
    assert not two.certificate_.reached
