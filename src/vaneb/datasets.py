"""Data sets small enough to live in the code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vaneb.reports import Reports

#: Player, hits in his first 45 at-bats of 1970, batting average in the rest of that season.
_BATTING = (
    ("Clemente", 18, 0.346),
    ("F. Robinson", 17, 0.298),
    ("F. Howard", 16, 0.276),
    ("Johnstone", 15, 0.222),
    ("Berry", 14, 0.273),
    ("Spencer", 14, 0.270),
    ("Kessinger", 13, 0.263),
    ("L. Alvarado", 12, 0.210),
    ("Santo", 11, 0.269),
    ("Swoboda", 11, 0.230),
    ("Unser", 10, 0.264),
    ("Williams", 10, 0.256),
    ("Scott", 10, 0.303),
    ("Petrocelli", 10, 0.264),
    ("E. Rodriguez", 10, 0.226),
    ("Campaneris", 9, 0.286),
    ("Munson", 8, 0.316),
    ("Alvis", 7, 0.200),
)
_AT_BATS = 45


@dataclass(frozen=True, eq=False)
class Batting:
    """Batting averages of K = 18 baseball players, early and late in the season of 1970.

    Efron and Morris (1975) made them the standard example of shrinkage: the first 45 at-bats are the
    data, the average over the rest of the season stands for the truth.
    """

    players: tuple[str, ...]
    hits: NDArray[np.int64]
    """Among the first 45 at-bats, shape (K,)."""
    at_bats: int
    """45."""
    truth: NDArray[np.float64]
    """Average over the rest of the season, shape (K,)."""

    @property
    def average(self) -> NDArray[np.float64]:
        """hits / at_bats, shape (K,)."""
        return self.hits / self.at_bats

    def reports(self) -> Reports:
        """One report per player: his average, with the variance theta (1 - theta) of one at-bat."""
        from vaneb.covariance import by_name
        from vaneb.reports import Reports

        return Reports(
            self.average,
            n=self.at_bats,
            covariance=by_name("binomial", dimension=1, n_clients=len(self.players)),
            ids=self.players,
            names=["average"],
        )


def batting() -> Batting:
    """The batting averages of Efron and Morris.

    Examples
    --------
    >>> data = batting()
    >>> data.players[0], round(float(data.average[0]), 3), float(data.truth[0])
    ('Clemente', 0.4, 0.346)
    """
    players, hits, truth = zip(*_BATTING, strict=True)
    return Batting(players, np.array(hits), _AT_BATS, np.array(truth))
