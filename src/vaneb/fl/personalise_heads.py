"""The server's empirical Bayes step: noisy estimates of many clients in, posterior means out.

This is the procedure inside the VANEB algorithms for networks: the core's pseudo-EM on

    phi_hat_k ~ N(phi_k, Sigma_k(phi_k) / n_k),      phi_k ~ sum_j pi_j delta_{a_j},

with diagonal Sigma_k, either as the client reported it at every atom (``direct``) or a smooth function
of the coordinate fitted to all reports (``coordinate``).

Letters: K clients, m atoms, d parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vaneb.covariance.base import CovarianceFunction
from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Outputs, Params, Rng, ServerState
from vaneb.fl.trees import Tree

Array = NDArray[np.float64]
Rule = Literal["direct", "coordinate"]
RULES: tuple[str, ...] = get_args(Rule)


@dataclass(frozen=True)
class ShrunkHeads:
    """What the empirical Bayes step found."""

    means: Array
    """Posterior means, (K, d)."""
    atoms: Array
    """(m, d)."""
    weights: Array
    """(m,)."""
    responsibilities: Array
    """(K, m)."""


def shrink_heads(
    heads: Array,
    variances: Array,
    n: Array,
    rule: Rule,
    *,
    atoms: int = 10,
    iterations: int = 10,
    rng: np.random.Generator,
) -> ShrunkHeads:
    """Replace every client's estimate by its posterior mean under a prior fitted to all of them.

    Parameters
    ----------
    heads : (K, d)
    variances : (K, d)
        Diagonal of Sigma_k: of one observation, so the estimate's variance is this over n_k.
    n : (K,)
    rule : "direct" or "coordinate".
    atoms : m, at most K; they start at as many different reported heads, picked by ``rng``.
    iterations : pseudo-EM steps S.
    """
    from vaneb.likelihood.gaussian import gaussian_likelihood
    from vaneb.npmle.pseudo_em import pseudo_em
    from vaneb.posterior import posterior
    from vaneb.prior import Prior

    m = min(atoms, len(heads))
    start = heads[np.sort(rng.choice(len(heads), m, replace=False))]
    likelihood = gaussian_likelihood(heads, n, covariance_function(heads, variances, rule))
    fitted_atoms, weights, _ = pseudo_em(likelihood, start, np.full(m, 1 / m), iterations)
    shares = posterior(likelihood, Prior(fitted_atoms, weights)).responsibilities
    # For a discrete prior the posterior mean is a mixture of atoms; said here, because the general form
    # carries d x d matrices, and d may be the number of weights of a network.
    return ShrunkHeads(shares @ fitted_atoms, fitted_atoms, weights, shares)


def covariance_function(heads: Array, variances: Array, rule: Rule) -> CovarianceFunction:
    """Sigma_k(.) of all clients by the rule asked for."""
    from vaneb.covariance.constant import ConstantDiagonal
    from vaneb.covariance.surrogate import LogPolynomialVariance

    if rule == "direct":
        return ConstantDiagonal.from_variances(variances)
    return LogPolynomialVariance.fit(heads, variances)


# ---------------------------------------------------------------- as the algorithms use it

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
    those of ``shrink_heads``.
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
