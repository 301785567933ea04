"""``vaneb federate``: a federation on Flower; thin over ``flower-superlink`` and ``flower-supernode``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from vaneb.commands.outcome import ExitCode, complain, told_to_user
from vaneb.errors import InvalidOption
from vaneb.files import absent

federate = typer.Typer(
    suggest_commands=False,  # click does
    name="federate",
    help="Estimates for clients that cannot pool their data: a server, and a client beside each data set.",
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
    bool, typer.Option("--insecure", help="No encryption and no authentication. For trials only.")
]


@federate.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path("keys"),
    client: Annotated[list[str] | None, typer.Option(help="Name of a client; repeat.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; repeat. Loopback by default.")
    ] = None,
) -> None:
    """Make certificates and node keys for a trial."""
    with told_to_user():
        _need_flower()
        from vaneb.flower.keys import make_keys

        new = make_keys(folder, host or ["localhost", "127.0.0.1"], client or [])
        for path in new:
            print(path)
        if not new:
            complain(f"{folder}: everything is there already; nothing was written.")


@federate.command()
def server(
    formula: FormulaOption = "",
    family: FamilyOption = "gaussian",
    nodes: Annotated[int, typer.Option(help="Clients to wait for.", min=1)] = 2,
    mode: ModeOption = Mode.REPORTS,
    folder: FolderOption = Path("federation"),
    keys: Annotated[Path, typer.Option(help="Folder with certificates and the clients' public keys.")] = Path(
        "keys"
    ),
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
    with told_to_user():
        _need_flower()
        from vaneb.flower import checks, control, processes
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
        security, public = processes.Security(), {}
        if not insecure:
            security = processes.Security.of_server(keys)
            checks.check_certificate(keys / "server.pem", "the server's certificate")
            public = checks.public_keys(keys / "nodes")
        checks.check_port(host, port)
        Archive.open(folder, chosen)
        home = folder.resolve() / "flower"
        with processes.superlink(home, host, port, security, folder=folder) as link:
            control.register_nodes(link, public)
            complain(f"listening on {link.address}; waiting for {nodes} clients.")
            app = processes.write_app(home / "app", chosen)
            outcome = control.run_app(link, app, folder / "outcome.json")
        _tell(outcome)


@federate.command()
def client(
    data: Annotated[Path, typer.Option(help="This client's data; they stay here.")],
    name: Annotated[str, typer.Option(help="This client's name.")],
    folder: Annotated[Path | None, typer.Option(help="Where its result goes; NAME by default.")] = None,
    server: Annotated[str, typer.Option(help="Address of the server.")] = "127.0.0.1:9092",
    ca: Annotated[Path, typer.Option(help="Certificate of the authority behind the server.")] = Path(
        "keys/ca.crt"
    ),
    key: Annotated[Path | None, typer.Option(help="Private key; keys/nodes/NAME by default.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End when the result has arrived.")] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds to try to reach the server, and to be let in, before giving up.")
    ] = 600.0,
    allow: Annotated[
        list[Mode] | None, typer.Option(help="Answer only to runs of this mode; repeat. All by default.")
    ] = None,
    insecure: InsecureOption = False,
) -> None:
    """Run beside a data set until stopped; the result is written to FOLDER/result.json."""
    with told_to_user():
        _need_flower()
        from vaneb.flower import beside, checks, processes

        checks.check_name(name)
        checks.check_data(data)
        checks.split_address(server)
        private = key or ca.parent / "nodes" / name
        if not insecure:
            checks.check_certificate(ca, "the certificate of the authority behind the server")
            checks.check_private_key(private)
        folder = (folder or Path(name)).resolve()
        node_config = {"data": str(data.resolve()), "client": name, "folder": str(folder)}
        if allow:
            node_config["allow"] = ",".join(mode.value for mode in allow)
        security = processes.Security() if insecure else processes.Security(authority=ca)
        node = beside.Node(name, folder, server, security, None if insecure else private, node_config)
        beside.serve(node, patience=patience, once=once, tell=complain)


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
    with told_to_user():
        _need_flower()
        from vaneb.flower import control
        from vaneb.flower.client_data import count_clients

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
            data=str(data.resolve()),
            client=client,
            folder=str(folder.resolve() / "clients"),
        )
        _tell(control.simulate(chosen, folder, count))


def _settings(given: list[str] | None, **values: Any) -> Any:
    import json

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
        raise InvalidOption("a federation needs Flower. pip install 'vaneb[flower]'.")


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
    print(f"exchanges    {outcome['exchanges']} ({outcome['messages']} messages)")
    if troubles:
        raise typer.Exit(ExitCode.NOT_CERTIFIED)
