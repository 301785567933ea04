"""What a site says of its clients' rows: sums (``likelihood.loss_sums``), for one client or for many wards.

For least squares these are the cross-products X'X, X'y, y'y and n, and a fit from them is that of the pooled
rows.  They come in two parts, the halves of each client's rows: their sum is what the fit needs, and the
question whether there are groups of clients needs them apart (``grouped.from_sums``).  Where the site's
policy lets no half leave, the first part is the whole and the second has no rows.

Other families have a third part, the whole: the quadratic that stands for the client's loss where a
population puts it (``likelihood.matching``).  First that is a population about the client's own estimate, in
which a standard deviation of a covariate changes the index by one, more or less; and when the server has a
first idea of the population, it is asked once more under that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.flower.client_data import LocalModel
from vaneb.flower.policy import Policy, PolicyRefused
from vaneb.flower.settings import Settings
from vaneb.flower.wire import check_array
from vaneb.grouped.mixed_model import centred_basis
from vaneb.grouped.mixture import first_halves
from vaneb.grouped.population import model_basis
from vaneb.likelihood.base import Array
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.expansion import modes_under
from vaneb.likelihood.loss_sums import Columns, LossSums
from vaneb.likelihood.matching import Matched, matched
from vaneb.local.families import Family
from vaneb.local.fit import LocalFits, fit_clients, squared_residuals
from vaneb.semidefinite import unit_diagonal

#: Nobody has more coefficients than this, and no site more clients: what a site says must not set how long
#: the server works, nor make it most of the population.
MOST_COEFFICIENTS, MOST_CLIENTS = 1000, 1000
#: Of how many times the others' size a client's coefficients are not believed, and from how many clients on.
BEYOND, FEWEST_TO_COMPARE = 1e8, 3


@dataclass(frozen=True, eq=False)
class SiteSums:
    """Sums of the rows of W clients of one site."""

    id: str
    parts: tuple[LossSums, ...]
    """Two halves, and for families that are not Gaussian the whole."""
    mean: Array
    """Of each client's columns, (W, p)."""
    scale: Array
    """(W, p)"""
    squares: Array
    """Squared residuals of the client's own fit, (W,); what a dispersion is made of."""
    freedom: Array
    """Rows less coefficients where there is a fit of its own, else 0: (W,)."""

    @property
    def dimension(self) -> int:
        return self.parts[0].point.shape[1]

    @property
    def whole(self) -> LossSums:
        return self.parts[2] if len(self.parts) > 2 else self.parts[0].plus(self.parts[1])

    def with_own_squares(self) -> Self:
        """Least squares, with the squared residuals that the sums have, whatever else is said of them."""
        least = 2 * self.whole.at(self.whole.minima())
        return replace(self, squares=np.where(self.freedom > 0, np.maximum(least, 0.0), 0.0))

    def weighed(self, weight: float) -> Self:
        """The same with rows of another weight."""
        parts = tuple(
            replace(p, loss=weight * p.loss, gradient=weight * p.gradient, hessian=weight * p.hessian)
            for p in self.parts
        )
        return replace(self, parts=parts, squares=weight * self.squares)

    def with_squares(self, squares: Array) -> Self:
        """The same rows of least squares with other squared residuals of the clients' own fits, (W,)."""
        first = replace(self.parts[0], loss=self.parts[0].loss + (squares - self.squares) / 2)
        return replace(self, parts=(first, *self.parts[1:]), squares=squares)

    def to_wire(self) -> dict[str, Any]:
        both = self.parts
        lower = np.tril_indices(self.parts[0].point.shape[1])
        return {
            "id": self.id,
            "n": np.stack([part.n for part in both], axis=1).astype(np.int64),
            "point": both[0].point,
            "loss": np.stack([part.loss for part in both], axis=1),
            "gradient": np.stack([part.gradient for part in both], axis=1),
            "hessian": np.stack([part.hessian[:, lower[0], lower[1]] for part in both], axis=1),
            "mean": self.mean,
            "scale": self.scale,
            "squares": self.squares,
            "freedom": self.freedom,
        }

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """From outside; ``InvalidReport`` names what is wrong."""
        if not isinstance(wire, dict) or not isinstance(wire.get("id"), str) or len(wire["id"]) > 500:
            raise InvalidReport("report: not sums that this version writes.")
        w, d = _matrix(wire, "point")
        if w > MOST_CLIENTS:
            raise InvalidReport(f"report: {w} clients of one site; at most {MOST_CLIENTS} are taken.")
        p = _matrix(wire, "mean")[1]
        parts = 3 if getattr(wire.get("n"), "shape", ()) == (w, 3) else 2
        wanted = {
            "n": (w, parts),
            "point": (w, d),
            "loss": (w, parts),
            "gradient": (w, parts, d),
            "hessian": (w, parts, d * (d + 1) // 2),
            "mean": (w, p),
            "scale": (w, p),
            "squares": (w,),
            "freedom": (w,),
        }
        found = {name: check_array(wire.get(name), size, name) for name, size in wanted.items()}
        n = found["n"]
        if not ((n >= 0) & (n == np.round(n)) & (n < 2**53)).all() or not (n[:, 0] >= 1).all():
            raise InvalidReport("n: expected numbers of rows, at least one for each client.")
        for name in ("scale", "squares", "freedom"):
            if not (found[name] >= 0).all():
                raise InvalidReport(f"{name}: expected numbers that are not negative.")
        if not (found["freedom"] <= n.sum(axis=1)).all():
            raise InvalidReport("freedom: is more than there are rows.")
        if d % p:
            raise InvalidReport(f"mean: {p} columns for {d} coefficients.")
        lower = np.tril_indices(d)
        hessian = np.zeros((w, parts, d, d))
        hessian[:, :, lower[0], lower[1]] = hessian[:, :, lower[1], lower[0]] = found["hessian"]
        if found["gradient"][np.diagonal(hessian, axis1=2, axis2=3) == 0].any():
            raise InvalidReport("gradient: expected zero where the hessian is.")
        unit = unit_diagonal(hessian.reshape(-1, d, d))[0]
        if np.diagonal(hessian, axis1=2, axis2=3).min() < 0 or np.linalg.eigvalsh(unit)[:, 0].min() < -1e-6:
            raise InvalidReport("hessian: expected positive semidefinite matrices.")
        found_parts = [
            LossSums(
                n[:, i].astype(np.intp),
                found["point"],
                found["loss"][:, i],
                found["gradient"][:, i],
                hessian[:, i],
            )
            for i in range(parts)
        ]
        rest = (found[name] for name in ("mean", "scale", "squares", "freedom"))
        return cls(wire["id"], tuple(found_parts), *rest)


def _matrix(wire: dict[str, Any], name: str) -> tuple[int, int]:
    """The shape of a matrix, from outside, that nobody has made too large."""
    shape: tuple[int, ...] = getattr(wire.get(name), "shape", ())
    if len(shape) != 2 or not shape[0] or not 0 < shape[1] <= MOST_COEFFICIENTS:
        raise InvalidReport(f"{name}: expected a matrix, one row for each client, got shape {shape}.")
    return int(shape[0]), int(shape[1])


def stacked(sites: Sequence[SiteSums]) -> SiteSums:
    """All clients of all sites."""

    def joined(parts: Sequence[LossSums]) -> LossSums:
        fields = ("n", "point", "loss", "gradient", "hessian")
        return LossSums(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))

    return SiteSums(
        "",
        tuple(joined(part) for part in zip(*(site.parts for site in sites), strict=True)),
        *(
            np.concatenate([getattr(site, name) for site in sites])
            for name in ("mean", "scale", "squares", "freedom")
        ),
    )


def beyond_belief(sites: Mapping[int, SiteSums]) -> set[int]:
    """Sites of a client that is 1e8 times as far from the others as they are from each other and zero.

    Its squares would be all that double precision holds of the others.
    """
    middles = {node: site.whole.minima() for node, site in sites.items()}
    everyone = np.concatenate(list(middles.values()))
    if len(everyone) < FEWEST_TO_COMPARE:
        return set()
    centre = np.median(everyone, axis=0)
    size = np.median(np.abs(everyone - centre), axis=0) + np.median(np.abs(everyone), axis=0)
    return {
        node
        for node, middle in middles.items()
        if not (np.abs(middle - centre) <= BEYOND * np.where(size > 0, size, np.inf)).all()
    }


# ---------------------------------------------------------------- at the site


def allowed(model: LocalModel, policy: Policy | None) -> NDArray[np.intp]:
    """Clients of the site of which something may be said; refused if there are none."""
    if policy is None:
        return np.arange(model.rows.n_clients)
    found, refused = [], None
    for k in range(model.rows.n_clients):
        try:
            policy.check_model(model.only(k))
        except PolicyRefused as error:
            refused = error
        else:
            found.append(k)
    if refused is not None and not found:
        raise refused
    return np.array(found, dtype=np.intp)


def site_sums(
    client: str,
    model: LocalModel,
    policy: Policy | None,
    population: Population | None = None,
) -> SiteSums:
    """The sums of a site whose clients may all be spoken of.

    Of families that are not Gaussian under ``population``; without one, about the clients' own estimates.
    """
    rows, family = model.rows, model.family
    fits = fit_clients(rows, family)
    points, found = fits.theta, None
    if family.name != "gaussian":
        family = family.with_dispersion(population.dispersion) if population is not None else family
        found = _matched(model, fits, population, policy)
        points = found.middle
    first = own_halves(model, policy)
    parts = tuple(_sums_of(model, mask, points) for mask in (first, ~first))
    if found is not None:
        phi, loss = family.dispersion, parts[0].loss + parts[1].loss
        slope = phi * (np.einsum("kij,kj->ki", found.precision, points) - found.weighted)
        parts += (LossSums(rows.n_rows, points, loss, slope, phi * found.precision),)
    columns = [Columns.of(design) for design in np.split(rows.design, rows.starts[1:-1])]
    exists = fits.exists & model.family.has_dispersion
    squares = squared_residuals(rows, family, fits) if model.family.has_dispersion else 0.0
    return SiteSums(
        client,
        parts,
        np.array([one.mean for one in columns]),
        np.array([one.scale for one in columns]),
        np.where(exists, squares, 0.0),
        np.where(exists, np.maximum(fits.n - fits.theta.shape[1], 0), 0).astype(float),
    )


class Population(NamedTuple):
    """A server's first idea of the population."""

    mean: Array
    covariance: Array
    dispersion: float
    farthest: float
    """How far from its own estimate, in standard errors, a client may be asked about."""

    @classmethod
    def of(cls, question: dict[str, Any], d: int, farthest: float) -> Self:
        """From outside."""
        covariance = check_array(question.get("covariance"), (d, d), "covariance")
        if np.linalg.eigvalsh(unit_diagonal(covariance[None])[0])[0, 0] < 1e-12:
            raise InvalidReport("covariance: expected a positive definite matrix.")
        mean = check_array(question.get("mean"), (d,), "mean")
        return cls(mean, covariance, dispersion_of(question) or 1.0, farthest)


def _distances(fits: LocalFits, away: Array, dispersion: float) -> Array:
    """From the clients' own estimates, in standard errors, root mean square over coefficients."""
    squares = np.einsum("ki,kij,kj->k", away, fits.hessian, away) / (dispersion * away.shape[1])
    return np.sqrt(np.maximum(squares, 1e-300))


def _matched(
    model: LocalModel, fits: LocalFits, population: Population | None, policy: Policy | None
) -> Matched:
    """What stands for the clients' losses under a population, moved near to each client's own estimate.

    About the estimate itself without a population, and where that is still too far.
    """

    def under(family: Family, centres: Array, spread: Array) -> Matched:
        return matched(exact_likelihood(model.rows, family, fits), centres, spread)

    basis = model_basis(centred_basis(model.rows.design)[0], len(model.names))
    if population is None:
        return under(model.family, fits.theta, basis @ basis.T)
    family = model.family.with_dispersion(population.dispersion)
    modes = modes_under(exact_likelihood(model.rows, family, fits), population.mean, population.covariance)
    away = modes - fits.theta
    share = np.minimum(1.0, population.farthest / _distances(fits, away, family.dispersion))
    found = under(family, population.mean - (1 - share)[:, None] * away, population.covariance)
    if not (far := _too_far(model, fits, found.middle, population, policy)).any():
        return found
    near = under(family, fits.theta, basis @ basis.T)
    vector, matrix = far[:, None], far[:, None, None]
    return Matched(
        np.where(vector, near.middle, found.middle),
        np.where(matrix, near.precision, found.precision),
        np.where(vector, near.weighted, found.weighted),
    )


def _too_far(
    model: LocalModel, fits: LocalFits, places: Array, population: Population, policy: Policy | None
) -> NDArray[np.bool_]:
    """Places of which a client does not speak: there its loss may be that of a few rows.

    Those farther than ``farthest`` standard errors, and one for what matching adds, and those at which one
    row has most of the weight.  A server could ask about any place, and find such.
    """
    far = ~(_distances(fits, places - fits.theta, population.dispersion) <= population.farthest + 1)
    if policy is not None:
        for k in map(int, np.flatnonzero(~far)):
            far[k] = policy.shows(model.only(k), places[k : k + 1]) > 0
    return far


def own_halves(model: LocalModel, policy: Policy | None) -> NDArray[np.bool_]:
    """Whether a row is in the first half of its client's, (N,); all are where no half may leave.

    Always the same halves: a server that could have others would have sums of as many parts of the rows as it
    asked for, and solve them for the rows.
    """
    rows = model.rows
    if not model.family.by_row:
        return np.ones(len(rows.design), dtype=bool)  # a loss that is no sum over rows has no halves
    whole_only = [k for k in range(rows.n_clients) if not _halves_may_leave(model.only(k), policy)]
    return first_halves(rows, 0) | np.isin(rows.client_of_row, whole_only)


def _halves_may_leave(model: LocalModel, policy: Policy | None) -> bool:
    first = first_halves(model.rows, 0)
    if first.all():
        return False
    try:
        for half in (first, ~first):
            if policy is not None:
                policy.check_model(model.some(half))
    except PolicyRefused:
        return False
    return True


def _sums_of(model: LocalModel, mask: NDArray[np.bool_], points: Array) -> LossSums:
    """Sums of some of the rows; zero for clients that have none of them."""
    rows = model.rows
    counts = np.bincount(rows.client_of_row[mask], minlength=rows.n_clients)
    there = np.flatnonzero(counts)
    d = points.shape[1]
    out = LossSums(
        counts, points, np.zeros(len(counts)), np.zeros(points.shape), np.zeros((*points.shape, d))
    )
    if there.size:
        terms = model.family.objective(model.some(mask).rows).terms(points[there], np.arange(there.size))
        for name, values in zip(("loss", "gradient", "hessian"), terms, strict=True):
            getattr(out, name)[there] = values
    return out


def dispersion_of(question: dict[str, Any], settings: Settings | None = None) -> float:
    """The dispersion that all clients share, from the server; 0 if it has none."""
    if settings is not None and settings.dispersion > 0:
        return settings.dispersion
    given = question.get("dispersion", 0.0)
    if not isinstance(given, int | float) or not 0 <= given < np.inf:
        raise InvalidReport("dispersion: expected a number that is not negative.")
    return float(given)
