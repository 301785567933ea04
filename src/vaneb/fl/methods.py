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


Recipe = Callable[[Config], tuple[Stage, ...]]


def _local(config: Config) -> dict[str, Any]:
    training = config.training
    return {
        "epochs": training.local_epochs,
        "batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
    }


def _tuning(config: Config) -> dict[str, Any]:
    tuning = config.fine_tuning
    return {
        "epochs": tuning.epochs,
        "batch_size": tuning.batch_size,
        "learning_rate": tuning.learning_rate,
    }


def _empirical_bayes(config: Config, rule: str) -> dict[str, Any]:
    vaneb = config.vaneb
    return {
        "rule": rule,
        "damping": vaneb.damping,
        "iterations": vaneb.iterations,
        "atoms": vaneb.atoms,
    }


def _federated(config: Config, algorithm: str, **options: Any) -> Stage:
    """As many rounds as the configuration says, with some of the clients in each."""
    training = config.training
    return Stage(algorithm, training.rounds, training.participation, {**_local(config), **options})


def _once(algorithm: str, **options: Any) -> Stage:
    """One round with every client."""
    return Stage(algorithm, 1, 1.0, options)


def _plain(algorithm: str) -> Recipe:
    return lambda config: (_federated(config, algorithm),)


def _lg_fedavg(config: Config) -> tuple[Stage, ...]:
    return _federated(config, "fedavg"), replace(_federated(config, "lg_fedavg"), rounds=100)


def _local_only(config: Config) -> tuple[Stage, ...]:
    training = config.training
    # Effective compute match: the passes over its data that a client makes on average in training.
    passes = max(1, round(training.rounds * training.participation * training.local_epochs))
    return (_once("local_only", **{**_local(config), "epochs": passes}),)


def _fedbabu(config: Config) -> tuple[Stage, ...]:
    tuning = config.fine_tuning
    return (
        _federated(
            config,
            "fedbabu",
            tune_epochs=tuning.epochs,
            tune_rate=tuning.learning_rate,
            tune_batch_size=tuning.batch_size,
        ),
    )


def _tuned(algorithm: str, **options: Any) -> Recipe:
    """FedAvg, then one round in which every client fine-tunes."""
    return lambda config: (_federated(config, "fedavg"), _once(algorithm, **_tuning(config), **options))


def _after_fedavg(algorithm: str, rule: str) -> Recipe:
    return lambda config: (
        _federated(config, "fedavg"),
        _once(algorithm, **_tuning(config), **_empirical_bayes(config, rule)),
    )


def _vaneb_la_smooth(config: Config) -> tuple[Stage, ...]:
    *before, last = _after_fedavg("vaneb_la", "direct")(config)
    return *before, replace(last, options={**last.options, "prior_count": config.vaneb.prior_count})


def _mean_heads(rounds: int) -> Recipe:
    """The twin of VANEB-LA (smooth), and the same over several rounds."""

    def recipe(config: Config) -> tuple[Stage, ...]:
        options = {**_tuning(config), "adjusted": True, "prior_count": config.vaneb.prior_count}
        return _federated(config, "fedavg"), Stage("mean_heads", rounds, 1.0, options)

    return recipe


def _vaneb_glm(groups: int) -> Recipe:
    return lambda config: (_federated(config, "fedavg"), Stage("vaneb_glm", 12, 1.0, {"groups": groups}))


def _vaneb_head(rule: str) -> Recipe:
    def recipe(config: Config) -> tuple[Stage, ...]:
        # In a short run the only step is in the last round: without any it would be FedPer.
        every = min(config.vaneb.every, config.training.rounds)
        return (_federated(config, "vaneb_head", **_empirical_bayes(config, rule), every=every),)

    return recipe


def _vaneb_full(rule: str) -> Recipe:
    return lambda config: (_federated(config, "vaneb_full", **_empirical_bayes(config, rule)),)


METHODS: dict[str, tuple[str, Recipe]] = {
    "fedavg": ("FedAvg", _plain("fedavg")),
    "fedavg_ft": ("FedAvg+FT", _tuned("fedavg_ft", adjusted=False)),
    "fedavg_ft_adjusted": ("FedAvg+FT (logit-adjusted)", _tuned("fedavg_ft", adjusted=True)),
    "fedavg_prior": ("FedAvg+log-proportions", _plain("fedavg_prior")),
    "fedavg_ft_all": ("FedAvg+FT (all layers)", _tuned("fedavg_ft_all", adjusted=False)),
    "fedavg_ft_all_adjusted": (
        "FedAvg+FT (all layers, logit-adjusted)",
        _tuned("fedavg_ft_all", adjusted=True),
    ),
    "twin_ft": ("Mean of heads", _tuned("mean_heads")),
    "twin_la": ("Mean of heads (logit-adjusted)", _tuned("mean_heads", adjusted=True)),
    "twin_la_smooth": ("Mean of heads (logit-adjusted, own share)", _mean_heads(rounds=1)),
    "mean_heads": ("Mean of heads, 5 rounds (logit-adjusted, own share)", _mean_heads(rounds=5)),
    "fedprox": ("FedProx", _plain("fedprox")),
    "fedrod": ("FedRoD", _plain("fedrod")),
    "fedala": ("FedALA", _plain("fedala")),
    "pfedme": ("pFedMe", _plain("pfedme")),
    "knn_per": ("kNN-Per", _plain("knn_per")),
    "fedbabu": ("FedBABU", _fedbabu),
    "fedper": ("FedPer", _plain("fedper")),
    "fedrep": ("FedRep", _plain("fedrep")),
    "lg_fedavg": ("LG-FedAvg", _lg_fedavg),
    "per_fedavg": (
        "Per-FedAvg",
        lambda config: (_federated(config, "per_fedavg", inner_rate=config.training.learning_rate),),
    ),
    "scaffold": (
        "SCAFFOLD",
        lambda config: (_federated(config, "scaffold", n_clients=config.data.clients),),
    ),
    "ditto": ("Ditto", _plain("ditto")),
    "local_only": ("Local Only", _local_only),
    "vaneb_ft_direct": ("VANEB-FT (direct)", _after_fedavg("vaneb_ft", "direct")),
    "vaneb_ft_coordinate": ("VANEB-FT (coordinate)", _after_fedavg("vaneb_ft", "coordinate")),
    "vaneb_head_direct": ("VANEB-Head (direct)", _vaneb_head("direct")),
    "vaneb_head_coordinate": ("VANEB-Head (coordinate)", _vaneb_head("coordinate")),
    "vaneb_la_direct": ("VANEB-LA (direct)", _after_fedavg("vaneb_la", "direct")),
    "vaneb_la_coordinate": ("VANEB-LA (coordinate)", _after_fedavg("vaneb_la", "coordinate")),
    "vaneb_la_smooth": ("VANEB-LA (smooth)", _vaneb_la_smooth),
    "vaneb_glm": ("VANEB-GLM", _vaneb_glm(groups=1)),
    "vaneb_glm_groups": ("VANEB-GLM (groups)", _vaneb_glm(groups=3)),
    "vaneb_full_direct": ("VANEB-Full (direct)", _vaneb_full("direct")),
    "vaneb_full_coordinate": ("VANEB-Full (coordinate)", _vaneb_full("coordinate")),
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
    label, recipe = METHODS.get(name) or (name, _plain(name))
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
