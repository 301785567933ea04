"""VANEB-FT: after FedAvg every client fine-tunes the head; one empirical Bayes step denoises all heads.

With ``adjusted`` it is VANEB-LA, which is beyond the paper.  Fine-tuning on a client's skewed labels teaches
its head two things at once: what the client's images look like and which labels it has many of.  The second
is known to the client exactly, so it need not be estimated, averaged over clients or undone: the loss is that
of the logits *plus* the client's smoothed log-proportions, and so are the gradients in Sigma_k.  What remains
in the head is what heads have in common.  One personalised model then has two operating points: as it is for
balanced labels, with the client's log-proportions added for labels like its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Rng, ServerState, of_cohorts
from vaneb.fl.algorithms.common import head_tuning, own_head
from vaneb.fl.head_covariance import head_variances
from vaneb.fl.network import Network
from vaneb.fl.personalise_heads import Rule, empirical_bayes, seeded_start, send_own_head
from vaneb.fl.trees import Tree


def vaneb_ft(
    network: Network,
    *,
    rule: Rule,
    damping: float,
    iterations: int,
    atoms: int = 10,
    adjusted: bool = False,
    prior_count: float | None = None,
    **sgd: Any,
) -> Algorithm:
    """One round with all clients, started from a FedAvg network; the body stays as it is.

    Parameters
    ----------
    rule : "direct" or "coordinate": how Sigma_k(.) is had from what client k reports.
    damping : lambda in Sigma_k.
    iterations : pseudo-EM steps S.
    adjusted : fine-tune on logits plus the client's log-proportions.
    prior_count : m, a number of images; None, as in the paper, leaves every client its posterior mean.
        Otherwise the atoms have a Gaussian spread: row c of a head is known to its client from the n_kc
        images of class c, so with a noise of sigma^2 / n_kc and a spread of sigma^2 / m its posterior mean
        keeps the share t_c = n_kc / (n_kc + m) of the client's own row and 1 - t_c of the mean over atoms.
    """
    shrink = empirical_bayes(rule=rule, iterations=iterations, atoms=atoms)
    tune = head_tuning(network, adjusted=adjusted, **sgd)

    def cohort_update(
        message: Tree, clients: Sequence[ClientData], client_states: Sequence[Tree], rngs: Sequence[Rng]
    ) -> list[tuple[Tree, Tree]]:
        tuned = tune(message["params"], clients, rngs)
        return [
            (
                {"head": head, "variance": head_variances(residuals, seen, damping), "n": len(data)},
                state if prior_count is None else {"head": head},
            )
            for data, state, head, seen, residuals in zip(clients, client_states, *tuned, strict=True)
        ]

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        heads, info = shrink(state, outputs)
        return replace(state, round=state.round + 1, memory={**state.memory, "heads": heads}), info

    return of_cohorts(
        cohort_update,
        evaluated=f"the FedAvg body with the client's posterior mean head ({rule} covariance"
        + (")" if prior_count is None else f", spread of {prior_count:g} images)"),
        init=seeded_start,
        broadcast=send_own_head,
        server_update=server_update,
        personalize=own_head(network, prior_count),
        adds_label_prior=adjusted,
    )


def vaneb_la(network: Network, **options: Any) -> Algorithm:
    """VANEB-FT with logit-adjusted fine-tuning."""
    return vaneb_ft(network, adjusted=True, **options)
