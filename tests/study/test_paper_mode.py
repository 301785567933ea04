"""Paper mode of the study: each estimator is the paper's, and statements are judged by arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from vaneb.cli import app
from vaneb.growing_tables import read_rows
from vaneb.study.paper_mode import CURVES, PAPER_ESTIMATORS, PaperClients
from vaneb.study.scenarios import simulate
from vaneb.study.statements import PRINTED, STATEMENTS, Comparison, as_markdown, examine, in_short
from vaneb.study.sweep import Cell, cells, run_sweep


@pytest.fixture(scope="module")
def replicates() -> dict[str, PaperClients]:
    sizes = {"quadratic": (40, 5), "logistic": (30, 10), "poisson": (30, 10)}
    return {
        name: PaperClients(simulate(name, *size, np.random.default_rng(3), CURVES))
        for name, size in sizes.items()
    }


@pytest.mark.parametrize("scenario", ["quadratic", "logistic", "poisson"])
@pytest.mark.parametrize("name", PAPER_ESTIMATORS)
def test_every_estimator_gives_an_estimate_to_every_client(replicates, scenario, name):
    estimated = PAPER_ESTIMATORS[name](replicates[scenario])
    assert estimated.mean.shape == replicates[scenario].sample.theta.shape
    assert np.isfinite(estimated.mean).all()
    assert (estimated.atoms is None) == (name not in ("algorithm-1", "npeb"))


def test_counts_have_the_printed_population_information(replicates):
    clients = replicates["poisson"]
    theta = np.array([1.0, -2.0, 0.5])
    for k in (0, 7):
        s = clients.sample.covariate_covariance[k]  # 0.1^2 Sigma_x
        printed = np.exp(theta @ s @ theta / 2) * s @ (np.eye(3) + np.outer(theta, theta) @ s)
        assert_allclose(clients.reports.covariance.precision(theta[None, None])[k, 0], printed)
        own = clients.fits.theta[k]
        at_own = np.exp(own @ s @ own / 2) * s @ (np.eye(3) + np.outer(own, own) @ s)
        assert_allclose(
            clients.fixed.likelihood().local_precision()[k], clients.sample.n[k] * at_own, rtol=1e-9
        )


def test_classes_have_the_empirical_information(replicates):
    clients = replicates["logistic"]
    k, rows = 2, clients.sample.rows
    z = rows.design[rows.starts[k] : rows.starts[k + 1]]
    theta = np.array([0.5, -1.0, 1.5])
    projections = [np.diag(b) for b in ([1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0])]
    total = np.zeros((3, 3))
    for row in z:
        scores = np.array([(b @ row) @ theta for b in projections])
        p = np.exp(scores) / np.exp(scores).sum()
        images = np.array([b @ row for b in projections])
        mean = p @ images
        total += sum(p[c] * np.outer(images[c], images[c]) for c in range(3)) - np.outer(mean, mean)
    assert_allclose(clients.reports.covariance.precision(theta[None, None])[k, 0], total / len(z))


def test_oracle_uses_the_working_likelihood_not_the_rows(replicates):
    clients = replicates["poisson"]
    atoms, weights = CURVES.atoms(400)
    x, n, s = clients.reports.estimate, clients.sample.n, clients.sample.covariate_covariance
    k = 4
    logs = []
    for a in atoms:
        precision = n[k] * np.exp(a @ s[k] @ a / 2) * (s[k] + np.outer(s[k] @ a, s[k] @ a))
        e = x[k] - a
        logs.append(0.5 * np.linalg.slogdet(precision)[1] - 0.5 * e @ precision @ e)
    share = weights * np.exp(np.array(logs) - max(logs))
    assert_allclose(PAPER_ESTIMATORS["oracle"](clients).mean[k], share @ atoms / share.sum(), rtol=1e-8)


# ---------------------------------------------------------------- statements

HERE, THERE = Cell("poisson", 50, 40), Cell("poisson", 200, 40)


def rows_of(cell: Cell, estimator: str, values: list[float]) -> list[dict[str, str]]:
    place = {"scenario": cell.scenario, "clients": str(cell.clients), "n_min": str(cell.n_min)}
    return [
        {**place, "estimator": estimator, "replicate": str(r), "rmse": str(v)} for r, v in enumerate(values)
    ]


def test_a_paired_comparison():
    rows = rows_of(HERE, "npeb", [1.0, 2.0, 4.0]) + rows_of(HERE, "local", [2.0, 3.1, 5.2])
    found = examine(rows, Comparison(HERE, "npeb", "local"))
    difference = np.array([-1.0, -1.1, -1.2])
    assert found.difference == pytest.approx(difference.mean())
    assert found.error == pytest.approx(difference.std(ddof=1) / np.sqrt(3))
    assert found.median == pytest.approx(-1.1)
    assert found.relative == pytest.approx(-3.3 / 10.3)
    assert found.verdict == "holds"
    assert examine(rows, Comparison(HERE, "local", "npeb")).verdict == "fails"


def test_comparisons_of_two_cells_are_not_paired_and_may_have_a_factor():
    rows = rows_of(HERE, "local", [1.0, 3.0]) + rows_of(THERE, "local", [10.0, 30.0, 20.0])
    found = examine(rows, Comparison(HERE, "local", "local", THERE, 5.0))
    assert found.difference == pytest.approx(5 * 2 - 20)
    assert found.error == pytest.approx(np.sqrt(25 * 2 / 2 + 100 / 3))
    assert found.median == pytest.approx(-10)
    assert found.replicates == 2
    assert found.verdict == "open"


def test_what_was_not_run_is_said_to_be_so():
    found = examine([], Comparison(HERE, "npeb", "local"))
    assert found.verdict == "not run"
    assert in_short("It is so", [found]) == "It is so: not run."
    rows = rows_of(HERE, "npeb", [1.0, 1.1]) + rows_of(HERE, "local", [2.0, 2.2])
    both = [examine(rows, Comparison(HERE, *pair)) for pair in (("npeb", "local"), ("local", "npeb"))]
    assert in_short("It is so", [*both, found]) == "It is so: holds in 1 of 2; fails in 1."
    one = rows_of(HERE, "npeb", [1.0]) + rows_of(HERE, "local", [2.0])
    assert examine(one, Comparison(HERE, "npeb", "local")).verdict == "open"
    assert as_markdown([]).count("not run") >= len(STATEMENTS)


def test_statements_speak_of_cells_that_are_run():
    run = set(cells(["quadratic", "logistic", "poisson"], "both"))
    for comparisons in STATEMENTS.values():
        for each in comparisons:
            assert {each.cell, each.other or each.cell} <= run
            assert {each.lower, each.higher} <= PAPER_ESTIMATORS.keys()
    assert PRINTED.keys() <= run


# ---------------------------------------------------------------- the loop and the command


def test_paper_rows_do_not_depend_on_how_they_are_come_by(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    wanted = [Cell("quadratic", 12, 5), Cell("poisson", 8, 5)]
    run_sweep(first, wanted, replicates=2, paper=True)
    run_sweep(second, wanted[::-1], replicates=1, estimators=["npeb"], paper=True)
    run_sweep(second, wanted[::-1], replicates=2, paper=True, workers=2)

    def numbers(path):
        return sorted((tuple(v for k, v in row.items() if k != "cpu_seconds")) for row in read_rows(path))

    assert numbers(first) == numbers(second)
    assert {row["estimator"] for row in read_rows(first)} == set(PAPER_ESTIMATORS)


def test_the_command_writes_table_statements_and_page(tmp_path):
    page = tmp_path / "page.html"
    options = ["--clients", "10,20", "--n-min", "5", "--replicates", "1", "-o", str(tmp_path)]
    result = CliRunner().invoke(app, ["study", "quadratic", "--paper", *options, "--report", str(page)])
    assert result.exit_code == 0, result.output
    assert "Quadratic: VANEB improves steadily with K: not run." in result.output
    assert "### The six printed numbers" in (tmp_path / "paper-statements.md").read_text()
    assert "| median |" in (tmp_path / "paper-table.md").read_text()
    assert "paper mode" in page.read_text()
    assert not (tmp_path / "replicates.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("theory", "--paper"), "--paper does not go with theory"),
        (("density", "--paper"), "--paper does not go with density"),
        (
            ("poisson", "--paper", "--estimators", "vaneb"),
            "'vaneb' is unknown; choose among oracle, algorithm-1",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, arguments, message):
    result = CliRunner().invoke(app, ["study", *arguments, "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.stderr
