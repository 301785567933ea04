"""What an operator tells a SuperLink: let these nodes in, run this app.

The same requests as ``flwr supernode register`` and ``flwr run`` make, without a new process for each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.utils import simulation_config_from_json

from vaneb.flower.keys import load_certificate, public_bytes
from vaneb.flower.processes import (
    LOOPBACK,
    SIMULATION,
    FederationFailed,
    Link,
    Security,
    app_bundle,
    app_description,
    free_port,
    superlink,
)
from vaneb.flower.settings import Settings

#: Seconds between two looks at what Flower says of a run.
LOOK = 5.0


@contextlib.contextmanager
def _client(link: Link) -> Iterator[Any]:
    authority = link.security.authority
    with _without_proxy():
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


@contextlib.contextmanager
def _without_proxy() -> Iterator[None]:
    """A client of Flower's that is made in this block goes to this machine's own ports directly."""
    before = os.environ.get("NO_PROXY")
    os.environ["NO_PROXY"] = ",".join([*LOOPBACK, *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["NO_PROXY"]
        else:
            os.environ["NO_PROXY"] = before


def register_nodes(link: Link, certificates: Mapping[str, Path]) -> dict[str, int]:
    """Let the holders of these certificates in, under their names, and nobody else; returns their ids.

    What the SuperLink knew before counts only if it is the same key under the same name.
    """
    wanted = {name: public_bytes(load_certificate(path.read_bytes())) for name, path in certificates.items()}
    ids: dict[str, int] = {}
    with _client(link) as client:
        for node in client.ListNodes(ListNodesRequest()).nodes_info:
            if node.status == "unregistered":
                continue
            if wanted.get(node.name) == node.public_key:
                ids[node.name] = int(node.node_id)
            else:
                client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        for name, key in wanted.items():
            if name not in ids:
                request = RegisterNodeRequest(public_key=key, name=name)
                ids[name] = int(client.RegisterNode(request).node_id)
    return ids


def _stop_runs(client: Any) -> None:
    """End runs of a server that was killed: nobody waits for answers to their questions any more."""
    for run, about in client.ListRuns(ListRunsRequest()).run_dict.items():
        if about.status.status != "finished":
            client.StopRun(StopRunRequest(run_id=run))


def run_app(
    link: Link,
    settings: Settings,
    outcome: Path,
    *,
    bundle: bytes | None = None,
    simulation: Mapping[str, Any] | None = None,
    seconds: float = math.inf,
) -> dict[str, Any]:
    """Submit a run and wait for what its server app writes to ``outcome``, which is returned.

    ``bundle`` is the app, ours by default.  ``simulation`` has Flower's options of one, such as
    ``num_supernodes``.
    """
    outcome.unlink(missing_ok=True)
    content = app_bundle() if bundle is None else bundle
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    with _client(link) as client:
        _stop_runs(client)
        started = client.StartRun(
            StartRunRequest(
                fab=fab_to_proto(fab),
                override_config=user_config_to_proto(settings.to_run_config()),
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
    settings: Settings, folder: Path, data: Path, column: str, clients: int, *, cpus: int = 1
) -> dict[str, Any]:
    """A run with ``clients`` virtual nodes on this machine; returns its outcome.

    ``data`` is the table with all clients, ``column`` the one that tells them apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = folder.resolve() / "flower"
    place = {"data": str(data.resolve()), "column": column, "folder": str(folder.resolve() / "clients")}
    options = {"num_supernodes": clients, "client_resources_num_cpus": cpus}
    # Ray's sockets must have short paths.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as ray:
        env = {"RAY_TMPDIR": os.environ.get("RAY_TMPDIR", ray), SIMULATION: json.dumps(place)}
        with superlink(home, free_port(), Security(), folder=folder, simulation=True, extra=env) as link:
            # Here all rows are one person's, and nothing stands between them and the app.
            bundle = app_bundle(app_description("vaneb.flower.client_app:app"))
            return run_app(link, settings, folder / "outcome.json", bundle=bundle, simulation=options)
