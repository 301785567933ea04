"""One-shot personalisation: what clients get, what leaves them, and all the ways an answer can be bad."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower.loopback import LoopbackGrid, bytes_of, content_of, federation, write_rows
from vaneb import VANEB, InvalidOption, Reports
from vaneb.flower import client_app, client_data, wire
from vaneb.flower.archive import Archive
from vaneb.flower.exchange import Channel
from vaneb.flower.one_shot import run_reports
from vaneb.flower.settings import Settings
from vaneb.posterior import posterior

SETTINGS = Settings(formula="y ~ x", form="constant", nodes=6, wait=0.1, timeout=0.5, population="discrete")


def run(grid: LoopbackGrid, folder, settings: Settings = SETTINGS):
    return run_reports(Channel(grid, settings.timeout), settings, Archive.open(folder / "server", settings))


def central(grid: LoopbackGrid, settings: Settings = SETTINGS) -> Reports:
    """All clients' reports, made in one place."""
    single = []
    for node in grid.nodes.values():
        _, frame = client_data.read_client(client_app.Path(node.node_config["data"]))
        model = client_data.local_model(frame, settings)
        report = client_data.local_report(model, settings)[0]
        single.append(type(report)(node.node_config["client"], *vars_of(report)))
    return Reports.from_clients(single, names=("Intercept", "x"))


def vars_of(report):
    return report.estimate, report.n, report.covariance, report.status


def result(folder, client: str) -> dict:
    return json.loads((folder / client / "result.json").read_text())


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_every_client_gets_its_own_posterior(tmp_path, family):
    settings = Settings(**{**vars(SETTINGS), "family": family, "population": "auto"})
    grid = federation(tmp_path, settings, 6, n=60)
    outcome = run(grid, tmp_path, settings)
    assert outcome["served"] == [f"c{k}" for k in range(6)]
    assert outcome["troubles"] == []
    assert (outcome["exchanges"], outcome["messages"]) == (2, 24)
    prior = VANEB().fit(central(grid, settings)).prior_
    for k, node in enumerate(grid.nodes.values()):
        # The population is that of the reports; the posterior is found at the client, from its own rows.
        _, frame = client_data.read_client(client_app.Path(node.node_config["data"]))
        model = client_data.local_model(frame, settings)
        expected = posterior(client_data.own_likelihood(model), prior)
        found = result(tmp_path, f"c{k}")
        assert found["client"] == f"c{k}"
        np.testing.assert_allclose(found["mean"], expected.mean[0], rtol=1e-9)
        np.testing.assert_allclose(found["covariance"], expected.covariance[0], rtol=1e-7, atol=1e-12)
        assert found["shrinkage"] == pytest.approx(expected.shrinkage[0])


def numbers_in(value) -> list[float]:
    if isinstance(value, dict):
        return [x for inner in value.values() for x in numbers_in(inner)]
    if isinstance(value, list | tuple):
        return [x for inner in value for x in numbers_in(inner)]
    if isinstance(value, np.ndarray):
        return [float(x) for x in value.ravel()]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_variances_alone_are_those_of_the_full_covariance(tmp_path):
    full, diagonal = (Settings(**{**vars(SETTINGS), "form": form}) for form in ("constant", "diagonal"))
    grid = federation(tmp_path, diagonal, 4)
    here, there = central(grid, full), central(grid, diagonal)
    points = here.estimate[:, None]
    full_precision = here.n[:, None, None] * here.covariance.precision(points)[:, 0]
    variances = 1 / (there.n[:, None] * there.covariance.precision(points)[:, 0])
    expected = np.diagonal(np.linalg.inv(full_precision), axis1=1, axis2=2)
    np.testing.assert_allclose(variances, expected, rtol=1e-9)
    np.testing.assert_array_equal(there.estimate, here.estimate)
    assert run(grid, tmp_path, diagonal)["served"] == ["c0", "c1", "c2", "c3"]


@pytest.mark.parametrize("form", ["constant", "diagonal", "moments"])
def test_no_row_leaves_a_client(tmp_path, form):
    """No number of any row, and no bytes of it, are in any message; messages do not grow with the rows."""
    sizes = {}
    for n in (30, 300):
        folder = tmp_path / str(n)
        folder.mkdir()
        settings = Settings(**{**vars(SETTINGS), "form": form, "family": "binomial"})
        grid = federation(folder, settings, 4, n=n)
        run(grid, folder, settings)
        rows = {
            value
            for node in grid.nodes.values()
            for line in client_app.Path(node.node_config["data"]).read_text().splitlines()[1:]
            for value in map(float, line.split(","))
        } - {0.0, 1.0}
        raw = [np.float64(value).tobytes() for value in rows]
        for _, _, message in grid.captured:
            assert rows.isdisjoint(numbers_in(content_of(message)))
            whole = bytes_of(message)
            assert not any(piece in whole for piece in raw)
        sizes[n] = sum(wire.size_of(m.content) for way, _, m in grid.captured if way == "up")
    # Digits of n aside.
    assert abs(sizes[300] - sizes[30]) < 100


def test_a_late_client_is_served_without_a_fit(tmp_path, monkeypatch):
    grid = federation(tmp_path, SETTINGS, 6)
    late = grid.nodes.pop(1005)
    first = run(grid, tmp_path)
    assert first["fitted"]
    before = (tmp_path / "server" / "prior.json").read_bytes()
    stamps = {k: (tmp_path / f"c{k}" / "result.json").stat().st_mtime_ns for k in range(5)}
    grid.nodes[1005] = late
    monkeypatch.setattr(VANEB, "fit", lambda *_: pytest.fail("the prior was fitted again"))
    grid.captured.clear()
    second = run(grid, tmp_path)
    assert not second["fitted"]
    assert second["served"] == [f"c{k}" for k in range(6)]
    assert (tmp_path / "server" / "prior.json").read_bytes() == before
    assert {node for _, node, _ in grid.captured} == {1005}
    assert stamps == {k: (tmp_path / f"c{k}" / "result.json").stat().st_mtime_ns for k in range(5)}
    assert result(tmp_path, "c5")["client"] == "c5"


def test_a_server_that_was_killed_asks_only_whom_it_has_not_heard(tmp_path, monkeypatch):
    grid = federation(tmp_path, SETTINGS, 6)
    archive = Archive.open(tmp_path / "server", SETTINGS)
    heard = 0

    class Killed(BaseException):
        pass

    def keep(self, node, content, keep=Archive.keep_report):
        nonlocal heard
        keep(self, node, content)
        heard += 1
        if heard == 4:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Archive, "keep_report", keep)
        with pytest.raises(Killed):
            run_reports(Channel(grid, 1.0), SETTINGS, archive)
    saved = set(archive.reports())
    assert len(saved) == 4
    grid.captured.clear()
    grid.replies.clear()
    outcome = run(grid, tmp_path)
    asked = {n for way, n, m in grid.captured if way == "down" and m.metadata.message_type == "query.report"}
    assert asked == set(grid.nodes) - saved
    assert outcome["served"] == [f"c{k}" for k in range(6)]


def test_a_saved_report_that_fits_no_longer_is_asked_for_again(tmp_path):
    grid = federation(tmp_path, SETTINGS, 6)
    run(grid, tmp_path)
    grid.nodes[1000].name = grid.nodes[1000].node_config["client"] = "renamed"
    outcome = run(grid, tmp_path, replace(SETTINGS, refit=True))
    assert "renamed" in outcome["served"]
    assert "c0" not in outcome["served"]
    assert result(tmp_path, "c0")["client"] == "renamed"  # the folder is that of the first name


def test_a_folder_of_another_model_is_refused(tmp_path):
    run(federation(tmp_path, SETTINGS, 6), tmp_path)
    with pytest.raises(InvalidOption, match="another model"):
        Archive.open(tmp_path / "server", Settings(formula="y ~ 1"))


def test_terms_that_learn_from_rows_are_refused_at_the_client(tmp_path):
    settings = Settings(**{**vars(SETTINGS), "formula": "y ~ center(x)"})
    data = write_rows(tmp_path / "a.csv", 0)
    _, frame = client_data.read_client(data)
    with pytest.raises(InvalidOption, match="center"):
        client_data.local_model(frame, settings)


@pytest.mark.parametrize(
    ("right", "parameters"),
    [
        ("I(x - 1)", 2),
        ("poly(x, 2, raw=TRUE)", 3),
        ("bs(x, knots=[0], lower_bound=-9, upper_bound=9)", 5),
        ("offset(x)", 1),
    ],
)
def test_terms_with_their_numbers_written_out_are_used_at_the_client(tmp_path, right, parameters):
    _, frame = client_data.read_client(write_rows(tmp_path / "a.csv", 0))
    model = client_data.local_model(frame, Settings(**{**vars(SETTINGS), "formula": f"y ~ {right}"}))
    assert len(model.names) == parameters
    assert model.rows.offset.any() == (right == "offset(x)")


def test_private_reports_are_released_once(tmp_path):
    """Asked again, a client repeats what it said: fresh noise would average out."""
    private = Settings(
        **{**vars(SETTINGS), "epsilon": 1.0, "radius": 3.0, "se_low": 0.05, "se_high": 1.0, "refit": True}
    )
    grid = federation(tmp_path, private, 6)
    run(grid, tmp_path, private)
    grid.captured.clear()
    (tmp_path / "second").mkdir()
    first = {n: wire.load(tmp_path / "server" / "reports" / f"{n}.npz") for n in grid.nodes}
    run(grid, tmp_path / "second", private)
    for node, content in first.items():
        again = wire.load(tmp_path / "second" / "server" / "reports" / f"{node}.npz")
        np.testing.assert_array_equal(content["report"]["estimate"], again["report"]["estimate"])
        assert content["report"]["status"] == "private"
        variance = 1 / np.asarray(content["report"]["covariance"]["unit_precision"])
        assert (variance > private.privacy().noise ** 2).all()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"mode": "magic", "formula": "y ~ x"}, "mode"),
        ({}, "formula"),
        ({"formula": "y ~ x", "timeout": 0.0}, "timeout"),
        ({"formula": "y ~ x", "epsilon": 1.0}, "radius"),
        ({"formula": "y ~ x", "mode": "secure"}, "lower"),
        ({"formula": "y ~ x", "nodes": "three"}, "nodes"),
        ({"formula": "y ~ x", "nodez": 3}, "nodez"),
    ],
)
def test_settings_that_make_no_run_are_refused(values, match):
    with pytest.raises(InvalidOption, match=match):
        Settings.from_run_config(values)


def test_settings_survive_the_run_config():
    assert Settings.from_run_config(SETTINGS.to_run_config()) == SETTINGS
