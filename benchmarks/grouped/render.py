"""Write the table of README.md from results.csv: python benchmarks/grouped/render.py"""

from __future__ import annotations

import csv
from pathlib import Path

HERE = Path(__file__).parent
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->"
HEAD = (
    "| set | lme4, slopes | lme4, intercept | vaneb | over slopes | over intercept "
    "| local | pooled | atoms | s | lme4 s |"
)


def number(text: str, digits: int) -> str:
    return f"{float(text):.{digits}g}" if text else ""


def percent(text: str) -> str:
    return f"{float(text):+.2f}%" if text else ""


def line(row: dict[str, str]) -> str:
    name = row["set"] if row["seed"] == "0" else f"{row['set']} ({row['seed']})"
    losses = [number(row[column], 5) for column in ("slopes", "intercept", "personalised")]
    over = [percent(row[f"over_{column}_percent"]) for column in ("slopes", "intercept")]
    rest = [number(row[column], 4) for column in ("local", "pooled")]
    lme4_seconds = row["lme4_seconds"] if row["slopes"] else ""
    cells = [name, *losses, *over, *rest, row["atoms"], row["seconds"], lme4_seconds]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    with (HERE / "results.csv").open(newline="") as file:
        rows = [line(row) for row in csv.DictReader(file)]
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join([HEAD, "|---|" + "---:|" * 10, *rows])
    page.write_text(f"{before}{BEGIN}{table}\n{END}{after}")


if __name__ == "__main__":
    main()
