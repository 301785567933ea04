"""Flower's processes at a site, made to run anything at all: what is the site's stays out of reach."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from vaneb import InvalidOption
from vaneb.flower import checks, processes, sandbox

pytestmark = pytest.mark.skipif(not sandbox.version(), reason="this system has no Landlock")

#: What an intruder tries, one after the other; prints what came of each.
INTRUDER = """
import json, os, pathlib, socket, subprocess, sys
place = json.loads(sys.argv[1])
found = {}
def attempt(name, action):
    try:
        action()
        found[name] = "done"
    except Exception as error:
        found[name] = type(error).__name__
for name, path in place["files"].items():
    attempt("read " + name, lambda: open(path).read())
attempt("list rows", lambda: os.listdir(os.path.dirname(place["files"]["data"])))
attempt("link", lambda: os.link(place["files"]["data"], place["home"] + "/copy"))
attempt("child", lambda: subprocess.run(["cat", place["files"]["data"]], check=True, capture_output=True))
attempt("write beside", lambda: pathlib.Path(place["files"]["policy"]).write_text("review = false"))
attempt("append to ledger", lambda: open(place["files"]["ledger"], "a").write("x"))
attempt("write home", lambda: pathlib.Path(place["home"], "inside", "own").write_text("x"))
attempt("link where others write", lambda: os.symlink(place["files"]["ledger"], place["home"] + "/gate.key"))
attempt("another's log", lambda: os.rename(place["home"] + "/intruder.log", place["home"] + "/inside/log"))
attempt("connect elsewhere", lambda: socket.create_connection(("127.0.0.1", place["elsewhere"]), 2).close())
attempt("connect gate", lambda: socket.create_connection(("127.0.0.1", place["gate"]), 2).close())
attempt("listen elsewhere", lambda: socket.create_server(("127.0.0.1", place["free"])).close())
attempt("signal", lambda: os.kill(place["parent"], 0))
attempt("environment", lambda: open(f"/proc/{place['parent']}/environ", "rb").read())
attempt("open files", lambda: os.readlink(f"/proc/{place['parent']}/fd/1"))
print(json.dumps(found))
"""


@pytest.fixture
def site(tmp_path) -> dict[str, Path]:
    """A client's files, and its key."""
    own = tmp_path / "north"
    (own / "flower").mkdir(parents=True)
    (tmp_path / "rows").mkdir()
    files = {
        "data": tmp_path / "rows" / "north.csv",
        "policy": own / "policy.toml",
        "ledger": own / "ledger.jsonl",
    }
    for path in files.values():
        path.write_text("secret")
    (tmp_path / "key").write_text("key")
    return files


def test_an_intruder_gets_nowhere(site, tmp_path):
    home = tmp_path / "north" / "flower"
    with socket.create_server(("127.0.0.1", 0)) as gate, socket.create_server(("127.0.0.1", 0)) as elsewhere:
        ports = [one.getsockname()[1] for one in (gate, elsewhere)]
        place = {
            "files": {name: str(path) for name, path in site.items()},
            "home": str(home),
            "gate": ports[0],
            "elsewhere": ports[1],
            "free": processes.free_port(),
            "parent": os.getpid(),
        }
        around = processes.around_supernode(home, processes.free_port(), ports[0], tmp_path / "key")
        log = home / "intruder.log"
        command = [sys.executable, "-I", "-c", INTRUDER, json.dumps(place)]
        inside = processes.environment(processes.inside(home))
        with processes.process(command, log, inside, sandbox=around) as child:
            child.wait(20)
        told = log.read_text()
        outside = subprocess.run(command, capture_output=True, text=True)
    found, free = json.loads(told), json.loads(outside.stdout)
    allowed = {"write home", "connect gate"}
    if sandbox.version() < sandbox.PORTS_FROM:
        allowed |= {"connect elsewhere", "listen elsewhere"}
    if sandbox.version() < sandbox.SCOPES_FROM:
        allowed |= {"signal"}
    assert {name for name, what in found.items() if what == "done"} == allowed
    # The same attempts succeed outside of the sandbox: it is the sandbox that stops them.
    assert {name for name, what in free.items() if what != "done"} == set()


def test_what_lies_among_programs_is_refused_at_the_start(site, tmp_path):
    around = processes.around_supernode(tmp_path / "north" / "flower", 1, 2, tmp_path / "key")
    assert checks.check_reach(around, list(site.values())) == ""
    with pytest.raises(InvalidOption, match="lies among the programs of this machine"):
        checks.check_reach(around, [site["data"], Path(json.__file__)])


def test_without_landlock_nothing_starts_unless_somebody_says_so(site, tmp_path, monkeypatch):
    for module in (checks, sandbox):
        monkeypatch.setattr(module, "version", lambda: 0)
    around = processes.around_supernode(tmp_path / "north" / "flower", 1, 2, None)
    with pytest.raises(InvalidOption, match=r"no Landlock .* --without-sandbox"):
        checks.check_reach(around, list(site.values()))
    assert "can open whatever this user can" in checks.check_reach(around, list(site.values()), without=True)


@pytest.mark.parametrize(("known", "words"), [(1, "TCP port"), (3, "signals"), (5, "signals"), (6, "")])
def test_an_older_landlock_is_said(monkeypatch, known, words):
    monkeypatch.setattr(sandbox, "version", lambda: known)
    assert words in sandbox.lacking()
    assert bool(sandbox.lacking()) == bool(words)
    assert ("TCP port" in sandbox.lacking()) == (known < sandbox.PORTS_FROM)


def test_the_keeper_reaches_no_port(tmp_path):
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2)"
    with socket.create_server(("127.0.0.1", 0)) as near:
        command = [sys.executable, "-I", "-c", code, str(near.getsockname()[1])]
        env = processes.environment(tmp_path)
        with processes.process(command, tmp_path / "log", env, sandbox=sandbox.Sandbox(ports=())) as child:
            code = child.wait(20)
    assert (code == 0) == (sandbox.version() < sandbox.PORTS_FROM)
    assert sandbox.version() < sandbox.PORTS_FROM or "PermissionError" in (tmp_path / "log").read_text()
