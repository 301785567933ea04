"""A client app that behaves as its node config says; by default as the genuine one.

It travels with the test's app, as a hostile client's software would be its own.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from vaneb.flower import wire

app = ClientApp()

PLAIN = ("Intercept", "x")
#: Names of parameters, estimate and client of reports that were never fitted.
FORGED = {
    "nan": (PLAIN, [np.nan, 1.0], "nan"),
    "wide": ((*PLAIN, "z"), [1.0, 1.0, 1.0], "wide"),
    "thief": (PLAIN, [1.0, 1.0], "honest0"),
}


def lie(genuine: Message, question: Message) -> Message:
    """A report that is right in form: an estimate of the liar's choice, with a tiny variance."""
    content = wire.from_record(genuine.content)
    precision = 1e6 * np.eye(2)[None]
    covariance = {"family": "constant-full", "unit_precision": precision}
    content["report"] |= {"estimate": np.array([1.0, -1.0]), "n": 60.0, "covariance": covariance}
    return Message(wire.to_record(content), reply_to=question)


@app.query("personalise")
def personalise(message: Message, context: Context) -> Message:
    from vaneb.flower import client_app

    return client_app.app(message, context)


@app.query("report")
def report(message: Message, context: Context) -> Message:
    behaviour = str(context.node_config.get("behaviour", ""))
    if behaviour == "raise":
        raise RuntimeError("an error that nobody handles")
    if behaviour == "sleep":
        (Path(str(context.node_config["folder"])) / "asleep").write_text("")
        time.sleep(600)
    if behaviour == "garbage":
        text = '{"report": {"$array": ["<f8", [2]]}}'
        garbage = ConfigRecord({"json": text, "data": b"\x00\xff" * 40})
        return Message(RecordDict({"tree": garbage}), reply_to=message)
    if behaviour == "replay":
        return Message(wire.to_record(wire.load(Path(str(context.node_config["old"])))), reply_to=message)
    if behaviour not in FORGED:
        from vaneb.flower import client_app

        genuine = client_app.app(message, context)
        return lie(genuine, message) if behaviour == "lie" else genuine
    # A report that was never fitted, but answers the question.
    names, estimate, client = FORGED[behaviour]
    report = {
        "id": client,
        "estimate": np.array(estimate),
        "n": 60.0,
        "covariance": {"family": "constant-full", "unit_precision": np.eye(len(names))[None]},
        "status": "ok",
    }
    token = wire.from_record(message.content)["token"]
    content = {"names": list(names), "design": "", "report": report, "token": token}
    return Message(wire.to_record(content), reply_to=message)
