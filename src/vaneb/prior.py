"""The population of clients as a value: Gaussian components, of a kind, in one or in many populations.

    G = sum_j w_j N(a_j, S_j)

``kind`` says what it is:

    discrete   atoms, S_j = 0: the nonparametric maximum likelihood estimate of the paper
    gaussian   one component
    mixture    components with covariances of their own

Where the population itself is uncertain it is not one mixture but a set of them, drawn from their posterior:
``draw[j]`` names the population that component j belongs to.  A client's posterior is then the average of its
posteriors under each of them, and G, with weights that sum to one over all, is their average.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb import validation
from vaneb.display import Shown
from vaneb.errors import InvalidReport
from vaneb.files import replacing
from vaneb.likelihood.base import Array
from vaneb.semidefinite import unit_diagonal

FORMAT, OLD_FORMAT = "vaneb-prior/2", "vaneb-prior/1"
KINDS = ("discrete", "gaussian", "mixture")
#: A component with the weight of fewer clients than this is nobody's but, perhaps, one client's own.
SHARED = 1.5
#: Share of clients below which a component is not spoken of as a group.
SMALL = 0.02


class Covariates(NamedTuple):
    """Covariates of clients as a fit saw them: centred and scaled, (z - centre) / scale, each (q,)."""

    names: tuple[str, ...]
    centre: Array
    scale: Array


@dataclass(frozen=True, eq=False, repr=False)
class Prior(Shown):
    """A fitted (or given) population.

    Parameters
    ----------
    atoms : (m, d)
        Centres of the components.
    weights : (m,), not negative; divided by their sum.
    covariances : (m, d, d), one (d, d) for all, or None
        ``None`` for a discrete population.
    names : names of the d parameters
    clients : int or None
        Number of clients that it was fitted to, where it was: a component with the weight of one of them may
        be that client's own, and explains nobody.
    atom_variances : (m, d) or None
        What the fit does not know of the places of atoms, as variances; discrete populations only.
    draw : (m,) whole numbers from 0, in ascending order, or None
        The population that each component belongs to; ``None`` where there is one population.
    covariates : Covariates or None
        Of the clients, theta_k = u_k + B z_k, where there are any: this is then the population of (u, B), B
        by columns, and all clients of a population have the same B.  See ``of_average_client``.
    """

    atoms: Array
    weights: Array
    covariances: Array | None = None
    names: tuple[str, ...] = ()
    clients: int | None = None
    atom_variances: Array | None = None
    draw: NDArray[np.intp] | None = None
    covariates: Covariates | None = None

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
        if self.covariances is not None:
            object.__setattr__(self, "covariances", _checked_covariances(self.covariances, *atoms.shape))
        if self.atom_variances is not None:
            variances = validation.as_numbers(self.atom_variances, "atom_variances of a prior")
            limit = validation.LARGEST**2
            if variances.shape != atoms.shape or not ((variances >= 0) & (variances <= limit)).all():
                raise InvalidReport(
                    f"atom_variances of a prior: expected finite, non-negative numbers of shape {atoms.shape}"
                )
            object.__setattr__(self, "atom_variances", variances)
        if self.draw is not None:
            object.__setattr__(self, "draw", _checked_draw(self.draw, self.weights))
        if self.covariates is not None:
            object.__setattr__(self, "covariates", _checked_covariates_of(self.covariates, atoms.shape[1]))

    @property
    def kind(self) -> str:
        """One of ``KINDS``."""
        if self.covariances is None:
            return "discrete"
        return "gaussian" if len(self.weights) == self.populations else "mixture"

    @property
    def populations(self) -> int:
        """Number of populations drawn; 1 where there is one."""
        return 1 if self.draw is None else int(self.draw[-1]) + 1

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Where each population's components start, and m: (R + 1,)."""
        if self.draw is None:
            return np.array([0, len(self.weights)])
        return np.searchsorted(self.draw, np.arange(self.populations + 1))

    @property
    def dimension(self) -> int:
        """d, the number of parameters of a client."""
        return self.atoms.shape[1]

    @property
    def parameters(self) -> int:
        """Parameters of a client without the effects of its covariates."""
        return self.dimension // (1 + len(self.covariates.names) if self.covariates else 1)

    def of_average_client(self) -> Prior:
        """The population of theta among clients with average covariates; itself where there are none."""
        if self.covariates is None:
            return self
        d, spread = self.parameters, self.covariances
        inner = None if spread is None else spread[:, :d, :d]
        return Prior(self.atoms[:, :d], self.weights, inner, self.names[:d], self.clients, None, self.draw)

    @property
    def mean(self) -> Array:
        """(d,)"""
        return self.weights @ self.atoms

    @cached_property
    def covariance(self) -> Array:
        """Between components plus within, (d, d)."""
        centred = self.atoms - self.mean
        between = (centred * self.weights[:, None]).T @ centred
        if self.covariances is None:
            return between
        return between + np.einsum("j,jab->ab", self.weights, self.covariances)

    @cached_property
    def typical_sd(self) -> Array:
        """Standard deviation of each parameter among clients, (d,): the median over the populations.

        Of groups that clients share; ``covariance`` has in it where groups not yet seen might be.
        """
        weights, starts = self.shares_of_groups[:, None], self.starts[:-1]
        own = 0.0 if self.covariances is None else np.diagonal(self.covariances, axis1=1, axis2=2)
        mean = np.add.reduceat(weights * self.atoms, starts)
        second = np.add.reduceat(weights * (self.atoms**2 + own), starts)
        return np.median(np.sqrt(np.maximum(second - mean**2, 0.0)), axis=0)

    @cached_property
    def roots(self) -> Array:
        """R_j with R_j R_j' = S_j, (m, d, r): r columns for the coordinates in which clients differ.

        Lower triangular: the column of a coordinate is zero in the rows before it.
        """
        if self.covariances is None:
            return np.zeros((*self.atoms.shape, 0))
        varying = np.flatnonzero((np.diagonal(self.covariances, axis1=1, axis2=2) > 0).any(axis=0))
        roots = np.zeros((*self.atoms.shape, len(varying)))
        unit, scale = unit_diagonal(self.covariances[:, varying[:, None], varying])
        values, vectors = np.linalg.eigh(unit)
        half = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        upper = np.linalg.qr(np.swapaxes(half, 1, 2), mode="r")
        lower = (
            np.swapaxes(upper, 1, 2)
            * np.sign(np.where(np.diagonal(upper, axis1=1, axis2=2) < 0, -1.0, 1.0))[:, None, :]
        )
        roots[:, varying] = scale[:, :, None] * lower
        return roots

    @cached_property
    def shared(self) -> NDArray[np.bool_]:
        """Components that stand for more than one client, (m,)."""
        within = self.weights * self.populations
        shared = within > (SHARED / self.clients if self.clients else 0.0)
        return shared if shared.any() else np.ones_like(shared)

    @cached_property
    def shares_of_groups(self) -> Array:
        """Weights of the components that clients share, with sum one in each population, else zero, (m,).

        In a population in which each client has a component of its own, of all components.
        """
        starts, many = self.starts[:-1], np.diff(self.starts)
        none = np.repeat(~np.logical_or.reduceat(self.shared, starts), many)
        weights = np.where(self.shared | none, self.weights, 0.0)
        return weights / np.repeat(np.add.reduceat(weights, starts), many)

    @property
    def groups_in_each(self) -> NDArray[np.intp]:
        """Groups, components of more than SMALL weight, in each of the populations."""
        groups = self.shared & (self.weights * self.populations > SMALL)
        return np.maximum(np.add.reduceat(groups.astype(np.intp), self.starts[:-1]), 1)

    def group_counts(self) -> tuple[int, int]:
        """Fewest and most groups in 90% of the populations."""
        counts = self.groups_in_each
        return int(np.quantile(counts, 0.05)), int(np.quantile(counts, 0.95))

    def __str__(self) -> str:
        """What it is, in words."""
        if self.kind == "discrete":
            said = f"{len(self.weights)} atoms" if len(self.weights) > 1 else "one atom"
        elif self.kind == "gaussian":
            said = "one Gaussian"
        else:
            low, high = self.group_counts()
            groups = f"{low} to {high}" if low < high else str(high)
            said = "one group" if high == 1 else f"a mixture of {groups} groups"
        return said + (f"; posterior over {self.populations:,} populations" if self.populations > 1 else "")

    def __repr__(self) -> str:
        return f"Prior({self}; {', '.join(map(repr, self.names))})"

    def mapped(self, basis: Array, names: tuple[str, ...] = ()) -> Prior:
        """The population of B theta, for B (d, d)."""
        atoms = self.atoms @ basis.T
        covariances = None if self.covariances is None else basis @ self.covariances @ basis.T
        return Prior(atoms, self.weights, covariances, names, self.clients, None, self.draw)

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Parameters of ``size`` new clients, (size, d)."""
        pick = rng.choice(len(self.weights), size, p=self.weights)
        if self.covariances is None:
            return self.atoms[pick]
        noise = rng.standard_normal((size, self.dimension))
        return self.atoms[pick] + np.einsum("kab,kb->ka", self.roots[pick], noise)

    def to_wire(self) -> dict[str, Any]:
        """Plain numbers, fit for JSON."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "names": list(self.names),
            "atoms": self.atoms.tolist(),
            "weights": self.weights.tolist(),
            "covariances": None if self.covariances is None else self.covariances.tolist(),
            "clients": self.clients,
            "atom_variances": None if self.atom_variances is None else self.atom_variances.tolist(),
            "draw": None if self.draw is None else self.draw.tolist(),
            "covariates": None if self.covariates is None else _plain(self.covariates),
        }

    @classmethod
    def from_wire(cls, wire: object) -> Prior:
        """From ``to_wire``, of this version or of the one before, which knew one covariance for all."""
        if not isinstance(wire, dict) or wire.get("format") not in (FORMAT, OLD_FORMAT):
            raise InvalidReport(f'not a saved prior: expected an object with "format": "{FORMAT}"')
        covariances = "covariances" if wire["format"] == FORMAT else "spread"
        if missing := {"atoms", "weights", covariances, "names"} - wire.keys():
            raise InvalidReport(f"not a saved prior: {', '.join(sorted(missing))} missing")
        if not isinstance(wire["names"], list):
            raise InvalidReport("not a saved prior: names must be a list of text")
        return cls(
            wire["atoms"],
            wire["weights"],
            wire[covariances],
            tuple(wire["names"]),
            wire.get("clients"),
            wire.get("atom_variances") if wire[covariances] is None else None,
            wire.get("draw"),
            wire.get("covariates"),
        )

    def save(self, path: str | Path) -> None:
        """Write as Parquet (.parquet), else as JSON; an interrupt leaves the old file or the new one."""
        with replacing(path) as temporary:
            self.write(temporary, Path(path).suffix)

    def write(self, path: Path, suffix: str) -> None:
        """Write to ``path`` what a file with that ``suffix`` holds."""
        if suffix == ".parquet":
            import pyarrow.parquet as pq

            pq.write_table(self._table(), path)
        else:
            path.write_text(json.dumps(self.to_wire()) + "\n", encoding="utf-8")

    def _table(self) -> Any:
        """One row for each component."""
        import pyarrow as pa

        wire = self.to_wire()
        lists = ("atoms", "covariances", "atom_variances")
        columns = {name: wire.pop(name) for name in (*lists, "weights", "draw")}
        flat = {
            k: [np.ravel(row).tolist() for row in v] if k in lists else v for k, v in columns.items() if v
        }
        return pa.table(flat).replace_schema_metadata({"vaneb": json.dumps(wire)})

    @classmethod
    def load(cls, path: str | Path) -> Prior:
        """Read what ``save`` wrote."""
        path = Path(path)
        try:
            wire = (
                _wire_of_parquet(path) if path.suffix == ".parquet" else json.loads(path.read_text("utf-8"))
            )
        except FileNotFoundError:
            raise InvalidReport(f"no file {path}: give one that --prior-out or Prior.save wrote") from None
        except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
            raise InvalidReport(f"{path} is not a saved prior: {error}") from None
        try:
            return cls.from_wire(wire)
        except InvalidReport as error:
            raise InvalidReport(f"{path}: {error}") from None


def _wire_of_parquet(path: Path) -> object:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    wire = json.loads((table.schema.metadata or {})[b"vaneb"])
    dimension = len(wire["names"])
    for name in ("atoms", "weights", "covariances", "atom_variances", "draw"):
        wire[name] = table[name].to_pylist() if name in table.column_names else None
    if wire["covariances"] is not None:
        wire["covariances"] = np.reshape(wire["covariances"], (-1, dimension, dimension)).tolist()
    return wire


def _checked_draw(draw: Any, weights: Array) -> NDArray[np.intp]:
    numbers = validation.as_numbers(draw, "draw of a prior")
    whole = numbers.shape == weights.shape and (numbers == np.round(numbers)).all()
    if not whole or numbers[0] != 0 or not np.isin(np.diff(numbers), (0, 1)).all():
        raise InvalidReport(
            "draw of a prior: expected whole numbers from 0, ascending, one for each component"
        )
    index = numbers.astype(np.intp)
    totals = np.bincount(index, weights)
    if not np.allclose(totals, 1 / len(totals), rtol=1e-6):
        raise InvalidReport("weights of a prior: must have the same sum in each of the populations")
    return index


def _plain(covariates: Covariates) -> dict[str, Any]:
    names, centre, scale = covariates
    return {"names": list(names), "centre": centre.tolist(), "scale": scale.tolist()}


def _checked_covariates_of(given: Any, dimension: int) -> Covariates:
    """From ``Covariates`` or their wire form; ``dimension`` is that of (u, B)."""
    if not isinstance(given, Covariates):
        if not isinstance(given, dict) or not isinstance(given.get("names"), list):
            raise InvalidReport("covariates of a prior: expected an object with a list of names")
        if missing := set(Covariates._fields) - given.keys():
            raise InvalidReport(f"covariates of a prior: {', '.join(sorted(missing))} missing")
        given = Covariates(*(given[field] for field in Covariates._fields))
    names = tuple(map(str, given.names))
    centre = validation.as_numbers(given.centre, "centre of the covariates of a prior")
    scale = validation.as_numbers(given.scale, "scale of the covariates of a prior")
    if not (centre.shape == scale.shape == (len(names),) and names and (scale > 0).all()):
        raise InvalidReport("covariates of a prior: expected a name, a centre and a positive scale for each")
    if dimension % (1 + len(names)):
        raise InvalidReport(
            f"covariates of a prior: {len(names)} covariates do not fit atoms with {dimension} numbers"
        )
    return Covariates(names, centre, scale)


def _checked_covariances(given: Any, m: int, d: int) -> Array:
    """(m, d, d), symmetrised; judged in units that make their diagonals one."""
    matrices = validation.as_numbers(given, "covariances of a prior")
    if matrices.shape == (d, d):
        matrices = np.broadcast_to(matrices, (m, d, d))
    if matrices.shape != (m, d, d) or not (np.abs(matrices) <= validation.LARGEST**2).all():
        raise InvalidReport(
            f"covariances of a prior: expected finite {d} x {d} matrices, one or one for each of {m} "
            f"components, got shape {np.shape(given)}"
        )
    unit = unit_diagonal(matrices)[0]
    if not np.abs(unit - np.swapaxes(unit, 1, 2)).max() <= 1e-8:
        raise InvalidReport("covariances of a prior: must be symmetric")
    smallest = np.linalg.eigvalsh((unit + np.swapaxes(unit, 1, 2)) / 2)[:, 0].min()
    if np.diagonal(matrices, axis1=1, axis2=2).min() < 0 or smallest < -1e-8:
        raise InvalidReport("covariances of a prior: must be positive semidefinite")
    return matrices / 2 + np.swapaxes(matrices, 1, 2) / 2
