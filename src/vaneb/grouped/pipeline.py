"""Grouped fits for scikit-learn: pipelines, cross-validation, searches over options.

A column of X names the group of each row: ``client="school"`` in a data frame, ``client=0`` or ``client=-1``
(the first or the last) in an array.  ``client=None``: there are no groups, and all rows are one client's.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.grouped import frames
from vaneb.grouped.analysis import fit_groups
from vaneb.grouped.result import GroupedFit
from vaneb.grouped.syntax import Name, source
from vaneb.population.options import Options

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise InvalidOption("these estimators need scikit-learn: pip install 'vaneb[sklearn]'") from None

if TYPE_CHECKING:
    import pandas as pd

#: Names of the columns that a fit needs beside those of X.
RESPONSE, GROUP = "response", "group"
#: The group of all rows where there are no groups.
EVERYBODY = "all"


class _Grouped(BaseEstimator):
    """What both estimators share."""

    def __init__(
        self,
        client: str | int | None = None,
        formula: str | None = None,
        population: str = "auto",
        level: float = 0.9,
        seed: int = 0,
        options: Options | None = None,
    ) -> None:
        self.client = client
        self.formula = formula
        self.population = population
        self.level = level
        self.seed = seed
        self.options = options

    def _frame(self, x: Any, *, reset: bool) -> pd.DataFrame:
        """The rows as a frame with the columns of X."""
        import pandas as pd

        if hasattr(x, "columns") or hasattr(x, "column_names"):
            frame = frames.as_pandas(x)
            validate_data(self, frame, reset=reset, skip_check_array=True)
            missing = frame.columns[frame.isna().any()]
            if len(missing):
                raise ValueError(f"Input X contains NaN, in column {missing[0]}. Impute, or drop such rows.")
            numbers = frame.select_dtypes("number").to_numpy(dtype=np.float64)
            if not np.isfinite(numbers).all():
                raise ValueError("Input X contains infinity. Drop such rows.")
            return frame
        least = 2 if reset else 1  # rows of a fit
        values = validate_data(self, x, reset=reset, dtype=_dtype_of(x), ensure_min_samples=least)
        return pd.DataFrame(values, columns=[f"x{j}" for j in range(values.shape[1])]).infer_objects()

    def _with_groups(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
        """The frame, and its column that names the group: without groups one that is the same for all."""
        if self.client is None:
            group = _free(GROUP, frame.columns)
            return frame.assign(**{group: EVERYBODY}), group
        if isinstance(self.client, str):
            if self.client not in frame.columns:
                raise InvalidOption(
                    f"client {self.client!r}: X has no such column. Of an array give its position."
                )
            return frame, self.client
        if not isinstance(self.client, Integral) or not -frame.shape[1] <= self.client < frame.shape[1]:
            raise InvalidOption(
                f"client {self.client!r}: give the name or the position of a column of X, or None."
            )
        return frame, str(frame.columns[int(self.client)])

    def _fit_frame(self, frame: pd.DataFrame, y: NDArray[Any], family: str) -> GroupedFit:
        if len(frame) != len(y):
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: [{len(frame)}, {len(y)}]"
            )
        covariates = frame.columns
        frame, group = self._with_groups(frame)
        response = _free(RESPONSE, frame.columns)
        right = self.formula
        if right is None:
            right = " + ".join(source(Name(c)) for c in covariates if c != group) or "1"
        if "~" in right:
            raise InvalidOption(f"formula {right!r}: give the right-hand side only, such as 'x + C(z)'.")
        return fit_groups(
            frame.assign(**{response: y}),
            client=group,
            formula=f"{source(Name(response))} ~ {right}",
            family=family,
            population=self.population,
            level=self.level,
            seed=self.seed,
            options=self.options,
            factors=[c for c in covariates if c != group and not frames.is_numeric(frame[c])],
        )

    def _predicted(self, x: Any, **interval: Any) -> Any:
        check_is_fitted(self)
        return self.fit_.predict(self._with_groups(self._frame(x, reset=False))[0], **interval)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags


class GroupedRegressor(RegressorMixin, _Grouped):
    """Regression with coefficients of their own for every group, each helped by the others.

    Parameters
    ----------
    client : column of X that names the group of a row: its name, or its position; None: no groups
    formula : right-hand side, such as ``"x + C(z)"``; all other columns of X by default (``x0``, ``x1``, ...
        in an array)
    family : "gaussian", "poisson", "gamma" or "huber"
    population, seed, options : see ``vaneb.VANEB``
    level : probability of intervals

    Attributes
    ----------
    fit_ : GroupedFit, with all it can do
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> X = pd.DataFrame({"school": np.repeat(np.arange(20), 6), "x": rng.standard_normal(120)})
    >>> y = 2 * X.x + rng.standard_normal(20)[X.school] + 0.1 * rng.standard_normal(120)
    >>> GroupedRegressor(client="school").fit(X, y).score(X, y) > 0.9
    True
    """

    def __init__(
        self,
        client: str | int | None = None,
        formula: str | None = None,
        family: str = "gaussian",
        population: str = "auto",
        level: float = 0.9,
        seed: int = 0,
        options: Options | None = None,
    ) -> None:
        super().__init__(client, formula, population, level, seed, options)
        self.family = family

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a mixed model to the rows of ``X``, one of whose columns names the client."""
        frame, y = self._frame(X, reset=True), _response(self, y)
        if not np.issubdtype(y.dtype, np.number) and y.dtype != bool:
            y = y.astype(np.float64)
        if not np.isfinite(y).all():
            raise ValueError("Input y contains NaN or infinity. Impute or drop such rows first.")
        self.fit_ = self._fit_frame(frame, y.astype(np.float64), self.family)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Expected responses, (N,)."""
        return self._predicted(X)

    def predict_interval(self, X: Any, interval: str = "prediction", level: float | None = None) -> Any:
        """Frame of ``mean``, ``lower`` and ``upper``; see ``GroupedFit.predict``."""
        return self._predicted(X, interval=interval, level=level)


class GroupedClassifier(ClassifierMixin, _Grouped):
    """Logistic (two classes) or multinomial regression with coefficients of their own for every group.

    Parameters
    ----------
    client, formula, population, level, seed, options : as in ``GroupedRegressor``

    Attributes
    ----------
    classes_ : the classes, in the order of the columns of ``predict_proba``
    fit_ : GroupedFit, with all it can do
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a mixed model of the classes ``y`` to the rows of ``X``; one column names the client."""
        frame, y = self._frame(X, reset=True), _response(self, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_[0]!r}: a classifier needs two classes.")
        family = "binomial" if len(self.classes_) == 2 else "multinomial"
        self.fit_ = self._fit_frame(frame, codes, family)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the classes, (N, classes)."""
        mean = self._predicted(X)
        return mean if mean.ndim == 2 else np.column_stack([1 - mean, mean])

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row, (N,)."""
        check_is_fitted(self)
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]


def _response(estimator: Any, y: Any) -> NDArray[Any]:
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None."
        )
    return column_or_1d(np.asarray(y), warn=True)


def _dtype_of(x: Any) -> Any:
    """Numbers where X can be read as numbers; as it is where it holds text."""
    kind = getattr(x, "dtype", None)
    return None if kind is not None and kind.kind in "OUS" and not _all_numbers(x) else "numeric"


def _all_numbers(x: Any) -> bool:
    try:
        np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return True


def _free(name: str, taken: Any) -> str:
    """A name that no column has yet."""
    while name in taken:
        name += "_"
    return name
