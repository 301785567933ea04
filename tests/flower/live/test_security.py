"""Strangers and a malicious server against a real federation: SuperLink, door, gates and SuperNodes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import httpx
import pytest

pytest.importorskip("flwr")
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient

from flower.deployment import deployment, wait_until
from flower.loopback import write_rows
from vaneb.flower import control, door, gate, ledger, processes, supernode
from vaneb.flower.archive import Archive
from vaneb.flower.settings import Settings

NAMES = ("north", "south")
SETTINGS = Settings(formula="y ~ x", nodes=2, wait=60.0, timeout=60.0, population="discrete")
FOREIGN = Path(__file__).parent / "hostile" / "foreign.py"


def client_of(here, name: str, address: str, told: list[str]) -> supernode.Node:
    """A client as ``vaneb federate client`` runs it, in a thread of this process."""
    key = here.folder / "keys" / "nodes" / name
    copy = here.folder / f"{name}.crt"
    copy.write_bytes(key.with_name(f"{name}.crt").read_bytes())
    context = gate.client_context(here.folder / "keys" / "ca.crt", copy, key)
    config = {
        "data": str(write_rows(here.folder / f"{name}.csv", NAMES.index(name))),
        "client": name,
        "folder": str(here.own(name)),
    }
    node = supernode.Node(name, here.own(name), address, context, key, config)
    threading.Thread(
        target=supernode.serve,
        args=(node,),
        kwargs={"patience": 600.0, "once": False, "tell": told.append},
        daemon=True,
    ).start()
    return node


def bundle(mark: Path, *, ours: bool) -> bytes:
    """The foreign app, under a name of its own or under ours."""
    text = processes.app_description("foreign:client")
    if not ours:
        text = text.replace('publisher = "vaneb"', 'publisher = "evil"')
        text = text.replace("vaneb.flower.server_app:app", "foreign:server")
    code = FOREIGN.read_text().replace('Path("MARK")', f'Path("{mark}")')
    return processes.app_bundle(text, {"foreign.py": code.encode()})


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One federation; tests look at what became of it."""
    folder = tmp_path_factory.mktemp("security")
    found = SimpleNamespace(folder=folder, told=[])
    port = processes.free_port()
    server = folder / "server"
    with deployment(folder, NAMES) as here, all_stopped(), here.superlink(server, NAMES) as link:
        Archive.open(server, SETTINGS)
        files = folder / "keys"
        with door.open_door(
            "0.0.0.0",
            port,
            files / "server.pem",
            files / "server.key",
            files / "nodes",
            link.address,
            link.security.authority,
        ):
            address = f"127.0.0.1:{port}"
            nodes = [client_of(here, name, address, found.told) for name in NAMES]
            found.listening = listening()
            found.ports = (port, here.port)
            found.strangers = strangers(files, address, nodes[0].context)
            found.honest = control.run_app(link, SETTINGS, server / "outcome.json", seconds=120)
            found.foreign_mark, found.ours_mark = folder / "foreign.mark", folder / "ours.mark"
            found.foreign = control.run_app(
                link,
                SETTINGS,
                server / "outcome.json",
                bundle=bundle(found.foreign_mark, ours=False),
                seconds=120,
            )
            # So that the clients are asked again.
            for path in (server / "reports").iterdir():
                path.unlink()
            found.under_our_name = control.run_app(
                link,
                Settings(**{**vars(SETTINGS), "refit": True}),
                server / "outcome.json",
                bundle=bundle(found.ours_mark, ours=True),
                seconds=120,
            )
            found.listed = nodes_of(link)
            (files / "nodes" / "south.crt").unlink()
            began = time.monotonic()
            wait_until(
                lambda: any("does not know" in text for text in found.told), 60, "word of the revocation"
            )
            found.out_after = time.monotonic() - began
            found.ids = control.register_nodes(link, {"north": files / "nodes" / "north.crt"})
            found.left = nodes_of(link)
    return found


@contextlib.contextmanager
def all_stopped():
    """Processes that are started in the block end with it, also those of threads that go on."""
    children, genuine = [], processes.process

    @contextlib.contextmanager
    def noted(*arguments, **options):
        with genuine(*arguments, **options) as child:
            children.append(child)
            yield child

    with mock.patch.object(processes, "process", noted):
        yield
    for child in children:
        processes.stop(child)


def nodes_of(link) -> dict[str, str]:
    with control._client(link) as client:
        return {n.name: n.status for n in client.ListNodes(ListNodesRequest()).nodes_info}


def listening() -> dict[int, str]:
    """Addresses that processes of this machine listen on, by port (Linux)."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(line[1].split(":")[1], 16): line[1].split(":")[0] for line in lines if line[3] == "0A"}


def strangers(files: Path, address: str, known: ssl.SSLContext) -> dict[str, str]:
    """What comes of asking the Control API for a run through the door."""
    found = {}
    request = StartRunRequest()
    client = ControlHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=(files / "ca.crt").read_bytes(),
        interceptors=[],
    )
    with contextlib.closing(client):
        try:
            client.StartRun(request)
            found["nobody"] = "came in"
        except httpx.TransportError as error:
            found["nobody"] = type(error).__name__
    with httpx.Client(verify=known, trust_env=False) as visitor:
        for path in ("/v1/control/start-run", "/v1/control/list-nodes", "/docs"):
            answer = visitor.post(f"https://{address}{path}", content=request.SerializeToString())
            found[path] = str(answer.status_code)
    with socket.create_connection(tuple(address.split(":")), timeout=5) as line:
        line.sendall(b"POST /v1/control/list-nodes HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        line.settimeout(10)
        try:
            found["plain"] = line.recv(100).decode(errors="replace")
        except OSError as error:
            found["plain"] = type(error).__name__
    return found


def test_an_honest_run_goes_through_door_and_gates(story):
    assert story.honest["served"] == list(NAMES)
    assert story.honest["troubles"] == []


def test_no_stranger_reaches_the_control_api(story):
    """With TLS and node authentication on, one had started an app on the server and on all clients."""
    assert story.strangers["nobody"] in ("ReadError", "RemoteProtocolError", "ConnectError", "WriteError")
    assert story.strangers["/v1/control/start-run"] == "404"
    assert story.strangers["/v1/control/list-nodes"] == "404"
    assert story.strangers["/docs"] == "404"
    assert not story.strangers["plain"].startswith("HTTP/1.1 2")


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks at the sockets of this machine")
def test_only_the_door_is_open_to_the_world(story):
    door_port, link_port = story.ports
    assert story.listening[door_port] == "00000000"
    assert story.listening[link_port] == "0100007F"


def test_a_foreign_app_is_never_run_at_a_site(story):
    """It ran on the server, which is its own; at the sites the installed app answered, and refused."""
    assert not story.foreign_mark.exists()
    assert story.foreign["errors"] == 0
    sentence = "the run asks for something that it cannot do; its own log says why"
    assert story.foreign["said"] == [{"failed": sentence, "token": "t"}] * 2
    for name in NAMES:
        reasons = [
            entry["reason"]
            for entry in ledger.read_ledger(story.folder / "clients" / name)
            if entry["event"] == "refused"
        ]
        assert reasons == [
            "run: asks for an app that is not the one installed here ('evil/vaneb-federation' '1.0.0')"
        ]


def test_nor_is_one_that_goes_by_our_name(story):
    assert not story.ours_mark.exists()
    assert story.under_our_name["served"] == list(NAMES)
    assert story.under_our_name["by_kind"]["report"]["messages"] == 4


def test_a_client_that_is_taken_out_of_the_register_is_out_at_once(story):
    # Flower's nodes ask every three seconds.
    assert story.out_after < 30
    assert story.listed["south"] == "online"
    assert list(story.ids) == ["north"]
    assert story.left.get("south", "unregistered") == "unregistered"


def test_what_a_site_writes_is_its_own(story):
    own = story.folder / "clients" / "north"
    assert own.stat().st_mode & 0o077 == 0
    result = json.loads((own / "result.json").read_text())
    assert result["client"] == "north"
