"""What ``--json`` gives: all that a command found, under names that stay.

``clients`` has one object for each, with the columns of the table that ``--out`` would get, not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vaneb.commands.outcome import ExitCode

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
