"""What the door refuses, and how it is said: the client, the column, the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from report_strategies import COV, IDS, NAMES, SE, THETA
from vaneb.covariance import by_name
from vaneb.errors import InvalidReport
from vaneb.reports import Reports


def changed(array: np.ndarray, index: tuple, value: float) -> np.ndarray:
    copy = array.copy()
    copy[index] = value
    return copy


REFUSED = {
    "estimate NaN": (
        {"theta_hat": changed(THETA, (1, 0), np.nan), "standard_errors": SE},
        r"client 'south', column theta_age: the estimate is missing \(NaN\)",
    ),
    "estimate infinite": (
        {"theta_hat": changed(THETA, (2, 1), -np.inf), "standard_errors": SE},
        r"client 'west', column theta_dose: the estimate is -inf",
    ),
    "estimate beyond squaring": (
        {"theta_hat": changed(THETA, (0, 1), 1e80), "standard_errors": SE},
        r"client 'north', column theta_dose: the estimate is 1e\+80",
    ),
    "n zero": ({"n": [1, 0, 3], "standard_errors": SE}, r"client 'south', column n: the sample size is 0"),
    "n negative": ({"n": [1, 2, -3], "standard_errors": SE}, r"client 'west', column n: .*-3"),
    "n NaN": ({"n": [np.nan, 2, 3], "standard_errors": SE}, r"client 'north', column n: .*missing"),
    "n of other length": ({"n": [1, 2], "standard_errors": SE}, r"column n: shape \(2,\) for 3 clients"),
    "se zero": (
        {"standard_errors": changed(SE, (1, 1), 0)},
        r"client 'south', column se_dose: the standard error is 0",
    ),
    "se negative": (
        {"standard_errors": changed(SE, (1, 1), -0.5)},
        r"client 'south', column se_dose: the standard error is -0.5",
    ),
    "se NaN": ({"standard_errors": changed(SE, (0, 0), np.nan)}, r"client 'north', column se_age: .*missing"),
    "se infinite": (
        {"standard_errors": changed(SE, (0, 0), np.inf)},
        r"client 'north', column se_age: .*inf",
    ),
    "se underflows": ({"standard_errors": changed(SE, (0, 0), 1e-200)}, r"client 'north', column se_age"),
    "variance zero": (
        {"covariance": changed(SE, (2, 0), 0)},
        r"client 'west', column cov_age__age: the variance is 0",
    ),
    "variance negative": (
        {"covariance": changed(COV, (1, 1, 1), -1.0)},
        r"client 'south', column cov_dose__dose: the variance is -1",
    ),
    "covariance NaN": (
        {"covariance": changed(COV, (1, 1, 0), np.nan)},
        r"client 'south', column cov_age__dose: the value is missing",
    ),
    "covariance not symmetric": (
        {"covariance": changed(COV, (0, 0, 1), 0.6)},
        r"client 'north', column cov_age__dose: the matrix is not symmetric.*0\.6.*0\.5",
    ),
    "correlation beyond one": (
        {"covariance": COV + np.array([[[0, 2.0], [2.0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]])},
        r"client 'north', column cov_age__dose: 2\.5 is larger than its two diagonal entries allow",
    ),
    "covariance overflows": (
        {"covariance": COV + np.array([[[0, 1e300], [1e300, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]])},
        r"client 'north', column cov_age__dose: 1e\+300 is larger",
    ),
    "covariance singular": (
        {"covariance": changed(COV, (2,), np.ones((2, 2)))},
        r"client 'west', column cov_age__dose: the covariance is singular.*prec_",
    ),
    "precision negative": (
        {"precision": changed(SE, (1, 0), -1.0)},
        r"client 'south', column prec_age__age: the precision is -1",
    ),
    "precision NaN": (
        {"precision": changed(SE, (1, 0), np.nan)},
        r"client 'south', column prec_age__age: the precision is missing",
    ),
    "precision infinite": (
        {"precision": changed(COV, (1, 0, 0), np.inf)},
        r"client 'south', column prec_age__age",
    ),
    "precision with zero diagonal": (
        {"precision": changed(COV, (0, 0, 0), 0.0)},
        r"client 'north', column prec_age__dose: the precision is indefinite",
    ),
    "two forms": (
        {"standard_errors": SE, "covariance": SE**2},
        r"covariance, standard_errors: given together",
    ),
    "no form": ({}, r"none of them given"),
    "function without n": ({"covariance": by_name("poisson", 2, 3)}, r"column n: missing"),
    "function of other clients": (
        {"covariance": by_name("poisson", 2, 4), "n": 5},
        r"function is for 4 clients with 2 parameters, the estimates are of 3 clients with 2",
    ),
    "shape": ({"standard_errors": SE[:2]}, r"standard_errors: shape \(2, 2\) does not fit"),
    "shape of covariance": ({"covariance": COV[:2]}, r"covariance: shape \(2, 2, 2\) does not fit"),
    "empty": ({"theta_hat": np.empty((0, 2)), "standard_errors": SE}, r"theta_hat: empty"),
    "no parameters": ({"theta_hat": np.empty((3, 0)), "standard_errors": SE}, r"theta_hat: empty"),
    "mixed dimensions": (
        {"theta_hat": [[1.0, 2.0], [3.0], [4.0]], "standard_errors": SE},
        r"theta_hat: not a rect",
    ),
    "three axes": ({"theta_hat": COV, "standard_errors": SE}, r"theta_hat: shape \(3, 2, 2\)"),
    "text": ({"theta_hat": [["a", "b"]] * 3, "standard_errors": SE}, r"theta_hat: not a rectangular array"),
    "complex": ({"theta_hat": THETA * 1j, "standard_errors": SE}, r"theta_hat: .*complex"),
    "ids twice": (
        {"ids": ["a", "b", "a"], "standard_errors": SE},
        r"client 'a', column client: appears in rows 1 and 3",
    ),
    "ids empty": ({"ids": ["a", " ", "b"], "standard_errors": SE}, r"row 2, column client: empty"),
    "ids missing": (
        {"ids": ["a", None, "b"], "standard_errors": SE},
        r"row 2, column client: None is not an id",
    ),
    "ids float": (
        {"ids": [1.0, 2.5, 3.0], "standard_errors": SE},
        r"row 1, column client: 1\.0 is not an id",
    ),
    "ids too few": ({"ids": ["a", "b"], "standard_errors": SE}, r"ids: 2 ids for 3 clients"),
    "ids one string": ({"ids": "abc", "standard_errors": SE}, r"ids: expected a sequence"),
    "names too many": ({"names": ["a", "b", "c"], "standard_errors": SE}, r"names: 3 names for 2 parameters"),
    "names twice": ({"names": ["a", "a"], "standard_errors": SE}, r"names: 'a' names two parameters"),
    "names empty": ({"names": ["a", ""], "standard_errors": SE}, r"names: every parameter needs a name"),
    "status too few": ({"status": ["ok"], "standard_errors": SE}, r"status: expected 3 strings"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_place(case: str) -> None:
    arguments, message = REFUSED[case]
    with pytest.raises(InvalidReport, match=message):
        Reports(**{"theta_hat": THETA, "ids": IDS, "names": NAMES} | arguments)


def test_indefinite_matrix_within_the_bounds_of_its_diagonal() -> None:
    matrix = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])[None]
    for form in ("covariance", "precision"):
        with pytest.raises(InvalidReport, match=rf"client '0', .*the {form} is indefinite"):
            Reports(np.zeros((1, 3)), **{form: matrix})


def test_a_square_array_that_could_be_two_things_is_refused() -> None:
    with pytest.raises(InvalidReport, match="could be one matrix for all clients or a row for each"):
        Reports(THETA[:2], covariance=np.eye(2))


def test_several_culprits_are_counted() -> None:
    with pytest.raises(InvalidReport, match=r"client '0', column se_1: .* \(and 2 more clients\)"):
        Reports(THETA, standard_errors=-SE)
