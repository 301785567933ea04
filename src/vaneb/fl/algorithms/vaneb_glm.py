"""VANEB-GLM: heads as multinomial regressions under one population, learnt by all clients together.

Beyond the paper.  On the frozen body of FedAvg, with features h and the client's log-proportions o_k,

    y ~ softmax(Phi_k h + o_k),      vec(Phi_k) ~ sum_g w_g N(mu_g, tau^2 I),

with the exact likelihood.  A round is a step of EM: for each group every client finds the mode of its head
and its height there, the server takes weights and means, and goes a step further in the direction in which
the means have moved (Nesterov's).  A client's head is the mean of its modes over groups.  How much it keeps
of its own follows from how much its images say, direction by direction.  A client that comes later needs the
population only.

How many groups there are and how wide they are is learnt too.  Candidates for the population run side by
side: each number of groups up to ``groups``, from several starts (heads of clients drawn by lot), with each
spread.  In these rounds every client keeps a fifth of its images aside.  Candidates then count by how likely
they made the labels kept aside; those that count for nothing are dropped, and the rest go on with all images.
What a client uses is the mean of its heads: of one candidate where images tell which, of many where not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, Rng, ServerState
from vaneb.fl.algorithms.common import set_aside
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, features, head_matrix, load_params, with_head
from vaneb.fl.training import check_positive
from vaneb.fl.trees import Tree

#: Newton steps in a round, which begins where the last has ended, and for the network that is kept; the gain
#: in the log posterior below which there are no more; the most steps of conjugate gradients in each.
STEPS, MOST_STEPS, ENOUGH, DIRECTIONS = 2, 20, 1e-3, 20
#: Rounds in which all candidates go on, after one in which clients send heads of their own; their spread; the
#: share of images kept aside in them; the least that a candidate has to count for afterwards.
SEARCH, OWN_SPREAD, ASIDE, LEAST = 5, 1.0, 0.2, 0.01


def vaneb_glm(
    network: Network, *, groups: int = 4, starts: int = 3, spreads: Sequence[float] = (0.1, 0.3)
) -> Algorithm:
    """EM for populations, one step a round; starts from a FedAvg network, whose body stays as it is.

    Parameters
    ----------
    groups : of the population, at most; with one every candidate is a single Gaussian.
    starts : of EM, for each number of groups above one.
    spreads : values of tau^2 that are tried.
    """
    check_positive(**{f"spreads[{i}]": spread for i, spread in enumerate(spreads)})
    if groups < 1 or starts < 1 or not spreads:
        raise InvalidOption(f"groups = {groups}, starts = {starts}, spreads = {spreads}: at least 1 of each.")
    several = groups > 1 or len(spreads) > 1

    def init(params: Params, rng: Rng) -> ServerState:
        shared, spread = head_matrix(network, params)[None], OWN_SPREAD if several else float(spreads[0])
        candidate = _population([shared], [spread])
        return ServerState(params, memory={**candidate, "lot": int(rng.integers(2**31))})

    def broadcast(state: ServerState, client: int) -> Tree:
        sent = {key: state.memory[key] for key in ("means", "weights", "spread", "owner", "credit")}
        return {"params": state.params, **sent, "aside": several and state.round <= SEARCH}

    def fitted(message: Tree, start: Tensor | None, data: ClientData, steps: int) -> tuple[Tensor, Tensor]:
        """Modes (B, C, F) in all B groups of all candidates, and the logarithms of weight times height."""
        load_params(network, message["params"])
        offset = log_proportions(data.labels, data.n_classes)
        if start is None or start.shape != message["means"].shape:
            start = message["means"]
        seen = features(network, data.images)
        heads, height = head_modes(
            seen, data.labels, offset, message["means"], message["spread"], start, steps
        )
        return heads, height + message["weights"].log()

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        kept, aside = set_aside(data, ASIDE) if message["aside"] else (data, None)
        heads, fit = fitted(message, client_state.get("heads"), kept, STEPS)
        output = {"heads": heads, "fit": fit, "n": len(data)}
        if aside is not None:
            offset = log_proportions(kept.labels, data.n_classes)
            scores = torch.einsum("nf,bcf->bcn", features(network, aside.images), heads) + offset[:, None]
            labels = aside.labels.expand(len(heads), -1)
            found = -functional.cross_entropy(scores, labels, reduction="none").sum(1)
            output["found"] = _within(message["owner"], fit + found) - _within(message["owner"], fit)
        return output, {"heads": heads}

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        memory, owner = dict(state.memory), state.memory["owner"]
        heads, fit = (torch.stack([out[key] for out in outputs.values()]) for key in ("heads", "fit"))
        if state.round == 0 and several:
            memory |= drawn(heads[:, 0], head_matrix(network, state.params), memory["lot"])
        else:
            shares = torch.exp(fit - _within(owner, fit)[:, owner])
            weight = shares.sum(0)
            means = torch.einsum("kb,kbcf->bcf", shares, heads) / weight[:, None, None].clamp(min=1e-9)
            means = torch.where((weight < 1e-6)[:, None, None], memory["behind"], means)
            ahead = max(0, state.round - several * (1 if state.round <= SEARCH else SEARCH + 1))
            memory["means"] = means + ahead / (ahead + 3) * (means - memory["behind"])
            memory["behind"], memory["weights"] = means, (weight / len(heads)).clamp(min=1e-12)
            if state.round == SEARCH and several:
                total = torch.stack([out["found"] for out in outputs.values()]).sum(0)
                memory |= _pruned(memory, torch.log_softmax(total, 0))
        share = torch.softmax(memory["credit"], 0)[memory["owner"]] * memory["weights"]
        params = with_head(network, state.params, torch.einsum("b,bcf->cf", share, memory["behind"]))
        info = {"likelihood": float(_within(owner, fit).sum(0).max()), "candidates": len(memory["credit"])}
        return replace(state, params=params, round=state.round + 1, memory=memory), info

    def drawn(heads: Tensor, shared: Tensor, lot: int) -> Tree:
        """All candidates, started at heads of clients (K, C, F)."""
        rng, k = np.random.default_rng(lot), len(heads)
        means = [shared[None]]
        for number in range(2, groups + 1):
            means += [heads[rng.choice(k, number, replace=k < number)] for _ in range(starts)]
        return _population(means * len(spreads), [spread for spread in spreads for _ in means])

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        heads, fit = fitted(message, client_state.get("heads"), data, MOST_STEPS)
        owner = message["owner"]
        share = torch.exp(fit - _within(owner, fit)[owner]) * torch.softmax(message["credit"], 0)[owner]
        return with_head(network, message["params"], torch.einsum("b,bcf->cf", share, heads))

    evaluated = "the FedAvg body with the client's posterior mode of the head (exact likelihood)"
    return Algorithm(
        client_update, evaluated, init, broadcast, server_update, personalize, adds_label_prior=True
    )


def _population(means: Sequence[Tensor], spreads: Sequence[float]) -> dict[str, Tensor]:
    """Candidates, one for each entry of ``means`` (groups, C, F), group after group."""
    sizes = torch.tensor([len(part) for part in means])
    owner = torch.repeat_interleave(torch.arange(len(means)), sizes)
    stacked = torch.cat(list(means))
    return {
        "means": stacked,
        "behind": stacked,
        "weights": (1 / sizes)[owner],
        "spread": torch.tensor(spreads, dtype=torch.float32)[owner],
        "owner": owner,
        "credit": torch.zeros(len(means)),
    }


def _pruned(memory: Tree, credit: Tensor) -> dict[str, Tensor]:
    """The candidates that count for something, numbered anew; their means start from where they are."""
    stays = credit >= np.log(LEAST)
    rows = stays[memory["owner"]]
    left = {key: memory[key][rows] for key in ("behind", "weights", "spread")}
    number = stays.cumsum(0) - 1
    return {**left, "means": left["behind"], "owner": number[memory["owner"][rows]], "credit": credit[stays]}


def _within(owner: Tensor, values: Tensor) -> Tensor:
    """log sum exp over the groups of each candidate: (..., B) to (..., candidates)."""
    return torch.stack([values[..., owner == c].logsumexp(-1) for c in range(int(owner.max()) + 1)], -1)


@torch.inference_mode()
def head_modes(
    seen: Tensor,
    labels: Tensor,
    offset: Tensor,
    means: Tensor,
    spread: Tensor,
    start: Tensor | None = None,
    steps: int = MOST_STEPS,
) -> tuple[Tensor, Tensor]:
    """Modes (B, C, F) of a head under N(mean_b, spread_b I), and log posteriors there, up to a constant.

    By Newton's method, each step by conjugate gradients: no matrix of the size of a head is formed.

    Parameters
    ----------
    seen : (n, F)
    labels : (n,)
    offset : (C,), added to the logits.
    means, start : (B, C, F); Newton's steps begin at the means by default.
    spread : (B,)
    """
    truth = functional.one_hot(labels, len(offset)).to(seen.dtype)
    wide = spread[:, None, None]

    def scores(heads: Tensor) -> Tensor:
        return (seen @ heads.flatten(0, 1).T).unflatten(1, heads.shape[:2]).movedim(1, 0)

    def back(rows: Tensor) -> Tensor:
        """sum_i r_bi h_i', (B, C, F), for rows (B, n, C)."""
        return (rows.movedim(1, 2).flatten(0, 1) @ seen).unflatten(0, (len(rows), -1))

    def height(heads: Tensor) -> Tensor:
        fit = (torch.log_softmax(scores(heads) + offset, 2) * truth).sum((1, 2))
        return fit - ((heads - means).square() / (2 * wide)).sum((1, 2))

    def curved(p: Tensor, direction: Tensor) -> Tensor:
        moved = p * scores(direction)
        return back(moved - p * moved.sum(2, keepdim=True)) + direction / wide

    heads = (means if start is None else start).clone()
    value = height(heads)
    for _ in range(steps):
        p = torch.softmax(scores(heads) + offset, 2)
        step = _conjugate(partial(curved, p), back(p - truth) + (heads - means) / wide)
        size = torch.ones_like(value)
        for _ in range(10):
            tried = height(heads - size[:, None, None] * step)
            if (tried >= value).all():
                break
            size = torch.where(tried < value, size / 2, size)
        better = tried > value
        heads = torch.where(better[:, None, None], heads - size[:, None, None] * step, heads)
        gained, value = (tried - value).max(), torch.where(better, tried, value)
        if gained < ENOUGH:
            break
    return heads.clone(), value.clone()


def _conjugate(matrix: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Solve matrix(x) = right, (B, C, F), for each b, to a hundredth of the length of ``right``."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((1, 2), keepdim=True)

    x, residual, direction = torch.zeros_like(right), right, right
    length = first = dot(right, right).clamp(min=1e-30)
    for _ in range(DIRECTIONS):
        image = matrix(direction)
        rate = length / dot(direction, image).clamp(min=1e-30)
        x, residual = x + rate * direction, residual - rate * image
        before, length = length, dot(residual, residual).clamp(min=1e-30)
        if (length <= 1e-4 * first).all():
            break
        direction = residual + length / before * direction
    return x
