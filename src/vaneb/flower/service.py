"""What an administrator needs to run a server or a client as a service: ``vaneb federate init``.

A folder with keys, policy, a systemd unit, a Containerfile, the environment (a proxy), and a page that says
which ports are opened by whom and what to do next.  What is there already stays as it is.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import vaneb
from vaneb.errors import InvalidOption
from vaneb.files import absent, private_folder, write_atomically
from vaneb.flower import checks
from vaneb.flower.keys import HOST, make_keys
from vaneb.flower.policy import Policy
from vaneb.flower.processes import program

README, ENVIRONMENT, CONTAINER = "README.txt", "environment", "Containerfile"
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
#: Seconds that a server waits for its clients before it says who has not come, and starts again.
WAIT = 86_400
#: And that an exchange may take: the first one at a site compiles what it needs.
TIMEOUT = 600


def init_server(
    folder: Path, hosts: list[str], port: int, user: str, *, formula: str, family: str, nodes: int
) -> list[Path]:
    """Write a server's files; returns those that are new."""
    if not hosts:
        raise InvalidOption("--host: give the name or address under which the sites reach this server.")
    for host in hosts:
        if not HOST.fullmatch(host):
            raise InvalidOption(f"host {host!r}: not a host name or an address.")
    if not 0 < port < 65536:
        raise InvalidOption(f"--port {port}: must be a number from 1 to 65535.")
    checks.load_settings({"formula": formula, "family": family, "nodes": nodes})
    place = _place(folder, user)
    new = make_keys(place / "keys", hosts, [])
    command = [program("vaneb"), "federate", "server", "--formula", formula, "--family", family]
    command += ["--nodes", str(nodes), "--host", "0.0.0.0", "--port", str(port)]
    command += ["--keys", str(place / "keys"), "--folder", str(place / "federation"), "--wait", str(WAIT)]
    command += ["--timeout", str(TIMEOUT)]
    unit = "vaneb-server.service"
    texts = {
        unit: _unit("vaneb server", command, place, user, restart=60),
        ENVIRONMENT: _environment("The server calls nobody; it needs no proxy."),
        CONTAINER: _container(command, place, port),
        README: f"""vaneb server at {hosts[0]}:{port}, version {vaneb.__version__}

Ports
  TCP {port}, incoming, from the sites: the only port to open. Mutual TLS 1.3.
  Outgoing: none. All else is on the loopback interface of this machine, which should have no other users.

Next
  1. keys/ca.crt goes to every site. keys/ca.key and keys/server.key never leave this machine.
     (An authority of your own: put its server.pem and server.key into keys, give its ca.crt to the sites.)
  2. Each site sends its NAME.crt. Put it into keys/nodes. Compare its fingerprint by telephone:
       openssl x509 -in NAME.crt -noout -fingerprint -sha256
  3. Make the user, give it this folder, start the service:
       useradd --system --shell /usr/sbin/nologin {user}
       chown -R {user} {place}
       cp {unit} /etc/systemd/system/ && systemctl daemon-reload && systemctl enable --now {unit}
  4. Look at it:
       vaneb federate status {place / "federation"}

The service starts again after a reboot, and goes on where it was. It ends, and stays ended, when
everybody has been served. For another study make another folder, with another port.
Certificates: 'vaneb federate keys {place / "keys"} --renew'. The server takes the new ones while it runs.
""",
    }
    return [*new, *_written(place, texts)]


def init_site(folder: Path, name: str, data: Path, server: str, user: str) -> list[Path]:
    """Write a site's files, its key among them; returns those that are new."""
    checks.check_name(name)
    if not data.exists():
        raise InvalidOption(f"--data {absent(data)}")
    host, port = checks.split_address(server)
    place = _place(folder, user)
    new = make_keys(place / "keys", [], [name], server=False)
    own, key = place / name, place / "keys" / "nodes" / name
    command = [program("vaneb"), "federate", "client", "--name", name, "--data", str(data.resolve())]
    command += ["--server", server, "--ca", str(place / "keys" / "ca.crt"), "--key", str(key)]
    command += ["--folder", str(own), "--policy", str(place / "policy.toml"), "--patience", "inf"]
    unit = f"vaneb-{name}.service"
    texts = {
        unit: _unit(f"vaneb client {name}", command, place, user, restart=30, reads=data.resolve()),
        "policy.toml": Policy().text(),
        ENVIRONMENT: _environment(f"If the way to {host} leads through a proxy, name it here."),
        CONTAINER: _container(command, place, None),
        README: f"""vaneb client {name}, for the server {server}, version {vaneb.__version__}

Ports
  Incoming: none.
  Outgoing: TCP {port} to {host}, or to your proxy, which must allow CONNECT {server} (see environment).

Next
  1. keys/nodes/{name}.crt goes to the server's operator. keys/nodes/{name} is the private key and stays.
     Tell the operator the fingerprint by telephone:
       openssl x509 -in {key}.crt -noout -fingerprint -sha256
  2. The operator sends ca.crt. Put it into keys.
  3. Read policy.toml: it says what this site answers. With 'review = true' all waits for a person.
  4. Make the user, give it this folder, let it read the data, start the service:
       useradd --system --shell /usr/sbin/nologin {user}
       chown -R {user} {place}
       setfacl -m u:{user}:rX {data.resolve()}
       cp {unit} /etc/systemd/system/ && systemctl daemon-reload && systemctl enable --now {unit}
  5. Look at it, and at what has left:
       vaneb federate status {own}
       vaneb federate ledger {own}

The service starts again after a reboot.
Certificate: 'vaneb federate keys {place / "keys"} --site --client {name} --renew' makes {name}.crt.new.
Send it to the operator, who puts it into the server's keys/nodes as {name}.crt; this client then takes it by
itself.
""",
    }
    return [*new, *_written(place, texts)]


def _place(folder: Path, user: str) -> Path:
    if not USER.fullmatch(user):
        raise InvalidOption(f"--user {user!r}: not the name of a user (small letters, digits, dashes).")
    place = private_folder(folder).resolve()
    if re.search(r"""[\s"'\\%$]""", str(place)):
        raise InvalidOption(
            f"{place}: has a space, a quote, % or $ in its name, which units of systemd confuse."
        )
    return place


def _written(place: Path, texts: dict[str, str]) -> list[Path]:
    new = [place / name for name in texts if not (place / name).exists()]
    for path in new:
        write_atomically(path, texts[path.name].encode())
    return new


def _quoted(command: list[str]) -> str:
    """A command line as systemd reads it: % and $ stand for themselves, and so do backslashes."""

    def one(word: str) -> str:
        word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        return word if re.fullmatch(r"[\w./:=@+,-]+", word) else f'"{word}"'

    return " ".join(map(one, command))


def _environment(about: str) -> str:
    return f"""# {about}
#HTTPS_PROXY=http://proxy.example.org:3128
#NO_PROXY=localhost,127.0.0.1
"""


def _unit(
    title: str, command: list[str], place: Path, user: str, *, restart: int, reads: Path | None = None
) -> str:
    return f"""[Unit]
Description={title}
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
WorkingDirectory={place}
EnvironmentFile=-{place / ENVIRONMENT}
Environment=NUMBA_CACHE_DIR={place / "compiled"}
ExecStart={_quoted(command)}
# 0: done. Anything else, the loss of a client among it, is tried again; nothing that was done is done twice.
Restart=on-failure
RestartSec={restart}
KillMode=mixed
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet=
ReadWritePaths={place}
{f"ReadOnlyPaths={_quoted([str(reads)])}" if reads else ""}

[Install]
WantedBy=multi-user.target
"""


def _container(command: list[str], place: Path, port: int | None) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    arguments = ", ".join(f'"{word}"' for word in map(_escaped, command[1:]))
    site = f"--env-file {ENVIRONMENT} --volume DATA:DATA:ro"
    run = site if port is None else f"--publish {port}:{port}"
    return f"""# Build:  podman build --tag vaneb - < {CONTAINER}     (so no key goes into it)
# Run:    podman run --detach --restart unless-stopped --read-only --tmpfs /tmp --cap-drop all \\
#           --security-opt no-new-privileges --user "$(id -u):$(id -g)" --userns keep-id \\
#           --volume {place}:{place} {run} vaneb
{"# DATA is the file or folder of --data below." if port is None else "# Only this port is published."}
FROM docker.io/library/python:{version}-slim
# No keys and no rows are in the image: they are in the volumes.
RUN pip install --no-cache-dir "vaneb[site]=={vaneb.__version__}"
# Compiled loops are kept with the service's own files.
ENV NUMBA_CACHE_DIR={place / "compiled"}
WORKDIR {place}
ENTRYPOINT ["vaneb"]
CMD [{arguments}]
"""


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"')


def command_of(unit: str) -> list[str]:
    """The command line in a unit, as a list; what a reboot starts."""
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.removeprefix("ExecStart="))
    return [word.replace("%%", "%").replace("$$", "$") for word in words]
