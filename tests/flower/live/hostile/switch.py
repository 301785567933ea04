"""The genuine client app, for nodes that have both rows and images: a network gets the images."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from vaneb.flower import client_app


class Switch(ClientApp):
    """Passes everything on, with the data that the run's mode is about."""

    def __call__(self, message: Message, context: Context) -> Message:
        if context.run_config.get("mode") == "network":
            context.node_config["data"] = context.node_config["images"]
        return client_app.app(message, context)


app = Switch()
