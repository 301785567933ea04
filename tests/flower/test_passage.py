"""The door and the gate, attacked: strangers, clients that were thrown out, servers with an app of their own.

TLS, certificates and HTTP are real; behind the door is something that writes down all that reaches it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")
import uvicorn
from flwr.common.serde import user_config_to_proto
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.run_pb2 import GetRunResponse, Run

from vaneb import InvalidOption
from vaneb.flower import checks, door, gate, keys, passage, processes
from vaneb.flower.passage import CALLS, FLEET
from vaneb.flower.settings import Settings

NOW = datetime.datetime.now


@dataclass
class Inside:
    """What stands behind the door in place of a SuperLink: answers anything, and notes it."""

    address: str
    seen: list[str] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)

    async def __call__(self, scope, receive, send) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        self.seen.append(scope["path"])
        status, headers, content = self.answers.get(scope["path"], (200, {}, b"inside"))
        fields = [(key.encode(), value.encode()) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": content})


@contextlib.contextmanager
def serving(app, certificate: Path, key: Path) -> Iterator[None]:
    host, port = app.address.split(":")
    config = uvicorn.Config(
        app,
        host=host,
        port=int(port),
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10)


@dataclass
class House:
    folder: Path
    address: str
    inside: Inside

    def key(self, name: str) -> Path:
        return self.folder / "keys" / "nodes" / name

    def context(self, name: str) -> ssl.SSLContext:
        key = self.key(name)
        return gate.client_context(self.folder / "keys" / "ca.crt", key.with_name(f"{name}.crt"), key)

    def visitor(self, name: str = "") -> httpx.Client:
        """Somebody who comes to the door, with a client's certificate or with none."""
        context: ssl.SSLContext = ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.crt"))
        return httpx.Client(
            base_url=f"https://{self.address}",
            verify=self.context(name) if name else context,
            trust_env=False,
            timeout=20.0,
        )

    def headers(self, name: str, *, ahead: float = 0.0) -> dict[str, str]:
        """Of a client's node."""
        certificate = keys.load_certificate(self.key(name).with_name(f"{name}.crt").read_bytes())
        return {
            "flwr-public-key": base64.b64encode(keys.public_bytes(certificate)).decode(),
            "flwr-timestamp": (NOW(datetime.UTC) + datetime.timedelta(seconds=ahead)).isoformat(),
        }


@pytest.fixture
def house(tmp_path) -> Iterator[House]:
    """A door in front of something that keeps a list; the register knows north and south."""
    keys.make_keys(tmp_path / "keys", ["localhost", "127.0.0.1"], ["north", "south"])
    keys.make_keys(tmp_path / "elsewhere", [], ["stranger"], server=False)
    inside = Inside(f"127.0.0.1:{processes.free_port()}")
    certificate, secret = keys.loopback_certificate(tmp_path / "inside", "superlink")
    port, files = processes.free_port(), tmp_path / "keys"
    with (
        serving(inside, certificate, secret),
        door.open_door(
            "127.0.0.1",
            port,
            files / "server.pem",
            files / "server.key",
            files / "nodes",
            inside.address,
            certificate,
        ),
    ):
        yield House(tmp_path, f"127.0.0.1:{port}", inside)


def test_a_client_reaches_what_it_needs(house):
    with house.visitor("north") as visitor:
        for path in sorted(CALLS):
            answer = visitor.post(path, headers=house.headers("north"))
            assert (answer.status_code, answer.content) == (200, b"inside")
    assert sorted(house.inside.seen) == sorted(CALLS)


def test_a_stranger_gets_no_further_than_the_handshake(house):
    shutil_key = house.folder / "elsewhere" / "nodes" / "stranger"
    context = gate.client_context(
        house.folder / "keys" / "ca.crt", shutil_key.with_name("stranger.crt"), shutil_key
    )
    with (
        house.visitor() as nobody,
        httpx.Client(base_url=f"https://{house.address}", verify=context, trust_env=False) as stranger,
        httpx.Client(base_url=f"http://{house.address}", trust_env=False) as plain,
    ):
        for visitor in (nobody, stranger, plain):
            for path in (FLEET + "pull-messages", "/v1/control/start-run", passage.HELLO):
                with pytest.raises(httpx.TransportError):
                    visitor.post(path)
    assert house.inside.seen == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/pull-messages",
        FLEET + "register-node",
        FLEET + "unregister-node",
        "/docs",
        "/openapi.json",
        "/",
        FLEET + "../control/start-run",
        FLEET + "%2e%2e/control/start-run",
        FLEET + "pull-messages/../../control/start-run",
        FLEET + "pull-messages?x=1",
        FLEET + "pull-messages%00",
        "//v1/fleet/pull-messages",
    ],
)
def test_even_a_client_reaches_nothing_else(house, path):
    """Said letter by letter on the wire, since a library would tidy the path."""
    host, port = house.address.split(":")
    context = house.context("north")
    headers = "".join(f"{key}: {value}\r\n" for key, value in house.headers("north").items())
    for method in ("POST", "GET"):
        with (
            socket.create_connection((host, int(port)), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname=host) as line,
        ):
            line.sendall(
                f"{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: 0\r\n\r\n".encode()
            )
            assert line.recv(100).startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert house.inside.seen == []


def test_one_client_does_not_speak_with_anothers_key(house):
    with house.visitor("north") as visitor:
        answer = visitor.post(FLEET + "pull-messages", headers=house.headers("south"))
        assert (answer.status_code, answer.text) == (
            401,
            "the node's key is not the one of the client's certificate",
        )
        assert visitor.post(FLEET + "pull-messages").status_code == 401
    assert house.inside.seen == []


def test_revoked_means_out_at_once(house):
    """On a connection that is open already, with the next request."""
    with house.visitor("north") as visitor:
        assert visitor.post(FLEET + "pull-messages", headers=house.headers("north")).status_code == 200
        (house.folder / "keys" / "nodes" / "north.crt").rename(house.folder / "north.crt")
        headers = {**house.headers("south"), "flwr-public-key": "x"}
        answer = visitor.post(FLEET + "pull-messages", headers=headers)
        assert answer.status_code == 401
        assert "does not know this client's certificate, or no longer" in answer.text
        # Another's certificate under its name does not bring it back, and neither does a file without sense.
        other = house.key("south").with_name("south.crt").read_bytes()
        for content in (other, b"", b"-----BEGIN CERTIFICATE-----\n"):
            house.key("north").with_name("north.crt").write_bytes(content)
            assert visitor.post(passage.HELLO).status_code == 401
    assert len(house.inside.seen) == 1


@pytest.mark.parametrize("ahead", [8.0, -400.0])
def test_a_clock_that_is_off_is_said(house, ahead):
    with house.visitor("north") as visitor:
        answer = visitor.post(FLEET + "activate-node", headers=house.headers("north", ahead=ahead))
    assert answer.status_code == 401
    way = "ahead of" if ahead > 0 else "behind"
    assert f"the client's clock is {abs(ahead):.0f} seconds {way} the server's" in answer.text
    assert house.inside.seen == []


def test_a_client_hears_of_its_clock_before_it_starts(house, monkeypatch):
    assert checks.greeted(house.address, house.context("north"), "north") == ""

    class Fast(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return NOW(zone) + datetime.timedelta(seconds=8)

    monkeypatch.setattr(checks.datetime, "datetime", Fast)
    with house.visitor("north") as visitor:
        answer = visitor.post(passage.HELLO)
        there = NOW(datetime.UTC).isoformat()
        monkeypatch.setattr(answer.__class__, "json", lambda self: {"time": there})
        assert "8 seconds ahead of the server's" in checks._clocks(answer)


def test_too_much_is_refused_before_it_is_passed_on(house, monkeypatch):
    monkeypatch.setattr(passage, "LARGEST_PART", 1000)
    monkeypatch.setattr(passage, "LARGEST_MESSAGE", 2500)
    with house.visitor("north") as visitor:
        assert visitor.post(FLEET + "push-object", content=bytes(1001)).status_code == 413
        parts = [
            visitor.post(FLEET + name, content=bytes(900), headers=house.headers("north")).status_code
            for name in ("push-messages", "push-object", "push-object", "push-messages", "push-object")
        ]
        assert parts == [200, 200, 413, 200, 200]
        house.inside.answers[FLEET + "pull-object"] = (200, {}, bytes(1001))
        answer = visitor.post(FLEET + "pull-object", headers=house.headers("north"))
        assert (answer.status_code, len(answer.content) < 100) == (502, True)


def test_no_redirect_and_no_strange_header_is_passed_on(house):
    house.inside.answers[FLEET + "get-run"] = (307, {"location": "http://127.0.0.1:1/"}, b"")
    house.inside.answers[FLEET + "pull-object"] = (200, {"set-cookie": "a=b", "flwr-x": "y"}, b"")
    with house.visitor("north") as visitor:
        answer = visitor.post(FLEET + "get-run", headers=house.headers("north"))
        assert (answer.status_code, "location" in answer.headers) == (502, False)
        answer = visitor.post(FLEET + "pull-object", headers=house.headers("north"))
        assert answer.headers["flwr-x"] == "y"
        assert "set-cookie" not in answer.headers


# ---------------------------------------------------------------- the site's gate


@contextlib.contextmanager
def site(house: House, name: str = "north") -> Iterator[tuple[gate.Gate, httpx.Client]]:
    """A gate of this client's, and what its SuperNode would ask through it."""
    with gate.open_gate(house.folder / "site", house.address, "127.0.0.1", house.context(name)) as found:
        opened, address, shown = found
        context = ssl.create_default_context(cafile=str(shown))
        with httpx.Client(base_url=f"https://{address}", verify=context, trust_env=False) as node:
            yield opened, node


def run_of(**changes) -> bytes:
    about = {"fab_id": processes.APP_ID, "fab_version": processes.APP_VERSION, "fab_hash": "0" * 64}
    config = user_config_to_proto(changes.pop("config", {"formula": "y ~ x"}))
    return GetRunResponse(run=Run(**{**about, **changes}, override_config=config)).SerializeToString()


def asked(house: House, node: httpx.Client, content: bytes) -> Run:
    house.inside.answers[FLEET + "get-run"] = (200, {}, content)
    answer = node.post(FLEET + "get-run", headers=house.headers("north"))
    return GetRunResponse.FromString(answer.content).run


def test_the_app_is_the_one_that_is_installed_whatever_the_server_offers(house):
    evil = Fab(hash_str="0" * 64, content=b"import os; os.system('id')")
    house.inside.answers[FLEET + "get-fab"] = (200, {}, GetFabResponse(fab=evil).SerializeToString())
    with site(house) as (_, node):
        answer = node.post(FLEET + "get-fab", headers=house.headers("north"))
        fab = GetFabResponse.FromString(answer.content).fab
    assert fab.content == processes.app_bundle()
    assert fab.hash_str == hashlib.sha256(fab.content).hexdigest()
    # It was not even asked for.
    assert FLEET + "get-fab" not in house.inside.seen


def test_a_run_of_ours_keeps_its_settings_and_gets_our_app(house):
    with site(house) as (_, node):
        run = asked(house, node, run_of())
    assert run.fab_hash == hashlib.sha256(processes.app_bundle()).hexdigest()
    assert run.override_config["formula"].string == "y ~ x"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fab_id": "evil/app"}, "not the one installed here"),
        ({"fab_version": "6.6.6"}, "not the one installed here"),
        ({"config": {"data": "/etc/passwd"}}, "not known here ('data')"),
        ({"config": {"folder": "/tmp"}}, "not known here ('folder')"),
        ({"config": {"client": "x"}}, "not known here ('client')"),
        ({"config": {"refused": ""}}, "not known here ('refused')"),
    ],
    ids=str,
)
def test_any_other_run_becomes_one_that_answers_nothing(house, changes, words):
    with site(house) as (_, node):
        run = asked(house, node, run_of(primary_task_type="flwr-agentapp", **changes))
    assert (run.fab_id, run.primary_task_type) == (processes.APP_ID, "")
    assert list(run.override_config) == ["refused"]
    config = {**processes.app_config(), "refused": run.override_config["refused"].string}
    with pytest.raises(InvalidOption, match="run: ") as said:
        Settings.from_run_config(config)
    assert words in str(said.value)


def test_what_is_no_run_at_all_is_not_passed_on(house):
    with site(house) as (_, node):
        house.inside.answers[FLEET + "get-run"] = (200, {}, b"\xff" * 40)
        assert node.post(FLEET + "get-run", headers=house.headers("north")).status_code == 502


def test_a_site_hears_why_it_is_not_let_in(house):
    (house.folder / "keys" / "nodes" / "north.crt").rename(house.folder / "north.crt")
    (house.folder / "north.crt").rename(house.key("north").with_name("was.crt"))
    context = gate.client_context(
        house.folder / "keys" / "ca.crt", house.key("north").with_name("was.crt"), house.key("north")
    )
    # Under another name it is registered still; taken out, it is not.
    assert checks.greeted(house.address, context, "north") == ""
    house.key("north").with_name("was.crt").unlink()
    said = checks.greeted(house.address, context, "north")
    assert "puts north.crt into the server's keys/nodes" in said


def test_through_the_sites_proxy(house, monkeypatch):
    """HTTPS_PROXY is used for the server, end to end encrypted, and not between processes of the site."""
    requests: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def proxy() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            head = near.recv(4096)
            requests.append(head.split(b"\r\n")[0])
            host, port = house.address.split(":")
            far = socket.create_connection((host, int(port)))
            near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=proxy, daemon=True).start()
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.closing(listener):
        assert checks.greeted(house.address, house.context("north"), "north") == ""
        with site(house) as (_, node):
            assert node.post(FLEET + "pull-messages", headers=house.headers("north")).content == b"inside"
    assert requests == [f"CONNECT {house.address} HTTP/1.1".encode()] * 2
    assert "HTTPS_PROXY" not in processes.environment(house.folder / "site")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert gate.proxy_for("127.0.0.1") is None


def test_a_proxy_that_does_not_answer_is_said(house, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    said = checks.greeted(house.address, house.context("north"), "north")
    assert said == f"no server at {house.address} yet."
