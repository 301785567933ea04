"""The noise is what (epsilon, delta) needs, and no more; and the report says how much it is."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")
from scipy.stats import norm

from vaneb import ClientReport, InvalidOption, Prior
from vaneb.covariance import ConstantDiagonal, ConstantFull
from vaneb.flower.client_data import LocalModel
from vaneb.flower.personalise import own_posterior
from vaneb.flower.privacy import Mechanism, delta_of, noise_for
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import gaussian


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_noise_is_as_small_as_may_be(epsilon, delta):
    noise = noise_for(epsilon, delta)
    assert delta_of(epsilon, noise) <= delta * (1 + 1e-6)
    assert delta_of(epsilon, 0.999 * noise) > delta
    if epsilon < 1:
        # The classical bound, valid there, needs more.
        assert noise < np.sqrt(2 * np.log(1.25 / delta)) / epsilon


def test_delta_is_the_hockey_stick_divergence():
    """delta = integral of (p - e^epsilon q)_+ for N(1, s^2) against N(0, s^2), by a sum."""
    epsilon, noise = 0.7, 1.3
    x = np.linspace(-15, 15, 2_000_001)
    excess = norm.pdf(x, 1, noise) - np.exp(epsilon) * norm.pdf(x, 0, noise)
    total = float(np.maximum(excess, 0).sum() * (x[1] - x[0]))
    assert delta_of(epsilon, noise) == pytest.approx(total, rel=1e-6)


def test_a_release_carries_its_noise():
    mechanism = Mechanism(2.0, 1e-5, 3.0, se_range=(0.1, 1.0))
    report = ClientReport("a", np.array([1.0, -1.0]), 25.0, ConstantFull(np.eye(2)[None]), "separated")
    rng = np.random.default_rng(1)
    released = [mechanism.release(report, rng) for _ in range(4000)]
    errors = np.array([r.estimate - report.estimate for r in released])
    np.testing.assert_allclose(errors.mean(0), 0, atol=4 * mechanism.noise / np.sqrt(4000))
    np.testing.assert_allclose(errors.std(0), mechanism.noise, rtol=0.05)
    for r in released[:20]:
        variance = 1 / r.covariance.precision(np.zeros((1, 1, 2)))[0, 0]
        np.testing.assert_allclose(variance, mechanism.noise**2 + 0.37)
        # Neither the number of rows nor how the fit ended is told.
        assert (r.n, r.status) == (1.0, "private")


def test_whatever_the_data_the_release_stays_in_reach():
    """Two reports of any size differ, before noise, by no more than the noise was made for."""
    mechanism = Mechanism(1.0, 1e-5, 2.0, centre=0.5, se_range=(0.1, 1.0))

    class NoNoise(np.random.Generator):
        def standard_normal(self, size=None):
            return np.zeros(size)

    silent = NoNoise(np.random.PCG64(0))
    reports = [
        ClientReport("a", np.full(3, 1e6), 1.0, ConstantDiagonal(np.full((1, 3), 1e9))),
        ClientReport("a", np.full(3, -1e6), 1e7, ConstantDiagonal(np.zeros((1, 3)))),
    ]
    first, second = (mechanism.release(r, silent) for r in reports)
    assert np.linalg.norm(first.estimate - second.estimate) <= 4.0 + 1e-9
    # Nothing else of the reports is told.
    precision = [r.covariance.precision(np.zeros((1, 1, 3))) for r in (first, second)]
    np.testing.assert_array_equal(*precision)


def test_a_clients_own_rows_say_which_private_populations_are_likely():
    """Two populations were drawn, of which one has no place for the client."""
    prior = Prior(
        np.array([[0.0], [10.0]]), np.array([0.5, 0.5]), np.ones((2, 1, 1)), ("a",), 20, draw=np.array([0, 1])
    )
    rows = GroupedRows.from_columns(["k"] * 8, np.ones((8, 1)), np.zeros(8) + [-0.5, 0.5] * 4, names=("a",))
    model = LocalModel(rows, gaussian(1.0), "")
    question = {"prior": prior.to_wire(), "design": ""}
    at_home, mixed = (
        own_posterior(question, model, exact_likelihood(rows, model.family), 10, private=private).mean[0, 0]
        for private in (True, False)
    )
    assert at_home == pytest.approx(0.0, abs=1e-3)
    assert mixed == pytest.approx(0.5 * 10 / 9, abs=0.01)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"radius": 0.0}, "radius"),
        ({"se_range": (1.0, 0.1)}, "se-low"),
    ],
)
def test_what_protects_nothing_is_refused(options, match):
    with pytest.raises(InvalidOption, match=match):
        Mechanism(**{"epsilon": 1.0, "delta": 1e-5, "radius": 1.0, "se_range": (0.1, 1.0), **options})
