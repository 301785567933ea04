"""The registry of algorithms: a dictionary of constructors.

A constructor takes a ``Network`` and plain options (numbers and strings) and returns an ``Algorithm``.
An algorithm of one's own needs no entry here: name it as ``"module:constructor"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm
from vaneb.fl.algorithms.ditto import ditto
from vaneb.fl.algorithms.fedala import fedala
from vaneb.fl.algorithms.fedavg import fedavg
from vaneb.fl.algorithms.fedavg_ft import fedavg_ft, fedavg_ft_all
from vaneb.fl.algorithms.fedavg_prior import fedavg_prior
from vaneb.fl.algorithms.fedbabu import fedbabu
from vaneb.fl.algorithms.fedper import fedper
from vaneb.fl.algorithms.fedprox import fedprox
from vaneb.fl.algorithms.fedrep import fedrep
from vaneb.fl.algorithms.fedrod import fedrod
from vaneb.fl.algorithms.knn_per import knn_per
from vaneb.fl.algorithms.lg_fedavg import lg_fedavg
from vaneb.fl.algorithms.local_only import local_only
from vaneb.fl.algorithms.mean_heads import mean_heads
from vaneb.fl.algorithms.per_fedavg import per_fedavg
from vaneb.fl.algorithms.pfedme import pfedme
from vaneb.fl.algorithms.scaffold import scaffold
from vaneb.fl.algorithms.vaneb_ft import vaneb_ft, vaneb_la
from vaneb.fl.algorithms.vaneb_full import vaneb_full
from vaneb.fl.algorithms.vaneb_glm import vaneb_glm
from vaneb.fl.algorithms.vaneb_head import vaneb_head
from vaneb.fl.naming import look_up
from vaneb.fl.network import Network

#: Named like their functions.
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    each.__name__: each
    for each in (
        fedavg,
        fedavg_ft,
        fedavg_ft_all,
        fedavg_prior,
        mean_heads,
        fedprox,
        fedper,
        fedrep,
        fedbabu,
        lg_fedavg,
        per_fedavg,
        scaffold,
        ditto,
        pfedme,
        fedrod,
        fedala,
        knn_per,
        local_only,
        vaneb_ft,
        vaneb_glm,
        vaneb_head,
        vaneb_la,
        vaneb_full,
    )
}


def build_algorithm(name: str, network: Network, options: dict[str, Any]) -> Algorithm:
    """The algorithm called ``name`` (an entry of ``ALGORITHMS`` or ``"module:constructor"``)."""
    constructor = look_up(name, ALGORITHMS, "algorithm")
    try:
        return constructor(network, **options)
    except TypeError as error:
        raise InvalidOption(f"algorithm {name!r}: {error}. Check its options.") from None
