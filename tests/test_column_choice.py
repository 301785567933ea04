"""Which columns are taken for what."""

from __future__ import annotations

import pytest

from vaneb.column_choice import ColumnChoice, choose_columns
from vaneb.errors import VanebError


def taken(header: str, **choice: object) -> tuple:
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in choice.items()}
    found = choose_columns(header.split(","), ColumnChoice(**given))
    return found.client, found.names, found.estimates, found.noise, found.noise_columns


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("client,theta_a,se_a", ("client", ("a",), ("theta_a",), "se_", ("se_a",))),
        ("hospital,estimate,se", ("hospital", ("estimate",), ("estimate",), "se_", ("se",))),
        ("study,coef,std.err", ("study", ("coef",), ("coef",), "se_", ("std.err",))),
        ("study,Estimate,Std. Error", ("study", ("Estimate",), ("Estimate",), "se_", ("Std. Error",))),
        ("author,year,yi,vi", ("author", ("yi",), ("yi",), "variance", ("vi",))),
        ("yi,vi,client", ("client", ("yi",), ("yi",), "variance", ("vi",))),
        ("id,yi,vi,sei", ("id", ("yi",), ("yi",), "se_", ("sei",))),
        ("unnamed 1,b,se", ("unnamed 1", ("b",), ("b",), "se_", ("se",))),
        ("unnamed 1,town,b,se", ("town", ("b",), ("b",), "se_", ("se",))),
        ("site,b_x,b_z,se_x,se_z", ("site", ("x", "z"), ("b_x", "b_z"), "se_", ("se_x", "se_z"))),
        ("site,coef.x,se.x", ("site", ("x",), ("coef.x",), "se_", ("se.x",))),
        ("site,b_x,cov_x__x", ("site", ("x",), ("b_x",), "cov_", ("cov_x__x",))),
        ("n,site,effect,se", ("site", ("effect",), ("effect",), "se_", ("se",))),
    ],
)
def test_guesses(header: str, expected: tuple) -> None:
    assert taken(header) == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"estimate": ["u"], "se": ["s"]}, ("a", ("u",), ("u",), "se_", ("s",))),
        ({"estimate": ["v", "u"], "se": ["t", "s"]}, ("a", ("v", "u"), ("v", "u"), "se_", ("t", "s"))),
        ({"estimate": ["u"], "variance": ["s"], "client": "v"}, ("v", ("u",), ("u",), "variance", ("s",))),
        ({"estimate": ["b_*"], "se": ["*_se"]}, ("a", ("x", "z"), ("b_x", "b_z"), "se_", ("x_se", "z_se"))),
        ({"estimate": ["theta_w"], "se": ["s"]}, ("a", ("w",), ("theta_w",), "se_", ("s",))),
    ],
)
def test_what_the_user_says(choice: dict, expected: tuple) -> None:
    assert taken("a,u,v,s,t,b_x,b_z,z_se,x_se,theta_w", **choice) == expected


def test_a_rate_needs_a_variance_function_and_a_count_is_none() -> None:
    columns = ["district", "rate", "n"]
    found = choose_columns(columns, ColumnChoice(), covariance_given=True)
    assert (found.client, found.estimates, found.size, found.noise) == ("district", ("rate",), "n", None)
    with pytest.raises(VanebError, match="Rates need no errors: add --variance-function"):
        choose_columns(columns, ColumnChoice())
    with pytest.raises(VanebError, match="columns of estimates: not recognised"):
        choose_columns(["district", "deaths", "n"], ColumnChoice(), covariance_given=True)


@pytest.mark.parametrize("header", ["a,mortality,lower,upper", "a,est,LCL,UCL", "a,b,ci.low,ci.high"])
def test_limits_take_the_place_of_errors(header: str) -> None:
    columns = header.split(",")
    layout = choose_columns(columns, ColumnChoice())
    assert (layout.client, layout.estimates, layout.noise_columns) == ("a", (columns[1],), (*columns[2:],))


def test_what_was_taken_is_said_and_what_is_plain_is_not() -> None:
    said = choose_columns(["town", "effect", "se", "n", "mayor"], ColumnChoice()).notes
    assert said == (
        "took town as client; effect as estimate; se as its standard error; n as sample size",
        "ignored columns: mayor",
    )
    several = choose_columns(["town", "b_x", "b_z", "se_x", "se_z"], ColumnChoice()).notes
    assert several == ("took town as client; b_x, b_z as estimates; se_x, se_z as their standard errors",)
    assert choose_columns(["client", "theta_a", "se_a"], ColumnChoice()).notes == ()


@pytest.mark.parametrize(
    ("header", "choice", "client", "estimate"),
    [
        ("hospital,mortality,se", {}, "hospital", "mortality"),
        ("mortality,std.err,client", {}, "client", "mortality"),
        ("town,rate,vi,n", {}, "town", "rate"),
        ("rate,town,se", {"client": "town"}, "town", "rate"),
    ],
)
def test_the_only_column_left_beside_an_error_is_the_estimate(header, choice, client, estimate) -> None:
    found = taken(header, **choice)
    assert (found[0], found[1]) == (client, (estimate,))
    with pytest.raises(VanebError, match="not recognised"):
        taken(f"{header},other", **choice)


def test_messages_name_the_columns_of_the_user() -> None:
    found = choose_columns(["town", "yi", "vi"], ColumnChoice())
    assert found.in_own_words("client 'x', column cov_yi__yi: bad.") == "client 'x', column vi: bad."
    assert found.in_own_words("row 2, column client: empty.") == (
        "row 2, column town: empty. Or name another column for the clients: --client COLUMN."
    )


@pytest.mark.parametrize(
    ("header", "choice", "message"),
    [
        ("a,estimate,coef,se", {}, "columns estimate and coef: each could be.*--estimate estimate"),
        ("a,estimate,se,std.err", {}, "columns se and std.err: each could be the error.*--se se"),
        ("a,estimate,sd", {}, "standard errors: not recognised for estimate.*a, estimate, sd.*--se COLUMN"),
        (
            "a,b,c",
            {"estimate": ["B"], "se": ["c"]},
            "--estimate B: there is no such column.*Did you mean 'b'",
        ),
        ("a,b_x,s_x", {"estimate": ["b_*"], "se": ["q_*"]}, r"--se 'q_\*': matches no column"),
        (
            "a,b_x,s_z",
            {"estimate": ["b_*"], "se": ["s_*"]},
            r"column b_x: --se s_\* matches no column for 'x'",
        ),
        ("a,b,c", {"estimate": ["*_*"], "se": ["c"]}, r"write one \* only"),
        ("a,b,c", {"estimate": ["b"], "se": ["c", "a"]}, "--se: given for 2 columns, --estimate for 1"),
        ("a,b,c", {"se": ["c"]}, "--se without --estimate"),
        ("a,b,c", {"estimate": ["b"], "se": ["c"], "variance": ["c"]}, "--se and --variance: both given"),
        ("a,b,se", {"n": "rows"}, "--n rows: there is no such column"),
        ("a,b,b,se", {}, "column b: appears twice"),
        ("a,b_x,est_x,se_x", {}, "columns b_x, est_x: cannot all be estimates. Say which"),
        ("a,b,c", {"estimate": ["b"], "se": ["b"]}, "column b: taken for two things. Took a as client; b as"),
        ("a,effect,se", {"client": "effect"}, "column effect: taken for two things"),
        ("b,se", {}, "no column is left for the clients' names"),
    ],
)
def test_what_cannot_be_decided_is_refused(header: str, choice: dict, message: str) -> None:
    with pytest.raises(VanebError, match=message):
        taken(header, **choice)
