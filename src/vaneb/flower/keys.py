"""Certificates and keys of a federation.

ca.crt, ca.key              an authority for a trial, which signs the server's certificate
server.pem, server.key      the server's, for its host names and addresses
nodes/NAME, nodes/NAME.crt  a client's private key (ECDSA, P-384, in OpenSSH's form, as Flower wants it) and
                            the certificate that goes with it, which is all that the server gets

A client's certificate is signed by its own key: whom a server knows is said by its register, the folder
``nodes``, and by nobody else.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import SubjectAlternativeName
from cryptography.x509.oid import NameOID
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from vaneb.errors import InvalidOption
from vaneb.files import private_files, private_folder, write_atomically

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
#: Of a trial's authority and server, and of a client's certificate, which its institution renews.
DAYS, CLIENT_DAYS = 90, 365
ISSUER = "vaneb trial authority"
#: Days before the end of a certificate from which on it is said.
SOON = 30


def make_keys(
    folder: Path, hosts: Sequence[str], clients: Sequence[str], *, server: bool = True
) -> list[Path]:
    """Write what is missing of certificates and keys; returns the files that are new."""
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
    if server and not (folder / "server.pem").exists():
        new += _certificates(folder, hosts)
    for client in clients:
        new += _client(folder / "nodes", client)
    return new


def _client(folder: Path, name: str) -> list[Path]:
    """A client's key, if it has none, and its certificate."""
    private, public = folder / name, folder / f"{name}.crt"
    new: list[Path] = []
    if not private.exists():
        if public.exists():
            return []  # registered here, with a key that is elsewhere
        key: Any = ec.generate_private_key(ec.SECP384R1())
        form = serialization.PrivateFormat.OpenSSH
        _write_secret(private, _encoded(key, form))
        new.append(private)
    else:
        key = load_private_key(private)
    if not public.exists():
        public.write_bytes(_pem(_self_signed(key, name, [], CLIENT_DAYS, client=True)))
        new.append(public)
    return new


#: Under this ending a renewed certificate waits until the server knows it.
RENEWED = ".new"


def renew_client(folder: Path, name: str) -> Path:
    """A new certificate for a client's key, beside the one in use: NAME.crt.new, to be sent.

    The client goes over to it by itself, as soon as the server lets it in with it.
    """
    private = folder / "nodes" / name
    if not private.is_file():
        raise InvalidOption(
            f"{private}: no such file (the client's private key). Renew at the site that has it."
        )
    renewed = private.with_name(f"{name}.crt{RENEWED}")
    certificate = _self_signed(load_private_key(private), name, [], CLIENT_DAYS, client=True)
    write_atomically(renewed, _pem(certificate))
    return renewed


def renew_server(folder: Path) -> list[Path]:
    """A new certificate for the server, by the authority whose key is here; that is renewed if it ends soon.

    The authority keeps its key, so that clients with its old certificate trust the new ones as well.
    """
    for name in ("ca.crt", "ca.key", "server.pem"):
        if not (folder / name).is_file():
            raise InvalidOption(
                f"{folder / name}: missing. Only a certificate of an authority that 'vaneb federate keys' "
                "has made is renewed here; ask your own authority for server.pem."
            )
    authority = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    old = load_certificate((folder / "server.pem").read_bytes())
    names = old.extensions.get_extension_for_class(SubjectAlternativeName).value
    hosts = [str(one.value) for one in names]
    server = ec.generate_private_key(ec.SECP384R1())
    new = {}
    if days_left(folder / "ca.crt") < DAYS:
        new["ca.crt"] = _pem(_authority(authority))
    new["server.key"] = _encoded(server, serialization.PrivateFormat.PKCS8)
    new["server.pem"] = _pem(_server(authority, server, hosts))
    with private_files():
        for name, content in new.items():
            write_atomically(folder / name, content)
    return [folder / name for name in new]


def days_left(path: Path) -> int:
    """Days until a certificate ends; negative after that."""
    end = load_certificate(path.read_bytes()).not_valid_after_utc
    return (end - datetime.datetime.now(datetime.UTC)).days


def expires_soon(path: Path, days: int | None = None) -> str:
    """A warning about a certificate that has few ``days`` left, or none; empty if there is nothing to say."""
    left = days_left(path) if days is None else days
    if left >= SOON:
        return ""
    when = "has expired" if left < 0 else f"expires in {left} days"
    return f"{path}: {when}. Renew it: 'vaneb federate keys --renew'."


def loopback_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A new certificate for 127.0.0.1 and its key, for connections within this machine."""
    private_folder(folder)
    certificate, secret = folder / f"{name}.crt", folder / f"{name}.key"
    key = ec.generate_private_key(ec.SECP256R1())
    _write_secret(secret, _encoded(key, serialization.PrivateFormat.PKCS8))
    certificate.write_bytes(_pem(_self_signed(key, name, ["localhost", "127.0.0.1"], DAYS, client=False)))
    return certificate, secret


def load_private_key(path: Path) -> Any:
    """A client's private key, as ssh-keygen or ``make_keys`` writes it."""
    return serialization.load_ssh_private_key(path.read_bytes(), None)


def as_pkcs8(path: Path) -> bytes:
    """The same in the form that OpenSSL reads."""
    return _encoded(load_private_key(path), serialization.PrivateFormat.PKCS8)


def load_certificate(content: bytes) -> Any:
    """A certificate from PEM or DER."""
    if content.lstrip().startswith(b"-----"):
        return x509.load_pem_x509_certificate(content)
    return x509.load_der_x509_certificate(content)


def public_bytes(certificate: Any) -> bytes:
    """A certificate's public key as Flower writes it."""
    return public_key_to_bytes(certificate.public_key())


def _encoded(key: Any, form: Any) -> bytes:
    encoded: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return encoded


def _pem(certificate: Any) -> bytes:
    encoded: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return encoded


def _builder(subject: str, issuer: str, key: Any, days: float) -> Any:
    def named(text: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    return (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=days))
    )


def _self_signed(key: Any, name: str, hosts: Sequence[str], days: float, *, client: bool) -> Any:
    """A certificate that vouches for itself and for no other."""
    purpose = x509.ExtendedKeyUsageOID.CLIENT_AUTH if client else x509.ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA384())


def _certificates(folder: Path, hosts: Sequence[str]) -> list[Path]:
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca, certificate = _authority(authority), _server(authority, server, hosts)
    for name, key in (("ca.key", authority), ("server.key", server)):
        _write_secret(folder / name, _encoded(key, serialization.PrivateFormat.PKCS8))
    for name, signed in (("ca.crt", ca), ("server.pem", certificate)):
        (folder / name).write_bytes(_pem(signed))
    return [folder / name for name in ("ca.crt", "ca.key", "server.pem", "server.key")]


def _authority(key: Any) -> Any:
    """A certificate that may sign a server's."""
    return (
        _builder(ISSUER, ISSUER, key, DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def _server(authority: Any, key: Any, hosts: Sequence[str]) -> Any:
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        _builder(hosts[0], ISSUER, key, DAYS)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority, hashes.SHA384())
    )


def _usage(signs: bool) -> Any:
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
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, content: bytes) -> None:
    """Readable by its owner alone, from the first byte on."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
