"""``vaneb federate``: a federation on Flower; thin over ``flower-superlink`` and ``flower-supernode``."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from vaneb.commands.outcome import ExitCode, complain, errors_in_words, printable
from vaneb.errors import InvalidOption
from vaneb.files import absent, locked, private_files, private_folder

federate = typer.Typer(
    suggest_commands=False,  # click does
    name="federate",
    help="Estimates for clients that cannot pool their data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Mode(StrEnum):
    """Values of ``--mode``."""

    REPORTS = "reports"
    EVALUATE = "evaluate"
    SECURE = "secure"
    NETWORK = "network"


FormulaOption = Annotated[str, typer.Option(help="The clients' model, such as 'y ~ x'.")]
FamilyOption = Annotated[str, typer.Option(help="gaussian, binomial, poisson, gamma or multinomial.")]
ModeOption = Annotated[
    Mode,
    typer.Option(
        help="reports: one exchange of reports. evaluate: covariance functions stay at the clients. "
        "secure: the same, and only sums arrive. network: train networks (--config, --method)."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting, NAME=VALUE; repeat. See docs/federation.md."),
]
FolderOption = Annotated[
    Path, typer.Option("--folder", help="The server's folder: reports, prior, outcome. Kept between runs.")
]
InsecureOption = Annotated[
    bool,
    typer.Option("--insecure", help="No encryption, no authentication. For trials on one machine only."),
]


@federate.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path("keys"),
    client: Annotated[list[str] | None, typer.Option(help="Name of a client; repeat.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; repeat. Loopback by default.")
    ] = None,
    site: Annotated[
        bool, typer.Option("--site", help="At a site: only the client's key and certificate.")
    ] = False,
    renew: Annotated[
        bool, typer.Option("--renew", help="New certificates in place of those that expire.")
    ] = False,
) -> None:
    """Make certificates and keys: all of a trial's, or with --site a client's own.

    With --renew, a client's certificate is made again for the same key (NAME.crt.new, to be sent; the client
    takes it when the server has it), and without --site the server's, too, if its authority was made here.

    A client sends NAME.crt to the server's operator, who puts it into the server's keys/nodes. NAME is its
    private key and stays.
    """
    with errors_in_words():
        _need_flower()
        from vaneb.flower.keys import make_keys, renew_client, renew_server

        if renew:
            new = [] if site else renew_server(folder)
            new += [renew_client(folder, name) for name in client or []]
            if not new:
                raise InvalidOption("--renew --site: say whose certificate it is (--client NAME).")
        else:
            new = make_keys(folder, host or ["localhost", "127.0.0.1"], client or [], server=not site)
        for path in new:
            print(path)
        if not new:
            complain(f"{folder}: everything is there already; nothing was written.")


@federate.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")],
    site: Annotated[str, typer.Option(help="Name of a client: write a site's files, not a server's.")] = "",
    data: Annotated[Path | None, typer.Option(help="At a site: its data.")] = None,
    server: Annotated[str, typer.Option(help="At a site: address of the server, HOST:PORT.")] = "",
    host: Annotated[
        list[str] | None, typer.Option(help="At the server: its names and addresses; repeat.")
    ] = None,
    port: Annotated[int, typer.Option(help="At the server: port to listen on.")] = 9092,
    formula: FormulaOption = "",
    family: FamilyOption = "gaussian",
    nodes: Annotated[int, typer.Option(help="At the server: clients to wait for.", min=1)] = 3,
    user: Annotated[str, typer.Option(help="User that the service runs as.")] = "vaneb",
) -> None:
    """Write what an administrator needs: keys, policy, a systemd unit, a Containerfile, ports to open.

    With --site NAME for a site, otherwise for a server. Files that are there already stay as they are.
    """
    with errors_in_words(), private_files():
        _need_flower()
        from vaneb.flower import service

        if site:
            if data is None or not server:
                raise InvalidOption("--site: give its --data and the address of its --server (HOST:PORT).")
            new = service.init_site(folder, site, data, server, user)
        else:
            asked: dict[str, Any] = {"formula": formula, "family": family, "nodes": nodes}
            new = service.init_server(folder, host or [], port, user, **asked)
        for path in new:
            print(path)
        complain(f"Read {folder / service.README} next.")


@federate.command()
def server(
    formula: FormulaOption = "",
    family: FamilyOption = "gaussian",
    nodes: Annotated[int, typer.Option(help="Clients to wait for.", min=1)] = 2,
    mode: ModeOption = Mode.REPORTS,
    folder: FolderOption = Path("federation"),
    keys: Annotated[
        Path, typer.Option(help="Folder with the server's certificate, and the clients' in nodes.")
    ] = Path("keys"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 9092,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the clients.")] = 120.0,
    timeout: Annotated[float, typer.Option(help="Seconds that one exchange may take.")] = 60.0,
    config: Annotated[Path | None, typer.Option(help="Experiment (TOML) of mode network.")] = None,
    method: Annotated[str, typer.Option(help="Method of mode network.")] = "",
    settings: SetOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Ask the clients, fit, give each of them its own result.

    Run it again with the same folder to resume, or to serve a client that came late.
    """
    with errors_in_words(), private_files():
        _need_flower()
        from vaneb.flower import checks, control, door, journal, processes, status
        from vaneb.flower import keys as federation_keys
        from vaneb.flower.archive import Archive

        if config is not None and not config.is_file():
            raise InvalidOption(f"--config {absent(config)}")
        chosen = _settings(
            settings,
            mode=mode.value,
            formula=formula,
            family=family,
            nodes=nodes,
            wait=wait,
            timeout=timeout,
            experiment=config.read_text() if config else "",
            method=method,
        )
        if insecure:
            checks.check_loopback(host)
        else:
            checks.check_server_keys(keys)
        known = {} if insecure else checks.register(keys / "nodes")
        checks.check_port(host, port)
        home = private_folder(folder.resolve()) / "flower"
        with (
            locked(folder, "another server works in it"),
            journal.open_journal(folder, "server", folder.name) as log,
        ):
            status.keep_about(
                folder,
                role="server",
                address=f"{host}:{port}",
                study=formula or method,
                certificates=[] if insecure else [keys.resolve() / "server.pem"],
                registers=[] if insecure else [keys.resolve() / "nodes"],
            )
            archive = Archive.open(folder, chosen)
            security = processes.Security() if insecure else processes.Security.on_loopback(home)
            inner = port if insecure else processes.free_port()
            with contextlib.ExitStack() as stack:
                link = stack.enter_context(processes.superlink(home, inner, security, folder=folder))
                if security.authority is not None:
                    archive.keep_registered(control.register_nodes(link, known))
                    stack.enter_context(
                        door.open_door(
                            host,
                            port,
                            keys / "server.pem",
                            keys / "server.key",
                            keys / "nodes",
                            link.address,
                            security.authority,
                            folder=folder,
                            changed=lambda: archive.keep_registered(
                                control.register_nodes(link, checks.register(keys / "nodes"))
                            ),
                            tell=log,
                        )
                    )
                for path in [] if insecure else [keys / "server.pem", *known.values()]:
                    if warning := federation_keys.expires_soon(path):
                        complain(warning)
                        log("warning", printable(warning))
                log("listening", address=f"{host}:{port}", wanted=nodes)
                complain(f"listening on {host}:{port}; waiting for {nodes} clients.")
                outcome = control.run_app(link, chosen, folder / "outcome.json")
            shown = ("mode", "served", "troubles", "absent", "error", "exchanges", "messages")
            log("outcome", **{key: outcome[key] for key in shown if key in outcome})
        _tell(outcome)


@federate.command()
def client(
    data: Annotated[Path, typer.Option(help="This client's data; they stay here.")],
    name: Annotated[str, typer.Option(help="This client's name.")],
    wards: Annotated[
        str,
        typer.Option(
            "--client", help="Column that tells this site's clients apart, such as its wards, if it has many."
        ),
    ] = "",
    folder: Annotated[Path | None, typer.Option(help="Where its result goes; NAME by default.")] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(help="Address of the server, 127.0.0.1:9092 by default; repeat for several studies."),
    ] = None,
    ca: Annotated[Path, typer.Option(help="Certificate of the authority behind the server.")] = Path(
        "keys/ca.crt"
    ),
    key: Annotated[
        Path | None,
        typer.Option(
            help="Private key, with its certificate beside it (KEY.crt); keys/nodes/NAME by default."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when the result has arrived.")] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds to try to reach the server, and to be let in, before giving up.")
    ] = 600.0,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="What this client answers; FOLDER/policy.toml by default, written if it is not there."
        ),
    ] = None,
    without_sandbox: Annotated[
        bool,
        typer.Option(
            "--without-sandbox", help="Run also where the system cannot keep Flower's processes from files."
        ),
    ] = False,
    insecure: InsecureOption = False,
) -> None:
    """Run beside a data set until stopped; the result is written to FOLDER/result.json.

    Beside it are result.csv, with a row for each client of the site, and result.html, a page to look at.

    What the client answers is said by its policy; what leaves is in FOLDER/studies first, and all that was
    asked, answered and refused in FOLDER/ledger.jsonl.
    """
    with errors_in_words(), private_files():
        _need_flower()
        from vaneb.flower import checks, journal, status, supernode
        from vaneb.flower import keys as federation_keys
        from vaneb.flower.gate import client_context

        checks.check_name(name)
        checks.check_data(data)
        checks.check_wards(data, wards)
        servers = server or ["127.0.0.1:9092"]
        hosts = [checks.split_address(address)[0] for address in servers]
        if len(set(servers)) < len(servers) or (once and len(servers) > 1):
            raise InvalidOption("--server: give each of them once; --once is for one server only.")
        private = key or ca.parent / "nodes" / name
        certificate = private.with_name(f"{private.name}.crt")
        if insecure:
            for host in hosts:
                checks.check_loopback(host)
        else:
            checks.check_certificate(ca, "the certificate of the authority behind the server")
            checks.check_private_key(private)
            checks.check_certificate(certificate, "this client's certificate")
            checks.check_pair(certificate, private)
            if warning := federation_keys.expires_soon(certificate):
                complain(warning)
        folder = (folder or Path(name)).resolve()
        rules = checks.check_policy(policy, private_folder(folder), data)
        node_config = {
            "data": str(data.resolve()),
            "client": name,
            "folder": str(folder),
            "policy": str(rules.resolve()),
        } | ({"wards": wards} if wards else {})
        context = None if insecure else client_context(ca, certificate, private)
        node = supernode.Node(name, folder, servers[0], context, None if insecure else private, node_config)
        if not insecure:
            node = replace(node, certificates=(ca.resolve(), certificate.resolve()))
        own = [data.resolve(), rules.resolve(), folder / "ledger.jsonl"]
        unprotected = checks.check_reach(node.sandbox(), own, without=without_sandbox or insecure)
        about: dict[str, Any] = {
            "role": "client",
            "client": name,
            "server": servers,
            "policy": rules.resolve(),
            "unprotected": unprotected,
        }
        about["certificates"] = [str(path) for path in node.certificates]
        with (
            locked(folder, "another client works in it"),
            journal.open_journal(folder, "client", name) as log,
        ):

            def tell(text: str) -> None:
                complain(text)
                log("said", printable(text))

            reached: set[str] = set()

            def connected(address: str, now: bool) -> None:
                log("connected" if now else "disconnected", server=address)
                (reached.add if now else reached.discard)(address)
                status.keep_about(folder, connected=sorted(reached), **about)

            status.keep_about(folder, **about)
            if unprotected:
                tell(f"warning: {unprotected}")
            supernode.serve(
                node, patience=patience, once=once, tell=tell, connected=connected, others=servers[1:]
            )


@federate.command()
def release(
    study: Annotated[str, typer.Argument(help="The study that waits, as the ledger names it.")],
    folder: Annotated[Path, typer.Option(help="The client's folder.")],
) -> None:
    """Let an answer leave that waits for review (review = true in the policy).

    Read FOLDER/studies/STUDY/release.json first: it is what leaves when the server asks again.
    """
    with errors_in_words(), private_files():
        _need_flower()
        from vaneb.flower.ledger import approve

        print(f"released     {study}: {approve(folder, study)}")


@federate.command()
def ledger(
    folder: Annotated[Path, typer.Argument(help="The client's folder.")],
) -> None:
    """Show all that a client was asked, answered and refused, and whether the ledger is as it was written."""
    with errors_in_words():
        _need_flower()
        from vaneb.flower.ledger import BEGINNING, read_ledger, spent
        from vaneb.flower.privacy import epsilon_of

        last, delta = BEGINNING, 1e-5
        for entry in read_ledger(folder):
            about = entry.get("reason") or entry.get("sha256", "")
            named = " ".join(filter(None, (entry.get("study", ""), entry.get("question", ""))))
            print(f"{entry['time']}  {entry['event']:<9} {named}  {about}")
            last = entry["digest"]
        noises = spent(folder)
        if noises:
            total = epsilon_of(list(noises.values()), delta)
            print(f"spent        epsilon {total:.3g} at delta {delta:g}, in {len(noises)} private releases")
        print(f"unchanged    {last}")


@federate.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of a server or a client.")] = Path("federation"),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for a script.")] = False,
) -> None:
    """Say who is there, what waits, which versions, and when certificates expire; exit code 3 if something
    needs attention.
    """
    with errors_in_words(as_json=as_json):
        _need_flower()
        from vaneb.flower.status import as_lines, status_of

        found = status_of(folder)
        print(json.dumps(found, indent=1) if as_json else "\n".join(as_lines(found)))
        if found["attention"]:
            raise typer.Exit(ExitCode.NOT_CERTIFIED)


@federate.command()
def simulate(
    data: Annotated[Path, typer.Option(help="Table with the rows of all clients.")],
    client: Annotated[str, typer.Option(help="Column that tells the clients apart.")],
    formula: FormulaOption = "",
    family: FamilyOption = "gaussian",
    mode: ModeOption = Mode.REPORTS,
    folder: FolderOption = Path("federation"),
    timeout: Annotated[float, typer.Option(help="Seconds that one exchange may take.")] = 600.0,
    settings: SetOption = None,
) -> None:
    """Run a federation on this machine (Flower's simulation, on Ray).

    Clients' results go to FOLDER/clients.
    """
    with errors_in_words():
        _need_flower()
        from vaneb.flower import control
        from vaneb.flower.client_data import count_clients

        _need_ray()

        if not data.exists():
            raise InvalidOption(f"--data {absent(data)}")
        count = count_clients(data, client)
        chosen = _settings(
            settings,
            mode=mode.value,
            formula=formula,
            family=family,
            nodes=count,
            wait=600.0,
            timeout=timeout,
        )
        with locked(folder, "another run works in it"):
            _tell(control.simulate(chosen, folder, data, client, count))


def _settings(given: list[str] | None, **values: Any) -> Any:
    from vaneb.flower.checks import load_settings

    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidOption(f"--set {text}: expected NAME=VALUE.")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        if isinstance(parsed, list | dict) or parsed is None:
            parsed = value
        values[name.replace("-", "_")] = parsed
    return load_settings(values)


def _need_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise InvalidOption("a federation needs Flower. pip install 'vaneb[site]'.")


def _need_ray() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise InvalidOption("a simulation needs Ray. pip install 'vaneb[flower]'.")


def _tell(outcome: dict[str, Any]) -> None:
    """Print what a run did; its exit code says whether everybody was served."""
    if "error" in outcome:
        complain(f"error: {outcome['error']}")
        raise typer.Exit(ExitCode.BAD_INPUT)
    served, troubles = outcome["served"], outcome["troubles"]
    shown = ", ".join(served[:10]) + (", ..." if len(served) > 10 else "")
    print(f"served       {len(served)}: {shown}")
    for trouble in troubles:
        kind = "lost" if "lost" in trouble else "refused"
        print(f"{kind:<12} {trouble['client']}: {trouble[kind]}")
    for name in outcome.get("absent", []):
        print(f"absent       {name}: registered, but did not come")
    print(f"exchanges    {outcome['exchanges']} ({outcome['messages']} messages)")
    if troubles:
        raise typer.Exit(ExitCode.NOT_CERTIFIED)
