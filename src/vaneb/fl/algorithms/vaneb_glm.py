"""VANEB-GLM: heads as multinomial regressions under one population of groups, learnt by all clients together.

Beyond the paper.  On the frozen body of FedAvg, with features h and the client's log-proportions o_k,

    y ~ softmax(Phi_k h + o_k),      vec(Phi_k) ~ sum_g w_g N(mu_g, tau^2 I),

with the exact likelihood.  A round is a step of EM: for each group every client finds the mode of its head
and Laplace's marginal likelihood there, the server takes weights and means.  A client's head is its posterior
mean over groups.  How much it keeps of its own follows from how much its images say, direction by direction.
A client that comes later needs the population only.  tau is given, not learnt.

EM finds what is near its start, so several run side by side, each from heads of clients drawn by lot; the
one with the highest likelihood goes on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, Rng, ServerState
from vaneb.fl.head_training import softmax_residuals
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, features, head_matrix, load_params, with_head
from vaneb.fl.training import check_positive
from vaneb.fl.trees import Tree

#: Newton steps in a round, which begins where the last has ended; the most for the network that is kept; and
#: the improvement of the log posterior below which there are no more.
STEPS, MOST_STEPS, ENOUGH = 3, 20, 1e-3
#: Rounds in which all starts go on, after one in which clients send heads of their own; their spread.
SEARCH, OWN_SPREAD = 4, 1.0


def vaneb_glm(network: Network, *, groups: int = 1, starts: int = 5, spread: float = 0.05) -> Algorithm:
    """EM for weights and means, one step a round; starts from a FedAvg network, whose body stays as it is.

    Parameters
    ----------
    groups : of the population, at most; one is a single Gaussian.
    starts : of EM, if there are several groups.
    spread : tau^2.
    """
    check_positive(spread=spread)
    if groups < 1 or starts < 1:
        raise InvalidOption(f"groups = {groups}, starts = {starts}: must be at least 1.")

    def init(params: Params, rng: Rng) -> ServerState:
        only = head_matrix(network, params).to(torch.float64)[None, None]
        memory = {"means": only, "weights": torch.ones(1, 1), "spread": OWN_SPREAD if groups > 1 else spread}
        return ServerState(params, memory={**memory, "lot": int(rng.integers(2**31))})

    def broadcast(state: ServerState, client: int) -> Tree:
        return {"params": state.params, **{key: state.memory[key] for key in ("means", "weights", "spread")}}

    def posteriors(message: Tree, client_state: Tree, data: ClientData, steps: int) -> tuple[Tensor, Tensor]:
        """Heads (starts, groups, C, F) and log marginal likelihoods (starts, groups)."""
        load_params(network, message["params"])
        seen = features(network, data.images).to(torch.float64)
        offset = log_proportions(data.labels, data.n_classes).to(torch.float64)
        means, begin = message["means"], client_state.get("heads")
        if begin is None or begin.shape != means.shape:
            begin = means
        heads, fit = torch.empty_like(means), torch.empty(means.shape[:2], dtype=torch.float64)
        for place in np.ndindex(*means.shape[:2]):
            heads[place], fit[place] = head_posterior(
                seen, data.labels, offset, means[place], float(message["spread"]), begin[place], steps
            )
        return heads, fit

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        heads, fit = posteriors(message, client_state, data, STEPS)
        return {"heads": heads, "fit": fit, "n": len(data)}, {"heads": heads}

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        memory = dict(state.memory)
        heads = torch.stack([out["heads"] for out in outputs.values()])
        fit = torch.stack([out["fit"] for out in outputs.values()]) + memory["weights"].log()
        likelihood = fit.logsumexp(2).sum(0)
        if state.round == 0 and groups > 1:
            lots, k = np.random.default_rng(memory["lot"]), len(heads)
            drawn = [lots.choice(k, groups, replace=k < groups) for _ in range(starts)]
            memory["means"] = torch.stack([heads[rows, 0, 0] for rows in drawn])
            memory["weights"] = torch.full((starts, groups), 1 / groups)
            memory["spread"] = spread
        else:
            shares = torch.softmax(fit, 2)
            weight = shares.sum(0)
            means = torch.einsum("ksg,ksgcf->sgcf", shares, heads) / weight[..., None, None].clamp(min=1e-9)
            empty = (weight < 1e-6)[..., None, None]
            memory["means"] = torch.where(empty, memory["means"], means)
            memory["weights"] = (weight / len(heads)).clamp(min=1e-12).to(torch.float32)
            if state.round == SEARCH:
                best = int(likelihood.argmax())
                memory["means"] = memory["means"][best : best + 1]
                memory["weights"] = memory["weights"][best : best + 1]
        mean = (memory["weights"][0, :, None, None] * memory["means"][0]).sum(0)
        params = with_head(network, state.params, mean)
        info = {"likelihood": float(likelihood.max())}
        return replace(state, params=params, round=state.round + 1, memory=memory), info

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        heads, fit = posteriors(message, client_state, data, MOST_STEPS)
        shares = torch.softmax(fit[0] + message["weights"][0].log(), 0)
        return with_head(network, message["params"], (shares[:, None, None] * heads[0]).sum(0))

    evaluated = "the FedAvg body with the client's posterior mean of the head (exact likelihood)"
    return Algorithm(
        client_update, evaluated, init, broadcast, server_update, personalize, adds_label_prior=True
    )


def head_posterior(
    seen: Tensor,
    labels: Tensor,
    offset: Tensor,
    mean: Tensor,
    spread: float,
    start: Tensor | None = None,
    steps: int = MOST_STEPS,
) -> tuple[Tensor, float]:
    """Mode of a head (C, F) under N(mean, spread I), and Laplace's log marginal likelihood of the labels.

    Parameters
    ----------
    seen : (n, F)
    labels : (n,)
    offset : (C,), added to the logits.
    start : where Newton's steps begin; the mean by default.
    """

    def loss(head: Tensor) -> float:
        fit = functional.cross_entropy(seen @ head.T + offset, labels, reduction="sum")
        return float(fit + (head - mean).square().sum() / (2 * spread))

    head = (mean if start is None else start).clone()
    value = loss(head)
    for _ in range(steps):
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
    return head, -value - float(factor.diagonal().log().sum()) - head.numel() / 2 * float(np.log(spread))


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
