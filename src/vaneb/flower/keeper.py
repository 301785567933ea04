"""The keeper of a site's rows: the only process that reads them; it also holds the policy and the ledger.

Flower's processes at the site (SuperNode, SuperExec, the app) are given neither rows nor policy.  They bring
the keeper a question and carry its answer away; there is nothing else that they can do, since

- rows, policy and ledger are out of their reach (``sandbox``), whatever code they might be made to run;
- they reach no port but the gate's and their own.

The keeper in turn reaches no port at all: what it does not hand to the app does not leave.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaneb.files import private_folder, write_atomically
from vaneb.flower import processes
from vaneb.flower.sandbox import Sandbox

#: Seconds that an app may take to hand over its question, or to take an answer.
PATIENCE = 60.0
#: Runs whose states are kept: between the messages of a secure sum, a client remembers its masks.
MOST_RUNS = 16


@dataclass
class Keeper:
    """Answers for one client."""

    node_config: dict[str, Any]
    states: OrderedDict[int, Any] = field(default_factory=OrderedDict)

    def answer(self, message: Any, run_config: dict[str, Any]) -> Any:
        """What the client app says, with the site's own files and the run's own state."""
        from flwr.app import Context, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        from vaneb.flower import client_app
        from vaneb.flower.client_data import RESULT

        run, node = int(message.metadata.run_id), int(message.metadata.dst_node_id)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, node
        state = self.states.pop(run, None) or RecordDict()
        context = Context(run, node, self.node_config, state, run_config)
        self.states[run] = state
        while len(self.states) > MOST_RUNS:
            self.states.popitem(last=False)
        result = Path(self.node_config["folder"]) / RESULT
        before = _written(result)
        try:
            return client_app.app(message, context)
        finally:
            self.states[run] = context.state
            if _written(result) != before:
                self._keep_by_study(result.parent, run_config)

    def _keep_by_study(self, folder: Path, run_config: dict[str, Any]) -> None:
        """A copy of a result with its study: the next one takes the place of ``result.json``."""
        from vaneb.flower.client_data import PAGE, POPULATION, RESULT, TABLE
        from vaneb.flower.ledger import STUDIES, study_name
        from vaneb.flower.settings import Settings

        settings = Settings.from_run_config(run_config)
        own = private_folder(folder / STUDIES / study_name(settings))
        for name in (RESULT,) if settings.mode == "network" else (POPULATION, TABLE, PAGE, RESULT):
            write_atomically(own / name, (folder / name).read_bytes())

    def serve(self, listener: socket.socket) -> None:
        """One question after the other."""
        from vaneb.flower.client_app import Failed, sentence_for
        from vaneb.flower.mailbox import receive, send

        while True:
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE)
            # An app that goes away, or sends what is no question, is no reason to end.
            with connection, contextlib.suppress(OSError):
                try:
                    message, header = receive(connection)
                    answer = self.answer(message, dict(header["run_config"]))
                except Failed as failed:
                    send(connection, None, failed=str(failed))
                except Exception as error:
                    send(connection, None, failed=sentence_for(error))
                else:
                    send(connection, answer)


@contextlib.contextmanager
def open_keeper(
    folder: Path, node_config: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A keeper beside a client; yields its process, and where it listens."""
    # A socket's path has at most a hundred letters, so it cannot be in any folder.  This one is 0700.
    with (
        tempfile.TemporaryDirectory(prefix="vaneb-") as place,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        address = f"{place}/keeper"
        listener.bind(address)
        listener.listen(16)
        command = [sys.executable, "-m", __name__, str(listener.fileno()), json.dumps(dict(node_config))]
        home = folder / "flower"
        with processes.process(
            command,
            home / "keeper.log",
            processes.environment(home),
            sandbox=Sandbox(ports=()),
            files=[listener.fileno()],
        ) as child:
            yield child, address


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def main(descriptor: str, node_config: str) -> None:
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    Keeper(json.loads(node_config)).serve(socket.socket(fileno=int(descriptor)))


if __name__ == "__main__":
    main(*sys.argv[1:])
