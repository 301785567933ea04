"""What defines the controls and the newer rivals: limiting cases, each computed by another way."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch
from torch import nn

from fl.federations import LOCAL, OPTIONS, equal, one_round, rounds, start, tiny_client, tiny_network
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import (
    head_matrix,
    load_params,
    logits,
    network_from,
    read_params,
    reestimate_statistics,
)
from vaneb.fl.workers import one_torch_thread

CLIENTS = [tiny_client(k, 8) for k in range(4)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with one_torch_thread():
        yield


def personal(algorithm, state, states, k, *, matched=False):
    by = algorithm.personalize_matched if matched else algorithm.personalize
    message = algorithm.broadcast(state, k)
    return by(message, states.get(k, {}), CLIENTS[k], np.random.default_rng(1))


def test_the_twin_is_the_plain_mean_of_the_same_heads():
    """The heads that VANEB-FT reports, averaged; with sizes that differ, by size."""
    network = tiny_network()
    clients = [tiny_client(k, n) for k, n in enumerate((4, 8, 16))]
    vaneb, state = start("vaneb_ft", network)
    _, _, reported, _ = one_round(vaneb, state, clients, {})
    twin, state = start("mean_heads", network, prior_count=None)
    after, _, _, _ = one_round(twin, state, clients, {})
    expected = sum(n / 28 * reported[k]["head"] for k, n in enumerate((4, 8, 16)))
    torch.testing.assert_close(head_matrix(network, after.params), expected)


def test_the_twin_keeps_the_same_share_of_own_rows():
    network = tiny_network()
    vaneb, state = start("vaneb_la", network, prior_count=5.0, atoms=1, damping=1e9)
    twin, _ = start("mean_heads", network, prior_count=5.0, adjusted=True)
    results = []
    for algorithm in (vaneb, twin):
        after, states, _, _ = one_round(
            algorithm, algorithm.init(state.params, np.random.default_rng(3)), CLIENTS, {}
        )
        results.append([head_matrix(network, personal(algorithm, after, states, k)) for k in range(4)])
    # With a damping that drowns every gradient, one atom is the plain mean of clients of the same size.
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_fedprox_without_strength_is_fedavg_and_with_it_stays_nearer():
    moved = {}
    for strength in (0.0, 5.0):
        # A new network each time: training leaves its weights behind, and ``start`` begins with them.
        algorithm, state = start("fedprox", tiny_network(), strength=strength)
        after, _, _, _ = one_round(algorithm, state, CLIENTS, {})
        moved[strength] = after.params
    fedavg, state = start("fedavg", tiny_network())
    expected, _, _, _ = one_round(fedavg, state, CLIENTS, {})
    assert equal(moved[0.0], expected.params)

    def distance(params):
        return sum((params[key] - state.params[key]).square().sum() for key in params)

    assert distance(moved[5.0]) < 0.5 * distance(moved[0.0])


def test_pfedme_with_one_inner_step_by_hand():
    """theta = w - a g, w' = w - eta lambda a g, so w' - w is that share of SGD's step."""
    network = tiny_network()
    options = {"epochs": 1, "batch_size": 8, "learning_rate": 0.1}
    algorithm = build_algorithm(
        "pfedme", network, {**options, "strength": 2.0, "inner_steps": 1, "outer_rate": 0.25}
    )
    fedavg = build_algorithm("fedavg", network, options)
    state = algorithm.init(read_params(network), np.random.default_rng(0))
    after, _, _, _ = one_round(algorithm, state, CLIENTS, {})
    plain, _, _, _ = one_round(fedavg, state, CLIENTS, {})
    for key, value in state.params.items():
        torch.testing.assert_close(
            after.params[key] - value, 0.5 * (plain.params[key] - value), atol=1e-6, rtol=0
        )


def test_fedrod_shares_a_network_and_adds_a_personal_head():
    network = tiny_network()
    algorithm, state = start("fedrod", network)
    after, states, _, _ = rounds(algorithm, state, CLIENTS, 2)
    assert equal(personal(algorithm, after, states, 0), after.params)
    own = [personal(algorithm, after, states, k, matched=True) for k in range(2)]
    for key in network.body_names:
        assert torch.equal(own[0][key], after.params[key])
    assert not torch.equal(own[0]["head.weight"], own[1]["head.weight"])
    load_params(network, after.params)
    before = nn.functional.cross_entropy(logits(network, CLIENTS[0].images), CLIENTS[0].labels)
    load_params(network, own[0])
    assert nn.functional.cross_entropy(logits(network, CLIENTS[0].images), CLIENTS[0].labels) < before


def test_fedala_mixes_between_the_own_and_the_shared_head():
    network = tiny_network()
    algorithm, state = start("fedala", network)
    after, states, _, _ = rounds(algorithm, state, CLIENTS, 2)
    mixed = head_matrix(network, personal(algorithm, after, states, 1))
    own, shared = states[1]["head"], head_matrix(network, after.params)
    assert (mixed >= torch.minimum(own, shared) - 1e-6).all()
    assert (mixed <= torch.maximum(own, shared) + 1e-6).all()
    assert not torch.allclose(mixed, shared)


def test_knn_per_with_share_one_repeats_the_labels_it_has_seen():
    network = tiny_network()
    votes, state = start("knn_per", network, share=1.0, neighbours=1)
    assert votes.predict(state.params, CLIENTS[0], CLIENTS[0].images).argmax(1).equal(CLIENTS[0].labels)
    network_alone, _ = start("knn_per", network, share=0.0)
    load_params(network, state.params)
    expected = torch.log_softmax(logits(network, CLIENTS[0].images), 1)
    torch.testing.assert_close(
        network_alone.predict(state.params, CLIENTS[0], CLIENTS[0].images), expected, atol=1e-5, rtol=0
    )


def test_knn_per_says_the_same_of_an_image_whatever_else_is_asked_for():
    algorithm, state = start("knn_per", tiny_network(), neighbours=3, share=0.7)
    strange = torch.cat([CLIENTS[1].images, 100 * CLIENTS[2].images])
    alone = algorithm.predict(state.params, CLIENTS[0], CLIENTS[1].images)
    together = algorithm.predict(state.params, CLIENTS[0], strange)[: len(alone)]
    torch.testing.assert_close(alone, together)
    assert algorithm.predict(state.params, tiny_client(0, 1), strange).isfinite().all()


def test_log_proportions_are_added_with_the_strength_that_fits():
    """A network blind to its input: labels follow the proportions alone, so the fitted strength is one."""
    network = tiny_network()
    algorithm = build_algorithm("fedavg_prior", network, {**LOCAL, "learning_rate": 1e-9, "left_out": 0.5})
    params = {key: torch.zeros_like(value) for key, value in read_params(network).items()}
    clients = [_skewed(k) for k in range(4)]
    state = algorithm.init(params, np.random.default_rng(0))
    state, _, _, info = one_round(algorithm, state, clients, {})
    assert info["strength"] == pytest.approx(1.0, abs=0.25)
    message = algorithm.broadcast(state, 0)
    matched = algorithm.personalize_matched(message, {}, clients[0], np.random.default_rng(0))
    change = matched["head.bias"] - state.params["head.bias"]
    torch.testing.assert_close(change, info["strength"] * log_proportions(clients[0].labels, 3))


def _skewed(k):
    from dataclasses import replace

    rng = np.random.default_rng(k)
    labels = torch.from_numpy(rng.choice(3, 400, p=np.roll([0.7, 0.2, 0.1], k)))
    return replace(tiny_client(k, 400), labels=labels)


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_heads_are_fitted_to_the_last_body_by_clients_that_never_took_part(name):
    network = tiny_network()
    algorithm, state = start(name, network)
    state, states, _, _ = one_round(algorithm, state, CLIENTS[:3], {})
    fitted = personal(algorithm, state, states, 3)
    losses = []
    for params in (state.params, fitted):
        load_params(network, params)
        losses.append(nn.functional.cross_entropy(logits(network, CLIENTS[3].images), CLIENTS[3].labels))
    assert losses[1] < losses[0]
    assert all(torch.equal(fitted[key], state.params[key]) for key in network.body_names)


def normalised_network():
    torch.manual_seed(0)
    return network_from(
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 3)), "3"
    )


def test_batch_statistics_are_those_of_the_images():
    network = normalised_network()
    images = CLIENTS[0].images
    found = reestimate_statistics(network, images)
    seen = network.module[0](images)
    torch.testing.assert_close(found["1.running_mean"], seen.mean(0).detach())
    torch.testing.assert_close(found["1.running_var"], seen.var(0).detach())
    assert network.module[1].momentum == 0.1


def test_vaneb_full_has_statistics_of_its_own_network():
    network = normalised_network()
    algorithm = build_algorithm("vaneb_full", network, OPTIONS["vaneb_full"])
    state = algorithm.init(read_params(network), np.random.default_rng(3))
    after, states, _, _ = rounds(algorithm, state, CLIENTS, 2)
    assert not torch.equal(after.params["1.running_mean"], state.params["1.running_mean"])
    own = personal(algorithm, after, states, 2)
    load_params(network, own)
    expected = network.module[0](CLIENTS[2].images).detach()
    torch.testing.assert_close(own["1.running_mean"], expected.mean(0))
    torch.testing.assert_close(own["1.running_var"], expected.var(0))
