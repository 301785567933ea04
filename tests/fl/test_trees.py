"""Trees keep every bit, on disk and between processes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch

from fl.federations import equal
from vaneb.fl.trees import is_finite, load_tree, pack, save_tree, unpack

TREE = {
    "params": {"conv.weight": torch.randn(2, 3, 5, 5), "fc.bias": torch.randn(4, dtype=torch.float64)},
    "n": 17,
    "seed": 2**62 + 1,
    "rate": 0.1,
    "due": True,
    "name": "x",
    "memory": {"heads": {"12": torch.arange(6).reshape(2, 3)}, "empty": torch.zeros(0, 3)},
}


def test_files(tmp_path):
    save_tree(tmp_path / "t.npz", TREE)
    assert equal(load_tree(tmp_path / "t.npz"), TREE)
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


def test_memory_order_does_not_matter(tmp_path):
    value = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    save_tree(tmp_path / "t.npz", {"w": value})
    assert torch.equal(load_tree(tmp_path / "t.npz")["w"], value)


def test_bytes():
    header, payload = pack(TREE)
    found = unpack(json.loads(json.dumps(header)), payload)
    assert equal(found, TREE)
    found["params"]["fc.bias"].add_(1.0)  # what comes back can be changed


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_number_is_found(bad):
    value = torch.randn(1000)
    assert is_finite({"a": {"b": value}, "n": 3})
    value[500] = bad
    assert not is_finite({"a": {"b": value}, "n": 3})
    assert not is_finite({"loss": bad})
