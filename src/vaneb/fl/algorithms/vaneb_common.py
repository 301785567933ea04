"""What the VANEB algorithms share at the server: heads by client, and the empirical Bayes step on outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Outputs, Params, ServerState
from vaneb.fl.personalise_heads import RULES, Rule, shrink_heads
from vaneb.fl.trees import Tree


@dataclass(frozen=True)
class EmpiricalBayes:
    """Settings of the empirical Bayes step; see ``personalise_heads.shrink_heads``."""

    rule: Rule
    atoms: int
    iterations: int

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InvalidOption(f"rule = {self.rule!r}: use one of {', '.join(RULES)}.")
        if self.atoms < 1:
            raise InvalidOption(f"atoms = {self.atoms}: must be at least 1.")
        if self.iterations < 0:
            raise InvalidOption(f"iterations = {self.iterations}: must not be negative.")


def seeded_start(params: Params, rng: np.random.Generator) -> ServerState:
    """Parameters, and a seed of the server's own for picking initial atoms."""
    return ServerState(params, memory={"seed": int(rng.integers(2**63))})


def head_for(state: ServerState, client: int) -> dict[str, Any]:
    """The client's head if the server has one for it."""
    heads = state.memory.get("heads", {})
    return {"head": heads[str(client)]} if str(client) in heads else {}


def shrink_outputs(
    state: ServerState, outputs: Outputs, step: EmpiricalBayes
) -> tuple[dict[str, torch.Tensor], Tree]:
    """Posterior mean of what every client of a round reported, by client, and what the step found.

    Outputs carry "head" (any shape), "variance" (the same shape) and "n".
    """
    shape = next(iter(outputs.values()))["head"].shape
    reported = torch.stack([out["head"].to(torch.float64).reshape(-1) for out in outputs.values()])
    variances = torch.stack([out["variance"].to(torch.float64).reshape(-1) for out in outputs.values()])
    shrunk = shrink_heads(
        reported.numpy(),
        variances.numpy(),
        np.array([float(out["n"]) for out in outputs.values()]),
        step.rule,
        atoms=step.atoms,
        iterations=step.iterations,
        rng=np.random.default_rng([state.memory["seed"], state.round]),
    )
    means = torch.from_numpy(shrunk.means).to(torch.float32)
    heads = {str(client): means[k].reshape(shape) for k, client in enumerate(outputs)}
    info = {
        "clients": torch.tensor(list(outputs)),
        "reported": reported.to(torch.float32),
        "posterior": means,
        "atoms": torch.from_numpy(shrunk.atoms).to(torch.float32),
        "weights": torch.from_numpy(shrunk.weights),
        "responsibilities": torch.from_numpy(shrunk.responsibilities),
    }
    return heads, info
