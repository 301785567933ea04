"""What every algorithm promises, asked of all of them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

from fl.federations import LOCAL, OPTIONS, copy_of, equal, one_round, tiny_client, tiny_network
from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ServerState
from vaneb.fl.algorithms import ALGORITHMS, build_algorithm
from vaneb.fl.network import load_params, logits, read_params
from vaneb.fl.trees import is_finite, leaves, load_tree, save_tree
from vaneb.fl.workers import one_torch_thread

COHORTS = ["fedavg_ft", "mean_heads", "vaneb_ft", "vaneb_la"]
CLIENTS = [tiny_client(k, n) for k, n in enumerate((10, 7, 12, 10))]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As the engine does it: two threads for tensors this small only wait for each other."""
    with one_torch_thread():
        yield


def test_every_algorithm_is_tested():
    assert set(OPTIONS) == set(ALGORITHMS)


@pytest.fixture(params=sorted(ALGORITHMS))
def name(request) -> str:
    return request.param


@pytest.fixture
def network():
    return tiny_network()


@pytest.fixture
def algorithm(name, network) -> Algorithm:
    return build_algorithm(name, network, OPTIONS[name])


@pytest.fixture
def started(algorithm, network) -> ServerState:
    return algorithm.init(read_params(network), np.random.default_rng(3))


def test_two_rounds_keep_the_shape_of_the_network(algorithm, network, started):
    state, states = started, {}
    shapes = {key: value.shape for key, value in read_params(network).items()}
    for number in range(2):
        state, states, outputs, _ = one_round(algorithm, state, CLIENTS, states, number)
        assert state.round == number + 1
        assert list(outputs) == [0, 1, 2, 3]
        assert all(out["n"] == len(data) for out, data in zip(outputs.values(), CLIENTS, strict=True))
    assert {key: value.shape for key, value in state.params.items()} == shapes
    for data in CLIENTS:
        message = algorithm.broadcast(state, data.client)
        params = algorithm.personalize(message, states[data.client], data, np.random.default_rng(1))
        assert {key: value.shape for key, value in params.items()} == shapes
        assert is_finite(params)


def test_every_client_predicts_under_both_protocols(algorithm, network, started):
    """Scores (n, classes), finite, and the same whatever the network was used for in between."""
    state, states, _, _ = one_round(algorithm, started, CLIENTS[:3], {})
    for data in CLIENTS:
        for personalize in {algorithm.personalize, algorithm.personalize_matched or algorithm.personalize}:
            message = algorithm.broadcast(state, data.client)
            seen = []
            for _ in range(2):
                params = personalize(message, states.get(data.client, {}), data, np.random.default_rng(1))
                algorithm.client_update(message, CLIENTS[0], {}, np.random.default_rng(6))
                if algorithm.predict is None:
                    load_params(network, params)
                    seen.append(logits(network, data.images))
                else:
                    seen.append(algorithm.predict(params, data, data.images))
            assert seen[0].shape == (len(data), data.n_classes)
            assert seen[0].isfinite().all()
            assert seen[0].equal(seen[1])


def test_client_update_is_pure(algorithm, started):
    """The same arguments give the same result, whatever the network was used for in between; and they
    are not changed."""
    state, states, _, _ = one_round(algorithm, started, CLIENTS, {})
    message, own = algorithm.broadcast(state, 1), states[1]
    message_before, own_before = copy_of(message), copy_of(own)
    first = algorithm.client_update(message, CLIENTS[1], own, np.random.default_rng(5))
    algorithm.client_update(algorithm.broadcast(state, 0), CLIENTS[0], states[0], np.random.default_rng(6))
    second = algorithm.client_update(message, CLIENTS[1], own, np.random.default_rng(5))
    assert equal(first[0], second[0])
    assert equal(first[1], second[1])
    assert equal(message, message_before)
    assert equal(own, own_before)


def test_server_update_is_pure(algorithm, started):
    _, _, outputs, _ = one_round(algorithm, started, CLIENTS, {})
    before = copy_of({"params": started.params, "memory": dict(started.memory)})
    first, _ = algorithm.server_update(started, outputs)
    second, _ = algorithm.server_update(started, outputs)
    assert equal(first.params, second.params)
    assert equal(first.memory, second.memory)
    assert equal({"params": started.params, "memory": dict(started.memory)}, before)


def test_everything_survives_the_disk(algorithm, started, tmp_path):
    """Messages, outputs, states and memory are trees of tensors and plain numbers."""
    state, states, outputs, info = one_round(algorithm, started, CLIENTS, {})
    for tree in (algorithm.broadcast(state, 2), outputs[2], states[2], state.memory, info):
        save_tree(tmp_path / "tree.npz", tree)
        assert equal(load_tree(tmp_path / "tree.npz"), tree)


def test_a_client_that_never_took_part_has_a_network(algorithm, started, network):
    state, _, _, _ = one_round(algorithm, started, CLIENTS[:3], {})
    params = algorithm.personalize(algorithm.broadcast(state, 3), {}, CLIENTS[3], np.random.default_rng(1))
    assert params.keys() == network.tensors.keys()


def test_these_algorithms_update_cohorts(name, algorithm):
    assert (algorithm.cohort_update is not None) == (name in COHORTS)


@pytest.mark.parametrize("name", COHORTS)
def test_a_cohort_is_its_clients(name, network):
    """``cohort_update`` agrees with ``client_update``, also where clients have different sizes."""
    algorithm = build_algorithm(name, network, OPTIONS[name])
    message = algorithm.broadcast(algorithm.init(read_params(network), np.random.default_rng(3)), 0)
    rngs = [np.random.default_rng([7, k]) for k in range(4)]
    assert algorithm.cohort_update is not None
    together = algorithm.cohort_update(message, CLIENTS, [{}] * 4, rngs)
    for k, (output, state) in enumerate(together):
        alone = algorithm.client_update(message, CLIENTS[k], {}, np.random.default_rng([7, k]))
        for one, other in ((output, alone[0]), (state, alone[1])):
            one, other = dict(leaves(one)), dict(leaves(other))
            assert one.keys() == other.keys()
            for key in one:
                np.testing.assert_allclose(one[key], other[key], rtol=1e-4, atol=1e-6)


def test_it_says_what_is_evaluated(algorithm):
    assert len(algorithm.evaluated) > 10


def test_training_lowers_the_loss(name, algorithm, started):
    """Five rounds fit the training data of the clients better than the start does."""
    from torch.nn import functional

    def loss(state, states):
        total = 0.0
        for data in CLIENTS:
            message = algorithm.broadcast(state, data.client)
            params = algorithm.personalize(
                message, states.get(data.client, {}), data, np.random.default_rng(2)
            )
            load_params(network, params)
            scores = logits(network, data.images)
            if algorithm.adds_label_prior:
                from vaneb.fl.label_prior import log_proportions

                scores = scores + log_proportions(data.labels, data.n_classes)
            total += functional.cross_entropy(scores, data.labels).item()
        return total / len(CLIENTS)

    network = tiny_network()
    algorithm = build_algorithm(name, network, OPTIONS[name])
    state, states = algorithm.init(read_params(network), np.random.default_rng(3)), {}
    # What a client has before any training: the start itself.
    load_params(network, state.params)
    before = np.mean(
        [functional.cross_entropy(logits(network, data.images), data.labels).item() for data in CLIENTS]
    )
    for number in range(5):
        state, states, _, _ = one_round(algorithm, state, CLIENTS, states, number)
    assert loss(state, states) < before - 0.05


def test_unknown_names_and_options_are_refused(network):
    with pytest.raises(InvalidOption, match="not known"):
        build_algorithm("fedsgd", network, {})
    with pytest.raises(InvalidOption, match="unexpected keyword"):
        build_algorithm("fedavg", network, {**LOCAL, "nesterov": 0.9})
    with pytest.raises(InvalidOption, match="importable"):
        build_algorithm("no_such_module:mine", network, {})


def test_an_algorithm_of_ones_own_is_found_by_its_module(network):
    built = build_algorithm("vaneb.fl.algorithms.fedavg:fedavg", network, LOCAL)
    assert built.evaluated == build_algorithm("fedavg", network, LOCAL).evaluated
