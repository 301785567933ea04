"""The joint posterior as a file, and answers as a table.

The file is Parquet, one row for each client: ``client``, the draws of each parameter as a list of numbers
(``draws_<name>``; draw s is the same draw of everybody in every row), and what the client said itself.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaneb.errors import InvalidReport
from vaneb.files import replacing

if TYPE_CHECKING:
    import pyarrow as pa

    from vaneb.decisions.decide import Answers, Decisions, JointPosterior

FORMAT = "vaneb-posterior/1"
REMEDY = "Give a file that --posterior-out of `vaneb personalize` or `vaneb run` wrote."


def save_posterior(path: str | os.PathLike[str], joint: JointPosterior) -> None:
    """Write ``joint``: the old file or the new one, never a part."""
    with replacing(path) as temporary:
        write_posterior(temporary, joint)


def write_posterior(path: Path, joint: JointPosterior) -> None:
    """Write ``joint`` as Parquet, whatever ``path`` is called; draws with the digits of a float32."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    size, _, d = joint.draws.shape
    columns: dict[str, Any] = {"client": pa.array(joint.ids, pa.string())}
    for i, name in enumerate(joint.names):
        flat = np.ascontiguousarray(joint.draws[:, :, i].T, dtype=np.float32).ravel()
        columns[f"draws_{name}"] = pa.FixedSizeListArray.from_arrays(pa.array(flat), size)
    columns["own"] = pa.FixedSizeListArray.from_arrays(pa.array(joint.own.ravel()), d)
    columns["own_covariance"] = pa.FixedSizeListArray.from_arrays(
        pa.array(joint.own_covariance.ravel()), d * d
    )
    if joint.n is not None:
        columns["n"] = joint.n
    about = {"format": FORMAT, "names": list(joint.names), "draws": size, "counted": joint.counted}
    table = pa.table(columns).replace_schema_metadata({"vaneb": json.dumps(about)})
    pq.write_table(table, path, compression="zstd")


def load_posterior(path: str | os.PathLike[str]) -> JointPosterior:
    """Read what ``save_posterior`` wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from vaneb.decisions.decide import JointPosterior

    path = Path(path)
    if not path.exists():
        raise InvalidReport(f"no file {path}. {REMEDY}")
    try:
        table = pq.read_table(path)
        about = json.loads((table.schema.metadata or {})[b"vaneb"])
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
        names, size = tuple(about["names"]), int(about["draws"])
        clients, d = table.num_rows, len(names)

        def numbers(column: str, *shape: int) -> np.ndarray:
            found = table[column].combine_chunks()
            values = found.flatten() if pa.types.is_fixed_size_list(found.type) else found
            return values.to_numpy(zero_copy_only=False).reshape(clients, *shape)

        draws = np.stack([numbers(f"draws_{name}", size).T for name in names], axis=2)
        own, covariance = numbers("own", d), numbers("own_covariance", d, d)
        n = numbers("n") if "n" in table.column_names else None
        if not clients or not d or not np.isfinite(draws).all() or about["counted"] not in _COUNTED:
            raise ValueError("it holds no draws, or draws that are not numbers")
        ids = tuple(str(i) for i in table["client"].to_pylist())
    except (ValueError, TypeError, KeyError, AttributeError, OSError, pa.ArrowException) as error:
        held = "a table of results" if path.suffix.lower() in (".csv", ".xlsx") else str(error)
        raise InvalidReport(f"{path}: is not a saved posterior ({held}). {REMEDY}") from None
    return JointPosterior(draws, ids, names, own, covariance, n, about["counted"])


_COUNTED = (None, "poisson", "binomial")
WORDS = {1: "above", -1: "below", 0: ""}
OUTSIDE = ("", "95%", "99.8%")


def answers_table(decisions: Decisions, answers: Answers) -> pa.Table:
    """One row for each client; columns as docs/decisions.md lists them."""
    import pyarrow as pa

    lower, upper = decisions.interval(answers.level)
    ranks, flags, funnel = answers.ranks, answers.flags, answers.funnel
    columns: dict[str, Any] = {
        "client": pa.array(decisions.ids, pa.string()),
        decisions.name: decisions.values.mean(axis=0).astype(np.float64),
        "lower": lower.astype(np.float64),
        "upper": upper.astype(np.float64),
        "rank": ranks.expected,
        "rank_lower": ranks.lower,
        "rank_upper": ranks.upper,
        "grade": answers.grades.grade,
        "differs": [WORDS[int(way)] for way in flags.direction],
        "probability_above": flags.above,
        "probability_below": flags.below,
    }
    for side, named in answers.named.items():
        columns[f"probability_{side}"] = named.probability
        columns[side] = ["yes" if each else "" for each in named.chosen]
    columns["own"] = pa.array(funnel.own, from_pandas=True)
    columns["outside_funnel"] = [OUTSIDE[int(count)] for count in funnel.outside]
    if funnel.observed is not None and funnel.expected is not None and funnel.target > 0:
        ratio, low, high = decisions.ratio(funnel.target, answers.level)
        with np.errstate(divide="ignore", invalid="ignore"):
            plain = funnel.observed / funnel.expected
        columns |= {"observed": funnel.observed, "expected": funnel.expected}
        columns |= {"observed_over_expected": plain, "ratio": ratio}
        columns |= {"ratio_lower": low, "ratio_upper": high}
    return pa.table({name: pa.array(column, from_pandas=True) for name, column in columns.items()})
