"""Reports on the wire: they come back as they were, in any order; garbage does not get through."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_strategies import assert_same, report_arguments, reports
from vaneb.errors import InvalidReport, VanebError
from vaneb.reports import ClientReport, Reports


@given(reports)
def test_wire_round_trip(made: Reports) -> None:
    wires = [json.loads(json.dumps(client.to_wire(), allow_nan=False)) for client in made]
    assert_same(made, Reports.from_clients([ClientReport.from_wire(wire) for wire in wires], made.names))


@given(report_arguments(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(arguments: dict, random) -> None:
    made = Reports(**arguments)
    order = list(range(len(made)))
    random.shuffle(order)
    per_client = {key: arguments[key] for key in ("theta_hat", "n", "ids")}
    shuffled = {key: [value[k] for k in order] for key, value in per_client.items()}
    noise_key = next(key for key in arguments if key in ("standard_errors", "covariance", "precision"))
    noise = np.asarray(arguments[noise_key])
    if noise.ndim == 3 or noise.shape == made.estimate.shape:  # not one matrix for all
        shuffled[noise_key] = noise[order]
    assert_same(made.take(order), Reports(**arguments | shuffled), rtol=1e-14)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
GOOD_WIRE = {
    "id": "a",
    "estimate": [1.0, 2.0],
    "n": 3.0,
    "covariance": {"family": "constant-diagonal", "unit_precision": [[1.0, 2.0]]},
    "status": "ok",
}


@given(JSON)
def test_garbage_is_not_a_report(wire) -> None:
    with pytest.raises(InvalidReport):
        ClientReport.from_wire(wire)


@given(st.sampled_from(sorted(GOOD_WIRE)), JSON)
def test_a_report_with_one_garbled_field_is_refused_or_valid(key: str, value) -> None:
    try:
        report = ClientReport.from_wire(GOOD_WIRE | {key: value})
    except VanebError:
        return
    assert np.isfinite(report.estimate).all()
    assert report.n > 0
    assert isinstance(report.id, str)


def test_a_wire_without_a_field_says_which() -> None:
    for key in GOOD_WIRE:
        with pytest.raises(InvalidReport, match=key):
            ClientReport.from_wire({other: value for other, value in GOOD_WIRE.items() if other != key})
