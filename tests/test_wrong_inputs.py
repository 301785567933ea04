"""Wrong inputs and what is said of them: each message names the place and the remedy.

``python tests/test_wrong_inputs.py`` writes the page of the guide that lists them all.
"""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from vaneb.cli import app

ROWS = "site,x,y\na,1,2\na,2,3\nb,1,1\nb,3,2\nb,4,4\n"
MODEL = "run in.csv --client site --formula 'y ~ x' -o out.csv"


@dataclass(frozen=True)
class Wrong:
    """A file ``in.csv``, a command, and the words that name the place and the remedy."""

    content: str | bytes
    place: str
    remedy: str
    command: str = "personalize in.csv -o out.csv"


WRONG = {
    # ---------------------------------------------------------------- cells
    "text in a number": Wrong(
        "hospital,estimate,se\nNorth,0.5,0.1\nSouth,n.a.,0.2\n",
        "in.csv, row 2, column estimate: 'n.a.' is not a number",
        "Correct it, or leave the client out",
    ),
    "one decimal comma among points": Wrong(
        'hospital,estimate,se\nNorth,0.5,0.1\nSouth,"0,7",0.2\n',
        "row 2, column estimate: '0,7' is not a number",
        "Write decimals with a point",
    ),
    "percent signs": Wrong(
        "hospital;rate;se\nNorth;12%;2%\n",
        "row 1, column rate: '12%' is not a number",
        "Write the number without the sign",
    ),
    "points for thousands, commas for decimals": Wrong(
        "hospital;estimate;se\nNorth;1.250,5;0,1\nSouth;7,5;0,2\n",
        "row 1, column estimate: '1.250,5' is not a number",
        "Write thousands without a sign",
    ),
    "a date": Wrong(
        "hospital,estimate,se\nNorth,01.02.2024,0.1\n",
        "row 1, column estimate: '01.02.2024' is not a number",
        "give the column the format of numbers",
    ),
    "a footnote": Wrong(
        "hospital,estimate,se\nNorth,0.5*,0.1\n",
        "row 1, column estimate: '0.5*' is not a number",
        "Correct it, or leave the client out",
    ),
    "a sample size in words": Wrong(
        "hospital,estimate,se,n\nNorth,0.5,0.1,n=20\n",
        "row 1, column n: 'n=20' is not a number",
        "Correct it",
    ),
    "a missing estimate": Wrong(
        "hospital,estimate,se\nNorth,,0.1\nSouth,1,0.2\n",
        "client 'North', column estimate: the estimate is missing",
        "Leave the client out",
    ),
    "a standard error of zero": Wrong(
        "hospital,estimate,se\nNorth,0.5,0\nSouth,1,0.2\n",
        "client 'North', column se: the standard error is 0",
        "leave the client out",
    ),
    "a negative variance": Wrong(
        "study,yi,vi\n1,0.5,0.1\n2,0.7,-0.2\n",
        "client '2', column vi: the variance is -0.2",
        "It must be positive and finite",
    ),
    "a client twice": Wrong(
        "hospital,estimate,se\nNorth,0.5,0.1\nNorth,1,0.2\n",
        "client 'North', column hospital: appears in rows 1 and 2",
        "Give one row per client: combine the rows, or rename one",
    ),
    "a client without a name": Wrong(
        "hospital,estimate,se\nNorth,0.5,0.1\n,1,0.2\n",
        "row 2, column hospital: empty",
        "Give every client an id",
    ),
    "a row of totals": Wrong(
        "Klinik;estimate;se\nNord;0,5;0,1\nOst;0,2;0,1\nGesamt;0,35;0,07\n",
        "client 'Gesamt': the last row seems to be a total of the others",
        "Remove it, or rename the client if it is one",
    ),
    # ---------------------------------------------------------------- rows and columns
    "a cell too many": Wrong(
        "hospital;estimate;se\nNorth;0,5;0,1\nSouth;0,7;0,2;x\n",
        "in.csv, row 2: 4 cells, but the header has 3",
        "Check the semicolons and quotes of that row",
    ),
    "no column of estimates": Wrong(
        "hospital,deaths,cases\nNorth,5,100\n",
        "columns of estimates: not recognised. The table has: hospital, deaths, cases",
        "Say which they are: --client COLUMN --estimate COLUMN --se COLUMN",
    ),
    "no column of errors": Wrong(
        "hospital,estimate,ward\nNorth,0.5,A\n",
        "columns of standard errors: not recognised for estimate",
        "--estimate COLUMN --se COLUMN",
    ),
    "a test instead of an error": Wrong(
        "hospital,effect,p-value\nNorth,0.5,0.01\n",
        "columns of standard errors: not recognised for effect",
        "A p-value is not enough: take the standard error or the interval",
    ),
    "a standard deviation instead of an error": Wrong(
        "site,mean,sd,n\nNorth,5.1,2.2,100\n",
        "columns of estimates: not recognised",
        "The standard error of a mean is sd / sqrt(n)",
    ),
    "an interval in one cell": Wrong(
        'study,estimate,95% CI\nNorth,0.5,"0.3, 0.7"\n',
        "columns of standard errors: not recognised for estimate",
        "Write the two limits of an interval into columns of their own: lower and upper",
    ),
    "limits in the wrong columns": Wrong(
        "study,OR,upper,lower\nNorth,1.5,0.9,2.5\n",
        "client 'North', columns lower, OR, upper: 2.5, 1.5, 0.9 are not a lower limit",
        "name other columns: --estimate COLUMN --lower COLUMN --upper COLUMN",
    ),
    "one limit": Wrong(
        "study,effect,low\nNorth,0.5,0.3\n",
        "--lower: both limits are needed",
        "Give --lower COLUMN --upper COLUMN",
        "personalize in.csv --estimate effect --lower low -o out.csv",
    ),
    "two columns of estimates": Wrong(
        "hospital,estimate,coef,se\nNorth,0.5,0.4,0.1\n",
        "columns estimate and coef: each could be the estimate",
        "Say which: --estimate estimate",
    ),
    "a column that is misspelt": Wrong(
        "hospital,effect,se\nNorth,0.5,0.1\n",
        "--estimate efect: there is no such column",
        "Did you mean 'effect'?",
        "personalize in.csv --estimate efect --se se -o out.csv",
    ),
    "a variance function without sample sizes": Wrong(
        "hospital,rate\nNorth,0.5\n",
        "column n: missing",
        "--n COLUMN",
        "personalize in.csv --estimate rate --variance-function binomial -o out.csv",
    ),
    # ---------------------------------------------------------------- files
    "no such file": Wrong("", "inn.csv: there is no such file", "Did you mean in.csv?", "check inn.csv"),
    "an empty file": Wrong("", "in.csv: empty", "Give a header and one row per client"),
    "only a header": Wrong("client,theta_a,se_a\n", "has a header but no rows", "Give one row per client"),
    "not a table": Wrong(
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
        "in.csv: not a table of text",
        "Save it as .csv, .xlsx or .parquet",
    ),
    "a terminal's control characters": Wrong(
        "\x1b[2Jhospital,estimate\n",
        "in.csv: not a table of text",
        "Save it as .csv, .xlsx or .parquet",
    ),
    "a title above the header": Wrong(
        "Results of 2024;;\nhospital;estimate;se\nNorth;1;2\n",
        "The table has: Results of 2024, unnamed 2, unnamed 3",
        "The first line must be the header: remove what stands above it",
    ),
    "a caption above the header": Wrong(
        "Table 1\n\nhospital,estimate,se\nNorth,1,2\n",
        "the first line has one cell, 'Table 1', the next one has more",
        "Remove what stands above the header",
    ),
    "a page of HTML": Wrong(
        "<html><table><tr><td>hospital</td></tr></table></html>",
        "in.csv: HTML or JSON, not a table",
        "Save it as .csv, .xlsx or .parquet",
    ),
    "another encoding than named": Wrong(
        "Köln,1\n".encode("latin-1"),
        "in.csv: not text in UTF-8",
        "Name another encoding (--encoding)",
        "personalize in.csv --encoding utf-8 -o out.csv",
    ),
    "another separator than named": Wrong(
        "hospital,estimate,se\nNorth,0.5,0.1\n",
        "one column, 'hospital,estimate,se'",
        "See --sep",
        "personalize in.csv --sep ; -o out.csv",
    ),
    "an output that is not written": Wrong(
        "hospital,estimate,se\nNorth,0.5,0.1\n",
        "out.pdf: unknown kind of table '.pdf'",
        "Use a name that ends in .csv, .parquet or .xlsx",
        "personalize in.csv -o out.pdf",
    ),
    # ---------------------------------------------------------------- rows
    "a client column that is misspelt": Wrong(
        ROWS, "column Site: missing", "Did you mean 'site'?", MODEL.replace("site", "Site")
    ),
    "counts that are none": Wrong(
        ROWS.replace("b,1,1", "b,1,1.5"),
        "column y: 1.5 is not a count",
        "(0, 1, 2, ...)",
        f"{MODEL} --family poisson",
    ),
    "a row of other length": Wrong(
        ROWS + "c,1\n", "in.csv, row 6: 2 cells, but the header has 3", "Check the commas", MODEL
    ),
    "a report without a model": Wrong(
        ROWS, "formula 'y'", "'y ~ x'", "report in.csv --client site --formula y -o out.csv"
    ),
}

SEVERAL = Wrong(
    "hospital,estimate,se\nNorth,0.5,0\nSouth,n.a.,0.2\nNorth,1,0.1\n",
    "3 problems",
    "row 2, column estimate: 'n.a.' is not a number",
    "check in.csv",
)


def said(wrong: Wrong) -> tuple[Result, list[str]]:
    """What the command does in a folder that has nothing but ``in.csv``, and the files left there."""
    import shlex

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            content = wrong.content
            Path("in.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
            result = CliRunner().invoke(app, shlex.split(wrong.command.replace(" ; ", " ';' ")))
            return result, sorted(os.listdir())
        finally:
            os.chdir(before)


@pytest.mark.parametrize("case", WRONG)
def test_the_message_names_the_place_and_the_remedy(case: str) -> None:
    wrong = WRONG[case]
    result, files = said(wrong)
    assert result.exit_code == 2, result.output
    assert wrong.place in result.output
    assert wrong.remedy in result.output
    assert "Traceback" not in result.output
    if not wrong.command.startswith("check"):
        assert result.stdout == ""
        *before, last = result.stderr.splitlines()
        assert last.startswith("error: ")
        assert all(line.startswith("read: ") for line in before)
    assert files == ["in.csv"]


def test_there_are_twenty_at_least() -> None:
    assert len(WRONG) >= 20


def test_a_parquet_file_with_text_for_numbers(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"hospital": ["x"], "estimate": ["1"], "se": [0.5]}), path)
    result = CliRunner().invoke(app, ["personalize", str(path), "-o", str(tmp_path / "out.csv")])
    assert result.exit_code == 2
    assert "column estimate: holds String, not numbers. Convert it to numbers." in result.stderr


PAGE = Path(__file__).parents[1] / "docs" / "messages.md"
HEAD = f"""# What do the error messages mean?

Here are {len(WRONG) + 1} wrong inputs, with the commands that read them and what they print. Each message
names the place and a remedy. The command ends with code 2, and nothing is written. `vaneb check FILE` lists
all problems of a file at once.

`python tests/test_wrong_inputs.py` writes this page, and the tests compare it with what the commands say.
"""


def page() -> str:
    """The page of the guide, from what the commands say now."""
    parts = [HEAD]
    for name, wrong in {**WRONG, "several at once": SEVERAL}.items():
        result, _ = said(wrong)
        content = wrong.content if isinstance(wrong.content, str) else ascii(wrong.content)[2:-1]
        shown = "(empty)" if not content else content.rstrip("\n").replace("\x1b", "\\x1b")
        command = wrong.command.replace(" ; ", " ';' ")
        parts.append(
            f"\n## {name[0].upper()}{name[1:]}\n\n`in.csv`:\n\n```text\n{shown}\n```\n\n"
            f"```text\n$ vaneb {command}\n{folded(result.output)}\n```\n"
        )
    return "".join(parts)


def folded(text: str) -> str:
    return "\n".join(
        "\n".join(textwrap.wrap(line, 108, subsequent_indent="    ", break_long_words=False))
        if len(line) > 108
        else line
        for line in text.strip().splitlines()
    )


def test_the_page_of_messages_says_what_the_commands_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/test_wrong_inputs.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
