"""Three plain reports; random valid ones for property tests; and when two of them are the same."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from vaneb.reports import Reports

THETA = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
SE = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
COV = np.array([[[2.0, 0.5], [0.5, 1.0]], [[4.0, -1.0], [-1.0, 1.0]], [[1.0, 0.0], [0.0, 3.0]]])
IDS = ["north", "south", "west"]
NAMES = ["age", "dose"]

#: Text that any CSV or JSON file can hold: no control characters (but quotes, commas and the like).
TEXT = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=6).filter(
    lambda text: text.strip() == text
)
ANY_NAME = st.from_regex(r"[a-zA-Z0-9.]([a-zA-Z0-9 .]{0,3}[a-zA-Z0-9.])?", fullmatch=True)


@st.composite
def report_arguments(draw: st.DrawFn) -> dict:
    """Keyword arguments of ``Reports``: any form of uncertainty, any scale, odd ids and names."""
    n_clients, dimension = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 10.0 ** rng.integers(-4, 5, size=dimension)
    roots = rng.standard_normal((n_clients, dimension, dimension)) * scale[:, None]
    full = roots @ roots.transpose(0, 2, 1) + np.diag(scale**2)
    singular = roots[:, :, : max(dimension - 1, 1)]
    form = draw(
        st.sampled_from(["se", "variances", "covariance", "shared", "precision", "singular", "weights"])
    )
    forms = {
        "se": {"standard_errors": rng.uniform(0.1, 2, (n_clients, dimension)) * scale},
        "variances": {"covariance": rng.uniform(0.1, 2, (n_clients, dimension)) * scale**2},
        "covariance": {"covariance": full},
        "shared": {"covariance": full[0]},
        "precision": {"precision": full},
        "singular": {"precision": singular @ singular.transpose(0, 2, 1)},
        "weights": {"precision": rng.integers(0, 3, (n_clients, dimension)) * scale},
    }
    noise = forms[form]
    if form in ("variances", "shared", "weights") and n_clients == dimension > 1:
        noise = forms["covariance"]  # a square array could be either; refused, and tested elsewhere
    return {
        "theta_hat": rng.standard_normal((n_clients, dimension)) * scale,
        "n": rng.integers(1, 1000, n_clients),
        "ids": draw(st.lists(TEXT, min_size=n_clients, max_size=n_clients, unique=True)),
        "names": draw(st.lists(ANY_NAME, min_size=dimension, max_size=dimension, unique=True)),
        **noise,
    }


reports = report_arguments().map(lambda arguments: Reports(**arguments))


def assert_same(one: Reports, other: Reports, rtol: float = 0.0) -> None:
    assert one.names == other.names
    assert one.ids.tolist() == other.ids.tolist()
    assert one.status.tolist() == other.status.tolist()
    assert_allclose(one.estimate, other.estimate, rtol=rtol)
    assert_allclose(one.n, other.n, rtol=rtol)
    assert type(one.covariance) is type(other.covariance)
    assert_allclose(one.covariance.unit_precision, other.covariance.unit_precision, rtol=rtol)
