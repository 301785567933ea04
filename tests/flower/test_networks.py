"""Networks over Flower: the engine's loop, the same heads, and clients that can be restarted."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch

from flower.loopback import LoopbackGrid, Node
from vaneb.fl.config import config_from
from vaneb.fl.data import load_images
from vaneb.fl.experiment import federate_setting, run_experiment
from vaneb.fl.trees import leaves, load_tree
from vaneb.flower import networks
from vaneb.flower.archive import Archive
from vaneb.flower.exchange import Line
from vaneb.flower.settings import Settings

EXPERIMENT = """
methods = ["{method}"]
seed = 3
[data]
name = "digits"
clients = 4
total = 160
test_per_client = 10
[model.options]
channels = 4
hidden = 8
[training]
rounds = 2
local_epochs = 1
participation = 1.0
[fine_tuning]
epochs = 2
[vaneb]
atoms = 3
iterations = 3
every = 2
{more}
"""


@pytest.fixture(scope="module")
def images():
    return load_images("digits", None)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", ""),
        ("vaneb_ft_direct", ""),
        ("vaneb_head_coordinate", ""),
        # A method with something to keep at the client: its head.
        ("fedper", "# keeps states"),
    ],
)
def test_the_same_heads_as_in_process(tmp_path, monkeypatch, images, method, more):
    text = EXPERIMENT.format(method=method, more=more)
    import tomllib

    config = config_from(tomllib.loads(text))
    run_experiment(config, tmp_path / "engine", images=images, keep_client_states=True)
    settings = Settings(mode="network", experiment=text, method=method, nodes=4, wait=0.1, timeout=60.0)
    data = federate_setting(config, images)
    nodes = {}
    for k in range(4):
        networks.write_client(data, k, tmp_path / f"images{k}")
        where = {"data": str(tmp_path / f"images{k}"), "folder": str(tmp_path / f"c{k}"), "client": f"c{k}"}
        nodes[50 + k] = Node(where, name=f"c{k}")
    grid = LoopbackGrid(nodes, settings)
    # A client is restarted before every task: nothing that it needs is in memory alone.
    genuine = networks.run_task

    def restarted(*arguments):
        networks._bench.cache_clear()
        return genuine(*arguments)

    monkeypatch.setattr(networks, "run_task", restarted)
    outcome = networks.run_networks(Line(grid, 60.0), settings, Archive.open(tmp_path / "server", settings))
    assert outcome["served"] == ["c0", "c1", "c2", "c3"]

    stages = sorted((tmp_path / "engine" / "stages").glob("*/stage.json"), key=lambda p: p.stat().st_mtime_ns)
    last = stages[-1].parent
    manifest = json.loads((last / "manifest.json").read_text())
    expected = dict(leaves(load_tree(last / manifest["state"])))
    own = sorted((tmp_path / "server" / "stages").iterdir())[-1]
    found = dict(leaves(load_tree(own / json.loads((own / "manifest.json").read_text())["state"])))
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        if isinstance(value, torch.Tensor):
            np.testing.assert_allclose(found[path], value, rtol=1e-4, atol=1e-5)
    if method.startswith("vaneb"):
        assert any("heads" in path for path in expected)
    # Each client has its own network, with the head that the engine would give it.
    for k in range(4):
        network = load_tree(tmp_path / f"c{k}" / networks.NETWORK)
        head = next(iter(reversed([value for _, value in leaves(network)])))
        assert torch.isfinite(head).all()
    if more:
        assert list((tmp_path / "c0" / "states").iterdir())


def test_no_image_leaves_a_client(tmp_path, images):
    text = EXPERIMENT.format(method="vaneb_ft_direct", more="")
    import tomllib

    config = config_from(tomllib.loads(text))
    data = federate_setting(config, images)
    settings = Settings(mode="network", experiment=text, method="vaneb_ft_direct", nodes=4, timeout=60.0)
    nodes = {}
    for k in range(4):
        networks.write_client(data, k, tmp_path / f"images{k}")
        where = {"data": str(tmp_path / f"images{k}"), "folder": str(tmp_path / f"c{k}"), "client": f"c{k}"}
        nodes[50 + k] = Node(where, name=f"c{k}")
    grid = LoopbackGrid(nodes, settings)
    networks.run_networks(Line(grid, 60.0), settings, Archive.open(tmp_path / "server", settings))
    raw = [
        piece
        for k in range(4)
        for image in (data.client(k).images.numpy(), np.asarray(data.train_images[:5]))
        for piece in (row.tobytes() for row in image[:5])
    ]
    for _, _, message in grid.captured:
        whole = b"".join(a.data for part in message.content.array_records.values() for a in part.values())
        assert not any(piece in whole for piece in raw)
