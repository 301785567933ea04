"""A fit over blocks of a file is the fit of the whole, whoever does the blocks."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from vaneb import VANEB, InvalidOption, InvalidReport, Reports
from vaneb.npmle.pseudo_em import pseudo_em
from vaneb.outofcore import fit_file, personalize_file, ray_map, read_block
from vaneb.tables import write_reports


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(5)
    centres = np.array([[-2.0, 0.0], [1.0, 1.0], [2.0, -2.0]])
    theta = centres[rng.integers(0, 3, 700)]
    errors = rng.uniform(0.3, 0.8, (700, 2))
    reports = Reports(theta + errors * rng.standard_normal((700, 2)), standard_errors=errors)
    path = tmp_path_factory.mktemp("reports") / "reports.parquet"
    write_reports(path, reports)
    # Row groups that do not fit the blocks.
    pq.write_table(pq.read_table(path), path, row_group_size=130)
    return path, reports


def test_blocks_are_the_clients_they_should_be(file):
    path, reports = file
    for rows in (slice(0, 700), slice(0, 1), slice(129, 131), slice(250, 411), slice(699, 700)):
        part = read_block(str(path), rows)
        assert list(part.ids) == list(reports.ids[rows])
        np.testing.assert_allclose(part.estimate, reports.estimate[rows])


@pytest.mark.parametrize("smooth", ["off", 0.05])
def test_the_same_prior_for_any_block_and_as_in_memory(file, smooth):
    path, reports = file
    one = fit_file(path, steps=4, smooth=smooth, block=1000)
    many = fit_file(path, steps=4, smooth=smooth, block=97)
    np.testing.assert_allclose(many.prior.atoms, one.prior.atoms, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(many.prior.weights, one.prior.weights, rtol=1e-9)
    start = VANEB(smooth=smooth).fit(reports).prior_
    likelihood = reports.likelihood().smoothed(start.spread)
    atoms, weights, trace = pseudo_em(likelihood, start.atoms, start.weights, 4)
    alive = weights > 1e-8
    np.testing.assert_allclose(one.prior.atoms, atoms[alive], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(one.prior.weights, weights[alive], rtol=1e-7)
    np.testing.assert_allclose(one.log_likelihood[:4], [step.log_likelihood for step in trace], rtol=1e-9)
    assert one.log_likelihood[-1] >= one.log_likelihood[0] - 1e-12
    assert one.gap < 0.05


def test_a_sample_is_enough_to_start_from(file):
    path, reports = file
    fit = fit_file(path, steps=20, smooth="off", block=200, sample=150)
    best = VANEB(smooth="off").fit(reports)
    assert fit.log_likelihood[-1] > best.log_likelihood_ - 0.02


def test_ray_gives_the_same_prior(file, monkeypatch):
    # Ray's workers yield to everything else by default, for ever on a busy machine.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    path, _ = file
    here = fit_file(path, steps=2, smooth="off", block=150)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        there = fit_file(path, steps=2, smooth="off", block=150, map_over=ray_map)
    finally:
        ray.shutdown()
    np.testing.assert_array_equal(there.prior.atoms, here.prior.atoms)
    np.testing.assert_array_equal(there.prior.weights, here.prior.weights)
    assert there.gap == here.gap


def test_results_are_written_block_by_block(file, tmp_path):
    path, reports = file
    prior = VANEB(smooth="off").fit(reports).prior_
    personalize_file(path, prior, tmp_path / "out.parquet", block=123)
    written = pq.read_table(tmp_path / "out.parquet")
    expected = VANEB.from_prior(prior).personalize(reports)
    np.testing.assert_allclose(np.asarray(written["theta_1"]), expected.mean[:, 0], rtol=1e-9)
    assert written.num_rows == 700


def test_files_that_cannot_be_read_in_blocks_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("client\n")
    with pytest.raises(InvalidOption, match="parquet"):
        fit_file(tmp_path / "a.csv")
    with pytest.raises(InvalidReport, match="no such file"):
        fit_file(tmp_path / "none.parquet")
