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

import tempfile

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from vaneb.fl.algorithm import ClientData
from vaneb.fl.network import Network
from vaneb.fl.training import check_positive, gradients

#: Rows whose gradients torch makes in one go, and parameters whose gradients are doubles at a time: pieces
#: that are small enough for memory to be used again instead of being asked for anew.
ROWS_AT_ONCE = 8
COLUMNS = 1 << 13


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

    Per-sample gradients, n x d numbers, are kept in a temporary file: the system leaves them in memory where
    there is room.
    """
    check_positive(damping=damping)
    moving = [network.tensors[name] for name in network.trainable_names]
    sizes = [value.numel() for value in moving]
    with tempfile.TemporaryFile(prefix="vaneb-") as file:
        rows = torch.from_numpy(np.memmap(file, np.float32, "w+", shape=(len(data), sum(sizes))))
        for start in range(0, len(data), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            rows[some] = row_gradients(network, data.images[some], data.labels[some])
        blocks = [slice(start, start + COLUMNS) for start in range(0, sum(sizes), COLUMNS)]
        gram = torch.zeros(len(data), len(data), dtype=torch.float64)
        for block in blocks:
            part = rows[:, block].to(torch.float64)
            gram.addmm_(part, part.T)
        factor = _factor(gram, damping)
        explained = torch.empty(sum(sizes), dtype=torch.float64)
        for block in blocks:
            part = torch.linalg.solve_triangular(factor, rows[:, block].to(torch.float64), upper=False)
            explained[block] = part.square_().sum(0)
    parts = _variances(explained, damping).split(sizes)
    return {
        name: part.reshape(value.shape)
        for name, part, value in zip(network.trainable_names, parts, moving, strict=True)
    }


def row_gradients(network: Network, images: Tensor, labels: Tensor) -> Tensor:
    """Gradients of each row's loss in all trainable parameters, one after another: (rows, d)."""
    network.module.eval()
    moving = {name: network.tensors[name].detach() for name in network.trainable_names}

    def loss(params: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(network.module, params, (image.unsqueeze(0),))
        return functional.cross_entropy(scores, label.unsqueeze(0))

    try:
        each = vmap(grad(loss), in_dims=(None, 0, 0))
        found = each(moving, images.contiguous().to(network.device), labels.to(network.device))
        return torch.cat([part.flatten(1).cpu() for part in found.values()], dim=1)
    except RuntimeError:  # a layer that cannot be mapped over rows, as recurrent ones cannot
        live = [network.tensors[name] for name in network.trainable_names]
        one_by_one = [
            gradients(network, image[None], label[None], live)
            for image, label in zip(images, labels, strict=True)
        ]
        return torch.stack([torch.cat([part.flatten().cpu() for part in row]) for row in one_by_one])


def _factor(gram: Tensor, damping: float) -> Tensor:
    """Cholesky factor of n lambda I + G G'."""
    shifted = gram.clone()
    shifted.diagonal().add_(len(gram) * damping)
    return torch.linalg.cholesky(shifted)


def _variances(explained: Tensor, damping: float) -> Tensor:
    """1/lambda (1 - explained); rounding must not take it to zero."""
    return (1 - explained).clamp(min=torch.finfo(torch.float64).eps) / damping
