"""Covariates of clients: against the same integral by brute force, for new clients, and wrong input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import kstest
from typer.testing import CliRunner

import vaneb
from vaneb.cli import app
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.report.calibration import probability_transforms


def clients(seed: int = 3, k: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = np.column_stack([rng.normal(50, 10, k), rng.random(k)])
    variance = rng.uniform(0.3, 1.5, k)
    theta = 2 + 0.08 * z[:, 0] - 1.5 * z[:, 1] + 0.7 * rng.standard_normal(k)
    return z, theta, theta + np.sqrt(variance) * rng.standard_normal(k), variance


def fay_herriot(z: np.ndarray, x: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, ...]:
    """Mean and sd of every theta and of B under N(B z, a), sqrt(a) and B flat: a sum over a grid of a."""
    design = np.column_stack([np.ones(len(x)), z])
    logs, parts = [], []
    for s in np.linspace(0.005, 3, 400):
        weight = 1 / (s**2 + variance)
        known = np.linalg.inv(design.T * weight @ design)
        b = known @ (design.T @ (weight * x))
        away, keep = x - design @ b, variance * weight
        logs.append(0.5 * np.log(weight).sum() + 0.5 * np.linalg.slogdet(known)[1] - 0.5 * weight @ away**2)
        spread = variance * (1 - keep) + keep**2 * np.einsum("ki,ij,kj->k", design, known, design)
        parts.append((np.concatenate([x - keep * away, b]), np.concatenate([spread, np.diagonal(known)])))
    p = np.exp(np.array(logs) - max(logs))
    p /= p.sum()
    means, variances = (np.array(column) for column in zip(*parts, strict=True))
    mean = p @ means
    return mean, np.sqrt(p @ (variances + means**2) - mean**2)


@pytest.mark.parametrize("population", ["gaussian", "auto"])
def test_against_brute_force(population: str) -> None:
    z, _, x, variance = clients()
    reports = vaneb.Reports(x[:, None], standard_errors=np.sqrt(variance)[:, None])
    model = vaneb.VANEB(population=population).fit(reports, covariates=z)
    post = model.personalize(reports, covariates=z)
    mean, sd = fay_herriot(z, x, variance)
    k = len(x)
    assert np.quantile(np.abs(post.mean[:, 0] - mean[:k]) / sd[:k], 0.95) < 0.12
    assert_allclose(post.sd[:, 0], sd[:k], rtol=0.1)
    assert_allclose(post.interval(0.9)[1][:, 0], mean[:k] + 1.645 * sd[:k], atol=0.3)
    assert model.effects_ is not None
    assert model.effects_.covariates == ("z1", "z2")
    assert (np.abs(model.effects_.mean[0] - mean[k + 1 :]) < 0.25 * sd[k + 1 :]).all()
    assert_allclose(model.effects_.sd[0], sd[k + 1 :], rtol=0.15)
    assert post.sample(2, np.random.default_rng(0)).shape == (2, k, 1)
    assert post.table().num_rows == k


def test_what_covariates_explain_is_not_shrunk_away() -> None:
    z, theta, x, variance = clients(4, 80)
    reports = vaneb.Reports(x[:, None], standard_errors=np.sqrt(variance)[:, None])
    plain = vaneb.VANEB().fit(reports).personalize(reports)
    frame = pd.DataFrame({"age": z[:, 0], "share": z[:, 1]})
    told = vaneb.VANEB().fit(reports, covariates=frame)
    errors = [
        np.mean((one.mean[:, 0] - theta) ** 2) for one in (told.personalize(reports, covariates=frame), plain)
    ]
    assert errors[0] < 0.8 * errors[1]
    # A client that nobody has seen: its covariates are all that is known of it.
    vague = vaneb.Reports(np.zeros((1, 1)), standard_errors=np.array([[1e3]]), ids=["new"])
    new = told.personalize(vague, covariates=pd.DataFrame({"age": [70.0], "share": [0.5]}))
    assert new.mean[0, 0] == pytest.approx(2 + 0.08 * 70 - 0.75, abs=0.7)


def test_covariance_functions() -> None:
    rng = np.random.default_rng(5)
    z, n = rng.standard_normal(60), rng.integers(10, 40, 60)
    truth = 1 / (1 + np.exp(1 - 0.6 * z))
    reports = vaneb.Reports(
        rng.binomial(n, truth)[:, None] / n[:, None],
        n=n,
        covariance=vaneb.covariance.by_name("binomial", 1, 60),
    )
    model = vaneb.VANEB(population="gaussian").fit(reports, covariates=z)
    post = model.personalize(reports, covariates=z)
    own = np.mean((reports.estimate[:, 0] - truth) ** 2)
    assert np.mean((post.mean[:, 0] - truth) ** 2) < 0.6 * own
    assert model.effects_ is not None
    assert model.effects_.mean[0, 0] > 3 * model.effects_.sd[0, 0]


@pytest.mark.parametrize(
    ("covariates", "message"),
    [
        (np.ones(50), "same for all clients"),
        (np.arange(49.0), "49 values for 50 clients"),
        (np.where(np.arange(50) == 7, np.nan, np.arange(50)), "client number 8"),
        (np.column_stack([np.arange(50.0), 2 * np.arange(50.0)]), "follows from the others"),
        (np.array(["a", "b"] * 25), "something else than numbers"),
        (np.zeros((2, 2, 2)), "one row for each client"),
    ],
)
def test_wrong_covariates(covariates: np.ndarray, message: str) -> None:
    _, _, x, variance = clients()
    reports = vaneb.Reports(x[:, None], standard_errors=np.sqrt(variance)[:, None])
    with pytest.raises(InvalidReport, match=message):
        vaneb.VANEB().fit(reports, covariates=covariates)


def test_covariates_at_one_end_only_and_discrete_populations() -> None:
    z, _, x, variance = clients()
    reports = vaneb.Reports(x[:, None], standard_errors=np.sqrt(variance)[:, None])
    model = vaneb.VANEB(population="gaussian").fit(reports, covariates=z)
    with pytest.raises(InvalidOption, match="fitted with z1, z2"):
        model.personalize(reports)
    with pytest.raises(InvalidReport, match="the fit had z1, z2"):
        model.personalize(reports, covariates=z[:, :1])
    with pytest.raises(InvalidOption, match="fitted without"):
        vaneb.VANEB(population="gaussian").fit(reports).personalize(reports, covariates=z)
    with pytest.raises(InvalidOption, match="no centre to move"):
        vaneb.VANEB(population="discrete").fit(reports, covariates=z)


def test_a_saved_population_knows_its_covariates(tmp_path: Path) -> None:
    z, _, x, variance = clients()
    frame = pd.DataFrame(z, columns=["age", "share"])
    reports = vaneb.Reports(x[:, None], standard_errors=np.sqrt(variance)[:, None])
    model = vaneb.VANEB().fit(reports, covariates=frame)
    post = model.personalize(reports, covariates=frame)
    for name in ("prior.json", "prior.parquet"):
        model.prior_.save(tmp_path / name)
        prior = vaneb.Prior.load(tmp_path / name)
        again = vaneb.VANEB.from_prior(prior)
        assert_allclose(again.personalize(reports, covariates=frame).mean, post.mean)
        assert_allclose(again.effects_.mean, model.effects_.mean)
        assert again.effects_.covariates == ("age", "share")
        with pytest.raises(InvalidOption, match="fitted with age, share"):
            again.personalize(reports)
        with pytest.raises(InvalidReport, match="got share, age"):
            again.personalize(reports, covariates=frame[["share", "age"]])
    # Among clients with average covariates the centre is where the line is at their means.
    average = prior.of_average_client()
    assert average.dimension == prior.parameters == 1
    assert average.mean[0] == pytest.approx(2 + 0.08 * z[:, 0].mean() - 1.5 * z[:, 1].mean(), abs=0.5)
    assert len(repr(post)) < 200


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"names": ["a"], "centre": [0.0]}, "scale missing"),
        ({"names": ["a"], "centre": [0.0], "scale": [0.0]}, "positive scale"),
        ({"names": ["a", "b"], "centre": [0.0, 1.0], "scale": [1.0, 1.0]}, "do not fit"),
    ],
)
def test_a_file_with_wrong_covariates_is_refused(wrong: dict, message: str) -> None:
    wire = vaneb.Prior(np.zeros((1, 2)), [1.0], np.eye(2)).to_wire()
    with pytest.raises(InvalidReport, match=message):
        vaneb.Prior.from_wire(wire | {"covariates": wrong})


def test_on_the_command_line_with_a_page_and_a_saved_population(tmp_path: Path) -> None:
    z, _, x, variance = clients()
    table = pd.DataFrame({"client": np.arange(len(x)), "theta_effect": x, "se_effect": np.sqrt(variance)})
    table["age"], table["share"] = z[:, 0], z[:, 1]
    table.to_csv(tmp_path / "in.csv", index=False)
    run, source = CliRunner().invoke, str(tmp_path / "in.csv")
    first = run(
        app,
        ["personalize", source, "-o", str(tmp_path / "a.csv"), "--client-covariates", "age,share"]
        + ["--prior-out", str(tmp_path / "p.json"), "--report", str(tmp_path / "page.html"), "-q"],
    )
    assert first.exit_code == 0, first.output
    page = (tmp_path / "page.html").read_text()
    assert "clients with average covariates (age, share)" in page
    assert "With one unit more of age, the expected effect changes by 0.0" in page
    given = [
        "personalize",
        source,
        "-o",
        str(tmp_path / "b.csv"),
        "--prior-in",
        str(tmp_path / "p.json"),
        "-q",
    ]
    assert run(app, given).exit_code == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    other = run(app, [*given, "--client-covariates", "age"])
    assert other.exit_code == 2
    assert "was fitted with age, share" in " ".join(other.output.split())


def test_the_page_judges_clients_by_the_line_at_their_own_covariates() -> None:
    """Seen without covariates, reports far from the middle would lie in the tails."""
    z, _, x, variance = clients(k=300)
    reports = vaneb.Reports(x[:, None], standard_errors=np.sqrt(variance)[:, None])
    post = vaneb.VANEB(population="gaussian").fit(reports, covariates=z).personalize(reports, covariates=z)
    values = probability_transforms(post, reports, (0,))[:, 0]
    assert kstest(values, "uniform").pvalue > 0.05
    covered = np.quantile(np.abs(values - 0.5), 0.9)
    assert covered == pytest.approx(0.45, abs=0.02)
