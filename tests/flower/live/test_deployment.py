"""Networks and secure sums between real processes, with TLS and authentication.

A client is killed between its update and its result, and comes back.
"""

from __future__ import annotations

import json
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

from flower.deployment import Deployment, deployment, wait_until
from flower.loopback import write_rows
from flower.test_networks import EXPERIMENT, engines_networks
from vaneb.fl.config import config_from
from vaneb.fl.data import load_images
from vaneb.fl.experiment import federate_setting
from vaneb.fl.trees import load_tree
from vaneb.flower import client_data, network_client
from vaneb.flower.archive import Archive
from vaneb.flower.gaussian_steps import box_of, cover
from vaneb.flower.secure import crowded
from vaneb.flower.settings import Settings
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.npmle.pseudo_em import pseudo_em

NAMES = ("c0", "c1", "c2", "c3")
#: Its clients keep their own heads between an update and the result.
METHOD = "vaneb_la_smooth"
TEXT = EXPERIMENT.format(method=METHOD).replace("rounds = 2", "rounds = 1")
NETWORK = Settings(mode="network", experiment=TEXT, method=METHOD, nodes=4, wait=200.0, timeout=60.0)
SECURE = Settings(
    mode="secure",
    formula="y ~ x",
    family="poisson",
    likelihood="exact",
    iterations=1,
    nodes=4,
    wait=200.0,
    timeout=90.0,
    lower="-2,-1",
    upper="2,2",
    precision_bound=300.0,
    atoms=6,
    population="discrete",
)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One deployment, three runs."""
    folder = tmp_path_factory.mktemp("deployment")
    images = load_images("digits", None)
    config = config_from(tomllib.loads(TEXT))
    data = federate_setting(config, images)
    for k, name in enumerate(NAMES):
        network_client.write_client(data, k, folder / f"{name}.images")
        write_rows(folder / f"{name}.csv", k, family="poisson")
    found = SimpleNamespace(folder=folder, config=config, images=images)
    switch = Path(__file__).parent / "hostile" / "switch.py"
    with deployment(folder, NAMES, app_client="switch:app", app_files=[switch]) as here:
        networks, secure = folder / "networks", folder / "secure"
        with here.superlink(networks, NAMES) as link:
            for name in NAMES:
                start(here, name)
            fine_tuned = networks / "stages" / "1" / "manifest.json"
            killer = threading.Thread(target=kill, args=(here, "c3", fine_tuned), daemon=True)
            killer.start()
            found.first = here.run(link, NETWORK, networks)
            killer.join(10)
            found.first_results = {name: (here.own(name) / "result.json").exists() for name in NAMES}
            start_again(here, "c3")
            found.states = sorted(path.name for path in (here.own("c3") / "states").iterdir())
            found.second = here.run(link, replace(NETWORK, timeout=90.0), networks)
            found.about = [json.loads((here.own(name) / "result.json").read_text()) for name in NAMES]
        with here.superlink(secure, NAMES) as link:
            found.secure = here.run(link, SECURE, secure)
    return found


def start(here: Deployment, name: str) -> None:
    paths = {"data": here.folder / f"{name}.csv", "images": here.folder / f"{name}.images"}
    paths["policy"] = here.folder / "policy.toml"
    paths["policy"].write_text('likelihoods = ["exact"]\nsums_at_atoms = true\n')
    here.start(name, {key: str(path) for key, path in paths.items()})


def kill(here: Deployment, name: str, when: Path) -> None:
    """Kill a node when a file appears."""
    wait_until(when.exists, 200, "the round of fine-tuning")
    here.kill(name)


def start_again(here: Deployment, name: str) -> None:
    """Start a node until the SuperLink has noticed that it was gone, and lets it in again."""
    log = here.own(name) / "supernode.log"
    before = log.read_text(errors="replace").count("SuperNode ID")
    while log.read_text(errors="replace").count("SuperNode ID") == before:
        if here.children[name].poll() is not None:
            start(here, name)
        time.sleep(1)


def test_a_killed_client_is_named_and_the_others_have_their_networks(story):
    assert story.first["served"] == ["c0", "c1", "c2"]
    assert [trouble["client"] for trouble in story.first["troubles"]] == ["c3"]
    assert "lost" in story.first["troubles"][0]
    assert story.first_results == {"c0": True, "c1": True, "c2": True, "c3": False}


def test_the_head_of_a_client_survives_its_restart(story):
    """Its head is in its own folder, nowhere else; what it ends up with is what the engine would give it."""
    assert story.states == ["3-1.npz"]
    assert story.second["served"] == list(NAMES)
    # Nothing was trained again.
    assert story.second["exchanges"] == 1
    expected = engines_networks(story.config, story.images, story.folder / "engine")
    for k, name in enumerate(NAMES):
        network = load_tree(story.folder / "clients" / name / network_client.NETWORK)
        for key, value in expected[k].items():
            np.testing.assert_allclose(network[key], value, rtol=1e-4, atol=1e-6)
        assert (story.about[k]["client"], story.about[k]["method"]) == (name, METHOD)


def test_secure_sums_between_processes_give_the_plain_result(story):
    assert story.secure["served"] == list(NAMES)
    assert story.secure["troubles"] == []
    models = []
    for name in NAMES:
        _, frame = client_data.read_client(story.folder / f"{name}.csv")
        models.append(client_data.local_model(frame, SECURE))
    rows = GroupedRows.from_columns(
        np.repeat(np.arange(len(models)), [len(m.rows.response) for m in models]),
        np.concatenate([m.rows.design for m in models]),
        np.concatenate([m.rows.response for m in models]),
        names=models[0].rows.names,
    )
    first = cover(*box_of(SECURE), SECURE.atoms, SECURE.seed)
    weights = np.full(len(first), 1 / len(first))
    atoms, weights, _ = pseudo_em(exact_likelihood(rows, models[0].family), first, weights, 1)
    prior = Archive(story.folder / "secure").prior()
    atoms, weights, spread = crowded(atoms, weights, len(NAMES))
    np.testing.assert_allclose(prior.weights, weights, atol=2e-5)
    np.testing.assert_allclose(prior.atoms, atoms, atol=5e-3)
    np.testing.assert_allclose(prior.covariances[0], spread, atol=5e-3)


def test_all_that_secure_aggregation_sends_is_counted(story):
    stages = ("setup", "share_keys", "collect_masked_vectors", "unmask")
    counts = story.secure["by_kind"]
    assert counts.keys() == {"evaluate describe", "personalise", *(f"secure {stage}" for stage in stages)}
    for stage in stages:
        assert counts[f"secure {stage}"]["messages"] == 8
    # Two public keys of each client; two shares for each of the others; one vector of whole numbers.
    entries = 1 + SECURE.atoms * (1 + 2 + 3)
    assert counts["secure setup"]["bytes_up"] > 4 * 2 * 100
    assert counts["secure share_keys"]["bytes_up"] > 4 * 3 * 100
    assert counts["secure collect_masked_vectors"]["bytes_up"] > 4 * entries * 4
    assert story.secure["exchanges"] == 1 + 4 + 1
