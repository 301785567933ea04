"""A fit over blocks of a file is the fit of the whole, whoever does the blocks."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from vaneb import VANEB, InvalidOption, InvalidReport, Reports
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


def results(path, out, model, **options):
    personalize_file(path, model.prior_, out, **options)
    return pq.read_table(out)


def test_a_file_gives_what_memory_gives_for_any_blocks(file, tmp_path):
    path, reports = file
    model, expected = fit_file(path), VANEB().fit(reports).personalize(reports)
    whole = results(path, tmp_path / "whole.parquet", model, block=1000)
    parts = results(path, tmp_path / "parts.parquet", model, block=97)
    assert whole.equals(parts)
    np.testing.assert_allclose(np.asarray(whole["theta_1"]), expected.mean[:, 0], atol=1e-5)
    np.testing.assert_allclose(np.asarray(whole["upper_2"]), expected.interval(0.9)[1][:, 1], atol=1e-5)


def test_a_sample_of_the_clients_knows_the_population(file):
    path, reports = file
    part, whole = fit_file(path, sample=300).prior_, VANEB().fit(reports).prior_
    assert part.clients == 700
    np.testing.assert_allclose(part.mean, whole.mean, atol=0.3)
    np.testing.assert_allclose(part.covariance, whole.covariance, atol=0.8)


def test_every_kind_of_population_works_on_files(file, tmp_path):
    path, _ = file
    for kind in ("gaussian", "discrete"):
        model = fit_file(path, VANEB(population=kind))
        assert model.prior_.kind == kind
        assert results(path, tmp_path / f"{kind}.parquet", model, block=300).num_rows == 700


def test_ray_gives_the_same_results(file, tmp_path, monkeypatch):
    # Ray's workers yield to everything else by default, for ever on a busy machine.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    path, _ = file
    model = fit_file(path, VANEB(population="gaussian"))
    here = results(path, tmp_path / "here.parquet", model, block=150)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        there = results(path, tmp_path / "there.parquet", model, block=150, map_over=ray_map)
    finally:
        ray.shutdown()
    assert there.equals(here)


def test_files_that_cannot_be_read_in_blocks_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("client\n")
    with pytest.raises(InvalidOption, match="parquet"):
        fit_file(tmp_path / "a.csv")
    with pytest.raises(InvalidReport, match="no such file"):
        fit_file(tmp_path / "none.parquet")


def test_the_command_takes_blocks_by_itself_where_a_file_does_not_fit(tmp_path, monkeypatch):
    """The same results, whole or in blocks."""
    import pyarrow as pa
    from typer.testing import CliRunner

    from vaneb import outofcore
    from vaneb.cli import app

    rng = np.random.default_rng(0)
    table = pa.table(
        {"client": np.arange(300), "theta_a": rng.normal(size=300), "se_a": rng.uniform(0.3, 1.0, 300)}
    )
    pq.write_table(table, tmp_path / "reports.parquet", row_group_size=100)
    words = ["personalize", str(tmp_path / "reports.parquet"), "--quiet", "--population", "gaussian", "-o"]
    assert CliRunner().invoke(app, [*words, str(tmp_path / "whole.parquet")]).exit_code == 0
    monkeypatch.setattr(outofcore, "fits_in_memory", lambda path: False)
    assert CliRunner().invoke(app, [*words, str(tmp_path / "blocks.parquet")]).exit_code == 0
    whole, parts = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("whole", "blocks"))
    assert whole.column_names == parts.column_names
    for column in ("theta_a", "sd_a", "lower_a", "upper_a"):
        np.testing.assert_allclose(parts[column].to_numpy(), whole[column].to_numpy(), rtol=1e-9)
    refused = CliRunner().invoke(app, [*words, str(tmp_path / "out.csv")])
    assert refused.exit_code == 2
    assert "parquet" in refused.output


def test_memory_is_asked_before_a_file_is_read(tmp_path, monkeypatch):
    import os

    import pyarrow as pa

    from vaneb.outofcore import fits_in_memory

    pq.write_table(pa.table({"client": np.arange(1000)}), tmp_path / "r.parquet")
    assert fits_in_memory(tmp_path / "r.parquet")
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    assert not fits_in_memory(tmp_path / "r.parquet")
