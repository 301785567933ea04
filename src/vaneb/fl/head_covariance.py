"""What a client knows of its own network: the covariance of its parameters from per-sample gradients.

With gradients g_i of the loss of row i (rows of G, n x d) and damping lambda > 0,

    Sigma = diag[ (1/n sum_i g_i g_i' + lambda I)^{-1} ],

the diagonal *of the inverse*.  No d x d matrix is formed: by Woodbury's identity

    (G'G / n + lambda I)^{-1} = 1/lambda [ I - G' (n lambda I + G G')^{-1} G ],

so only the n x n Gram matrix G G' is factorised.  For a linear softmax head with features h_i (a one
appended) and residuals r_i = softmax - label, the gradient is r_i h_i' and the Gram matrix is
(R R') * (H H') elementwise: not even the gradients are formed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from vaneb.fl.algorithm import ClientData
from vaneb.fl.network import Network
from vaneb.fl.training import check_positive

#: Bytes that a block of per-sample gradients may take.
GRADIENT_BYTES = 256 << 20


def head_variances(residuals: Tensor, seen: Tensor, damping: float) -> Tensor:
    """Sigma of a linear softmax head.

    Parameters
    ----------
    residuals : (n, C)
        softmax minus one-hot label.
    seen : (n, F)
        Features, with the one of the bias.
    damping : lambda.

    Returns
    -------
    float64 tensor (C, F), in the shape of the head matrix [W | b].
    """
    check_positive(damping=damping)
    r, h = residuals.to(torch.float64), seen.to(torch.float64)
    if len(r) > r.shape[1] * h.shape[1]:
        # Fewer parameters than rows: the d x d matrix itself is the smaller one.
        information = _head_information(r, h)
        information.diagonal().add_(damping)
        variances = torch.cholesky_inverse(torch.linalg.cholesky(information)).diagonal()
        return variances.reshape(r.shape[1], h.shape[1])
    factor = _factor((r @ r.T) * (h @ h.T), damping)
    # Column by column, ||L^{-1} G||^2 is the diagonal of G' (n lambda I + G G')^{-1} G; the columns of G
    # that belong to class c are r_ic h_i.
    explained = [
        torch.linalg.solve_triangular(factor, r[:, c, None] * h, upper=False).square().sum(0)
        for c in range(r.shape[1])
    ]
    return _variances(torch.stack(explained), damping)


def _head_information(r: Tensor, h: Tensor) -> Tensor:
    """1/n sum_i (r_i r_i') kron (h_i h_i'), class by class."""
    classes = range(r.shape[1])
    rows = [torch.cat([(r[:, a, None] * r[:, b, None] * h).T @ h for b in classes], dim=1) for a in classes]
    return torch.cat(rows) / len(r)


def parameter_variances(network: Network, data: ClientData, damping: float) -> dict[str, Tensor]:
    """Sigma of every trainable parameter of a network at its present values, by name (float64).

    Per-sample gradients are made in blocks of rows; a block is made again rather than kept when all of
    them would not fit in ``GRADIENT_BYTES``.
    """
    check_positive(damping=damping)
    block_gradients, size = _per_sample_gradients(network, data)
    n = len(data)
    rows = max(1, min(n, GRADIENT_BYTES // (8 * size)))
    blocks = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
    kept = {0: block_gradients(blocks[0])} if len(blocks) == 1 else {}

    def block(index: int) -> Tensor:
        return kept[index] if index in kept else block_gradients(blocks[index])

    gram = torch.empty(n, n, dtype=torch.float64)
    for i, left_rows in enumerate(blocks):
        left = block(i)
        for j in range(i + 1):
            product = left @ (left if i == j else block(j)).T
            gram[left_rows, blocks[j]] = product
            gram[blocks[j], left_rows] = product.T
    inverse_factor = torch.linalg.solve_triangular(
        _factor(gram, damping), torch.eye(n, dtype=torch.float64), upper=False
    )
    explained = torch.zeros(size, dtype=torch.float64)
    for i, out_rows in enumerate(blocks):
        # Rows of L^{-1} G; L is lower triangular, so only blocks up to i enter.
        whitened = sum(inverse_factor[out_rows, blocks[j]] @ block(j) for j in range(i + 1))
        explained += whitened.square().sum(0)  # type: ignore[union-attr]
    flat = _variances(explained, damping)
    moving = [network.tensors[name] for name in network.trainable_names]
    parts = flat.split([value.numel() for value in moving])
    return {
        name: part.reshape(value.shape)
        for name, part, value in zip(network.trainable_names, parts, moving, strict=True)
    }


def _factor(gram: Tensor, damping: float) -> Tensor:
    """Cholesky factor of n lambda I + G G'."""
    shifted = gram.clone()
    shifted.diagonal().add_(len(gram) * damping)
    return torch.linalg.cholesky(shifted)


def _variances(explained: Tensor, damping: float) -> Tensor:
    """1/lambda (1 - explained); rounding must not take it to zero."""
    return (1 - explained).clamp(min=torch.finfo(torch.float64).eps) / damping


def _per_sample_gradients(network: Network, data: ClientData) -> tuple[Callable[[slice], Tensor], int]:
    """A function from rows to their gradients (rows, d) in float64, and d."""
    network.module.eval()
    moving = {name: network.tensors[name].detach() for name in network.trainable_names}

    def loss(params: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(network.module, params, (image.unsqueeze(0),))
        return functional.cross_entropy(scores, label.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def block(rows: slice) -> Tensor:
        parts = each(moving, data.images[rows].contiguous(), data.labels[rows])
        return torch.cat([parts[name].flatten(1) for name in moving], dim=1).to(torch.float64)

    return block, sum(value.numel() for value in moving.values())
