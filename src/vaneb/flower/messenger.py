"""The app that Flower runs at a site: it carries a question to the ``keeper``, and its answer back.

It knows no file of the site and has nothing to tell but what the keeper has let leave.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from vaneb.flower.mailbox import carried

#: In the node config: where the keeper listens.
KEEPER = "keeper"


class NotAnswered(Exception):
    """With one of the fixed sentences of ``client_app``."""


class Messenger(ClientApp):
    """Hands on whatever is asked."""

    def __call__(self, message: Message, context: Context) -> Message:
        answer = carried(str(context.node_config[KEEPER]), message, dict(context.run_config))
        if isinstance(answer, str):
            raise NotAnswered(answer)
        return answer


app = Messenger()
