"""All the ways in which an answer can be bad: refused by name, and the others are served."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message, RecordDict

from flower.loopback import Node, bytes_of, content_of, federation
from flower.test_one_shot import SETTINGS, result, run
from vaneb import InvalidOption, InvalidReport
from vaneb.flower import client_app, wire
from vaneb.flower.ledger import Held
from vaneb.flower.policy import PolicyRefused
from vaneb.flower.settings import Settings


def altered(change):
    """A node that changes its genuine answer to the question for a report."""

    def behave(message: Message, genuine) -> Message:
        reply = genuine(message)
        if message.metadata.message_type != "query.report":
            return reply
        content = content_of(reply)
        new = change(content)
        return Message(new if isinstance(new, RecordDict) else wire.to_record(new), reply_to=message)

    return behave


def _with(content, **changes):
    return {**content, "report": {**content["report"], **changes}}


def nan(content):
    return _with(content, estimate=np.array([np.nan, 1.0]))


def infinite_precision(content):
    return _with(
        content, covariance={"family": "constant-diagonal", "unit_precision": np.array([[np.inf, 1]])}
    )


def another_dimension(content):
    extra = {"family": "constant-diagonal", "unit_precision": np.ones((1, 3))}
    return {**_with(content, estimate=np.ones(3), covariance=extra), "names": ["Intercept", "x", "z"]}


def another_id(content):
    return _with(content, id="c1")


def garbage(content):
    text = '{"report": {"$array": ["<f8", [2]]}}'
    return RecordDict({"tree": ConfigRecord({"json": text, "data": b"\x00\xff" * 40})})


def strange_kind(content):
    """What numpy takes for a record of one unnamed field: once the end of everybody's run."""
    text = '{"report": {"$array": [",f8", [2]]}}'
    return RecordDict({"tree": ConfigRecord({"json": text, "data": bytes(16)})})


def names_are_a_number(content):
    return {**content, "names": 3}


def writes_to_the_terminal(content):
    return {"failed": "\x1b]0;owned\x07\x1b[2Jall is well", "token": content["token"]}


def names_for_the_terminal(content):
    return {**content, "names": ["\x1b[2J", "x"]}


def ragged(content):
    return _with(content, estimate=[[1.0], [2.0, [3.0]]])


def huge(content):
    """More than a message may have; in earnest the door stops it long before."""
    return {**content, "more": np.zeros(9 << 20)}


def empty(content):
    return {"token": content["token"]}


def not_a_report(content):
    return {**content, "report": ["not", "a", "report"]}


def unknown_family(content):
    return _with(content, covariance={"family": "os.system", "command": "true"})


BAD = {
    nan: "estimate|theta",
    infinite_precision: "unit_precision",
    another_dimension: "3 parameters",
    another_id: "registered as 'c0'",
    garbage: "message",
    strange_kind: "message",
    names_are_a_number: "names",
    names_for_the_terminal: "names",
    writes_to_the_terminal: r"^client: \]0;owned\[2Jall is well$",
    ragged: "",
    huge: "message: 7",
    empty: "names",
    not_a_report: "client report",
    unknown_family: "family",
}


@pytest.fixture(scope="module")
def without_it(tmp_path_factory):
    """The folder of a run of all clients but ``c0``."""
    folder = tmp_path_factory.mktemp("alone")
    grid = federation(folder, SETTINGS, 6)
    del grid.nodes[1000]
    run(grid, folder)
    return folder


@pytest.mark.parametrize("change", BAD, ids=lambda change: change.__name__)
def test_a_bad_answer_is_refused_by_name_and_the_others_are_served(tmp_path, without_it, change):
    grid = federation(tmp_path, SETTINGS, 6)
    grid.nodes[1000].behave = altered(change)
    outcome = run(grid, tmp_path)
    assert outcome["served"] == [f"c{k}" for k in range(1, 6)]
    (trouble,) = outcome["troubles"]
    assert trouble["client"] == "c0"
    assert re.search(BAD[change], trouble["refused"]), trouble
    assert not (tmp_path / "c0" / "result.json").exists()
    # What the others get is what they would have got without it.
    assert result(tmp_path, "c3") == result(without_it, "c3")


def test_an_old_answer_sent_again_is_refused(tmp_path):
    grid = federation(tmp_path, SETTINGS, 6)
    old: list[RecordDict] = []

    def replay(message, genuine):
        if message.metadata.message_type != "query.report":
            return genuine(message)
        if not old:
            old.append(genuine(message).content)
        return Message(old[0], reply_to=message)

    grid.nodes[1000].behave = replay
    assert run(grid, tmp_path)["served"] == [f"c{k}" for k in range(6)]
    (tmp_path / "again").mkdir()
    second = run(grid, tmp_path / "again")
    assert second["served"] == [f"c{k}" for k in range(1, 6)]
    assert "another exchange" in second["troubles"][0]["refused"]


def test_silence_ends_with_the_exchange(tmp_path):
    grid = federation(tmp_path, SETTINGS, 6)
    grid.nodes[1002].behave = lambda message, genuine: None
    began = time.monotonic()
    outcome = run(grid, tmp_path)
    # Two exchanges of half a second, the fit, and a slow machine.
    assert time.monotonic() - began < 20
    assert outcome["served"] == ["c0", "c1", "c3", "c4", "c5"]
    assert outcome["troubles"] == [{"node": "1002", "client": "c2", "lost": "no answer within 0.5 seconds"}]


def test_the_text_of_an_exception_stays_at_the_client(tmp_path):
    """A row that cannot be used is quoted in the client's own log, and nowhere else."""
    settings = Settings(**{**vars(SETTINGS), "family": "poisson"})
    grid = federation(tmp_path, settings, 6, n=200)
    path = client_app.Path(grid.nodes[1000].node_config["data"])
    path.write_text(path.read_text() + "0.5,-31415.9265\n")
    outcome = run(grid, tmp_path, settings)
    assert outcome["served"] == [f"c{k}" for k in range(1, 6)]
    assert "31415" in (tmp_path / "c0" / "errors.log").read_text()
    assert "31415" not in json.dumps(outcome)
    for _, _, message in grid.captured:
        assert b"31415" not in bytes_of(message)


def test_every_kind_of_failure_has_a_fixed_sentence():
    sentences = {
        client_app.sentence_for(kind("secret"))
        for kind in (InvalidReport, InvalidOption, KeyError, OSError, PolicyRefused, Held)
    }
    assert len(sentences) == 6
    assert not any("secret" in sentence for sentence in sentences)


def test_without_authentication_a_name_claimed_twice_is_nobodys(tmp_path):
    grid = federation(tmp_path, SETTINGS, 6, named=False)
    grid.nodes[1000].node_config["client"] = "c1"
    outcome = run(grid, tmp_path)
    assert outcome["served"] == ["c2", "c3", "c4", "c5"]
    assert {trouble["node"] for trouble in outcome["troubles"]} == {"1000", "1001"}
    # A name that was served before stays with its node.
    thief = Node({**grid.nodes[1003].node_config, "folder": str(tmp_path / "thief"), "client": "c2"})
    grid.nodes[2000] = thief
    again = run(grid, tmp_path, replace(SETTINGS, refit=True))
    assert "c2" in again["served"]
    assert any(t["node"] == "2000" and "another node" in t["refused"] for t in again["troubles"])
    assert not (tmp_path / "thief" / "result.json").exists()


def test_clients_that_disagree_evenly_are_asked_for_names(tmp_path):
    grid = federation(tmp_path, SETTINGS, 2)
    grid.nodes[1000].behave = altered(another_dimension)
    with pytest.raises(InvalidReport, match="disagree"):
        run(grid, tmp_path)
