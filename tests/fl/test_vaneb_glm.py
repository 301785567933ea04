"""VANEB-GLM: modes by autograd, candidates that count by what they predict, groups with other labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch

from fl.federations import rounds, start, tiny_client, tiny_network
from vaneb.errors import InvalidOption
from vaneb.fl.algorithms.common import set_aside
from vaneb.fl.algorithms.vaneb_glm import ASIDE, LEAST, SEARCH, STEPS, head_modes
from vaneb.fl.network import features, head_matrix, load_params, logits
from vaneb.fl.workers import one_torch_thread

MEANING = torch.tensor([1, 2, 0])


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with one_torch_thread():
        yield


def test_modes_by_autograd():
    """The gradient of the log posterior vanishes there, with any mean and spread; heights agree."""
    torch.manual_seed(1)
    seen, labels = torch.randn(30, 4), torch.randint(0, 3, (30,))
    offset, means, spread = torch.randn(3), torch.randn(2, 3, 4), torch.tensor([0.1, 1.0])

    def joint(heads):
        fit = torch.log_softmax(torch.einsum("nf,bcf->bnc", seen, heads) + offset, 2)[:, range(30), labels]
        return fit.sum(1) - (heads - means).square().sum((1, 2)) / (2 * spread)

    heads, height = head_modes(seen, labels, offset, means, spread)
    at = heads.clone().requires_grad_()
    joint(at).sum().backward()
    assert at.grad.abs().max() < 0.05
    torch.testing.assert_close(height, joint(heads))
    for _ in range(20):  # the log posterior is concave: there is nothing higher
        assert (joint(heads + 0.05 * torch.randn_like(heads)) < height).all()
    again, same = head_modes(seen, labels, offset, means, spread, start=torch.zeros_like(means))
    torch.testing.assert_close(again, heads, atol=1e-2, rtol=0)
    torch.testing.assert_close(same, height, atol=1e-3, rtol=0)


def client(k: int, n: int):
    """Clients with odd numbers call the classes otherwise."""
    data = tiny_client(0, n, seed=100 + k)
    return replace(data, client=k, labels=MEANING[data.labels] if k % 2 else data.labels)


def right_share(algorithm, message, state, network, data, test):
    """Accuracy of a client's network on rows of its own kind."""
    load_params(network, algorithm.personalize(message, state, data, np.random.default_rng(0)))
    return float((logits(network, test.images).argmax(1) == test.labels).double().mean())


def test_groups_are_found_and_serve_a_client_that_comes_later():
    network = tiny_network()
    clients = [client(k, 60) for k in range(10)]
    right = {}
    for groups in (1, 3):
        algorithm, state = start("vaneb_glm", network, groups=groups, starts=4, spreads=[0.2, 0.5])
        state, _, _, _ = rounds(algorithm, state, clients, 12)
        right[groups] = min(  # six rows to tell the group by
            right_share(
                algorithm, algorithm.broadcast(state, k), {}, network, client(k, 6), client(k + 40, 300)
            )
            for k in (20, 21)
        )
    counted = torch.softmax(state.memory["credit"], 0)[torch.bincount(state.memory["owner"]) > 1].sum()
    assert counted > 0.99  # that there is only one group counts for nothing
    assert right[3] > 0.6
    assert right[3] > right[1] + 0.1


def test_without_groups_the_populations_found_serve_as_well_as_one():
    network = tiny_network()
    clients = [client(2 * k, 20) for k in range(8)]
    found = []
    for groups in (1, 3):
        algorithm, state = start("vaneb_glm", network, groups=groups, starts=2, spreads=[0.5])
        state, states, _, _ = rounds(algorithm, state, clients, 12)
        right = [
            right_share(
                algorithm, algorithm.broadcast(state, k), states[k], network, data, client(k + 100, 300)
            )
            for data in clients
            for k in [data.client]
        ]
        found.append(np.mean(right))
    assert found[1] > found[0] - 0.03


def test_candidates_count_by_the_labels_kept_aside():
    """As sum_k log p(labels aside), where groups have the weights that the labels kept give them."""
    network = tiny_network()
    clients = [client(k, 30) for k in range(6)]
    algorithm, state = start("vaneb_glm", network, groups=2, starts=1, spreads=[0.05, 1.0])
    state, _, _, _ = rounds(algorithm, state, clients, SEARCH)
    message = algorithm.broadcast(state, 0)
    outputs = {data.client: algorithm.client_update(message, data, {}, None)[0] for data in clients}
    after, _ = algorithm.server_update(state, outputs)
    load_params(network, state.params)
    total = torch.zeros(4)
    for data in clients:
        kept, aside = set_aside(data, ASIDE)
        assert (len(kept), len(aside)) == (24, 6)
        offset, seen = _log_proportions(kept), features(network, kept.images)
        population = state.memory["means"], state.memory["spread"]
        heads, height = head_modes(seen, kept.labels, offset, *population, steps=STEPS)
        scores = torch.einsum("nf,bcf->bnc", features(network, aside.images), heads) + offset
        fit = torch.log_softmax(scores, 2)[:, range(6), aside.labels].sum(1)
        prior = height + state.memory["weights"].log()
        for c in range(4):
            mine = state.memory["owner"] == c
            total[c] += torch.logsumexp(torch.log_softmax(prior[mine], 0) + fit[mine], 0)
    expected = torch.log_softmax(total, 0)
    kept = expected[expected >= np.log(LEAST)]
    torch.testing.assert_close(after.memory["credit"], kept, atol=1e-3, rtol=0)


def test_a_single_candidate_is_em_for_one_gaussian():
    """After a round the mean is that of the clients' modes."""
    network = tiny_network()
    clients = [client(k, 12) for k in range(4)]
    algorithm, state = start("vaneb_glm", network, groups=1, spreads=[0.1])
    before = head_matrix(network, state.params)[None]
    after, _, _, _ = rounds(algorithm, state, clients, 1)
    load_params(network, state.params)
    modes = []
    for data in clients:
        seen = features(network, data.images)
        modes.append(head_modes(seen, data.labels, _log_proportions(data), before, torch.tensor([0.1]))[0][0])
    torch.testing.assert_close(after.memory["means"][0], torch.stack(modes).mean(0), atol=5e-3, rtol=0)


def _log_proportions(data):
    from vaneb.fl.label_prior import log_proportions

    return log_proportions(data.labels, data.n_classes)


def test_no_groups_at_all_are_refused():
    with pytest.raises(InvalidOption, match="at least 1"):
        start("vaneb_glm", tiny_network(), groups=0)
    with pytest.raises(InvalidOption, match="positive"):
        start("vaneb_glm", tiny_network(), spreads=[0.1, -1.0])
