"""The population of clients: atoms, weights, and an optional Gaussian spread around the atoms.

    G = sum_j w_j N(a_j, Gamma)

With no spread it is the discrete NPMLE; with one atom it is the prior of a Gaussian mixed model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaneb.errors import InvalidReport
from vaneb.files import replacing
from vaneb.likelihood.seam import Array

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
    """

    atoms: Array
    weights: Array
    spread: Array | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        atoms = np.atleast_2d(np.asarray(self.atoms, dtype=float))
        weights = np.asarray(self.weights, dtype=float)
        if atoms.ndim != 2 or atoms.size == 0 or not np.isfinite(atoms).all():
            raise InvalidReport("a prior's atoms must be a finite (m, d) array with m, d >= 1")
        if weights.shape != (len(atoms),) or not np.isfinite(weights).all() or (weights < 0).any():
            raise InvalidReport(f"a prior with {len(atoms)} atoms needs as many non-negative weights")
        if not weights.sum() > 0:
            raise InvalidReport("a prior's weights must not all be zero")
        names = tuple(self.names) or tuple(f"{i + 1}" for i in range(atoms.shape[1]))
        if len(names) != atoms.shape[1]:
            raise InvalidReport(f"{len(names)} names for atoms of dimension {atoms.shape[1]}")
        object.__setattr__(self, "atoms", atoms)
        object.__setattr__(self, "weights", weights / weights.sum())
        object.__setattr__(self, "names", names)
        if self.spread is not None:
            object.__setattr__(self, "spread", _checked_spread(self.spread, atoms.shape[1]))

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

    def to_wire(self) -> dict:
        """Plain numbers, fit for JSON."""
        return {
            "format": FORMAT,
            "names": list(self.names),
            "atoms": self.atoms.tolist(),
            "weights": self.weights.tolist(),
            "spread": None if self.spread is None else self.spread.tolist(),
        }

    @classmethod
    def from_wire(cls, wire: object) -> Prior:
        if not isinstance(wire, dict) or wire.get("format") != FORMAT:
            raise InvalidReport(f'not a saved prior: expected an object with "format": "{FORMAT}"')
        try:
            spread = wire["spread"]
            return cls(
                np.array(wire["atoms"], dtype=float),
                np.array(wire["weights"], dtype=float),
                None if spread is None else np.array(spread, dtype=float),
                tuple(str(name) for name in wire["names"]),
            )
        except KeyError as error:
            raise InvalidReport(f"not a saved prior: {error} is missing") from None
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidReport):
                raise
            raise InvalidReport(f"not a saved prior: {error}") from None

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
        except (UnicodeDecodeError, json.JSONDecodeError, OSError) as error:
            raise InvalidReport(f"{path} is not a saved prior: {error}") from None
        try:
            return cls.from_wire(wire)
        except InvalidReport as error:
            raise InvalidReport(f"{path}: {error}") from None


def _checked_spread(spread: Array, dimension: int) -> Array:
    spread = np.asarray(spread, dtype=float)
    if spread.shape != (dimension, dimension) or not np.isfinite(spread).all():
        raise InvalidReport(f"a prior's spread must be a finite ({dimension}, {dimension}) matrix")
    if not np.allclose(spread, spread.T, rtol=1e-8, atol=1e-12 * max(1.0, float(np.abs(spread).max()))):
        raise InvalidReport("a prior's spread must be symmetric")
    spread = (spread + spread.T) / 2
    if np.linalg.eigvalsh(spread)[0] < -1e-9 * max(float(np.trace(spread)), 1e-300):
        raise InvalidReport("a prior's spread must be positive semidefinite")
    return spread
