"""All numbers that steer the fit of a population, in one value that can be passed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How a posterior over populations is computed.  The defaults are meant for everybody.

    Parameters
    ----------
    draws : populations that are kept at most, beyond ten dimensions times 10 / d.  More make results from two
        seeds more alike.
    draws_of_one : populations kept, times the root of the number of clients: many clients know the population
        better, and fewer draws of it tell what they do not know.
    burn : sweeps before the first one that is kept.
    sweeps, effort : sweeps at most, burn-in included; and sweeps times clients times (1 + d) at most, beyond
        30 dimensions times d / 30.
        Where these end the fit, the Monte Carlo error that was reached is told.
    accuracy : Monte Carlo standard error, in posterior standard deviations, at which a fit stops; 95% of
        clients' estimates, and half the errors of interval ends, must be below it.
    fewest_sweeps : sweeps at least, within ``effort``, where the number of groups is not known.
    groups : Gaussian components at most.
    spare : empty components that a sweep offers to clients.
    first_clients : clients that the burn-in looks at, where there are more.
    work : pairs of a client and a kept population, at most, beyond ten dimensions times (d / 10)^2; with very
        many clients fewer are kept.
    fewest_draws : populations kept however many clients there are.
    smallest_scale : ratio of the smallest to the largest standard deviation that components are offered.
    expansions : how often, during burn-in, clients whose likelihood is not Gaussian are expanded anew.
    """

    draws: int = 1_600
    draws_of_one: float = 1e4
    burn: int = 200
    sweeps: int = 20_000
    effort: float = 2.5e7
    accuracy: float = 0.02
    fewest_sweeps: int = 3_000
    groups: int = 60
    spare: int = 3
    first_clients: int = 3_000
    work: float = 1e6
    fewest_draws: int = 25
    smallest_scale: float = 0.03
    expansions: int = 3

    def populations_kept(self, n_clients: int, dimension: int) -> int:
        """How many populations are kept for so many clients."""
        size = max(1.0, dimension / 10)
        wanted = min(self.draws / size, self.draws_of_one / n_clients**0.5, self.work / (n_clients * size**2))
        return min(self.draws, max(self.fewest_draws, int(wanted)))


#: Enough to compare kinds of populations, or to start from.
QUICK = Options(draws=100, burn=100, sweeps=200)
