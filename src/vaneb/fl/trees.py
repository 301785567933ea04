"""Trees: nested dictionaries of tensors and numbers, and their two outer forms (file, bytes).

Messages, outputs, client states and what a server carries are all trees, so that one pair of functions
writes any of them to disk and another passes any of them between processes.  Plain numbers travel as
JSON, tensors as raw bytes; nothing is ever pickled.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tree = Mapping[str, Any]
"""Leaves are tensors, ints, floats, booleans or strings; keys are strings without a slash."""

_NUMBERS = "numbers"


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of path (keys joined by slashes) and leaf, in the tree's order."""
    for key, value in tree.items():
        path = f"{prefix}/{key}" if prefix else key
        if isinstance(value, Mapping):
            yield from leaves(value, path)
        else:
            yield path, value


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of ``dict(leaves(tree))`` (empty branches are not kept)."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *branch, last = path.split("/")
        node = tree
        for key in branch:
            node = node.setdefault(key, {})
        node[last] = value
    return tree


def tensor_bytes(tree: Tree) -> int:
    """What the tensors of a tree take when it is sent."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(tree) if isinstance(leaf, Tensor))


def is_finite(tree: Tree) -> bool:
    """Whether every floating-point number in the tree is finite."""
    for _, leaf in leaves(tree):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            # A sum is one pass without a temporary; it is finite unless an entry is not (or overflows,
            # which only a diverged network does).
            if not torch.isfinite(leaf.sum(dtype=torch.float64)):
                return False
        elif isinstance(leaf, float) and not np.isfinite(leaf):
            return False
    return True


def _split(tree: Tree) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    arrays, numbers = {}, {}
    for path, leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            arrays[path] = leaf.detach().contiguous().numpy()
        elif isinstance(leaf, np.ndarray):
            arrays[path] = np.ascontiguousarray(leaf)
        else:
            numbers[path] = leaf
    return arrays, numbers


def save_tree(path: Path, tree: Tree) -> None:
    """Write ``tree`` as an npz file; the file appears whole or not at all."""
    arrays, numbers = _split(tree)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(temporary, "wb") as file:
        entries = {f"tensor/{name}": array for name, array in arrays.items()}
        entries[_NUMBERS] = np.frombuffer(json.dumps(numbers).encode(), dtype=np.uint8)
        np.savez(file, allow_pickle=False, **entries)  # type: ignore[arg-type]
    os.replace(temporary, path)


def load_tree(path: Path) -> dict[str, Any]:
    """Inverse of ``save_tree``; every array comes back as a tensor."""
    with np.load(path, allow_pickle=False) as file:
        flat = {
            name.removeprefix("tensor/"): torch.from_numpy(file[name])
            for name in file.files
            if name != _NUMBERS
        }
        flat.update(json.loads(file[_NUMBERS].tobytes()))
    return unflatten(flat)


def pack(tree: Tree) -> tuple[dict[str, Any], bytes]:
    """Plain JSON and bytes from which ``unpack`` rebuilds the tree."""
    arrays, numbers = _split(tree)
    layout = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    return {"layout": layout, "numbers": numbers}, b"".join(array.tobytes() for array in arrays.values())


def unpack(header: Mapping[str, Any], payload: bytes) -> dict[str, Any]:
    """Inverse of ``pack``."""
    flat: dict[str, Any] = {}
    start = 0
    for name, dtype, shape in header["layout"]:
        array = np.frombuffer(payload, dtype, math.prod(shape), start)
        flat[name] = torch.from_numpy(array.reshape(shape).copy())
        start += array.nbytes
    flat.update(header["numbers"])
    return unflatten(flat)
