"""Families of responses: one file each, and their names.

Importing this module is quick, so that the command line can list the names; a family's own file is imported
when the family is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vaneb.local.family.base import Family

#: Name that a user gives -> module of this package, and class.
FAMILIES = {
    "gaussian": ("gaussian", "Gaussian"),
    "binomial": ("binomial", "Binomial"),
    "poisson": ("poisson", "Poisson"),
    "negative-binomial": ("negative_binomial", "NegativeBinomial"),
    "multinomial": ("softmax", "Multinomial"),
    "gamma": ("gamma", "Gamma"),
    "huber": ("huber", "Huber"),
    "cox": ("cox", "Cox"),
    "cox-shared": ("cox_shared", "CoxShared"),
}


def family_class(name: str) -> type[Family]:
    """The class of a family by its name."""
    from importlib import import_module

    from vaneb.errors import InvalidOption

    if name not in FAMILIES:
        raise InvalidOption(f"family: choose one of {', '.join(FAMILIES)}, not {name!r}")
    module, cls = FAMILIES[name]
    found: type[Family] = getattr(import_module(f"{__name__}.{module}"), cls)
    return found
