"""What can be known to be wrong before anything is started, said in the words of the command line."""

from __future__ import annotations

import contextlib
import datetime
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import vaneb
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.files import absent, write_atomically
from vaneb.flower.client_data import read_client
from vaneb.flower.door import VERSION, clock_of
from vaneb.flower.forwarding import HELLO
from vaneb.flower.gate import proxy_for
from vaneb.flower.keys import NAME, load_certificate, load_private_key, public_bytes
from vaneb.flower.policy import Policy
from vaneb.flower.processes import LOOPBACK
from vaneb.flower.sandbox import Sandbox, lacking, version, within_reach
from vaneb.flower.settings import Settings
from vaneb.grouped.frames import need_column

if TYPE_CHECKING:
    import pandas as pd

#: Colours in the messages of other libraries.
ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: Name of a client's policy in its folder.
POLICY = "policy.toml"
#: In a folder of images.
IMAGES = "train_images.npy"


@contextlib.contextmanager
def _wrong(place: str, remedy: str) -> Iterator[None]:
    """Whatever goes wrong in the block is the fault of the file at ``place``."""
    try:
        yield
    except InvalidOption:
        raise
    except Exception as error:
        about = ANSI.sub("", " ".join(str(error).split()))[:200]
        raise InvalidOption(f"{place}: cannot be used ({about}). {remedy}") from None


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidOption(f"--name {name!r}: use letters, digits, dots, dashes and underscores.")


def check_data(path: Path) -> None:
    """A table with a header, or a folder of images as ``network_client.write_client`` makes it."""
    if path.is_dir():
        if not (path / IMAGES).is_file():
            raise InvalidOption(
                f"--data {path}: a folder without images. Give a .csv or .parquet file; a folder only for "
                "mode network, as vaneb.flower.network_client.write_client makes it."
            )
        return
    if not path.is_file():
        raise InvalidOption(f"--data {absent(path)}")
    if path.suffix not in (".csv", ".parquet"):
        raise InvalidOption(f"--data {path}: the file must end in .csv or .parquet.")
    with _wrong(f"--data {path}", "Give a .csv or .parquet file with a header and at least one row."):
        _, frame = read_client(path)
        if not len(frame):
            raise InvalidOption(f"--data {path}: has no rows.")


def check_wards(path: Path, column: str) -> None:
    """That the column that tells a site's clients apart is there."""
    if not column:
        return
    if path.is_dir():
        raise InvalidOption(f"--client {column}: a folder of images is one client. Leave it out.")
    with _wrong(f"--client {column}", f"Name a column of {path}."):
        need_column(read_client(path)[1], column, "--client")


def check_certificate(path: Path, whose: str) -> None:
    """A certificate that is valid now."""
    if not path.is_file():
        raise InvalidOption(f"{path}: no such file ({whose}). Get it from the server's operator.")
    with _wrong(str(path), f"It should be {whose}, in PEM form."):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    end, now = certificate.not_valid_after_utc, datetime.datetime.now(datetime.UTC)
    if end < now:
        raise InvalidOption(
            f"{path}: expired on {end:%Y-%m-%d}. Renew it with 'vaneb federate keys "
            "--renew', or ask your authority for a new certificate."
        )


def check_policy(path: Path | None, folder: Path, data: Path) -> Path:
    """The client's policy, readable, and such that its data can be answered from at all.

    Written if it is not named or there.
    """
    found = path or folder / POLICY
    if path is None and not found.exists():
        write_atomically(found, Policy().text().encode())
    policy = Policy.read(found)
    frame = None if data.is_dir() else read_client(data)[1]
    rows = len(np.load(data / IMAGES, mmap_mode="r") if frame is None else frame)
    if rows < policy.fewest_rows:
        raise InvalidOption(
            f"--data {data}: {rows} rows, but {found} lets nothing be said of fewer than "
            f"{policy.fewest_rows} (fewest_rows)."
        )
    if frame is not None:
        _check_columns(policy, found, data, frame)
    return found


def _check_columns(policy: Policy, found: Path, data: Path, frame: pd.DataFrame) -> None:
    """That columns and formulas of the policy speak of columns that are there."""
    from vaneb.grouped.formula import parse

    for column in policy.columns:
        if column not in frame.columns:
            raise InvalidOption(f"{found}: columns: {column!r} is not a column of {data}.")
    agreed = frame[list(policy.columns)] if policy.columns else frame
    for formula in policy.formulas:
        try:
            parse(formula, agreed, ())
        except (InvalidOption, InvalidReport) as error:
            raise InvalidOption(f"{found}: formulas: {error}") from None


def check_reach(around: Sandbox, files: Sequence[Path], *, without: bool = False) -> str:
    """That Flower's processes cannot open what is the site's own; a warning of what nothing keeps them from.

    On a system that has no sandbox a client starts only if it may do ``without``.
    """
    if not version() and not without:
        raise InvalidOption(
            f"this system has {lacking()}. Use one that has it. Or say --without-sandbox, and run the client "
            "as a user that can read nothing but its own files, or in a container."
        )
    if version() and (near := within_reach(around, files)):
        raise InvalidOption(
            f"{near[0]}: lies among the programs of this machine, where Flower's processes can read it. Move "
            "it to a folder of its own."
        )
    return f"this system has {lacking()}." if lacking() else ""


def check_private_key(path: Path) -> None:
    if not path.is_file():
        raise InvalidOption(
            f"{path}: no such file (this client's private key). Make one with 'vaneb federate keys' or "
            "'ssh-keygen -t ecdsa -b 384', or name it with --key."
        )
    with _wrong(str(path), "It should be an ECDSA key without a passphrase, as ssh-keygen makes it."):
        serialization.load_ssh_private_key(path.read_bytes(), None)


def register(folder: Path) -> dict[str, Path]:
    """Certificates of clients by name, each of them valid, each with a key of its own."""
    found = {path.stem: path for path in sorted(folder.glob("*.crt"))}
    if not found:
        raise InvalidOption(
            f"{folder}: no certificates (NAME.crt) of clients. Put there what clients have sent you, or make "
            "them with 'vaneb federate keys --client NAME'."
        )
    holders: dict[bytes, Path] = {}
    for name, path in found.items():
        if not NAME.fullmatch(name):
            raise InvalidOption(
                f"{path}: its name is a client's: letters, digits, dots, dashes, underscores."
            )
        check_certificate(path, f"the certificate of client {name}")
        with _wrong(str(path), "Make it at the client with 'vaneb federate keys --site --client NAME'."):
            certificate = load_certificate(path.read_bytes())
            if not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
                raise InvalidOption(f"{path}: its key must be of an elliptic curve (ECDSA).")
            key = public_bytes(certificate)
        if key in holders:
            raise InvalidOption(f"{path}: has the same key as {holders[key]}. Each client has its own.")
        holders[key] = path
    return found


def check_server_keys(folder: Path) -> None:
    """That the server has a certificate, valid now, and its key."""
    for name in ("server.pem", "server.key"):
        if not (folder / name).is_file():
            raise InvalidOption(
                f"{folder / name}: missing. Make keys with 'vaneb federate keys', or say --insecure."
            )
    check_certificate(folder / "server.pem", "the server's certificate")


def check_pair(certificate: Path, key: Path) -> None:
    """That a client's certificate is of its key."""
    with _wrong(str(certificate), f"It should be the certificate of {key}."):
        if load_certificate(certificate.read_bytes()).public_key() != load_private_key(key).public_key():
            raise InvalidOption(
                f"{certificate}: is not of the key {key}. Remove it and make it again with 'vaneb federate "
                "keys --site', and send it to the server's operator."
            )


def check_loopback(host: str) -> None:
    """That a trial without protection stays on this machine."""
    if host not in LOOPBACK:
        raise InvalidOption(
            f"--insecure: lets everybody in who reaches {host}, and lets them run what they like. It is for "
            f"this machine only ({LOOPBACK[0]}); leave it out and make keys with 'vaneb federate keys'."
        )


def check_port(host: str, port: int) -> None:
    """That this machine can listen there."""
    if not 0 < port < 65536:
        raise InvalidOption(f"--port {port}: must be a number from 1 to 65535.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror:
        raise InvalidOption(
            f"--host {host}: not an address. Give a name or address of this machine."
        ) from None
    except PermissionError:
        raise InvalidOption(f"--port {port}: not allowed. Choose one above 1023.") from None
    except OSError as error:
        if error.errno == 98 or "in use" in str(error):
            raise InvalidOption(f"--port {port}: another program listens there. Choose another.") from None
        raise InvalidOption(
            f"--host {host}: not an address of this machine ({error.strerror}). 0.0.0.0 is all of them."
        ) from None


def check_formula(formula: str) -> None:
    """That it can be read; whether columns are there is known at the clients."""
    from vaneb.grouped.formula import understand

    try:
        understand(formula)
    except InvalidOption as error:  # "formula 'y ~': ..."
        raise InvalidOption(f"--{error}") from None


def check_experiment(settings: Settings) -> None:
    """That there are such a configuration and such a method."""
    try:
        from vaneb.fl.algorithms import build_algorithm
        from vaneb.fl.experiment import model_of
        from vaneb.fl.methods import build_method
        from vaneb.fl.models import build_network
        from vaneb.fl.naming import known_names_only
        from vaneb.flower.network_client import experiment_of
    except ImportError:
        raise InvalidOption("mode network needs torch. pip install 'vaneb[nn]'.") from None
    config = experiment_of(settings)
    with known_names_only():
        network = build_network(**model_of(config))
        for stage in build_method(settings.method, config).stages:
            build_algorithm(stage.algorithm, network, stage.options)


def split_address(address: str) -> tuple[str, int]:
    """Host and port."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
        raise InvalidOption(f"--server {address}: expected HOST:PORT, such as 127.0.0.1:9092.")
    return host.strip("[]"), int(port)


def greeted(
    address: str,
    context: ssl.SSLContext | None,
    name: str = "",
    note: Callable[[str], None] = lambda text: None,
) -> str:
    """Why a server does not let this client in now; empty if it does.  A version that differs is noted.

    ``InvalidOption`` for what no waiting cures: a server whose certificate is not to be trusted.
    """
    host, port = split_address(address)
    absent = f"no server at {address} yet."
    if context is None:
        try:
            with socket.create_connection((host, port), timeout=5.0):
                return ""
        except OSError:
            return absent
    try:
        proxy = proxy_for(host)
        with httpx.Client(verify=context, proxy=proxy, trust_env=False, timeout=10.0) as client:
            answer = client.post(f"https://{address}{HELLO}", headers={VERSION: vaneb.__version__})
    except httpx.ProxyError as error:
        return f"the proxy {proxy} does not pass us on to {address} ({error}). See HTTPS_PROXY and NO_PROXY."
    except httpx.HTTPError as error:
        return _why_no_greeting(error, address) or absent
    if answer.status_code == 401:
        return not_let_in(name)
    if answer.status_code != 200:
        return f"{address} is not a vaneb server (it answers {answer.status_code})."
    there = _told(answer).get("version")
    if there != vaneb.__version__:
        note(
            f"the server has version {there!s:.30} of vaneb, this client {vaneb.__version__}. "
            "See the upgrade note in docs/federation.md."
        )
    return _clocks(answer)


def _told(answer: httpx.Response) -> dict[str, Any]:
    """What a server says of itself; nothing if it cannot be read."""
    try:
        content = answer.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _clocks(answer: httpx.Response) -> str:
    """Whether this machine's clock agrees with the one that the server has told."""
    try:
        there = datetime.datetime.fromisoformat(_told(answer)["time"])
    except (ValueError, KeyError, TypeError):
        return "the server does not tell its time; is it of another version?"
    return clock_of(datetime.datetime.now(datetime.UTC).isoformat(), there)


def _why_no_greeting(error: BaseException, address: str) -> str:
    """What a failed connection means; empty if nobody is there."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            raise InvalidOption(
                f"--server {address}: its certificate is not to be trusted ({seen.verify_message}). Use the "
                "ca.crt of this server (--ca), and a host name that its certificate has."
            ) from None
        if isinstance(seen, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # on its way up or down
            return ""
        if isinstance(seen, ssl.SSLError):
            if "alert" in str(seen).lower():
                return not_let_in("")
            raise InvalidOption(
                f"--server {address}: does not speak TLS. Is it another program, or a server with --insecure?"
            ) from None
        seen = seen.__cause__ or seen.__context__
    return ""


def not_let_in(name: str) -> str:
    """What to do about a server that does not know a client."""
    return (
        "the server does not let this client in: it does not know its certificate, or no longer, or that has "
        f"expired. Its operator puts {name or 'NAME'}.crt into the server's keys/nodes."
    )


def why_ended(log: str, name: str) -> str:
    """Why a SuperNode has ended, from its log, in words for the one who started it."""
    last = log[log.rfind("Starting Flower SuperNode") :]
    if "Failed to activate SuperNode" in last:
        return (
            "the server does not let this client in. Either it does not know the client's certificate (its "
            f"operator puts {name}.crt into the server's keys/nodes), or it "
            "still holds the client's last connection, for up to a minute after that was cut."
        )
    errors = [line.strip() for line in last.splitlines() if "error" in line.lower()]
    return errors[-1] if errors else "its SuperNode has ended."


def last_error(log: Path) -> str:
    """The last exception in a client's own log, in one line."""
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def load_settings(values: dict[str, Any]) -> Settings:
    """Settings of a run, checked as far as the server can."""
    settings = Settings.from_run_config(values)
    if settings.mode == "network":
        check_experiment(settings)
    else:
        check_formula(settings.formula)
    return settings
