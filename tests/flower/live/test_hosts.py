"""Three hosts with addresses of their own: a server and two sites, each in a network namespace.

All that runs is what ``vaneb federate init`` has written, started by the command lines of its units.  One
site has a slow line (``slow_line``).  The other's cable is cut in the middle of the study, the server is
rebooted, and the cable is mended.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from typer.testing import CliRunner

from flower import slow_line
from flower.deployment import wait_until
from flower.loopback import write_rows
from vaneb.cli import app
from vaneb.flower import ledger, sandbox
from vaneb.flower.service import command_of
from vaneb.flower.status import status_of

PORT = 9092
SITES = ("north", "south")
#: Of the slow line: its port at the site, the seconds that a byte is under way, bytes a second (a modem's).
NEAR, LATE, RATE = 9099, 0.1, 32_000


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Host:
    """A namespace, and the processes that the test has started in it."""

    name: str
    folder: Path
    unit: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "terminal.log"

    def boot(self) -> None:
        """Start what the unit starts."""
        command = command_of((self.folder / self.unit).read_text())
        with open(self.log, "ab") as output:
            self.started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.name, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def power_off(self) -> None:
        """kill -9 of everything in the namespace."""
        for number in run("ip", "netns", "pids", self.name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
        for child in self.started:
            child.wait(10)

    def cable(self, way: str) -> None:
        """Pull the cable out (down), or put it in (up)."""
        run("ip", "-n", self.name, "link", "set", "wire", way)


@contextlib.contextmanager
def hosts(folder: Path) -> Iterator[dict[str, Host]]:
    """A server with a wire to each site; all of it is gone afterwards."""
    mark = f"vaneb-{os.getpid()}"
    names = {name: f"{mark}-{name}" for name in ("server", *SITES)}
    found = {name: Host(inside, folder / name, f"vaneb-{name}.service") for name, inside in names.items()}
    try:
        try:
            for inside in names.values():
                run("ip", "netns", "add", inside)
                run("ip", "-n", inside, "link", "set", "lo", "up")
            for k, site in enumerate(SITES):
                server, inside = names["server"], names[site]
                run(
                    "ip",
                    "-n",
                    server,
                    "link",
                    "add",
                    f"to-{site}",
                    "type",
                    "veth",
                    "peer",
                    "wire",
                    "netns",
                    inside,
                )
                for where, device, last in ((server, f"to-{site}", 1), (inside, "wire", 2)):
                    run("ip", "-n", where, "address", "add", f"10.77.{k}.{last}/24", "dev", device)
                    run("ip", "-n", where, "link", "set", device, "up")
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield found
    finally:
        for host in found.values():
            with contextlib.suppress(OSError):
                host.power_off()
            with contextlib.suppress(OSError):
                run("ip", "netns", "delete", host.name)


def slow(host: Host, address: str) -> None:
    """From here on, what the site sends to its own port arrives at the server late."""
    script = Path(slow_line.__file__)
    words = [sys.executable, str(script), str(NEAR), address, str(LATE), str(RATE)]
    host.started.append(subprocess.Popen(["ip", "netns", "exec", host.name, *words], start_new_session=True))


def round_trip(host: Host) -> float:
    """Seconds until the server answers, over the slow line, to what is no TLS: it hangs up."""
    code = (
        "import socket, time\n"
        f"line = socket.create_connection(('127.0.0.1', {NEAR}), timeout=10)\n"
        "began = time.monotonic()\n"
        "line.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\n"
        "line.recv(100)\n"
        "print(time.monotonic() - began)\n"
    )
    return float(run("ip", "netns", "exec", host.name, sys.executable, "-c", code))


def vaneb(*arguments: str) -> None:
    done = CliRunner().invoke(app, ["federate", *arguments])
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need the superuser and iproute2")
    folder = tmp_path_factory.mktemp("hosts")
    found = SimpleNamespace(folder=folder)
    with hosts(folder) as at:
        addresses = [f"10.77.{k}.1" for k in range(2)]
        vaneb(
            "init",
            str(folder / "server"),
            *(f"--host={one}" for one in (*addresses, "127.0.0.1")),
            "--formula=y ~ x",
            "--nodes=2",
        )
        for k, site in enumerate(SITES):
            data = write_rows(folder / f"{site}.csv", k)
            server = f"127.0.0.1:{NEAR}" if site == "north" else f"{addresses[k]}:{PORT}"
            vaneb("init", str(folder / site), f"--site={site}", f"--data={data}", f"--server={server}")
            # Only public halves travel.
            shutil.copy(
                folder / site / "keys" / "nodes" / f"{site}.crt", folder / "server" / "keys" / "nodes"
            )
            shutil.copy(folder / "server" / "keys" / "ca.crt", folder / site / "keys")
        slow(at["north"], f"{addresses[0]}:{PORT}")
        server = folder / "server" / "federation"
        began = time.monotonic()
        for host in at.values():
            host.boot()
        wait_until(lambda: let_in(folder / "south" / "south"), 60, "south among the nodes")
        found.round_trip = round_trip(at["north"])
        at["south"].cable("down")
        found.privileges = {name: no_new_privileges(at[name]) for name in SITES}
        wait_until(lambda: list((server / "reports").glob("*.npz")), 90, "north's report")
        found.first = time.monotonic() - began
        found.status = status_of(server)
        at["server"].power_off()
        found.off = status_of(server)
        at["south"].cable("up")
        at["server"].boot()
        at["server"].started[-1].wait(150)
        found.code = at["server"].started[-1].returncode
        found.seconds = time.monotonic() - began
        wait_until(lambda: (folder / "south" / "south" / "result.json").exists(), 10, "south's result")
        found.sites = {site: status_of(folder / site / site) for site in SITES}
        found.alive = {site: at[site].started[-1].poll() is None for site in SITES}
    found.outcome = json.loads((server / "outcome.json").read_text())
    found.after = status_of(server)
    return found


def no_new_privileges(host: Host) -> dict[str, bool]:
    """Whether each process of a host has entered a sandbox, by the name of its program."""
    found = {}
    for number in run("ip", "netns", "pids", host.name).split():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{number}/cmdline").read_text().split("\0")
            named = [
                one for one in words if Path(one).name in ("flower-supernode", "flower-superexec", "vaneb")
            ]
            named += ["keeper"] if "vaneb.flower.keeper" in words else []
            if named:
                flag = "NoNewPrivs:\t1" in Path(f"/proc/{number}/status").read_text()
                found[Path(named[0]).name] = flag
    return found


def let_in(own: Path) -> bool:
    """Whether the server has let a site's node in."""
    log = own / "flower" / "supernode.log"
    return log.exists() and "SuperNode ID" in log.read_text(errors="replace")


def test_the_study_ends_well_whatever_happened_to_the_machines(story):
    assert story.code == 0
    assert story.outcome["served"] == list(SITES)
    assert story.outcome["troubles"] == []
    for site in SITES:
        assert json.loads((story.folder / site / site / "result.json").read_text())["client"] == site


def test_a_rebooted_server_does_not_ask_again(story):
    """North had answered before the power went off; its ledger has one answer, not two."""
    assert story.outcome["by_kind"]["report"]["messages"] == 2
    for site in SITES:
        events = [entry["event"] for entry in ledger.read_ledger(story.folder / site / site)]
        assert events == ["answered"]


def test_status_says_how_each_machine_stands(story):
    assert (story.status["running"], story.off["running"], story.after["running"]) == (True, False, False)
    assert story.status["registered"] == list(SITES)
    assert story.status["present"]["north"]["version"] == story.status["version"]
    assert story.off["present"] == {}
    for site, found in story.sites.items():
        assert found["running"]
        assert found["attention"] == []
        assert story.alive[site]
        assert min(found["certificates"].values()) > 80
    assert story.after["outcome"]["served"] == list(SITES)


@pytest.mark.skipif(not sandbox.version(), reason="this system has no Landlock")
def test_flowers_processes_and_the_keeper_are_in_sandboxes(story):
    for site in SITES:
        found = story.privileges[site]
        assert found.pop("vaneb") is False
        assert {"flower-supernode", "keeper"} <= set(found)
        assert all(found.values())


def test_the_line_was_slow(story):
    assert story.round_trip > 2 * LATE


def test_what_the_machines_write_is_private_and_in_lines_of_json(story):
    for path in story.folder.rglob("*"):
        if path.suffix == ".csv" or path.name == "terminal.log":  # written by the test
            continue
        if path.is_file() and "compiled" not in path.parts:
            assert path.stat().st_mode & 0o077 == 0, path
    lines = (story.folder / "server" / "federation" / "log.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events.count("started") == 2  # the power went off before it could say that it ended
    assert events[-1] == "ended"
    assert {"listening", "client", "outcome"} <= set(events)
