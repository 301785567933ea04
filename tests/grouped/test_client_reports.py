"""Reports from rows, each client by itself: what its own least squares and likelihoods say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from vaneb.errors import InvalidReport
from vaneb.grouped.client_reports import code_rows, report_rows
from vaneb.semidefinite import covariance_of_estimates
from vaneb.tables import reports_table


def frame(seed: int = 0, sizes: tuple[int, ...] = (8, 12, 20)) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    site = np.repeat(["b", "a", "c"], sizes)
    x = rng.standard_normal(len(site))
    return pd.DataFrame({"site": site, "x": x, "y": 1 + 2 * x + rng.standard_normal(len(site))})


def test_least_squares_of_each_client() -> None:
    data = frame()
    made = report_rows(code_rows(data, client="site", formula="y ~ x"))
    assert made.ids.tolist() == ["b", "a", "c"]
    squares, freedom, products = 0.0, 0, []
    for k, (_, part) in enumerate(data.groupby("site", sort=False)):
        design = np.column_stack([np.ones(len(part)), part.x])
        theta, left, *_ = np.linalg.lstsq(design, part.y, rcond=None)
        assert_allclose(made.estimate[k], theta)
        squares, freedom = squares + left[0], freedom + len(part) - 2
        products.append(design.T @ design)
    # The residual variance is shared: degrees of freedom of all clients together.
    precision = made.n[:, None, None] * made.covariance.unit_precision
    assert_allclose(precision, np.array(products) / (squares / freedom))


def test_the_table_has_covariances_unless_a_client_has_too_few_rows() -> None:
    made = report_rows(code_rows(frame(), client="site", formula="y ~ x"))
    table = reports_table(made, covariances=True)
    assert table.column_names[-3:] == ["cov_Intercept__Intercept", "cov_Intercept__x", "cov_x__x"]
    expected = covariance_of_estimates(made.n[:, None, None] * made.covariance.unit_precision)
    assert_allclose(table["cov_Intercept__x"].to_numpy(), expected[:, 0, 1])
    one = report_rows(code_rows(frame(), client="site", formula="y ~ 1"))
    assert reports_table(one, covariances=True).column_names[-1] == "se_Intercept"
    few = report_rows(code_rows(frame(sizes=(1, 12, 20)), client="site", formula="y ~ x"))
    assert few.status[0] != "ok"
    assert "prec_x__x" in reports_table(few, covariances=True).column_names


@pytest.mark.parametrize("family", ["gaussian", "huber", "poisson", "binomial", "gamma", "multinomial"])
def test_every_family_reports(family: str) -> None:
    data = frame(1, (60, 80, 90))
    data["y"] = {
        "poisson": np.round(np.exp(data.x)),
        "binomial": (data.y > 1).astype(int),
        "gamma": np.exp(data.y / 3),
        "multinomial": pd.cut(data.y, [-99, 0, 2, 99], labels=["low", "mid", "top"]).astype(str),
    }.get(family, data.y)
    coded = code_rows(data, client="site", formula="y ~ x", family=family)
    made = report_rows(coded)
    assert made.names == coded.names
    assert len(made.names) == (4 if family == "multinomial" else 2)
    assert set(made.status) == {"ok"}


def test_missing_values_are_left_out_and_counted() -> None:
    data = frame()
    data.loc[[0, 3, 30], "x"] = np.nan
    coded = code_rows(data, client="site", formula="y ~ x")
    assert coded.dropped == 3
    assert len(coded.rows.response) == 37


def test_columns_that_are_not_there() -> None:
    with pytest.raises(InvalidReport, match="column town: missing; client names it"):
        code_rows(frame(), client="town", formula="y ~ x")
    with pytest.raises(InvalidReport, match="column years: missing; offset names it"):
        code_rows(frame(), client="site", formula="y ~ x", offset="years")
