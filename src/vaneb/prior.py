"""The population of clients: atoms, weights, and an optional Gaussian spread around the atoms.

    G = sum_j w_j N(a_j, Gamma)

With no spread it is the discrete NPMLE; with one atom it is the prior of a Gaussian mixed model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaneb import validation
from vaneb.errors import InvalidReport
from vaneb.files import replacing
from vaneb.likelihood.seam import Array
from vaneb.semidefinite import unit_diagonal

FORMAT = "vaneb-prior/1"


@dataclass(frozen=True)
class Prior:
    """A fitted (or given) population.

    Parameters
    ----------
    atoms : (m, d)
    weights : (m,), positive, sum one
    spread : (d, d) or None
        Gamma, the covariance shared by all components; ``None`` for a discrete prior.
    names : names of the d parameters
    clients : int or None
        Number of clients that it was fitted to, where it was: an atom with the weight of one of them may be
        that client's own, and explains nobody.
    atom_variances : (m, d) or None
        What the fit does not know of the places of the atoms, as variances; see
        ``vaneb.npmle.support.atom_variances``.  Intervals are the longer for it; nothing else looks at it.
    """

    atoms: Array
    weights: Array
    spread: Array | None = None
    names: tuple[str, ...] = ()
    clients: int | None = None
    atom_variances: Array | None = None

    def __post_init__(self) -> None:
        atoms = validation.as_numbers(self.atoms, "atoms of a prior")
        weights = validation.as_numbers(self.weights, "weights of a prior")
        if atoms.ndim != 2 or atoms.size == 0 or not (np.abs(atoms) <= validation.LARGEST).all():
            raise InvalidReport(
                f"atoms of a prior: expected a finite (m, d) array with m, d >= 1, got shape {atoms.shape}"
            )
        # The bounds keep the sum, and the weights divided by it, in range.
        fits = weights.shape == (len(atoms),) and ((weights >= 0) & (weights <= validation.LARGEST)).all()
        if not fits or not weights.sum() > 1 / validation.LARGEST:
            raise InvalidReport(
                f"weights of a prior: expected {len(atoms)} finite, non-negative numbers, one for each atom, "
                "that are not all zero"
            )
        if self.clients is not None and not (type(self.clients) is int and self.clients >= 1):
            raise InvalidReport(f"clients of a prior: expected a positive whole number, got {self.clients!r}")
        object.__setattr__(self, "atoms", atoms)
        object.__setattr__(self, "weights", weights / weights.sum())
        object.__setattr__(self, "names", validation.as_names(self.names or None, atoms.shape[1]))
        if self.spread is not None:
            object.__setattr__(self, "spread", _checked_spread(self.spread, atoms.shape[1]))
        if self.atom_variances is not None:
            variances = validation.as_numbers(self.atom_variances, "atom_variances of a prior")
            limit = validation.LARGEST**2
            if variances.shape != atoms.shape or not ((variances >= 0) & (variances <= limit)).all():
                raise InvalidReport(
                    f"atom_variances of a prior: expected finite, non-negative numbers of shape {atoms.shape}"
                )
            object.__setattr__(self, "atom_variances", variances)

    @property
    def dimension(self) -> int:
        return self.atoms.shape[1]

    @property
    def mean(self) -> Array:
        """(d,)"""
        return self.weights @ self.atoms

    @property
    def covariance(self) -> Array:
        """Between-atom covariance plus the spread, (d, d)."""
        centred = self.atoms - self.mean
        between = (centred * self.weights[:, None]).T @ centred
        return between if self.spread is None else between + self.spread

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Parameters of ``size`` new clients, (size, d)."""
        theta = self.atoms[rng.choice(len(self.weights), size, p=self.weights)]
        if self.spread is None:
            return theta
        values, vectors = np.linalg.eigh(self.spread)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return theta + rng.standard_normal((size, self.dimension)) @ root.T

    def _repr_html_(self) -> str:
        from vaneb.report.notebook import prior_html

        return prior_html(self)

    def to_wire(self) -> dict:
        """Plain numbers, fit for JSON."""
        return {
            "format": FORMAT,
            "names": list(self.names),
            "atoms": self.atoms.tolist(),
            "weights": self.weights.tolist(),
            "spread": None if self.spread is None else self.spread.tolist(),
            "clients": self.clients,
            "atom_variances": None if self.atom_variances is None else self.atom_variances.tolist(),
        }

    @classmethod
    def from_wire(cls, wire: object) -> Prior:
        if not isinstance(wire, dict) or wire.get("format") != FORMAT:
            raise InvalidReport(f'not a saved prior: expected an object with "format": "{FORMAT}"')
        if missing := {"atoms", "weights", "spread", "names"} - wire.keys():
            raise InvalidReport(f"not a saved prior: {', '.join(sorted(missing))} missing")
        if not isinstance(wire["names"], list):
            raise InvalidReport("not a saved prior: names must be a list of text")
        return cls(
            wire["atoms"],
            wire["weights"],
            wire["spread"],
            tuple(wire["names"]),
            wire.get("clients"),
            wire.get("atom_variances"),
        )

    def save(self, path: str | Path) -> None:
        """Write as JSON; an interrupt leaves the old file or the new one."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(self.to_wire()) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Prior:
        try:
            wire = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidReport(f"no file {path}: give one that --prior-out or Prior.save wrote") from None
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, OSError) as error:
            raise InvalidReport(f"{path} is not a saved prior: {error}") from None
        try:
            return cls.from_wire(wire)
        except InvalidReport as error:
            raise InvalidReport(f"{path}: {error}") from None


def _checked_spread(spread: Array, dimension: int) -> Array:
    """Symmetrised ``spread``, judged in units that make its diagonal one."""
    spread = validation.as_numbers(spread, "spread of a prior")
    if spread.shape != (dimension, dimension) or not (np.abs(spread) <= validation.LARGEST**2).all():
        raise InvalidReport(
            f"spread of a prior: expected a finite {dimension} x {dimension} matrix, got shape {spread.shape}"
        )
    unit = unit_diagonal(spread[None])[0][0]
    if not np.abs(unit - unit.T).max() <= 1e-8:
        raise InvalidReport("spread of a prior: must be symmetric")
    if np.diagonal(spread).min() < 0 or np.linalg.eigvalsh((unit + unit.T) / 2)[0] < -1e-8:
        raise InvalidReport("spread of a prior: must be positive semidefinite")
    return spread / 2 + spread.T / 2
