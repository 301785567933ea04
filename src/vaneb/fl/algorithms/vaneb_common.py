"""What the VANEB algorithms share: the empirical Bayes step on a round's reports, heads kept by client."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Outputs, Params, Rng, ServerState
from vaneb.fl.personalise_heads import RULES, Rule, shrink_heads
from vaneb.fl.trees import Tree

Shrink = Callable[[ServerState, Outputs], tuple[dict[str, Tensor], Tree]]


def seeded_start(params: Params, rng: Rng) -> ServerState:
    """Parameters, and a seed of the server's own for picking initial atoms."""
    return ServerState(params, memory={"seed": int(rng.integers(2**63))})


def send_own_head(state: ServerState, client: int) -> Tree:
    """The shared network, and the client's head if the server has one for it."""
    heads = state.memory.get("heads", {})
    return {"params": state.params} | ({"head": heads[str(client)]} if str(client) in heads else {})


def empirical_bayes(*, rule: Rule, iterations: int, atoms: int = 10) -> Shrink:
    """The step as a function of a round's outputs, which carry "head", "variance" (of its shape) and "n".

    It returns the posterior mean of what every client reported, by client, and what it found.  Options are
    those of ``personalise_heads.shrink_heads``.
    """
    if rule not in RULES:
        raise InvalidOption(f"rule = {rule!r}: use one of {', '.join(RULES)}.")
    if atoms < 1 or iterations < 0:
        raise InvalidOption(f"atoms = {atoms}, iterations = {iterations}: need one atom, no negative number.")

    def shrink(state: ServerState, outputs: Outputs) -> tuple[dict[str, Tensor], Tree]:
        heads, variances = (
            torch.stack([out[key].to(torch.float64).reshape(-1) for out in outputs.values()])
            for key in ("head", "variance")
        )
        found = shrink_heads(
            heads.numpy(),
            variances.numpy(),
            np.array([float(out["n"]) for out in outputs.values()]),
            rule,
            atoms=atoms,
            iterations=iterations,
            rng=np.random.default_rng([state.memory["seed"], state.round]),
        )
        means = torch.from_numpy(found.means).to(torch.float32)
        info = {
            "clients": torch.tensor(list(outputs)),
            "reported": heads.to(torch.float32),
            "posterior": means,
            "atoms": torch.from_numpy(found.atoms).to(torch.float32),
            "weights": torch.from_numpy(found.weights),
            "responsibilities": torch.from_numpy(found.responsibilities),
        }
        return {
            str(k): mean.reshape(outputs[k]["head"].shape) for k, mean in zip(outputs, means, strict=True)
        }, info

    return shrink
