"""Sites that keep their rows: vaneb beside pda and DataSHIELD, on four hospitals and two grouped sets.

    python benchmarks/rivals/sites.py --export FOLDER --data DATA [--splits 20]
    Rscript benchmarks/rivals/sites.R FOLDER
    python benchmarks/rivals/sites.py --ours FOLDER
    python benchmarks/rivals/sites.py --score FOLDER -o benchmarks/rivals/sites.csv
    python benchmarks/rivals/sites.py --render benchmarks/rivals/sites.csv

``DATA`` has hospitals/heart.csv, groups/hsb82.csv and groups/contraception.csv.  Numbers of the hospitals
are scaled within hospitals, as in ``benchmarks/hospitals``; split 0 is the given one, the others draw as many
rows of each class.  Losses of held-out rows: squared error, or log-loss.  Bytes: what one site sends, in all.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

for folder in ("grouped", "federation", "hospitals"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

HOSPITALS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
#: Columns, family, and the columns that are factors.
SETS = {
    "hospitals": (HOSPITALS, "binomial", ["cp", "restecg"]),
    "hsb82": (["cses"], "gaussian", []),
    "contraception": (["age", "urban"], "binomial", []),
}
LINE = ("set", "method", "exchanges", "bytes", "cpu_seconds", "error")
COLUMNS = ("set", "method", "loss", "accuracy", "exchanges", "bytes", "cpu_seconds", "error")


def export(folder: Path, data: Path, splits: int) -> None:
    from run import scaled, split  # type: ignore[import-not-found]

    heart = pd.read_csv(data / "hospitals" / "heart.csv").rename(columns={"hospital": "site"})
    frames = {}
    for number in range(splits + 1):
        frame = split(heart.rename(columns={"site": "hospital"}), number)
        frames[f"hospitals-{number}"] = scaled(frame).rename(columns={"hospital": "site"})
    for name in ("hsb82", "contraception"):
        frames[name] = pd.read_csv(data / "groups" / f"{name}.csv").rename(columns={"client": "site"})
    about = {}
    for name, frame in frames.items():
        variables, family, factors = SETS[name.partition("-")[0]]
        variables = [v for v in variables if v not in factors]
        for column in factors:  # one column for each level but the first
            for level in sorted(frame[column].unique())[1:]:
                frame[f"{column}_{level:g}"] = (frame[column] == level).astype(int)
                variables.append(f"{column}_{level:g}")
        about[name] = {"variables": variables, "family": family}
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, rows in (("train", frame[frame.test == 0]), ("test", frame[frame.test == 1])):
            rows[["site", "y", *variables]].to_csv(folder / name / f"{part}.csv", index=False)
    (folder / "sets.json").write_text(json.dumps(about))


def ours(folder: Path, name: str, about: dict) -> None:
    """Predictions of a federation and of ``vaneb run`` on pooled rows, with exchanges, bytes and seconds."""
    from lossless import federated, positions  # type: ignore[import-not-found]

    from vaneb.flower.settings import Settings
    from vaneb.grouped import fit_groups
    from vaneb.grouped.design import learn_design
    from vaneb.grouped.formula import parse
    from vaneb.grouped.predictive import expected_response
    from vaneb.local.data import GroupedRows
    from vaneb.local.family import family_class

    rows, test = (pd.read_csv(folder / name / f"{part}.csv") for part in ("train", "test"))
    family = about["family"]
    formula = "y ~ " + " + ".join(about["variables"])

    def said(method: str, prediction: np.ndarray, exchanges: int | str, sent: int | str) -> None:
        pd.DataFrame({"prediction": prediction}).to_csv(folder / name / f"{method.replace(' ', '-')}.csv")
        with (folder / "ours.csv").open("a", newline="") as file:
            seconds = f"{time.process_time() - begin:.1f}"
            csv.writer(file).writerow([name, method, exchanges, sent, seconds, ""])

    design = learn_design(rows, parse(formula, rows, ["site"]), family, client="site", offset=None)
    mine, new = design.rows(rows, response=True, new=False), design.rows(test, response=True)
    assert mine.response is not None
    grouped = GroupedRows.from_columns(mine.clients, mine.covariates, mine.response, names=design.names)
    at = positions(grouped.ids, new.clients)
    for exchanges in (1,) if family == "gaussian" else (1, 2):
        begin = time.process_time()
        found, sent = federated(grouped, Settings(formula=formula, family=family, exchanges=exchanges))
        own = family_class(family)()
        own = own.with_dispersion(found.dispersion) if hasattr(found, "dispersion") else own
        value = expected_response(own, found, at, new.covariates, new.offset)
        said(f"vaneb federate {exchanges} exchange{'s' if exchanges > 1 else ''}", value, exchanges, sent)
    if not re.search(r"-[1-9]", name):  # the given splits
        begin = time.process_time()
        fit = fit_groups(rows, client="site", formula=formula, family=family)
        said("vaneb run on pooled rows", fit.predict(test), "", "")


def scores(family: str, test: pd.DataFrame, prediction: np.ndarray) -> dict[str, float]:
    y = test.y.to_numpy(float)
    if family == "gaussian":
        return {"loss": float(np.mean((y - prediction) ** 2))}
    p = np.clip(prediction, 1e-15, 1 - 1e-15)
    right = pd.Series((p > 0.5) == (y == 1)).groupby(test.site.to_numpy()).mean()
    return {
        "loss": float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p))),
        "accuracy": float(right.mean()),
    }


def score(folder: Path, out: Path) -> None:
    about = json.loads((folder / "sets.json").read_text())
    lines = pd.read_csv(folder / "rivals.csv", keep_default_na=False).to_dict("records")
    with (folder / "ours.csv").open(newline="") as file:
        lines += [dict(zip(LINE, row, strict=True)) for row in csv.reader(file)]
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for line in sorted(lines, key=lambda line: list(about).index(line["set"])):
            test = pd.read_csv(folder / line["set"] / "test.csv")
            path = folder / line["set"] / f"{line['method'].replace(' ', '-')}.csv"
            if not line["error"]:
                made = scores(about[line["set"]]["family"], test, pd.read_csv(path).prediction.to_numpy())
                line |= {key: f"{value:.6f}" for key, value in made.items()}
            writer.writerow({**line, "error": str(line["error"]).strip()})


def render(path: Path) -> str:
    """Means over re-splits with standard errors, as Markdown."""

    def spoken(values: pd.Series, digits: int) -> str:
        values = values.dropna()
        if len(values) < 2:
            return f"{values.iloc[0]:.{digits}f}" if len(values) else ""
        return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / len(values) ** 0.5:.{digits}f}"

    rows = pd.read_csv(path)
    rows["where"] = rows.set.str.replace(r"-[1-9]\d*$", ", re-splits", regex=True).str.replace("-0", "")
    lines = ["| set | method | loss | accuracy | exchanges | bytes a site sends | CPU s |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for (where, method), own in rows.groupby(["where", "method"], sort=False):
        refused = own.error.notna().sum()
        cells = [where, method, spoken(own.loss, 3), spoken(own.accuracy, 3)]
        cells += [spoken(own[c].mean(skipna=True) + pd.Series([0.0]), 0) for c in ("exchanges", "bytes")]
        cells.append(f"{own.cpu_seconds.mean():.1f}")
        if refused:
            word = "refused" if own.error.dropna().str.startswith("refused").all() else "stopped"
            cells[2] = cells[2] or f"{word} in {refused} of {len(own)}"
        lines.append("| " + " | ".join("" if c == "nan" else c for c in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--export", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--ours", type=Path)
    parser.add_argument("--score", type=Path)
    parser.add_argument("--render", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    if asked.export:
        export(asked.export, asked.data, asked.splits)
    elif asked.ours:
        (asked.ours / "ours.csv").write_text("")
        for name, about in sorted(json.loads((asked.ours / "sets.json").read_text()).items()):
            ours(asked.ours, name, about)
    elif asked.score:
        score(asked.score, asked.out)
    else:
        print(render(asked.render))


if __name__ == "__main__":
    main()
