"""FedRep (Collins et al. 2021, Algorithm 1): the head is fitted to the received body, then the body moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Rng
from vaneb.fl.algorithms.common import chosen, local_training
from vaneb.fl.algorithms.fedper import fedper
from vaneb.fl.network import Network
from vaneb.fl.trees import Tree


def fedrep(network: Network, *, head_epochs: int = 5, **sgd: Any) -> Algorithm:
    """``head_epochs`` on the head with the body fixed, then ``epochs`` on the body with the head fixed.

    At the end every client fits its head to the last body in the same way, as in FedPer.
    """
    train, base = local_training(network, **sgd), fedper(network, head_epochs=head_epochs, **sgd)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        fitted = base.personalize(message, client_state, data, rng)
        params = train(fitted, data, rng, names=network.body_names)
        body, head = (chosen(params, names) for names in (network.body_names, network.head_names))
        return {"body": body, "n": len(data)}, {"head": head}

    return replace(base, client_update=client_update)
