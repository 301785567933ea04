"""What an operator meets: a folder in use, clients that never came, a server killed in its fit."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from flower.loopback import federation, write_rows
from flower.test_evaluation import settings_for
from flower.test_secure import BOX
from vaneb import InvalidOption, InvalidReport
from vaneb.cli import app
from vaneb.files import locked
from vaneb.flower import checks, control, keys, processes
from vaneb.flower.archive import STEP, Archive
from vaneb.flower.attendance import wait_for_nodes
from vaneb.flower.evaluation import run_evaluation
from vaneb.flower.exchange import Channel
from vaneb.flower.one_shot import run_reports
from vaneb.flower.secure import run_secure
from vaneb.flower.settings import Settings


def complaint(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["federate", *arguments])
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


def test_two_servers_do_not_work_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys.make_keys(Path("keys"), ["127.0.0.1"], ["a"])
    server = ("server", "--formula", "y ~ x", "--port", str(processes.free_port()))
    with locked(tmp_path / "federation", "x"):
        assert "federation: another server works in it" in complaint(*server)
    write_rows(tmp_path / "a.csv", 0)
    with locked(tmp_path / "a", "x"):
        said = complaint("client", "--data", "a.csv", "--name", "a", "--server", "127.0.0.1:1")
        assert "another client works in it" in said


def test_without_protection_nobody_listens_to_the_world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a.csv", 0)
    said = complaint("server", "--formula", "y ~ x", "--insecure", "--host", "0.0.0.0")
    assert "--insecure: lets everybody in who reaches 0.0.0.0" in said
    said = complaint("client", "--data", "a.csv", "--name", "a", "--insecure", "--server", "10.0.0.1:9092")
    assert "--insecure: lets everybody in" in said


def test_a_registered_client_that_never_came_is_named(tmp_path):
    settings = Settings(formula="y ~ x", nodes=4, wait=0.1, timeout=5.0, population="discrete")
    grid = federation(tmp_path, settings, 3)
    archive = Archive.open(tmp_path / "server", settings)
    archive.keep_registered({"c0": 1000, "c1": 1001, "c2": 1002, "late": 7})
    outcome = run_reports(Channel(grid, 5.0), settings, archive)
    assert outcome["absent"] == ["late"]
    (trouble,) = outcome["troubles"]
    assert trouble == {
        "node": "7",
        "client": "late",
        "lost": "registered, but did not come within 0.1 seconds",
    }
    # If as many came as were wanted it is no trouble, but still said.
    fewer = replace(settings, nodes=3)
    outcome = run_reports(Channel(grid, 5.0), fewer, archive)
    assert (outcome["absent"], outcome["troubles"]) == (["late"], [])
    grid.nodes.clear()
    with pytest.raises(InvalidReport, match=r"none of 4 has come within 0.1 seconds \(a, b\)"):
        wait_for_nodes(grid, 4, 0.1, {"b": 1, "a": 2})


class Killed(BaseException):
    """The end of a server's process."""


@pytest.mark.parametrize("mode", ["evaluate", "secure"])
def test_a_server_killed_in_the_middle_of_a_fit_goes_on(tmp_path, mode):
    settings = settings_for("covariance", mode=mode, **{**BOX, "iterations": 4, "nodes": 4})
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def run(folder: Path, kill_after: int = 10**9):
        folder.mkdir(exist_ok=True)
        grid = federation(folder, settings, 4)
        archive = Archive.open(folder / "server", settings)
        steps, keep = [], archive.keep_step

        def counted(nodes, number, *question):
            keep(nodes, number, *question)
            steps.append(number)
            if len(steps) == kill_after:
                raise Killed

        object.__setattr__(archive, "keep_step", counted)
        channel = Channel(grid, 20.0)
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        try:
            if mode == "evaluate":
                run_evaluation(channel, settings, archive)
            else:
                run_secure(channel, context, settings, archive)
        except Killed:
            return steps, None
        return steps, archive.prior()

    _, expected = run(whole)
    assert run(parts, kill_after=2) == ([1, 2], None)
    steps, prior = run(parts)
    assert steps == [3, 4]
    # Sums under masks are rounded at random.
    tolerance = {"atol": 1e-12} if mode == "evaluate" else {"atol": 2e-2}
    np.testing.assert_allclose(prior.atoms, expected.atoms, **tolerance)
    np.testing.assert_allclose(prior.weights, expected.weights, **tolerance)
    assert not (parts / "server" / STEP).exists()


def test_a_run_has_no_limit_of_time_but_its_own():
    import inspect

    assert inspect.signature(control.run_app).parameters["seconds"].default == float("inf")


def test_keys_are_made_at_the_site_and_only_the_certificate_travels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["federate", "keys", "mine", "--site", "--client", "north"])
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "mine").rglob("*") if p.is_file()) == ["north", "north.crt"]
    assert stat.S_IMODE((tmp_path / "mine" / "nodes" / "north").stat().st_mode) == 0o600
    checks.check_pair(tmp_path / "mine" / "nodes" / "north.crt", tmp_path / "mine" / "nodes" / "north")
    # At the server the certificate is enough, and nothing is made for it.
    register = tmp_path / "keys" / "nodes"
    register.mkdir(parents=True)
    (register / "north.crt").write_bytes((tmp_path / "mine" / "nodes" / "north.crt").read_bytes())
    assert list(checks.register(register)) == ["north"]
    assert keys.make_keys(tmp_path / "keys", ["localhost"], ["north"], server=False) == []
    # One key under two names would be two clients.
    (register / "south.crt").write_bytes((register / "north.crt").read_bytes())
    with pytest.raises(InvalidOption, match="has the same key as"):
        checks.register(register)


def test_a_certificate_of_another_key_is_noticed(tmp_path):
    keys.make_keys(tmp_path, [], ["a", "b"], server=False)
    with pytest.raises(InvalidOption, match="is not of the key"):
        checks.check_pair(tmp_path / "nodes" / "a.crt", tmp_path / "nodes" / "b")


def test_the_end_of_a_certificate_is_said_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "CLIENT_DAYS", 12)
    keys.make_keys(tmp_path, [], ["a"], server=False)
    assert re.search(r"a\.crt: expires in 11 days", keys.expires_soon(tmp_path / "nodes" / "a.crt"))
    monkeypatch.setattr(keys, "CLIENT_DAYS", 100)
    keys.make_keys(tmp_path, [], ["b"], server=False)
    assert keys.expires_soon(tmp_path / "nodes" / "b.crt") == ""


def test_a_client_checks_its_policy_at_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys.make_keys(Path("keys"), ["127.0.0.1"], ["a"])
    write_rows(tmp_path / "a.csv", 0)
    start = ("client", "--data", "a.csv", "--name", "a", "--server", "127.0.0.1:1", "--patience", "0.1")
    assert "no server at" in complaint(*start)
    policy = tmp_path / "a" / "policy.toml"
    assert stat.S_IMODE(policy.stat().st_mode) == 0o600
    assert stat.S_IMODE(policy.parent.stat().st_mode) == 0o700
    policy.write_text('columns = ["x", "z"]')
    assert "columns: 'z' is not a column of" in complaint(*start)
    policy.write_text("columns = 3")
    assert "give a list of names" in complaint(*start)


def test_the_operators_own_requests_go_past_the_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    with control._without_proxy():
        assert os.environ["NO_PROXY"] == "127.0.0.1,localhost,::1,example.org"
    assert os.environ["NO_PROXY"] == "example.org"
    monkeypatch.delenv("NO_PROXY")
    with control._without_proxy():
        assert "127.0.0.1" in os.environ["NO_PROXY"]
    assert "NO_PROXY" not in os.environ
