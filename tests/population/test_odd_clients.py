"""One client that is nothing like the others moves hardly any of them, and keeps its own estimate."""

from __future__ import annotations

import numpy as np
import pytest

from vaneb.estimators import VANEB
from vaneb.likelihood.gaussian import ConstantGaussian


@pytest.mark.parametrize("clients", [60, 200])
def test_one_odd_client_hardly_moves_the_others(clients: int) -> None:
    rng = np.random.default_rng(clients)
    estimates = rng.standard_normal(clients) + 0.5 * rng.standard_normal(clients)
    precision = np.append(np.full(clients, 1 / 0.5**2), 1 / 0.3**2)[:, None]
    everyone = ConstantGaussian(np.append(estimates, 8.0)[:, None], precision)
    others = everyone.take(slice(0, clients))
    without, beside = (VANEB().fit(group).personalize(others) for group in (others, everyone))
    moved = np.abs(beside.mean - without.mean) / without.sd
    # That one client is far out says something of the tail, and so of the client next to it.
    assert np.quantile(moved, 0.95) < 0.1
    assert moved.max() < 0.6
    odd = VANEB().fit(everyone).personalize(everyone.take(slice(clients, clients + 1)))
    assert abs(odd.mean[0, 0] - 8.0) < 0.15
    assert 0.25 < odd.sd[0, 0] < 0.4
    assert odd.flag == ("unexplained",)
    assert not any(beside.flag)
