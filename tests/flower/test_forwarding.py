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
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")
import uvicorn
import yaml
from flwr.common.serde import fab_from_proto, user_config_to_proto
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunResponse, Run
from flwr.supernode.start_client_internal import _verify_fab

from vaneb import InvalidOption
from vaneb.flower import checks, door, forwarding, gate, keys, processes
from vaneb.flower.forwarding import CALLS, FLEET
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


#: Node ids of the two clients.
NODES = {"north": 11, "south": 22}


def asked_of(house: House, visitor: httpx.Client, name: str) -> None:
    """The client fetches a question with one part."""
    tree = ObjectTree(object_id=f"question-{name}", children=[ObjectTree(object_id=f"part-{name}")])
    content = PullMessagesResponse(message_object_trees=[tree]).SerializeToString()
    house.inside.answers[FLEET + "pull-messages"] = (200, {}, content)
    assert visitor.post(FLEET + "pull-messages", headers=house.headers(name)).content == content


def answer_of(name: str, *, to: str = "", source: int = 0, part: str = "") -> bytes:
    """What a node says when it has an answer; as ``name``, to its own question, unless said otherwise."""
    about = Metadata(src_node_id=source or NODES[name], reply_to_message_id=to or f"question-{name}")
    tree = ObjectTree(object_id=f"answer-{name}", children=[ObjectTree(object_id=part or f"said-{name}")])
    request = PushMessagesRequest(
        node=Node(node_id=NODES[name]), messages_list=[Message(metadata=about)], message_object_trees=[tree]
    )
    return request.SerializeToString()


def needed(name: str) -> dict[str, bytes]:
    """What a node says in an exchange, in order."""
    return {
        "activate-node": b"",
        "send-node-heartbeat": b"",
        "pull-object": PullObjectRequest(object_id=f"part-{name}").SerializeToString(),
        "confirm-message-received": ConfirmMessageReceivedRequest(
            message_object_id=f"question-{name}"
        ).SerializeToString(),
        "get-run": b"",
        "get-fab": b"",
        "push-messages": answer_of(name),
        "push-object": PushObjectRequest(object_id=f"said-{name}").SerializeToString(),
        "deactivate-node": b"",
    }


def test_a_client_reaches_what_it_needs(house):
    with house.visitor("north") as visitor:
        asked_of(house, visitor, "north")
        for call, content in needed("north").items():
            answer = visitor.post(FLEET + call, content=content, headers=house.headers("north"))
            assert (answer.status_code, answer.content) == (200, b"inside")
    assert sorted(house.inside.seen) == sorted(CALLS)


@pytest.mark.parametrize(
    ("call", "content"),
    [
        ("push-messages", answer_of("north", to="question-south", source=NODES["south"])),
        ("push-messages", answer_of("north", to="question-south")),
        ("push-messages", answer_of("north", source=NODES["south"])),
        ("pull-object", needed("south")["pull-object"]),
        ("confirm-message-received", needed("south")["confirm-message-received"]),
        ("push-object", needed("south")["push-object"]),
        ("pull-object", PullObjectRequest(object_id="said-north").SerializeToString()),
        ("pull-object", b""),
        ("push-object", b"\xff" * 40),
    ],
)
def test_a_client_does_not_answer_for_another_nor_touch_its_messages(house, call, content):
    """Flower would take an answer in another node's name from whoever knows what that was asked."""
    with house.visitor("north") as north, house.visitor("south") as south:
        asked_of(house, north, "north")
        asked_of(house, south, "south")
        north.post(FLEET + "push-messages", content=answer_of("north"), headers=house.headers("north"))
        seen = len(house.inside.seen)
        answer = north.post(FLEET + call, content=content, headers=house.headers("north"))
    assert answer.status_code in (400, 403)
    assert len(house.inside.seen) == seen


def test_what_a_client_announces_is_not_what_it_was_sent(house):
    """Or it could name another's part as its own, and take it away."""
    with house.visitor("north") as north:
        asked_of(house, north, "north")
        content = answer_of("north", part="part-south")
        assert (
            north.post(FLEET + "push-messages", content=content, headers=house.headers("north")).status_code
            == 200
        )
        taken = PullObjectRequest(object_id="part-south").SerializeToString()
        assert (
            north.post(FLEET + "pull-object", content=taken, headers=house.headers("north")).status_code
            == 403
        )


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
            for path in (FLEET + "pull-messages", "/v1/control/start-run", forwarding.HELLO):
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
            assert visitor.post(forwarding.HELLO).status_code == 401
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
        answer = visitor.post(forwarding.HELLO)
        there = NOW(datetime.UTC).isoformat()
        monkeypatch.setattr(answer.__class__, "json", lambda self: {"time": there})
        assert "8 seconds ahead of the server's" in checks._clocks(answer)


def test_too_much_is_refused_before_it_is_passed_on(house, monkeypatch):
    monkeypatch.setattr(forwarding, "LARGEST_PART", 1000)
    monkeypatch.setattr(forwarding, "LARGEST_MESSAGE", 2500)
    with house.visitor("north") as visitor:
        assert visitor.post(FLEET + "push-object", content=bytes(1001)).status_code == 413
        asked_of(house, visitor, "north")
        part = PushObjectRequest(object_id="said-north", object_content=bytes(900)).SerializeToString()
        parts = [
            visitor.post(
                FLEET + name,
                content=part if name == "push-object" else answer_of("north"),
                headers=house.headers("north"),
            ).status_code
            for name in ("push-messages", *["push-object"] * 3, "push-messages", "push-object")
        ]
        assert parts == [200, 200, 200, 413, 200, 200]
        house.inside.answers[FLEET + "pull-object"] = (200, {}, bytes(1001))
        wanted = needed("north")["pull-object"]
        answer = visitor.post(FLEET + "pull-object", content=wanted, headers=house.headers("north"))
        assert (answer.status_code, len(answer.content) < 100) == (502, True)


def test_no_redirect_and_no_strange_header_is_passed_on(house):
    house.inside.answers[FLEET + "get-run"] = (307, {"location": "http://127.0.0.1:1/"}, b"")
    house.inside.answers[FLEET + "get-fab"] = (200, {"set-cookie": "a=b", "flwr-x": "y"}, b"")
    with house.visitor("north") as visitor:
        answer = visitor.post(FLEET + "get-run", headers=house.headers("north"))
        assert (answer.status_code, "location" in answer.headers) == (502, False)
        answer = visitor.post(FLEET + "get-fab", headers=house.headers("north"))
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


# ---------------------------------------------------------------- certificates that are renewed


def until(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def greeted_with(house: House, certificate: Path) -> str:
    key = house.key("north")
    context = gate.client_context(house.folder / "keys" / "ca.crt", certificate, key)
    return checks.greeted(house.address, context, "north")


def test_a_renewed_certificate_is_taken_by_a_server_that_runs(house):
    """The client has the old one until the server knows the new one, and then that; neither was restarted."""
    own, old = house.key("north").with_name("north.crt"), house.folder / "north.crt"
    old.write_bytes(own.read_bytes())
    renewed = keys.renew_client(house.folder / "keys", "north")
    new = house.folder / f"north.crt{keys.RENEWED}"
    renewed.rename(new)

    def choose() -> None:
        authority, key = house.folder / "keys" / "ca.crt", house.key("north")
        context = gate.newest_context(
            authority, old, key, lambda one: not checks.greeted(house.address, one, "north")
        )
        assert checks.greeted(house.address, context, "north") == ""

    choose()
    assert new.exists()  # the server does not know it yet
    own.write_bytes(new.read_bytes())
    assert until(lambda: greeted_with(house, new) == "")
    before = old.read_bytes()
    assert "does not let this client in" in greeted_with(house, old)
    choose()
    assert not new.exists()
    assert old.read_bytes() == own.read_bytes() != before


def test_a_servers_own_certificate_is_renewed_while_it_runs(house):
    files = house.folder / "keys"
    first, trusted = (files / "server.pem").read_bytes(), (files / "ca.crt").read_bytes()
    assert [path.name for path in keys.renew_server(files)] == ["ca.crt", "server.key", "server.pem"]

    def shown() -> str:
        host, port = house.address.split(":")
        return ssl.get_server_certificate((host, int(port)))

    assert until(lambda: shown() == (files / "server.pem").read_text())
    assert first != (files / "server.pem").read_bytes()
    # Clients with the authority's old certificate trust the new one, too; its names are the same.
    (house.folder / "old.crt").write_bytes(trusted)
    for authority in (house.folder / "old.crt", files / "ca.crt"):
        key = house.key("north")
        context = gate.client_context(authority, key.with_name("north.crt"), key)
        assert checks.greeted(house.address, context, "north") == ""
    assert (files / "server.key").stat().st_mode & 0o077 == 0


def test_a_new_client_is_let_in_without_a_restart(house):
    keys.make_keys(house.folder / "keys", [], ["west"], server=False)
    assert until(lambda: checks.greeted(house.address, house.context("west"), "west") == "")


def test_only_what_was_made_here_is_renewed_here(tmp_path):
    with pytest.raises(InvalidOption, match=r"ca\.crt: missing"):
        keys.renew_server(tmp_path)
    with pytest.raises(InvalidOption, match="private key"):
        keys.renew_client(tmp_path, "north")


def test_a_version_that_differs_is_noted(house, monkeypatch):
    said: list[str] = []
    context = house.context("north")
    assert checks.greeted(house.address, context, "north", said.append) == ""
    assert said == []
    monkeypatch.setattr(checks.vaneb, "__version__", "9.9")
    # The server runs in this process, and says the version that it had when it was asked.
    monkeypatch.setattr(door.Door, "_greet", lambda self, name, version: said.append(f"{name} {version}"))
    assert checks.greeted(house.address, context, "north") == ""
    assert said == ["north 9.9"]


# ---------------------------------------------------------------- Flower's trusted entities


def verified(fab: Fab, trusted: str) -> bool:
    """What a SuperNode finds, by its own code."""
    return _verify_fab(fab_from_proto(fab), yaml.safe_load(trusted))


def test_a_supernode_runs_what_its_gate_has_signed_and_nothing_else():
    """``--trusted-entities``, tried: a signature of the gate's own is what makes an app of one's own pass."""
    own = gate.Gate()
    answer = own.before(forwarding.Request(FLEET + "get-fab", {}, b"", b""))
    fab = GetFabResponse.FromString(answer.body).fab
    assert verified(fab, own.trusted())
    # Without that signature, an app has none that a SuperNode could check.
    assert not verified(Fab(hash_str=fab.hash_str, content=fab.content), own.trusted())
    # Another app with the same signature, and the same app by another gate.
    foreign = processes.app_bundle(processes.app_description("evil:app"))
    other = Fab(
        hash_str=hashlib.sha256(foreign).hexdigest(), content=foreign, verifications=fab.verifications
    )
    assert not verified(other, own.trusted())
    assert not verified(fab, gate.Gate().trusted())


@pytest.fixture
def few_at_once(monkeypatch):
    """Room for forty, so that a test need not open five hundred connections."""
    monkeypatch.setattr(forwarding, "MOST_AT_ONCE", 40)


def test_one_client_does_not_take_the_place_of_all(few_at_once, house):
    host, port = house.address.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            plain = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            with contextlib.suppress(OSError):
                stack.enter_context(house.context("north").wrap_socket(plain, server_hostname=host))
        with house.visitor("south") as visitor:
            assert visitor.post("/hello", headers=house.headers("south")).status_code == 200
    # And when they are gone, it is let in again.
    with house.visitor("north") as visitor:
        assert visitor.post("/hello", headers=house.headers("north")).status_code == 200


def test_nor_does_a_stranger_who_never_speaks(house, monkeypatch):
    """A connection without a handshake costs the server a file; from one address it takes so many only."""
    monkeypatch.setattr(forwarding, "MOST_OF_ADDRESS", 10)
    host, port = house.address.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        with pytest.raises(httpx.TransportError), house.visitor("south") as visitor:
            visitor.post("/hello", headers=house.headers("south"))
        elsewhere = httpx.HTTPTransport(verify=house.context("south"), local_address="127.0.0.2")
        with httpx.Client(base_url=f"https://{house.address}", transport=elsewhere) as visitor:
            assert visitor.post("/hello", headers=house.headers("south")).status_code == 200
    # The door learns of their going one after the other.
    for patience in range(50):
        try:
            with house.visitor("south") as visitor:
                assert visitor.post("/hello", headers=house.headers("south")).status_code == 200
            break
        except httpx.TransportError:
            assert patience < 49
            time.sleep(0.1)


def test_nor_do_strangers_from_everywhere(house, monkeypatch):
    """A few addresses are enough to take all connections there are; the one that is silent longest goes."""
    monkeypatch.setattr(forwarding, "MOST_SOCKETS", 20)
    host, port = house.address.split(":")
    with contextlib.ExitStack() as stack:
        south = stack.enter_context(house.visitor("south"))
        assert south.post("/hello", headers=house.headers("south")).status_code == 200
        for k in range(60):
            source = f"127.0.0.{3 + k % 6}", 0
            line = socket.create_connection((host, int(port)), timeout=5, source_address=source)
            stack.enter_context(line)
        north = stack.enter_context(house.visitor("north"))
        assert north.post("/hello", headers=house.headers("north")).status_code == 200
        # Whoever has shown a certificate keeps the connection.
        assert south.post("/hello", headers=house.headers("south")).status_code == 200


def test_nor_does_it_take_the_memory_of_all(house, monkeypatch):
    """Many requests at once are no way around the limit of one."""
    monkeypatch.setattr(forwarding, "LARGEST_MESSAGE", 3 << 20)
    codes: list[int] = []

    def push() -> None:
        def slow() -> Iterator[bytes]:
            for _ in range(20):
                yield bytes(100_000)
                time.sleep(0.02)

        with house.visitor("north") as visitor, contextlib.suppress(httpx.HTTPError):
            headers = house.headers("north")
            codes.append(visitor.post(FLEET + "get-run", content=slow(), headers=headers).status_code)

    threads = [threading.Thread(target=push) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert house.inside.seen.count(FLEET + "get-run") <= 3
    # Nothing is held when all is over.
    with house.visitor("north") as visitor:
        done = visitor.post(FLEET + "get-run", content=bytes(1 << 20), headers=house.headers("north"))
    assert done.status_code == 200
