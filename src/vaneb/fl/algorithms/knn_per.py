"""kNN-Per (Marfoq et al. 2022): the shared network's vote mixed with that of a client's nearest images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.fedavg import fedavg
from vaneb.fl.network import Network, features, head_matrix, load_params


def knn_per(network: Network, *, neighbours: int = 10, share: float = 0.5, **sgd: Any) -> Algorithm:
    """FedAvg; a client predicts share * (its k nearest images' labels) + (1 - share) * softmax.

    Parameters
    ----------
    neighbours : k; weights exp(-distance) between features.  The unit is the median distance of the client's
        own images to their nearest k, so that what an image gets does not depend on others asked for with it.
    share : lambda in [0, 1].
    """
    if neighbours < 1 or not 0 <= share <= 1:
        raise InvalidOption(f"neighbours = {neighbours}, share = {share}: need at least 1, and 0 to 1.")

    def predict(params: Params, data: ClientData, images: Tensor) -> Tensor:
        load_params(network, params)
        seen, known = features(network, images), features(network, data.images)
        # The nearest of an image that the client has is that image itself.
        own = torch.cdist(known, known).topk(min(neighbours + 1, len(data)), largest=False).values[:, 1:]
        unit = own.median().clamp(min=1e-12) if own.numel() else 1.0
        distance, nearest = torch.cdist(seen, known).topk(min(neighbours, len(data)), largest=False)
        weights = torch.softmax(-distance / unit, dim=1)
        votes = functional.one_hot(data.labels[nearest], data.n_classes) * weights[..., None]
        shares = torch.softmax(seen @ head_matrix(network, params).T, dim=1)
        return torch.log(share * votes.sum(1) + (1 - share) * shares + 1e-12)

    evaluated = "the server's network mixed with the client's nearest images"
    return replace(fedavg(network, **sgd), predict=predict, evaluated=evaluated)
