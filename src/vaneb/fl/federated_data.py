"""A data set divided among clients, in a form that many processes can read without copies.

Images are bytes in a few flat arrays, saved as ``.npy`` files and mapped into memory by every worker, so
that one copy serves all of them; a client's images become floating-point numbers only when it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vaneb.errors import InvalidOption
from vaneb.fl import partition, shift
from vaneb.fl.algorithm import ClientData
from vaneb.fl.data import ImageData, Images, Labels
from vaneb.fl.training import channels_last

PROTOCOLS = ("balanced", "matched")
_ARRAYS = ("train_images", "train_labels", "train_edges", "test_images", "test_labels", "cluster")
_TESTS = tuple(f"{protocol}_{part}" for protocol in PROTOCOLS for part in ("rows", "edges"))


@dataclass(frozen=True)
class FederatedData:
    """Training and test images of K clients.

    Parameters
    ----------
    train_images, train_labels : (N, ...) and (N,), client after client.  Images are uint8; other inputs
        (float32, or int64 for tokens) are used as they are.
    train_edges : (K + 1,), client k has rows train_edges[k] to train_edges[k + 1].
    test_images, test_labels : (T, ...) and (T,), a pool that all clients' test sets are taken from.
    balanced_rows, matched_rows : rows of the pool, client after client; with their edges (K + 1,).
    cluster : (K,), which group a client belongs to: one number for each pair of a transformation
        of images and a meaning of the labels.
    mean, deviation : by which pixel values (as shares of 255) of images are centred and scaled.
    """

    train_images: Images
    train_labels: Labels
    train_edges: NDArray[np.int64]
    test_images: Images
    test_labels: Labels
    balanced_rows: NDArray[np.int64]
    balanced_edges: NDArray[np.int64]
    matched_rows: NDArray[np.int64]
    matched_edges: NDArray[np.int64]
    cluster: NDArray[np.int64]
    n_classes: int
    mean: float
    deviation: float

    def __post_init__(self) -> None:
        for what, edges in (
            ("training", self.train_edges),
            ("balanced test", self.balanced_edges),
            ("matched test", self.matched_edges),
        ):
            empty = np.flatnonzero(np.diff(edges) < 1)
            if len(empty):
                raise InvalidOption(
                    f"client {empty[0]} has no {what} images (and {len(empty) - 1} more clients). "
                    "Leave clients without data out, or use fewer clients."
                )

    @property
    def n_clients(self) -> int:
        return len(self.train_edges) - 1

    def client(self, k: int) -> ClientData:
        """Client k's training data."""
        rows = slice(int(self.train_edges[k]), int(self.train_edges[k + 1]))
        labels = torch.from_numpy(np.array(self.train_labels[rows]))
        return ClientData(k, self._normalised(self.train_images[rows]), labels, self.n_classes)

    def test(self, k: int, protocol: str) -> ClientData:
        """Client k's test data under a protocol."""
        edges = getattr(self, f"{protocol}_edges")
        rows = getattr(self, f"{protocol}_rows")[edges[k] : edges[k + 1]]
        labels = torch.from_numpy(np.asarray(self.test_labels[rows]))
        return ClientData(k, self._normalised(self.test_images[rows]), labels, self.n_classes)

    def examples(self) -> Tensor:
        """Inputs that show what a network must take: those with the smallest and the largest numbers."""
        found = []
        for images in (self.train_images, self.test_images):
            flat = images.reshape(len(images), -1)
            found.append(images[[flat.min(1).argmin(), flat.max(1).argmax()]])
        return self._normalised(np.concatenate(found))

    def _normalised(self, images: Images) -> Tensor:
        if images.dtype != np.uint8:
            return channels_last(torch.from_numpy(np.array(images)))
        scaled = torch.from_numpy(np.array(images)).to(torch.float32)
        scaled.mul_(1 / (255 * self.deviation)).sub_(self.mean / self.deviation)
        return channels_last(scaled)

    def digest(self) -> str:
        """Hexadecimal digits that stand for everything in it."""
        total = hashlib.sha256()
        for name in (*_ARRAYS, *_TESTS):
            total.update(np.ascontiguousarray(getattr(self, name)).data)
        total.update(f"{self.n_classes} {self.mean!r} {self.deviation!r}".encode())
        return total.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Write the arrays as ``.npy`` files."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*_ARRAYS, *_TESTS):
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)
        numbers = {"n_classes": self.n_classes, "mean": self.mean, "deviation": self.deviation}
        (folder / "numbers.json").write_text(json.dumps(numbers))

    @classmethod
    def load(cls, folder: Path) -> FederatedData:
        """Map saved arrays into memory; pages are shared with other processes that do the same."""
        # "c": private to this process if it were ever written to, which it is not.
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in (*_ARRAYS, *_TESTS)}
        return cls(**arrays, **json.loads((folder / "numbers.json").read_text()))


def federate(
    data: ImageData,
    *,
    n_clients: int,
    alpha: float,
    total: int,
    shift_strength: float,
    test_per_client: int,
    seed: int,
    size_ratio: float = 1.0,
    label_groups: int = 1,
) -> FederatedData:
    """Divide a data set among clients, with label skew, covariate shift, unequal sizes and other labels.

    Parameters
    ----------
    alpha : concentration of the Dirichlet label proportions.
    total : training images in all.
    shift_strength : s; see ``shift``.
    test_per_client : size of each client's balanced and of its matched test set.
    size_ratio : images of the largest client for one of the smallest; see ``partition.client_sizes``.
    label_groups : groups of clients in which labels mean different things; see ``partition.label_meanings``.
    """
    label_rng, image_rng, cluster_rng, change_rng, test_rng, size_rng, meaning_rng = np.random.default_rng(
        [seed, 1]
    ).spawn(7)
    classes = data.n_classes
    sizes = partition.client_sizes(total, n_clients, size_ratio, size_rng)
    counts = partition.dirichlet_counts(sizes, np.bincount(data.labels, minlength=classes), alpha, label_rng)
    train_rows = partition.assign_images(data.labels, counts, image_rng)

    n_clusters = len(shift.clusters(data.images.shape[1])) if shift_strength > 0 else 1
    # As even as possible, in random order.
    cluster = cluster_rng.permutation(np.arange(n_clients) % n_clusters)
    meaning = partition.label_meanings(label_groups, classes, meaning_rng)
    group = meaning_rng.permutation(np.arange(n_clients) % label_groups)
    kind = cluster + n_clusters * group
    held_out = np.bincount(data.holdout_labels, minlength=classes)
    tests = {
        "balanced": partition.balanced_test_counts(n_clients, test_per_client, held_out),
        "matched": partition.matched_test_counts(counts, test_per_client, held_out),
    }
    rows = {
        protocol: partition.draw_test_rows(data.holdout_labels, wanted, test_rng)
        for protocol, wanted in tests.items()
    }
    train_images = np.concatenate(
        [
            shift.transform(data.images[train_rows[k]], int(cluster[k]), shift_strength, change_rng)
            for k in range(n_clients)
        ]
    )
    pool = [shift.transform(data.holdout_images, c, shift_strength) for c in range(n_clusters)]
    labels = [meaning[g][data.labels[mine]] for g, mine in zip(group, train_rows, strict=True)]
    size = len(data.holdout_labels)
    return FederatedData(
        train_images=train_images,
        train_labels=np.concatenate(labels),
        train_edges=edges_of(train_rows),
        test_images=np.concatenate(pool * label_groups),
        test_labels=np.concatenate([np.tile(m[data.holdout_labels], n_clusters) for m in meaning]),
        balanced_rows=np.concatenate([r + size * c for r, c in zip(rows["balanced"], kind, strict=True)]),
        balanced_edges=edges_of(rows["balanced"]),
        matched_rows=np.concatenate([r + size * c for r, c in zip(rows["matched"], kind, strict=True)]),
        matched_edges=edges_of(rows["matched"]),
        cluster=kind,
        n_classes=classes,
        mean=float(data.images.mean() / 255),
        deviation=float(data.images.std() / 255),
    )


def edges_of(rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Where each part begins when all are put one after another, and where the last ends."""
    return np.concatenate([[0], np.cumsum([len(part) for part in rows])]).astype(np.int64)
