"""An experiment as a value: read from TOML, checked once, hashed.

Sections of the file and their fields are those of the classes below; anything left out has the default
shown there (which suits the embedded digits), anything unknown is refused.  ``[options.METHOD]`` changes
single options of one method.  ``[grid]`` lists values of ``alpha``, ``clients``, ``shift`` and ``seed``
to be run in all combinations.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

from vaneb.errors import InvalidOption
from vaneb.files import absent


class Must(NamedTuple):
    """What the value of an option must be, in words and as a test."""

    be: str
    holds: Callable[[Any], bool]


def _is_count(value: Any, least: int = 0) -> bool:
    # In Python true is a whole number; in a configuration it is a mistake.
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(be: str, within: Callable[[float], bool]) -> Must:
    return Must(be, lambda x: isinstance(x, int | float) and not isinstance(x, bool) and within(x))


Natural = Annotated[int, Must("a whole number of at least 0", _is_count)]
Count = Annotated[int, Must("a whole number of at least 1", lambda x: _is_count(x, 1))]
Positive = Annotated[float, _number("a positive number", lambda x: 0 < x < float("inf"))]
Share = Annotated[float, _number("a share above 0 and at most 1", lambda x: 0 < x <= 1)]
Part = Annotated[float, _number("a share between 0 and 1", lambda x: 0 < x < 1)]
Ratio = Annotated[float, _number("a number, 1 for clients of one size", lambda x: 1 <= x < float("inf"))]
Strength = Annotated[float, _number("a number from 0 (none) to 3", lambda x: 0 <= x <= 3)]
Momentum = Annotated[float, _number("a number of at least 0 and below 1", lambda x: 0 <= x < 1)]
Optimiser = Annotated[str, Must("one of sgd, adam, adamw", lambda x: x in ("sgd", "adam", "adamw"))]
Text = Annotated[str, Must("a text in quotes", lambda x: isinstance(x, str))]
Layer = Annotated[str | None, Must("the name of a layer, in quotes", lambda x: isinstance(x, str | None))]
Table = Annotated[
    dict[str, Any], Must("a section: options = { hidden = 32 }", lambda x: isinstance(x, Mapping))
]


class Section:
    """A section of the file, whose values must be what their types say."""

    name_in_file: ClassVar[str]

    def __post_init__(self) -> None:
        for option, kind in get_type_hints(type(self), include_extras=True).items():
            for must in getattr(kind, "__metadata__", ()):
                value = getattr(self, option)
                if not must.holds(value):
                    raise InvalidOption(f"[{self.name_in_file}] {option} = {value!r}: must be {must.be}.")


@dataclass(frozen=True)
class DataConfig(Section):
    """[data]: which images, and how they are divided among clients; or, with ``path``, data of one's own."""

    name_in_file = "data"

    name: str = "digits"
    clients: Count = 20
    alpha: Positive = 0.1
    shift: Strength = 1.0
    total: Count = 1100
    test_per_client: Count = 50
    size_ratio: Ratio = 1.0
    """Images of the largest client for one of the smallest."""
    label_groups: Count = 1
    """Groups of clients in which labels mean different things."""
    path: Text = ""
    """Data of one's own, divided already: a folder of clients, LEAF's JSON or a table (``own_data``)."""
    client: Text = "client"
    """Column of a table that says whose a row is."""
    label: Text = "label"
    """Column of a table that is to be predicted."""
    test_share: Part = 0.2
    """Rows held out of each client that brings no test rows of its own."""

    @property
    def title(self) -> str:
        """The data set, and what is unusual about its division: what tables call it."""
        if self.path:
            return Path(self.path).stem
        sizes = "" if self.size_ratio == 1 else f", sizes 1:{self.size_ratio:g}"
        groups = "" if self.label_groups == 1 else f", {self.label_groups} label groups"
        return f"{self.name}{sizes}{groups}"


@dataclass(frozen=True)
class ModelConfig(Section):
    """[model]: the network; by default the one made for the data set."""

    name_in_file = "model"

    name: Text = ""
    head: Layer = None
    options: Table = field(default_factory=dict)
    device: Text = "auto"
    """Where it is trained, by torch's name; "auto" is a GPU if there is one."""


@dataclass(frozen=True)
class TrainingConfig(Section):
    """[training]: what all federated methods have in common."""

    name_in_file = "training"

    rounds: Count = 20
    participation: Share = 0.5
    local_epochs: Count = 2
    batch_size: Count = 10
    learning_rate: Positive = 0.1
    optimiser: Optimiser = "sgd"
    momentum: Momentum = 0.0


@dataclass(frozen=True)
class FineTuningConfig(Section):
    """[fine_tuning]: after federated training, at each client."""

    name_in_file = "fine_tuning"

    epochs: Count = 10
    batch_size: Count = 10
    learning_rate: Positive = 0.05
    optimiser: Optimiser = "sgd"
    momentum: Momentum = 0.0


@dataclass(frozen=True)
class VanebConfig(Section):
    """[vaneb]: the empirical Bayes step."""

    name_in_file = "vaneb"

    atoms: Count = 10
    damping: Positive = 0.1
    iterations: Natural = 20
    every: Count = 5
    prior_count: Positive = 10.0


GRID_FIELDS = ("alpha", "shift", "clients", "seed")


@dataclass(frozen=True)
class Config:
    """One experiment: a setting, or with ``grid`` many of them."""

    methods: tuple[str, ...] = ("fedavg", "fedavg_ft", "vaneb_ft", "vaneb_la")
    seed: int = 0
    evaluate_every: int = 0
    """Rounds between evaluations of the last stage; 0 evaluates the last round only."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    fine_tuning: FineTuningConfig = field(default_factory=FineTuningConfig)
    vaneb: VanebConfig = field(default_factory=VanebConfig)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.methods:
            raise InvalidOption("methods: none given. Name at least one.")
        for method in self.methods:
            if not isinstance(method, str):
                raise InvalidOption(f"methods: {method!r} is not a name. Write names in quotes.")
        if not _is_count(self.seed):
            raise InvalidOption(f"seed = {self.seed!r}: must be a whole number, not negative.")
        if not _is_count(self.evaluate_every):
            raise InvalidOption(
                f"evaluate_every = {self.evaluate_every!r}: must be a whole number, 0 for never."
            )
        for name, options in self.options.items():
            if not isinstance(options, Mapping):
                raise InvalidOption(f"[options] {name} = {options!r}: must be a section, [options.{name}].")
        for name, values in self.grid.items():
            if name not in GRID_FIELDS:
                raise InvalidOption(f"[grid] {name}: only {', '.join(GRID_FIELDS)} can be varied.")
            if not isinstance(values, list) or not values:
                raise InvalidOption(f"[grid] {name} = {values!r}: give a list of values.")
            if self.data.path and name != "seed":
                raise InvalidOption(f"[grid] {name}: your own data are divided already. Vary the seed.")

    def settings(self) -> list[Config]:
        """One configuration without a grid for every combination of the grid's values."""
        names = [name for name in GRID_FIELDS if name in self.grid]
        return [
            self.at(**dict(zip(names, values, strict=True)))
            for values in itertools.product(*(self.grid[name] for name in names))
        ]

    def at(self, **chosen: Any) -> Config:
        """The same with some of ``alpha``, ``shift``, ``clients``, ``seed`` fixed and taken off the grid."""
        left = {name: values for name, values in self.grid.items() if name not in chosen}
        seed = chosen.pop("seed", self.seed)
        return replace(self, data=replace(self.data, **chosen), seed=seed, grid=left)


def read_config(path: Path) -> Config:
    """The experiment in a TOML file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidOption(absent(path)) from None
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be read ({error.strerror}). Name a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path}: not a TOML file ({error}).") from None
    return config_from(content, str(path))


_SECTIONS: dict[str, Any] = {
    kind.name_in_file: kind
    for kind in (DataConfig, ModelConfig, TrainingConfig, FineTuningConfig, VanebConfig)
}


def config_from(content: Mapping[str, Any], source: str = "configuration") -> Config:
    """A checked ``Config`` from nested dictionaries; ``source`` is named in messages."""
    known = {item.name for item in fields(Config)}
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise InvalidOption(f"{source}: {name!r} is not known. Use {', '.join(sorted(known))}.")
        if name in _SECTIONS:
            values[name] = _section(name, value, source)
        elif name == "methods":
            if not isinstance(value, str | list | tuple):
                raise InvalidOption(f'{source}: methods = {value!r}: give a list of names, ["fedavg"].')
            values[name] = (value,) if isinstance(value, str) else tuple(value)
        elif name in ("options", "grid") and not isinstance(value, Mapping):
            raise InvalidOption(f"{source}: [{name}] must be a section of its own.")
        else:
            values[name] = value
    return Config(**values)


def _section(name: str, value: Any, source: str) -> Any:
    kind = _SECTIONS[name]
    if not isinstance(value, Mapping):
        raise InvalidOption(f"{source}: [{name}] must be a section of its own.")
    known = {item.name for item in fields(kind)}
    unknown = sorted(set(value) - known)
    if unknown:
        raise InvalidOption(f"{source}: [{name}] {unknown[0]} is not known. Use {', '.join(sorted(known))}.")
    if kind is DataConfig and value.get("path"):
        _check_own(value, source)
    return kind(**value)


#: What [data] may say of data of one's own.
OWN_DATA = ("path", "client", "label", "test_share")


def _check_own(section: Mapping[str, Any], source: str) -> None:
    """Data of one's own are divided already: refuse what would change nothing, and not say so."""
    for name in section:
        if name not in OWN_DATA:
            raise InvalidOption(
                f"{source}: [data] {name} does not go with path, which has its own clients. "
                f"Use {', '.join(OWN_DATA)}."
            )


def as_plain(value: Any) -> Any:
    """A frozen dataclass as plain JSON."""
    return json.loads(json.dumps(asdict(value)))


def fingerprint(content: Any) -> str:
    """Twelve hexadecimal digits that stand for plain JSON content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


#: What differs from the defaults above for each data set; ``experiments/`` has the same as files.
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"options": {"lg_fedavg": {"rounds": 40}}},
    "mnist": {
        "data": {"name": "mnist", "clients": 100, "total": 50_000, "test_per_client": 200},
        "model": {"options": {"channels": [16, 32], "hidden": 128}},
        "training": {
            "rounds": 50,
            "participation": 0.1,
            "local_epochs": 2,
            "batch_size": 10,
            "learning_rate": 0.1,
        },
        "fine_tuning": {"epochs": 5},
        "vaneb": {"damping": 0.01, "prior_count": 10},
        "options": {"lg_fedavg": {"rounds": 100}, "scaffold": {"learning_rate": 0.03}},
    },
    "cifar10": {
        "data": {"name": "cifar10", "clients": 100, "total": 50_000, "test_per_client": 200},
        "model": {"options": {"channels": [16, 32, 64], "hidden": [128, 64]}},
        "training": {
            "rounds": 100,
            "participation": 0.1,
            "local_epochs": 1,
            "batch_size": 10,
            "learning_rate": 0.1,
        },
        "fine_tuning": {"epochs": 5},
        "vaneb": {"damping": 0.01, "iterations": 5, "prior_count": 10},
        "options": {"lg_fedavg": {"rounds": 100}, "scaffold": {"learning_rate": 0.03}},
    },
}


def default_config(data: str) -> Config:
    """The experiment that is run for a data set if nothing else is said."""
    if data not in PRESETS:
        raise InvalidOption(f"data set {data!r} is not known. Use one of {', '.join(PRESETS)}.")
    return config_from(PRESETS[data])
