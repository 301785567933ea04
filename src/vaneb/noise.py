"""From the ways in which people state uncertainty to one covariance function.

Standard errors, a covariance of the estimate or its precision, diagonal or full, all become the unit
precision ``P_k / n_k`` of a constant covariance function, so that the estimate has precision ``P_k``
again.  Matrices are judged after scaling to a unit diagonal: what is singular must not depend on the
units of theta.

Letters: K clients, d parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vaneb.blocks import blocks
from vaneb.covariance.base import Array, CovarianceFunction, symmetric, unchecked
from vaneb.covariance.constant import ConstantDiagonal, ConstantFull
from vaneb.errors import InvalidReport
from vaneb.validation import LARGEST, Place, as_numbers, describe

#: Asymmetry, correlation beyond one, and negative eigenvalue of a precision (all after scaling to a
#: unit diagonal) that are taken for rounding: a table written with seven digits has this much.
ROUNDING = 1e-6

#: A covariance is singular if a parameter's variance given the others is this small a part of it.
SMALLEST_PIVOT = 1e-10

#: Clients per block of matrix work: bounds the temporaries, changes no result.
BLOCK = 1 << 16


def as_covariance_function(
    covariance: ArrayLike | CovarianceFunction | None,
    standard_errors: ArrayLike | None,
    precision: ArrayLike | None,
    n: Array,
    place: Place,
) -> CovarianceFunction:
    """Unit precisions as a function, from the one form that was given."""
    forms: dict[str, Any] = {
        "covariance": covariance,
        "standard_errors": standard_errors,
        "precision": precision,
    }
    given = {name: value for name, value in forms.items() if value is not None}
    if len(given) != 1:
        problem = "given together" if given else "none of them given"
        raise InvalidReport(
            f"{', '.join(given or forms)}: {problem}. Say how uncertain the estimates are in one way: "
            "standard errors (se_ columns), covariance (cov_), precision (prec_) or a covariance function."
        )
    if isinstance(covariance, CovarianceFunction):
        check_fits(covariance, len(place.ids), len(place.names))
        return covariance

    what, value = given.popitem()
    array = _shaped(as_numbers(value, what), what, len(place.ids), len(place.names))
    if array.ndim == 2:
        if what == "precision":
            _check_diagonal_precision(array, place)
        elif what == "covariance":
            array = _inverted_variances(array, place, "cov")
        else:
            array = _inverted_variances(_signed_square(array), place, "se")
        return ConstantDiagonal(array / n[:, None])
    array = _precisions(array, place, "prec" if what == "precision" else "cov")
    # Valid by the line above; checking a million matrices twice would double the time at the door.
    template = ConstantFull(np.eye(len(place.names))[None])
    return unchecked(template, unit_precision=array / n[:, None, None])


def check_fits(covariance: Any, n_clients: int, dimension: int) -> None:
    """Refuse a function of other clients or other parameters."""
    if not isinstance(covariance, CovarianceFunction):
        raise InvalidReport(f"covariance: expected a CovarianceFunction, got {type(covariance).__name__}.")
    have, need = (covariance.n_clients, covariance.dimension), (n_clients, dimension)
    if have != need:
        raise InvalidReport(
            f"covariance: the function is for {have[0]} clients with {have[1]} parameters, "
            f"the estimates are of {need[0]} clients with {need[1]}. Make one for the same clients."
        )


def matrix_column(prefix: str, names: Sequence[str], first: int, second: int) -> str:
    """The table's column for an entry; of the two, the one in the upper triangle."""
    low, high = sorted((first, second))
    return f"{prefix}_{names[low]}__{names[high]}"


def _shaped(array: Array, what: str, n_clients: int, dimension: int) -> Array:
    """(K, d) for a diagonal, (K, d, d) for matrices."""
    rows, matrices, shared = (
        (n_clients, dimension),
        (n_clients, dimension, dimension),
        (dimension, dimension),
    )
    if array.shape == (n_clients,) and dimension == 1:
        return array[:, None]
    if what == "standard_errors":
        if array.shape == rows:
            return array
        raise InvalidReport(f"{what}: shape {array.shape} does not fit the estimates. Give shape {rows}.")
    if array.shape == rows == shared and dimension > 1:
        raise InvalidReport(
            f"{what}: shape {array.shape} could be one matrix for all clients or a row for each of them. "
            f"Give shape {matrices}."
        )
    if array.shape in (rows, matrices):
        return array
    if array.shape == shared:
        return np.repeat(array[None], n_clients, axis=0)
    raise InvalidReport(
        f"{what}: shape {array.shape} does not fit the estimates. "
        f"Give shape {rows} for variances, {matrices} for matrices or {shared} for one matrix shared by all."
    )


def _signed_square(standard_errors: Array) -> Array:
    """s |s|, so that a negative standard error is still seen."""
    with np.errstate(over="ignore", invalid="ignore"):
        return standard_errors * np.abs(standard_errors)


def _inverted_variances(variances: Array, place: Place, prefix: str) -> Array:
    """1 / v, shape (K, d); ``prefix`` says whether the user gave ``se`` or ``cov``."""
    bad = ~((variances >= LARGEST**-2) & (variances <= LARGEST**2))
    if bad.any():
        rows, columns = np.nonzero(bad)
        value, name = variances[rows[0], columns[0]], place.names[columns[0]]
        if prefix == "se":
            column, kind = f"se_{name}", "standard error"
            value = np.sign(value) * np.sqrt(np.abs(value))
        else:
            column, kind = f"cov_{name}__{name}", "variance"
        place.refuse(
            rows,
            column,
            f"the {kind} is {describe(value)}",
            "It must be positive and finite: leave the client out, or report prec_ columns, "
            "where zero says that nothing is known.",
        )
    return 1.0 / variances


def _check_diagonal_precision(precision: Array, place: Place) -> None:
    """Zero or positive, finite: shape (K, d)."""
    bad = ~((precision >= 0) & (precision <= LARGEST**2))
    if bad.any():
        rows, columns = np.nonzero(bad)
        name = place.names[columns[0]]
        place.refuse(
            rows,
            f"prec_{name}__{name}",
            f"the precision is {describe(precision[rows[0], columns[0]])}",
            "It must be finite and not negative; zero says that nothing is known.",
        )


def _precisions(matrices: Array, place: Place, prefix: str) -> Array:
    """Precisions (K, d, d) of covariances ("cov"), which must be definite, or as they are given ("prec").

    Precisions are semidefinite; negative eigenvalues of rounding size become zero.
    """
    _check_finite(matrices, place, prefix)
    diagonal = np.diagonal(matrices, axis1=1, axis2=2)
    if prefix == "cov":
        _inverted_variances(diagonal, place, prefix)
    else:
        _check_diagonal_precision(diagonal, place)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    result = np.empty_like(matrices)
    for block in blocks(len(matrices), BLOCK):
        outer = scale[block, :, None] * scale[block, None, :]
        unit = _to_unit_diagonal(matrices[block], 1.0 / outer, block.start, place, prefix)
        definite = _surely_definite(unit, SMALLEST_PIVOT if prefix == "cov" else 0.0)
        if not definite:
            values, vectors = np.linalg.eigh(unit)
            # The smallest eigenvalue is below every squared pivot; the factor 2 is for its rounding.
            bad = np.flatnonzero(values[:, 0] < (2 * SMALLEST_PIVOT if prefix == "cov" else -ROUNDING))
            if bad.size:
                _refuse_matrix(bad, values[:, 0], vectors[:, :, 0], block.start, place, prefix)
        if prefix == "cov":
            result[block] = symmetric(np.linalg.inv(unit)) / outer
            continue
        result[block] = symmetric(matrices[block])
        if not definite:
            negative = values[:, 0] < 0
            roots = vectors[negative] * np.sqrt(np.maximum(values[negative], 0.0))[:, None, :]
            result[block][negative] = roots @ np.swapaxes(roots, 1, 2) * outer[negative]
    return result


def _surely_definite(unit: Array, smallest: float) -> bool:
    """Whether all squared pivots are above ``smallest``: a factorisation is quicker than eigenvalues."""
    try:
        factor = np.linalg.cholesky(unit)
    except np.linalg.LinAlgError:
        return False
    return bool(np.diagonal(factor, axis1=1, axis2=2).min() ** 2 > smallest)


def _check_finite(matrices: Array, place: Place, prefix: str) -> None:
    if np.isfinite(matrices).all():
        return
    rows, first, second = np.nonzero(~np.isfinite(matrices))
    place.refuse(
        rows,
        matrix_column(prefix, place.names, int(first[0]), int(second[0])),
        f"the value is {describe(matrices[rows[0], first[0], second[0]])}",
        "Fill it in, leave the client out, or report prec_ columns with zeros where nothing is known.",
    )


def _to_unit_diagonal(matrices: Array, scale: Array, start: int, place: Place, prefix: str) -> Array:
    """scale * (M + M') / 2, for M symmetric up to rounding and no entry beyond what its diagonal allows."""
    with np.errstate(over="ignore"):
        scaled: Array = matrices * scale
    if not np.abs(scaled).max() <= 1 + ROUNDING:
        rows, first, second = np.nonzero(~(np.abs(scaled) <= 1 + ROUNDING))
        value = matrices[rows[0], first[0], second[0]]
        place.refuse(
            rows + start,
            matrix_column(prefix, place.names, int(first[0]), int(second[0])),
            f"{value:g} is larger than its two diagonal entries allow, so the matrix is indefinite",
            "Check that the columns belong to the same matrix; no data can give such a one.",
        )
    skew = np.abs(scaled - np.swapaxes(scaled, 1, 2))
    if skew.max() > ROUNDING:
        rows, first, second = np.nonzero(skew > ROUNDING)
        a, b = place.names[first[0]], place.names[second[0]]
        one, other = matrices[rows[0], first[0], second[0]], matrices[rows[0], second[0], first[0]]
        place.refuse(
            rows + start,
            f"{prefix}_{a}__{b}",
            f"the matrix is not symmetric: ({a}, {b}) is {one:g} but ({b}, {a}) is {other:g}",
            "Give the same number in both places.",
        )
    return symmetric(scaled)


def _refuse_matrix(
    bad: NDArray[np.intp], smallest: Array, directions: Array, start: int, place: Place, prefix: str
) -> NoReturn:
    """Name the client, and the pair of parameters that weighs most in the offending direction."""
    value, direction = smallest[bad[0]], directions[bad[0]]
    heaviest = np.argsort(-np.abs(direction), kind="stable")
    column = matrix_column(prefix, place.names, int(heaviest[0]), int(heaviest[min(1, len(heaviest) - 1)]))
    measured = f"smallest eigenvalue {value:.2g} after scaling to a unit diagonal"
    if prefix == "cov" and value > -ROUNDING:
        problem = f"the covariance is singular ({measured})"
        remedy = "Report prec_ columns instead, which may be singular, or drop a redundant parameter."
    else:
        kind = "covariance" if prefix == "cov" else "precision"
        problem = f"the {kind} is indefinite ({measured})"
        remedy = "Check the signs and the order of the entries; no data can give such a matrix."
    place.refuse(bad + start, column, problem, remedy)
