"""Optimisers by name, and the device that a network is on."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch
from torch.nn import functional

from fl.federations import LOCAL, OPTIONS, one_round, start, tiny_client, tiny_network
from vaneb.errors import InvalidOption
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.config import config_from
from vaneb.fl.head_training import train_heads
from vaneb.fl.methods import METHODS, build_method
from vaneb.fl.network import device_called, read_params
from vaneb.fl.training import batches

CLIENT = tiny_client(0, 10)
WAYS = [{"optimiser": "sgd", "momentum": 0.9}, {"optimiser": "adam"}, {"optimiser": "adamw"}]
KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def by_torch(network, data, rng, *, epochs, batch_size, learning_rate, optimiser, **more):
    """The same training, written with torch's loop."""
    rule = KINDS[optimiser](network.module.parameters(), lr=learning_rate, **more)
    for _ in range(epochs):
        for images, labels in batches(network, data, batch_size, rng):
            rule.zero_grad()
            functional.cross_entropy(network.module(images), labels).backward()
            rule.step()
    return read_params(network)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["optimiser"])
def test_training_is_that_of_torch(way):
    network, other = tiny_network(), tiny_network()
    found = local_training(network, **LOCAL, **way)(read_params(network), CLIENT, np.random.default_rng(2))
    plain = local_training(network, **LOCAL)(read_params(other), CLIENT, np.random.default_rng(2))
    for name, value in by_torch(other, CLIENT, np.random.default_rng(2), **LOCAL, **way).items():
        torch.testing.assert_close(found[name], value)
        assert not torch.allclose(plain[name], value, atol=1e-3)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["optimiser"])
def test_heads_of_a_cohort_are_those_of_its_clients(way):
    """Clients of different sizes: one that has no batch left must not be moved on by a memory."""
    rng = np.random.default_rng(0)
    seen = [torch.from_numpy(rng.standard_normal((n, 3)).astype(np.float32)) for n in (3, 11)]
    labels = [torch.from_numpy(rng.integers(0, 3, len(h))) for h in seen]

    def fitted(some):
        rngs = [np.random.default_rng(k) for k in some]
        rows = [seen[k] for k in some], [labels[k] for k in some]
        return train_heads(torch.zeros(3, 3), *rows, rngs, **LOCAL, **way)

    together = fitted([0, 1])
    for k in (0, 1):
        torch.testing.assert_close(together[k], fitted([k])[0])
        assert together[k].abs().max() > 0


@pytest.mark.parametrize("name", ["fedavg", "fedrep", "ditto", "vaneb_ft", "fedprox"])
def test_algorithms_take_an_optimiser(name):
    algorithm, state = start(name, tiny_network(), optimiser="adam", learning_rate=0.01)
    state, *_ = one_round(algorithm, state, [tiny_client(k) for k in range(3)], {})
    assert all(value.isfinite().all() for value in state.params.values())


@pytest.mark.parametrize("name", ["scaffold", "per_fedavg", "pfedme"])
def test_methods_of_plain_steps_refuse_others(name):
    build_algorithm(name, tiny_network(), {**OPTIONS[name], "optimiser": "sgd", "momentum": 0.0})
    with pytest.raises(InvalidOption, match=rf"\[options.{name}\]"):
        build_algorithm(name, tiny_network(), {**OPTIONS[name], "optimiser": "adam"})


def test_every_method_is_given_the_optimiser_of_its_section():
    config = config_from({"training": {"optimiser": "adamw"}, "fine_tuning": {"momentum": 0.5}})
    for name in METHODS:
        for stage in build_method(name, config).stages:
            if stage.algorithm == "vaneb_glm":  # Newton's steps
                continue
            tuned = stage.options["optimiser"] == "sgd" and stage.options["momentum"] == 0.5
            assert tuned or stage.options["optimiser"] == "adamw"


@pytest.mark.parametrize(
    "section", [{"optimiser": "sgdd"}, {"optimiser": 3}, {"momentum": 1.0}, {"momentum": -0.1}]
)
def test_what_is_not_known_is_refused(section):
    for name in ("training", "fine_tuning"):
        with pytest.raises(InvalidOption, match=rf"\[{name}\] (optimiser|momentum)"):
            config_from({name: section})


def test_momentum_goes_with_sgd():
    with pytest.raises(InvalidOption, match="sgd"):
        local_training(tiny_network(), **LOCAL, optimiser="adam", momentum=0.9)


def test_devices_by_name():
    assert device_called("auto").type in ("cpu", "cuda", "mps")
    assert device_called("cpu").type == "cpu"
    for wrong in ("no such", "cuda:99"):
        with pytest.raises(InvalidOption, match="Use 'auto' or 'cpu'"):
            device_called(wrong)
