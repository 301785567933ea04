"""Certificates and node keys for a trial.  For anything else use those of your own authority.

ca.crt, ca.key              an authority that signs the server's certificate
server.pem, server.key      the server's, for its host names and addresses
nodes/NAME, nodes/NAME.pub  one key pair for each client (ECDSA, P-384, as Flower wants them)
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaneb.errors import InvalidOption

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
DAYS = 90


def make_keys(folder: Path, hosts: Sequence[str], clients: Sequence[str]) -> list[Path]:
    """Write what is missing of a trial's certificates and keys; returns the files that are new."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    for client in clients:
        if not NAME.fullmatch(client):
            raise InvalidOption(f"client {client!r}: use letters, digits, dots, dashes and underscores.")
    for host in hosts:
        if not HOST.fullmatch(host):
            raise InvalidOption(f"host {host!r}: not a host name or an address.")
    try:
        (folder / "nodes").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption(f"{folder}: cannot be a folder ({error.strerror}). Name another.") from None
    new: list[Path] = []
    if not (folder / "server.pem").exists():
        new += _certificates(folder, hosts)
    for client in clients:
        private, public = folder / "nodes" / client, folder / "nodes" / f"{client}.pub"
        if private.exists():
            continue
        key = ec.generate_private_key(ec.SECP384R1())
        _write_secret(
            private,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            ),
        )
        encoded = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        public.write_bytes(encoded + f" {client}\n".encode())
        new += [private, public]
    return new


def _certificates(folder: Path, hosts: Sequence[str]) -> list[Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)

    def named(text: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(subject: str, key: Any) -> Any:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("vaneb trial authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=DAYS))
        )

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca = (
        builder("vaneb trial authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    certificate = (
        builder(hosts[0], server)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority, hashes.SHA384())
    )
    for name, key in (("ca.key", authority), ("server.key", server)):
        _write_secret(
            folder / name,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
    for name, signed in (("ca.crt", ca), ("server.pem", certificate)):
        (folder / name).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return [folder / name for name in ("ca.crt", "ca.key", "server.pem", "server.key")]


def _usage(signs: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, content: bytes) -> None:
    """Readable by its owner alone, from the first byte on."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
