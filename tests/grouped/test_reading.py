"""What is made of each column, and what can only be a slip."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped import fit_groups
from vaneb.grouped.formula import parse
from vaneb.grouped.frames import as_pandas
from vaneb.grouped.reading import Reading, read_columns


def people(n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "school": [f"s{k % 10}" for k in range(n)],
            "age": rng.integers(20, 80, n).astype(str),
            "sex": rng.choice(["f", "m"], n),
            "y": rng.standard_normal(n),
        }
    )


def read(frame: object, formula: str, **options: object) -> tuple[pd.DataFrame, Reading]:
    data = as_pandas(frame)
    return read_columns(data, parse(formula, data, ["school"]), ["school"], **options)


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(age=frame.age.astype(float))


def test_one_line_for_each_column() -> None:
    frame = numbers(people())
    frame.loc[[3, 5], "age"] = np.nan
    frame["late"] = frame.y > 0
    _, reading = read(frame, "y ~ age + sex + late")
    assert reading.columns == (
        "school: groups, 10 (s0, s1, s2, s3, s4, s5, and 4 more)",
        f"y (the response): number, {frame.y.min():.6g} to {frame.y.max():.6g}",
        f"age: number, {frame.age.min():.6g} to {frame.age.max():.6g}",
        "sex: factor, 2 levels (f, m)",
        f"late: true or false, {frame.late.sum()} true",
        "rows: 120, 2 left out for missing values (age 2)",
    )
    assert reading.notes == ()
    lines: list[str] = []
    fit = fit_groups(frame, client="school", formula="y ~ age", told=lines.append)
    assert tuple(lines) == fit.read
    assert "all complete" in fit_groups(people(), client="school", formula="y ~ sex").read[-1]


@pytest.mark.parametrize("stray", [">90", ".", "NA", "12 years", "n/a"])
def test_one_stray_cell_is_named(stray: str) -> None:
    frame = people()
    frame.loc[41, "age"] = stray
    with pytest.raises(InvalidReport) as caught:
        read(frame, "y ~ age")
    assert f"row 42, column age: {stray!r} is not a number" in str(caught.value)
    assert "--factor age" in str(caught.value)
    data, reading = read(frame, "y ~ age", na=[stray])
    assert pd.api.types.is_numeric_dtype(data.age)
    assert np.isnan(data.age[41])
    assert reading.columns[-1] == "rows: 120, 1 left out for missing values (age 1)"


def test_several_stray_cells_are_counted() -> None:
    frame = people()
    frame.loc[[7, 9, 11], "age"] = [">90", ">90", "old"]
    with pytest.raises(InvalidReport, match=r"row 8, .*3 such cells, 2 different ones"):
        read(frame, "y ~ age")


def test_the_response_is_looked_at_too() -> None:
    frame = people().astype({"y": str})
    frame.loc[4, "y"] = "-"
    with pytest.raises(InvalidReport, match=r"row 5, column y: '-' is not a number"):
        read(frame, "y ~ sex")


def test_columns_that_are_not_used_are_not_looked_at() -> None:
    frame = people()
    frame.loc[41, "age"] = ">90"
    read(frame, "y ~ sex")


def test_a_text_of_which_half_are_numbers_is_a_factor() -> None:
    frame = people().assign(grade=["1", "K"] * 60)
    assert read(frame, "y ~ grade")[1].columns[2] == "grade: factor, 2 levels (1, K)"


@pytest.mark.parametrize(("levels", "refused"), [(6, False), (7, True)])
def test_many_levels_are_to_be_confirmed(levels: int, refused: bool) -> None:
    frame = people().assign(town=[f"t{k % levels}" for k in range(120)])
    if not refused:
        read(frame, "y ~ town")
        return
    with pytest.raises(InvalidReport, match=r"a factor of 7 levels in 120 rows .*--factor town"):
        read(frame, "y ~ town")
    assert read(frame, "y ~ town", factors=["town"])[1].columns[2].startswith("town: factor, 7 levels")
    # C(town) says that it is meant.
    assert "7 levels" in read(frame, "y ~ C(town)")[1].columns[2]


def test_two_levels_are_never_too_many() -> None:
    read(people(12), "y ~ sex")


def test_a_number_can_be_made_a_factor() -> None:
    frame = people().assign(year=[2019 + k % 3 for k in range(120)])
    by_name = fit_groups(frame, client="school", formula="y ~ year", factors=["year"])
    by_formula = fit_groups(frame, client="school", formula="y ~ C(year)")
    assert by_name.names == ("Intercept", "year[T.2020]", "year[T.2021]")
    assert_allclose(by_name.posterior.mean, by_formula.posterior.mean)
    assert_allclose(by_name.predict(frame), by_formula.predict(frame))
    with pytest.raises(InvalidReport, match="column yeer: missing"):
        read(frame, "y ~ year", factors=["yeer"])


@pytest.mark.parametrize(
    "dates",
    [
        [datetime.date(2020, 1, 1 + k % 28) for k in range(120)],
        [f"{1 + k % 2:02}.03.2020" for k in range(120)],
        [f"3/{1 + k % 28}/20" for k in range(120)],
        pd.date_range("2020-01-01", periods=120),
    ],
    ids=["days", "german", "american", "times"],
)
def test_dates_are_dates(dates: list) -> None:
    frame = people().assign(seen=dates)
    with pytest.raises(InvalidReport, match=r"column seen: holds (dates|datetime64).*days since the first"):
        fit_groups(frame, client="school", formula="y ~ seen")


def test_a_line_for_dates() -> None:
    days = [datetime.date(2020, 1, 1 + k % 28) for k in range(120)]
    _, reading = read(pl.DataFrame({**people().to_dict("list"), "seen": days}), "y ~ seen")
    assert reading.columns[2] == "seen: date, 2020-01-01 to 2020-01-28"


def test_names_of_groups_that_look_alike_are_reported() -> None:
    frame = people()
    frame["school"] = ["North", "North ", "north", "South"] * 30
    _, reading = read(frame, "y ~ sex")
    assert any("'North' and 'North ' and 'north'" in note for note in reading.notes)
    assert any("blanks before or after" in note and "'North '" in note for note in reading.notes)
    fit = fit_groups(frame, client="school", formula="y ~ sex")
    assert fit.rows.n_clients == 4
    assert "'North '" in str(fit)


def test_a_level_that_may_be_a_missing_value_is_reported() -> None:
    frame = people()
    frame.loc[:9, "sex"] = "NA"
    assert any("'NA' is taken for a level" in note for note in read(frame, "y ~ sex")[1].notes)
    assert "10 left out" in read(frame, "y ~ sex", na=["NA"])[1].columns[-1]


@pytest.mark.parametrize("formula", ["y ~ site", "y ~ x + C(site)", "y ~ log(site)", "y ~ x + offset(site)"])
def test_the_grouping_column_is_no_covariate(formula: str) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(np.arange(1, 9), 6), "x": rng.random(48), "y": rng.random(48)})
    with pytest.raises(InvalidOption, match="leave the client column site out"):
        fit_groups(frame, client="site", formula=formula)
