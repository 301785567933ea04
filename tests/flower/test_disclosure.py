"""Which columns' sums tell of single rows, besides those of a model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")
from vaneb import InvalidReport
from vaneb.flower import disclosure
from vaneb.flower.client_data import LocalModel, local_model
from vaneb.flower.disclosure import largest_leverage, leverage_together, part_in_last_digits, weighted_columns
from vaneb.flower.settings import Settings

RNG = np.random.default_rng(4)
N = 40
FRAME = pd.DataFrame(RNG.uniform(-1, 1, (N, 3)), columns=["x", "z", "y"])
FRAME["t"] = np.arange(N) % 2
FRAME["ward"] = np.resize(["a", "b", "c", "d"], N)
FRAME["code"] = np.resize([1, 2, 3, 4], N)
FRAME["count"] = RNG.poisson(3, N)
FRAME["cost"] = RNG.uniform(1, 2, N)


def model_of(formula: str, family: str = "gaussian", **more) -> LocalModel:
    return local_model(FRAME, Settings(formula=formula, family=family, **more))


def within(columns: np.ndarray, span: np.ndarray) -> bool:
    """Whether ``columns`` are combinations of those of ``span``."""
    left = columns - span @ np.linalg.lstsq(span, columns, rcond=None)[0]
    return bool(np.abs(left).max() < 1e-6 * np.abs(columns).max())


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ x",
        "y ~ 0 + x",
        "y ~ x + z + t",
        "y ~ C(ward) + x",
        "y ~ log(x + 2)",
        "log(y + 2) ~ x",
        "y ~ C(code)",
    ],
)
def test_in_main_effects_there_is_nothing_besides_the_columns(formula):
    model = model_of(formula)
    if "log" in formula:  # the derivative of a logarithm is another function, and has its sums, too
        assert model.besides.shape[1] > 0
    else:
        assert model.besides.shape == (N, 0)


def test_products_with_a_number_are_all_those_that_it_has_sums_with():
    model = model_of("y ~ x + z + x:z")
    x, z, y = (model.rows.design[:, 1], model.rows.design[:, 2], model.response[:, 0])
    # d/dx of the sums of products of 1, x, z, xz and y; the same for z.
    expected = np.column_stack([z**2, y * z, x * z**2, x**2, y * x, x**2 * z])
    known = np.hstack([model.rows.design, model.response])
    assert model.besides.shape == (N, 6)
    everything = np.hstack([known, model.besides])
    assert within(expected, everything)
    assert within(everything, np.column_stack([np.ones(N), known, expected]))


def test_what_is_hidden_in_an_expression_is_found():
    """An expression is no different from an interaction."""
    shown, hidden = model_of("y ~ x + z + x:z"), model_of("y ~ x + z + I(x * z)")
    assert within(hidden.besides, np.hstack([shown.rows.design, shown.response, shown.besides]))
    assert hidden.besides.shape == shown.besides.shape


def test_the_response_of_gamma_has_its_sums_with_weights():
    model = model_of("cost ~ x + z", "gamma")
    theta = np.array([[0.1, 0.2, -0.3]])
    x = model.rows.design
    pairs = np.stack([x[:, a] * x[:, b] for a in range(3) for b in range(a + 1)], axis=1)
    expected = np.exp(-x @ theta[0])[:, None] * pairs
    found = weighted_columns(model.rows, model.family, theta)
    assert within(expected, np.hstack([x, found]))
    assert within(found, np.hstack([x, expected]))


@pytest.mark.parametrize(("formula", "family"), [("count ~ x + z", "poisson"), ("t ~ x + z", "binomial")])
def test_of_canonical_families_it_has_none_besides_the_columns(formula, family):
    model = model_of(formula, family)
    assert weighted_columns(model.rows, model.family, np.array([[0.1, 0.2, -0.3]])).shape == (N, 0)


def test_an_offset_has_sums_with_the_weights_of_its_place():
    model = model_of("count ~ x", "poisson", offset="z")
    rows, theta = model.rows, np.array([[0.5, 0.3]])
    x, mean = rows.design, np.exp(rows.design @ theta[0] + rows.offset)
    found = weighted_columns(rows, model.family, theta)
    expected = mean[:, None] * np.column_stack([np.ones(N), x[:, 1], x[:, 1] ** 2])
    assert within(expected, np.hstack([x, rows.response[:, None], found]))


def test_a_column_is_a_factor_or_a_number():
    with pytest.raises(InvalidReport, match="code is a factor and a number at once"):
        model_of("y ~ C(code) + I(code * x)")


def test_a_server_does_not_say_how_long_a_site_looks(monkeypatch):
    monkeypatch.setattr(disclosure, "MOST", 5)
    with pytest.raises(InvalidReport, match="more than 5 sums of products"):
        model_of("y ~ x * z * t")


def test_columns_that_part_in_their_last_digits():
    x, z = FRAME.x.to_numpy(), FRAME.z.to_numpy()
    for parting, found in ((0.0, False), (1e-3, False), (1e-9, True), (1e-12, True)):
        assert part_in_last_digits(np.column_stack([x, x + parting * z])) is found
    assert not part_in_last_digits(np.zeros((5, 2)))
    # Years and their squares, which people write.
    years = np.arange(2000.0, 2020.0)
    assert not part_in_last_digits(np.column_stack([np.ones(20), years, years**2]))


def test_leverage_of_some_rows_together():
    ones, steps = np.ones(N), [(np.arange(N) >= k).astype(float) for k in (10, 13)]
    columns = np.column_stack([ones, *steps, FRAME.x])
    assert largest_leverage(columns) < 0.8
    assert leverage_together(columns, 2) < 0.9
    # Three rows are between the steps, and x is known.
    assert leverage_together(columns[:, :3], 3) == pytest.approx(1)
    assert leverage_together(columns, 3) > 0.98
    assert leverage_together(columns, 0) == 0


def test_leverage_where_columns_depend_on_each_other():
    x = FRAME[["x", "z"]].to_numpy()
    expected = np.einsum("ij,ij->i", x @ np.linalg.inv(x.T @ x), x).max()
    assert largest_leverage(np.column_stack([x, x @ [1.0, 2.0]])) == pytest.approx(expected)
