"""Write the table of README.md from results.csv: python benchmarks/grouped/render.py"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->"
HEAD = (
    "| set | slopes | intercept | GPBoost slopes | GPBoost intercept | pooled | vaneb | over the best "
    "| its worst split | over intercept | over pooled | s | slopes s | GPBoost slopes s |"
)


def line(name: str, rows: pd.DataFrame) -> str:
    """A set: losses are averages over its splits; the best rival is that with the lowest average."""
    rivals = rows[["slopes", "intercept", "gpboost_slopes", "gpboost_intercept"]].mean(skipna=False)
    best = rivals.idxmin()  # a rival that fails in a split is none
    ours = rows.personalised.mean()
    losses = [f"{value:.5g}" for value in (*rivals, rows.pooled.mean(), ours)]
    over = (
        ours / rivals[best],
        (rows.personalised / rows[best]).max(),
        ours / rivals.intercept,
        ours / rows.pooled.mean(),
    )
    seconds = [
        f"{rows[column].mean():.2f}" for column in ("seconds", "slopes_seconds", "gpboost_slopes_seconds")
    ]
    percents = [f"{100 * (value - 1):+.2f}%" for value in over]
    return f"| {' | '.join([name, *losses, *percents, *seconds])} |"


def main() -> None:
    results = pd.read_csv(HERE / "results.csv")
    drawn = results[results.split != "given"]
    rows = [line(str(name), part) for name, part in drawn.groupby("set", sort=False)]
    rows += [
        line(f"{name} (given split)", part) for name, part in results[results.split == "given"].groupby("set")
    ]
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join([HEAD, "|---|" + "---:|" * 13, *rows])
    page.write_text(f"{before}{BEGIN}{table}\n{END}{after}")


if __name__ == "__main__":
    main()
