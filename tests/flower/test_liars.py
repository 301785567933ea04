"""A tenth of the clients lie; the honest ones hardly notice."""

from __future__ import annotations

import numpy as np
import pytest

from vaneb import VANEB, Reports

CENTRES = np.array([[-2.0, 0.0], [1.0, 1.5], [2.0, -2.0]])
#: What honest clients' error may grow by.  Measured here: 1.40 for scattered lies, 1.16 for lies that agree
#: with each other, less than 1.1 for lies far away.
FACTOR = 1.5


def rmse(found: np.ndarray, theta: np.ndarray) -> float:
    return float(np.sqrt(((found - theta) ** 2).sum(axis=1).mean()))


def population(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parameters, standard errors and estimates of 200 clients; the first 20 may lie."""
    theta = CENTRES[rng.integers(0, 3, 200)] + 0.2 * rng.standard_normal((200, 2))
    errors = rng.uniform(0.3, 0.8, (200, 2))
    return theta, errors, theta + errors * rng.standard_normal((200, 2))


@pytest.fixture(scope="module")
def before() -> float:
    """The honest clients' error among themselves: the same whatever the others say."""
    theta, errors, estimate = population(np.random.default_rng(8))
    honest = Reports(estimate[20:], standard_errors=errors[20:])
    return rmse(VANEB().fit(honest).personalize(honest).mean, theta[20:])


@pytest.mark.parametrize("kind", ["scattered", "one place", "far away"])
def test_honest_clients_error_grows_by_no_more_than_the_factor(before, kind):
    rng = np.random.default_rng(8)
    theta, errors, estimate = population(rng)
    lies = {
        "scattered": rng.uniform(-5, 5, (20, 2)),
        "one place": 1e-3 * rng.standard_normal((20, 2)),
        "far away": rng.uniform(-1e6, 1e6, (20, 2)),
    }[kind]
    everyone = Reports(
        np.concatenate([lies, estimate[20:]]),
        standard_errors=np.concatenate([np.full((20, 2), 1e-3), errors[20:]]),
    )
    after = rmse(VANEB().fit(everyone).personalize(everyone).mean[20:], theta[20:])
    local = rmse(estimate[20:], theta[20:])
    assert before < 0.9 * local
    assert after <= FACTOR * before, (before, after, local)
    # They still gain from taking part.
    assert after < 0.7 * local
