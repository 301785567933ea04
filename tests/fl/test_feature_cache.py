"""Features are kept by content: a changed body or other images never get old ones."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch

from fl.federations import tiny_client, tiny_network
from vaneb.fl.feature_cache import FeatureCache
from vaneb.fl.network import features, head_matrix, load_params, logits, read_params


def test_kept_features_are_those_of_the_present_body():
    network, images = tiny_network(), tiny_client(0).images
    first = features(network, images)
    assert features(network, images.clone()) is first  # the same content, not the same memory
    head = head_matrix(network, read_params(network))
    torch.testing.assert_close(first @ head.T, logits(network, images).clone())
    changed = {name: value + 0.1 for name, value in read_params(network).items()}
    load_params(network, changed)
    second = features(network, images)
    assert not torch.equal(first, second)
    torch.testing.assert_close(second @ head_matrix(network, changed).T, logits(network, images).clone())


def test_a_changed_head_keeps_them():
    network, images = tiny_network(), tiny_client(0).images
    first = features(network, images)
    load_params(network, {name: read_params(network)[name] * 2 for name in network.head_names})
    assert features(network, images) is first


def test_other_images_are_other_features():
    network = tiny_network()
    one, other = tiny_client(0).images, tiny_client(1).images
    assert not torch.equal(features(network, one), features(network, other))
    assert len(features(network, one[:3])) == 3


def test_no_more_is_kept_than_the_limit():
    cache, body = FeatureCache(limit=100), [torch.zeros(2)]
    calls = []

    def compute() -> torch.Tensor:
        calls.append(1)
        return torch.ones(20)  # 80 bytes

    for image in (1.0, 2.0, 1.0, 2.0):
        assert torch.equal(cache.get(body, torch.full((2, 1, 2, 2), image), compute), torch.ones(20))
    assert len(calls) == 3  # the first is kept, the second is computed twice
