"""The keeper: rows, policy and ledger are its own; an app gets answers to questions, and no more."""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Context, Message, RecordDict

from flower.loopback import content_of, write_rows
from vaneb.flower import keeper, ledger, mailbox, wire
from vaneb.flower.messenger import KEEPER, NotAnswered, app
from vaneb.flower.settings import Settings
from vaneb.prior import Prior

SETTINGS = Settings(formula="y ~ x", population="discrete")


@pytest.fixture
def site(tmp_path) -> dict[str, Path]:
    (tmp_path / "policy.toml").write_text("")
    return {
        "data": write_rows(tmp_path / "north.csv", 0),
        "folder": tmp_path / "north",
        "policy": tmp_path / "policy.toml",
    }


@pytest.fixture
def address(site, tmp_path) -> str:
    """A keeper that serves in a thread of this process."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place = tmp_path / "k"
    door.bind(str(place))
    door.listen(4)
    config = {"client": "north", **{name: str(path) for name, path in site.items()}}
    threading.Thread(target=keeper.Keeper(config).serve, args=(door,), daemon=True).start()
    return str(place)


def question(kind: str = "query.report", run: int = 7) -> Message:
    message = Message(wire.to_record({"token": "t"}), dst_node_id=5, message_type=kind, ttl=60.0)
    message.metadata.__dict__["_message_id"] = "m1"
    message.metadata.__dict__["_run_id"] = run
    return message


def asked(address: str, message: Message, **settings: object) -> Message:
    """What the app that Flower runs says; its node config names the keeper and nothing of the site."""
    config = {**SETTINGS.to_run_config(), **settings}
    return app(message, Context(7, 5, {KEEPER: address}, RecordDict(), config))


def test_an_answer_comes_back_and_is_in_the_books(site, address):
    reply = asked(address, question())
    content = content_of(reply)
    assert content["report"]["id"] == "north"
    assert content["token"] == "t"
    assert reply.metadata.reply_to_message_id == "m1"
    assert [entry["event"] for entry in ledger.read_ledger(site["folder"])] == ["answered"]


def test_the_policy_holds_whatever_the_app_says(site, address):
    site["policy"].write_text('modes = ["secure"]\n')
    content = content_of(asked(address, question()))
    assert content == {
        "failed": "its policy does not allow this question; its own ledger says why",
        "token": "t",
    }
    # Names of files in what an app hands over are settings that nobody knows.
    content = content_of(asked(address, question(), policy="/dev/null", data="/etc/passwd"))
    assert "cannot do" in content["failed"]


def test_what_cannot_be_answered_is_one_of_the_fixed_sentences(address):
    with pytest.raises(NotAnswered, match="it failed; its own log says why"):
        asked(address, question("query.unknown"))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xff" * 8,
        struct.pack("!Q", 4) + b"null",
        struct.pack("!Q", 20) + json.dumps({"sizes": {"a": -1}}).encode().ljust(20),
        struct.pack("!Q", 32) + json.dumps({"sizes": {"a": 1 << 40}}).encode().ljust(32),
        struct.pack("!Q", 32) + json.dumps({"sizes": {"a": 5}, "root": "a"}).encode().ljust(32) + b"12345",
    ],
)
def test_rubbish_does_not_end_it(address, sent):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(address)
        line.sendall(sent)
        line.shutdown(socket.SHUT_WR)
        message, header = mailbox.receive(line)
    assert message is None
    assert header["failed"].endswith("says why")
    assert content_of(asked(address, question()))["report"]["id"] == "north"


def test_only_so_many_runs_are_remembered(site):
    held = keeper.Keeper({"client": "north", **{name: str(path) for name, path in site.items()}})
    for run in range(keeper.MOST_RUNS + 5):
        held.answer(question(run=run), SETTINGS.to_run_config())
    assert list(held.states) == list(range(5, keeper.MOST_RUNS + 5))


def test_each_study_keeps_its_result(site):
    held = keeper.Keeper({"client": "north", **{name: str(path) for name, path in site.items()}})
    for formula, names in (("y ~ x", ("Intercept", "x")), ("y ~ 1", ("Intercept",))):
        d = len(names)
        prior = Prior(np.zeros((1, d)), np.ones(1), np.eye(d)[None], names)
        message = question("query.personalise")
        message.content = wire.to_record({"token": "t", "prior": prior.to_wire(), "dispersion": 1.0})
        held.answer(message, {"formula": formula})
    kept = sorted((site["folder"] / "studies").glob("*/result.json"))
    assert sorted(json.loads(path.read_text())["names"] for path in kept) == [
        ["Intercept"],
        ["Intercept", "x"],
    ]
    assert json.loads((site["folder"] / "result.json").read_text())["names"] == ["Intercept"]
    for path in kept:
        files = {other.name for other in path.parent.iterdir()}
        assert {"result.csv", "result.html", "population.json"} <= files
    assert all(
        path.stat().st_mode & 0o077 == 0 for path in (site["folder"] / "studies").rglob("*") if path.is_dir()
    )
