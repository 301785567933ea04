"""A malicious server that asks more than once: each answer is harmless, and all of them together are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from flower.test_policy import PLAIN, Site, site
from vaneb import InvalidReport, Prior
from vaneb.flower import ledger
from vaneb.flower.disclosure import Released, jointly
from vaneb.flower.site_sums import MOST_CLIENTS, SiteSums

__all__ = ["site"]
SUMS = replace(PLAIN, form="sums")


def step(at: float) -> str:
    """-1 below, 1 above."""
    inner = f"dose - {at:.9f}".replace("- -", "+ ")
    return f"response ~ I(({inner}) / abs({inner}))"


def gaps(site: Site, *places: int) -> list[float]:
    """Between two neighbouring doses."""
    dose = np.sort(pd.read_csv(site.data).dose.to_numpy())
    return [float(dose[k : k + 2].mean()) for k in places]


def test_no_seed_gives_other_halves(site):
    """Sums of forty random halves are forty equations for forty responses."""
    first = site.ask(SUMS).content["report"]
    for seed in range(1, 6):
        again = site.ask(replace(SUMS, seed=seed)).content["report"]
        for name in ("n", "hessian", "gradient"):
            np.testing.assert_array_equal(again[name], first[name])


def test_two_columns_do_not_part_at_one_row(site):
    """The sums above two thresholds differ by the response of the one patient between them."""
    one, two = gaps(site, 19, 20)
    assert site.ask(replace(PLAIN, formula=step(one))).content is not None
    site.refuses(replace(PLAIN, formula=step(two)), "with what has left before, a row has a leverage of 1.00")
    # Nor by way of another mode, or under another name of the same rows.
    evaluate = replace(PLAIN, formula=step(two), mode="evaluate")
    site.refuses(evaluate, "with what has left before", "evaluate", {"kind": "local"})
    (far,) = gaps(site, 32)
    assert site.ask(replace(PLAIN, formula=step(far))).content is not None


def test_many_small_models_are_no_way_around_a_large_one(site):
    """Inversion with as many coefficients as rows, in instalments."""
    site.rules(studies=1000, refusals=1000, rows_per_level=1)
    answered = [
        place
        for place in range(4, 36)
        if site.ask(replace(PLAIN, formula=step(*gaps(site, place)))).content is not None
    ]
    # An intercept, eleven steps and the response: three rows for each column.
    assert len(answered) == 11
    reasons = [entry.get("reason", "") for entry in ledger.read_ledger(site.own)]
    assert any("with what has left before, 14 coefficients for 40 rows" in reason for reason in reasons)


def test_the_same_question_is_answered_however_much_has_left(site):
    for formula in ("response ~ dose", "response ~ secret", "response ~ dose + secret"):
        assert site.ask(replace(SUMS, formula=formula)).content is not None
    for formula in ("response ~ dose", "response ~ secret"):
        assert site.ask(replace(SUMS, formula=formula)).content is not None


def test_rows_of_several_releases_are_put_beside_each_other():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(12, 2)), rng.normal(size=(10, 3))
    marks, nobody, whole = np.arange(12, dtype=np.uint64), np.zeros(12, np.uint64), np.ones(12, bool)
    first = Released(marks, nobody, a, whole)
    second = Released(marks[::-1][:10], nobody[:10], b, whole[:10])  # rows 11, 10, ... 2
    (joint,) = jointly([first, second], lambda one: one.columns)
    np.testing.assert_array_equal(joint, np.hstack([a, np.vstack([np.zeros((2, 3)), b[::-1]])]))
    # Halves are columns of their own.
    half = marks < 4
    (joint,) = jointly([Released(marks, nobody, a, half)], lambda one: one.columns)
    np.testing.assert_array_equal(joint, np.hstack([a * half[:, None], a * ~half[:, None]]))
    # Rows that are equal are not one row.
    same = Released(np.zeros(12, np.uint64), nobody, np.ones((12, 1)), whole)
    (joint,) = jointly([same, same], lambda one: one.columns)
    np.testing.assert_array_equal(joint, np.ones((12, 2)))
    # Sums of one ward do not mix with those of another.
    wards = Released(marks, np.repeat(np.array([1, 2], np.uint64), 6), a, whole)
    found = list(jointly([wards], lambda one: one.columns))
    np.testing.assert_array_equal(np.vstack(found), a)
    assert len(found) == 2


# ---------------------------------------------------------------- what stays at the site is an oracle, too


def prior_of(names: tuple[str, ...], atoms: int = 2) -> dict:
    wire = Prior(
        np.arange(atoms)[:, None] + np.zeros(len(names)), np.full(atoms, 1 / atoms), None, names
    ).to_wire()
    return {"prior": wire | {name: np.asarray(wire[name]) for name in ("atoms", "weights")}}


def test_a_posterior_does_not_tell_which_patients_there_are(site):
    """Whether names agree would tell it, for any factor: the policy holds before they are compared."""
    names = tuple(f"C(patient)[patient{k:03d}]" for k in range(40))
    ids = replace(SUMS, formula="response ~ 0 + C(patient)")
    for guess in (names, names[:-1]):
        site.refuses(ids, "coefficients for 40 rows", "personalise", prior_of(guess))


def test_nor_is_it_asked_for_without_end(site):
    site.rules(exchanges=3, atoms=50)
    question = prior_of(("Intercept", "dose"))
    site.refuses(SUMS, "atoms: a population of 51", "personalise", prior_of(("Intercept", "dose"), 51))
    for _ in range(2):
        assert site.ask(SUMS, "personalise", question).content == {"kept": True}
    site.refuses(SUMS, "exchanges: this site answers 3", "personalise", question)


# ---------------------------------------------------------------- a site and its server


def test_a_site_is_not_most_of_the_population_by_its_own_word():
    def wards(w: int) -> dict:
        return {
            "id": "north",
            "n": np.full((w, 2), 10),
            "point": np.zeros((w, 1)),
            "loss": np.ones((w, 2)),
            "gradient": np.zeros((w, 2, 1)),
            "hessian": np.ones((w, 2, 1)),
            **{name: np.ones((w, 1)) for name in ("mean", "scale")},
            **{name: np.ones(w) for name in ("squares", "freedom")},
        }

    assert SiteSums.from_wire(wards(MOST_CLIENTS)).whole.n_clients == MOST_CLIENTS
    with pytest.raises(InvalidReport, match="1001 clients of one site"):
        SiteSums.from_wire(wards(MOST_CLIENTS + 1))
