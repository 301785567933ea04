"""A client app that behaves as its node config says; by default as the genuine one.

It travels with the test's app, as a hostile client's software would be its own.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from vaneb.flower import wire

app = ClientApp()

PLAIN = ("Intercept", "x")
FORGED = {
    "nan": (PLAIN, np.array([np.nan, 1.0]), "nan"),
    "wide": ((*PLAIN, "z"), np.ones(3), "wide"),
    "thief": (PLAIN, np.ones(2), "north"),
}


@app.query("deliver")
def deliver(message: Message, context: Context) -> Message:
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
        arrays = ArrayRecord({"0": Array("float64", (2,), "numpy.ndarray", b"\x00\xff" * 40)})
        text = ConfigRecord({"json": '{"report": {"$array": "0"}}'})
        return Message(RecordDict({"text": text, "arrays": arrays}), reply_to=message)
    if behaviour == "replay":
        return Message(wire.to_record(wire.load(Path(str(context.node_config["old"])))), reply_to=message)
    if behaviour not in FORGED:
        from vaneb.flower import client_app

        return client_app.app(message, context)
    # A report that was never fitted, but answers the question.
    names, estimate, client = FORGED[behaviour]
    report = {
        "id": client,
        "estimate": estimate,
        "n": 60.0,
        "covariance": {"family": "constant-full", "unit_precision": np.eye(len(names))[None]},
        "status": "ok",
    }
    token = wire.from_record(message.content)["token"]
    content = {"names": list(names), "design": "", "report": report, "token": token}
    return Message(wire.to_record(content), reply_to=message)
