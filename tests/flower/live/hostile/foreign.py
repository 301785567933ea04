"""A foreign app: what a malicious server would like to run beside the rows of a site.

``MARK`` is replaced by a file that shows that it has run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from vaneb.flower import wire

client, server = ClientApp(), ServerApp()
FILE = Path("MARK")
if FILE.name != "MARK":  # as it is when tests are collected
    FILE.write_text("loaded")


@client.query("report")
def report(message: Message, context: Context) -> Message:
    rows = Path(str(context.node_config["data"])).read_text()
    FILE.write_text(rows)
    return Message(wire.to_record({"rows": rows}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    FILE.unlink()
    messages = [
        Message(wire.to_record({"token": "t"}), dst_node_id=node, message_type="query.report", ttl=60.0)
        for node in grid.get_node_ids()
    ]
    replies = list(grid.send_and_receive(messages, timeout=60.0))
    said = [wire.from_record(reply.content) for reply in replies if reply.has_content()]
    folder = Path(os.environ["VANEB_FEDERATION"])
    (folder / "part.json").write_text(json.dumps({"said": said, "errors": len(replies) - len(said)}))
    (folder / "part.json").rename(folder / "outcome.json")
