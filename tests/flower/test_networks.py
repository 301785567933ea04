"""Networks over Flower: the engine's loop, the same heads, and clients that can be restarted."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch
from flwr.app import Message

from flower.loopback import LoopbackGrid, Node, bytes_of, content_of
from vaneb import InvalidOption
from vaneb.fl.checkpoint import StageFolder
from vaneb.fl.config import Config, config_from
from vaneb.fl.data import load_images
from vaneb.fl.engine import StageSeeds, personalised_jobs
from vaneb.fl.experiment import federate_setting, model_of, run_experiment
from vaneb.fl.methods import build_method
from vaneb.fl.trees import load_tree
from vaneb.fl.workbench import Workbench
from vaneb.fl.workers import one_torch_thread
from vaneb.flower import network_client, networks, wire
from vaneb.flower.archive import Archive
from vaneb.flower.exchange import Channel
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
"""


@pytest.fixture(scope="module")
def images():
    return load_images("digits", None)


def federation(folder: Path, method: str, images) -> tuple[LoopbackGrid, Config]:
    """Four clients with a folder of images each."""
    text = EXPERIMENT.format(method=method)
    config = config_from(tomllib.loads(text))
    data = federate_setting(config, images)
    settings = Settings(mode="network", experiment=text, method=method, nodes=4, wait=0.1, timeout=2.0)
    nodes = {}
    for k in range(4):
        network_client.write_client(data, k, folder / f"images{k}")
        where = {"data": str(folder / f"images{k}"), "folder": str(folder / f"c{k}"), "client": f"c{k}"}
        nodes[50 + k] = Node(where, name=f"c{k}")
    return LoopbackGrid(nodes, settings), config


def run(grid: LoopbackGrid, folder: Path) -> dict:
    archive = Archive.open(folder / "server", grid.settings)
    return networks.run_networks(Channel(grid, grid.settings.timeout), grid.settings, archive)


def engines_networks(config: Config, images, folder: Path) -> list[dict]:
    """Every client's personalised network, by the engine in one process."""
    run_experiment(config, folder, images=images, keep_client_states=True)
    method = build_method(config.methods[0], config)
    stage, seeds = method.stages[-1], StageSeeds(config.seed, len(method.stages) - 1)
    # The last of the stages that the engine has run.
    stages = sorted((folder / "stages").glob("*/stage.json"), key=lambda path: path.stat().st_mtime_ns)
    last = StageFolder(stages[-1].parent)
    bench = Workbench(model_of(config), federate_setting(config, images))
    algorithm = bench.algorithm(stage.algorithm, stage.options)
    jobs = personalised_jobs("evaluate", stage, algorithm, last.read(), range(4), last, seeds)
    with one_torch_thread():
        return [bench.personalized(task, message) for task, message in jobs]


METHODS = ["fedavg", "vaneb_ft_direct", "vaneb_ft_coordinate", "vaneb_head_direct", "vaneb_head_coordinate"]


@pytest.mark.parametrize("method", [*METHODS, "vaneb_la_smooth", "fedper"])
def test_every_client_has_the_network_that_the_engine_gives_it(tmp_path, monkeypatch, images, method):
    """The last two keep something at the client between its update and its result: its own head."""
    grid, config = federation(tmp_path, method, images)
    genuine = network_client.run_task

    def restarted(*arguments):
        """A client is restarted before every task: nothing that it needs is in memory alone."""
        network_client._bench.cache_clear()
        return genuine(*arguments)

    monkeypatch.setattr(network_client, "run_task", restarted)
    outcome = run(grid, tmp_path)
    assert outcome["served"] == ["c0", "c1", "c2", "c3"]
    expected = engines_networks(config, images, tmp_path / "engine")
    heads = []
    for k in range(4):
        found = load_tree(tmp_path / f"c{k}" / network_client.NETWORK)
        assert found.keys() == expected[k].keys()
        for name, value in expected[k].items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
        heads.append(found["fc2.weight"])
    # FedAvg has one network for all, the others one for each.
    assert torch.equal(heads[0], heads[1]) == (method == "fedavg")
    assert bool(list((tmp_path / "c0" / "states").iterdir())) == (method in ("vaneb_la_smooth", "fedper"))


def test_a_client_can_use_its_network(tmp_path, images):
    grid, config = federation(tmp_path, "vaneb_ft_direct", images)
    run(grid, tmp_path)
    data = federate_setting(config, images)
    for k in range(4):
        network = network_client.own_network(tmp_path / f"c{k}")
        test = data.test(k, "balanced")
        with torch.no_grad():
            right = (network.module(test.images).argmax(1) == test.labels).double().mean().item()
        about = json.loads((tmp_path / f"c{k}" / "result.json").read_text())
        assert about["client"] == f"c{k}"
        assert about["accuracy"]["balanced/none"] == pytest.approx(right)


def test_a_client_that_falls_silent_is_named_and_the_others_go_on(tmp_path, images):
    grid, _ = federation(tmp_path, "vaneb_ft_direct", images)
    asked = 0

    def falls_silent(message, genuine):
        nonlocal asked
        asked += 1
        return genuine(message) if asked < 2 else None

    grid.nodes[52].behave = falls_silent
    outcome = run(grid, tmp_path)
    assert outcome["served"] == ["c0", "c1", "c3"]
    assert outcome["troubles"] == [{"node": "52", "client": "c2", "lost": "no answer within 2 seconds"}]
    # It is back for the next run: nothing is trained again, and it has its network.
    grid.nodes[52].behave = None
    grid.captured.clear()
    assert run(grid, tmp_path)["served"] == ["c0", "c1", "c2", "c3"]
    assert len(grid.captured) == 8
    assert (tmp_path / "c2" / network_client.NETWORK).exists()


@pytest.mark.parametrize("change", ["nan", "shape", "another client", "nonsense"])
def test_a_bad_update_is_refused_by_name(tmp_path, images, change):
    grid, _ = federation(tmp_path, "fedavg", images)

    def lies(message, genuine):
        reply = genuine(message)
        content = content_of(reply)
        if "tree" not in content:
            return reply
        name = "params/fc2.weight"
        if change == "nan":
            content["tree"][name] = np.full_like(content["tree"][name], np.nan)
        elif change == "shape":
            content["tree"][name] = content["tree"][name][:, :3]
        elif change == "another client":
            content["reply"]["written"] = [3]
        else:
            content["reply"] = "written"
        return Message(wire.to_record(content), reply_to=message)

    grid.nodes[51].behave = lies
    outcome = run(grid, tmp_path)
    (trouble,) = outcome["troubles"]
    assert trouble["client"] == "c1"
    assert trouble["refused"].startswith("update: ")


def test_without_authentication_a_client_is_known_by_the_name_it_gives(tmp_path, images):
    grid, _ = federation(tmp_path, "vaneb_ft_direct", images)
    for node in grid.nodes.values():
        node.name = ""
    run(grid, tmp_path)
    before = load_tree(tmp_path / "c0" / network_client.NETWORK)
    # Restarted without a key, it is a new node with the highest id; its number and its head stay.
    grid.nodes[90] = grid.nodes.pop(50)
    outcome = run(grid, tmp_path)
    assert outcome["served"] == ["c0", "c1", "c2", "c3"]
    after = load_tree(tmp_path / "c0" / network_client.NETWORK)
    assert all(torch.equal(before[name], after[name]) for name in before)
    # A name that two nodes give is nobody's.
    grid.nodes[91] = Node(dict(grid.nodes[51].node_config))
    again = run(grid, tmp_path)
    assert again["served"] == ["c0", "c2", "c3"]
    assert {trouble["node"] for trouble in again["troubles"]} == {"51", "91"}


def test_a_folder_of_another_method_is_refused(tmp_path, images):
    grid, _ = federation(tmp_path, "fedavg", images)
    run(grid, tmp_path)
    with pytest.raises(InvalidOption, match="another model"):
        Archive.open(tmp_path / "server", replace(grid.settings, method="fedper"))


def test_no_image_leaves_a_client(tmp_path, images):
    grid, config = federation(tmp_path, "vaneb_ft_direct", images)
    run(grid, tmp_path)
    data = federate_setting(config, images)
    raw = [
        piece
        for k in range(4)
        for image in (data.client(k).images.numpy(), np.asarray(data.train_images[:5]))
        for piece in (row.tobytes() for row in image[:5])
    ]
    for _, _, message in grid.captured:
        whole = bytes_of(message)
        assert not any(piece in whole for piece in raw)
