"""The README of this folder, from results.csv, preface.md and remarks.md, to standard output."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent


def spoken(values: pd.Series) -> str:
    """Mean and standard error over splits."""
    if len(values) < 2:
        return "–"
    return f"{values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f} ({len(values)})"


def main() -> None:
    rows = pd.read_csv(HERE / "results.csv")
    print((HERE / "preface.md").read_text())
    print("| | accuracy | log-loss | accuracy, re-splits | log-loss, re-splits |")
    print("|---|---|---|---|---|")
    for method, own in rows.groupby("method", sort=False):
        given, again = own[own.split == 0], own[own.split > 0]
        first = [f"{given[name].iloc[0]:.3f}" if len(given) else "–" for name in ("accuracy", "log_loss")]
        print("|", " | ".join([str(method), *first, spoken(again.accuracy), spoken(again.log_loss)]), "|")
    print()
    print((HERE / "remarks.md").read_text().rstrip())


if __name__ == "__main__":
    main()
