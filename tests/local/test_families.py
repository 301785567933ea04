"""Every family in one parametrised test: finite differences, densities, expected curvature."""

import numpy as np
import pytest
from scipy import stats

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.local import families
from vaneb.local.data import GroupedRows
from vaneb.study.scenarios import CLASS_PROJECTIONS

RNG = np.random.default_rng(0)
N = 400
ETA = RNG.normal(size=N) * 1.5
MU = np.exp(ETA)
SCORES = RNG.normal(size=(N, 2)) * 2

CASES = {
    "gaussian": (families.gaussian(0.7), ETA, ETA + np.sqrt(0.7) * RNG.normal(size=N)),
    "binomial": (families.binomial(), ETA, (RNG.uniform(size=N) < 1 / (1 + np.exp(-ETA))).astype(float)),
    "poisson": (families.poisson(), ETA, RNG.poisson(MU).astype(float)),
    "gamma": (families.gamma(0.5), ETA, RNG.gamma(2.0, MU / 2.0)),
    "negative_binomial": (
        families.negative_binomial(0.4),
        ETA,
        RNG.negative_binomial(2.5, 1 / (1 + 0.4 * MU)).astype(float),
    ),
    "huber": (families.huber(1.3), ETA, ETA + RNG.standard_t(2, size=N)),
    "softmax": (
        families.shared_softmax(CLASS_PROJECTIONS),
        SCORES,
        np.argmax(np.column_stack([np.zeros(N), SCORES]) + RNG.gumbel(size=(N, 3)), axis=1).astype(float),
    ),
}


@pytest.fixture(params=CASES, name="case")
def _case(request):
    return CASES[request.param]


def difference(function, index, step):
    """Central differences of ``function`` of an (N,) or (N, C) index: the new axis is C."""
    columns = index.reshape(len(index), -1)
    parts = []
    for c in range(columns.shape[1]):
        shift = np.zeros_like(columns)
        shift[:, c] = step
        up, down = ((columns + sign * shift).reshape(index.shape) for sign in (1, -1))
        parts.append((function(up) - function(down)) / (2 * step))
    return np.stack(parts, axis=-1)


def test_derivatives_agree_with_finite_differences(case):
    family, index, y = case
    loss, first, second = family.derivatives(index, y)
    assert np.all(np.isfinite(loss))
    np.testing.assert_allclose(
        first, difference(lambda i: family.derivatives(i, y)[0], index, 1e-5), rtol=1e-6, atol=1e-7
    )
    if family.name == "huber":
        # The weight of reweighted least squares: slope = weight * residual, and never below the curvature.
        np.testing.assert_allclose(second[:, 0, 0] * (index - y), first[:, 0])
        assert second.max() <= 1
        return
    numerical = difference(lambda i: family.derivatives(i, y)[1], index, 1e-5)
    np.testing.assert_allclose(second, numerical, rtol=1e-6, atol=1e-7)


def scipy_log_density(name, index, y):
    mu = np.exp(index) if index.ndim == 1 else None
    if name == "gaussian":
        return stats.norm.logpdf(y, index, np.sqrt(0.7))
    if name == "binomial":
        return stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-index)))
    if name == "poisson":
        return stats.poisson.logpmf(y, mu)
    if name == "gamma":
        return stats.gamma.logpdf(y, 2.0, scale=mu / 2.0)
    if name == "negative_binomial":
        return stats.nbinom.logpmf(y, 2.5, 1 / (1 + 0.4 * mu))
    scores = np.column_stack([np.zeros(N), index])
    return scores[np.arange(N), y.astype(int)] - np.log(np.exp(scores).sum(1))


@pytest.mark.parametrize("name", [name for name in CASES if name != "huber"])
def test_log_likelihood_is_scipys(name):
    family, index, y = CASES[name]
    ours = family.log_constant(y, np.ones(N)) - family.derivatives(index, y)[0] / family.dispersion
    np.testing.assert_allclose(ours, scipy_log_density(name, index, y), rtol=1e-10, atol=1e-11)


def test_extreme_indices_stay_finite():
    eta = np.array([-1e4, -800.0, -40.0, 40.0, 700.0])
    for family, y in ((families.binomial(), 1.0), (families.negative_binomial(0.5), 3.0)):
        loss, first, second = family.derivatives(eta, np.full(5, y))
        assert np.isfinite(loss).all()
        assert np.isfinite(first).all()
        assert (second >= 0).all()
    scores = np.array([[-1e4, -2e4], [0.0, 0.0]])
    loss, _, _ = families.shared_softmax(CLASS_PROJECTIONS).derivatives(scores, np.array([2.0, 1.0]))
    np.testing.assert_allclose(loss, [2e4, np.log(3)])


def test_multinomial_is_shared_softmax_with_selecting_projections():
    family = families.multinomial(3, 2)
    assert family.dimension(2) == 4
    theta = np.array([0.3, -1.0, 2.0, 0.5])
    z = RNG.normal(size=(7, 2))
    scores = family.index(theta, z)
    np.testing.assert_allclose(scores, np.column_stack([z @ theta[:2], z @ theta[2:]]))
    np.testing.assert_allclose(family.index(np.tile(theta, (7, 1)), z), scores)
    np.testing.assert_allclose(family.mean(scores).sum(1), 1)
    assert family.parameter_names(("a", "b")) == ("1:a", "1:b", "2:a", "2:b")


def test_impossible_responses_and_options_are_named():
    rows = GroupedRows.from_columns(["p", "q"], np.ones((2, 1)), [1.0, 2.5])
    for family, word in (
        (families.binomial(), "0 or 1"),
        (families.poisson(), "a count"),
        (families.multinomial(3, 1), "a class"),
    ):
        with pytest.raises(InvalidReport, match=f"client 'q'.*{word}"):
            family.check(rows)
    with pytest.raises(InvalidOption, match="alpha"):
        families.negative_binomial(0.0)
    with pytest.raises(InvalidOption, match="columns"):
        families.multinomial(3, 2).check(rows)
