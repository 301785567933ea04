"""``vaneb decide``: a saved posterior in; who differs, who is highest, ranks and grades out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaneb.commands import options, streams
from vaneb.commands.outcome import errors_in_words
from vaneb.errors import InvalidOption

if TYPE_CHECKING:
    from vaneb.decisions import Decisions
    from vaneb.decisions.decide import Answers


def decide(
    posterior: Annotated[
        Path,
        typer.Argument(
            help="What --posterior-out of `vaneb personalize` or `vaneb run` wrote.", metavar="RESULT"
        ),
    ],
    out: options.Out = None,
    of: Annotated[
        list[str] | None,
        typer.Option(
            help="Parameter to decide about; or NAME=WEIGHT, repeated, for a weighted sum such as "
            "--of treated=1 --of control=-1. By default the one in which clients differ most.",
            metavar="NAME",
        ),
    ] = None,
    highest: Annotated[
        str | None, typer.Option(help="Name clients that are among the highest, such as 10%.")
    ] = None,
    lowest: Annotated[
        str | None, typer.Option(help="Name clients that are among the lowest, such as 10%.")
    ] = None,
    benchmark: Annotated[
        float | None,
        typer.Option(help="Compare clients with this value instead of the average of the others."),
    ] = None,
    margin: Annotated[float, typer.Option(help="Ignore differences up to this size.")] = 0.0,
    wrong: Annotated[
        str, typer.Option(help="Share of the clients named that may be wrong (false discovery rate).")
    ] = "5%",
    misordered: Annotated[
        str, typer.Option(help="Share of pairs in different grades that may be in the wrong order.")
    ] = "5%",
    level: options.Level = 0.9,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say who differs, who is highest or lowest, and rank clients."""
    with errors_in_words(as_json=as_json):
        streams.check_files({"RESULT": posterior}, {"--out": out}, as_json)
        streams.check_level(level)
        asked: dict[str, Any] = {
            "highest": share_of(highest, "--highest"),
            "lowest": share_of(lowest, "--lowest"),
            "benchmark": benchmark,
            "margin": margin,
            "wrong": share_of(wrong, "--wrong"),
            "misordered": share_of(misordered, "--misordered"),
            "level": level,
        }
        from vaneb.decisions import load_posterior
        from vaneb.decisions.saved import answers_table

        joint = load_posterior(posterior)
        decisions = joint.decide(weights_of(of, joint.names))
        answers = decisions.answers(**asked)
        table = answers_table(decisions, answers)
        streams.write_together((out, streams.table_writer(table, _readable)))
        found = _in_numbers(answers)
        if not quiet:
            with streams.summary_stream(out, as_json):
                _summarise(decisions, asked, found)
        if as_json:
            streams.print_json(
                {"command": "decide", "of": decisions.name, **asked, **found, "clients": table.to_pylist()}
            )


def share_of(text: str | None, option: str) -> float | None:
    """0.1 from ``10%`` or ``0.1``."""
    if text is None:
        return None
    try:
        share = float(text.rstrip("% ")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise InvalidOption(f"{option} {text}: is not a share. Write 10% or 0.1.") from None
    if not 0 < share < 1:
        raise InvalidOption(f"{option} {text}: must lie between 0 and 100%. Write 10% or 0.1.")
    return share


def weights_of(given: list[str] | None, names: tuple[str, ...]) -> str | dict[str, float] | None:
    """A name as it is; else NAME=WEIGHT, where the name may hold a sign of equality itself."""
    if not given:
        return None
    if len(given) == 1 and (given[0] in names or "=" not in given[0]):
        return given[0]
    weights = {}
    for each in given:
        name, _, weight = each.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise InvalidOption(f"--of {each}: write NAME=WEIGHT, such as treated=1.") from None
    return weights


def _in_numbers(answers: Answers) -> dict[str, Any]:
    """Counts and expected errors."""
    flags, grades, funnel = answers.flags, answers.grades, answers.funnel
    found: dict[str, Any] = {
        "above": int((flags.direction > 0).sum()),
        "below": int((flags.direction < 0).sum()),
        "expected_wrong": flags.wrong,
        "grades": int(grades.grade.max()),
        "expected_misordered": grades.misordered,
        "told_apart": grades.told_apart,
        "target": funnel.target,
        "outside_95": int((funnel.outside >= 1).sum()),
        "outside_998": int((funnel.outside >= 2).sum()),
    }
    for side, named in answers.named.items():
        found[f"{side}_places"], found[f"{side}_named"] = named.places, int(named.chosen.sum())
        found[f"{side}_expected_wrong"] = named.wrong
    return found


def _summarise(decisions: Decisions, asked: dict[str, Any], found: dict[str, Any]) -> None:
    beside = "the average of the others" if asked["benchmark"] is None else f"{asked['benchmark']:g}"
    rows = {"clients": f"{len(decisions.ids):,}", "about": decisions.name}

    def wrong(named: int, share: float) -> str:
        return f"; {share:.1%} of them expected to be wrong" if named else ""

    rows["differ"] = f"{found['above']:,} above {beside}, {found['below']:,} below" + wrong(
        found["above"] + found["below"], found["expected_wrong"]
    )
    for side in ("highest", "lowest"):
        if asked[side] is not None:
            named, places = found[f"{side}_named"], found[f"{side}_places"]
            rows[f"{side} {asked[side]:.0%}"] = (
                f"{named or 'nobody'} named for {places:,} place{'s' if places > 1 else ''}"
                + wrong(named, found[f"{side}_expected_wrong"])
            )
    rows["grades"] = (
        "1: nobody can be told apart"
        if found["grades"] == 1
        else f"{found['grades']:,}, telling {found['told_apart']:.0%} of all pairs apart; "
        f"{found['expected_misordered']:.1%} of these expected in the wrong order"
    )
    rows["funnel"] = (
        f"around {found['target']:.4g}: {found['outside_95']:,} outside the 95% limits, "
        f"{found['outside_998']:,} outside 99.8%"
    )
    streams.print_rows(rows)


def _readable(table: Any) -> Any:
    """Five digits that mean something."""
    import pyarrow as pa

    for at, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_floating(column.type):
            values = [None if v is None else float(f"{v:.5g}") for v in column.to_pylist()]
            table = table.set_column(at, name, pa.array(values, pa.float64()))
    return table
