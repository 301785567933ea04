"""What a client says of itself, and all that the server ever sees of it.

A report is an estimate, a sample size and a covariance function.  The working model is

    theta_hat_k | theta_k  ~  N(theta_k, Sigma_k(theta_k) / n_k),

and inside the package there is one convention: a covariance function holds the *unit* precision
``Sigma_k(theta)^{-1}``, so that the estimate has precision ``n_k Sigma_k(theta)^{-1}``.  A singular
precision is an ordinary report; then only the part of ``theta_hat`` in its range matters.

Letters: K clients, d parameters, n_k rows at client k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vaneb import validation
from vaneb.covariance.base import Array, CovarianceFunction, DiagonalCovariance, Wire, unchecked
from vaneb.covariance.constant import ConstantDiagonal, ConstantFull
from vaneb.errors import InvalidReport
from vaneb.noise import as_covariance_function, check_fits
from vaneb.validation import Labels, Place

if TYPE_CHECKING:
    from vaneb.likelihood.base import Likelihood

OK = "ok"


@dataclass(frozen=True, eq=False)
class ClientReport:
    """One client's report.

    Parameters
    ----------
    id : str
    estimate : array (d,)
    n : float
        Rows behind the estimate.
    covariance : CovarianceFunction
        Sigma_k(theta) of one observation, of one client.
    status : str
        "ok", or what the local fit says of itself, such as "penalised" or "separated".
    """

    id: str
    estimate: Array
    n: float
    covariance: CovarianceFunction
    status: str = OK

    def __post_init__(self) -> None:
        estimate = validation.as_numbers(self.estimate, f"client {self.id!r}, estimate")
        if estimate.ndim != 1 or estimate.size == 0:
            raise InvalidReport(f"client {self.id!r}, estimate: expected shape (d,), got {estimate.shape}.")
        if not isinstance(self.status, str):
            raise InvalidReport(f"client {self.id!r}, status: {self.status!r} is not text.")
        place = Place(validation.as_ids([self.id], 1), validation.as_names(None, len(estimate)))
        validation.check_estimates(estimate[None], place)
        sizes = validation.as_sample_sizes(self.n, place)
        check_fits(self.covariance, 1, len(estimate))
        object.__setattr__(self, "id", str(place.ids[0]))
        object.__setattr__(self, "estimate", estimate)
        object.__setattr__(self, "n", float(sizes[0]))

    def to_wire(self) -> Wire:
        """Plain numbers and strings, fit for JSON."""
        return {
            "id": self.id,
            "estimate": self.estimate.tolist(),
            "n": self.n,
            "covariance": self.covariance.to_wire(),
            "status": self.status,
        }

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        """Inverse of ``to_wire``; ``InvalidReport`` for anything else."""
        from vaneb.covariance import from_wire as covariance_from_wire

        if not isinstance(wire, dict):
            raise InvalidReport(f"client report: expected a JSON object, got {type(wire).__name__}.")
        keys = {"id", "estimate", "n", "covariance", "status"}
        if missing := keys - wire.keys():
            raise InvalidReport(
                f"client report: {', '.join(sorted(missing))} missing. It needs {sorted(keys)}."
            )
        return cls(
            id=wire["id"],
            estimate=wire["estimate"],
            n=wire["n"],
            covariance=covariance_from_wire(wire["covariance"]),
            status=wire["status"],
        )


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Reports:
    """The reports of K clients, stacked and valid.

    Parameters
    ----------
    theta_hat : array (K, d), array (K,) for one parameter, or a data frame
        The clients' estimates; or a pandas, polars or pyarrow table with the columns of a reports file
        (``client``, ``n``, ``theta_<name>``, and ``se_<name>``, ``cov_<a>__<b>`` or ``prec_<a>__<b>``).
    n : array (K,) or number, optional
        Sample sizes.  Needed with a covariance function; else 1, and the given covariance stands.
    covariance : array or CovarianceFunction, optional
        An array is the covariance *of the estimate*: variances (K, d), or (K,) for one parameter;
        matrices (K, d, d); or one matrix (d, d) for all.  A function is Sigma_k(theta), the covariance
        of *one observation*, which n_k divides.
    ids : K strings or integers, optional
        Row numbers from 0 by default.
    names : d strings, optional
        "1", "2", ... by default.
    standard_errors : array (K, d), or (K,) for one parameter; optional
        Instead of ``covariance``.
    precision : array, optional
        Instead of ``covariance``, in the same shapes: the inverse covariance of the estimate, which may be
        singular.  ``theta_hat`` is then any solution of precision @ theta = information vector.
    status : K strings, optional
        "ok" by default.

    Attributes
    ----------
    estimate : array (K, d)
    n : array (K,)
    covariance : CovarianceFunction of K clients
    ids : array (K,) of str
    names : tuple of d str
    status : array (K,) of str

    Examples
    --------
    >>> reports = Reports([1.0, 3.0], standard_errors=[0.5, 1.0], ids=["north", "south"])
    >>> reports
    Reports(2 clients, 1 parameter: '1', n 1 to 1, ConstantDiagonal)
    >>> reports[1].estimate
    array([3.])
    """

    estimate: Array
    n: Array
    covariance: CovarianceFunction
    ids: Labels
    names: tuple[str, ...]
    status: Labels

    def __init__(
        self,
        theta_hat: Any,
        n: ArrayLike | None = None,
        covariance: ArrayLike | CovarianceFunction | None = None,
        ids: Sequence[Any] | NDArray[Any] | None = None,
        names: Sequence[str] | None = None,
        standard_errors: ArrayLike | None = None,
        precision: ArrayLike | None = None,
        status: Sequence[str] | None = None,
    ) -> None:
        if any(hasattr(type(theta_hat), name) for name in ("columns", "column_names")):
            from vaneb.layout import columns_of_frame, estimates_alone

            alone = estimates_alone(theta_hat)
            if alone is not None and any(one is not None for one in (standard_errors, covariance, precision)):
                theta_hat, names = alone[0], alone[1] if names is None else names
            else:
                given = isinstance(covariance, CovarianceFunction)
                columns = columns_of_frame(theta_hat, covariance_given=given)
                theta_hat, names = columns.estimate, columns.names if names is None else names
                n = columns.n if n is None else n
                ids = columns.ids if ids is None else ids
                standard_errors = _only_one(standard_errors, columns.standard_errors, "se_")
                covariance = _only_one(covariance, columns.covariance, "cov_")
                precision = _only_one(precision, columns.precision, "prec_")

        estimate = _as_estimates(theta_hat)
        n_clients, dimension = estimate.shape
        place = Place(validation.as_ids(ids, n_clients), validation.as_names(names, dimension))
        validation.check_estimates(estimate, place)
        if n is None and isinstance(covariance, CovarianceFunction):
            raise InvalidReport(
                "column n: missing. A covariance function is that of one observation, so that the "
                "number of observations behind every estimate is needed: give n."
            )
        sizes = validation.as_sample_sizes(1.0 if n is None else n, place)
        function = as_covariance_function(covariance, standard_errors, precision, sizes, place)
        object.__setattr__(self, "estimate", estimate)
        object.__setattr__(self, "n", sizes)
        object.__setattr__(self, "covariance", function)
        object.__setattr__(self, "ids", place.ids)
        object.__setattr__(self, "names", place.names)
        object.__setattr__(self, "status", _as_status(status, n_clients))

    @classmethod
    def from_clients(cls, clients: Sequence[ClientReport], names: Sequence[str] | None = None) -> Self:
        """Stack single reports, which must agree in dimension and in the family of their covariance."""
        clients = list(clients)
        if not clients:
            raise InvalidReport("reports: empty. Give at least one client.")
        dimension = len(clients[0].estimate)
        for client in clients:
            if len(client.estimate) != dimension:
                raise InvalidReport(
                    f"client {client.id!r}, estimate: {len(client.estimate)} parameters, but client "
                    f"{clients[0].id!r} has {dimension}. All clients must report the same parameters."
                )
        return cls(
            np.stack([client.estimate for client in clients]),
            n=[client.n for client in clients],
            covariance=_stack(clients),
            ids=[client.id for client in clients],
            names=names,
            status=[client.status for client in clients],
        )

    @property
    def dimension(self) -> int:
        """d."""
        return self.estimate.shape[1]

    def take(self, rows: NDArray[np.intp] | Sequence[int] | slice) -> Reports:
        """Some of the clients, in the order given."""
        index = rows if isinstance(rows, slice) else np.asarray(rows, dtype=np.intp)
        own = {name: getattr(self, name)[index] for name in ("estimate", "n", "ids", "status")}
        return unchecked(self, covariance=self.covariance.take(index), **own)

    def likelihood(self) -> Likelihood:
        """The clients as a solver sees them."""
        from vaneb.likelihood.gaussian import gaussian_likelihood

        return gaussian_likelihood(self.estimate, self.n, self.covariance)

    def __len__(self) -> int:
        return len(self.estimate)

    def __getitem__(self, row: int) -> ClientReport:
        k = range(len(self))[row]
        return ClientReport(
            id=self.ids[k],
            estimate=self.estimate[k],
            n=float(self.n[k]),
            covariance=self.covariance.take(slice(k, k + 1)),
            status=self.status[k],
        )

    def __iter__(self) -> Iterator[ClientReport]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.names[:4])) + (", ..." if len(self.names) > 4 else "")
        plural = "s" if self.dimension > 1 else ""
        not_ok = int(np.count_nonzero(self.status != OK))
        return (
            f"Reports({len(self):,} clients, {self.dimension} parameter{plural}: {shown}, "
            f"n {self.n.min():g} to {self.n.max():g}, {type(self.covariance).__name__}"
            + (f", {not_ok} not ok)" if not_ok else ")")
        )

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>theta_{escape(name)}</th>" for name in self.names)
        body = "".join(
            f"<tr><th>{escape(self.ids[k])}</th><td>{self.n[k]:g}</td>"
            + "".join(f"<td>{value:.4g}</td>" for value in self.estimate[k])
            + "</tr>"
            for k in range(min(5, len(self)))
        )
        return f"<p>{escape(repr(self))}</p><table><tr><th>client</th><th>n</th>{head}</tr>{body}</table>"


def _only_one(given: Any, column: Array | None, prefix: str) -> Any:
    if given is not None and column is not None:
        raise InvalidReport(f"columns {prefix}...: also given as an argument. Give one of the two.")
    return column if given is None else given


def _as_estimates(theta_hat: Any) -> Array:
    """(K, d), not empty."""
    estimate = validation.as_numbers(theta_hat, "theta_hat")
    if estimate.ndim == 1:
        estimate = estimate[:, None]
    if estimate.ndim != 2:
        raise InvalidReport(
            f"theta_hat: shape {estimate.shape}. Give one row per client and one column per parameter."
        )
    if not estimate.size:
        raise InvalidReport(
            f"theta_hat: empty (shape {estimate.shape}). Give at least one client and one parameter."
        )
    return estimate


def _as_status(status: Sequence[str] | None, n_clients: int) -> Labels:
    labels = np.full(n_clients, OK, dtype=object)
    if status is not None:
        given = list(status)
        if len(given) != n_clients or not all(isinstance(text, str) for text in given):
            raise InvalidReport(f"status: expected {n_clients} strings, one per client, got {len(given)}.")
        labels[:] = given
    return labels


def _stack(clients: list[ClientReport]) -> CovarianceFunction:
    """One function for all; constant ones may mix diagonal and full."""
    parts = [client.covariance for client in clients]
    families = {type(part) for part in parts}
    if families == {ConstantDiagonal, ConstantFull}:
        parts = [_as_full(part) for part in parts]
    elif len(families) > 1:
        other = next(client for client in clients if type(client.covariance) is not type(parts[0]))
        raise InvalidReport(
            f"client {other.id!r}, covariance: {type(other.covariance).__name__}, but client "
            f"{clients[0].id!r} reports {type(parts[0]).__name__}. All clients must use one family."
        )
    return type(parts[0]).stack(parts)


def _as_full(part: CovarianceFunction) -> CovarianceFunction:
    if isinstance(part, DiagonalCovariance):
        diagonal = part.precision(np.zeros((1, 1, part.dimension)))[0, 0]
        return ConstantFull(np.diag(diagonal)[None])
    return part
