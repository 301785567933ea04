"""Families of responses, each a class in a file of ``vaneb.local.family``; here under their short names."""

from __future__ import annotations

from vaneb.local.family.base import Family
from vaneb.local.family.binomial import Binomial
from vaneb.local.family.cox import Cox
from vaneb.local.family.gamma import Gamma
from vaneb.local.family.gaussian import Gaussian
from vaneb.local.family.huber import Huber
from vaneb.local.family.negative_binomial import NegativeBinomial
from vaneb.local.family.poisson import Poisson
from vaneb.local.family.softmax import Multinomial, shared_softmax

gaussian = Gaussian
binomial = Binomial
poisson = Poisson
gamma = Gamma
negative_binomial = NegativeBinomial
huber = Huber
cox = Cox
multinomial = Multinomial.of

__all__ = [
    "Family",
    "binomial",
    "cox",
    "gamma",
    "gaussian",
    "huber",
    "multinomial",
    "negative_binomial",
    "poisson",
    "shared_softmax",
]
