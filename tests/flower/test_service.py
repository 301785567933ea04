"""What an administrator is given, and what can be known of a server or a client from its folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from typer.testing import CliRunner

from flower.loopback import federation, write_rows
from vaneb.cli import app
from vaneb.files import locked
from vaneb.flower import journal, keys, ledger, service, status
from vaneb.flower.archive import Archive
from vaneb.flower.exchange import Channel
from vaneb.flower.settings import Settings


def invoke(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["federate", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def made(tmp_path) -> Path:
    """A server's folder and a site's."""
    write_rows(tmp_path / "north.csv", 0)
    invoke(
        "init",
        tmp_path / "server",
        "--host",
        "stats.example.org",
        "--formula",
        "y ~ x + I(x^2)",
        "--nodes",
        "2",
    )
    site = ("--site", "north", "--data", tmp_path / "north.csv", "--server", "stats.example.org:9092")
    invoke("init", tmp_path / "north", *site)
    return tmp_path


def test_a_site_makes_its_own_key_and_a_server_has_none_of_it(made):
    assert sorted(path.name for path in (made / "north" / "keys" / "nodes").iterdir()) == [
        "north",
        "north.crt",
    ]
    assert list((made / "server" / "keys" / "nodes").iterdir()) == []
    assert not (made / "north" / "keys" / "ca.crt").exists()
    assert b"PRIVATE" not in (made / "north" / "keys" / "nodes" / "north.crt").read_bytes()


def test_nothing_is_readable_by_others(made):
    for folder in ("server", "north"):
        for path in (made / folder, *(made / folder).rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path


def test_what_is_there_already_stays(made):
    path = made / "north" / "policy.toml"
    path.write_text("review = true\n")
    before = (made / "north" / "keys" / "nodes" / "north").read_bytes()
    site = ("--site", "north", "--data", made / "north.csv", "--server", "stats.example.org:9092")
    (made / "north" / "README.txt").unlink()
    assert "README.txt" in invoke("init", made / "north", *site)
    assert path.read_text() == "review = true\n"
    assert (made / "north" / "keys" / "nodes" / "north").read_bytes() == before


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_units_are_valid(made):
    units = [made / "server" / "vaneb-server.service", made / "north" / "vaneb-north.service"]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "vaneb" in line]
    assert (done.returncode, said) == (0, [])


def test_a_unit_starts_what_was_asked_for(made):
    command = service.command_of((made / "server" / "vaneb-server.service").read_text())
    assert command[command.index("--formula") + 1] == "y ~ x + I(x^2)"
    assert command[1:3] == ["federate", "server"]
    text = (made / "north" / "vaneb-north.service").read_text()
    command = service.command_of(text)
    assert command[command.index("--patience") + 1] == "inf"
    assert "Restart=on-failure" in text
    assert "WantedBy=multi-user.target" in text


@pytest.mark.parametrize("word", ["a b", "50%", "$HOME", 'say "x"', "back\\slash", "it's", "~ y | x"])
def test_words_reach_a_service_as_they_are(word):
    assert service.command_of(f"ExecStart={service._quoted(['run', word])}\n") == ["run", word]


def test_the_container_takes_no_key_and_no_row_with_it(made):
    text = (made / "north" / "Containerfile").read_text()
    assert "COPY" not in text
    assert "ADD" not in text
    arguments = next(line for line in text.splitlines() if line.startswith("CMD "))
    assert json.loads(arguments.removeprefix("CMD "))[:2] == ["federate", "client"]


def test_a_page_says_which_ports_are_opened_by_whom(made):
    assert "TCP 9092, incoming" in (made / "server" / "README.txt").read_text()
    text = (made / "north" / "README.txt").read_text()
    assert "Incoming: none." in text
    assert "TCP 9092 to stats.example.org" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--formula", "y ~ x"), "--host: give the name"),
        (("--host", "a b", "--formula", "y ~ x"), "not a host name"),
        (("--host", "a", "--formula", "y ~"), "needs one response"),
        (("--host", "a", "--formula", "y ~ x", "--port", "0"), "--port 0"),
        (("--host", "a", "--formula", "y ~ x", "--user", "Root User"), "--user 'Root User'"),
        (("--site", "north"), "--site: give its --data"),
        (("--site", "north", "--data", "no.csv", "--server", "a:1"), "--data no.csv: there is no such file"),
    ],
)
def test_wrong_input_is_said(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in " ".join(invoke("init", "new", *arguments, code=2).split())


def test_sites_do_not_install_ray():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert not any("ray" in one or "simulation" in one for one in extras["site"])
    assert "vaneb[site]" in extras["flower"]
    assert any("simulation" in one for one in extras["flower"])


# ---------------------------------------------------------------- status


SETTINGS = Settings(formula="y ~ x", nodes=3, population="discrete")


def test_status_of_a_server(tmp_path, monkeypatch):
    from vaneb.flower.one_shot import run_reports

    folder, files = tmp_path / "federation", tmp_path / "keys"
    keys.make_keys(files, ["localhost"], ["c0", "c1", "c2", "c3"])
    archive = Archive.open(folder, SETTINGS)
    archive.keep_registered({**{f"c{k}": 1000 + k for k in range(3)}, "c3": 1003})
    run_reports(Channel(federation(tmp_path, SETTINGS, 3), 5.0), SETTINGS, archive)
    status.keep_about(
        folder, role="server", address="0.0.0.0:9092", study="y ~ x", certificates=[files / "server.pem"],
        registers=[files / "nodes"],
    )  # fmt: skip
    (folder / "present.json").write_text(json.dumps({"c0": {"version": "0.0.9", "seen": "now"}}))
    found = json.loads(invoke("status", folder, "--json"))
    assert found["outcome"]["served"] == ["c0", "c1", "c2"]
    assert found["outcome"]["absent"] == ["c3"]
    assert (found["running"], found["present"], found["reports"]) == (False, {}, 3)
    assert len(found["certificates"]) == 5
    with locked(folder, "test"):
        text = invoke("status", folder, code=3)
    assert "running" in text
    assert "not there    c1, c2, c3" in text
    assert "attention    c0: has version 0.0.9" in text
    monkeypatch.setattr(keys, "DAYS", 10)
    invoke("keys", files, "--renew")
    assert "server.pem: expires in 9 days. Renew it" in invoke("status", folder, code=3)


def test_status_of_a_client_that_waits_for_a_person(tmp_path):
    grid = federation(tmp_path, SETTINGS, 1)
    policy = tmp_path / "policy.toml"
    policy.write_text("review = true\n")
    own = tmp_path / "c0"
    list(Channel(grid, 5.0).ask("report", {1000: {}}))
    status.keep_about(own, role="client", client="c0", server=["a:1"], policy=policy)
    found = json.loads(invoke("status", own, "--json", code=3))
    (study,) = found["studies"]
    assert found["waiting"] == [study]
    assert found["ledger"] == {"held": 1}
    assert f"study {study}: waits for 'vaneb federate release {study}'." in found["attention"]
    ledger.approve(own, study)
    list(Channel(grid, 5.0).ask("report", {1000: {}}))
    found = json.loads(invoke("status", own, "--json"))
    assert (found["waiting"], found["attention"]) == ([], [])
    said = "this system has no Landlock"
    status.keep_about(own, role="client", client="c0", server=["a:1"], policy=policy, unprotected=said)
    assert json.loads(invoke("status", own, "--json", code=3))["attention"] == [said]


def test_status_of_nothing(tmp_path):
    assert "not the folder of a server or a client" in " ".join(invoke("status", tmp_path, code=2).split())


# ---------------------------------------------------------------- logs


def test_a_log_is_lines_of_json_private_and_never_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "LARGEST", 2000)
    with journal.open_journal(tmp_path, "client", "north") as tell:
        for k in range(200):
            tell("said", 'a "quote"\nand a line', number=k)
    files = sorted(tmp_path.glob("log.jsonl*"))
    assert len(files) == 1 + journal.KEPT
    for path in files:
        assert path.stat().st_size <= 2000
        assert path.stat().st_mode & 0o077 == 0
        for line in path.read_text().splitlines():
            assert json.loads(line)["role"] == "client"
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["event"] == "ended"


def test_a_long_log_of_flower_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "LARGEST", 10)
    path = tmp_path / "supernode.log"
    journal.rotate(path)
    path.write_text("x" * 20)
    journal.rotate(path)
    assert not path.exists()
    assert (tmp_path / "supernode.log.1").read_text() == "x" * 20
