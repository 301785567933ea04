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

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from vaneb.fl.algorithm import ClientData
from vaneb.fl.network import Network
from vaneb.fl.training import check_positive, gradients

#: Bytes that a block of per-sample gradients may take.
GRADIENT_BYTES = 256 << 20
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

    Per-sample gradients are made in blocks of rows, and made again rather than kept where all of them would
    not fit in ``GRADIENT_BYTES``; three times that is what this takes at most, besides torch itself and
    the Gram matrix.
    """
    check_positive(damping=damping)
    gradients = _PerSampleGradients(network, data)
    factor = _factor(_gram_matrix(gradients), damping)
    identity = torch.eye(len(data), dtype=torch.float64)
    flat = _variances(
        _explained(gradients, torch.linalg.solve_triangular(factor, identity, upper=False)), damping
    )
    moving = [network.tensors[name] for name in network.trainable_names]
    parts = flat.split([value.numel() for value in moving])
    return {
        name: part.reshape(value.shape)
        for name, part, value in zip(network.trainable_names, parts, moving, strict=True)
    }


class _PerSampleGradients:
    """G (n, d) in blocks of rows.  In the network's precision, in which the gradients are made."""

    def __init__(self, network: Network, data: ClientData) -> None:
        network.module.eval()
        self._data = data
        self._moving = {name: network.tensors[name].detach() for name in network.trainable_names}

        def loss(params: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(network.module, params, (image.unsqueeze(0),))
            return functional.cross_entropy(scores, label.unsqueeze(0))

        self._network, self._each = network, vmap(grad(loss), in_dims=(None, 0, 0))
        self.size = sum(value.numel() for value in self._moving.values())
        self._like = next(iter(self._moving.values()))
        rows = max(1, min(len(data), GRADIENT_BYTES // (self._like.element_size() * self.size)))
        self.blocks = [slice(start, min(start + rows, len(data))) for start in range(0, len(data), rows)]
        self.columns = [
            slice(start, min(start + COLUMNS, self.size)) for start in range(0, self.size, COLUMNS)
        ]
        self._kept: tuple[slice, Tensor] | None = None

    def kept(self, rows: slice) -> Tensor:
        """Gradients of a block, in memory that the next call writes over."""
        if self._kept is None:
            self._kept = rows, self.fresh(rows)
        elif self._kept[0] != rows:
            self._kept = rows, self.fresh(rows, self._kept[1])
        return self._kept[1][: rows.stop - rows.start]

    def fresh(self, rows: slice, out: Tensor | None = None) -> Tensor:
        """Gradients of a block, written to ``out`` (at least as many rows) if it is given."""
        count = rows.stop - rows.start
        out = torch.empty(count, self.size, dtype=self._like.dtype) if out is None else out
        for start in range(0, count, ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, count)
            some = slice(rows.start + start, rows.start + stop)
            images, labels = self._data.images[some].contiguous(), self._data.labels[some]
            try:
                place = self._network.device
                parts = self._each(self._moving, images.to(place), labels.to(place))
            except RuntimeError:  # a layer that cannot be mapped over rows, as recurrent ones cannot
                parts = self._row_by_row(images, labels)
            flat = [parts[name].flatten(1).cpu() for name in self._moving]
            torch.cat(flat, dim=1, out=out[start:stop])
        return out

    def _row_by_row(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        moving = [self._network.tensors[name] for name in self._moving]
        rows = [
            gradients(self._network, image[None], label[None], moving)
            for image, label in zip(images, labels, strict=True)
        ]
        return dict(zip(self._moving, map(torch.stack, zip(*rows, strict=True)), strict=True))


def _gram_matrix(gradients: _PerSampleGradients) -> Tensor:
    """G G', (n, n)."""
    n = gradients.blocks[-1].stop
    gram = torch.zeros(n, n, dtype=torch.float64)
    other: Tensor | None = None
    for i, left_rows in enumerate(gradients.blocks):
        left = gradients.kept(left_rows)
        for right_rows in gradients.blocks[: i + 1]:
            if right_rows == left_rows:
                right = left
            else:
                other = right = gradients.fresh(right_rows, other)
            product = gram[left_rows, right_rows]
            for columns in gradients.columns:
                product += left[:, columns].to(torch.float64) @ right[:, columns].to(torch.float64).T
            gram[right_rows, left_rows] = product.T.clone()
    return gram


def _explained(gradients: _PerSampleGradients, inverse_factor: Tensor) -> Tensor:
    """Squared lengths of the columns of L^{-1} G, (d,): the diagonal of G' (n lambda I + G G')^{-1} G."""
    explained = torch.zeros(gradients.size, dtype=torch.float64)
    whitened = torch.empty(gradients.blocks[0].stop, gradients.size, dtype=torch.float64)
    for i, out_rows in enumerate(gradients.blocks):
        block_sum = whitened[: out_rows.stop - out_rows.start].zero_()
        # L is lower triangular, so only blocks up to i enter.
        for in_rows in gradients.blocks[: i + 1]:
            block, weights = gradients.kept(in_rows), inverse_factor[out_rows, in_rows]
            for columns in gradients.columns:
                block_sum[:, columns] += weights @ block[:, columns].to(torch.float64)
        for columns in gradients.columns:
            explained[columns] += block_sum[:, columns].square().sum(0)
    return explained


def _factor(gram: Tensor, damping: float) -> Tensor:
    """Cholesky factor of n lambda I + G G'."""
    shifted = gram.clone()
    shifted.diagonal().add_(len(gram) * damping)
    return torch.linalg.cholesky(shifted)


def _variances(explained: Tensor, damping: float) -> Tensor:
    """1/lambda (1 - explained); rounding must not take it to zero."""
    return (1 - explained).clamp(min=torch.finfo(torch.float64).eps) / damping
