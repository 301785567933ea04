"""Methods as the tables name them: chains of stages, each a number of rounds of one algorithm.

Methods that begin alike share stages: FedAvg, FedAvg+FT, LG-FedAvg, VANEB-FT and VANEB-LA all start with
the same FedAvg rounds, which are run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from vaneb.errors import InvalidOption
from vaneb.fl.config import Config
from vaneb.fl.engine import Stage


@dataclass(frozen=True)
class Method:
    """A row of a table."""

    name: str
    label: str
    stages: tuple[Stage, ...]


Options = dict[str, Any]
OptionsOf = Callable[[Config], Options]
Recipe = Callable[[Config], tuple[Stage, ...]]


def _training(config: Config) -> Options:
    options = dict(vars(config.training))
    del options["rounds"], options["participation"]
    return {"epochs": options.pop("local_epochs"), **options}


def _federated(config: Config, algorithm: str, **options: Any) -> Stage:
    """As many rounds as the configuration says, with some of the clients in each."""
    training = config.training
    return Stage(algorithm, training.rounds, training.participation, _training(config) | options)


def _rounds(algorithm: str, options: OptionsOf = lambda config: {}) -> Recipe:
    return lambda config: (_federated(config, algorithm, **options(config)),)


def _after_fedavg(algorithm: str, options: OptionsOf = lambda config: {}, rounds: int = 1) -> Recipe:
    """FedAvg, then rounds in which every client fine-tunes."""
    return lambda config: (
        _federated(config, "fedavg"),
        Stage(algorithm, rounds, 1.0, vars(config.fine_tuning) | options(config)),
    )


def _tuned(algorithm: str, **options: Any) -> Recipe:
    return _after_fedavg(algorithm, lambda config: options)


def _empirical_bayes(rule: str) -> OptionsOf:
    names = ("damping", "iterations", "atoms")
    return lambda config: {"rule": rule, **{name: getattr(config.vaneb, name) for name in names}}


def _with_own_share(config: Config) -> Options:
    return _empirical_bayes("direct")(config) | {"prior_count": config.vaneb.prior_count}


def _mean_heads(rounds: int) -> Recipe:
    """The twin of VANEB-LA (smooth), and the same over several rounds."""
    return _after_fedavg(
        "mean_heads", lambda config: {"adjusted": True, "prior_count": config.vaneb.prior_count}, rounds
    )


def _vaneb_glm(config: Config) -> tuple[Stage, ...]:
    return _federated(config, "fedavg"), Stage("vaneb_glm", 12, 1.0)


def _often_enough(step: OptionsOf) -> OptionsOf:
    # In a short run the only step is in the last round: without any it would be FedPer.
    return lambda config: step(config) | {"every": min(config.vaneb.every, config.training.rounds)}


def _lg_fedavg(config: Config) -> tuple[Stage, ...]:
    return _federated(config, "fedavg"), replace(_federated(config, "lg_fedavg"), rounds=100)


def _local_only(config: Config) -> tuple[Stage, ...]:
    training = config.training
    # Effective compute match: the passes over its data that a client makes on average in training.
    passes = max(1, round(training.rounds * training.participation * training.local_epochs))
    return (Stage("local_only", 1, 1.0, _training(config) | {"epochs": passes}),)


def _fedbabu(config: Config) -> Options:
    return {"tuning": dict(vars(config.fine_tuning))}


def _by_rule(name: str, label: str, recipe: Callable[[OptionsOf], Recipe]) -> dict[str, Any]:
    """A method with either of the paper's covariance rules."""
    return {
        f"{name}_{rule}": (f"{label} ({rule})", recipe(_empirical_bayes(rule)))
        for rule in ("direct", "coordinate")
    }


METHODS: dict[str, tuple[str, Recipe]] = {
    "fedavg": ("FedAvg", _rounds("fedavg")),
    "fedavg_ft": ("FedAvg+FT", _tuned("fedavg_ft", adjusted=False)),
    "fedavg_ft_adjusted": ("FedAvg+FT (logit-adjusted)", _tuned("fedavg_ft", adjusted=True)),
    "fedavg_prior": ("FedAvg+log-proportions", _rounds("fedavg_prior")),
    "fedavg_ft_all": ("FedAvg+FT (all layers)", _tuned("fedavg_ft_all", adjusted=False)),
    "fedavg_ft_all_adjusted": (
        "FedAvg+FT (all layers, logit-adjusted)",
        _tuned("fedavg_ft_all", adjusted=True),
    ),
    "twin_ft": ("Mean of heads", _tuned("mean_heads")),
    "twin_la": ("Mean of heads (logit-adjusted)", _tuned("mean_heads", adjusted=True)),
    "twin_la_smooth": ("Mean of heads (logit-adjusted, own share)", _mean_heads(rounds=1)),
    "mean_heads": ("Mean of heads, 5 rounds (logit-adjusted, own share)", _mean_heads(rounds=5)),
    "fedprox": ("FedProx", _rounds("fedprox")),
    "fedrod": ("FedRoD", _rounds("fedrod")),
    "fedala": ("FedALA", _rounds("fedala")),
    "pfedme": ("pFedMe", _rounds("pfedme")),
    "knn_per": ("kNN-Per", _rounds("knn_per")),
    "fedbabu": ("FedBABU", _rounds("fedbabu", _fedbabu)),
    "fedper": ("FedPer", _rounds("fedper")),
    "fedrep": ("FedRep", _rounds("fedrep")),
    "lg_fedavg": ("LG-FedAvg", _lg_fedavg),
    "per_fedavg": (
        "Per-FedAvg",
        _rounds("per_fedavg", lambda config: {"inner_rate": config.training.learning_rate}),
    ),
    "scaffold": ("SCAFFOLD", _rounds("scaffold", lambda config: {"n_clients": config.data.clients})),
    "ditto": ("Ditto", _rounds("ditto")),
    "local_only": ("Local Only", _local_only),
    **_by_rule("vaneb_ft", "VANEB-FT", lambda step: _after_fedavg("vaneb_ft", step)),
    **_by_rule("vaneb_head", "VANEB-Head", lambda step: _rounds("vaneb_head", _often_enough(step))),
    **_by_rule("vaneb_la", "VANEB-LA", lambda step: _after_fedavg("vaneb_la", step)),
    "vaneb_la_smooth": ("VANEB-LA (smooth)", _after_fedavg("vaneb_la", _with_own_share)),
    "vaneb_glm": ("VANEB-GLM", _vaneb_glm),
    **_by_rule("vaneb_full", "VANEB-Full", lambda step: _rounds("vaneb_full", step)),
}

#: What the VANEB methods have to beat with parts that need no empirical Bayes.
CONTROLS = (
    "fedavg_prior",
    "fedavg_ft_adjusted",
    "fedavg_ft_all_adjusted",
    "twin_ft",
    "twin_la",
    "twin_la_smooth",
    "mean_heads",
)

#: Names that stand for several methods.
GROUPS: dict[str, tuple[str, ...]] = {
    "vaneb_ft": ("vaneb_ft_direct", "vaneb_ft_coordinate"),
    "vaneb_head": ("vaneb_head_direct", "vaneb_head_coordinate"),
    "vaneb_la": ("vaneb_la_direct", "vaneb_la_coordinate", "vaneb_la_smooth"),
    "vaneb_full": ("vaneb_full_direct", "vaneb_full_coordinate"),
    "controls": CONTROLS,
    "baselines": tuple(name for name in METHODS if not name.startswith("vaneb") and name not in CONTROLS),
    "all": tuple(name for name in METHODS if not name.startswith("vaneb_full")),
}


def expand(names: Iterable[str]) -> list[str]:
    """Method names with groups resolved, each once, in the order given."""
    found: dict[str, None] = {}
    for name in names:
        for single in GROUPS.get(name, (name,)):
            if single not in METHODS and ":" not in single:
                raise InvalidOption(
                    f"method {single!r} is not known. Use some of {', '.join((*METHODS, *GROUPS))}, or "
                    "'module:constructor' for an algorithm of your own."
                )
            found[single] = None
    return list(found)


def check_options(config: Config) -> None:
    """Refuse ``[options.NAME]`` of a method that does not exist: it would change nothing, and not say so."""
    for name in config.options:
        if name in GROUPS:
            raise InvalidOption(f"[options.{name}]: name one of its methods, {', '.join(GROUPS[name])}.")
        if name not in METHODS and ":" not in name:
            raise InvalidOption(f"[options.{name}]: no such method. Use one of {', '.join(METHODS)}.")


def _check_number(method: str, option: str, value: Any, usual: Any) -> None:
    """An option that is a number stays one, and a whole number whole."""
    if isinstance(usual, bool) or not isinstance(usual, int | float):
        return
    number = isinstance(value, int if isinstance(usual, int) else int | float)
    if isinstance(value, bool) or not number or not 0 <= value < float("inf"):
        kind = "whole number" if isinstance(usual, int) else "number"
        raise InvalidOption(f"[options.{method}] {option} = {value!r}: must be a {kind}, not negative.")
    if option == "rounds" and value == 0:
        raise InvalidOption(f"[options.{method}] rounds = 0: must be at least 1, or nothing is trained.")
    if option == "participation" and not 0 < value <= 1:
        raise InvalidOption(
            f"[options.{method}] participation = {value}: must be a share above 0 and at most 1."
        )


def build_method(name: str, config: Config) -> Method:
    """The stages of a method under a configuration.

    ``[options.NAME]`` replaces options of the last stage; there ``rounds`` and ``participation`` are the
    stage's own.  An algorithm of one's own, ``"module:constructor"``, is one federated stage.
    """
    label, recipe = METHODS.get(name) or (name, _rounds(name))
    *before, last = recipe(config)
    changes = dict(config.options.get(name, {}))
    for option, value in changes.items():
        _check_number(name, option, value, {**last.options, **vars(last)}.get(option))
    last = replace(
        last,
        rounds=changes.pop("rounds", last.rounds),
        participation=changes.pop("participation", last.participation),
        options={**last.options, **changes},
    )
    return Method(name, label, (*before, last))
