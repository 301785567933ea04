"""What commands say of a fitted model: lines of the summary, ``--json``, and what was promised and missed.

JSON has all that a command found, under names that stay.  ``clients`` has one object for each, with the
columns of the table that ``--out`` would get, not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from vaneb.commands.outcome import ExitCode, complain

if TYPE_CHECKING:
    import pyarrow as pa

    from vaneb.estimators import VANEB
    from vaneb.grouped import GroupedFit
    from vaneb.held_out import HeldOutScores
    from vaneb.posterior import Posterior


def personalize_json(
    model: VANEB,
    posterior: Posterior,
    results: pa.Table,
    notes: Sequence[str],
    level: float,
    missed: bool,
    scores: HeldOutScores | None = None,
) -> dict[str, Any]:
    """Of ``vaneb personalize``; ``held_out`` has the lead over other populations and its standard error."""
    return {
        "command": "personalize",
        "parameters": posterior.names,
        "level": level,
        **_fitted(model, missed),
        "average_shrinkage": float(posterior.shrinkage.mean()),
        "held_out": scores and {kind: scores.lead(scores.kinds[0], kind) for kind in scores.kinds[1:]},
        "notes": [*notes, *getattr(model, "notes_", ())],
        "clients": results.to_pylist(),
    }


def run_json(fit: GroupedFit, notes: Sequence[str], missed: bool) -> dict[str, Any]:
    """Of ``vaneb run``."""
    held_out = fit.held_out
    return {
        "command": "run",
        "parameters": fit.names,
        "level": fit.level,
        **_fitted(fit.model, missed),
        "average_shrinkage": float(fit.posterior.shrinkage.mean()),
        "family": fit.local.family.name,
        "dispersion": fit.local.family.dispersion,
        "likelihood": fit.likelihood,
        "rows": len(fit.rows.response),
        "dropped_rows": fit.dropped,
        "local_fits": fit.outcomes,
        "held_out": None if held_out is None else {**vars(held_out), "best": held_out.best},
        "notes": notes,
        "clients": fit.table().to_pylist(),
    }


def _fitted(model: VANEB, missed: bool) -> dict[str, Any]:
    certificate = getattr(model, "certificate_", None)
    return {
        "exit_code": int(ExitCode.NOT_CERTIFIED if missed else ExitCode.OK),
        "population": {"words": str(model.prior_), **model.prior_.to_wire()},
        "certificate": certificate,
        "sampling": getattr(model, "sampling_", None),
    }


def promise_missed(model: VANEB) -> str:
    """What was promised and not reached, in words; "" where all is well.

    The certified solver promises a gap.  A sampled population promises nothing but what it says of itself.
    """
    certificate = model.certificate_
    if certificate is None or model.solver not in (None, "certified") or certificate.reached:
        return ""
    return f"the fit stopped at a gap of {certificate.gap:.2g}, above the tolerance {model.tol:g}"


def population_rows(model: VANEB) -> dict[str, str]:
    """Lines of a summary: the population, and how well it is known."""
    prior = model.prior_
    effects = getattr(model, "effects_", None)
    own = slice(0, prior.dimension if effects is None else len(effects.mean))  # without the covariates'
    numbers = zip(prior.names[own], prior.mean[own], prior.typical_sd[own], strict=True)
    names = [f"{name} {m:.4g} (sd {s:.3g})" for name, m, s in numbers]
    rows = {
        "population": str(prior),
        "mean and sd": ", ".join(names[:6]) + (", ..." if len(names) > 6 else ""),
    }
    if getattr(model, "certificate_", None) is not None:
        rows["certificate"] = str(model.certificate_)
    elif getattr(model, "sampling_", None) is not None:
        rows["sampling"] = str(model.sampling_)
    else:
        rows["certificate"] = "none, the population was given"
    return rows


def finish(missed: str) -> None:
    """The end of a command that has written its results, in words and a code where something was missed."""
    if missed:
        complain(
            f"warning: {missed}. The results are written; the average log-likelihood may be that far below "
            "the best."
        )
        raise typer.Exit(ExitCode.NOT_CERTIFIED)
