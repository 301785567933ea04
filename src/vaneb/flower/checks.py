"""What can be known to be wrong before anything is started, said in the words of the command line."""

from __future__ import annotations

import contextlib
import datetime
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaneb.errors import InvalidOption
from vaneb.files import absent
from vaneb.flower.client_data import read_client
from vaneb.flower.keys import NAME
from vaneb.flower.settings import Settings

#: Colours in the messages of other libraries.
ANSI = re.compile(r"\x1b\[[0-9;]*m")


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
        if not (path / "train_images.npy").is_file():
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


def check_certificate(path: Path, whose: str) -> None:
    """A certificate that is valid now."""
    from cryptography import x509

    if not path.is_file():
        raise InvalidOption(f"{path}: no such file ({whose}). Get it from the server's operator.")
    with _wrong(str(path), f"It should be {whose}, in PEM form."):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    end, now = certificate.not_valid_after_utc, datetime.datetime.now(datetime.UTC)
    if end < now:
        raise InvalidOption(
            f"{path}: expired on {end:%Y-%m-%d}. Move the old keys away and make new ones with "
            "'vaneb federate keys', or ask your authority for a new certificate."
        )


def check_private_key(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    if not path.is_file():
        raise InvalidOption(
            f"{path}: no such file (this client's private key). Make one with 'vaneb federate keys' or "
            "'ssh-keygen -t ecdsa -b 384', or name it with --key."
        )
    with _wrong(str(path), "It should be an ECDSA key without a passphrase, as ssh-keygen makes it."):
        serialization.load_ssh_private_key(path.read_bytes(), None)


def public_keys(folder: Path) -> dict[str, Path]:
    """Public keys of clients by name, each of them readable."""
    from cryptography.hazmat.primitives import serialization

    found = {path.stem: path for path in sorted(folder.glob("*.pub"))}
    if not found:
        raise InvalidOption(
            f"{folder}: no public keys (NAME.pub) of clients. Put there what clients have sent you, or make "
            "them with 'vaneb federate keys --client NAME'."
        )
    for path in found.values():
        with _wrong(str(path), "It should be a public key as ssh-keygen writes it: ecdsa-sha2-nistp384 ..."):
            serialization.load_ssh_public_key(path.read_bytes())
    return found


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
        from vaneb.flower.network_client import experiment_of
    except ImportError:
        raise InvalidOption("mode network needs torch. pip install 'vaneb[nn]'.") from None
    config = experiment_of(settings)
    network = build_network(**model_of(config))
    for stage in build_method(settings.method, config).stages:
        build_algorithm(stage.algorithm, network, stage.options)


def split_address(address: str) -> tuple[str, int]:
    """Host and port."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
        raise InvalidOption(f"--server {address}: expected HOST:PORT, such as 127.0.0.1:9092.")
    return host.strip("[]"), int(port)


def reachable(address: str, authority: Path | None) -> bool:
    """Whether a server is there; refuses one whose certificate the authority has not signed."""
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=5.0) as plain:
            if authority is None:
                return True
            context = ssl.create_default_context(cafile=str(authority))
            with context.wrap_socket(plain, server_hostname=host):
                return True
    except ssl.SSLCertVerificationError as error:
        raise InvalidOption(
            f"--server {address}: its certificate is not to be trusted ({error.verify_message}). Use the "
            f"ca.crt of this server (--ca, now {authority}), and a host name that its certificate has."
        ) from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # on its way up or down
        return False
    except ssl.SSLError:
        raise InvalidOption(
            f"--server {address}: does not speak TLS. Is it another program, or a server with --insecure?"
        ) from None
    except OSError:
        return False


def why_ended(log: str, name: str) -> str:
    """Why a SuperNode has ended, from its log, in words for the one who started it."""
    last = log[log.rfind("Starting Flower SuperNode") :]
    if "Failed to activate SuperNode" in last:
        return (
            "the server does not let this client in. Either it does not know the client's public key (its "
            f"operator puts {name}.pub into the server's keys/nodes and starts the server again), or it "
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
