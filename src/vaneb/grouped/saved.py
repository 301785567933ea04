"""A fit in a file: JSON that holds what is needed to predict, and no row of the data.

    {"format": "vaneb-model/1", "design": ..., "family": ..., "clients": ..., "estimates": ..., "table": ...,
     "mixed_model": ..., "facts": ...}

Numbers are written in full, so that a loaded fit computes from the same ones.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped import frames
from vaneb.grouped.design import Design, OtherGroups
from vaneb.grouped.encoding import Encoding
from vaneb.grouped.known import KnownClients, finite
from vaneb.grouped.response import KINDS, PLAIN, SHARES, ResponseCoding
from vaneb.grouped.result import Array, GroupedResult
from vaneb.grouped.summary import FixedEffects
from vaneb.local.family import FAMILIES, family_class
from vaneb.local.family.base import CLASSES, Family

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "vaneb-model/1"
SAVE_AGAIN = "Save it again with vaneb run --save, or fit.save."


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LoadedFit(GroupedResult):
    """A fit that was saved: everything but its rows, its sampler and what clients would report."""

    known: KnownClients
    saved_table: pa.Table
    """``table`` at ``level``."""

    def table(self, level: float | None = None) -> pa.Table:
        import pyarrow as pa

        level, table = self._checked_level(level), self.saved_table
        if level == self.level:
            return table
        for prefix, values in zip(("lower", "upper"), self.known.interval(level), strict=True):
            for j, name in enumerate(self.names):
                at = table.column_names.index(f"{prefix}_{name}")
                table = table.set_column(at, f"{prefix}_{name}", pa.array(values[:, j]))
        return table

    @cached_property
    def residuals(self) -> Array:
        raise InvalidOption("residuals: a saved model has no rows. Use predict on the data, and subtract.")


def write_model(path: Path, fit: GroupedResult) -> None:
    """Write ``fit`` to a file that nobody reads yet."""
    path.write_text(json.dumps(to_wire(fit), allow_nan=False) + "\n", encoding="utf-8")


def to_wire(fit: GroupedResult) -> dict[str, Any]:
    """Plain data for JSON."""
    coding, family = fit.design.coding, fit.family
    columns = fit.table().to_pydict()
    low, high = fit.group_sizes
    return {
        "format": FORMAT,
        "design": {
            "encoding": fit.design.encoding.to_data(),
            "text": fit.design.formula.text,
            "client": fit.design.client,
            "offset": fit.design.offset,
            "weights": fit.design.weights,
            "client_columns": list(fit.design.client_columns),
            "others": [_others_to_wire(one) for one in fit.design.others],
            "response": {
                "column": coding.column,
                "family": coding.family,
                "classes": [_plain_class(c) for c in coding.classes],
                "kind": coding.kind,
                "event": coding.event,
            },
        },
        "family": {"parameter": float(family.parameter), "dispersion": float(family.dispersion)},
        "clients": fit.known.to_wire(),
        "estimates": {name: values.tolist() for name, values in fit.estimates.items()},
        "mixed_model": None
        if (fixed := fit.mixed_model) is None
        else {"estimate": fixed.estimate.tolist(), "covariance": fixed.covariance.tolist()},
        "table": {name: [_number_or_none(v) for v in values] for name, values in columns.items()},
        "facts": {
            "rows": fit.n_rows,
            "group_sizes": [low, high],
            "outcomes": dict(fit.outcomes),
            "likelihood": fit.likelihood,
            "level": fit.level,
            "dropped": fit.dropped,
            "whole_ids": fit.whole_ids,
            "kind": fit.kind,
            "notes": list(fit.notes),
        },
    }


def load(path: str | os.PathLike[str]) -> LoadedFit:
    """Read what ``fit.save`` or ``vaneb run --save`` wrote."""
    from vaneb.files import absent

    try:
        wire = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise InvalidReport(absent(path)) from None
    except (ValueError, RecursionError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InvalidReport(f"{path}: not a saved model ({reason}). {SAVE_AGAIN}") from None
    try:
        return from_wire(wire)
    except InvalidReport as error:
        raise InvalidReport(f"{path}: {error}") from None
    except InvalidOption as error:
        raise InvalidReport(f"{path}: not a saved model ({error}). {SAVE_AGAIN}") from None


def from_wire(wire: Any) -> LoadedFit:
    """From ``to_wire``; refuses anything else with ``InvalidReport``."""
    form = wire.get("format") if isinstance(wire, dict) else None
    if form != FORMAT:
        if isinstance(form, str) and form.startswith("vaneb-model/"):
            raise InvalidReport(
                f"a model of format {form[:40]}; this version of vaneb reads {FORMAT}. Use the version that "
                "wrote it, or fit again."
            )
        if isinstance(form, str) and form.startswith("vaneb-prior/"):
            raise InvalidReport(
                "a population, not a model: it cannot predict rows. Save the model with vaneb run --save."
            )
        raise InvalidReport(f"not a saved model. {SAVE_AGAIN}")
    try:
        return _from_parts(wire)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InvalidReport(
            f"a saved model that is incomplete or changed ({error!r}). {SAVE_AGAIN}"
        ) from None


def _from_parts(wire: dict[str, Any]) -> LoadedFit:
    import pyarrow as pa

    design, facts = _design(wire["design"]), wire["facts"]
    known = KnownClients.from_wire(wire["clients"])
    family = _family(design, wire["family"])
    if family.dimension(len(design.names)) != known.prior.dimension:
        raise InvalidReport(f"a saved model whose parts do not belong together. {SAVE_AGAIN}")
    shape = known.mean.shape
    estimates = {
        "local": finite(wire["estimates"]["local"], shape, "local estimates"),
        "pooled": finite(wire["estimates"]["pooled"], (1, shape[1]), "pooled estimates"),
    }
    table = pa.table(wire["table"])
    level, whole = float(facts["level"]), facts["whole_ids"]
    if (
        table.num_rows != shape[0]
        or not 0 < level < 1
        or whole not in (True, False)
        or facts["kind"] not in frames.KINDS
    ):
        raise InvalidReport(f"a saved model whose parts do not belong together. {SAVE_AGAIN}")
    low, high = map(int, facts["group_sizes"])
    fixed = wire.get("mixed_model")
    if fixed is not None:
        d = shape[1]
        fixed = FixedEffects(
            known.prior.names,
            finite(fixed["estimate"], (d,), "fixed effects"),
            finite(fixed["covariance"], (d, d), "fixed effects"),
        )
    return LoadedFit(
        design=design,
        family=family,
        known=known,
        estimates=estimates,
        saved_table=table,
        n_rows=int(facts["rows"]),
        group_sizes=(low, high),
        outcomes={str(k): int(v) for k, v in facts["outcomes"].items()},
        likelihood=str(facts["likelihood"]),
        level=level,
        dropped=int(facts["dropped"]),
        whole_ids=whole,
        kind=facts["kind"],
        notes=tuple(map(str, facts["notes"])),
        mixed_model=fixed,
    )


def _design(wire: dict[str, Any]) -> Design:
    from dataclasses import replace

    encoding = Encoding.from_data(wire["encoding"])
    # As the user wrote it, for people to read: nothing is computed from it.
    text = str(wire["text"])
    encoding = replace(encoding, formula=replace(encoding.formula, text=text))
    response, client, offset, weights = wire["response"], wire["client"], wire["offset"], wire["weights"]
    column, family, classes = response["column"], response["family"], response["classes"]
    kind, event = response["kind"], response["event"]
    texts = all(isinstance(name, str) for name in (client, column)) and all(
        name is None or isinstance(name, str) for name in (offset, weights)
    )
    if not texts or family not in FAMILIES or kind not in KINDS or event not in (1, 2):
        raise InvalidReport(f"a saved model whose design is not one. {SAVE_AGAIN}")
    has_classes = family_class(family).takes == CLASSES and kind == PLAIN
    written = PLAIN if kind == SHARES else kind
    if (len(classes) > 1) != has_classes or encoding.formula.kind != written:
        raise InvalidReport(f"a saved model whose design is not one. {SAVE_AGAIN}")
    coding = ResponseCoding(column, family, tuple(classes), kind, event)
    design = Design(encoding, coding, client, offset, weights, _columns(wire["client_columns"]))
    others = tuple(_others_from_wire(one, len(design.names)) for one in wire["others"])
    return replace(design, others=others)


def _columns(wire: Any) -> tuple[str, ...]:
    if not isinstance(wire, list) or not all(isinstance(name, str) for name in wire):
        raise InvalidReport(f"a saved model whose design is not one. {SAVE_AGAIN}")
    return tuple(wire)


def _others_to_wire(one: OtherGroups) -> dict[str, Any]:
    return {
        "columns": list(one.columns),
        "levels": sorted(one.levels, key=lambda name: one.levels[name]),
        "design_columns": list(one.design_columns),
        "effects": one.effects.tolist(),
        "covariance": one.covariance.tolist(),
    }


def _others_from_wire(wire: dict[str, Any], n_columns: int) -> OtherGroups:
    levels, columns = _columns(wire["levels"]), wire["design_columns"]
    if any(type(j) is not int or not 0 <= j < n_columns for j in columns):
        raise InvalidReport(f"a saved model whose design is not one. {SAVE_AGAIN}")
    r = len(columns)
    return OtherGroups(
        _columns(wire["columns"]),
        {name: i for i, name in enumerate(levels)},
        tuple(columns),
        finite(wire["effects"], (len(levels), r), "effects of groups"),
        finite(wire["covariance"], (r, r), "covariance of groups"),
    )


def _family(design: Design, wire: dict[str, Any]) -> Family:
    coding = design.coding
    return family_class(coding.family).restored(
        float(wire["parameter"]), float(wire["dispersion"]), len(coding.classes), len(design.names)
    )


def _plain_class(value: Any) -> Any:
    """Classes are texts, numbers, or true and false."""
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, str | int | float | bool):
        raise InvalidOption(
            f"save: class {value!r} of the response is neither a text nor a number. Make a text of it."
        )
    return value


def _number_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
