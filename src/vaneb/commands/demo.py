"""``vaneb demo``: one example that vaneb wins, one where a simpler rule is as good."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from vaneb.commands.outcome import errors_in_words
from vaneb.commands.progress import Callback, progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from vaneb.datasets import Batting

Array = NDArray[np.float64]

CLIENTS, ROWS = 800, 10
ATOMS_PER_CURVE = 200
ORACLE = "oracle (knows the population)"
#: Errors that differ by less than this share are called equal.
AS_GOOD = 0.03


def demo(
    seed: Annotated[int, typer.Option(help="Seed of the simulated clients.", min=0)] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run two examples whose truth is known."""
    with errors_in_words():
        from rich.console import Console

        from vaneb.datasets import batting

        console = Console(highlight=False)
        begin = time.perf_counter()
        with progress_bar(quiet) as progress:
            errors = five_curve_errors(np.random.default_rng(seed), progress)
        _show_five_curves(console, errors)
        with progress_bar(quiet) as progress:
            players = batting()
            averages = batting_estimates(players, progress)
        _show_batting(console, players, averages)
        console.print(f"{time.perf_counter() - begin:.0f} seconds in all.")


def batting_estimates(data: Batting, progress: Callback | None = None) -> dict[str, Array]:
    """Estimates (K,) of the players' averages by four methods."""
    from vaneb.estimators import VANEB

    reports = data.reports()
    return {
        "own": data.average,
        "average": np.full(len(data.players), data.average.mean()),
        "James-Stein": james_stein(data.average, data.at_bats),
        "VANEB": VANEB().fit(reports, progress=progress).personalize(reports).mean[:, 0],
    }


def james_stein(average: Array, trials: int) -> Array:
    """Proportions shrunk toward their mean, as by Efron and Morris.

    ybar + (1 - (K - 3) s^2 / sum_k (y_k - ybar)^2)_+ (y_k - ybar),   s^2 = ybar (1 - ybar) / trials
    """
    centre = average.mean()
    variance = centre * (1 - centre) / trials
    kept = 1 - (len(average) - 3) * variance / np.sum((average - centre) ** 2)
    return centre + max(kept, 0.0) * (average - centre)


def five_curve_errors(rng: np.random.Generator, progress: Callback | None = None) -> dict[str, float]:
    """Root mean squared error of five methods on sample means of clients from the five-curve prior.

    The variance of one row is theta^2 in each coordinate; only NPEB does not know that, and takes the
    clients' sample variances for the truth.
    """
    from vaneb.covariance import by_name
    from vaneb.estimators import NPEB, VANEB, FedAvg, Local, Oracle
    from vaneb.prior import Prior
    from vaneb.reports import Reports
    from vaneb.study.prior_curves import FiveCurves
    from vaneb.study.scenarios import simulate

    sample = simulate("quadratic", CLIENTS, ROWS, rng)
    assert sample.means is not None
    assert sample.variances is not None
    aware = Reports(sample.means, n=sample.n, covariance=by_name("squared", 3, CLIENTS))
    fixed = Reports(sample.means, n=sample.n, covariance=sample.variances / sample.n[:, None])
    truth = Prior(*FiveCurves().atoms(ATOMS_PER_CURVE))
    estimates = {
        "its own rows": Local().fit(aware).personalize(aware).mean,
        "the average of all": FedAvg().fit(aware).personalize(aware).mean,
        "NPEB (takes variances as known)": NPEB().fit(fixed).personalize(fixed).mean,
        "VANEB": VANEB().fit(aware, progress=progress).personalize(aware).mean,
        ORACLE: Oracle(truth).fit(aware).personalize(aware).mean,
    }
    return {
        name: float(np.sqrt(np.mean(np.sum((estimate - sample.theta) ** 2, axis=1))))
        for name, estimate in estimates.items()
    }


def verdict(errors: dict[str, float], ours: str = "VANEB") -> str:
    """One honest sentence: by how much ours is better than the best of the others, or that it is not."""
    best = min((name for name in errors if name != ours), key=errors.__getitem__)
    ahead = 1 - errors[ours] / errors[best]
    if ahead > AS_GOOD:
        return f"{ours} has an error {ahead:.0%} below the best of the others, {best}."
    if ahead >= -AS_GOOD:
        return f"{best}, a simpler rule, is as good here: {errors[best]:.4g} against {errors[ours]:.4g}."
    return f"{best}, a simpler rule, is better here: {errors[best]:.4g} against {errors[ours]:.4g}."


def _show_five_curves(console: Console, errors: dict[str, float]) -> None:
    from rich.table import Table

    console.print(
        f"1. {CLIENTS} simulated clients.  Each has {ROWS} to {2 * ROWS} rows and needs three means.\n"
        "The larger a mean, the noisier its rows.  The truth lies on five curves.\n"
    )
    table = Table()
    table.add_column("each client's estimate comes from")
    table.add_column("root mean squared error", justify="right")
    for name, error in errors.items():
        if name == ORACLE:
            table.add_section()
        table.add_row(name, f"{error:.4f}")
    console.print(table)
    console.print(verdict({name: error for name, error in errors.items() if name != ORACLE}) + "\n")


def _show_batting(console: Console, data: Batting, estimates: dict[str, Array]) -> None:
    from rich.table import Table

    console.print(
        f"2. Batting averages of {len(data.players)} baseball players in 1970, "
        f"from {data.at_bats} at-bats each.\n"
        "The truth is the average over the rest of the season.\n"
    )
    table = Table()
    table.add_column("player")
    for name in (*estimates, "truth"):
        table.add_column(name, justify="right")
    for k, player in enumerate(data.players):
        table.add_row(player, *(f"{values[k]:.3f}" for values in (*estimates.values(), data.truth)))
    table.add_section()
    squared = {name: np.sum((values - data.truth) ** 2) for name, values in estimates.items()}
    table.add_row("total squared error", *(f"{total:.4f}" for total in squared.values()), "")
    roots = {name: float(np.sqrt(total / len(data.players))) for name, total in squared.items()}
    table.add_row("root mean squared error", *(f"{root:.4f}" for root in roots.values()), "")
    console.print(table)
    console.print(verdict(roots) + "\n")
