"""The site's gate: all that a client's SuperNode says and hears goes through it.

It runs in the process that ``vaneb federate client`` is; the ``sandbox`` lets the SuperNode and its apps
reach no other port:

- the app of a run is the one that is installed at the site.  What the server offers as an app is not even
  asked for; a run of another app is turned into a run of ours that refuses every question.  The gate signs
  the app, and the SuperNode runs what bears that signature only (Flower's trusted entities);
- connections go out only, to one server, with mutual TLS, through the site's proxy if it has one;
- no answer of the server is larger than a message may be.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.serde import user_config_to_proto
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.run_pb2 import GetRunResponse
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

from vaneb.flower import forwarding, keys, processes
from vaneb.flower.forwarding import FLEET, PROTOBUF, Answer, Forwarder, Meter, Refused, Request

#: Under which name a SuperNode knows its gate's signature.
SIGNER = "fpk_gate"
FOREIGN = "asks for an app that is not the one installed here"


@dataclass
class Gate:
    """What a site lets in.

    ``reason`` is the last thing that the server's door refused it for, ``heard`` when it last answered.
    """

    meter: Meter = field(default_factory=Meter)
    reason: str = ""
    heard: float = -math.inf

    @cached_property
    def app(self) -> bytes:
        """The app as it is installed here, in Flower's form."""
        return processes.app_bundle()

    def before(self, request: Request) -> Answer | None:
        if request.path != FLEET + "get-fab":
            return None

        fab = Fab(hash_str=self._hash, content=self.app, verifications=self._signed())
        return Answer(200, {"content-type": PROTOBUF}, GetFabResponse(fab=fab).SerializeToString())

    def after(self, request: Request, answer: Answer) -> Answer:
        if answer.status != 200:
            if answer.headers.get("content-type") == forwarding.PLAIN:
                self.reason = answer.body[:200].decode(errors="replace")
            return answer
        self.reason, self.heard = "", time.monotonic()
        self.meter.count("", request.path, len(answer.body), announces="pull-messages", carries="pull-object")
        if request.path == FLEET + "get-run":
            return Answer(200, answer.headers, self.own_run(answer.body))
        return answer

    def own_run(self, content: bytes) -> bytes:
        """The run that the server speaks of, as a run of the installed app."""
        try:
            response = GetRunResponse.FromString(content)
        except Exception:
            raise Refused(502, "the answer is not one of the Fleet API") from None
        run = response.run
        refused = self._why_not(run)
        if refused:
            run.ClearField("override_config")
            for key, value in user_config_to_proto({"refused": refused}).items():
                run.override_config[key].CopyFrom(value)
        run.fab_id, run.fab_version, run.fab_hash = processes.APP_ID, processes.APP_VERSION, self._hash
        run.primary_task_type = ""
        return response.SerializeToString()

    def _why_not(self, run: Any) -> str:
        """Why a run is none of ours; empty if it is."""
        if (run.fab_id, run.fab_version) != (processes.APP_ID, processes.APP_VERSION):
            return f"{FOREIGN} ({run.fab_id[:60]!r} {run.fab_version[:20]!r})"
        known = processes.app_config()
        strange = [key for key in run.override_config if key not in known or key == "refused"]
        return f"has settings that are not known here ({strange[0][:40]!r})" if strange else ""

    @cached_property
    def _hash(self) -> str:
        return hashlib.sha256(self.app).hexdigest()

    @cached_property
    def _signer(self) -> Any:
        """A key of this gate's own, which is never written down."""
        return ed25519.Ed25519PrivateKey.generate()

    def _signed(self) -> dict[str, str]:
        """The installed app's signature, as Flower's trusted entities give it."""
        now = int(time.time())
        signature = self._signer.sign(create_message_to_sign(bytes.fromhex(self._hash), now))
        text = base64.urlsafe_b64encode(signature).decode()
        return {"valid_license": "Valid", SIGNER: json.dumps({"signed_at": now, "signature": text})}

    def trusted(self) -> str:
        """For ``--trusted-entities``: a SuperNode runs what this gate has signed, and nothing else."""
        public = self._signer.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return f"{SIGNER}: '{public.decode()}'\n"


def client_context(authority: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    """For connections to a server: its authority, and this client's certificate and (OpenSSH) key."""
    context = ssl.create_default_context(cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # OpenSSL reads files only, and another form; the copy is this user's alone, and gone at once.
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(keys.as_pkcs8(key))
        copy.flush()
        context.load_cert_chain(str(certificate), copy.name)
    return context


def newest_context(
    authority: Path, certificate: Path, key: Path, greets: Callable[[ssl.SSLContext], bool]
) -> ssl.SSLContext:
    """The same, with the renewed certificate if there is one and the server lets it in; it is then kept."""
    renewed = certificate.with_name(certificate.name + keys.RENEWED)
    if renewed.exists():
        context = client_context(authority, renewed, key)
        if greets(context):
            os.replace(renewed, certificate)
            return context
    return client_context(authority, certificate, key)


def proxy_for(host: str) -> str | None:
    """The site's proxy to this host, from HTTPS_PROXY and NO_PROXY."""
    if urllib.request.proxy_bypass(host):
        return None
    found = urllib.request.getproxies().get("https")
    return found if found is None or "://" in found else f"http://{found}"


@contextlib.contextmanager
def open_gate(
    home: Path, server: str, host: str, context: ssl.SSLContext
) -> Iterator[tuple[Gate, str, Path]]:
    """A gate on loopback; yields it, its address and the certificate that it shows."""
    gate = Gate()
    port = processes.free_port()
    certificate, key = keys.loopback_certificate(home, "gate")

    def upstream() -> httpx.AsyncClient:
        # Half of what the door lets one client open.
        limits = httpx.Limits(max_connections=forwarding.MOST_OF_ONE // 2)
        proxy, address = proxy_for(host), f"https://{server}"
        return httpx.AsyncClient(
            base_url=address, verify=context, proxy=proxy, trust_env=False, timeout=60.0, limits=limits
        )

    inside = forwarding.server_context(str(certificate), str(key))
    with forwarding.open_forwarder(
        Forwarder(upstream, lambda peer: None, gate.before, gate.after), "127.0.0.1", port, inside
    ):
        yield gate, f"127.0.0.1:{port}", certificate
