"""What an operator tells a SuperLink: let these nodes in, run this app.

The same requests as ``flwr supernode register`` and ``flwr run`` make, without a new process for each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vaneb.flower.processes import FederationFailed, Link, Security, free_port, superlink, write_app
from vaneb.flower.settings import Settings

#: Seconds between two looks at what Flower says of a run.
LOOK = 5.0


@contextlib.contextmanager
def _client(link: Link) -> Iterator[Any]:
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    authority = link.security.authority
    client = ControlHttpClient.from_server_address(
        server_address=link.address,
        insecure=not link.security.on,
        root_certificates=None if authority is None else authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="vaneb")],
    )
    try:
        yield client
    finally:
        client.close()


def register_nodes(link: Link, public_keys: Mapping[str, Path]) -> dict[str, int]:
    """Let these nodes in, under their names; returns their ids.  Known ones are left as they are."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest

    known_path = link.home / "nodes.json"
    known: dict[str, int] = json.loads(known_path.read_text()) if known_path.exists() else {}
    with _client(link) as client:
        for name, path in public_keys.items():
            if name not in known:
                request = RegisterNodeRequest(public_key=try_load_public_key(path), name=name)
                known[name] = int(client.RegisterNode(request).node_id)
    known_path.write_text(json.dumps(known))
    return {name: known[name] for name in public_keys}


def run_app(
    link: Link,
    app: Path,
    outcome: Path,
    *,
    simulation: Mapping[str, Any] | None = None,
    seconds: float = 3600.0,
) -> dict[str, Any]:
    """Submit a run and wait for what its server app writes to ``outcome``, which is returned.

    ``simulation`` has Flower's options of one, such as ``num_supernodes``.
    """
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
    from flwr.supercore.fab import Fab
    from flwr.supercore.utils import simulation_config_from_json

    outcome.unlink(missing_ok=True)
    content = build_fab_from_disk(app)
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    with _client(link) as client:
        started = client.StartRun(
            StartRunRequest(
                fab=fab_to_proto(fab),
                override_config=user_config_to_proto({}),
                override_federation_config=simulation_config_from_json(dict(simulation))
                if simulation
                else None,
            )
        )
        run = int(started.run_id)
        deadline, look = time.monotonic() + seconds, time.monotonic() + LOOK
        while time.monotonic() < deadline:
            if outcome.exists():
                return dict(json.loads(outcome.read_text()))
            if link.process.poll() is not None:
                raise FederationFailed(f"the SuperLink has ended; see {link.log}.")
            if time.monotonic() > look:
                listed = client.ListRuns(ListRunsRequest(run_id=run))
                status = listed.run_dict[run].status
                if status.status == "finished" and not outcome.exists():
                    said = f"{status.sub_status} {status.details}".strip()
                    raise FederationFailed(f"the run ended as {said} without an outcome; see {link.log}.")
                look = time.monotonic() + LOOK
            time.sleep(0.2)
    raise FederationFailed(f"the run has not ended within {seconds:g} seconds; see {link.log}.")


def simulate(
    settings: Settings, folder: Path, clients: int, *, cpus: int = 1, seconds: float = 3600.0
) -> dict[str, Any]:
    """A run with ``clients`` virtual nodes on this machine; returns its outcome."""
    folder.mkdir(parents=True, exist_ok=True)
    home = folder.resolve() / "flower"
    app = write_app(home / "app", settings)
    options = {"num_supernodes": clients, "client_resources_num_cpus": cpus}
    # Ray's sockets must have short paths.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as ray:
        env = {"RAY_TMPDIR": os.environ.get("RAY_TMPDIR", ray)}
        with superlink(
            home, "127.0.0.1", free_port(), Security(), folder=folder, simulation=True, extra=env
        ) as link:
            return run_app(link, app, folder / "outcome.json", simulation=options, seconds=seconds)
