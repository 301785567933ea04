"""VANEB-GLM: heads as multinomial regressions with one Gaussian population, learnt by all clients together.

Beyond the paper.  On the frozen body of FedAvg, with features h and the client's log-proportions o_k,

    y ~ softmax(Phi_k h + o_k),      vec(Phi_k) ~ N(mu, tau^2 I),

with the exact likelihood.  A round is a step of EM: every client finds the mode of its posterior and the
inverse of its information there (Laplace), the server takes the mean and the spread of what they send.  How
much a head keeps of its own follows from how much the client's images say about it, direction by direction.
A client that comes later needs mu and tau only.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, ServerState
from vaneb.fl.head_training import softmax_residuals
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, features, head_matrix, head_params, load_params
from vaneb.fl.training import check_positive
from vaneb.fl.trees import Tree

#: Newton steps at most, and the improvement of the log posterior below which there are no more.
STEPS, ENOUGH = 20, 1e-4


def vaneb_glm(network: Network, *, spread: float = 0.05) -> Algorithm:
    """EM for mu and tau^2, one step a round; starts from a FedAvg network, whose body stays as it is.

    Parameters
    ----------
    spread : tau^2 in the first round.
    """
    check_positive(spread=spread)

    def init(params: Params, rng: np.random.Generator) -> ServerState:
        return ServerState(params, memory={"spread": spread})

    def broadcast(state: ServerState, client: int) -> Tree:
        return {"params": state.params, "spread": state.memory["spread"]}

    def posterior(message: Tree, data: ClientData) -> tuple[Tensor, float]:
        load_params(network, message["params"])
        seen = features(network, data.images).to(torch.float64)
        offset = log_proportions(data.labels, data.n_classes).to(torch.float64)
        mean = head_matrix(network, message["params"]).to(torch.float64)
        return head_posterior(seen, data.labels, offset, mean, float(message["spread"]))

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        head, variance = posterior(message, data)
        return {"head": head, "variance": variance, "n": len(data)}, client_state

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        heads = torch.stack([out["head"] for out in outputs.values()])
        mean = heads.mean(0)
        within = float(np.mean([out["variance"] for out in outputs.values()]))
        found = float((heads - mean).square().mean()) + within
        params = {**state.params, **head_params(network, mean)}
        return replace(state, params=params, round=state.round + 1, memory={"spread": found}), {
            "spread": found
        }

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        return {**message["params"], **head_params(network, posterior(message, data)[0])}

    return Algorithm(
        init=init,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        personalize=personalize,
        evaluated="the FedAvg body with the client's posterior mode of the head (exact likelihood)",
        adds_label_prior=True,
    )


def head_posterior(
    seen: Tensor, labels: Tensor, offset: Tensor, mean: Tensor, spread: float
) -> tuple[Tensor, float]:
    """Mode of a head (C, F) under N(mean, spread I), and its posterior variance, the mean over entries.

    Parameters
    ----------
    seen : (n, F)
    labels : (n,)
    offset : (C,), added to the logits.
    """

    def loss(head: Tensor) -> float:
        fit = functional.cross_entropy(seen @ head.T + offset, labels, reduction="sum")
        return float(fit + (head - mean).square().sum() / (2 * spread))

    head, value = mean.clone(), loss(mean)
    for _ in range(STEPS):
        gradient = softmax_residuals(head, seen, labels, offset).T @ seen + (head - mean) / spread
        factor = torch.linalg.cholesky(_information(seen, head, offset, spread))
        step = torch.cholesky_solve(gradient.reshape(-1, 1), factor).reshape(head.shape)
        while (tried := loss(head - step)) > value and float(step.abs().max()) > ENOUGH:
            step = step / 2
        gained = value - tried
        if not gained > 0:
            break
        head, value = head - step, tried
        if gained < ENOUGH:
            break
    factor = torch.linalg.cholesky(_information(seen, head, offset, spread))
    return head, float(torch.cholesky_inverse(factor).diagonal().mean())


def _information(seen: Tensor, head: Tensor, offset: Tensor, spread: float) -> Tensor:
    """sum_i (diag p_i - p_i p_i') kron h_i h_i' + I / spread, (CF, CF), block by block."""
    p = torch.softmax(seen @ head.T + offset, 1)
    classes, width = head.shape
    matrix = torch.empty(classes, width, classes, width, dtype=seen.dtype)
    for a in range(classes):
        for b in range(a + 1):
            weight = p[:, a] * (float(a == b) - p[:, b])
            matrix[a, :, b] = matrix[b, :, a] = (weight[:, None] * seen).T @ seen
    flat = matrix.reshape(classes * width, classes * width)
    flat.diagonal().add_(1 / spread)
    return flat
