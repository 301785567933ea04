"""The embedded data are the published ones, and shrinking them gives the published errors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from vaneb.commands.demo import james_stein
from vaneb.datasets import batting


def test_batting_averages_as_published() -> None:
    data = batting()
    assert len(data.players) == len(set(data.players)) == 18
    assert data.at_bats == 45
    assert data.hits.sum() == 215
    published = [0.400, 0.378, 0.356, 0.333, 0.311, 0.311, 0.289, 0.267, 0.244, 0.244]
    published += [0.222] * 5 + [0.200, 0.178, 0.156]
    assert_allclose(data.average, published, atol=5e-4)
    assert ((data.truth > 0.19) & (data.truth < 0.35)).all()


def test_reports_carry_the_binomial_variance() -> None:
    data = batting()
    reports = data.reports()
    assert reports.ids.tolist() == list(data.players)
    assert reports.names == ("average",)
    theta = data.average[:, None, None]
    assert_allclose(reports.covariance.precision(theta), 1 / (theta * (1 - theta)))
    assert (reports.n == 45).all()


def test_james_stein_keeps_a_fifth_of_the_differences() -> None:
    data = batting()
    estimate = james_stein(data.average, data.at_bats)
    kept = (estimate - estimate.mean()) / (data.average - data.average.mean())
    assert_allclose(kept, 0.212, atol=5e-4)
    total = np.sum((np.stack([data.average, estimate]) - data.truth) ** 2, axis=1)
    assert_allclose(total, [0.0755, 0.0214], atol=5e-5)


def test_james_stein_never_shrinks_past_the_mean() -> None:
    average = np.array([0.30, 0.31, 0.29, 0.305, 0.295])
    assert james_stein(average, 45) == pytest.approx(np.full(5, 0.30))
