"""The closed list of functions: what each takes, and what it says to anything else."""

from __future__ import annotations

import pytest

from vaneb.errors import InvalidOption
from vaneb.grouped import functions, transforms
from vaneb.grouped.formula import understand


def test_every_function_of_one_number_can_be_computed() -> None:
    assert set(functions.ELEMENTWISE) == set(transforms.ELEMENTWISE)


@pytest.mark.parametrize(
    "text",
    [
        "poly(x, 2)",
        "poly(x, degree=2, raw=TRUE)",
        "bs(x)",
        "bs(x, 5)",
        "bs(x, knots=c(-1, 2.5), degree=2)",
        "bs(x, df=4, lower_bound=-3, upper_bound=3)",
        "scale(x, center=FALSE)",
        "scale(log(x) / 2)",
        "C(x, sum)",
        "C(x, contr.sum)",
        "C(x, Sum)",
        "C(x, treatment(reference='a'))",
        "C(x, contr.treatment(base=2))",
        "C(x, Treatment('a'))",
        "factor(x, levels=['b', 'a', 3, True])",
        "C(`my x`, helmert, ['b', 'a'])",
        "I(-x + 2 * abs(y) ** 0.5)",
    ],
)
def test_calls_that_can_be(text: str) -> None:
    understand(f"w ~ {text}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ns(x)", "no function 'ns'; use one of I, log"),
        ("np.log(x)", r"no function 'np.log'; write log\(\.\.\.\)"),
        ("I(eval(x))", r"at character 7 \('eval'\): there is no function 'eval'"),
        ("c(x, z)", "no function 'c'"),
        ("[x]", "no function 'c'"),
        ("log()", "needs a column first"),
        ("log(a=x)", "needs a column first"),
        ("log(x, 2)", "takes nothing after it"),
        ("log('x')", "is no arithmetic"),
        ("log(x:z)", "is no arithmetic"),
        ("log(.)", "Name the column"),
        ("log((1 | g))", "is no arithmetic"),
        ("poly(x, 0)", "whole number from 1 to 100"),
        ("poly(x, 2.5)", "whole number"),
        ("poly(x, z)", "written out"),
        ("poly(x, degre=2)", "takes degree, raw after it, not degre"),
        ("poly(x, 2, degree=3)", "degree twice"),
        ("poly(x, 2, 'yes')", "TRUE or FALSE"),
        ("poly(poly(x, 2), 2)", "stands on its own"),
        ("log(C(x))", "stands on its own"),
        ("I(offset(x))", "no function 'offset'"),
        ("bs(x, df=4, knots=[1])", "df or knots, not both"),
        ("bs(x, df=2)", "a df of 3 at least"),
        ("bs(x, df=1000000)", "whole number from 1 to 1000"),
        ("bs(x, knots=[2, 1])", "increasing order"),
        ("bs(x, knots=3)", "a list of numbers"),
        ("bs(x, knots=[])", "a list of numbers"),
        ("C(log(x))", "a column by its name"),
        ("C(x, magic)", "no coding 'magic'"),
        ("C(x, 3)", "should be a coding"),
        ("C(x, sum('a'))", "only treatment takes an argument"),
        ("C(x, treatment(z))", "should be a level"),
        ("C(x, levels=['a', 'a'])", "a level twice"),
    ],
)
def test_calls_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        understand(f"y ~ {text}")
