"""The paper's own method, to the letter, named as such beside ours.

    model = vaneb.paper.Algorithm1().fit(reports)
    model.personalize(reports).mean

``vaneb.VANEB`` is what to use on data; this is for seeing what the paper's Algorithm 1 does.  ``vaneb study
--paper`` runs it, and the five estimators it is compared with, in the paper's simulations.

    Algorithm1    atoms at the estimates, weights of a fixed-covariance solve, pseudo-EM  (``algorithm_1``)
    NPEB          the same with covariances fixed at the reported ones
    Oracle        the true prior with the Gaussian working likelihood
    AdaMix, FedAvg, Local    as in ``vaneb``
    rho           eq:rho, for the regularised rule                                        (``tweedie``)
    lemma_bounds  what the lemmas promise of a fit, in numbers                            (``lemmas``)
"""

from __future__ import annotations

from vaneb.estimators import AdaMix, FedAvg, Local
from vaneb.paper.estimators import NPEB, Algorithm1, Oracle, Personalised
from vaneb.paper.lemmas import Lemmas, lemma_bounds
from vaneb.paper.tweedie import rho

__all__ = [
    "NPEB",
    "AdaMix",
    "Algorithm1",
    "FedAvg",
    "Lemmas",
    "Local",
    "Oracle",
    "Personalised",
    "lemma_bounds",
    "rho",
]
