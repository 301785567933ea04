"""A real federation on loopback, with TLS and authentication, and all its bad days at once.

One deployment serves all tests: three honest clients, one client for each way of being bad, a stranger.  The
server is killed when it has the honest reports; a client is killed in the middle of the next round.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flower.loopback import LoopbackGrid, Node, content_of, write_rows
from vaneb.flower import control, processes, wire
from vaneb.flower.archive import Archive
from vaneb.flower.exchange import Line
from vaneb.flower.keys import make_keys
from vaneb.flower.settings import Settings

HONEST = ("north", "south", "east")
BAD = {
    "rubbish": "garbage",
    "nan": "nan",
    "wide": "wide",
    "thief": "thief",
    "replay": "replay",
    "raising": "raise",
    "failing": "fail",
    "sleepy": "sleep",
}
SECRET = "-31415"
TIMEOUT = 60.0
SETTINGS = Settings(
    formula="y ~ x", family="poisson", nodes=len(HONEST) + len(BAD), wait=180.0, timeout=TIMEOUT, smooth="off"
)


def old_answer(folder: Path) -> wire.Tree:
    """What a client answered in an earlier exchange, token and all."""
    data = write_rows(folder / "old.csv", 7, family="poisson")
    node = Node({"data": str(data), "client": "replay", "folder": str(folder / "old")}, name="replay")
    grid = LoopbackGrid({1: node}, SETTINGS)
    list(Line(grid, 5.0).ask("report", {1: {}}))
    return content_of(next(message for way, _, message in grid.captured if way == "up"))


def wait_until(condition, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} has not happened within {seconds} seconds")
        time.sleep(0.2)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Run the whole story once; tests look at what it left."""
    folder = tmp_path_factory.mktemp("federation")
    keys = folder / "keys"
    names = [*HONEST, *BAD]
    make_keys(keys, ["localhost", "127.0.0.1"], [*names, "stranger"])
    security = processes.Security.of_server(keys)
    server, home, port = folder / "server", folder / "home", processes.free_port()
    app = processes.write_app(folder / "app", SETTINGS, client="hostile:app")
    shutil.copy(Path(__file__).parent / "hostile" / "hostile.py", app)
    wire.save(folder / "old.npz", old_answer(folder))
    public = {name: keys / "nodes" / f"{name}.pub" for name in names}
    story = SimpleNamespace(folder=folder, server=server, home=home, pids=[], killed=False)

    def start(stack: contextlib.ExitStack, name: str, k: int):
        data = write_rows(folder / f"{name}.csv", k, 60, family="poisson")
        if name == "failing":
            data.write_text(data.read_text() + f"0.5,{SECRET}\n")
        own = folder / "clients" / name
        own.mkdir(parents=True)
        config = {"data": str(data), "client": name, "folder": str(own), "old": str(folder / "old.npz")}
        config["behaviour"] = BAD.get(name, "")
        command = processes.supernode_command(
            f"127.0.0.1:{port}", processes.free_port(), security, config, keys / "nodes" / name
        )
        env = processes.environment(own / "flower")
        child = stack.enter_context(processes.process(command, own / "supernode.log", env))
        story.pids.append(child.pid)
        return child

    with contextlib.ExitStack() as clients:
        with processes.superlink(home, "127.0.0.1", port, security, folder=server) as link:
            story.pids.append(link.process.pid)
            control.register_nodes(link, public)
            children = {name: start(clients, name, k) for k, name in enumerate(names)}
            story.stranger = start(clients, "stranger", 99)
            failed: list[Exception] = []

            def first_run() -> None:
                try:
                    control.run_app(link, app, server / "outcome.json")
                except Exception as error:
                    failed.append(error)

            thread = threading.Thread(target=first_run, daemon=True)
            thread.start()
            wait_until(
                lambda: (
                    set(HONEST) <= reports(server)
                    and (folder / "clients" / "failing" / "errors.log").exists()
                ),
                240,
                "the arrival of the honest reports",
            )
            # Killed with all its processes, while it waits for the client that sleeps.
            os.killpg(link.process.pid, signal.SIGKILL)
            thread.join(60)
            story.first_error = failed[0] if failed else None
        story.first_outcome = (server / "outcome.json").exists()
        story.saved = reports(server)
        for name in HONEST:
            (folder / f"{name}.csv").unlink()
        asked_before = (folder / "clients" / "failing" / "errors.log").read_text().count("Traceback")
        with processes.superlink(home, "127.0.0.1", port, security, folder=server) as link:
            story.pids.append(link.process.pid)

            def kill_sleepy() -> None:
                # The round is under way when another client has been asked again.
                log = folder / "clients" / "failing" / "errors.log"
                wait_until(lambda: log.read_text().count("Traceback") > asked_before, 240, "the second round")
                story.was_asleep = (folder / "clients" / "sleepy" / "asleep").exists()
                os.killpg(children["sleepy"].pid, signal.SIGKILL)
                story.killed = True

            killer = threading.Thread(target=kill_sleepy, daemon=True)
            killer.start()
            story.outcome = control.run_app(link, app, server / "outcome.json")
            killer.join(10)
            story.logs = link.log.read_text(errors="replace")
        story.stranger_log = (folder / "clients" / "stranger" / "supernode.log").read_text(errors="replace")
        story.stranger_code = story.stranger.poll()
    return story


def reports(server: Path) -> set[str]:
    """Clients whose reports are saved."""
    return {str(content["report"]["id"]) for content in Archive(server).reports().values()}


def trouble(federation, name: str) -> dict:
    (found,) = [t for t in federation.outcome["troubles"] if t["client"] == name]
    return found


def test_the_honest_are_served_whatever_the_others_do(federation):
    assert federation.outcome["served"] == sorted(HONEST)
    for name in HONEST:
        result = json.loads((federation.folder / "clients" / name / "result.json").read_text())
        assert result["client"] == name
        assert result["names"] == ["Intercept", "x"]


def test_a_killed_server_resumes_without_asking_again(federation):
    """The honest clients' files were gone by then: asked again, they could not have answered."""
    assert federation.first_error is not None
    assert not federation.first_outcome
    assert set(HONEST) <= federation.saved
    assert federation.outcome["clients"] == len(HONEST)
    assert federation.outcome["fitted"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rubbish", "message"),
        ("nan", "estimate"),
        ("wide", "3 parameters"),
        ("thief", "registered as 'thief'"),
        ("replay", "another exchange"),
        ("raising", "raised an error"),
        ("failing", "its own log says why"),
    ],
)
def test_a_bad_client_is_refused_by_name(federation, name, reason):
    assert reason in trouble(federation, name)["refused"]
    assert not (federation.folder / "clients" / name / "result.json").exists()


def test_a_client_killed_in_the_round_is_named_when_its_time_is_up(federation):
    assert federation.killed
    assert federation.was_asleep
    assert "lost" in trouble(federation, "sleepy")
    # Two exchanges, of which the first had to wait for the killed client.
    assert federation.outcome["exchanges"] == 2
    assert federation.outcome["seconds_exchanging"] < 2 * TIMEOUT + 10


def test_a_stranger_is_refused(federation):
    assert federation.stranger_code not in (None, 0)
    assert "Failed to activate SuperNode" in federation.stranger_log
    assert not any(t["client"] == "stranger" for t in federation.outcome["troubles"])


def test_the_text_of_a_clients_exception_stays_with_the_client(federation):
    assert SECRET.lstrip("-") in (federation.folder / "clients" / "failing" / "errors.log").read_text()
    assert SECRET.lstrip("-") not in federation.logs
    for path in (*federation.server.rglob("*"), *federation.home.rglob("*")):
        if path.is_file():
            assert SECRET.lstrip("-").encode() not in path.read_bytes(), path


def test_nothing_is_left_running(federation):
    for pid in federation.pids:
        assert not processes._group_alive(pid)


def test_the_archive_has_what_it_needs_for_late_clients(federation):
    archive = Archive(federation.server)
    assert archive.prior() is not None
    assert len(archive.reports()) == len(HONEST)
