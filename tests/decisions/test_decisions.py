"""Decisions against enumeration, arithmetic by hand, and solvers that are not ours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from vaneb import VANEB, InvalidOption, Prior, Reports
from vaneb.covariance import by_name
from vaneb.decisions import Decisions, JointPosterior
from vaneb.decisions.funnel import funnel
from vaneb.decisions.grading import BLOCKS, grade
from vaneb.decisions.selection import LEAST, most_sure, ranks_of

RNG = np.random.default_rng(0)


def decisions_of(values: np.ndarray) -> Decisions:
    clients = values.shape[1]
    ids = tuple(f"c{k}" for k in range(clients))
    return Decisions("effect", ids, values, np.zeros(clients), np.ones(clients))


def test_the_set_is_the_largest_that_the_bound_allows():
    probability = np.array([0.99, 0.85, 0.9, 0.81, 0.97])
    for wrong in (0.005, 0.05, 0.1, 0.5):
        chosen, expected = most_sure(probability, wrong)
        # All sets, one by one.
        best = max(
            (
                n
                for n in range(6)
                for who in itertools.combinations(range(5), n)
                if n == 0 or np.mean(1 - probability[list(who)]) <= wrong
            ),
            default=0,
        )
        assert chosen.sum() == best
        assert expected <= wrong
        if best:
            assert_allclose(expected, 1 - probability[chosen].mean())


def test_nobody_is_named_who_is_not_likely_to_belong_there():
    probability = np.append(np.ones(50), LEAST - 0.01)
    chosen, expected = most_sure(probability, 0.1)
    assert chosen[:50].all()
    assert not chosen[50]
    assert expected == 0
    assert most_sure(np.full(4, 0.5), 0.9)[0].sum() == 0


def test_no_more_are_named_than_there_are_places():
    values = np.tile(np.arange(20.0), (200, 1))
    found = decisions_of(values).highest(0.1, wrong=0.5)
    assert found.places == 2
    assert np.flatnonzero(found.chosen).tolist() == [18, 19]
    assert np.flatnonzero(decisions_of(values).lowest(0.1).chosen).tolist() == [0, 1]


def test_ranks_are_those_of_scipy_and_ties_share_them():
    values = RNG.standard_normal((50, 30))
    assert (ranks_of(values, values.argsort(axis=1)) == stats.rankdata(-values, axis=1)).all()
    tied = np.array([[1.0, 1.0, 0.0, 2.0]])
    assert ranks_of(tied, tied.argsort(axis=1)).tolist() == [[2, 2, 4, 1]]
    found = decisions_of(values + np.arange(30)).ranks(0.8)
    drawn = stats.rankdata(-(values + np.arange(30)), axis=1)
    inside = ((drawn >= found.lower) & (drawn <= found.upper)).mean(axis=0)
    assert_allclose(found.holds, inside)
    assert (found.holds >= 0.8).all()
    assert_allclose(found.expected, drawn.mean(axis=0))


def test_flags_are_against_the_average_of_the_others():
    values = RNG.standard_normal((400, 5)) * 0.3 + [0, 0, 0, 0, 3.0]
    found = decisions_of(values).flags()
    others = np.array([np.delete(values, k, axis=1).mean(axis=1) for k in range(5)]).T
    assert_allclose(found.above, (values > others).mean(axis=0))
    assert found.direction[4] == 1
    shifted = decisions_of(values).flags(benchmark=1.0, margin=0.5)
    assert_allclose(shifted.above, (values > 1.5).mean(axis=0))
    assert_allclose(shifted.below, (values < 0.5).mean(axis=0))


def by_integer_programming(pi: np.ndarray, t: float) -> float:
    """Best of all gradings of Kline, Rose and Walters, by SciPy's solver (HiGHS)."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    k = len(pi)
    pairs = [(i, j) for i in range(k) for j in range(k) if i != j]
    gain = np.array([(1 - t) * pi[i, j] - t * pi[j, i] for i, j in pairs])
    place = {pair: p for p, pair in enumerate(pairs)}
    rows, bounds = [], []

    def limit(entries: dict[tuple[int, int], float], most: float) -> None:
        row = np.zeros(len(pairs))
        for pair, value in entries.items():
            row[place[pair]] = value
        rows.append(row), bounds.append(most)

    for i, j in itertools.combinations(range(k), 2):
        limit({(i, j): 1, (j, i): 1}, 1)
    for i, j, m in itertools.permutations(range(k), 3):
        # i above m implies that i is above j or j above m: grades are a weak order
        limit({(i, m): 1, (i, j): -1, (j, m): -1}, 0)
        limit({(i, j): 1, (j, m): 1, (i, m): -1}, 1)
    found = milp(
        -gain,
        constraints=LinearConstraint(np.array(rows), -np.inf, np.array(bounds)),
        integrality=np.ones(len(pairs)),
        bounds=Bounds(0, 1),
    )
    return -found.fun


@pytest.mark.parametrize("seed", range(4))
def test_grades_are_the_best_of_all_gradings(seed):
    """Along the order of expected ranks nothing is lost beside all gradings."""
    from vaneb.decisions.grading import _best_cuts, _wins, _within

    rng = np.random.default_rng(seed)
    values = rng.standard_normal((500, 7)) * rng.uniform(0.3, 1.2, 7) + rng.standard_normal(7)
    pi = (values[:, :, None] > values[:, None, :]).mean(axis=0)
    order = np.argsort(stats.rankdata(-values, axis=1).mean(axis=0))
    block = np.empty(7, dtype=np.int64)
    block[order] = np.arange(7)
    wins = _wins(values, np.argsort(values, axis=1), block, 7) / 500
    assert_allclose(wins, pi[np.ix_(order, order)])
    for t in (0.6, 0.8, 0.9):
        group = _best_cuts(_within(wins), _within(wins.T), t)
        apart = group[:, None] < group
        ours = ((1 - t) * wins - t * wins.T)[apart].sum()
        assert_allclose(ours, by_integer_programming(pi, t), atol=1e-6)


def test_grades_keep_their_bound_and_use_it():
    values = RNG.standard_normal((1000, 40)) + np.repeat([0.0, 4.0, 8.0, 12.0], 10)
    found = grade(values, values.argsort(axis=1), stats.rankdata(-values, axis=1).mean(axis=0), 0.05)
    apart = found.grade[:, None] < found.grade
    wrong = (values[:, :, None] < values[:, None, :]).mean(axis=0)[apart].mean()
    assert_allclose(found.misordered, wrong)
    assert found.misordered <= 0.05
    assert len(np.unique(found.grade)) >= 4
    assert found.grade[:10].min() >= found.grade[30:].max()
    alike = RNG.standard_normal((1000, 40))
    assert (decisions_of(alike).grades(0.05).grade == 1).all()


def test_many_clients_are_graded_in_blocks_within_the_bound():
    clients = 3 * BLOCKS + 7
    values = RNG.standard_normal((300, clients)) + np.linspace(0, 10, clients)
    found = decisions_of(values).grades(0.03)
    sample = RNG.choice(clients, 150, replace=False)
    apart = found.grade[sample][:, None] < found.grade[sample]
    part = values[:, sample]
    wrong = (part[:, :, None] < part[:, None, :]).mean(axis=0)[apart].mean()
    assert abs(wrong - found.misordered) < 0.01
    assert 0.01 < found.misordered <= 0.03


def test_equal_clients_are_not_told_apart():
    values = np.repeat(RNG.standard_normal((200, 1)), 6, axis=1)
    assert (decisions_of(values).grades().grade == 1).all()


def test_limits_of_counts_are_those_of_the_distribution():
    n = np.array([20.0, 200.0, 2000.0])
    found = funnel(np.array([0.2, 0.1, 0.1]), np.ones(3), n, "binomial", 0.1)
    assert_allclose(found.observed, [4, 20, 200])
    assert_allclose(found.expected, [2, 20, 200])
    # A count jumps, so one sample size keeps more and another less; on average 5% and 0.2% lie outside.
    sizes = np.arange(30.0, 400.0)
    many = funnel(np.full(len(sizes), 0.1), np.ones(len(sizes)), sizes, "binomial", 0.1)
    below = stats.binom.cdf(np.ceil(many.lower * sizes) - 1, sizes, 0.1)
    above = stats.binom.sf(np.floor(many.upper * sizes), sizes, 0.1)
    assert_allclose((below + above).mean(axis=1), [0.05, 0.002], rtol=0.2)
    large = funnel(np.array([0.1]), np.ones(1), np.array([1e6]), "poisson", 0.1)
    assert_allclose(large.upper[0], 0.1 + 1.96 * np.sqrt(0.1 / 1e6), rtol=1e-4)


def test_a_funnel_of_estimates_is_weighed_by_precision():
    own, error = np.array([1.0, 3.0, np.nan]), np.array([1.0, 2.0, np.inf])
    found = funnel(own, error, None, None, None)
    assert_allclose(found.target, (1 + 3 / 4) / (1 + 1 / 4))
    assert_allclose(found.upper[0, 1], found.target + 1.959964 * 2)
    assert found.outside.tolist() == [0, 0, 0]


def test_contrasts_and_names():
    draws = RNG.standard_normal((100, 4, 2)) * [1.0, 5.0]
    covariance = np.tile(np.array([[1.0, 0.5], [0.5, 2.0]]), (4, 1, 1))
    joint = JointPosterior(draws, tuple("abcd"), ("x", "y"), np.zeros((4, 2)), covariance)
    assert joint.leading == "y"
    found = joint.decide({"x": 1, "y": -2})
    assert found.name == "x - 2 y"
    assert_allclose(found.values, draws[:, :, 0] - 2 * draws[:, :, 1])
    assert_allclose(found.own_error, np.sqrt(1 - 4 * 0.5 + 4 * 2.0))
    assert joint.decide("x").name == "x"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d.highest(1.5), "share 1.5: must lie"),
        (lambda d: d.highest(0.1, wrong=0), "wrong 0: must lie"),
        (lambda d: d.flags(margin=-1), "margin -1: must be"),
        (lambda d: d.flags(benchmark=np.nan), "benchmark nan: must be"),
        (lambda d: d.ranks(1.0), "level 1: must lie"),
        (lambda d: d.grades(0.7), "misordered 0.7: must lie"),
        (lambda d: d.ratio(0.0), "target 0: a ratio needs"),
    ],
)
def test_wrong_questions_are_refused(ask, message):
    with pytest.raises(InvalidOption, match=message):
        ask(decisions_of(np.zeros((100, 3))))


def test_one_client_and_two():
    alone = decisions_of(RNG.standard_normal((100, 1)))
    assert alone.ranks().upper.tolist() == [1]
    assert alone.grades().grade.tolist() == [1]
    assert alone.highest(0.1).chosen.tolist() == [True]  # there is nobody else
    both = decisions_of(RNG.standard_normal((100, 2)) + [0, 9])
    assert both.flags().direction.tolist() == [-1, 1]
    assert both.grades().grade.tolist() == [2, 1]


def test_counts_are_found_in_the_posterior():
    reports = Reports([0.1, 0.2, 0.1], n=[100, 50, 10], covariance=by_name("binomial", 1, 3), names=["rate"])
    post = VANEB.from_prior(Prior([[0.1]], [1.0], [[0.002]], names=("rate",))).personalize(reports)
    found = post.decide()
    assert (found.name, found.counted) == ("rate", "binomial")
    assert_allclose(found.funnel(0.1).expected, [10, 5, 1])
    ratio, low, high = found.ratio(0.1)
    assert ((low < ratio) & (ratio < high)).all()
    with pytest.raises(InvalidOption, match="of 'rat': there is no such parameter; choose rate"):
        post.decide("rat")


def test_answers_are_those_of_brute_force():
    """With a known population clients are independent, and a hundred thousand plain draws are easily made."""
    rng = np.random.default_rng(11)
    clients, spread = 40, 0.5
    truth, error = rng.normal(1, spread, clients), rng.uniform(0.05, 0.5, clients)
    reports = Reports(truth + error * rng.standard_normal(clients), standard_errors=error, names=["x"])
    prior = Prior(np.array([[1.0]]), np.ones(1), np.array([[[spread**2]]]))
    decisions = VANEB.from_prior(prior).personalize(reports).decide("x")
    precision = error**-2 + spread**-2
    mean = (reports.estimate[:, 0] * error**-2 + spread**-2) / precision
    draws = mean + rng.standard_normal((100_000, clients)) / np.sqrt(precision)
    ranks = (-draws).argsort(axis=1).argsort(axis=1) + 1

    ours = decisions.ranks(0.9)
    assert_allclose(ours.expected, ranks.mean(axis=0), atol=0.5)
    assert_allclose([ours.lower, ours.upper], np.quantile(ranks, [0.05, 0.95], axis=0), atol=1)
    held = ((ranks >= ours.lower) & (ranks <= ours.upper)).mean(axis=0)
    assert held.min() > 0.87
    highest, lowest = decisions.highest(0.2), decisions.lowest(0.2)
    assert_allclose(highest.probability, (ranks <= 8).mean(axis=0), atol=0.04)
    assert_allclose(lowest.probability, (ranks > clients - 8).mean(axis=0), atol=0.04)
    assert_allclose(highest.wrong, (ranks > 8)[:, highest.chosen].mean(), atol=0.02)
    others = (draws.sum(axis=1, keepdims=True) - draws) / (clients - 1)
    assert_allclose(decisions.flags().above, (draws > others).mean(axis=0), atol=0.04)
    flags = decisions.flags(1.2, margin=0.1)
    assert_allclose(flags.above, (draws > 1.3).mean(axis=0), atol=0.04)
    assert_allclose(flags.below, (draws < 1.1).mean(axis=0), atol=0.04)
    grades = decisions.grades(0.05)
    apart = grades.grade[:, None] < grades.grade[None, :]
    wrong = np.array([(draws[:20_000, [k]] < draws[:20_000]).mean(axis=0) for k in range(clients)])
    assert grades.grade.max() > 1
    assert_allclose(grades.misordered, wrong[apart].mean(), atol=0.01)
