"""Bytes of each mode, captured between real SuperNodes and a real SuperLink.

Three clients on loopback, each behind a relay that keeps all that passes (without TLS, so that calls can be
told apart).  Two figures for each mode and dimension, both for one client:

contents   bytes of the messages' contents, as the server's ``outcome.json`` counts them, by kind of message
wire       bytes that the relay saw in calls about messages, with Flower's and HTTP's headers; idle polling,
           heartbeats and the start of a run are left out

That no value of any row has passed is checked on the way.

python benchmarks/federation/traffic.py DIMENSION [MODE]
python benchmarks/federation/traffic.py in-one-process DIMENSION [MODE]
python benchmarks/federation/traffic.py table
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from flower.deployment import Deployment, deployment  # noqa: E402
from flower.relay import OF_MESSAGES, Relay  # noqa: E402
from vaneb.flower.settings import Settings  # noqa: E402

CLIENTS = ("a", "b", "c")
ATOMS = 3
EXPERIMENT = """
methods = ["{method}"]
[data]
name = "digits"
clients = 3
total = 200
test_per_client = 10
[model.options]
channels = 4
hidden = {hidden}
[training]
rounds = 1
local_epochs = 1
participation = 1.0
[fine_tuning]
epochs = 1
[vaneb]
atoms = 3
iterations = 1
every = 1
"""


def modes(d: int) -> Iterator[tuple[str, Settings]]:
    """What is measured at d parameters."""
    formula = " + ".join(["y ~ x1", *(f"x{j}" for j in range(2, d))])
    plain = Settings(
        formula=formula,
        dispersion=1.0,
        nodes=len(CLIENTS),
        wait=120.0,
        timeout=400.0,
        solver="pseudo-em",
        population="discrete",
        iterations=1,
    )
    yield "reports", plain
    yield "reports, diagonal", replace(plain, form="diagonal")
    yield "reports, private", replace(plain, epsilon=4.0, radius=4.0, se_low=0.01, se_high=1.0)
    yield "evaluate, Gaussian", replace(plain, mode="evaluate")
    yield "evaluate, exact", replace(plain, mode="evaluate", likelihood="exact")
    corner = ",".join(["3"] * d)
    yield (
        "secure",
        replace(
            plain,
            mode="secure",
            lower=corner.replace("3", "-3"),
            upper=corner,
            precision_bound=1e5,
            atoms=ATOMS,
            population="discrete",
        ),
    )
    # A head for ten classes has ten numbers for each feature and ten more.
    hidden, rest = divmod(d - 10, 10)
    if hidden > 0 and not rest:
        for method in ("fedavg", "vaneb_ft_direct", "vaneb_head_direct"):
            text = EXPERIMENT.format(method=method, hidden=hidden)
            yield (
                f"network, {method}",
                Settings(mode="network", experiment=text, method=method, nodes=3, wait=120.0, timeout=200.0),
            )


#: Nearly as many coefficients as rows, and exact likelihoods: here bytes are counted, nobody is protected.
POLICY = """likelihoods = ["covariance", "exact"]
sums_at_atoms = true
rows_per_coefficient = 0
largest_leverage = 1
exchanges = 10000
atoms = 10000000
"""


def write_data(folder: Path, d: int) -> np.ndarray:
    """Rows and images of all clients; returns numbers of the rows that must not be seen anywhere."""
    import tomllib

    import pandas as pd

    from vaneb.fl.config import config_from
    from vaneb.fl.data import load_images
    from vaneb.fl.experiment import federate_setting
    from vaneb.flower.network_client import write_client

    (folder / "policy.toml").write_text(POLICY)
    rng = np.random.default_rng(5)
    seen = []
    for name in CLIENTS:
        x = rng.standard_normal((d + 60, d - 1))
        y = x.sum(axis=1) / np.sqrt(d) + rng.standard_normal(len(x))
        pd.DataFrame(x, columns=[f"x{j}" for j in range(1, d)]).assign(y=y).to_parquet(
            folder / f"{name}.parquet"
        )
        seen += [x[:20, :3].ravel(), y[:20]]
    config = config_from(tomllib.loads(EXPERIMENT.format(method="fedavg", hidden=1)))
    data = federate_setting(config, load_images("digits", None))
    for k, name in enumerate(CLIENTS):
        write_client(data, k, folder / f"{name}.images")
    return np.concatenate(seen)


def on_the_wire(relay: Relay) -> dict[str, int]:
    """Bytes of one node's calls about messages; polls that brought nothing are left out."""
    calls = [call for call in relay.calls() if call.name in OF_MESSAGES]
    empty = min((call.down for call in calls if call.name == "pull-messages"), default=0)
    told = [call for call in calls if call.name != "pull-messages" or call.down > empty + 50]
    return {"calls": len(told), "up": sum(call.up for call in told), "down": sum(call.down for call in told)}


def measure(here: Deployment, settings: Settings, folder: Path, rows: np.ndarray) -> dict[str, Any]:
    """One run in a folder of its own."""
    for name in CLIENTS:
        for path in here.own(name).glob("*.npz"):
            path.unlink()
        shutil.rmtree(here.own(name) / "studies", ignore_errors=True)
    with here.superlink(folder) as link:
        for name in CLIENTS:
            here.start(
                name,
                {
                    "data": str(here.folder / f"{name}.parquet"),
                    "images": str(here.folder / f"{name}.images"),
                    "policy": str(here.folder / "policy.toml"),
                },
                recorded=True,
            )
        outcome = here.run(link, settings, folder)
        # While the SuperLink is there: it would hold them to be present for another minute.
        for name in CLIENTS:
            here.stop(name)
    seen = [on_the_wire(here.relays[name]) for name in CLIENTS]
    wire = {key: round(sum(one[key] for one in seen) / len(seen)) for key in seen[0]}
    if "error" in outcome or outcome["troubles"]:
        return {"failed": outcome.get("error") or outcome["troubles"], "wire": wire}
    check_no_row(b"".join(here.relays[name].up for name in CLIENTS), rows)
    return {**contents_of(outcome), "wire": wire}


def check_no_row(passed: bytes, rows: np.ndarray) -> None:
    found = [value for value in rows if np.float64(value).tobytes() in passed]
    if found:
        raise AssertionError(f"numbers of rows have passed: {found[:3]}")


def contents_of(outcome: dict[str, Any]) -> dict[str, Any]:
    """What one client's messages held, by what the server has counted."""
    share = len(CLIENTS)
    return {
        "exchanges": outcome["exchanges"],
        "messages": outcome["messages"] / share,
        "contents": {way: round(outcome[f"bytes_{way}"] / share) for way in ("up", "down")},
        "by_kind": {
            kind: {way: round(count[f"bytes_{way}"] / share) for way in ("up", "down")}
            for kind, count in outcome["by_kind"].items()
        },
        "seconds_by_exchange": outcome["seconds_by_exchange"],
    }


def in_one_process(d: int, only: str = "") -> None:
    """The same contents from the same apps in one process, for what takes too long in many."""
    from flwr.app import Context, RecordDict

    from flower.loopback import LoopbackGrid, Node, bytes_of
    from vaneb.flower import server_app
    from vaneb.flower.archive import Archive

    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        rows = write_data(folder, d)
        for name, settings in modes(d):
            if only and name != only:
                continue
            kind = "images" if settings.mode == "network" else "parquet"
            nodes = {
                1 + k: Node(
                    {
                        "data": str(folder / f"{c}.{kind}"),
                        "client": c,
                        "folder": str(folder / name / c),
                        "policy": str(folder / "policy.toml"),
                    },
                    name=c,
                )
                for k, c in enumerate(CLIENTS)
            }
            grid, server = LoopbackGrid(nodes, settings), folder / name / "server"
            context = Context(1, 1, {}, RecordDict(), settings.to_run_config())
            found: dict[str, Any] = json.loads(_path(d).read_text()) if _path(d).exists() else {}
            try:
                server_app.run(grid, context, settings, Archive.open(server, settings))
                outcome = json.loads((server / "outcome.json").read_text())
                result = contents_of(outcome)
            except MemoryError as error:
                result = {"failed": f"the fit at the server: {error}"}
            check_no_row(b"".join(bytes_of(m) for way, _, m in grid.captured if way == "up"), rows)
            found[name] = {**result, "wire": found.get(name, {}).get("wire")}
            print(name, found[name], flush=True)
            _path(d).write_text(json.dumps(found, indent=1) + "\n")


def _path(d: int) -> Path:
    return Path(__file__).parent / f"traffic-{d}.json"


def traffic(d: int, only: str = "") -> dict[str, Any]:
    """All modes at d parameters, or one of them ("network": all of those) beside what is there already."""
    path = _path(d)
    found: dict[str, Any] = json.loads(path.read_text()) if only and path.exists() else {}
    found |= {"d": d, "clients": len(CLIENTS), "atoms": ATOMS}
    switch = ROOT / "tests" / "flower" / "live" / "hostile" / "switch.py"
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        rows = write_data(folder, d)
        with deployment(folder, app_client="switch:app", app_files=[switch]) as here:
            for number, (name, settings) in enumerate(modes(d)):
                if not only or name == only or (only == "network" and name.startswith(only)):
                    found[name] = measure(here, settings, folder / f"server{number}", rows)
                    print(name, found[name], flush=True)
                    path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def readable(size: int) -> str:
    """Bytes as a reader wants them."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"


def _both_ways(sizes: dict[str, int]) -> str:
    return f"{readable(sizes['up'])} / {readable(sizes['down'])}"


def table() -> str:
    """What was measured, as Markdown: contents (and what was on the wire) of one client, up / down."""
    found = {d: json.loads(path.read_text()) for d in (3, 100, 1290) if (path := _path(d)).exists()}
    names = dict.fromkeys(
        name for one in found.values() for name, value in one.items() if type(value) is dict
    )
    lines = []
    for name in names:
        cells = []
        for one in found.values():
            value = one.get(name)
            if value is None or "contents" not in value:
                cells.append("")
                continue
            cells.append(_both_ways(value["contents"]))
            if value["wire"]:
                cells[-1] += f" ({_both_ways(value['wire'])})"
        some = next(one[name] for one in found.values() if "contents" in one.get(name, {}))
        lines.append(f"| {name} | {some['exchanges']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1] == "table":
        print(table())
    elif sys.argv[1] == "in-one-process":
        in_one_process(int(sys.argv[2]), *sys.argv[3:])
    else:
        traffic(int(sys.argv[1]), *sys.argv[2:])
