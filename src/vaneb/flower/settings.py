"""What a run is.  Server and clients read the same settings from Flower's run config.

No setting names code, a file or a folder: a run comes from another machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from vaneb.errors import InvalidOption
from vaneb.local.family import FAMILIES as ALL_FAMILIES

#: Families that need what no site has: a parameter, or a baseline hazard, that all rows share; a density.
NOT_HERE = ("negative-binomial", "huber", "cox-shared")
FAMILIES = tuple(name for name in ALL_FAMILIES if name not in NOT_HERE)
MODES = ("reports", "evaluate", "secure", "network")
LIKELIHOODS = ("covariance", "exact")
#: The form of a report in which nothing is lost.
SUMS = "sums"
FORMS = (SUMS, "constant", "diagonal", "moments")


@dataclass(frozen=True)
class Settings:
    """One run.

    Parameters
    ----------
    mode : "reports" (one-shot), "evaluate" (evaluation at the client), "secure" (the same, only sums arrive),
        or "network".
    formula, family, offset : the clients' local model.
    form : of a report.  "sums": cross-products for the gaussian family, from which the fit is that of pooled
        rows; for others the expansion of the loss.  Or an estimate with a covariance function: "constant" (a
        matrix), "diagonal" (its variances only, for many parameters) or "moments".  None of them holds a row.
    exchanges : of sums, for families that are not gaussian: 2 has clients expand their loss once more, where
        the population puts them; 1 does without.
    dispersion : noise of the gaussian and gamma families; 0 has it estimated, from all clients' sums, or by
        every client from its own rows.
    likelihood : what is evaluated at the client: its "covariance" function or its "exact" likelihood.
    parameters : names that every client must report, separated by commas; "" takes what most of them report.
    population, solver, tol, iterations, seed : as of ``vaneb.VANEB``; by default reports give a posterior
        over mixtures, Algorithm 1 is used in mode "evaluate", and sums under masks give one Gaussian.
    nodes : clients to wait for before the first question.
    wait : seconds that the server waits for them.
    timeout : seconds that one exchange may take.
    refit : fit a new prior although one is saved.
    epsilon, delta : of differential privacy; epsilon 0 is none.
    radius, centre : public ball that an estimate is clipped to, for privacy.
    se_low, se_high : public range of standard errors, for privacy.
    lower, upper : public corners of the box that holds the clients' parameters (mode "secure"), separated
        by commas.
    atoms : atoms to start with there (population "discrete").
    precision_bound : public bound of a client's precision (the same).
    experiment, method : configuration (TOML text) and method (mode "network").
    refused : set by a client's own gate, never by a server: why this run is not one of ours.
    """

    mode: str = "reports"
    formula: str = ""
    family: str = "gaussian"
    offset: str = ""
    form: str = SUMS
    exchanges: int = 2
    dispersion: float = 0.0
    likelihood: str = "covariance"
    parameters: str = ""
    solver: str = ""
    population: str = "auto"
    tol: float = 1e-4
    iterations: int = 50
    seed: int = 0
    nodes: int = 2
    wait: float = 120.0
    timeout: float = 60.0
    refit: bool = False
    epsilon: float = 0.0
    delta: float = 1e-5
    radius: float = 0.0
    centre: float = 0.0
    se_low: float = 0.0
    se_high: float = 0.0
    lower: str = ""
    upper: str = ""
    atoms: int = 30
    precision_bound: float = 0.0
    experiment: str = ""
    method: str = ""
    refused: str = ""

    def __post_init__(self) -> None:
        if self.refused:
            raise InvalidOption(f"run: {self.refused}")
        for option, value, known in (
            ("mode", self.mode, MODES),
            ("form", self.form, FORMS),
            ("likelihood", self.likelihood, LIKELIHOODS),
            ("family", self.family, FAMILIES),
        ):
            if value not in known:
                raise InvalidOption(f"{option}: choose one of {', '.join(known)}, not {value!r}.")
        if self.family == "cox" and (self.mode != "reports" or self.form != SUMS or self.epsilon):
            raise InvalidOption(f"family cox: in mode reports with form {SUMS} only, without epsilon.")
        if self.mode != "network" and not self.formula:
            raise InvalidOption("formula: missing. Give the clients' model, such as 'y ~ x'.")
        if self.mode == "network" and not (self.experiment and self.method):
            raise InvalidOption(
                "experiment and method: needed for mode network (--config FILE.toml --method NAME)."
            )
        for option in ("wait", "timeout"):
            if not getattr(self, option) > 0:
                raise InvalidOption(f"{option}: must be a positive number of seconds.")
        if self.exchanges not in (1, 2):
            raise InvalidOption(f"exchanges: {self.exchanges}, but there are 1 or 2.")
        if self.nodes < 1:
            raise InvalidOption(f"nodes: {self.nodes}, but a federation has at least one.")
        if self.mode in ("evaluate", "secure") and self.solver not in ("", "pseudo-em"):
            raise InvalidOption(f"solver {self.solver}: in mode {self.mode} clients run pseudo-em only.")
        if self.epsilon and self.mode != "reports":
            raise InvalidOption("epsilon: only reports (mode reports) can be made private.")
        if self.epsilon:
            self.privacy()
        if self.mode == "secure":
            from vaneb.flower.gaussian_steps import box_of

            box_of(self)
            if self.population not in ("auto", "gaussian", "discrete"):
                raise InvalidOption("population: gaussian or discrete in mode secure.")
            if self.population == "discrete" and not self.precision_bound > 0:
                raise InvalidOption(
                    "precision-bound: needed for mode secure with population=discrete; it must be positive."
                )

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Self:
        """From Flower's flat dictionary with hyphens."""
        given = {key.replace("-", "_"): value for key, value in config.items()}
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name not in given:
                continue
            value = given.pop(field.name)
            kind = type(field.default)
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not kind:
                raise InvalidOption(
                    f"{field.name.replace('_', '-')}: expected {kind.__name__}, got {value!r:.40}."
                )
            values[field.name] = value
        if given:
            known = ", ".join(field.name.replace("_", "-") for field in dataclasses.fields(cls))
            raise InvalidOption(f"{', '.join(given)}: not a setting of a federation. There are {known}.")
        return cls(**values)

    def to_run_config(self) -> dict[str, Any]:
        """What differs from the defaults, for Flower."""
        return {
            field.name.replace("_", "-"): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def privacy(self) -> Any:
        """The mechanism that these settings ask for; ``None`` without epsilon."""
        if not self.epsilon:
            return None
        from vaneb.flower.privacy import Mechanism

        return Mechanism(
            self.epsilon, self.delta, self.radius, centre=self.centre, se_range=(self.se_low, self.se_high)
        )

    def model_key(self) -> dict[str, Any]:
        """What saved reports and a saved prior depend on."""
        names = ("mode", "formula", "family", "offset", "form", "dispersion", "likelihood", "parameters")
        network = ("experiment", "method")
        private = ("epsilon", "delta", "radius", "centre", "se_low", "se_high")
        sums = ("population",) if self.mode == "secure" else ()
        return {name: getattr(self, name) for name in (*names, *network, *private, *sums)}
