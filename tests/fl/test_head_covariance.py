"""The diagonal of the inverse, against the inverse."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch
from torch.nn import functional

from fl.federations import tiny_client, tiny_network
from vaneb.errors import InvalidOption
from vaneb.fl import head_covariance
from vaneb.fl.head_covariance import head_variances, parameter_variances
from vaneb.fl.head_training import softmax_residuals
from vaneb.fl.network import features, head_matrix, network_from, read_params


def dense(gradients: torch.Tensor, damping: float) -> torch.Tensor:
    information = gradients.T @ gradients / len(gradients)
    return torch.linalg.inv(
        information + damping * torch.eye(gradients.shape[1], dtype=torch.float64)
    ).diagonal()


@pytest.mark.parametrize("n", [1, 5, 19, 20, 60])
@pytest.mark.parametrize("damping", [1e-3, 1.0])
def test_head_variances_are_the_diagonal_of_the_inverse(n, damping):
    """On both sides of n = d, where the form that is factorised changes."""
    torch.manual_seed(n)
    r, h = torch.randn(n, 4, dtype=torch.float64), torch.randn(n, 5, dtype=torch.float64)
    gradients = torch.einsum("ic,if->icf", r, h).reshape(n, 20)
    found = head_variances(r, h, damping)
    assert found.shape == (4, 5)
    torch.testing.assert_close(found.reshape(-1), dense(gradients, damping), rtol=1e-8, atol=0)


def test_it_is_not_the_inverse_of_the_diagonal():
    torch.manual_seed(0)
    r, h = torch.randn(6, 2, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    gradients = torch.einsum("ic,if->icf", r, h).reshape(6, 6)
    naive = 1 / (gradients.square().mean(0) + 0.1)
    assert (head_variances(r, h, 0.1).reshape(-1) > 1.2 * naive).any()


def test_residuals_times_features_are_the_gradients_of_the_head():
    network, data = tiny_network(), tiny_client(0)
    matrix = head_matrix(network, read_params(network))
    seen = features(network, data.images)
    residuals = softmax_residuals(matrix, seen, data.labels, None)
    for i in range(3):
        loss = functional.cross_entropy(network.module(data.images[i : i + 1]), data.labels[i : i + 1])
        weight, bias = torch.autograd.grad(loss, [network.head.weight, network.head.bias])
        outer = residuals[i][:, None] * seen[i]
        torch.testing.assert_close(outer[:, :-1], weight)
        torch.testing.assert_close(outer[:, -1], bias)


def test_parameter_variances_are_the_diagonal_of_the_inverse():
    network, data = tiny_network(), tiny_client(0)
    gradients = []
    for i in range(len(data)):
        loss = functional.cross_entropy(network.module(data.images[i : i + 1]), data.labels[i : i + 1])
        parts = torch.autograd.grad(loss, [network.tensors[name] for name in network.trainable_names])
        gradients.append(torch.cat([part.flatten() for part in parts]).double())
    found = parameter_variances(network, data, 0.1)
    flat = torch.cat([found[name].flatten() for name in network.trainable_names])
    torch.testing.assert_close(flat, dense(torch.stack(gradients), 0.1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("columns", [1, 5, 1000])
@pytest.mark.parametrize("rows_at_once", [100, 7, 1])
def test_parameter_variances_do_not_depend_on_the_blocks(monkeypatch, rows_at_once, columns):
    network, data = tiny_network(), tiny_client(0, n=40)
    whole = parameter_variances(network, data, 0.1)
    monkeypatch.setattr(head_covariance, "ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(head_covariance, "COLUMNS", columns)
    for name, part in parameter_variances(network, data, 0.1).items():
        # Gradients are single precision, and torch may round them otherwise with other rows beside them.
        torch.testing.assert_close(part, whole[name], rtol=1e-6, atol=0)


def test_the_head_of_all_parameters_has_larger_variances():
    """Knowing the body only approximately cannot make the head better known."""
    network, data = tiny_network(), tiny_client(0)
    seen = features(network, data.images)
    residuals = softmax_residuals(head_matrix(network, read_params(network)), seen, data.labels, None)
    alone = head_variances(residuals, seen, 0.1)[:, :-1]
    assert (parameter_variances(network, data, 0.1)["head.weight"] >= alone - 1e-6).all()


def test_without_information_the_variance_is_that_of_the_damping():
    zeros = torch.zeros(4, 3), torch.randn(4, 5)
    np.testing.assert_allclose(head_variances(*zeros, 0.25), 4.0)


@pytest.mark.parametrize("damping", [0.0, -1.0, float("nan"), float("inf")])
def test_damping_must_be_positive(damping):
    with pytest.raises(InvalidOption, match="damping"):
        head_variances(torch.randn(4, 3), torch.randn(4, 5), damping)


def test_layers_that_cannot_be_mapped_over_rows_are_done_row_by_row():
    torch.manual_seed(0)

    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.out = torch.nn.GRU(4, 3, batch_first=True), torch.nn.Linear(3, 3)

        def forward(self, rows):
            return self.out(self.below(rows[:, None])[1][0])

    network, data = network_from(Recurrent(), "out"), tiny_client(0, 5)
    moving = [network.tensors[name] for name in network.trainable_names]
    rows = [
        torch.cat(
            [
                g.double().reshape(-1)
                for g in torch.autograd.grad(
                    functional.cross_entropy(network.module(data.images[i : i + 1]), data.labels[i : i + 1]),
                    moving,
                )
            ]
        )
        for i in range(5)
    ]
    found = parameter_variances(network, data, 0.1)
    flat = torch.cat([found[name].reshape(-1) for name in network.trainable_names])
    torch.testing.assert_close(flat, dense(torch.stack(rows), 0.1), rtol=1e-5, atol=0)
