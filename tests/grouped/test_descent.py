"""The descent of a few coordinates."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import rosen, rosen_der

from vaneb.grouped.descent import descend
from vaneb.likelihood.base import Array


def valley(x: Array) -> tuple[float, Array]:
    return float(rosen(x)), rosen_der(x)


@pytest.mark.parametrize("start", [[-1.2, 1.0], [3.0, -2.0], [0.0, 0.0]])
def test_the_bottom_of_a_bent_valley(start: list[float]) -> None:
    found = descend(valley, np.array(start), 1e-8)
    assert_allclose(found.x, [1, 1], atol=1e-6)
    hessian = np.array([[802.0, -400.0], [-400.0, 200.0]])
    assert_allclose(found.inverse @ hessian, np.eye(2), atol=0.5)


def test_what_was_learned_of_the_curvature_saves_steps() -> None:
    calls = [0]

    def loss(x: Array) -> tuple[float, Array]:
        calls[0] += 1
        return valley(x)

    first = descend(loss, np.array([-1.2, 1.0]), 1e-6)
    counts, calls[0] = [calls[0]], 0
    for inverse in (None, first.inverse):
        found = descend(loss, first.x + [0.02, 0.03], 1e-6, inverse)
        assert_allclose(found.x, [1, 1], atol=1e-5)
        counts.append(calls[0])
        calls[0] = 0
    assert counts[2] < counts[1] < counts[0]


def test_steps_do_not_leave_where_the_loss_is_finite() -> None:
    with np.errstate(over="raise"):
        found = descend(lambda x: (float(np.exp(x[0]) - 3 * x[0]), np.exp(x) - 3), np.array([-8.0]), 1e-9)
    assert found.x[0] == pytest.approx(np.log(3))


def test_nothing_to_look_for() -> None:
    assert descend(lambda x: (1.0, x), np.empty(0), 1e-6).value == 1.0
