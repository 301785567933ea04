"""Nested and crossed groups of rows that are not least squares."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from vaneb.errors import InvalidOption
from vaneb.grouped import GroupedFit, fit_groups

FAMILIES = ("binomial", "poisson", "negative-binomial", "gamma")


def simulated(
    family: str, seed: int = 0, n: int = 30, m: int = 15, each: int = 3, level: float = 0.5
) -> pd.DataFrame:
    """Pupils and teachers whose intercepts differ by 0.8 and 0.6."""
    rng = np.random.default_rng(seed)
    pupil, teacher = np.repeat(np.arange(n), m * each), np.tile(np.repeat(np.arange(m), each), n)
    own, theirs = 0.8 * rng.standard_normal(n), 0.6 * rng.standard_normal(m)
    x = rng.standard_normal(len(pupil))
    mean = np.exp(level + 0.3 * x + own[pupil] + theirs[teacher])
    draws = {
        "binomial": lambda: rng.binomial(1, mean / (1 + mean)),
        "poisson": lambda: rng.poisson(mean),
        "negative-binomial": lambda: rng.negative_binomial(2, 2 / (2 + mean)),
        "gamma": lambda: rng.gamma(2, mean / 2),
    }
    columns = {"pupil": pupil, "teacher": teacher, "x": x, "y": draws[family]()}
    return pd.DataFrame(columns).assign(own=own[pupil], theirs=theirs[teacher])


def effects(fit: GroupedFit) -> np.ndarray:
    other = fit.design.others[0]
    return np.array([other.effects[other.levels[str(i)], 0] for i in range(len(other.levels))])


@pytest.mark.parametrize("family", FAMILIES)
def test_crossed_groups_are_told_apart(family: str) -> None:
    data = simulated(family)
    fit = fit_groups(data, formula="y ~ x + (1 | pupil) + (1 | teacher)", family=family)
    own = data.groupby("pupil").own.first().to_numpy()
    theirs = data.groupby("teacher").theirs.first().to_numpy()
    order = np.argsort([int(name) for name in fit.rows.ids])
    mean = fit.posterior.mean[order, 0]
    assert np.corrcoef(mean, own)[0, 1] > 0.9
    assert np.corrcoef(effects(fit), theirs)[0, 1] > 0.9
    assert np.sqrt(fit.prior.covariance[0, 0]) == pytest.approx(own.std(), rel=0.25)
    assert np.sqrt(fit.design.others[0].covariance[0, 0]) == pytest.approx(theirs.std(), rel=0.25)
    assert fit.fixed.estimate[1] == pytest.approx(0.3, abs=3 * fit.fixed.standard_error[1])
    lower, upper = fit.posterior.interval(0.9)
    truth = 0.5 + own[[int(name) for name in fit.rows.ids]]
    assert np.mean((lower[:, 0] <= truth) & (truth <= upper[:, 0])) > 0.75
    if family == "negative-binomial":
        assert fit.family.parameter == pytest.approx(0.5, rel=0.25)
    assert fit.family.dispersion == (pytest.approx(0.5, rel=0.15) if family == "gamma" else 1)


def test_the_mixed_model_is_that_of_glmmtmb() -> None:
    """glmmTMB 1.1.5 by Laplace's approximation: counts of this size leave little between it and ours."""
    data = simulated("poisson", seed=1, n=20, m=12, each=2, level=3.0).sort_values("x")
    fit = fit_groups(
        data, formula="y ~ x + (1 | pupil) + (1 | teacher)", family="poisson", population="gaussian"
    )
    assert_allclose(fit.fixed.estimate, GLMMTMB["estimate"], atol=0.003)
    assert_allclose(fit.fixed.standard_error, GLMMTMB["se"], rtol=0.01)
    # Given the clients' posterior means, which allow for what is not known of their population.
    assert_allclose(effects(fit), GLMMTMB["teachers"], atol=0.01)


def test_groups_that_do_not_differ_leave_no_trace() -> None:
    """Districts add nothing to what their schools have: once they are the clients, once the others."""
    rng = np.random.default_rng(2)
    school = np.repeat(np.arange(60), 8)
    data = pd.DataFrame({"district": school // 6, "school": school})
    data["y"] = rng.poisson(np.exp(1 + 0.7 * rng.standard_normal(60)[school]))
    outer = fit_groups(data, formula="y ~ 1 + (1 | district/school)", family="poisson", client="district")
    inner = fit_groups(data, formula="y ~ 1 + (1 | district/school)", family="poisson", client="school")
    assert np.sqrt(outer.prior.covariance[0, 0]) < 0.45
    assert np.sqrt(inner.design.others[0].covariance[0, 0]) < 0.35
    assert_allclose(outer.predict(data), inner.predict(data), rtol=0.25)
    assert np.corrcoef(outer.predict(data), inner.predict(data))[0, 1] > 0.99


@pytest.mark.parametrize("family", ["huber", "multinomial"])
def test_families_that_take_one_group_only(family: str) -> None:
    data = simulated("binomial", n=8, m=4)
    with pytest.raises(InvalidOption, match=f"whose rows have one index.*not {family}"):
        fit_groups(
            data.assign(y=data.y + data.pupil % 2),
            formula="y ~ x + (1 | pupil) + (1 | teacher)",
            family=family,
        )


#: With REML = TRUE.
GLMMTMB = {
    "estimate": [2.9560556, 0.2981253],
    "se": [0.25246564, 0.009892074],
    "teachers": [
        *(0.03619, -0.04213, 0.88993, 0.70896, -1.43106, -1.13428),
        *(0.00223, -0.21201, 0.23243, 0.20239, 1.33776, -0.59040),
    ],
}


def test_other_groups_do_not_count_what_clients_have_twice() -> None:
    """Broods in places that hardly differ: the mixed model's places are all zero, the posterior's are not."""
    rng = np.random.default_rng(3)
    brood = np.repeat(np.arange(80), 4)
    data = pd.DataFrame({"place": brood // 4, "brood": brood})
    data["y"] = rng.poisson(
        np.exp(1 + 0.1 * rng.standard_normal(20)[data.place] + rng.standard_normal(80)[brood])
    )
    fit = fit_groups(data, formula="y ~ 1 + (1 | place/brood)", family="poisson", client="place")
    broods = fit_groups(data, formula="y ~ 1 + (1 | brood)", family="poisson")
    away = np.log(fit.predict(data) / broods.predict(data))
    assert away.std() < 0.07  # 0.1 where places were counted twice
