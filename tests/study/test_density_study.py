"""The theory's study of a prior with a density: its pieces are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import dblquad

from vaneb import paper
from vaneb.errors import InvalidOption
from vaneb.growing_tables import read_rows
from vaneb.reports import Reports
from vaneb.study.density_study import (
    CENTRES,
    DENSITY,
    ESTIMATORS,
    SPREAD,
    WaveVariance,
    as_markdown,
    density_rows,
    fine_prior,
)
from vaneb.study.rates import run_rates
from vaneb.theory import covariance_bounds


def test_variance_and_its_gradient():
    waves = WaveVariance(np.array([0.0, 1.0, 2.5]))
    points = np.random.default_rng(0).uniform(-3, 3, (1, 4, 2))
    for k in range(3):
        assert_allclose(1 / waves.precision(points)[k], 1 + np.sin(points[0] + waves.phase[k]) / 4)
    step = np.array([1e-6, 0.0])
    difference = (waves.precision(points + step) - waves.precision(points - step)) / 2e-6
    assert_allclose(waves.precision_gradient(points)[..., 0], difference, atol=1e-8)
    assert_allclose(waves.take([2, 0]).precision(points), waves.precision(points)[[2, 0]])
    bounds = covariance_bounds(waves, np.repeat(np.linspace(-np.pi, np.pi, 2001)[:, None], 2, axis=1))
    assert_allclose([bounds.lower, bounds.upper], [0.75, 1.25], rtol=1e-5)
    assert_allclose(bounds.lipschitz, 0.25 / np.sqrt(1 - 1 / 16), rtol=1e-4)  # of the logarithm


def test_the_oracle_integrates_the_density():
    waves = WaveVariance(np.array([0.7]))
    n, x = 160.0, np.array([1.2, 0.7])
    reports = Reports(x[None], n=[n], covariance=waves)

    def joint(a: float, b: float) -> float:
        theta = np.array([a, b])
        prior = np.exp(-0.5 * ((theta - CENTRES) ** 2).sum(axis=1) / SPREAD**2).sum()
        variance = (1 + np.sin(theta + 0.7) / 4) / n
        return prior * np.exp(-0.5 * ((x - theta) ** 2 / variance).sum()) / np.sqrt(variance.prod())

    box = (x[0] - 0.7, x[0] + 0.7, x[1] - 0.7, x[1] + 0.7)
    total = dblquad(lambda b, a: joint(a, b), *box)[0]
    mean = [dblquad(lambda b, a, i=i: (a, b)[i] * joint(a, b), *box)[0] / total for i in (0, 1)]
    assert_allclose(paper.Oracle(*fine_prior()).personalize(reports).mean[0], mean, atol=2e-4)
    assert_allclose(fine_prior()[1].sum(), 1)


def test_rows_keep_what_the_theory_proves():
    job = {"sweep": "K", "clients": 60, "n": 20, "replicate": 0, "seed": 1, "estimators": ESTIMATORS}
    rows = {row["estimator"]: row for row in density_rows(job)}
    assert list(rows) == ["algorithm-1", "npmle", "local", "vaneb"]
    for name in ("algorithm-1", "npmle"):
        row = rows[name]
        assert row["van_trees"] < row["oracle_risk"] < row["upper"]
        assert 0 < row["hellinger"] < 1
        assert 0 < row["hellinger_weighted"] < 1
        assert row["rate"] <= row["contraction"]
        assert row["root"] <= row["root_bound"]
    assert rows["npmle"]["mixing_gain"] <= 1e-4
    assert rows["npmle"]["below_floor"] == 0
    assert rows["local"]["hellinger"] is None
    assert rows["vaneb"]["contraction"] is None
    assert rows["vaneb"]["hellinger"] < rows["npmle"]["hellinger"]
    assert rows["vaneb"]["excess"] < rows["npmle"]["excess"] / 2


def test_it_runs_and_resumes_and_says_its_rates(tmp_path):
    path = tmp_path / "density.csv"
    run_rates(DENSITY, path, replicates=1, clients=(8, 16), n=(5, 6))
    rows = read_rows(path)
    assert len(rows) == 4 * 4
    before = path.read_bytes()
    cut = before[: before.rstrip().rfind(b"\n") + 1]
    path.write_bytes(cut)
    run_rates(DENSITY, path, replicates=1, clients=(8, 16), n=(5, 6))
    assert [r["risk"] for r in read_rows(path)] == [r["risk"] for r in rows]
    assert "| excess | local | n |" in as_markdown(rows)
    with pytest.raises(InvalidOption, match="two values or more"):
        run_rates(DENSITY, path, replicates=1, clients=(10,))
