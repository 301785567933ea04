"""VANEB-GLM: the client's posterior by autograd, and groups in which labels mean different things."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch

from fl.federations import rounds, start, tiny_client, tiny_network
from vaneb.errors import InvalidOption
from vaneb.fl.algorithms.vaneb_glm import MOST_STEPS, head_posterior
from vaneb.fl.network import features, head_matrix, load_params, logits
from vaneb.fl.workers import one_torch_thread

MEANING = torch.tensor([1, 2, 0])


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with one_torch_thread():
        yield


def test_mode_and_marginal_likelihood_by_autograd():
    """The gradient of the log posterior vanishes, and Laplace's formula holds with its Hessian."""
    torch.manual_seed(1)
    seen, labels = torch.randn(30, 4, dtype=torch.float64), torch.randint(0, 3, (30,))
    offset, mean = torch.randn(3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    spread = 0.3

    def joint(head):
        fit = torch.log_softmax(seen @ head.T + offset, 1)[range(30), labels].sum()
        prior = torch.distributions.Normal(mean, spread**0.5).log_prob(head).sum()
        return fit + prior

    head, fit = head_posterior(seen, labels, offset, mean, spread)
    at = head.clone().requires_grad_()
    joint(at).backward()
    assert at.grad.abs().max() < 1e-2
    hessian = torch.autograd.functional.hessian(joint, head).reshape(12, 12)
    laplace = joint(head) + 6 * np.log(2 * np.pi) - torch.linalg.slogdet(-hessian)[1] / 2
    assert fit == pytest.approx(float(laplace), abs=1e-6)
    again, same = head_posterior(seen, labels, offset, mean, spread, start=torch.zeros_like(mean))
    torch.testing.assert_close(again, head, atol=1e-3, rtol=0)
    assert same == pytest.approx(fit, abs=1e-3)


def client(k: int, n: int):
    """Clients with odd numbers call the classes otherwise."""
    data = tiny_client(0, n, seed=100 + k)
    return replace(data, client=k, labels=MEANING[data.labels] if k % 2 else data.labels)


def test_groups_are_found_and_serve_a_client_that_comes_later():
    network = tiny_network()
    clients = [client(k, 60) for k in range(10)]
    right = {}
    for groups in (1, 2):
        algorithm, state = start("vaneb_glm", network, groups=groups, starts=6, spread=0.5)
        state, _, _, _ = rounds(algorithm, state, clients, 12)
        assert state.memory["means"].shape[:2] == (1, groups)
        accuracy = []
        for k in (20, 21):  # six rows to tell the group by
            message = algorithm.broadcast(state, k)
            params = algorithm.personalize(message, {}, client(k, 6), np.random.default_rng(0))
            test = client(k + 40, 300)
            load_params(network, params)
            accuracy.append(float((logits(network, test.images).argmax(1) == test.labels).double().mean()))
        right[groups] = min(accuracy)
    assert state.memory["weights"][0].min() > 0.3
    assert right[2] > 0.6
    assert right[2] > right[1] + 0.1


def test_a_single_group_is_em_for_one_gaussian():
    """After a round the mean is that of the clients' modes."""
    network = tiny_network()
    clients = [client(k, 12) for k in range(4)]
    algorithm, state = start("vaneb_glm", network, groups=1, spread=0.1)
    before = head_matrix(network, state.params).double()
    after, _, _, _ = rounds(algorithm, state, clients, 1)
    load_params(network, state.params)
    modes = []
    for data in clients:
        seen = features(network, data.images).double()
        offset = torch.zeros(3, dtype=torch.float64) + _log_proportions(data)
        modes.append(head_posterior(seen, data.labels, offset, before, 0.1, steps=MOST_STEPS)[0])
    torch.testing.assert_close(after.memory["means"][0, 0], torch.stack(modes).mean(0), atol=1e-3, rtol=0)


def _log_proportions(data):
    from vaneb.fl.label_prior import log_proportions

    return log_proportions(data.labels, data.n_classes)


def test_no_groups_at_all_are_refused():
    with pytest.raises(InvalidOption, match="at least 1"):
        start("vaneb_glm", tiny_network(), groups=0)
