"""Who gets which images: label proportions by Dirichlet(alpha), a fixed total split evenly or unevenly.

Every client k draws proportions p_k ~ Dirichlet(alpha, ..., alpha) and asks for n_k images with labels
~ p_k.  A class may be asked for more often than it has images.  Then the wishes for that class are met
for a random part of them, the class is closed, and the clients left short ask again among the open
classes.  Every pass closes a class or meets all wishes, so there are at most C + 1 passes; no client
goes first, and nothing is drawn again and again until it fits.

Letters: K clients, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption

Integers = NDArray[np.int64]


def client_sizes(total: int, n_clients: int, ratio: float, rng: np.random.Generator) -> Integers:
    """``total`` split into K sizes, evenly spaced in the logarithm, the largest ``ratio`` times the smallest.

    In random order; with a ratio of one they differ by at most one.
    """
    even = even_sizes(total, n_clients)  # refuses what cannot be split
    if ratio == 1:
        return even
    shares = ratio ** np.linspace(0, 1, n_clients)
    edges = np.round(np.concatenate([[0.0], np.cumsum(shares / shares.sum())]) * total).astype(np.int64)
    sizes = np.diff(edges)
    if sizes.min() < 1:
        raise InvalidOption(
            f"size_ratio = {ratio:g} with total = {total} images leaves clients without any. Use a smaller "
            "ratio, fewer clients or more images."
        )
    return rng.permutation(sizes)


def even_sizes(total: int, n_clients: int) -> Integers:
    """``total`` split into K sizes that differ by at most one."""
    if total < n_clients:
        raise InvalidOption(
            f"clients = {n_clients} with total = {total} images leaves clients without any. "
            "Use fewer clients or more images."
        )
    sizes = np.full(n_clients, total // n_clients, dtype=np.int64)
    sizes[: total % n_clients] += 1
    return sizes


def dirichlet_counts(
    sizes: Integers, available: Integers, alpha: float, rng: np.random.Generator
) -> Integers:
    """How many images of each class every client gets, shape (K, C).

    Parameters
    ----------
    sizes : (K,), images per client.
    available : (C,), images per class.
    alpha : concentration; small is skewed.
    """
    if sizes.sum() > available.sum():
        raise InvalidOption(
            f"total = {sizes.sum()} images asked for, but the data set has {available.sum()}."
        )
    proportions = rng.dirichlet(np.full(len(available), alpha), size=len(sizes))
    counts = np.zeros(proportions.shape, dtype=np.int64)
    left = available.astype(np.int64).copy()
    while (short := sizes - counts.sum(1)).any():
        wishes = rng.multinomial(short, _over_open_classes(proportions, left))
        for c in np.flatnonzero(wishes.sum(0) > left):
            wishes[:, c] = rng.multivariate_hypergeometric(wishes[:, c], left[c])
        counts += wishes
        left -= wishes.sum(0)
    return counts


def _over_open_classes(proportions: NDArray[np.float64], left: Integers) -> NDArray[np.float64]:
    """Proportions among classes with images left; by what is left where a client wants none of them."""
    wanted = np.where(left > 0, proportions, 0.0)
    mass = wanted.sum(1, keepdims=True)
    spare = left / max(left.sum(), 1)
    return np.where(mass > 0, wanted / np.where(mass > 0, mass, 1.0), spare)


def label_meanings(n_groups: int, n_classes: int, rng: np.random.Generator) -> Integers:
    """What class c is called in each group of clients, shape (groups, C); the first group keeps the names."""
    return np.stack([np.arange(n_classes), *(rng.permutation(n_classes) for _ in range(n_groups - 1))])


def assign_images(labels: Integers, counts: Integers, rng: np.random.Generator) -> list[Integers]:
    """Row numbers of every client's images, no image twice; ``counts`` (K, C) says how many of each class."""
    assigned: list[list[Integers]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == c))
        edges = np.concatenate([[0], np.cumsum(counts[:, c])])
        for k, parts in enumerate(assigned):
            parts.append(rows[edges[k] : edges[k + 1]])
    return [rng.permutation(np.concatenate(parts)) for parts in assigned]


def balanced_test_counts(n_clients: int, size: int, available: Integers) -> Integers:
    """The same number of test images of every class, shape (K, C)."""
    per_class = size // len(available)
    if per_class < 1 or per_class > available.min():
        raise InvalidOption(
            f"test_per_client = {size}: a balanced test set needs between {len(available)} (one image of "
            f"each class) and {len(available) * int(available.min())} images."
        )
    return np.full((n_clients, len(available)), per_class, dtype=np.int64)


def matched_test_counts(train_counts: Integers, size: int, available: Integers) -> Integers:
    """Test images in the proportions of each client's training labels, shape (K, C).

    Rounded by largest remainders.  Where a class has too few held-out images for ``size``, that client's
    test set is as large as the proportions allow.
    """
    share = train_counts / train_counts.sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        room = np.where(share > 0, available / share, np.inf).min(1)
    sizes = np.minimum(size, np.floor(room)).astype(np.int64)
    exact = share * sizes[:, None]
    counts = np.floor(exact).astype(np.int64)
    for k, missing in enumerate(sizes - counts.sum(1)):
        counts[k, np.argsort(counts[k] - exact[k], kind="stable")[:missing]] += 1
    return counts


def draw_test_rows(labels: Integers, counts: Integers, rng: np.random.Generator) -> list[Integers]:
    """Held-out rows for every client, no row twice within a client; clients may share rows."""
    by_class = [np.flatnonzero(labels == c) for c in range(counts.shape[1])]
    return [
        np.concatenate([rng.choice(by_class[c], int(row[c]), replace=False) for c in range(len(row))])
        for row in counts
    ]
