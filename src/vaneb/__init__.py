"""vaneb: personalised estimation across many clients by variance-aware nonparametric empirical Bayes.

    reports = vaneb.Reports(theta_hat, n=n, covariance=covariance, ids=ids)
    model = vaneb.VANEB().fit(reports)
    post = model.personalize(reports)

Names are imported when they are first used, so ``import vaneb`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaneb.errors import InvalidOption, InvalidReport, VanebError
    from vaneb.estimators import NPEB, VANEB, AdaMix, FedAvg, Local, Oracle
    from vaneb.posterior import Posterior
    from vaneb.prior import Prior
    from vaneb.reports import ClientReport, Reports

__version__ = "0.1.0"

_HOME = {
    "AdaMix": "vaneb.estimators",
    "ClientReport": "vaneb.reports",
    "FedAvg": "vaneb.estimators",
    "InvalidOption": "vaneb.errors",
    "InvalidReport": "vaneb.errors",
    "Local": "vaneb.estimators",
    "NPEB": "vaneb.estimators",
    "Oracle": "vaneb.estimators",
    "Posterior": "vaneb.posterior",
    "Prior": "vaneb.prior",
    "Reports": "vaneb.reports",
    "VANEB": "vaneb.estimators",
    "VanebError": "vaneb.errors",
}

#: Modules that ``import vaneb`` alone makes known; each is imported when it is first used.
_MODULES = ("covariance", "datasets", "fl", "grouped", "local", "paper", "report", "study", "theory")

__all__ = [
    "NPEB",
    "VANEB",
    "AdaMix",
    "ClientReport",
    "FedAvg",
    "InvalidOption",
    "InvalidReport",
    "Local",
    "Oracle",
    "Posterior",
    "Prior",
    "Reports",
    "VanebError",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        from importlib import import_module

        return import_module(f"vaneb.{name}")
    raise AttributeError(f"module 'vaneb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_MODULES])
