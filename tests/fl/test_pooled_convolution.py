"""A pooled convolution is the plain composition, in values and in gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from vaneb.fl.models import build_network
from vaneb.fl.pooled_convolution import SHORTEST_RUN, PooledConvolution

SHAPES = {
    "first layer, dense": (1, 6, 5, 0, 12),
    "first layer, padded": (3, 4, 3, 1, 8),
    "skips zeros": (16, 5, 3, 0, 10),
    "skips zeros, padded": (32, 4, 3, 1, 6),
    "a row and a column left over, dense": (1, 4, 3, 0, 9),
    "a row and a column left over": (16, 3, 5, 0, 9),
    "one window": (40, 2, 2, 0, 3),
}


def layer_and_images(inputs, outputs, size, padding, pixels, n=3, dtype=torch.float64):
    torch.manual_seed(0)
    layer = PooledConvolution(inputs, outputs, size, padding).to(dtype)
    layer = layer.to(memory_format=torch.channels_last)
    return layer, torch.randn(n, inputs, pixels, pixels, dtype=dtype, requires_grad=True)


def plain(layer: PooledConvolution, images: torch.Tensor) -> torch.Tensor:
    scores = functional.conv2d(images, layer.weight, layer.bias, padding=layer.border)
    return functional.max_pool2d(functional.relu(scores), 2)


def both_gradients(layer, images, of):
    ours, theirs = layer(images), plain(layer, images)
    above = torch.randn_like(theirs)
    return torch.autograd.grad(ours, of, above), torch.autograd.grad(theirs, of, above)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_values_and_gradients_are_those_of_the_plain_composition(shape):
    layer, images = layer_and_images(*shape)
    torch.testing.assert_close(layer(images), plain(layer, images))
    ours, theirs = both_gradients(layer, images, (images, layer.weight, layer.bias))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_both_ways_are_covered_by_the_shapes():
    runs = [inputs * size for inputs, _, size, _, _ in SHAPES.values()]
    assert min(runs) < SHORTEST_RUN <= max(runs)


@pytest.mark.parametrize("shape", [SHAPES["skips zeros"], SHAPES["first layer, dense"]])
def test_what_is_frozen_has_no_gradient_and_the_rest_is_the_same(shape):
    layer, images = layer_and_images(*shape)
    layer.weight.requires_grad_(False)
    ours, theirs = both_gradients(layer, images, (images, layer.bias))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    layer.weight.requires_grad_(True)
    layer.bias.requires_grad_(False)
    (ours,), (theirs,) = both_gradients(layer, images.detach(), (layer.weight,))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_all_below_zero_gives_zero_and_no_gradient():
    layer, images = layer_and_images(*SHAPES["skips zeros"])
    with torch.no_grad():
        layer.bias.fill_(-1e3)
    pooled = layer(images)
    assert not pooled.any()
    for gradient in torch.autograd.grad(pooled.sum(), (images, layer.weight, layer.bias)):
        assert not gradient.any()


def test_of_equal_scores_the_first_is_taken():
    layer = PooledConvolution(40, 1, 1)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(1.0)
    images = torch.zeros(1, 40, 2, 2, requires_grad=True)
    (ours,), (theirs,) = both_gradients(layer, images, (layer.weight,))
    torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    (gradient,) = torch.autograd.grad(layer(images).sum(), images)
    assert gradient[0, 0].tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("corner", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_what_is_not_a_number_stays_visible(corner):
    layer = PooledConvolution(1, 1, 1)
    images = torch.ones(1, 1, 2, 2)
    images[0, 0, corner[0], corner[1]] = float("nan")
    assert layer(images).isnan().all()


@pytest.mark.parametrize("name", ["mnist", "cifar10", "digits"])
def test_networks_learn_the_same_with_the_plain_layers(name, monkeypatch):
    shape = {"mnist": (1, 28), "cifar10": (3, 32), "digits": (1, 8)}[name]
    network = build_network(name, None, {})
    torch.manual_seed(1)
    images, labels = torch.randn(4, shape[0], shape[1], shape[1]), torch.arange(4)
    moving = [network.tensors[key] for key in network.trainable_names]

    def gradients():
        network.module.train()
        return torch.autograd.grad(functional.cross_entropy(network.module(images), labels), moving)

    ours = gradients()
    monkeypatch.setattr(PooledConvolution, "forward", plain)
    for one, other in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
