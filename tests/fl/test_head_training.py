"""Heads trained together are heads trained alone."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch

from fl.federations import tiny_client, tiny_network
from vaneb.fl.head_training import fine_tune_heads, train_heads
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import head_matrix, load_params, read_params
from vaneb.fl.training import sgd_epochs

OPTIONS = {"epochs": 3, "batch_size": 4, "learning_rate": 0.2}


def test_it_is_gradient_descent_on_the_head():
    """The same as training the network with only its head free, batch for batch."""
    network, data = tiny_network(), tiny_client(1, 10)
    start = read_params(network)
    heads, _, _ = fine_tune_heads(network, start, [data], [np.random.default_rng(4)], **OPTIONS)
    sgd_epochs(network, data, np.random.default_rng(4), names=network.head_names, **OPTIONS)
    torch.testing.assert_close(heads[0], head_matrix(network, read_params(network)), rtol=1e-4, atol=1e-6)


def test_clients_of_different_sizes_do_not_touch_each_other():
    torch.manual_seed(0)
    sizes = (3, 9, 6)
    seen = [torch.randn(n, 5) for n in sizes]
    labels = [torch.randint(0, 4, (n,)) for n in sizes]
    start, offsets = torch.randn(4, 5), torch.randn(3, 4)
    together = train_heads(
        start, seen, labels, [np.random.default_rng(k) for k in range(3)], offsets=offsets, **OPTIONS
    )
    for k in range(3):
        alone = train_heads(
            start,
            seen[k : k + 1],
            labels[k : k + 1],
            [np.random.default_rng(k)],
            offsets=offsets[k : k + 1],
            **OPTIONS,
        )
        torch.testing.assert_close(together[k], alone[0], rtol=1e-5, atol=1e-6)


def test_heads_may_start_apart():
    starts = torch.randn(2, 3, 5)
    seen, labels = [torch.randn(4, 5)] * 2, [torch.tensor([0, 1, 2, 0])] * 2
    rngs = [np.random.default_rng(0), np.random.default_rng(0)]
    found = train_heads(starts, seen, labels, rngs, epochs=0, batch_size=2, learning_rate=0.1)
    assert torch.equal(found, starts)


def test_adjusted_residuals_are_those_of_the_adjusted_loss():
    network, data = tiny_network(), tiny_client(2, 12)
    load_params(network, read_params(network))
    heads, seen, residuals = fine_tune_heads(
        network,
        read_params(network),
        [data],
        [np.random.default_rng(0)],
        adjusted=True,
        **OPTIONS,
    )
    scores = seen[0] @ heads[0].T + log_proportions(data.labels, 3)
    expected = torch.softmax(scores, 1)
    expected[torch.arange(12), data.labels] -= 1
    torch.testing.assert_close(residuals[0], expected)


def test_log_proportions_are_smoothed():
    found = log_proportions(torch.tensor([0, 0, 2]), 3)
    np.testing.assert_allclose(found.exp(), [7 / 12, 1 / 12, 4 / 12], rtol=1e-6)
    np.testing.assert_allclose(log_proportions(torch.tensor([1]), 4).exp(), [1 / 8, 5 / 8, 1 / 8, 1 / 8])
